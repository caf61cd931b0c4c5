# SPDX-License-Identifier: MIT
"""matmul over random shapes, strides, offsets and batches: integer values, so that the result must be exact."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hipkittens

SIZES = st.one_of(st.integers(1, 9), st.integers(10, 140))


@st.composite
def stored(draw, batch, rows, columns, dtype, seed):
    """A batch of rows x columns integers inside a buffer of NaN, at random strides."""
    order = draw(st.permutations(range(len(batch) + 2)))
    sizes = [*batch, rows, columns]
    strides, extent = [0] * len(sizes), 1
    for axis in order:  # innermost first
        strides[axis] = extent * draw(st.sampled_from([1, 1, 1, 2]))
        extent = strides[axis] * sizes[axis] + draw(st.sampled_from([0, 0, 1, 2, 8]))
    offset = draw(st.integers(0, 9))
    buffer = torch.full((offset + extent + 8,), float("nan"), dtype=dtype)
    view = buffer.as_strided(sizes, strides, offset)
    view.copy_(torch.randint(-4, 5, sizes, generator=torch.Generator().manual_seed(seed)))
    return view


@st.composite
def problems(draw):
    m, n, k = draw(SIZES), draw(SIZES), draw(SIZES)
    batch = draw(st.sampled_from([(), (), (1,), (3,), (2, 2)]))
    dtype = draw(st.sampled_from([torch.bfloat16, torch.float16]))
    a = draw(stored(draw(st.sampled_from([batch, ()])), m, k, dtype, 1))
    b = draw(stored(batch, k, n, dtype, 2))
    bias = draw(st.sampled_from([None, torch.float32, dtype]))
    bias = None if bias is None else torch.arange(n).remainder(7).to(bias)
    return draw(st.sampled_from(["gfx942", "gfx950"])), a, b, bias, draw(st.integers(0, 3))


@given(problems())
@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_exact(problem):
    target, a, b, bias, seed = problem
    with hipkittens.simulate(target, checks=True, seed=seed):
        result = hipkittens.matmul(a, b, bias=bias, out_dtype=torch.float32)
    expected = a.double() @ b.double() + (0 if bias is None else bias.double())
    assert torch.equal(result.double(), expected)
