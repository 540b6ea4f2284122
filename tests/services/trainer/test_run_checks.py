"""Checks at the start and the end of a trainer."""

from __future__ import annotations

import pytest

from common.errors import BadInputError
from common.status import Counters, TrainerStatus
from services.trainer.run_checks import LEAST_GPU_EVENTS, require_data, warnings_of_speed


def test_a_run_that_could_train_nothing_says_where_its_events_went() -> None:
    counters = Counters(events_read=5000, events_outlier=4000, events_quarantined=1000)
    status = TrainerStatus(state="finished", counters=counters, quarantined=["a.parquet: primary has 5 numbers"])
    with pytest.raises(BadInputError) as error:
        require_data(status)
    assert str(error.value) == (
        "nothing to train on: all 5,000 events were set aside: 4,000 outliers (more particles than"
        " stream.max_particles_per_event), 1,000 quarantined; the newest quarantined: a.parquet: primary has 5 numbers"
    )
    require_data(status.model_copy(update={"counters": Counters(events_read=1, events_trained=1)}))
    require_data(status.model_copy(update={"state": "stopped"}))


def test_small_batches_on_a_gpu_are_warned_of_with_the_setting() -> None:
    (warning,) = warnings_of_speed(256, "cuda")
    assert "stream.batch_events = 256" in warning
    assert "8,192" in warning
    assert warnings_of_speed(LEAST_GPU_EVENTS, "cuda") == warnings_of_speed(256, "cpu") == ()
