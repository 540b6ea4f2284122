"""What the trainer tells, at which steps, and what that costs at the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from shown_statuses import TRAINER
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_sinks import wait_for_next_second
from torch import Tensor
from toy_events import toy_batch
from toy_tasks import SMALL

from common.status import Counters, FetcherStatus, GpuStatus, Hop, TrainerStatus, read_status, values, write_status
from common.unit_arrays import Array
from icestream.reading import read_validation_events
from services.config.root import Config
from services.config.settings import ValidationConfig
from services.trainer.health import Health
from services.trainer.sinks import TensorBoardSink, run_folder
from services.trainer.state import TrainState
from services.trainer.telemetry import Telemetry, TrainerLog, open_telemetry, to_host
from services.trainer.units import BatchWaits
from services.trainer.validation import ValidationBlock, made_for
from workloads.base.batch import Batch
from workloads.base.context import StepContext
from workloads.base.module_training import NoModelTask
from workloads.base.training import Evaluation, Histogram, Image
from workloads.muons.columns import MUONS
from workloads.muons.models.panel import MuonPanel
from workloads.muons.models.wgan import WganTask

CPU = torch.device("cpu")
BASE = TrainerStatus(device="cpu", epochs=1)
FETCHER = FetcherStatus(
    stalled_s={"no_credit": 3.0}, hops={"slots": Hop(wait_put_s=1.5, occupancy=0.25)}, batches_occupancy=0.5
)


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    telemetry = Telemetry(tmp_path, BASE, sinks=[TensorBoardSink(tmp_path, 0)])
    yield telemetry
    telemetry.close()


def at_step(step: int) -> TrainState:
    state = TrainState(NoModelTask(CPU), CPU, "plan", headline="w_gap", shown=("w_gap", "m_loss"))
    state.step = step
    return state


def waits(put_s: float, get_s: float) -> BatchWaits:
    waits = BatchWaits()
    waits.put_s, waits.get_s = put_s, get_s
    return waits


def scalars(run_dir: Path) -> dict[str, float]:
    events = EventAccumulator(str(run_folder(run_dir))).Reload()
    return {name: events.Scalars(name)[-1].value for name in events.Tags()["scalars"]}


def test_hops_and_stalls_of_both_services_are_on_tensorboard_under_their_names(
    tmp_path: Path, telemetry: Telemetry
) -> None:
    write_status(tmp_path, "fetcher", FETCHER)
    telemetry.scalars(at_step(10), {"w_gap": torch.tensor(2.0)}, waits(4.0, 6.0))
    telemetry.close()
    found = scalars(tmp_path)
    status = read_status(tmp_path, "trainer", TrainerStatus)
    told = values(FETCHER, status)
    assert found["train/w_gap"] == 2.0
    assert (found["hop/batches/occupancy"], found["hop/slots/occupancy"]) == (0.5, 0.25)
    hops = {name for name in told if name.startswith(("hop/", "stall/"))}
    assert {name for name in hops if name.endswith(("_share", "occupancy"))} <= found.keys()
    assert not {name for name in found if name.startswith(("hop/", "stall/")) and name.endswith("_s")}
    assert "trainer/seconds" not in found


def test_the_waiting_is_seen_while_no_step_is_made(tmp_path: Path, telemetry: Telemetry) -> None:
    telemetry.status("training", at_step(3), waits(0.0, 0.0), force=True)
    telemetry._written_s = 0.0  # long ago
    telemetry.status("", at_step(3), waits(0.0, 7.0))
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert (status.state, status.batches.wait_get_s) == ("training", 7.0)
    assert status.wait_fraction == status.batches.wait_get_share > 0.0


class Notes:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []
        self.pictures: list[str] = []
        self.went_back_to: list[int] = []

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        self.told.append((step, dict(values)))

    def histograms(self, values: Mapping[str, Histogram], step: int) -> None:
        self.pictures += values

    def images(self, values: Mapping[str, Image], step: int) -> None:
        self.pictures += values

    def go_back(self, step: int) -> None:
        self.went_back_to.append(step)

    def flush(self) -> None:
        return

    def close(self) -> None:
        return


class Looks:
    """An evaluator that counts the looks."""

    def __init__(self) -> None:
        self.blocks: list[Batch] = []
        self.has_something = True

    def settings(self) -> dict[str, float]:
        return {"lr_generator": 0.5}

    def evaluate(self, block: Batch) -> Evaluation | None:
        self.blocks.append(block)
        picture = np.zeros((2, 2, 3), np.uint8)
        return Evaluation({"panel/score": 2.0}, {}, {"panel/picture": picture}) if self.has_something else None


class Sampled:
    """A GPU's sampler."""

    closed = False

    def read(self) -> dict[str, float]:
        of_memory = {"memory/mean_allocated_mib": 1.0, "memory/max_allocated_mib": 2.0, "memory/reserved_mib": 3.0}
        return {"gpu/utilisation": 0.75, "gpu/memory_share": 0.5} | of_memory

    def close(self) -> None:
        self.closed = True


