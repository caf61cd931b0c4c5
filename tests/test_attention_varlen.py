# SPDX-License-Identifier: MIT
"""hipkittens.attention_varlen: packed sequences give the results of each sequence alone, with batch_invariant bit for bit."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hipkittens

TARGETS = ("gfx942", "gfx950")
BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def packed(lengths_q, lengths_k, heads, key_heads, size, dtype=BF16, seed=0):
    """q, k, v and the gradient of the output; offsets of the sequences; the longest length."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [
        torch.randn(sum(lengths), count, size, generator=generator).to(dtype)
        for lengths, count in (
            (lengths_q, heads),
            (lengths_k, key_heads),
            (lengths_k, key_heads),
            (lengths_q, heads),
        )
    ]
    first = [
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    ]
    return *tensors, (*first, max(lengths_q), max(lengths_k))


def one_by_one(q, k, v, grad_out, lengths_q, lengths_k, **options):
    """attention of each sequence: out, lse and gradients, packed again."""
    parts = []
    for q_b, k_b, v_b, grad_b in zip(
        q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), grad_out.split(lengths_q), strict=True
    ):
        leaves = [tensor.detach()[None].requires_grad_() for tensor in (q_b, k_b, v_b)]
        out, lse = hipkittens.attention(*leaves, return_lse=True, **options)
        out.backward(grad_b[None])
        parts.append((out[0].detach(), lse[0].detach(), *(leaf.grad[0] for leaf in leaves)))
    out, lse, *grads = zip(*parts, strict=True)
    return torch.cat(out), torch.cat(lse, dim=1), *(torch.cat(grad) for grad in grads)


CASES = [
    # lengths_q, lengths_k, heads, key heads, head size, options
    ((17, 1, 130), (17, 1, 130), 2, 2, 64, {"causal": True}),
    ((2, 0, 257, 64), (255, 3, 17, 0), 6, 2, 128, {}),
    ((70, 128, 33), (70, 200, 1), 4, 1, 40, {"window_size": (20, 5), "scale": -0.2}),
    ((5, 100), (300, 2), 5, 1, 136, {"causal": True, "window_size": (64, -1)}),
]


@pytest.mark.parametrize("invariant", (True, False), ids=("invariant", "default"))
@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
@pytest.mark.parametrize("lengths_q, lengths_k, heads, key_heads, size, options", CASES)
def test_equals_each_sequence_by_itself(
    target, lengths_q, lengths_k, heads, key_heads, size, options, dtype, invariant
):
    q, k, v, grad_out, sequences = packed(lengths_q, lengths_k, heads, key_heads, size, dtype)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    with hipkittens.batch_invariant(invariant):
        out, lse = hipkittens.attention_varlen(*leaves, *sequences, return_lse=True, **options)
        out.backward(grad_out)
        expected = one_by_one(q, k, v, grad_out, lengths_q, lengths_k, **options)
    for name, ours, theirs in zip(
        ("out", "lse", "dq", "dk", "dv"), (out, lse, *(leaf.grad for leaf in leaves)), expected, strict=True
    ):
        if invariant:
            assert torch.equal(ours, theirs), name
        else:  # a short sequence alone may have another kernel, or another number of splits
            assert torch.equal(ours.isfinite(), theirs.isfinite()), name
            finite = theirs.isfinite()
            allowed = 4 * torch.finfo(theirs.dtype).eps * theirs[finite].abs().max()
            assert (ours[finite] - theirs[finite]).abs().max() <= allowed, name


def test_a_batch_without_queries(target):
    q, k, v, grad_out, sequences = packed((0, 0), (40, 3), 4, 2, 64)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out, lse = hipkittens.attention_varlen(*leaves, *sequences, return_lse=True, causal=True)
    out.backward(grad_out)
    assert out.shape == q.shape == (0, 4, 64) and lse.shape == (4, 0)
    assert not any(leaf.grad.any() for leaf in leaves)


def test_longest_may_be_more_than_needed(target):
    q, k, v, _, (first_q, first_k, *_) = packed((9, 40), (9, 40), 2, 1, 32)
    out = hipkittens.attention_varlen(q, k, v, first_q, first_k, 40, 40, causal=True)
    assert torch.equal(hipkittens.attention_varlen(q, k, v, first_q, first_k, 900, 512, causal=True), out)


def test_strided_rows_and_the_gradient_of_the_lse(target):
    q, k, v, _, sequences = packed((9, 70), (30, 65), 4, 2, 64)
    wide = torch.full((79, 3, 4, 64), float("nan"), dtype=BF16)
    wide[:, 1] = q
    results = []
    for query in (wide[:, 1], q):
        leaf = query.detach().requires_grad_()
        _, lse = hipkittens.attention_varlen(leaf, k, v, *sequences, return_lse=True)
        lse.sin().sum().backward()
        results.append((lse, leaf.grad))
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


def test_opcheck(target):
    q, k, v, _, sequences = packed((9, 3), (5, 17), 4, 2, 16)
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    operator = torch.ops.hipkittens.attention_varlen_forward.default
    results = torch.library.opcheck(operator, (*leaves, *sequences, 0.2, True, 4, -1))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(q, k, v, *sequences):
        return hipkittens.attention_varlen(torch.relu(q), k, v, *sequences, causal=True) * 2

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for lengths in ((9, 20), (40, 2)):
        q, k, v, grad_out, sequences = packed(lengths, lengths, 4, 2, 16)
        gradients = []
        for function in (compiled, block):
            leaf = q.detach().requires_grad_()
            out = function(leaf, k, v, *sequences)
            out.backward(grad_out)
            gradients.append((out.detach(), leaf.grad))
        for ours, theirs in zip(*gradients, strict=True):
            assert torch.equal(ours, theirs)


def test_flop_count(target):
    q, k, v, _, sequences = packed((10, 4), (30, 7), 4, 2, 32)
    with FlopCounterMode(display=False) as counter:
        hipkittens.attention_varlen(q.requires_grad_(), k, v, *sequences).sum().backward()
    assert counter.get_total_flops() == (4 + 10) * 4 * 32 * (10 * 30 + 4 * 7)


def test_what_is_refused():
    q, k, v, _, (first_q, first_k, longest_q, longest_k) = packed((4, 6), (3, 8), 4, 2, 16)

    def refused(error, match, *, q=q, first_q=first_q, first_k=first_k, longest_q=longest_q, **options):
        with pytest.raises(error, match=match):
            hipkittens.attention_varlen(q, k, v, first_q, first_k, longest_q, longest_k, **options)

    refused(ValueError, "q has shape .* 3 dimensions", q=q[None])
    refused(ValueError, "cu_seqlens_q is torch.int64", first_q=first_q.long())
    refused(ValueError, r"cu_seqlens_k is \[0, 3, 12\]; it must rise from 0 to the 11 rows of k",
            first_k=torch.tensor([0, 3, 12], dtype=torch.int32))  # fmt: skip
    refused(
        ValueError, r"cu_seqlens_q is \[0, 11, 10\]", first_q=torch.tensor([0, 11, 10], dtype=torch.int32)
    )
    refused(
        ValueError,
        "cu_seqlens_q has 2 entries and cu_seqlens_k 3",
        first_q=first_q[::2].contiguous(),
        longest_q=10,
    )
    refused(ValueError, "max_seqlen_q is 5 and the longest sequence of cu_seqlens_q has 6", longest_q=5)
    refused(TypeError, "max_seqlen_q is float", longest_q=6.0)
    refused(TypeError, "cu_seqlens_q is list", first_q=[0, 4, 10])
    refused(ValueError, "dropout_p is 1.5", dropout_p=1.5)
