"""What is noted of each step, and read at once."""

from __future__ import annotations

import torch

from services.trainer.health.recent_steps import Place, RecentSteps
from workloads.base.batch import Batch, Microbatch


def batch(*units: int) -> Batch:
    nothing = torch.zeros(0)
    return Batch(
        tuple(Microbatch(1, unit, 2, nothing, nothing.numpy(), {}, {}, 3, 4, shard=unit % 2) for unit in units)
    )


def test_steps_come_with_their_metrics_and_the_places_of_their_microbatches() -> None:
    recent = RecentSteps()
    loss = torch.tensor(1.0)
    recent.add(7, batch(4, 5), {"loss": loss})
    loss += 1  # a graph may write into the same place again
    recent.add(8, batch(6), {"loss": loss, "skipped": torch.tensor(3)})
    recent.add(9, batch(), {})
    first, second, third = recent.read()
    assert (first.step, first.metrics) == (7, {"loss": 1.0})
    assert first.places == (Place(0, 1, 4, 2), Place(1, 1, 5, 2))
    assert (second.step, second.metrics) == (8, {"loss": 2.0, "skipped": 3.0})
    assert (third.places, third.metrics) == ((), {})
    assert recent.read() == []


def test_what_is_forgotten_is_not_read() -> None:
    recent = RecentSteps()
    recent.add(1, batch(1), {"loss": torch.tensor(1.0)})
    recent.forget()
    assert recent.read() == []
