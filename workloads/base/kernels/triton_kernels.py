"""Triton kernels of the segment operators, for CUDA.

An event's rows lie one after the other, and its columns are independent: a program has up to 128 columns, so that it
reads whole lines of memory. Events of up to LONG particles are walked by `_pool_events`, a block of events at a time.
Longer ones are split. The particles are cut into tiles of TILE; a long event covers all of its tiles but the first and
the last, so that a tile has parts of at most two long events, at its ends. `_pool_tile` reduces such a part to a row of
partial results, and `combine` reduces the rows of the event that begins in its tile.

Which events are long the programs find out themselves: the host knows the numbers of events and particles alone, and
waits for nothing. Sums are added in a fixed order, without atomics: results are the same each time.

D: columns. MAX: 0 for no maximum, 1 if it is to be found, 2 at given places. NUM: kinds of pools; MEAN_AT, SUM_AT and
MAX_AT: number of each among them, -1 for none. ACC: type of the sums.
"""

import triton
import triton.language as tl

TILE = tl.constexpr(128)
LONG = tl.constexpr(128)
"""At least TILE: no two long events begin in a tile."""


@triton.jit
def larger(a, row_a, b, row_b):
    """Larger of two values and its row; of equal ones the first. A NaN is compared with copies of itself alone."""
    is_b = (b > a) | ((b == a) & (row_b < row_a))
    return tl.where(is_b, b, a), tl.where(is_b, row_b, row_a)


