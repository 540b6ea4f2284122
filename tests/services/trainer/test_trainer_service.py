"""The loop, with a real feed and real checkpoints and a task that diverges where the test says."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from feeding import ALL_ROWS, COLUMNS, CONFIG, PLAN, STREAM, Fetcher
from torch import Tensor
from toy_events import toy_batch
from toy_tasks import CPU, SMALL

from common.errors import BadInputError
from common.status import TrainerStatus, read_status
from services.config.root import Config
from services.config.settings import TrainerConfig
from services.trainer.audit import Audit
from services.trainer.commits import Checkpoints
from services.trainer.feed import Feed
from services.trainer.health import HEALTH_FILE, Health, HealthLimits, HealthLog
from services.trainer.ranks import Ranks
from services.trainer.service import begin, new_state, set_up_torch, start_from, step_context, train, training_of
from services.trainer.state import TrainState
from services.trainer.telemetry import Telemetry
from workloads.base.batch import Batch
from workloads.base.checkpoint import FORMAT
from workloads.base.context import StepContext
from workloads.base.device import mkl_is_held_back
from workloads.base.module_training import NO_MODEL_TRAINING
from workloads.base.native.layers import LAYERS
from workloads.muons.columns import MUONS
from workloads.muons.models.wgan import WganTask


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
        batch.microbatches[0].particle_columns["muons"] @ torch.ones(3, 5)  # operations to be counted
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


@dataclass
class Run:
    """One run directory; train() is one process."""

    run_dir: Path
    health: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    stopped: Callable[[], bool] = lambda: False

    def train(self, task: ScriptedTask) -> Literal["finished", "stopped"]:
        config = TrainerConfig(**({"log_every": 3, "checkpoint_every": 2} | self.settings))
        checkpoints = Checkpoints(self.run_dir, config.keep_checkpoints, wait_s=0, stopped=lambda: False)
        feed = Feed(self.run_dir, MUONS, STREAM, CONFIG, device=CPU, columns=COLUMNS, audit=True, stopped=self.stopped)
        self.state = TrainState(task, CPU, PLAN, limits=HealthLimits(**self.health), headline="w_gap")
        latest = checkpoints.latest()
        if latest is not None:
            self.state.restore(latest[1])
        telemetry = Telemetry(self.run_dir, TrainerStatus(device="cpu", epochs=1))
        audit = Audit(self.run_dir, self.state.audit_bytes)
        try:
            log = HealthLog(self.run_dir / HEALTH_FILE)
            return train(self.state, feed, checkpoints, telemetry, audit, log, config, "{}")
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
    status = read_status(run.run_dir, "trainer", TrainerStatus)
    assert status is not None
    assert status.copied_bytes_per_s > 0.0


@pytest.mark.parametrize("poison", [0, 511])
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


def config_of(**network: Any) -> Config:
    return Config.model_validate({"trainer": {"wgan": {"network": {**dict(SMALL), **network}, "likelihood_steps": 1}}})


def make_task(**network: Any) -> WganTask:
    return WganTask(config_of(**network).trainer.wgan, StepContext(CPU, seed=len(network)))


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Of a run that was trained for two steps; its best checkpoint is the first."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    task = make_task()
    for step in (1, 2):
        task.step(toy_batch(seed=step))
        state = {"format": FORMAT, "step": step, "task": task.state_dict(), "config": config_of().model_dump_json()}
        torch.save(state, folder / f"step-{step:09d}.pt")
    (folder / "step-000000001.pt").rename(folder / "best.pt")
    return tmp_path


def weights_of(path: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(path, weights_only=True)["task"]["networks"]
    return state


@pytest.mark.parametrize("name", ["", "checkpoints/best.pt", "checkpoints/step-000000002.pt"])
def test_networks_and_standardisation_are_those_of_the_checkpoint_and_all_else_is_new(run_dir: Path, name: str) -> None:
    task = make_task()
    start_from(run_dir / name, task, config_of())

    for module, expected in weights_of(run_dir / (name or "checkpoints/best.pt")).items():
        found = task.networks.modules()[module].state_dict()
        assert all(torch.equal(found[key], value) for key, value in expected.items())
    assert task.steps == task.likelihood.steps == task.generator_updates == 0
    assert not task.state_dict()["optimisers"]["critic"]["state"]
    assert not task.likelihood.observe(
        toy_batch(seed=9)
    )  # the standardisation stays: weights mean nothing with another


def test_a_checkpoint_of_other_networks_is_refused_in_one_line() -> None:
    first, second = config_of(), config_of(hidden=32)
    states = [
        new_state(one, training_of(one), step_context(one, CPU, Ranks.alone()), "plan") for one in (first, second)
    ]
    newest = (Path("step-1.pt"), states[0].checkpoint(first.own_json()))
    with pytest.raises(BadInputError, match=r"^step-1\.pt: its weights fit no network .*--fresh to start over$"):
        begin(states[1], second, training_of(second), newest, accept_new_plan=False)


def test_weights_of_an_earlier_version_are_refused_as_such(run_dir: Path) -> None:
    """Of commit 9843d43, whose count head had no line."""
    path = run_dir / "checkpoints" / "best.pt"
    state = torch.load(path, weights_only=True)
    del state["task"]["networks"]["count_head"]["line.weight"]
    torch.save(state, path)
    with pytest.raises(
        BadInputError, match=r"best\.pt: .*: another version of icestream, or .* wrote it; use the former"
    ):
        start_from(run_dir, make_task(), config_of())


def test_likelihood_and_recipe_may_be_others(run_dir: Path) -> None:
    start_from(run_dir, make_task(), config_of(zero_truncated_counts=True))


@pytest.mark.parametrize(
    ("precision", "device", "products"),
    [
        ("auto", "cuda", "high"),
        ("auto", "cpu", "medium" if mkl_is_held_back() else "highest"),  # float32 by oneDNN
        ("tf32", "cuda", "high"),
        ("float32", "cuda", "highest"),
        ("bf16", "cuda", "highest"),
    ],
)
def test_matrix_products_are_tf32_on_cuda_unless_configured(precision: str, device: str, products: str) -> None:
    assert Config().trainer.precision == "auto"
    threads = torch.get_num_threads()
    try:
        set_up_torch(Config.model_validate({"trainer": {"precision": precision}}), torch.device(device))
        assert torch.get_float32_matmul_precision() == products
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)


def test_a_deterministic_run_on_a_cpu_computes_in_the_same_way_as_any_other() -> None:
    threads = torch.get_num_threads()
    chosen = []
    try:
        for deterministic in (False, True):
            set_up_torch(Config.model_validate({"trainer": {"deterministic": deterministic}}), torch.device("cpu"))
            assert torch.are_deterministic_algorithms_enabled() == deterministic
            chosen.append((torch.get_float32_matmul_precision(), LAYERS.used is not None))
            torch.set_float32_matmul_precision("highest")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision("highest")
        torch.set_num_threads(threads)
    assert chosen[0] == chosen[1]


def test_a_models_limits_are_those_of_its_runs_health() -> None:
    config = Config.model_validate({"stream": {"shards": 2}, "trainer": {"model": "none"}})
    training = replace(NO_MODEL_TRAINING, alarms={"sameness": 0.3}, shown=("sameness",))
    state = new_state(config, training, step_context(config, CPU, Ranks.alone()), "plan")
    assert state.watch.judge(1, {"sameness": 0.5}).health is Health.WARNING
    assert len(state.position.shards) == 2
    assert state.shown == ("sameness", "batch_events_ma_500")
