"""When a trainer saves and what it reports, by example and under random schedules."""

from __future__ import annotations

import io
import random
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from common.messages import Cursor
from services.trainer.commits import Commits, Snapshot, not_finite
from services.trainer.health import Health, NotFinite
from services.trainer.position import StreamPosition
from services.trainer.state import TrainState
from workloads.base.module_training import NoModelTask

EVERY = 3
CPU = torch.device("cpu")


def at(step: int) -> StreamPosition:
    return StreamPosition(cursor=Cursor(unit=step))


@dataclass
class Disk:
    """Checkpoints of a trainer; each is written once its gate opens, and may fail."""

    files: list[tuple[int, StreamPosition]] = field(default_factory=list)
    fails: dict[int, Exception] = field(default_factory=dict)
    """By number of the checkpoint."""
    gate: threading.Event = field(default_factory=threading.Event)
    num_begun: int = 0

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.files]

    def save(self, step: int, content: dict[str, Any], score: float | None) -> Path:
        self.num_begun += 1
        assert self.gate.wait(20)
        if self.num_begun in self.fails:
            raise self.fails[self.num_begun]
        self.files.append((step, StreamPosition.model_validate_json(content["position"])))
        return Path(f"step-{step}")


@dataclass
class Judge:
    """A guard; what is saved was judged."""

    state: TrainState
    judged: int = -1
    begun: list[int] = field(default_factory=list)
    """Steps of the checkpoints."""

    def look(self) -> None:
        self.judged = self.state.step

    def take_worst(self) -> Health:
        assert self.judged == self.state.step
        self.begun.append(self.state.step)
        return Health.HEALTHY


@dataclass
class Fetcher:
    """The feed's side: a request that waits for its answer, and what was reported."""

    disk: Disk
    state: TrainState
    requested: bool = False
    alone: bool = True
    """False: what this rank wants is no request before the ranks have agreed on it."""
    wants: bool = False
    pending_since: int = -1
    """Step at which the oldest unanswered request was taken."""
    reported: list[int] = field(default_factory=list)
    """Units of the cursors, which are the steps."""

    @property
    def agreement(self) -> Fetcher:
        return self

    def take_commit_request(self) -> bool:
        taken, self.requested = self.requested, False
        if taken and self.pending_since < 0:
            self.pending_since = self.state.step
        return taken

    def want_commit(self) -> None:
        if self.alone:
            self.requested = True
        else:
            self.wants = True

    def committed(self, position: StreamPosition) -> None:
        assert position in [position for _, position in self.disk.files], "it is on disk"
        self.reported.append(position.cursor.unit)
        if position.cursor.unit >= self.pending_since:
            self.pending_since = -1


class Silence:
    """Telemetry that nobody reads."""

    def newest_score(self) -> None:
        return None

    def checkpointed(self, path: Path, step: int) -> None:
        assert path == Path(f"step-{step}")

    def note(self, step: int, scalars: dict[str, float]) -> None:
        assert scalars.keys() == {"checkpoint/stall_s", "checkpoint/write_s"}


class Trainer:
    """A trainer's commits, moved by a test."""

    def __init__(self, every: int = EVERY) -> None:
        self.state = TrainState(NoModelTask(CPU), CPU, "plan")
        self.disk, self.judge = Disk(), Judge(self.state)
        self.fetcher = Fetcher(self.disk, self.state)
        fakes: list[Any] = [self.disk, self.judge, Silence(), None, self.fetcher]
        self.commits = Commits(self.state, *fakes, "{}", every)

    def step(self) -> None:
        self.state.step += 1
        self.state.position = at(self.state.step)
        self.commits.turn(stepped=True)

    @property
    def is_writing(self) -> bool:
        return self.commits._writing is not None

    def wait_for_disk(self) -> None:
        """Until the write under way has ended."""
        writing = self.commits._writing
        assert writing is not None
        writing.future.exception(20)

    def close(self) -> None:
        self.disk.gate.set()
        self.commits.close()


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    with closing(Trainer()) as trainer:
        yield trainer


