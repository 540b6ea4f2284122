"""The loop, with a real feed and real checkpoints and a task that diverges where the test says."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from feeding import ALL_ROWS, COLUMNS, CONFIG, PLAN, STREAM, Fetcher
from torch import Tensor

from common.errors import BadInputError
from common.status import TrainerStatus
from common.status_files import read_status
from services.config.health import HealthConfig
from services.config.trainer import TrainerConfig, ValidationConfig
from services.trainer.checkpoints import checkpoint as checkpoint_module
from services.trainer.checkpoints.checkpoint import Checkpoints
from services.trainer.health.health_log import HEALTH_FILE
from services.trainer.loop import train
from services.trainer.ranks.ranks import Ranks
from services.trainer.state import TrainState
from services.trainer.stream.audit import Audit
from services.trainer.stream.copier import copiers_for
from services.trainer.stream.feed import Feed
from services.trainer.telemetry.telemetry import Telemetry
from services.trainer.telemetry.validation import ValidationBlock
from workloads.base.batch import Batch
from workloads.muons.columns import MUONS

CPU = torch.device("cpu")


class ScriptedTask:
    """Its weights are the events that it was trained on. It can't train on the events of ``poison`` unless the learning
    rate is at most ``takes_at``; ``ruin``: it does so all the same, and its weights are lost."""

    def __init__(self, poison: tuple[int, ...] = (), takes_at: float = 0.5, *, ruin: bool = False) -> None:
        self.weights = torch.zeros(1000)
        self.rate = 1.0
        self.tried: list[int] = []
        self.pressed_at: Callable[[int], float] = lambda step: 1.0
        """Gradient norm of the n-th step."""
        self._poison, self._takes_at, self._ruin = poison, takes_at, ruin

    def step(self, batch: Batch) -> dict[str, Tensor]:
        rows = torch.cat([part.event_columns["source_row"][:, 0] for part in batch.microbatches])
        self.tried += rows.tolist()
        bad = self.rate > self._takes_at and bool(set(rows.tolist()) & set(self._poison))
        if not bad or self._ruin:
            self.weights[rows] += math.nan if bad else 1
        return {
            "w_gap": torch.tensor(1.0),
            "c_loss": torch.tensor(math.nan if bad and not self._ruin else 1.0),
            "a_grad_norm": torch.tensor(self.pressed_at(len(self.tried))),
            "skipped_updates": torch.tensor(float(bad and not self._ruin)),
        }

    def observed(self, metrics: Mapping[str, float]) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "rate": self.rate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights.copy_(state["weights"])
        self.rate = state["rate"]

    def scale_learning_rates(self, factor: float) -> None:
        self.rate *= factor

    def trained(self) -> list[int]:
        """Each event that its weights have seen."""
        assert self.weights.max() <= 1, "an event was trained twice"
        return self.weights.nonzero()[:, 0].tolist()


class NothingToEvaluate:
    """Evaluator that only makes the telemetry fill its block."""

    def settings(self) -> dict[str, float]:
        return {}

    def evaluate(self, block: Batch) -> None:
        return None


@dataclass
class Run:
    """One run directory; train() is one process."""

    run_dir: Path
    health: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    stopped: Callable[[], bool] = lambda: False
    block_events: int = 0

    def block(self) -> ValidationBlock:
        return ValidationBlock(self.run_dir, ValidationConfig(events=self.block_events), CPU)

    def train(self, task: ScriptedTask) -> Literal["finished", "stopped"]:
        config = TrainerConfig(
            **({"log_every": 3, "checkpoint_every": 2} | self.settings), health=HealthConfig(**self.health)
        )
        checkpoints = Checkpoints(self.run_dir, config.keep_checkpoints, wait_s=0, stopped=lambda: False)
        feed = Feed(
            self.run_dir,
            MUONS,
            STREAM,
            CONFIG,
            copiers=copiers_for(CPU, COLUMNS),
            prefetch_units=2,
            audit=True,
            stopped=self.stopped,
            keep_ids=True,
        )
        self.state = TrainState(task, CPU, PLAN, health=config.health, headline="w_gap")
        latest = checkpoints.latest()
        if latest is not None:
            self.state.restore(latest[1], accept_new_plan=False)
        telemetry = Telemetry(
            self.run_dir,
            step=self.state.step,
            device="cpu",
            max_steps=0,
            epochs=1,
            evaluator=NothingToEvaluate(),
            block=self.block() if self.block_events else None,
        )
        audit = Audit(self.run_dir, self.state.audit_bytes, Ranks.alone())
        try:
            return train(self.run_dir, self.state, feed, checkpoints, telemetry, audit, config, "{}", self.stopped)
        finally:
            telemetry.status("training", self.state, feed.waits, force=True)
            telemetry.close()
            feed.close()
            checkpoints.close()

    @property
    def health_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / HEALTH_FILE).read_text().splitlines()]

    @property
    def audited(self) -> list[tuple[int, int]]:
        lines = [json.loads(line) for line in (self.run_dir / "audit.jsonl").read_text().splitlines()]
        return [(line["unit"], line["microbatch"]) for line in lines]

    def saved(self) -> dict[str, dict[str, Any]]:
        paths = sorted((self.run_dir / "checkpoints").glob("*"))
        return {path.name: torch.load(path, weights_only=True) for path in paths}

    def newest(self) -> dict[str, Any]:
        return list(self.saved().values())[-1]


@pytest.fixture
def fetcher(tmp_path: Path) -> Iterator[Fetcher]:
    fetcher = Fetcher(tmp_path)
    yield fetcher
    fetcher.close()


@pytest.fixture
def run(tmp_path: Path, fetcher: Fetcher) -> Run:
    return Run(tmp_path)


def test_a_healthy_run_trains_every_event_once_and_its_last_checkpoint_is_marked_healthy(
    run: Run, fetcher: Fetcher
) -> None:
    task = ScriptedTask()
    assert run.train(task) == "finished"
    assert fetcher.finished.wait(20)
    assert task.trained() == ALL_ROWS == task.tried
    assert not (run.run_dir / HEALTH_FILE).exists()
    assert run.newest()["health"] == "healthy"
    assert fetcher.evicted[-1] == 3, "the last block is used up, too"


def test_the_validation_block_of_the_first_events_has_their_ids_which_the_steps_have_not(run: Run) -> None:
    run.block_events = 12
    run.train(ScriptedTask())
    block = run.block().batch
    assert block is not None
    ids = torch.cat([part.event_columns["primary_id"] for part in block.microbatches])
    assert ids.tolist() == [[row // 100, row % 100] for row in ALL_ROWS[:12]]


class ProductTask(ScriptedTask):
    """Multiplies matrices, too."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        for part in batch.microbatches:
            part.particle_columns["muons"] @ torch.ones(3, 5)
        return super().step(batch)


