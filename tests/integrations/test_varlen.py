# SPDX-License-Identifier: MIT
"""torch.nn.attention.varlen.varlen_attn in unmodified programs: routed to hipkittens, and back to PyTorch when switched off."""

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
    """Bitwise equal to attention_varlen, whose own tests check its accuracy; and PyTorch's semantics."""
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


with_pages = pytest.mark.skipif(
    "block_table" not in inspect.signature(varlen_attention.varlen_attn).parameters,
    reason="this torch's varlen_attn has no caches",
)
USED = torch.tensor([37, 0, 45], dtype=torch.int32)


@with_pages
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (9, 0)])
@pytest.mark.parametrize("splits", [None, 1, 3])
def test_partly_filled_and_paged_caches(window, splits):
    """Both are bitwise equal to packing the keys that are used."""
    q, k, v = (x.detach() for x in inputs(size=64))
    keys = torch.cat([torch.arange(first, first + used) for first, used in zip(ENDS_K, USED, strict=False)])
    ends = torch.tensor([0, *USED]).cumsum(0).int()
    expected, expected_lse = hipkittens.attention_varlen(
        q, k[keys], v[keys], ENDS_Q, ends, 33, 45, window_size=window, return_lse=True
    )
    generator = torch.Generator().manual_seed(1)
    table = torch.randperm(15, generator=generator).int().view(3, 5)  # three more than the longest takes
    paged = torch.full((2, 15, 16, 2, 64), torch.nan, dtype=BF16)
    for i in range(3):
        for j in range(USED[i]):
            for pages, x in zip(paged, (k, v), strict=True):
                pages[table[i, j // 16], j % 16] = x[ENDS_K[i] + j]
    options = {"window_size": window, "num_splits": splits, "enable_gqa": True, "seqused_k": USED}
    aux = varlen_attention.AuxRequest(lse=True)
    with varlen.active():
        filled = varlen_attention.varlen_attn(q, k, v, ENDS_Q, ENDS_K, 33, 45, return_aux=aux, **options)
        in_pages = varlen_attention.varlen_attn(
            q, *paged, ENDS_Q, None, 33, 80, return_aux=aux, block_table=table, **options
        )
    for out, lse in (filled, in_pages):
        assert (out.double() - expected.double()).abs().max() <= 2**-7 * expected.abs().max()
        torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=1e-5)


@with_pages
def test_one_split_is_batch_invariance():
    """Also in one graph. The flag is restored afterwards."""
    q, k, v = (x.detach() for x in inputs())
    with hipkittens.batch_invariant():
        expected = hipkittens.attention_varlen(q, k, v, ENDS_Q, ENDS_K, 33, 45)
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    with varlen.active():
        for call in (attend, compiled):
            assert torch.equal(call(q, k, v, num_splits=1)[0], expected)
    assert not hipkittens.is_batch_invariant()


@with_pages
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_splits": 2}, NotImplementedError, "num_splits is 2; the kernels for packed keys choose it"),
        ({"num_splits": 0}, ValueError, "num_splits is 0; it must be None or at least 1"),
        ({"block_table": USED[:, None]}, ValueError, "block_table is given without seqused_k"),
        ({"seqused_k": USED}, ValueError, "the head size of q is 32"),
    ],
)
def test_what_is_refused(options, error, message):
    q, k, v = (x.detach() for x in inputs())
    if "block_table" in options:
        k, v = k.unsqueeze(0), v.unsqueeze(0)
    with varlen.active(), pytest.raises(error, match=message):
        attend(q, k, v, **options)
    with varlen.active(), pytest.raises(ValueError, match="cu_seq_k is None; only with block_table"):
        varlen_attention.varlen_attn(q, q, q, ENDS_Q, None, 33, 45)