def ids_of(batch: Batch) -> list[dict[str, Array]]:
    """Ids of which no two are equal: events of one shower stay together where floors are measured."""
    return [
        {"primary_id": np.arange(2 * part.num_events, dtype=np.uint64).reshape(-1, 2)} for part in batch.microbatches
    ]


def block_of(run_dir: Path, events: int) -> ValidationBlock:
    return ValidationBlock(run_dir, MUONS, made_for(ValidationConfig(events=events), 0.0), CPU)


BATCH = toy_batch(2)
IDS = ids_of(BATCH)


def stepped(telemetry: Telemetry, state: TrainState, batch: Batch, *, is_last: bool = False) -> None:
    telemetry.stepped(state, batch, ids_of(batch), is_last=is_last)


def test_metrics_come_to_the_host_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    transfers = []
    tolist = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda self: transfers.append(self.shape) or tolist(self))
    for name in ("item", "cpu", "__float__"):
        monkeypatch.setattr(Tensor, name, lambda *_: pytest.fail("a transfer of its own"))
    metrics = {"a": torch.tensor(1.5), "b": torch.tensor(2), "c": torch.tensor(3.0, requires_grad=True)}
    assert to_host(metrics) == {"a": 1.5, "b": 2.0, "c": 3.0}
    assert transfers == [(3,)]
    assert to_host({}) == {}


def test_all_scalars_of_a_log_step_are_one_record(tmp_path: Path) -> None:
    notes = Notes()
    sampler: Any = Sampled()
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes], evaluator=Looks(), sampler=sampler)
    state = at_step(10)
    state.position = state.position.model_copy(update={"counters": Counters(events_trained=640, microbatches=12)})
    telemetry.scalars(state, {"w_gap": torch.tensor(2.0), "gp_norm": torch.tensor(1.25)}, waits(4.0, 6.0))
    ((step, told),) = notes.told
    assert step == 10
    assert (told["train/w_gap"], told["train/gp_norm"], told["train/lr_generator"]) == (2.0, 1.25, 0.5)
    assert (told["gpu/utilisation"], told["gpu/memory_share"]) == (0.75, 0.5)
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert status.gpu == GpuStatus(
        utilisation=0.75,
        memory_share=0.5,
        allocated_mean_bytes=1 << 20,
        allocated_max_bytes=2 << 20,
        reserved_bytes=3 << 20,
    )
    assert told["memory/max_allocated_mib"] == 2.0
    assert (told["trainer/events_trained"], told["trainer/microbatches"]) == (640, 12)
    assert {"trainer/events_per_s", "trainer/particles_per_s", "trainer/wait_fraction"} <= told.keys()
    telemetry.close()
    assert sampler.closed


def test_bytes_are_rates_of_the_last_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes])
    for now_s, copied_bytes in ((50.0, 0), (52.0, 3 << 20), (54.0, 8 << 20)):
        monkeypatch.setattr("services.trainer.telemetry.time.monotonic", lambda now_s=now_s: now_s)
        so_far = waits(0.0, 0.0)
        so_far.copied_bytes = copied_bytes
        telemetry.scalars(at_step(1), {}, so_far)
    assert [told["trainer/copied_bytes_per_s"] for _, told in notes.told] == [0.0, 1.5 * 2**20, 2 * 2**20]
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert (status.copied_bytes_per_s, status.gpu) == (2 * 2**20, None)