@pytest.mark.parametrize("task", [ProductTask(), ScriptedTask()], ids=["with products", "without"])
def test_operations_and_bytes_a_second_are_in_the_status(run: Run, task: ScriptedTask) -> None:
    run.train(task)
    status = read_status(run.run_dir, "trainer", TrainerStatus)
    assert status is not None
    assert status.copied_bytes_per_s > 0.0
    assert (status.flops_per_s or 0.0) > 0.0 if isinstance(task, ProductTask) else status.flops_per_s is None


@pytest.mark.parametrize("poison", [0, 201, 511])
def test_after_a_critical_step_training_goes_back_to_the_last_good_checkpoint_at_half_the_rate(
    run: Run, fetcher: Fetcher, poison: int
) -> None:
    task = ScriptedTask((poison,))
    assert run.train(task) == "finished"
    assert fetcher.finished.wait(20)
    assert task.rate == 0.5
    assert task.tried.count(poison) == 2
    assert task.trained() == ALL_ROWS, "the stream went back with the weights, and what came behind is trained once"
    assert run.state.position.counters.events_trained == len(ALL_ROWS)
    assert run.state.position.counters.adds_up()
    assert run.audited == sorted(set(run.audited)), "the audit is that of the weights"

    (line,) = run.health_lines
    assert line["verdict"] == "critical"
    assert line["metrics"]["c_loss"] == "nan"
    assert line["metrics"]["skipped_updates"] == 1.0
    assert "went back to step" in line["action"]
    assert poison // 100 in {place["unit"] for place in line["batch"]}, "the batch at fault is named"
    assert line["batch"][0].keys() == {"shard", "epoch", "unit", "microbatch"}
    assert (run.run_dir / HEALTH_FILE).stat().st_mode & 0o077 == 0
    status = read_status(run.run_dir, "trainer", TrainerStatus)
    assert status is not None
    assert status.rollbacks == 1


def test_training_that_diverges_again_and_again_ends_with_a_report_and_the_rates_it_came_to(
    run: Run, tmp_path: Path
) -> None:
    run.health = {"rollbacks": 2}
    task = ScriptedTask((201,), takes_at=0.0)
    with pytest.raises(BadInputError) as error:
        run.train(task)
    text = str(error.value)
    assert text.startswith("training diverged: step ")
    assert "update(s) left out" in text
    assert "Going back 2 time(s) did not help" in text
    assert str(tmp_path / HEALTH_FILE) in text
    assert "\n" not in text
    assert [line["action"].split()[0] for line in run.health_lines] == ["went", "went", "stopped"]
    assert task.rate == run.newest()["task"]["rate"] == 0.25
    assert task.tried.count(201) == 3

    run.health = {"rollbacks": 3}  # as the report says
    last = ScriptedTask((201,), takes_at=0.125)
    assert run.train(last) == "finished"
    assert last.trained() == ALL_ROWS


