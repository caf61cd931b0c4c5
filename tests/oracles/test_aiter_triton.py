# SPDX-License-Identifier: MIT
"""Our operations compared with the unmodified Triton kernels of AITER's wheel, both on the simulated device."""

import dataclasses

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.hstu import in_torch
from hipkittens.integrations import triton as simulated
from hipkittens.operations._attention_mla_checks import SCALE
from hipkittens.operations._attention_sparse_problems import draw_sparse, sparse_in_float
from hipkittens.operations._mqa_logits_problems import draw_logits, draw_paged_logits
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = [needs_wheel, pytest.mark.filterwarnings("ignore:tl.where")]


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def distinct(rows, columns):
    """Distinct values: theirs leaves the order of equal elements open in long rows."""
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
    """Bitwise equal: both multiply and add in float32 with one rounding."""
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
    """Our error is at most 1.1 times theirs; their lists have -1 only at the end, and 16 heads or a multiple."""
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


CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}


def error(logits, exact):
    seen = exact != -torch.inf
    assert torch.equal(logits != -torch.inf, seen)
    return (logits.double() - exact)[seen].norm()


def test_logits_of_an_indexer(target):
    """Our error is at most 1.1 times theirs. Theirs reads whole blocks of keys from the start of a range on."""
    problem = draw_logits([(0, 256), (0, 200), (0, 1)], 256, heads=32, dtype=CODES[target])
    exact = problem.in_torch(torch.float64)
    with simulated.active():
        theirs = aiter_triton.module("fp8_mqa_logits").fp8_mqa_logits(*problem.arguments())
    assert error(hipkittens.mqa_logits(*problem.arguments()), exact) <= 1.1 * error(theirs, exact)


def theirs_in_pages(problem, columns):
    """The arguments that AITER's launcher, which asks the device for its 8-bit floats, passes to the kernel."""
    batch, tokens, heads, size = problem.q.shape
    # It follows whatever a table contains where there is no key.
    table = problem.block_table.masked_fill(problem.block_table > 1000, 0)
    cache = problem.kv_cache.contiguous().flatten(1)
    keys, scales = cache[:, :size].view(problem.q.dtype), cache[:, size:].view(torch.float32)
    out = torch.full((batch * tokens, columns), -torch.inf)
    with simulated.active():
        aiter_triton.module("_triton_kernels.pa_mqa_logits")._deepgemm_fp8_paged_mqa_logits[
            (batch * tokens * 5,)
        ](
            batch, tokens, heads, problem.q, *problem.q.stride()[:3], keys, keys.stride(0), scales, scales.stride(0),
            problem.context_lens, table, problem.weights, heads, out, columns, columns, table.shape[1],
            ChunkQ=heads, ChunkK=64, HiddenDim=size, SplitKV=5,
        )  # fmt: skip
    return out


def test_logits_of_an_indexer_in_pages(target):
    """One token per sequence: with several, theirs hides keys from the wrong ones."""
    problem = draw_paged_logits([100, 64, 1], heads=32, page=1, dtype=CODES[target], room=0)
    exact = problem.in_torch(torch.float64)
    out = theirs_in_pages(problem, 256)[:, :100]
    out = out.where(torch.arange(100) < problem.context_lens[:, None], -torch.inf)
    ours = hipkittens.mqa_logits_paged(*problem.arguments())
    assert error(ours, exact) <= 1.1 * error(out, exact)


def test_where_logits_of_an_indexer_differ(target):
    """The differences that docs/aiter.md documents: ranges that begin between blocks, and several tokens of a sequence."""
    problem = draw_logits([(0, 512), (5, 200)], 512, heads=32, dtype=CODES[target])
    exact = problem.in_torch(torch.float64)
    with simulated.active():
        theirs = aiter_triton.module("fp8_mqa_logits").fp8_mqa_logits(*problem.arguments())
    assert error(hipkittens.mqa_logits(*problem.arguments()), exact) < 1e-4
    assert (theirs[1] != -torch.inf).nonzero().flatten().tolist() == list(range(5, 205))

    paged = draw_paged_logits([100], 3, heads=32, page=1, dtype=CODES[target], room=0)
    assert (theirs_in_pages(paged, 256)[:, :100] != -torch.inf).sum(1).tolist() == [100, 100, 99]
    ours = hipkittens.mqa_logits_paged(*paged.arguments()) != -torch.inf
    assert ours.sum(1).tolist() == [98, 99, 100]


HSTU_CONFIG = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1}


@pytest.mark.filterwarnings("ignore:Logical operators")
@pytest.mark.parametrize("masks", [{}, {"targets": True}, {"near": 50}, {"context": 6}, {"targets": True, "near": 50, "context": 6}],
                         ids=",".join)  # fmt: skip
def test_hstu_attention(target, masks):
    """Our error is at most 1.1 times theirs, forward and backward, without the locks of their kernel for a few long sequences."""
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad_out = (torch.randn(160, 1, 64, generator=generator).to(torch.bfloat16) for _ in range(4))
    ends, scale = torch.tensor([0, 97, 160]), 0.25
    targets = torch.tensor([20, 3]) if "targets" in masks else None
    near, context = masks.get("near", 0), masks.get("context", 0)
    theirs = aiter_triton.module("hstu_attention")
    with simulated.active():
        out = theirs.triton_hstu_attention_fwd(
            97, scale, q, k, v, ends, True, targets, near, context, None, HSTU_CONFIG
        )
        gradients = theirs.triton_hstu_attention_bwd(
            grad_out, q, k, v, *(torch.empty_like(rows) for rows in (q, k, v)), ends, targets, 97, scale, near, True, context,
            None, {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 1, "SEQUENCE_PARALLEL": False, "UNROLL": 1},
        )  # fmt: skip

    def results(function, leaves):
        result = function(*(leaf.requires_grad_() for leaf in leaves))
        return [result.detach(), *torch.autograd.grad(result, leaves, grad_out.to(result.dtype))]

    counts = None if targets is None else targets.int()
    ours = results(
        lambda *rows: hipkittens.hstu_attention(
            *rows,
            ends.int(),
            97,
            scale=scale,
            num_targets=counts,
            max_attn_len=near,
            contextual_seq_len=context,
        ),
        [q.clone(), k.clone(), v.clone()],
    )
    exact = results(
        lambda *rows: in_torch(*rows, ends, counts, 97, scale, True, near, context),
        [q.double(), k.double(), v.double()],
    )
    for mine, other, right in zip(ours, (out, *gradients), exact, strict=True):
        mine, other = ((each.double() - right).norm() for each in (mine, other))
        assert mine <= 1.1 * other <= 0.02 * right.norm()