@triton.jit(do_not_specialize=["num_events", "num_particles", "num_tiles"])
def pool_pieces(
    values, given, pooled, argmax, part_sums, part_values, part_rows, event_of, counts, starts,
    num_events, num_particles, num_tiles, D,
    MAX: tl.constexpr, NUM: tl.constexpr, MEAN_AT: tl.constexpr, SUM_AT: tl.constexpr, MAX_AT: tl.constexpr,
    ACC: tl.constexpr, EVENTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Both ends of each tile, then each block of short events. Grid: 2 × tiles + blocks, blocks of columns."""
    piece = tl.program_id(0)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if piece < 2 * num_tiles:
        _pool_tile(
            piece // 2, piece % 2, d, values, part_sums, part_values, part_rows, event_of, counts, starts,
            num_particles, D, MAX, ACC, ROWS, COLUMNS,
        )  # fmt: skip
    else:
        _pool_events(
            piece - 2 * num_tiles, d, values, given, pooled, argmax, counts, starts, num_events, D,
            MAX, NUM, MEAN_AT, SUM_AT, MAX_AT, ACC, EVENTS, COLUMNS,
        )  # fmt: skip


@triton.jit
def _pool_events(
    block, d, values, given, pooled, argmax, counts, starts, num_events, D,
    MAX: tl.constexpr, NUM: tl.constexpr, MEAN_AT: tl.constexpr, SUM_AT: tl.constexpr, MAX_AT: tl.constexpr,
    ACC: tl.constexpr, EVENTS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Results of the short events of a block. Values at given places are those of the long ones, too."""
    event = block.to(tl.int64) * EVENTS + tl.arange(0, EVENTS)
    count = tl.load(counts + event, mask=event < num_events, other=0)
    start = tl.load(starts + event, mask=event < num_events, other=0)
    is_short = (event < num_events) & (count <= LONG)
    walked = tl.where(is_short, count, 0).to(tl.int32)
    in_columns = (d < D)[None, :]
    sums = tl.zeros([EVENTS, COLUMNS], ACC)
    if MAX == 1:
        has_first = (walked > 0)[:, None] & in_columns
        best = tl.load(values + start[:, None] * D + d[None, :], mask=has_first, other=0).to(ACC)
        best_row = tl.zeros([EVENTS, COLUMNS], tl.int32)
    for row in range(0, tl.max(walked, 0)):
        inside = (row < walked)[:, None] & in_columns
        value = tl.load(values + (start + row)[:, None] * D + d[None, :], mask=inside, other=0).to(ACC)
        sums += value
        if MAX == 1:
            is_larger = inside & (value > best)
            best = tl.where(is_larger, value, best)
            best_row = tl.where(is_larger, row, best_row)
    short = is_short[:, None] & in_columns
    _write_sums(pooled, event[:, None], sums, count[:, None], d[None, :], short, D, NUM, MEAN_AT, SUM_AT, ACC)
    place = event[:, None] * D + d[None, :]
    largest_place = event[:, None] * (NUM * D) + MAX_AT * D + d[None, :]
    if MAX == 1:
        tl.store(pooled + largest_place, best, mask=short)
        tl.store(argmax + place, tl.where(has_first, start[:, None] + best_row, 0), mask=short)
    if MAX == 2:
        in_events = (event < num_events)[:, None] & in_columns
        has_any = in_events & (count > 0)[:, None]
        at = tl.load(given + place, mask=has_any, other=0)
        largest = tl.load(values + at * D + d[None, :], mask=has_any, other=0)
        tl.store(pooled + largest_place, largest, mask=in_events)


@triton.jit
def _pool_tile(
    tile, end_of_tile, d, values, part_sums, part_values, part_rows, event_of, counts, starts, num_particles, D,
    MAX: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Partial results of the event at an end of a tile, 0 the first and 1 the last, if it is long."""
    first = tile.to(tl.int64) * TILE
    after_tile = tl.minimum(first + TILE, num_particles)
    event_at_first, event_at_last = tl.load(event_of + first), tl.load(event_of + after_tile - 1)
    event = tl.where(end_of_tile == 0, event_at_first, event_at_last)
    count, start = tl.load(counts + event), tl.load(starts + event)
    if (count > LONG) & ((end_of_tile == 0) | (event_at_first != event_at_last)):
        low = tl.maximum(first - start, 0).to(tl.int32)  # rows of the event
        high = tl.minimum(after_tile - start, count).to(tl.int32)
        sums = tl.zeros([ROWS, COLUMNS], ACC)
        if MAX == 1:  # from the event's first value, as if it were walked in order: that matters for a NaN
            best = tl.load(values + start * D + d, mask=d < D, other=0).to(ACC)
            best = tl.broadcast_to(best[None, :], [ROWS, COLUMNS])
            best_row = tl.zeros([ROWS, COLUMNS], tl.int32)
        for begin in range(low, high, ROWS):
            row = begin + tl.arange(0, ROWS)
            inside = (row < high)[:, None] & (d < D)[None, :]
            value = tl.load(values + (start + row)[:, None] * D + d[None, :], mask=inside, other=0).to(ACC)
            sums += value
            if MAX == 1:
                is_larger = inside & (value > best)
                best = tl.where(is_larger, value, best)
                best_row = tl.where(is_larger, row[:, None], best_row)
        part = (2 * tile + end_of_tile).to(tl.int64) * D + d
        tl.store(part_sums + part, tl.sum(sums, 0), mask=d < D)
        if MAX == 1:
            best_of_all, row_of_all = tl.reduce((best, best_row), 0, larger)
            tl.store(part_values + part, best_of_all, mask=d < D)
            tl.store(part_rows + part, row_of_all, mask=d < D)


@triton.jit(do_not_specialize=["num_particles"])
def combine(
    pooled, argmax, part_sums, part_values, part_rows, event_of, counts, starts, num_particles, D,
    MAX: tl.constexpr, NUM: tl.constexpr, MEAN_AT: tl.constexpr, SUM_AT: tl.constexpr, MAX_AT: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Results of the long event that begins in a tile. Grid: tiles, blocks of columns."""
    tile = tl.program_id(0)
    d = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tile.to(tl.int64) * TILE
    event = tl.load(event_of + tl.minimum(first + TILE, num_particles) - 1)
    count, start = tl.load(counts + event), tl.load(starts + event)
    if (count > LONG) & (start >= first):
        after = (start + count + TILE - 1) // TILE
        sums = tl.zeros([ROWS, COLUMNS], ACC)
        at_first = (2 * tile + (start > first)).to(tl.int64) * D + d
        if MAX == 1:
            best = tl.broadcast_to(tl.load(part_values + at_first, mask=d < D, other=0)[None, :], [ROWS, COLUMNS])
            best_row = tl.broadcast_to(tl.load(part_rows + at_first, mask=d < D, other=0)[None, :], [ROWS, COLUMNS])
        for begin in range(tile, after, ROWS):
            of_tile = begin + tl.arange(0, ROWS)
            end_of_tile = (of_tile == tile) & (start > first)  # the last event of its first tile, the first of others
            inside = (of_tile < after)[:, None] & (d < D)[None, :]
            part = (2 * of_tile + end_of_tile).to(tl.int64)[:, None] * D + d[None, :]
            sums += tl.load(part_sums + part, mask=inside, other=0)
            if MAX == 1:
                value = tl.load(part_values + part, mask=inside, other=float("-inf"))
                is_larger = value > best
                best = tl.where(is_larger, value, best)
                best_row = tl.where(is_larger, tl.load(part_rows + part, mask=inside, other=0), best_row)
        sum_of_all = tl.sum(sums, 0)
        _write_sums(pooled, event, sum_of_all, count, d, d < D, D, NUM, MEAN_AT, SUM_AT, ACC)
        if MAX == 1:
            best_of_all, row_of_all = tl.reduce((best, best_row), 0, larger)
            tl.store(pooled + event * (NUM * D) + MAX_AT * D + d, best_of_all, mask=d < D)
            tl.store(argmax + event * D + d, start + row_of_all, mask=d < D)


@triton.jit
def _write_sums(
    pooled, event, sums, count, d, inside, D,
    NUM: tl.constexpr, MEAN_AT: tl.constexpr, SUM_AT: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    place = event * (NUM * D) + d
    if SUM_AT >= 0:
        tl.store(pooled + place + SUM_AT * D, sums, mask=inside)
    if MEAN_AT >= 0:
        tl.store(pooled + place + MEAN_AT * D, sums * (1 / tl.maximum(count, 1).to(ACC)), mask=inside)


@triton.jit(do_not_specialize=["num_particles"])
def unpool_rows(
    slopes, argmax, values, event_of, counts, num_particles, D,
    NUM: tl.constexpr, MEAN_AT: tl.constexpr, SUM_AT: tl.constexpr, MAX_AT: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradient of each particle, read from its event's. Grid: blocks of particles, blocks of columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    event = tl.load(event_of + row, mask=row < num_particles, other=0)
    inside = (row < num_particles)[:, None] & (d < D)
    place = event[:, None] * (NUM * D) + d
    value = tl.zeros([ROWS, COLUMNS], ACC)
    if MEAN_AT >= 0:
        count = tl.load(counts + event, mask=row < num_particles, other=1)
        slope = tl.load(slopes + place + MEAN_AT * D, mask=inside, other=0).to(ACC)
        value += slope * (1 / count.to(ACC))[:, None]
    if SUM_AT >= 0:
        value += tl.load(slopes + place + SUM_AT * D, mask=inside, other=0).to(ACC)
    if MAX_AT >= 0:
        at = tl.load(argmax + event[:, None] * D + d, mask=inside, other=-1)
        slope = tl.load(slopes + place + MAX_AT * D, mask=inside, other=0).to(ACC)
        value += tl.where(at == row[:, None], slope, 0)
    tl.store(values + row[:, None] * D + d, value, mask=inside)
