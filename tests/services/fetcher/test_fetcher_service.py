"""The service around the dispatcher: commit requests, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from common import messages as m
from common.errors import BadInputError
from common.locks import ATTEMPT_VARIABLE, OutdatedAttemptError, begin_attempt
from common.process import StopFlag
from common.status import OUTLIER_FOLDER, FetcherStatus, read_status, write_status
from services.config.root import Config
from services.fetcher import service as module
from services.fetcher.service import CommitRequests, FetcherService

HERE = m.Cursor(unit=4)
THERE = m.Cursor(unit=5)


def ask(requests: CommitRequests, now_s: float, *trainers: str, at_work: bool = False) -> list[str]:
    return list(requests.due(now_s, trainers, at_work=at_work))


def test_all_trainers_are_asked_once_until_all_have_committed() -> None:
    requests = CommitRequests("the budget")
    assert ask(requests, 10.0, "a", "b") == ["a", "b"]
    requests.committed("a", m.Committed(HERE), ["a", "b"], units_ahead=0)
    assert ask(requests, 100.0, "a", "b") == []
    requests.committed("b", m.Committed(HERE), ["a", "b"], units_ahead=0)
    assert ask(requests, 101.0, "a", "b", at_work=True) == ["a", "b"]
    for trainer in ("a", "b"):
        requests.committed(trainer, m.Committed(HERE), ["a", "b"], units_ahead=1)
    assert ask(requests, 110.0, "a") == [], "trainers at work are asked less often"
    assert ask(requests, 111.0, "a") == ["a"]


def answer(
    requests: CommitRequests, now_s: float, cursor: m.Cursor, units_ahead: int = 0, *, waits: bool = True
) -> None:
    assert ask(requests, now_s, "a") == ["a"]
    requests.committed("a", m.Committed(cursor, waits), ["a"], units_ahead=units_ahead)


def test_checkpoints_at_one_place_that_free_nothing_end_the_run_with_what_to_change() -> None:
    requests = CommitRequests("fetcher.disk_budget_gib = 2.5")
    for second in range(4):  # the first of them is a new place
        answer(requests, second * 10.0, HERE)
    with pytest.raises(BadInputError, match=r"fetcher.disk_budget_gib = 2.5 is too small"):
        ask(requests, 100.0, "a")


@pytest.mark.parametrize("progress", ["other place", "units ahead", "wanted", "attached"])
def test_any_progress_between_makes_earlier_answers_count_for_nothing(progress: str) -> None:
    requests = CommitRequests("the budget")
    for second in range(3):
        answer(requests, second * 10.0, HERE)
    if progress == "wanted":
        requests.wanted()
    elif progress == "attached":
        requests.attached()
    else:
        answer(requests, 90.0, THERE if progress == "other place" else HERE, units_ahead=progress == "units ahead")
    for second in range(2):
        answer(requests, 100.0 + second * 10.0, HERE if progress != "other place" else THERE)
    assert ask(requests, 200.0, "a") == ["a"]


def test_nothing_is_too_small_while_the_trainer_waits_for_another_shard() -> None:
    requests = CommitRequests("fetcher.disk_budget_gib = 2.5")
    for second in range(20):
        answer(requests, second * 10.0, HERE, waits=False)
    for second in range(3):
        answer(requests, 1000.0 + second * 10.0, HERE)
    with pytest.raises(BadInputError, match="is too small"):
        ask(requests, 2000.0, "a")


CONFIG = Config.model_validate({"input": ["x.parquet"], "stream": {"slots": 2, "slot_mib": 1}})
FORMER = FetcherStatus(pid=1, state="streaming")


def test_a_fetcher_that_is_started_again_waits_for_the_memory_of_the_former_ones_arena(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_status(tmp_path, "fetcher", FORMER)
    problems = []

    def available() -> int:
        status = read_status(tmp_path, "fetcher", FetcherStatus)
        assert status is not None
        problems.append(status.problem)
        return 0 if len(problems) < 3 else 1 << 40

    monkeypatch.setattr("common.transport.available_memory_bytes", available)
    FetcherService(tmp_path, CONFIG).close()
    assert problems[0] == ""
    assert all("too little memory for the arena; waiting" in problem for problem in problems[1:])


@pytest.mark.parametrize("is_restart", [False, True])
def test_memory_that_does_not_come_back_is_an_error_that_names_both_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restart: bool
) -> None:
    monkeypatch.setattr(module, "_LET_GO_S", 0.0 if is_restart else 10**6)  # the first fetcher waits for nobody
    if is_restart:
        write_status(tmp_path, "fetcher", FORMER)
    monkeypatch.setattr("common.transport.available_memory_bytes", lambda: 0)
    with pytest.raises(BadInputError, match=r"stream\.slots = 2 × stream\.slot_mib = 1 .*lower one of them"):
        FetcherService(tmp_path, CONFIG)


def test_a_fetcher_of_an_older_attempt_leaves_the_outliers_that_are_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was frozen while its run was started again elsewhere, and its supervisor starts it again as it wakes up."""
    attempt = begin_attempt(tmp_path / "shared")
    part = tmp_path / "shared" / OUTLIER_FOLDER / "unit-0.12345678.part"
    part.parent.mkdir()
    part.touch()
    for name, value in attempt.environment.items():
        monkeypatch.setenv(name, value)
    begin_attempt(tmp_path / "shared")
    with pytest.raises(OutdatedAttemptError):
        FetcherService(tmp_path / "run", CONFIG)
    assert part.exists()
    monkeypatch.setenv(ATTEMPT_VARIABLE, "2")
    FetcherService(tmp_path / "of the newest", CONFIG).close()
    assert not part.exists()


def test_a_fetcher_lists_its_inputs_waits_for_a_trainer_and_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        (data / f"{number}.parquet").touch()
    run_dir = tmp_path / "run"
    config = CONFIG.model_copy(update={"input": (str(data),)})

    class OnceListed:
        """Stop flag that is set once the status shows that the inputs are listed."""

        def __bool__(self) -> bool:
            told = read_status(run_dir, "fetcher", FetcherStatus)
            return told is not None and told.state == "waiting for a trainer"

    service = FetcherService(run_dir, config)
    try:
        service.run(cast("StopFlag", OnceListed()))
    finally:
        service.close()
    told = read_status(run_dir, "fetcher", FetcherStatus)
    assert told is not None
    assert (told.files_total, told.ranges_listed, told.slots_free, told.decoders) == (3, 1, 2, 0)
    assert not list((run_dir / "cache").rglob("*.parquet"))