def test_a_step_at_which_nothing_is_due_writes_and_transfers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    block = block_of(tmp_path, 2)
    looks = Looks()
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes], evaluator=looks, block=block, evaluate_every=1000)
    stepped(telemetry, at_step(1), BATCH)
    telemetry.status("training", at_step(1), waits(0.0, 0.0), force=True)
    assert block.batch is not None

    def never(*arguments: object, **keywords: object) -> None:
        pytest.fail(f"{arguments} {keywords}")

    for name in ("write_status", "read_fetchers", "values"):
        monkeypatch.setattr(f"services.trainer.telemetry.{name}", never)
    for name in ("item", "cpu", "tolist", "to", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, never)
    now_s = telemetry._written_s + 0.4
    monkeypatch.setattr("services.trainer.telemetry.time.monotonic", lambda: now_s)
    state = at_step(1)
    for step in range(2, 1000):
        state.step = step
        telemetry.status("training", state, BatchWaits())
        telemetry.stepped(state, BATCH, IDS)
    assert not notes.told
    assert not looks.blocks


def test_the_model_is_looked_at_every_so_many_steps_once_the_block_is_full(tmp_path: Path) -> None:
    notes, looks = Notes(), Looks()
    block = block_of(tmp_path, 8)
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes], evaluator=looks, block=block, evaluate_every=2)
    for step in range(1, 9):
        stepped(telemetry, at_step(step), BATCH)
    assert [step for step, _ in notes.told] == [4, 6, 8]
    assert all(told["panel/score"] == 2.0 and told["trainer/panel_s"] >= 0.0 for _, told in notes.told)
    assert notes.pictures == ["panel/picture"] * 3
    assert all(looked is block.batch for looked in looks.blocks)
    assert (telemetry.newest_score(), telemetry.newest_score()) == (2.0, None)
    looks.has_something = False
    stepped(telemetry, at_step(10), BATCH)
    assert len(notes.told) == 3


def test_the_weights_at_the_end_are_looked_at_once(tmp_path: Path) -> None:
    looks = Looks()
    telemetry = Telemetry(tmp_path, BASE, evaluator=looks, block=block_of(tmp_path, 2), evaluate_every=2)
    telemetry.evaluate(at_step(0))  # a run that had ended before
    for step, seen in ((1, 0), (2, 1), (3, 2)):
        stepped(telemetry, at_step(step), BATCH, is_last=step == 3)
        assert len(looks.blocks) == seen
    telemetry.evaluate(at_step(3))
    assert (len(looks.blocks), telemetry.newest_score()) == (2, 2.0)
    stepped(telemetry, at_step(5), BATCH)
    telemetry.evaluate(at_step(5))  # the plan ended, which no step could know
    assert len(looks.blocks) == 3


def test_after_a_roll_back_what_was_told_of_later_steps_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes])
    now_s = 100.0
    monkeypatch.setattr("services.trainer.telemetry.time.monotonic", lambda: now_s)
    telemetry.scalars(at_step(80), {"w_gap": torch.tensor(5.0)}, waits(0.0, 0.0))
    telemetry.rolled_back(40)
    state = at_step(42)
    state.watch.rollbacks = 1
    telemetry.health(state, Health.CRITICAL, "w_gap was 5")
    now_s = 101.0
    status = telemetry.status("training", state, waits(0.0, 0.0), force=True)
    assert notes.went_back_to == [40]
    assert status.losses == {}
    assert status.batches_per_s == 0.0, "and not -38"
    assert (status.health, status.health_reason, status.rollbacks) == ("critical", "w_gap was 5", 1)


def test_a_loss_that_is_not_finite_leaves_the_status_file_readable(tmp_path: Path) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, BASE, sinks=[notes])
    telemetry.scalars(at_step(1), {"w_gap": torch.tensor(torch.nan), "m_loss": torch.tensor(1.5)}, waits(0.0, 0.0))
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert status.losses == {"m_loss": 1.5}
    assert math.isnan(notes.told[0][1]["train/w_gap"])


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")


