"""Triton kernels of a dense layer's operators, for CUDA.

A program has whole rows, so that a row's mean is found in its registers. Where columns are summed, a program walks
ROWS_EACH rows and writes one row of partial sums, which a second kernel adds up in order: no atomics, the same bits
each time.

D: columns, at most COLUMNS. NORM: with a normalisation. ACC: type of the results in between.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows"])
def activate_rows(
    linear, scale, shift, output, means, inverses, num_rows, D,
    NORM: tl.constexpr, EPSILON: tl.constexpr, LEAK: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Normalised rows after the leaky ReLU. Grid: blocks of rows."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, COLUMNS)
    in_columns = d < D
    inside = (row < num_rows)[:, None] & in_columns[None, :]
    place = row[:, None] * D + d[None, :]
    value = tl.load(linear + place, mask=inside, other=0).to(ACC)
    if NORM:
        mean = tl.sum(value, 1) / D
        centred = tl.where(inside, value - mean[:, None], 0)
        inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / D + EPSILON)
        tl.store(means + row, mean, mask=row < num_rows)
        tl.store(inverses + row, inverse, mask=row < num_rows)
        gamma = tl.load(scale + d, mask=in_columns, other=0).to(ACC)
        beta = tl.load(shift + d, mask=in_columns, other=0).to(ACC)
        value = centred * inverse[:, None] * gamma[None, :] + beta[None, :]
    tl.store(output + place, tl.where(value > 0, value, value * LEAK), mask=inside)


@triton.jit(do_not_specialize=["num_rows", "rows_each"])
def pull_rows(
    gradients, output, linear, means, inverses, scale, pulled, part_sums, num_rows, rows_each, D,
    NORM: tl.constexpr, SUMS: tl.constexpr, LEAK: tl.constexpr,
    ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Pullback of the gradients, and partial sums for bias, scale and shift. Grid: ceil(rows / rows_each)."""
    program = tl.program_id(0)
    d = tl.arange(0, COLUMNS)
    in_columns = d < D
    of_bias = tl.zeros([COLUMNS], ACC)
    if NORM:
        gamma = tl.load(scale + d, mask=in_columns, other=0).to(ACC)
        of_scale = tl.zeros([COLUMNS], ACC)
        of_shift = tl.zeros([COLUMNS], ACC)
    last = tl.minimum((program + 1) * rows_each, num_rows)
    for begin in range(program * rows_each, last, ROWS):
        row = begin + tl.arange(0, ROWS)
        in_rows = row < last
        inside = in_rows[:, None] & in_columns[None, :]
        place = row.to(tl.int64)[:, None] * D + d[None, :]
        u = tl.load(gradients + place, mask=inside, other=0).to(ACC)
        is_positive = tl.load(output + place, mask=inside, other=0).to(ACC) > 0
        u = tl.where(is_positive, u, u * LEAK)
        r = u
        if NORM:
            mean = tl.load(means + row, mask=in_rows, other=0)
            inverse = tl.load(inverses + row, mask=in_rows, other=0)
            value = tl.load(linear + place, mask=inside, other=0).to(ACC)
            normal = tl.where(inside, (value - mean[:, None]) * inverse[:, None], 0)
            if SUMS:
                of_scale += tl.sum(u * normal, 0)
                of_shift += tl.sum(u, 0)
            v = u * gamma[None, :]
            mean_v = tl.sum(v, 1) / D
            along = tl.sum(v * normal, 1) / D
            r = (v - mean_v[:, None] - normal * along[:, None]) * inverse[:, None]
        if SUMS:
            of_bias += tl.sum(tl.where(inside, r, 0), 0)
        tl.store(pulled + place, r, mask=inside)
    if SUMS:
        part = part_sums + program * (D * (3 if NORM else 1)) + d
        tl.store(part, of_bias, mask=in_columns)
        if NORM:
            tl.store(part + D, of_scale, mask=in_columns)
            tl.store(part + 2 * D, of_shift, mask=in_columns)


@triton.jit(do_not_specialize=["num_rows", "rows_each"])
def pull_backward_rows(
    slopes, gradients, output, linear, means, inverses, scale, pulled, to_gradients, to_linear, part_sums,
    num_rows, rows_each, D,
    LEAK: tl.constexpr, ACC: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Gradients of the pullback with a normalisation, and partial sums for the scale. Grid: ceil(rows / rows_each)."""
    program = tl.program_id(0)
    d = tl.arange(0, COLUMNS)
    in_columns = d < D
    gamma = tl.load(scale + d, mask=in_columns, other=0).to(ACC)
    of_scale = tl.zeros([COLUMNS], ACC)
    last = tl.minimum((program + 1) * rows_each, num_rows)
    for begin in range(program * rows_each, last, ROWS):
        row = begin + tl.arange(0, ROWS)
        in_rows = row < last
        inside = in_rows[:, None] & in_columns[None, :]
        place = row.to(tl.int64)[:, None] * D + d[None, :]
        mean = tl.load(means + row, mask=in_rows, other=0)
        inverse = tl.load(inverses + row, mask=in_rows, other=0)
        value = tl.load(linear + place, mask=inside, other=0).to(ACC)
        normal = tl.where(inside, (value - mean[:, None]) * inverse[:, None], 0)
        s = tl.load(slopes + place, mask=inside, other=0).to(ACC)
        along_s = tl.sum(s * normal, 1)
        js = (s - (tl.sum(s, 1) / D)[:, None] - normal * (along_s / D)[:, None]) * inverse[:, None]
        js = tl.where(inside, js, 0)
        is_positive = tl.load(output + place, mask=inside, other=0).to(ACC) > 0
        u = tl.load(gradients + place, mask=inside, other=0).to(ACC)
        u = tl.where(is_positive, u, u * LEAK)
        of_scale += tl.sum(u * js, 0)
        v = u * gamma[None, :]
        r = tl.load(pulled + place, mask=inside, other=0).to(ACC)
        products = tl.sum(v * js, 1)[:, None] * normal + along_s[:, None] * r + tl.sum(v * normal, 1)[:, None] * js
        tl.store(to_linear + place, products * (-inverse / D)[:, None], mask=inside)
        through = js * gamma[None, :]
        tl.store(to_gradients + place, tl.where(is_positive, through, through * LEAK), mask=inside)
    tl.store(part_sums + program * D + d, of_scale, mask=in_columns)
