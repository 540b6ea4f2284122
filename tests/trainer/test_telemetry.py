"""What the trainer tells of its hop, and what of the fetcher's it puts on TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor

from common.measurements import values
from common.status import FetcherStatus, Hop, TrainerStatus, read_status, write_status
from services.trainer.batch import Batch
from services.trainer.state import TrainState
from services.trainer.telemetry import Telemetry
from services.trainer.tensorboard_sink import run_folder
from services.trainer.waits import BatchWaits

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
    state = TrainState(Idle(), torch.device("cpu"), "plan")
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
    assert (found["hop/batches/wait_put_s"], found["hop/batches/wait_get_s"]) == (4.0, 6.0)
    assert (found["hop/slots/wait_put_s"], found["hop/batches/occupancy"], found["stall/no_credit_s"]) == (1.5, 0.5, 3)
    assert {name for name in told if name.startswith(("hop/", "stall/"))} <= found.keys()


def test_a_trainer_whose_fetcher_runs_elsewhere_tells_its_own_hop(tmp_path: Path, telemetry: Telemetry) -> None:
    telemetry.scalars(at_step(10), {}, waits(4.0, 6.0))
    telemetry.close()
    found = scalars(tmp_path)
    assert found["hop/batches/wait_get_s"] == 6.0
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
