# SPDX-License-Identifier: MIT
"""Ordinary Triton kernels, with nothing in them that knows of a simulator."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row + at, at < columns, other=float("-inf")).to(tl.float32)
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row + at, powers / tl.sum(powers, axis=0), at < columns)


@triton.jit
def layer_norm(
    x, weight, bias, out, mean_out, rstd_out, columns, epsilon, BLOCK: tl.constexpr, STATISTICS: tl.constexpr
):
    row = tl.program_id(0)
    mean = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mean += tl.load(x + row * columns + at, at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(mean, axis=0) / columns
    variance = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        centred = tl.load(x + row * columns + at, at < columns, other=0.0).to(tl.float32) - mean
        variance += tl.where(at < columns, centred * centred, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(variance, axis=0) / columns + epsilon)
    if STATISTICS:
        tl.store(mean_out + row, mean)
        tl.store(rstd_out + row, rstd)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        value = (tl.load(x + row * columns + at, inside).to(tl.float32) - mean) * rstd
        value = value * tl.load(weight + at, inside).to(tl.float32) + tl.load(bias + at, inside).to(
            tl.float32
        )
        tl.store(out + row * columns + at, value, inside)


@triton.jit
def rms_norm(x, weight, out, rstd_out, columns, epsilon, BLOCK: tl.constexpr, STATISTICS: tl.constexpr):
    """A row in registers; BLOCK is no less than columns."""
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, inside, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(value * value, axis=0) / columns + epsilon)
    if STATISTICS:
        tl.store(rstd_out + row, rstd)
    tl.store(out + row * columns + at, value * rstd * tl.load(weight + at, inside).to(tl.float32), inside)


@triton.jit
def rotary(x, cos, sin, out, tokens, HEADS: tl.constexpr, HALF: tl.constexpr):
    """All heads of one token of x [batch, tokens, heads, 2 HALF]; HEADS and HALF are powers of two."""
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, HALF)
    at = token * HEADS * 2 * HALF + tl.arange(0, HEADS)[:, None] * 2 * HALF + pair[None, :]
    c = tl.load(cos + token % tokens * HALF + pair)[None, :].to(tl.float32)
    s = tl.load(sin + token % tokens * HALF + pair)[None, :].to(tl.float32)
    first, second = tl.load(x + at).to(tl.float32), tl.load(x + at + HALF).to(tl.float32)
    tl.store(out + at, first * c - second * s)
    tl.store(out + at + HALF, second * c + first * s)


@triton.jit
def rotary_heads(x, cos, sin, out, rows, tokens, heads, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Pairs (i, i + HALF) of contiguous (batch, tokens, heads, 2 HALF) tensors: BLOCK heads of any tokens in a program."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pair = tl.arange(0, HALF)
    inside = (row < rows)[:, None]
    angle = (row // heads % tokens)[:, None] * HALF + pair[None, :]
    at = row[:, None] * (2 * HALF) + pair[None, :]
    c = tl.load(cos + angle, inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, inside, other=0.0).to(tl.float32)
    first = tl.load(x + at, inside, other=0.0).to(tl.float32)
    second = tl.load(x + at + HALF, inside, other=0.0).to(tl.float32)
    tl.store(out + at, first * c - second * s, inside)
    tl.store(out + at + HALF, second * c + first * s, inside)


@triton.jit
def layer_norm_backward(
    dy, x, weight, mean, rstd, dx, partial_weight, partial_bias, rows, columns, BLOCK: tl.constexpr
):
    """dx of every row, and the sums over a program's rows that the gradients of weight and bias are made of."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, inside, other=0.0).to(tl.float32)
    sum_weight = tl.zeros([BLOCK], tl.float32)
    sum_bias = tl.zeros([BLOCK], tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        here = row.to(tl.int64) * columns + at
        inverse = tl.load(rstd + row)
        xhat = (tl.load(x + here, inside, other=0.0).to(tl.float32) - tl.load(mean + row)) * inverse
        xhat = tl.where(inside, xhat, 0.0)
        gradient = tl.load(dy + here, inside, other=0.0).to(tl.float32)
        sum_weight += gradient * xhat
        sum_bias += gradient
        gradient *= w
        along = tl.sum(gradient * xhat, axis=0) / columns
        level = tl.sum(gradient, axis=0) / columns
        tl.store(dx + here, (gradient - level - xhat * along) * inverse, inside)
    tl.store(partial_weight + tl.program_id(0) * columns + at, sum_weight, inside)
    tl.store(partial_bias + tl.program_id(0) * columns + at, sum_bias, inside)


@triton.jit
def sum_rows(partial, out, rows, columns, BLOCK_ROWS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK_ROWS, BLOCK], tl.float32)
    for start in range(0, rows, BLOCK_ROWS):
        row = start + tl.arange(0, BLOCK_ROWS)
        inside = (row < rows)[:, None] & (at < columns)[None, :]
        total += tl.load(partial + row[:, None] * columns + at[None, :], inside, other=0.0)
    tl.store(out + at, tl.sum(total, axis=0), at < columns)


@triton.jit
def matmul(
    a, b, out, m, n, k, a_stride, b_stride, out_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        left = tl.load(
            a + rows[:, None] * a_stride + (start + depth)[None, :],
            (rows < m)[:, None] & (start + depth < k)[None, :],
            other=0.0,
        )
        right = tl.load(
            b + (start + depth)[:, None] * b_stride + columns[None, :],
            (start + depth < k)[:, None] & (columns < n)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    tl.store(out + rows[:, None] * out_stride + columns[None, :], total, inside)


@triton.jit
def attention(
    q,
    k,
    v,
    out,
    scale,
    n,
    HEAD: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One head of contiguous (heads, n, HEAD) tensors."""
    head = tl.program_id(1).to(tl.int64) * n * HEAD
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    features = tl.arange(0, HEAD)
    query = tl.load(q + head + rows[:, None] * HEAD + features[None, :], (rows < n)[:, None], other=0.0)
    largest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weight = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, HEAD], tl.float32)
    end = tl.minimum(n, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else n
    for start in range(0, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        there = (columns < n)[:, None]
        keys = tl.load(k + head + columns[:, None] * HEAD + features[None, :], there, other=0.0)
        values = tl.load(v + head + columns[:, None] * HEAD + features[None, :], there, other=0.0)
        scores = tl.dot(query, tl.trans(keys)) * scale
        seen = (columns < n)[None, :]
        if CAUSAL:
            seen = seen & (columns[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        now = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp(largest - now)
        powers = tl.exp(scores - now[:, None])
        weight = weight * shrink + tl.sum(powers, axis=1)
        total = tl.dot(powers.to(values.dtype), values, total * shrink[:, None])
        largest = now
    tl.store(
        out + head + rows[:, None] * HEAD + features[None, :], total / weight[:, None], (rows < n)[:, None]
    )


@triton.jit
def histogram(values, counts, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(values + at, inside, other=0)
    tl.atomic_add(counts + value, 1, inside)
    tl.atomic_add(sums, tl.sum(tl.where(inside, value, 0).to(tl.float32), axis=0))
    tl.atomic_max(counts + tl.num_programs(0) * 0 + 255, tl.max(tl.where(inside, value, 0), axis=0))


@triton.jit
def out_of_bounds(x):
    tl.store(x + 1_000_000 + tl.arange(0, 64), 1.0)
