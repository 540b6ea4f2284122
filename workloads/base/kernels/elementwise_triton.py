"""Triton kernels that pass once over a few values, for CUDA."""

import triton
import triton.language as tl


@triton.jit
def checked_update_of(norms, loss, limits, norm, skipped, N, ACC: tl.constexpr, VALUES: tl.constexpr):
    """Norm of all norms, and whether the update is bad. One program."""
    place = tl.arange(0, VALUES)
    one = tl.load(norms + place, mask=place < N, other=0).to(ACC)
    of_all = tl.sqrt(tl.sum(one * one, 0))
    size = tl.abs(tl.load(loss).to(ACC))
    is_good = (of_all <= tl.load(limits)) & (size <= tl.load(limits + 1))  # false for a NaN
    tl.store(norm, of_all)
    tl.store(skipped, tl.where(is_good, 0.0, 1.0))


@triton.jit(do_not_specialize=["num_values"])
def sort_key_values(keys, events, results, num_values, VALUES: tl.constexpr):
    """Event above the bits of the key. Grid: blocks of values."""
    place = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = place < num_values
    key = tl.load(keys + place, mask=inside, other=0).to(tl.float32)
    bits = key.to(tl.int32, bitcast=True)
    bits = tl.where(key == 0, 0, bits)  # -0.0 is 0.0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = tl.where(key != key, 0x7FFFFFFF, ordered)
    event = tl.load(events + place, mask=inside, other=0)
    tl.store(results + place, (event << 32) + ordered.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["num_values"])
def long_tail_values(normal, results, num_values, D, TAILS: tl.constexpr, SCALE: tl.constexpr, VALUES: tl.constexpr):
    """z·|z| × SCALE in the first columns. Grid: blocks of values."""
    place = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = place < num_values
    z = tl.load(normal + place, mask=inside, other=0)
    tl.store(results + place, tl.where(place % D < TAILS, z * tl.abs(z) * SCALE, z), mask=inside)


@triton.jit(do_not_specialize=["num_values"])
def log_size_values(sizes, results, num_values, ACC: tl.constexpr, VALUES: tl.constexpr):
    """ln(1 + N) / 2. Grid: blocks of values."""
    place = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    inside = place < num_values
    size = tl.load(sizes + place, mask=inside, other=0).to(ACC)
    tl.store(results + place, tl.log(1 + size) / 2, mask=inside)


@triton.jit
def _variances(moments, place, inside, N):
    """Variances of a row of moments with N features."""
    number = tl.maximum(tl.load(moments), 1)
    mean = tl.load(moments + 1 + place, mask=inside, other=0) / number
    variance = tl.load(moments + 1 + N + place, mask=inside, other=0) / number - mean * mean
    return tl.where(variance < 0, 0, variance)


@triton.jit
def least_spread_of(moments, ratio, N, ACC: tl.constexpr, VALUES: tl.constexpr):
    """Smallest ratio of the two rows' standard deviations; a NaN is the smallest. One program."""
    place = tl.arange(0, VALUES)
    inside = place < N
    first = _variances(moments, place, inside, N)
    second = _variances(moments + 1 + 2 * N, place, inside, N)
    found = tl.sqrt(second / tl.where(first < 1e-12, 1e-12, first))
    is_nan = tl.max(tl.where(inside & (found != found), 1, 0), 0) > 0
    smallest = tl.min(tl.where(inside, found, float("inf")), 0)
    tl.store(ratio, tl.where(is_nan, float("nan"), smallest).to(ACC))


@triton.jit(do_not_specialize=["num_particles", "num_events", "times"])
def repeat_segment_values(
    event_of, counts, starts, sizes, to_event_of, to_counts, to_starts, to_sizes, to_particles,
    num_particles, num_events, times, VALUES: tl.constexpr,
):  # fmt: skip
    """Copies of events and particles, one set after the other. Grid: blocks of the larger of both."""
    place = tl.program_id(0).to(tl.int64) * VALUES + tl.arange(0, VALUES)
    inside = place < num_particles.to(tl.int64) * times
    copy, particle = place // tl.maximum(num_particles, 1), place % tl.maximum(num_particles, 1)
    event = tl.load(event_of + particle, mask=inside, other=0)
    tl.store(to_event_of + place, event + copy * num_events, mask=inside)
    tl.store(to_particles + place, place, mask=inside)
    inside = place < num_events.to(tl.int64) * times
    copy, event = place // tl.maximum(num_events, 1), place % tl.maximum(num_events, 1)
    tl.store(to_counts + place, tl.load(counts + event, mask=inside, other=0), mask=inside)
    tl.store(to_starts + place, tl.load(starts + event, mask=inside, other=0) + copy * num_particles, mask=inside)
    tl.store(to_sizes + place, tl.load(sizes + event, mask=inside, other=0), mask=inside)