def test_the_loop_goes_on_while_it_is_written_and_reports_it_afterwards(trainer: Trainer) -> None:
    for _ in range(5):
        trainer.step()
    assert trainer.judge.begun == [3]
    assert trainer.fetcher.reported == []
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    trainer.commits.turn()
    assert trainer.fetcher.reported == [3]
    assert trainer.commits.good.content["step"] == 3


def test_a_request_during_a_save_is_answered_by_a_later_checkpoint(trainer: Trainer) -> None:
    for _ in range(4):
        trainer.step()
    trainer.fetcher.requested = True
    trainer.disk.gate.set()
    trainer.commits.turn()
    trainer.wait_for_disk()
    trainer.commits.turn()
    assert trainer.fetcher.reported == [4], "that of step 3 was older than the request"
    trainer.fetcher.requested = True
    trainer.commits.turn()
    assert trainer.fetcher.reported == [4, 4], "nothing is new: it is reported again"
    assert trainer.disk.steps == [3, 4]


def test_a_disk_that_fails_is_heard_of_in_the_next_turn(trainer: Trainer) -> None:
    trainer.disk.fails[1] = OSError(28, "No space left on device")
    for _ in range(3):
        trainer.step()
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    with pytest.raises(OSError, match="No space"):
        trainer.commits.turn()
    assert trainer.fetcher.reported == []


@pytest.mark.parametrize("has_data", [True, False])
def test_refused_weights_are_raised_by_the_next_commit_of_all_ranks(trainer: Trainer, has_data: bool) -> None:
    trainer.disk.fails[1] = NotFinite("by the test")
    for _ in range(3):
        trainer.step()
    trainer.disk.gate.set()
    trainer.wait_for_disk()
    if has_data:
        trainer.step()
        trainer.step()
        assert not trainer.fetcher.requested
        with pytest.raises(NotFinite):
            trainer.step()
    else:
        trainer.commits.turn()
        assert trainer.fetcher.requested, "it has all ranks meet it"
        with pytest.raises(NotFinite):
            trainer.commits.turn()
    trainer.commits.replace()
    assert trainer.fetcher.reported == [trainer.state.step]


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_keep_every_promise(seed: int) -> None:
    """Steps, requests, waits, slow disks, refused weights and a stop, in any order."""
    rng = random.Random(seed)
    with closing(Trainer(every=rng.choice([1, 2, 5, 1000]))) as trainer:
        trainer.disk.fails = {number: NotFinite("by the test") for number in range(1, 200) if rng.random() < 0.1}

        def go_back() -> None:
            trainer.disk.fails.pop(trainer.disk.num_begun + 1, None)
            trainer.commits.replace()

        for _ in range(60):
            event = rng.choice(["step", "step", "idle", "request", "open", "shut"])
            trainer.fetcher.requested |= event == "request"
            if event == "shut" and not trainer.is_writing:
                trainer.disk.gate.clear()
            if event == "open" or rng.random() < 0.3:
                trainer.disk.gate.set()
            blocks = trainer.is_writing and not trainer.disk.gate.is_set()
            if blocks:  # a due save waits for the one before: a disk that never answers is no schedule
                trainer.disk.gate.set()
            try:
                if event == "step":
                    trainer.step()
                else:
                    trainer.commits.turn()
            except NotFinite:
                trainer.disk.gate.set()
                go_back()
        trainer.disk.gate.set()
        for _ in range(3):
            try:
                trainer.commits.turn(ending=True)
                break
            except NotFinite:
                go_back()
        assert trainer.fetcher.reported[-1] == trainer.state.step == trainer.disk.files[-1][0]
        assert trainer.fetcher.pending_since == -1, "every request was answered by a checkpoint that is new enough"
        written = trainer.disk.steps
        assert written == sorted(written)


