# SPDX-License-Identifier: MIT
"""Ours beside the unmodified Triton kernels of AITER's wheel, both on the simulated device."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import triton as simulated
from hipkittens.operations._attention_mla_checks import SCALE
from hipkittens.operations._attention_sparse_problems import draw_sparse, sparse_in_float
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = [needs_wheel, pytest.mark.filterwarnings("ignore:tl.where")]


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def distinct(rows, columns):
    """Theirs leaves the order of equal elements open in long rows."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.stack([torch.randperm(columns, generator=generator) for _ in range(rows)]).float() - columns / 2
    )


@pytest.mark.parametrize(("columns", "k"), [(100, 3), (1024, 32), (2048, 32), (5000, 50)])
def test_topk(target, columns, k):
    x = distinct(3, columns)
    with simulated.active():
        theirs = aiter_triton.module("topk").topk(x, k)
    for mine, other in zip(hipkittens.topk(x, k), theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("columns", [1, 2, 17, 128, 1000, 8192, 40000])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_softmax(target, columns, dtype):
    """Our error, relative to each result, is at most 1.1 times theirs."""
    rows = max(20, min(400, 40000 // columns))
    x = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(0)) * 3).to(dtype)
    with simulated.active():
        theirs = aiter_triton.module("softmax").softmax(x)
    exact = torch.softmax(x.double(), -1)
    mine, other = (((y.double() - exact) / exact).norm() for y in (hipkittens.softmax(x), theirs))
    assert mine <= 1.1 * other


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_mul_add(target, dtype):
    """Equal to the bit: both multiply and add in float32 with one rounding."""
    x, a, b = (
        torch.randn(3, 700, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in range(3)
    )
    theirs = aiter_triton.module("fused_mul_add").fused_mul_add
    for factor, summand in ((a, b), (a, 0.5), (2.0, b), (a[0, :1], b[0, :1])):
        out = torch.empty_like(x)
        with simulated.active():
            theirs(x, factor, summand, out)
        assert torch.equal(hipkittens.mul_add(x, factor, summand), out)


def test_sparse_latent_attention(target):
    """Our error is at most 1.1 times theirs; their lists have -1 at the end alone, and 16 heads or a multiple."""
    problem = draw_sparse([32, 20, 1], 32, heads=16)
    keys = problem.kv_cache.shape[0] * problem.kv_cache.shape[1]
    indices = torch.full_like(problem.indices, -1)
    for row, listed in zip(indices, problem.indices, strict=True):
        taken = listed[(listed >= 0) & (listed < keys)]
        row[: len(taken)] = taken
    cache = problem.kv_cache.nan_to_num(0.0).contiguous()
    problem = dataclasses.replace(problem, kv_cache=cache, indices=indices)
    ends, lengths = torch.arange(4, dtype=torch.int32), torch.full((3,), keys, dtype=torch.int32)
    table = torch.arange(cache.shape[0], dtype=torch.int32).repeat(3, 1)
    out = torch.zeros(3, 16, 512, dtype=torch.bfloat16)
    with simulated.active():
        aiter_triton.module("unified_attention_sparse_mla").unified_attention_sparse_mla(
            problem.q, cache.unsqueeze(2), out, ends, 1, lengths, keys, SCALE, indices, table, 512
        )
    exact, _ = sparse_in_float(problem, torch.float64, scale=SCALE)
    ours = hipkittens.attention_mla_sparse(*problem.arguments(), scale=SCALE)
    mine, other = ((each.double() - exact).norm() for each in (ours, out))
    assert mine <= 1.1 * other
