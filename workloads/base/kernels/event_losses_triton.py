"""Triton kernels of losses by event, for CUDA. Sums are put together as in layers_triton.py.

D: columns, at most COLUMNS.
"""

import triton
import triton.language as tl


@triton.jit
def _weights(rows, event, counts, starts, mask, ACC: tl.constexpr):
    """Weight of the particles' squares."""
    count = tl.load(counts + event, mask=mask, other=1)
    is_last = rows == tl.load(starts + event, mask=mask, other=0) + count - 1
    return tl.where(is_last, 1, count).to(ACC)


@triton.jit(do_not_specialize=["num_particles"])
def weighted_squares(
    slopes, event_of, counts, starts, squares, num_particles, D,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Weighted square of each particle's slope. Grid: blocks of particles."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    in_rows = row < num_particles
    inside = in_rows[:, None] & (d < D)[None, :]
    slope = tl.load(slopes + row[:, None] * D + d[None, :], mask=inside, other=0).to(ACC)
    event = tl.load(event_of + row, mask=in_rows, other=0)
    weight = _weights(row, event, counts, starts, in_rows, ACC)
    tl.store(squares + row, tl.sum(slope * slope, 1) * weight, mask=in_rows)


@triton.jit(do_not_specialize=["num_events"])
def penalty_sums(
    squares, present, part_sums, num_events,
    FLOOR: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Partial sums of penalty and norm, 2 a program. Grid: blocks of events."""
    program = tl.program_id(0)
    event = program * ROWS + tl.arange(0, ROWS)
    inside = event < num_events
    norm = tl.sqrt(tl.load(squares + event, mask=inside, other=0).to(ACC) + FLOOR)
    excess = norm - 1
    weight = tl.load(present + event, mask=inside, other=0).to(ACC)
    tl.store(part_sums + 2 * program, tl.sum(tl.where(inside, excess * excess * weight, 0), 0))
    tl.store(part_sums + 2 * program + 1, tl.sum(tl.where(inside, norm * weight, 0), 0))


@triton.jit(do_not_specialize=["num_particles"])
def penalty_slopes(
    gradient, slopes, squares, event_of, counts, starts, present, results, num_particles, D,
    FLOOR: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient of each particle's slope. Grid: blocks of particles."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    in_rows = row < num_particles
    inside = in_rows[:, None] & (d < D)[None, :]
    event = tl.load(event_of + row, mask=in_rows, other=0)
    norm = tl.sqrt(tl.load(squares + event, mask=in_rows, other=1).to(ACC) + FLOOR)
    factor = tl.load(gradient).to(ACC) * 2 * (norm - 1) / norm * tl.load(present + event, mask=in_rows, other=0).to(ACC)
    factor *= _weights(row, event, counts, starts, in_rows, ACC)
    place = row[:, None] * D + d[None, :]
    slope = tl.load(slopes + place, mask=inside, other=0).to(ACC)
    tl.store(results + place, slope * factor[:, None], mask=inside)


@triton.jit(do_not_specialize=["num_rows"])
def score_sets(
    generated, real, scores, slopes, num_rows, D,
    TIMES: tl.constexpr, FLOOR: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Energy scores and their slopes, stored as (times, D, rows). Grid: blocks of rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    in_rows = row < num_rows
    inside = (d < D)[:, None] & in_rows[None, :]
    place = row[None, :] * D + d[:, None]
    size = num_rows.to(tl.int64) * D
    of_real = tl.load(real + place, mask=inside, other=0).to(ACC)
    to_real = tl.zeros([ROWS], ACC)
    among = tl.zeros([ROWS], ACC)
    for one in range(0, TIMES):
        value = tl.load(generated + one * size + place, mask=inside, other=0).to(ACC)
        apart = value - of_real
        length = tl.sqrt(tl.sum(apart * apart, 0) + FLOOR)
        to_real += length
        slope = apart / (TIMES * length)[None, :]
        of_others = tl.zeros([COLUMNS, ROWS], ACC)
        for other in range(0, TIMES):
            apart = value - tl.load(generated + other * size + place, mask=inside, other=0).to(ACC)
            length = tl.sqrt(tl.sum(apart * apart, 0) + FLOOR)
            among += tl.where(one == other, 0, length)
            of_others += apart / length[None, :]
        slope -= of_others / (TIMES * (TIMES - 1))
        tl.store(slopes + one * size + d[:, None] * num_rows.to(tl.int64) + row[None, :], slope, mask=inside)
    tl.store(scores + row, to_real / TIMES - among / (2 * TIMES * (TIMES - 1)), mask=in_rows)