@pytest.mark.parametrize("seed", range(20))
def test_two_ranks_save_at_the_same_moments_whichever_is_asked_and_however_slow_their_disks(seed: int) -> None:
    """Ranks as data: each turn of theirs is made of what both have brought."""
    rng = random.Random(seed)
    with closing(Trainer(every=4)) as first, closing(Trainer(every=4)) as second:
        ranks, wants = (first, second), [False, False]
        failing = rng.randrange(1, 6) if rng.random() < 0.5 else 0
        for rank in ranks:
            rank.disk.fails = {failing: NotFinite("by the test")}
            rank.disk.gate.set()
            rank.fetcher.alone = False
        raised: list[tuple[int, ...]] = []
        for _ in range(80):
            wants = [want or rng.random() < 0.1 for want in wants]
            ready = rng.random() < 0.6
            if any(wants):  # all ranks save in the turn in which one of them says it
                wants = [False, False]
                for rank in ranks:
                    rank.fetcher.requested = True
            failed = []
            for number, rank in enumerate(ranks):
                if rng.random() < 0.5 and rank.is_writing:
                    rank.wait_for_disk()
                try:
                    rank.commits.turn()
                    if ready:
                        rank.step()
                except NotFinite:
                    failed.append(number)
                wants[number] |= rank.fetcher.wants
                rank.fetcher.wants = rank.fetcher.requested = False
            if failed:
                raised.append(tuple(failed))
                for rank in ranks:
                    rank.commits.replace()
        assert all(failed == (0, 1) for failed in raised), "both go back between the same two steps"
        for rank in ranks:
            rank.commits.turn(ending=True)
        assert first.judge.begun == second.judge.begun
        assert first.state.step == second.state.step == first.disk.files[-1][0]


def trained(device: torch.device) -> tuple[nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    network = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1)).to(device)
    optimiser = torch.optim.Adam(network.parameters())
    train(network, optimiser, device)
    return network, optimiser, {"network": network.state_dict(), "optimiser": optimiser.state_dict(), "list": [(1,)]}


def train(network: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    network(torch.ones(2, 3, device=device)).sum().backward()
    optimiser.step()


def flat(content: dict[str, Any]) -> list[float]:
    """Every number of the networks and optimisers."""
    state = content["optimiser"]["state"]
    tensors = [*content["network"].values(), *(tensor for one in state.values() for tensor in one.values())]
    return [number for tensor in tensors for number in tensor.flatten().tolist()]


@pytest.mark.parametrize("name", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_a_snapshot_stays_what_it_was_while_training_goes_on(name: str) -> None:
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    device = torch.device(name)
    network, optimiser, content = trained(device)
    before = flat(content)
    snapshot = Snapshot.of(content, torch.cuda.Stream(device) if name == "cuda" else None)
    for _ in range(20):
        train(network, optimiser, device)
    snapshot.wait()
    assert flat(snapshot.content) == before != flat(content)
    assert all(tensor.device == CPU for tensor in snapshot.content["network"].values())
    file = io.BytesIO()
    torch.save(snapshot.content, file)
    file.seek(0)
    assert flat(torch.load(file, weights_only=True)) == before


def test_training_can_go_back_to_a_snapshot_again_and_again() -> None:
    network, optimiser, content = trained(CPU)
    before = flat(content)
    snapshot = Snapshot.of(content, None)
    for _ in range(2):
        train(network, optimiser, CPU)
        content = snapshot.restorable()
        network.load_state_dict(content["network"])
        optimiser.load_state_dict(content["optimiser"])
        assert flat({"network": network.state_dict(), "optimiser": optimiser.state_dict()}) == before


def test_attributes_that_torch_hangs_on_its_dicts_are_kept() -> None:
    _, _, content = trained(CPU)
    copied = Snapshot.of(content, None).content["network"]
    assert isinstance(copied, OrderedDict)
    assert copied._metadata == content["network"]._metadata  # type: ignore[attr-defined]


def test_arrays_that_are_not_finite_are_named_and_single_numbers_are_not() -> None:
    content = {
        "a": {"weights": torch.tensor([1.0, float("inf")])},
        "b": [{"c": torch.tensor([[float("nan")]]), "d": torch.tensor([1])}],
        "measured": torch.tensor(float("nan")),
        "text": "nan",
    }
    assert not_finite(content) == ["a.weights", "b.0.c"]
