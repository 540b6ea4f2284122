"""Checkpoints: there in full or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import icestream
from common.errors import BadInputError
from common.locks import OutdatedAttemptError, RunAttempt, begin_attempt
from common.transport import StopRequested
from services.trainer import commits as module
from services.trainer.commits import Checkpoints
from workloads.base.checkpoint import read_checkpoint


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    checkpoints = Checkpoints(tmp_path, 2, wait_s=0, stopped=lambda: False)
    yield checkpoints
    checkpoints.close()


def files(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def test_the_newest_checkpoint_comes_back_with_its_tensors(checkpoints: Checkpoints) -> None:
    assert checkpoints.latest() is None
    checkpoints.save(9, {"step": 9, "weights": torch.arange(3.0)})
    checkpoints.save(10, {"step": 10, "weights": torch.arange(4.0)})
    found = checkpoints.latest()
    assert found is not None
    path, state = found
    assert path.name == "step-000000010.pt"
    assert state["step"] == 10
    assert torch.equal(state["weights"], torch.arange(4.0))


def test_the_newest_few_are_kept_and_only_their_owner_reads_them(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        path = checkpoints.save(step, {})
    assert files(tmp_path) == ["step-000000002.pt", "step-000000003.pt"]
    assert path.stat().st_mode & 0o077 == 0


def test_a_checkpoint_that_could_not_be_written_leaves_the_former_ones(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.save(1, {"step": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module.torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoints.save(2, {"step": 2})
    assert files(tmp_path) == ["step-000000001.pt"]
    monkeypatch.undo()
    found = checkpoints.latest()
    assert found is not None
    assert found[1]["step"] == 1


def test_what_a_killed_trainer_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step-000000007.part").write_bytes(b"half")
    Checkpoints(tmp_path, 2, wait_s=0, stopped=lambda: False).close()
    assert files(tmp_path) == []


def test_a_checkpoint_that_cannot_be_read_is_named(checkpoints: Checkpoints, tmp_path: Path) -> None:
    path = checkpoints.save(3, {"weights": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BadInputError, match=r"step-000000003\.pt: can't be read .*delete it"):
        checkpoints.latest()


def test_a_checkpoint_that_would_run_code_is_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    path = tmp_path / "checkpoints" / "step-000000005.pt"
    torch.save({"format": 2, "bomb": Bomb()}, path)
    with pytest.raises(BadInputError, match=r"can't be read .*; delete it to resume from the one before"):
        checkpoints.latest()
    with pytest.raises(BadInputError, match="can't be read") as told:
        read_checkpoint(path)
    assert "weights_only" not in str(told.value), "torch's advice would run what is in it"
    assert "delete" not in str(told.value), "whoever names a file may have named the wrong one"


class Bomb:
    """Unpickling it would call a function."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("true",)


def test_only_one_trainer_at_a_time_has_the_checkpoints(checkpoints: Checkpoints, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"the run is in use by .* \(trainer, process"):
        Checkpoints(tmp_path, 2, wait_s=0, stopped=lambda: False)
    with pytest.raises(StopRequested):
        Checkpoints(tmp_path, 2, wait_s=60, stopped=lambda: True)
    checkpoints.close()
    checkpoints.__init__(tmp_path, 2, wait_s=0, stopped=lambda: False)  # type: ignore[misc]


def test_damage_anywhere_in_a_checkpoint_is_bad_input_or_harmless(checkpoints: Checkpoints) -> None:
    state = {"weights": {"layer": torch.arange(20.0)}, "position": "{}", "step": 3, "none": None, "numbers": [1, 2]}
    path = checkpoints.save(3, state)
    raw = path.read_bytes()
    rng = random.Random(0)
    for i in range(150):
        damaged = bytearray(raw[: rng.randrange(len(raw))] if i % 3 == 0 else raw)
        for _ in range(rng.randint(1, 5)):
            if damaged:
                damaged[rng.randrange(min(len(damaged), 600) if i % 2 else len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(BadInputError):
            checkpoints.latest()


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"format": 99}, "not a checkpoint of format 2"),
        ([1, 2], "not a checkpoint of format 2"),
        ({"gen_state_dict": {}, "crit_state_dict": {}}, "of cr_muons, whose weights can't be used"),
        ({"generator": {}, "epoch": 3}, "of cr_muons, whose weights can't be used"),
        ({"epoch": 1, "model_state_dict": {}}, "of another program, whose weights can't be used"),
    ],
)
def test_a_checkpoint_of_another_format_or_program_is_told(checkpoints: Checkpoints, state: object, said: str) -> None:
    path = checkpoints.save(3, {})
    torch.save(state, path)
    for read in (checkpoints.latest, lambda: icestream.load(path)):
        with pytest.raises(BadInputError, match=said) as raised:
            read()
        assert "--fresh" not in str(raised.value)


