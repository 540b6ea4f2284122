"""Events that a WGAN in training generates."""

from __future__ import annotations

import pytest
import torch
from toy_events import toy_batch
from toy_tasks import SMALL_WGAN, make_wgan


@pytest.mark.parametrize("azimuth", ["symmetric", "learned"])
def test_generated_events_have_as_many_muons_as_their_counts_say(azimuth: str) -> None:
    task = make_wgan(network={**SMALL_WGAN.model_dump(), "azimuth": azimuth})
    task.step(toy_batch(counts=[3] * 32))

    bundles = task.generate(toy_batch(64).microbatches[0].event_columns["primary"])

    assert bundles.counts_E.shape == (64,)
    assert bundles.muons_P3.shape == (int(bundles.counts_E.sum()), 3)
    assert bundles.muons_P3.isfinite().all()
    assert (bundles.muons_P3[:, 0] > 0).all()
    assert bundles.num_capped == 0


def test_generated_counts_above_the_limit_are_cut_down_and_counted() -> None:
    task = make_wgan(sampling={"max_count": 2})
    task.step(toy_batch(counts=[3] * 32))
    with torch.no_grad():
        task.networks.averaged_count_head.average.output.bias.fill_(4.0)

    bundles = task.generate(toy_batch(64).microbatches[0].event_columns["primary"])

    assert bundles.counts_E.max() == 2
    assert bundles.num_capped > 50
