"""Triton kernels of a critic's scores and losses, for CUDA.

A program has whole rows, or a block of values. Sums over rows or values: as in layers_triton.py, partial sums that a
second kernel adds up in order. D: columns, at most COLUMNS. LIMIT: of a bounded score, 0 for none.
"""

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """Hyperbolic tangent, exact to rounding where it is near 1, and for small x to 1e-7 absolutely."""
    size = tl.abs(x)
    below = tl.exp(-2 * size)
    value = (1 - below) / (1 + below)
    value = tl.where(size < 0.05, size * (1 - size * size * (1 / 3 - size * size * (2 / 15))), value)
    return tl.where(x < 0, -value, value)


@triton.jit
def _scores(rows, projected, gamma, bias, place, inside, root, ACC: tl.constexpr):
    """Rows, slopes without a bound, scores."""
    row = tl.load(rows + place, mask=inside, other=0).to(ACC)
    slope = gamma[None, :] + tl.load(projected + place, mask=inside, other=0).to(ACC) / root
    slope = tl.where(inside, slope, 0)
    return row, slope, tl.sum(row * slope, 1) + tl.load(bias).to(ACC)


@triton.jit(do_not_specialize=["num_rows"])
def score_rows(
    rows, projected, weight, bias, results, num_rows, D,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, ROOT: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Scores, or with SLOPE the slopes of the bounded ones. Grid: blocks of rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    in_rows = row < num_rows
    inside = in_rows[:, None] & (d < D)[None, :]
    place = row.to(tl.int64)[:, None] * D + d[None, :]
    gamma = tl.load(weight + d, mask=d < D, other=0).to(ACC)
    _, slope, score = _scores(rows, projected, gamma, bias, place, inside, ROOT, ACC)
    if SLOPE:
        if LIMIT > 0:
            bent = tanh(score / LIMIT)
            slope = slope * (1 - bent * bent)[:, None]
        tl.store(results + place, slope, mask=inside)
    else:
        tl.store(results + row, score, mask=in_rows)


@triton.jit(do_not_specialize=["num_rows", "rows_each"])
def score_backward_rows(
    gradients, rows, projected, weight, bias, to_rows, to_projected, part_sums, num_rows, rows_each, D,
    LIMIT: tl.constexpr, SLOPE: tl.constexpr, ROOT: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of both, and partial sums for weight and bias, D + 1 a program. Grid: ceil(rows / rows_each)."""
    program = tl.program_id(0)
    d = tl.arange(0, COLUMNS)
    in_columns = d < D
    gamma = tl.load(weight + d, mask=in_columns, other=0).to(ACC)
    of_weight = tl.zeros([COLUMNS], ACC)
    of_bias = tl.zeros([ROWS], ACC)
    last = tl.minimum((program + 1) * rows_each, num_rows)
    for begin in range(program * rows_each, last, ROWS):
        number = begin + tl.arange(0, ROWS)
        in_rows = number < last
        inside = in_rows[:, None] & in_columns[None, :]
        place = number.to(tl.int64)[:, None] * D + d[None, :]
        row, slope, score = _scores(rows, projected, gamma, bias, place, inside, ROOT, ACC)
        if SLOPE:
            gradient = tl.load(gradients + place, mask=inside, other=0).to(ACC)
            of_score = tl.zeros([ROWS], ACC)
            to_slope = gradient
            if LIMIT > 0:
                bent = tanh(score / LIMIT)
                factor = 1 - bent * bent
                of_score = tl.sum(gradient * slope, 1) * (-2 / LIMIT) * bent * factor
                to_slope = gradient * factor[:, None] + of_score[:, None] * row
        else:
            of_score = tl.load(gradients + number, mask=in_rows, other=0).to(ACC)
            to_slope = of_score[:, None] * row
        of_score = tl.where(in_rows, of_score, 0)
        to_slope = tl.where(inside, to_slope, 0)
        tl.store(to_rows + place, of_score[:, None] * slope, mask=inside)
        tl.store(to_projected + place, to_slope / ROOT, mask=inside)
        of_weight += tl.sum(to_slope, 0)
        of_bias += of_score
    part = part_sums + program * (D + 1)
    tl.store(part + d, of_weight, mask=in_columns)
    tl.store(part + D, tl.sum(of_bias, 0))


@triton.jit(do_not_specialize=["num_values"])
def bounded_loss_values(
    scores,
    signs,
    part_sums,
    num_values,
    LIMIT: tl.constexpr,
    NEAR: tl.constexpr,
    ACC: tl.constexpr,
    VALUES: tl.constexpr,
):
    """Partial sums of loss, gap and scores near the limit, 3 a program. Grid: blocks of values."""
    program = tl.program_id(0)
    place = program * VALUES + tl.arange(0, VALUES)
    inside = place < num_values
    score = tl.load(scores + place, mask=inside, other=0).to(ACC)
    sign = tl.load(signs + place, mask=inside, other=0).to(ACC)
    bounded = score
    near = tl.zeros([VALUES], ACC)
    if LIMIT > 0:
        bounded = tanh(score / LIMIT) * LIMIT
        near = tl.where(tl.abs(bounded) > NEAR * LIMIT, tl.abs(sign), 0)
    tl.store(part_sums + 3 * program, tl.sum(tl.where(inside, bounded * sign, 0), 0))
    tl.store(part_sums + 3 * program + 1, -tl.sum(tl.where(inside, score * sign, 0), 0))
    tl.store(part_sums + 3 * program + 2, tl.sum(near, 0) / 2)


@triton.jit(do_not_specialize=["num_values"])
def bounded_loss_slopes(
    gradient, scores, signs, slopes, num_values, LIMIT: tl.constexpr, ACC: tl.constexpr, VALUES: tl.constexpr
):
    """Gradients of the scores. Grid: blocks of values."""
    place = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    inside = place < num_values
    slope = tl.load(gradient).to(ACC) * tl.load(signs + place, mask=inside, other=0).to(ACC)
    if LIMIT > 0:
        bent = tanh(tl.load(scores + place, mask=inside, other=0).to(ACC) / LIMIT)
        slope = slope * (1 - bent * bent)
    tl.store(slopes + place, slope, mask=inside)
