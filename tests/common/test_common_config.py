from __future__ import annotations

import pytest
from pydantic import ValidationError

from common.config import StreamConfig


def test_an_event_is_an_outlier_above_max_particles_unless_told_otherwise() -> None:
    assert StreamConfig(max_particles=100).outlier_above == 100
    assert StreamConfig(max_particles=100, max_particles_per_event=30).outlier_above == 30


def test_an_event_that_fits_no_microbatch_is_refused_naming_both_settings() -> None:
    pattern = r"stream\.max_particles_per_event = 101 is larger than stream\.max_particles = 100"
    with pytest.raises(ValidationError, match=pattern):
        StreamConfig(max_particles=100, max_particles_per_event=101)


def test_a_slot_below_one_page_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"stream\.slot_mib = 0\.001 is smaller than one page"):
        StreamConfig(slot_mib=0.001)


def test_an_event_that_alone_exceeds_the_squares_of_a_microbatch_is_an_outlier() -> None:
    assert StreamConfig(max_particles=100, max_squared_particles=99).outlier_above == 9
    assert StreamConfig(max_particles=100, max_squared_particles=100).outlier_above == 10
    assert StreamConfig(max_particles=100, max_squared_particles=10**6).outlier_above == 100
    assert StreamConfig(max_particles=100, max_squared_particles=100, max_particles_per_event=7).outlier_above == 7
    pattern = r"max_particles_per_event = 11: the square is larger than stream\.max_squared_particles = 100.* to 10 or"
    with pytest.raises(ValueError, match=pattern):
        StreamConfig(max_particles=100, max_squared_particles=100, max_particles_per_event=11)


def test_length_buckets_without_shuffle_are_refused() -> None:
    assert StreamConfig(length_buckets=1, shuffle=False).length_buckets == 1
    with pytest.raises(ValueError, match=r"length_buckets = 2 sorts events, but stream\.shuffle = false"):
        StreamConfig(length_buckets=2, shuffle=False)
