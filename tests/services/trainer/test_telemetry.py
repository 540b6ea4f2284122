"""What the trainer tells, at which steps, and what that costs at the others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from common.measurements import values
from common.status import Counters, FetcherStatus, GpuStatus, Hop, TrainerStatus
from common.status_files import read_status, write_status
from services.config.trainer import ValidationConfig
from services.trainer.state import TrainState
from services.trainer.stream.waits import BatchWaits
from services.trainer.telemetry.telemetry import Telemetry, to_host
from services.trainer.telemetry.tensorboard_sink import run_folder
from services.trainer.telemetry.validation import ValidationBlock
from workloads.base.batch import Batch, Microbatch
from workloads.base.evaluator import Evaluation, Histogram, Image

FETCHER = FetcherStatus(
    stalled_s={"no_credit": 3.0}, hops={"slots": Hop(wait_put_s=1.5, occupancy=0.25)}, batches_occupancy=0.5
)


class Idle:
    """A task that does nothing."""

    def step(self, batch: Batch) -> dict[str, Tensor]:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.fixture
def telemetry(tmp_path: Path) -> Iterator[Telemetry]:
    telemetry = Telemetry(tmp_path, step=0, device="cpu", max_steps=0, epochs=1)
    yield telemetry
    telemetry.close()


def at_step(step: int) -> TrainState:
    state = TrainState(Idle(), torch.device("cpu"), "plan", headline="w_gap", shown=("w_gap", "m_loss"))
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


def test_a_trainer_whose_fetcher_runs_elsewhere_tells_its_own_hop(tmp_path: Path, telemetry: Telemetry) -> None:
    telemetry.scalars(at_step(10), {}, waits(4.0, 6.0))
    telemetry.close()
    found = scalars(tmp_path)
    assert "hop/batches/wait_get_share" in found
    assert not [name for name in found if name.startswith(("hop/slots", "stall/"))]
    assert "hop/batches/occupancy" not in found


def test_the_waiting_is_seen_while_no_step_is_made(tmp_path: Path, telemetry: Telemetry) -> None:
    telemetry.status("training", at_step(3), waits(0.0, 0.0), force=True)
    telemetry._written_s = 0.0  # long ago
    telemetry.waiting(at_step(3), waits(0.0, 7.0))
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


def make_batch(num_events: int) -> Batch:
    offsets = torch.zeros(num_events + 1, dtype=torch.int64)
    return Batch((Microbatch(0, 0, 0, offsets, offsets.numpy(), {}, {}, num_events, 0),))


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
    telemetry = Telemetry(
        tmp_path,
        step=0,
        device="cpu",
        max_steps=0,
        epochs=1,
        sinks=[notes],
        evaluator=Looks(),
        sources=[
            lambda: {"gpu/utilisation": 0.75, "gpu/memory_share": 0.5},
            lambda: {"memory/mean_allocated_mib": 1.0, "memory/max_allocated_mib": 2.0, "memory/reserved_mib": 3.0},
        ],
    )
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
    assert {
        "trainer/events_per_s",
        "trainer/particles_per_s",
        "trainer/wait_fraction",
    } <= told.keys()


def test_seconds_a_batch_are_the_inverse_of_batches_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, step=0, device="cpu", max_steps=0, epochs=1, sinks=[notes])
    for step, now_s in ((100, 50.0), (108, 52.0)):
        monkeypatch.setattr("services.trainer.telemetry.telemetry.time.monotonic", lambda now_s=now_s: now_s)
        telemetry.scalars(at_step(step), {}, waits(0.0, 0.0))
    assert [told["trainer/batches_per_s"] for _, told in notes.told] == [0.0, 4.0]
    assert [told["trainer/s_per_batch"] for _, told in notes.told] == [0.0, 0.25]
    assert telemetry.status("finished", at_step(108), waits(0, 0)).s_per_batch == 0.25


def test_bytes_and_operations_are_rates_of_the_last_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, step=0, device="cpu", max_steps=0, epochs=1, sinks=[notes])
    for now_s, copied_bytes, flops in ((50.0, 0, 0.0), (52.0, 3 << 20, 1e9), (54.0, 8 << 20, 5e9)):
        monkeypatch.setattr("services.trainer.telemetry.telemetry.time.monotonic", lambda now_s=now_s: now_s)
        telemetry.flops = flops
        so_far = waits(0.0, 0.0)
        so_far.copied_bytes = copied_bytes
        telemetry.scalars(at_step(1), {}, so_far)
    assert [told["trainer/copied_bytes_per_s"] for _, told in notes.told] == [0.0, 1.5 * 2**20, 2 * 2**20]
    assert [told.get("trainer/flops_per_s") for _, told in notes.told] == [None, 0.0, 2e9], "absent if not counted"
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert (status.copied_bytes_per_s, status.flops_per_s, status.gpu) == (2 * 2**20, 2e9, None)


def test_a_step_at_which_nothing_is_due_writes_and_transfers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    block = ValidationBlock(tmp_path, ValidationConfig(events=2), torch.device("cpu"))
    looks = Looks()
    telemetry = Telemetry(
        tmp_path,
        step=0,
        device="cpu",
        max_steps=0,
        epochs=1,
        sinks=[notes],
        evaluator=looks,
        block=block,
        evaluate_every=1000,
    )
    telemetry.evaluate(at_step(1), make_batch(2))
    telemetry.status("training", at_step(1), waits(0.0, 0.0), force=True)
    assert block.batch is not None

    def never(*arguments: object, **keywords: object) -> None:
        pytest.fail(f"{arguments} {keywords}")

    for name in ("write_status", "read_fetchers", "values"):
        monkeypatch.setattr(f"services.trainer.telemetry.telemetry.{name}", never)
    for name in ("item", "cpu", "tolist", "to", "__float__", "__int__", "__bool__"):
        monkeypatch.setattr(Tensor, name, never)
    now_s = telemetry._written_s + 0.4
    monkeypatch.setattr("services.trainer.telemetry.telemetry.time.monotonic", lambda: now_s)
    state = at_step(1)
    for step in range(2, 1000):
        state.step = step
        telemetry.status("training", state, BatchWaits())
        telemetry.evaluate(state, make_batch(2))
    assert not notes.told
    assert not looks.blocks


def test_the_model_is_looked_at_every_so_many_steps_once_the_block_is_full(tmp_path: Path) -> None:
    notes, looks = Notes(), Looks()
    block = ValidationBlock(tmp_path, ValidationConfig(events=8), torch.device("cpu"))
    telemetry = Telemetry(
        tmp_path,
        step=0,
        device="cpu",
        max_steps=0,
        epochs=1,
        sinks=[notes],
        evaluator=looks,
        block=block,
        evaluate_every=2,
    )
    for step in range(1, 9):
        telemetry.evaluate(at_step(step), make_batch(2))
    assert [step for step, _ in notes.told] == [4, 6, 8]
    assert all(told["panel/score"] == 2.0 and told["trainer/panel_s"] >= 0.0 for _, told in notes.told)
    assert notes.pictures == ["panel/picture"] * 3
    assert all(looked is block.batch for looked in looks.blocks)
    assert (telemetry.newest_score(), telemetry.newest_score()) == (2.0, None)
    looks.has_something = False
    telemetry.evaluate(at_step(10), make_batch(2))
    assert len(notes.told) == 3


def test_after_a_roll_back_what_was_told_of_later_steps_is_void(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, step=0, device="cpu", max_steps=0, epochs=1, sinks=[notes])
    now_s = 100.0
    monkeypatch.setattr("services.trainer.telemetry.telemetry.time.monotonic", lambda: now_s)
    telemetry.scalars(at_step(80), {"w_gap": torch.tensor(5.0)}, waits(0.0, 0.0))
    telemetry.rolled_back(40)
    telemetry.health("critical", "w_gap was 5", 1)
    now_s = 101.0
    status = telemetry.status("training", at_step(42), waits(0.0, 0.0), force=True)
    assert notes.went_back_to == [40]
    assert status.losses == {}
    assert status.batches_per_s == 0.0, "and not -38"
    assert (status.health, status.health_reason, status.rollbacks) == ("critical", "w_gap was 5", 1)


def test_a_loss_that_is_not_finite_leaves_the_status_file_readable(tmp_path: Path) -> None:
    notes = Notes()
    telemetry = Telemetry(tmp_path, step=0, device="cpu", max_steps=0, epochs=1, sinks=[notes])
    telemetry.scalars(at_step(1), {"w_gap": torch.tensor(torch.nan), "m_loss": torch.tensor(1.5)}, waits(0.0, 0.0))
    status = read_status(tmp_path, "trainer", TrainerStatus)
    assert status is not None
    assert status.losses == {"m_loss": 1.5}
    assert math.isnan(notes.told[0][1]["train/w_gap"])


def test_what_was_started_for_it_is_ended_with_it(tmp_path: Path) -> None:
    ended: list[str] = []
    telemetry = Telemetry(
        tmp_path, step=0, device="cpu", max_steps=0, epochs=1, sinks=[], closes=[lambda: ended.append("sampler")]
    )
    telemetry.close()
    assert ended == ["sampler"]
