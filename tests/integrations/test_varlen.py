# SPDX-License-Identifier: MIT
"""torch.nn.attention.varlen.varlen_attn of unmodified programs, sent to hipkittens and back."""

import inspect

import pytest
import torch

varlen_attention = pytest.importorskip("torch.nn.attention.varlen")

import hipkittens  # noqa: E402
from hipkittens.integrations import varlen  # noqa: E402

BF16 = torch.bfloat16
with_windows = pytest.mark.skipif(
    "window_size" not in inspect.signature(varlen_attention.varlen_attn).parameters,
    reason="this torch's varlen_attn has neither windows nor enable_gqa",
)
ENDS_Q = torch.tensor([0, 33, 33, 60], dtype=torch.int32)
ENDS_K = torch.tensor([0, 40, 45, 90], dtype=torch.int32)


@pytest.fixture(autouse=True)
def one_target():
    with hipkittens.simulate("gfx950", checks=True):
        yield
    assert not varlen.is_active()


def inputs(heads=4, key_heads=2, size=32):
    generator = torch.Generator().manual_seed(0)
    shapes = (60, heads, size), (90, key_heads, size), (90, key_heads, size)
    return [torch.randn(shape, generator=generator).to(BF16).requires_grad_() for shape in shapes]


def attend(q, k, v, **options):
    return varlen_attention.varlen_attn(
        q, k, v, ENDS_Q, ENDS_K, 33, 45, return_aux=varlen_attention.AuxRequest(lse=True),
        enable_gqa=True, **options,
    )  # fmt: skip


def one_by_one(q, k, v, window, scale):
    """Every sequence alone, in PyTorch and float64."""
    q, k, v = (x.double() for x in (q, k, v))
    parts = []
    for i in range(3):
        mine, keys = slice(ENDS_Q[i], ENDS_Q[i + 1]), slice(ENDS_K[i], ENDS_K[i + 1])
        rows, columns = mine.stop - mine.start, keys.stop - keys.start
        place = torch.arange(columns)[None] - torch.arange(rows)[:, None] - (columns - rows)
        seen = torch.ones(rows, columns, dtype=torch.bool)
        if window[0] >= 0:
            seen &= place >= -window[0]
        if window[1] >= 0:
            seen &= place <= window[1]
        heads_first = (x.transpose(0, 1) for x in (q[mine], k[keys], v[keys]))
        parts.append(
            torch.nn.functional.scaled_dot_product_attention(
                *heads_first, attn_mask=seen, scale=scale, enable_gqa=True
            ).transpose(0, 1)
        )
    return torch.cat(parts)


def test_the_arguments_of_every_version():
    q, k, v = inputs(heads=2)
    with varlen.active():
        out = varlen_attention.varlen_attn(q, k, v, ENDS_Q, ENDS_K, 33, 45)
    assert torch.equal(out, hipkittens.attention_varlen(q, k, v, ENDS_Q, ENDS_K, 33, 45))
    assert [g.shape for g in torch.autograd.grad(out, (q, k, v), out)] == [q.shape, k.shape, v.shape]


@with_windows
@pytest.mark.parametrize("window, scale", [((-1, -1), None), ((-1, 0), 0.3), ((9, 0), None), ((9, 4), None)])
def test_windows_lengths_and_heads(window, scale):
    """The same bits as attention_varlen, whose own tests hold it to its bar; and PyTorch's meaning."""
    qkv = inputs()
    grad = torch.randn(60, 4, 32, generator=torch.Generator().manual_seed(1)).to(BF16)
    with varlen.active():
        out, lse = attend(*qkv, window_size=window, scale=scale)
    named, named_lse = hipkittens.attention_varlen(
        *qkv, ENDS_Q, ENDS_K, 33, 45, window_size=window, scale=scale, return_lse=True
    )
    expected = one_by_one(*qkv, window, scale)
    assert torch.equal(out, named) and torch.equal(lse, named_lse)
    results = [[x, *torch.autograd.grad(x, qkv, grad.to(x.dtype))] for x in (out, named, expected)]
    for ours, same, exact in zip(*results, strict=True):
        assert torch.equal(ours, same)
        assert (ours.double() - exact).abs().max() < 0.02 * exact.abs().max()


@with_windows
def test_compiled_in_one_graph_and_undone():
    qkv = inputs()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with pytest.raises(NotImplementedError):
        attend(*qkv)  # PyTorch has none on a CPU
    varlen.activate()
    with varlen.active():
        varlen.restore()
        eager, found = attend(*qkv)[0], compiled(*qkv)[0]
        assert torch.equal(eager, found)
        for a, b in zip(*(torch.autograd.grad(x, qkv, x) for x in (eager, found)), strict=True):
            assert torch.equal(a, b)
    with pytest.raises(NotImplementedError):
        attend(*qkv)


@with_windows
@pytest.mark.parametrize(
    "option",
    [
        {"block_table": torch.zeros(3, 1, dtype=torch.int32), "seqused_k": torch.ones(3, dtype=torch.int32)},
        {"seqused_k": torch.ones(3, dtype=torch.int32)},
        {"num_splits": 1},
    ],
)
def test_a_paged_cache_is_refused_by_name(option):
    q, k, v = (x.detach() for x in inputs())
    if "block_table" in option:
        k, v = (x.unsqueeze(0) for x in (k, v))
    with varlen.active(), pytest.raises(NotImplementedError, match=next(iter(option))):
        attend(q, k, v, **option)