def test_the_checkpoint_with_the_lowest_score_stays_beside_the_newest(tmp_path: Path) -> None:
    for start in (1, 5):  # the second trainer knows of the first one's best
        checkpoints = Checkpoints(tmp_path, 2, wait_s=0, stopped=lambda: False)
        for step, score in enumerate((3.0, 1.0, None, 2.0), start):
            checkpoints.save(step, {"step": step}, score if start == 1 else score and score + 0.5)
        checkpoints.close()
    assert files(tmp_path) == ["best.pt", "step-000000007.pt", "step-000000008.pt"]
    best = tmp_path / "checkpoints" / "best.pt"
    assert torch.load(best, weights_only=True) == {"format": 2, "step": 2, "score": 1.0}


def test_a_score_that_is_no_number_is_never_the_best(checkpoints: Checkpoints, tmp_path: Path) -> None:
    checkpoints.save(1, {}, float("nan"))
    assert files(tmp_path) == ["step-000000001.pt"]
    checkpoints.save(2, {}, 7.0)
    checkpoints.save(3, {}, float("nan"))
    assert torch.load(tmp_path / "checkpoints" / "best.pt", weights_only=True)["score"] == 7.0


def test_a_best_checkpoint_that_cannot_be_read_is_told_and_replaced(
    tmp_path: Path, checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    best = tmp_path / "checkpoints" / "best.pt"
    best.write_bytes(b"damaged")
    checkpoints.save(1, {}, 7.0)
    assert "best.pt: can't be read" in caplog.text
    assert torch.load(best, weights_only=True)["score"] == 7.0


def test_without_hard_links_the_best_is_a_copy(
    checkpoints: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    path = checkpoints.save(1, {"step": 1}, 7.0)
    best = tmp_path / "checkpoints" / "best.pt"
    assert best.read_bytes() == path.read_bytes()
    assert best.stat().st_nlink == 1


def test_checkpoints_of_later_steps_go_when_training_went_back(checkpoints: Checkpoints, tmp_path: Path) -> None:
    for step in (4, 6, 5):
        checkpoints.save(step, {"step": step})
    assert files(tmp_path) == ["step-000000004.pt", "step-000000005.pt"]


def test_a_trainer_of_an_older_attempt_changes_nothing_and_holds_up_no_later_one(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    older = of_node(tmp_path, begin_attempt(shared))
    older.save(1, {"step": 1})
    newer = of_node(tmp_path, begin_attempt(shared))  # the older one is not closed
    newer.save(2, {"step": 2})
    for step in (1, 2, 3):
        with pytest.raises(OutdatedAttemptError, match="attempt 2 has begun"):
            older.save(step, {"step": "of the older"}, 0.1)
    assert files(shared) == ["step-000000001.pt", "step-000000002.pt"]
    assert not (tmp_path / "checkpoints").exists()
    assert read_checkpoint(shared / "checkpoints" / "step-000000002.pt")["step"] == 2


def test_an_older_attempt_that_is_writing_leaves_the_new_ones_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    older, newer = (of_node(tmp_path, begin_attempt(shared)) for _ in range(2))
    save = module.torch.save

    def interrupted(content: object, file: object) -> None:
        monkeypatch.setattr(module.torch, "save", save)
        with pytest.raises(OutdatedAttemptError):
            older.save(1, {"step": "of the older"})
        save(content, file)

    monkeypatch.setattr(module.torch, "save", interrupted)
    newer.save(1, {"step": 1})
    assert read_checkpoint(shared / "checkpoints" / "step-000000001.pt")["step"] == 1
    assert files(shared) == ["step-000000001.pt"]


def test_a_trainer_of_an_older_attempt_that_starts_late_leaves_the_new_ones_part_alone(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    older, newer = begin_attempt(shared), begin_attempt(shared)
    of_node(tmp_path, newer)
    (shared / "checkpoints" / "step-000000001.2.part").touch()
    with pytest.raises(OutdatedAttemptError):
        of_node(tmp_path, older)
    assert files(shared) == ["step-000000001.2.part"]


def of_node(tmp_path: Path, attempt: RunAttempt) -> Checkpoints:
    return Checkpoints(tmp_path, 2, wait_s=0, stopped=lambda: False, attempt=attempt)