def test_what_was_counted_and_halved_outlives_the_process(run: Run) -> None:
    run.health = {"rollbacks": 1}
    stop = False
    run.stopped = lambda: stop
    task = ScriptedTask((201,), takes_at=0.0)
    task_step = task.step

    def stop_at_the_poison(batch: Batch) -> dict[str, Tensor]:
        nonlocal stop
        metrics = task_step(batch)
        stop = bool(metrics["skipped_updates"])
        return metrics

    task.step = stop_at_the_poison  # type: ignore[method-assign]
    assert run.train(task) == "stopped", "asked to stop just when it went wrong"
    assert run.newest()["task"]["rate"] == 0.5
    stop = False
    with pytest.raises(BadInputError, match=r"Going back 1 time\(s\) did not help"):
        run.train(ScriptedTask((201,), takes_at=0.0))


def test_a_checkpoint_of_a_warning_is_nothing_to_go_back_to_and_goes_once_training_went_back(run: Run) -> None:
    run.health = {"warning_grad_norm": 5.0}
    run.settings = {"log_every": 1, "checkpoint_every": 1, "keep_checkpoints": 100}
    task = ScriptedTask((501,))
    good = len([row for row in ALL_ROWS if row < 300])
    task.pressed_at = lambda tried: 10.0 if tried > good and task.rate == 1 else 1.0
    seen: list[dict[str, str]] = []
    went_back = task.scale_learning_rates

    def look_first(factor: float) -> None:
        seen.append({name: content["health"] for name, content in run.saved().items()})
        went_back(factor)

    task.scale_learning_rates = look_first  # type: ignore[method-assign]
    assert run.train(task) == "finished"
    (before,) = seen
    warnings = [name for name, health in before.items() if health == "warning"]
    assert len(warnings) >= 2
    healthy = max(name for name, health in before.items() if health == "healthy")
    assert run.health_lines[-1]["action"].startswith(f"went back to step {int(healthy[5:-3])},")
    assert [line["verdict"] for line in run.health_lines] == ["warning", "critical"], (
        "a warning that lasts is told once"
    )
    assert task.trained() == ALL_ROWS
    assert {content["health"] for content in run.saved().values()} == {"healthy"}


def test_weights_that_are_not_finite_are_never_written(run: Run) -> None:
    task = ScriptedTask((201,), ruin=True)
    assert run.train(task) == "finished"
    assert task.trained() == ALL_ROWS
    assert task.rate == 0.5
    assert run.state.watch.rollbacks == 1
    assert all(bool(content["task"]["weights"].isfinite().all()) for content in run.saved().values())


# ------------------------------------------------------------------ in the background


def test_a_request_for_a_checkpoint_is_answered_while_there_is_no_data_and_only_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetcher = Fetcher(tmp_path, decodes=False)
    run = Run(tmp_path)
    told_before_it_was_written: list[bool] = []
    save = Checkpoints.save

    def watched(self: Checkpoints, *arguments: Any) -> Path:
        told_before_it_was_written.append(bool(fetcher.evicted))
        return save(self, *arguments)

    monkeypatch.setattr(Checkpoints, "save", watched)
    fetcher.ask_for_commit = True
    trainer = threading.Thread(target=lambda: run.train(ScriptedTask()))
    trainer.start()
    try:
        assert fetcher.committed.wait(20)
        assert run.newest()["step"] == 0
        assert told_before_it_was_written == [False]
    finally:
        fetcher._decodes = True
        trainer.join(30)
        finished = fetcher.finished.wait(20)
        fetcher.close()
    assert finished


def test_the_loop_goes_on_while_a_checkpoint_is_written_and_what_is_written_is_that_of_its_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.settings = {"checkpoint_every": 3, "log_every": 1, "keep_checkpoints": 100}
    task = ScriptedTask()
    gone_on = threading.Event()
    rows_of_step: dict[int, int] = {}
    save, step = Checkpoints.save, task.step

    def slow(self: Checkpoints, *arguments: Any) -> Path:
        if arguments[0] == 3:
            assert gone_on.wait(20), "the loop waited for its own checkpoint"
        return save(self, *arguments)

    def counted(batch: Batch) -> dict[str, Tensor]:
        metrics = step(batch)
        rows_of_step[len(rows_of_step) + 1] = len(task.tried)
        if len(rows_of_step) == 5:
            gone_on.set()
        return metrics

    task.step = counted  # type: ignore[method-assign]
    monkeypatch.setattr(Checkpoints, "save", slow)
    assert run.train(task) == "finished"
    for content in run.saved().values():
        assert int(content["task"]["weights"].sum()) == rows_of_step[content["step"]]


def test_a_disk_that_is_full_ends_training_with_that_error_and_the_former_checkpoint_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(content: dict[str, Any], file: object) -> None:
        if content["step"] > 4:
            raise OSError(28, "No space left on device")
        save(content, file)

    monkeypatch.setattr(checkpoint_module.torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run.train(ScriptedTask())
    assert run.newest()["step"] == 4
    monkeypatch.undo()
    last = ScriptedTask()
    assert run.train(last) == "finished"
    assert last.trained() == ALL_ROWS
