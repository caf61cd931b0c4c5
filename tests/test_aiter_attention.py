# SPDX-License-Identifier: MIT
"""hipkittens.aiter's attention to caches beside float64: prefixes and new tokens."""

import pytest
import torch

import hipkittens
from hipkittens import aiter
from hipkittens.operations._attention_paged_problems import UNUSED

BF16, F16, I32 = torch.bfloat16, torch.float16, torch.int32
TESTED = set()


def of(*names):
    """The names that a test is of."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def starts_of(counts):
    return torch.tensor([0, *counts]).cumsum(0).to(I32)


def exact(q, k, v, causal, cap, scale):
    """Of the tokens [n, heads, D] of one sequence, the last of whose keys are their own, in q's dtype."""
    group = q.shape[1] // k.shape[1]
    k, v = (each.repeat_interleave(group, 1).transpose(0, 1) for each in (k, v))
    scores = scale * (q.transpose(0, 1) @ k.mT)
    if cap:
        scores = cap * torch.tanh(scores / cap)
    if causal:
        n, keys = scores.shape[1:]
        scores = scores.masked_fill(~torch.ones(n, keys, dtype=torch.bool).tril(keys - n), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def within(out, wide, narrow):
    """Error at most twice that of a float32 result that is rounded once, largest and root mean square."""
    mine, allowed = ((each.double() - wide).abs() for each in (out, narrow.to(out.dtype)))
    assert out.isfinite().all() and mine.max() <= 2 * allowed.max() and mine.norm() <= 2 * allowed.norm()


@of("extend_attention_fwd")
@pytest.mark.parametrize(
    "dtype, head_dim, heads, key_heads", [(BF16, 64, 8, 2), (F16, 128, 5, 5), (BF16, 256, 4, 1)]
)
@pytest.mark.parametrize("causal, cap, scale", [(True, 0.0, None), (False, 4.0, 0.3)])
def test_extend_attention(target, dtype, head_dim, heads, key_heads, causal, cap, scale):
    """Prefixes of rows in no order, among rows of NaN; one of no keys, and a sequence of no tokens."""
    before, counts = [70, 0, 33, 5, 1], [3, 17, 0, 1, 2]
    starts, ends = starts_of(before), starts_of(counts)
    rows = torch.randperm(sum(before) + 20, generator=torch.Generator().manual_seed(1))[: sum(before)]
    buffers = [
        torch.full((sum(before) + 20, key_heads, head_dim), float("nan"), dtype=dtype) for _ in range(2)
    ]
    for number, buffer in enumerate(buffers):
        buffer[rows] = draw(sum(before), key_heads, head_dim, dtype=dtype, seed=number + 2)
    # As AITER's callers have it, behind a list there may be room.
    indices = torch.cat((rows, torch.tensor([UNUSED] * 3)))
    q = draw(sum(counts), heads, head_dim, dtype=dtype, seed=5)
    new = [draw(sum(counts), key_heads, head_dim, dtype=dtype, seed=seed) for seed in (6, 7)]
    out = torch.full_like(q, float("nan"))
    call = (q, *new, out, *buffers, ends, starts, indices)
    options = {"sm_scale": scale, "logit_cap": cap}
    assert aiter.extend_attention_fwd(*call, None, causal, None, max(counts), **options) is None
    results = []
    for wide in (torch.float64, torch.float32):
        result = torch.empty(q.shape, dtype=wide)
        for b in range(len(counts)):
            mine, theirs = slice(*ends[b : b + 2]), rows[slice(*starts[b : b + 2])]
            k, v = (
                torch.cat((buffer[theirs], each[mine])).to(wide)
                for buffer, each in zip(buffers, new, strict=True)
            )
            result[mine] = exact(q[mine].to(wide), k, v, causal, cap, scale or head_dim**-0.5)
        results.append(result)
    within(out, *results)
    with pytest.raises(NotImplementedError, match="extend_attention_fwd: custom_mask is given"):
        aiter.extend_attention_fwd(*call, torch.ones(1), causal, starts, max(counts))
    with pytest.raises(ValueError, match="extend_attention_fwd: o_extend has shape"):
        aiter.extend_attention_fwd(*call[:3], out[:1], *call[4:], None, causal, None, max(counts))