def test_progress_is_logged_every_ten_minutes_a_checkpoint_once_a_minute_and_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = TrainerLog()
    for second in range(0, 1500, 10):
        log.progressed(float(second), TRAINER.model_copy(update={"step": 1 + second}))
    for second in (0, 59, 60, 61, 200):
        log.checkpointed(float(second), f"checkpoints/step-{second:09}.pt")
    end = TRAINER.model_copy(update={"state": "stopped", "checkpoint": "checkpoints/step-000000010.pt"})
    log.progressed(1500.0, end)
    assert caplog.messages[0] == "step 1 ep 1/1 80 ev/s wait 0% c_loss -1.25"
    assert [message.split(" ep ")[0] for message in caplog.messages[1:3]] == ["step 601", "step 1,201"]
    assert caplog.messages[3:] == [
        *(f"checkpoint checkpoints/step-{second:09}.pt" for second in (0, 60, 200)),
        "stopped at step 10 after 20 s in all: 1,600 events trained, newest checkpoint checkpoints/step-000000010.pt",
    ]


def make_config(**trainer: Any) -> Config:
    return Config.model_validate({"trainer": {"wgan": {"network": SMALL, "likelihood_steps": 1}, **trainer}})


def run_steps(run_dir: Path, config: Config, last: int, *, first: int = 1) -> None:
    """Train the toy from step ``first`` on, as the loop does."""
    task = WganTask(config.trainer.wgan, StepContext(CPU, 1))
    state = TrainState(task, CPU, "plan", headline="w_gap")
    state.step = first - 1
    panel = MuonPanel(task, config.seed)
    telemetry = open_telemetry(run_dir, config, state, panel, config.model_dump_json(), read_validation_events)
    for step in range(first, last + 1):
        batch = toy_batch(30, seed=step)
        metrics = task.step(batch)
        state.step = step
        telemetry.scalars(state, metrics, BatchWaits())
        stepped(telemetry, state, batch)
    telemetry.close()


def steps(run_dir: Path, name: str) -> list[int]:
    return [point.step for point in EventAccumulator(str(run_folder(run_dir))).Reload().Scalars(name)]


@pytest.mark.slow
def test_the_panel_is_on_tensorboard_and_goes_on_with_the_same_block_after_a_restart(tmp_path: Path) -> None:
    config = make_config(validation={"events": 80, "every": 2})
    run_steps(tmp_path, config, 5)
    assert steps(tmp_path, "panel/score") == [4]
    block = (tmp_path / "validation.units").read_bytes()
    wait_for_next_second()
    run_steps(tmp_path, config, 8, first=5)  # the checkpoint was of step 4
    assert steps(tmp_path, "panel/score") == [4, 6, 8]
    assert steps(tmp_path, "train/held_out_w_gap") == [4, 6, 8]
    assert steps(tmp_path, "train/lr_critic") == [2, 3, 4, 6, 7, 8]
    assert (tmp_path / "validation.units").read_bytes() == block
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    events = EventAccumulator(str(run_folder(tmp_path))).Reload()
    floors = [point.value for point in events.Scalars("panel/log10_energy_w1_floor")]
    assert len(set(floors)) == 1, "the same events each time"
    assert events.Tags()["images"] == ["panel/distributions"]
    assert "hist/generated/log10_bundle_energy" in events.Tags()["histograms"]


def test_a_rank_that_is_not_the_first_has_a_status_file_and_nothing_else(tmp_path: Path) -> None:
    config = make_config(validation={"events": 30, "every": 1}, wandb={"mode": "offline"})
    task = WganTask(config.trainer.wgan, StepContext(CPU, seed=1))
    state = TrainState(task, CPU, "plan", headline="w_gap")
    panel, settings = MuonPanel(task, 0), config.model_dump_json()
    telemetry = open_telemetry(tmp_path, config, state, panel, settings, read_validation_events, rank=2)
    metrics = task.step(toy_batch(30))
    state.step = 1
    telemetry.scalars(state, metrics, BatchWaits())
    stepped(telemetry, state, toy_batch(30))
    telemetry.checkpointed(tmp_path / "checkpoints" / "step-1.pt", 1)
    telemetry.rolled_back(0)
    telemetry.close()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        "status/trainer-2.json"
    ]
