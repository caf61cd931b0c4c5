# SPDX-License-Identifier: MIT
"""hipkittens.attention with few queries and many keys: the keys are split, and the result is as accurate and as reproducible as without."""

import pytest
import torch

import hipkittens
from hipkittens import _simulator
from tests.test_attention import BF16, F16, assert_parity, tensors

TARGETS = ("gfx942", "gfx950")


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def was_split(rows):
    """Whether the last launch merged splits: 16 rows per workgroup, no matrix products."""
    report = hipkittens.simulate.report()
    return report["mfma_instructions"] == 0 and report["workgroups"] == -(-rows // 16)


@pytest.mark.parametrize(
    ("batch", "n_q", "n_k", "heads", "key_heads", "size", "dtype", "options"),
    [
        (1, 1, 2048, 8, 2, 128, BF16, {}),
        (2, 1, 1500, 4, 4, 64, F16, {"causal": True}),
        (1, 33, 1999, 3, 1, 80, BF16, {"causal": True}),
        (1, 200, 1300, 2, 2, 64, F16, {"window": (900, 40)}),
        (1, 5, 1027, 2, 1, 256, BF16, {"scale": -0.1}),
    ],
)
def test_parity(target, batch, n_q, n_k, heads, key_heads, size, dtype, options):
    assert_parity(*tensors(batch, n_q, n_k, heads, key_heads, size, dtype), **options)
    assert was_split(batch * heads * n_q)


def loaded_bytes(call):
    """Bytes loaded per tensor, for each launch of the call."""
    _simulator.record_launches(True)
    try:
        call()
        launches = list(_simulator.recorded_launches())
    finally:
        _simulator.record_launches(True)  # releases the records
        _simulator.record_launches(False)
    return [{name: loaded for name, loaded, *_ in launch["regions"]} for launch in launches]


@pytest.mark.parametrize(("n_k", "size"), [(500, 64), (500, 128), (500, 256), (16384, 128)])
def test_keys_are_read_once_for_a_group(target, n_k, size):
    """Decode with 8 query heads per key head; with split keys, the partial results are read as well."""
    q, k, v = tensors(2, 1, n_k, 16, 2, size)
    cache = k.nbytes + v.nbytes
    forward, *combine = loaded_bytes(lambda: hipkittens.attention(q, k, v, causal=True))
    assert forward["k"] == k.nbytes and forward["v"] == v.nbytes
    assert sum(forward.values()) <= 1.02 * cache
    assert len(combine) == (n_k > 500)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window_size": (30, 2)}])
def test_packed_groups(target, options):
    """Sequences of few queries, whose rows are (query, head) pairs; each gives the results it gives alone."""
    lengths_q, lengths_k = (1, 2, 0, 5, 17), (255, 1, 70, 257, 17)
    q, _, _ = tensors(1, sum(lengths_q), 1, 10, 2, 72)
    _, k, v = tensors(1, 1, sum(lengths_k), 10, 2, 72, seed=1)
    first_q, first_k = (
        torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    )
    out, lse = hipkittens.attention_varlen(
        q[0], k[0], v[0], first_q, first_k, 17, 257, return_lse=True, **options
    )
    pieces = zip(q[0].split(lengths_q), k[0].split(lengths_k), v[0].split(lengths_k), strict=True)
    begin = 0
    for q_b, k_b, v_b in pieces:
        if len(q_b) == 0:
            continue
        theirs = hipkittens.attention(q_b[None], k_b[None], v_b[None], return_lse=True, **options)
        assert torch.equal(out[begin : begin + len(q_b)], theirs[0][0])
        assert torch.equal(lse[:, begin : begin + len(q_b)], theirs[1][0])
        begin += len(q_b)


def test_short_keys_are_not_split(target):
    hipkittens.attention(*tensors(1, 1, 500, 2, 2, 64))
    assert not was_split(2)


def test_repeated_runs_are_equal(target):
    q, k, v = tensors(2, 3, 2500, 4, 2, 64)
    first = hipkittens.attention(q, k, v, causal=True, return_lse=True)
    assert was_split(2 * 4 * 3)
    for options in ({"seed": 9, "threads": 1}, {"seed": 4, "threads": 2}):
        with hipkittens.simulate(target, **options):
            again = hipkittens.attention(q, k, v, causal=True, return_lse=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(again, first, strict=True))


def test_strided_rows(target):
    q, k, v = tensors(1, 2, 2000, 4, 2, 40)
    expected = hipkittens.attention(q, k, v)
    wide = torch.full((1, 4, 2000, 2, 46), float("nan"), dtype=BF16)
    wide[:, 1, ..., 2:-4], wide[:, 2, ..., 2:-4] = k, v
    assert torch.equal(hipkittens.attention(q, wide[:, 1, ..., 2:-4], wide[:, 2, ..., 2:-4]), expected)


def test_packed_sequences(target):
    """Of different lengths, one of them without keys and one without queries; each compared with PyTorch separately."""
    lengths_q, lengths_k = (1, 2, 0, 40), (1900, 0, 70, 1200)
    q, _, _ = tensors(1, sum(lengths_q), 1, 4, 2, 64)
    _, k, v = tensors(1, 1, sum(lengths_k), 4, 2, 64, seed=1)
    first_q, first_k = (
        torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    )
    out, lse = hipkittens.attention_varlen(
        q[0], k[0], v[0], first_q, first_k, 40, 1900, causal=True, return_lse=True
    )
    assert was_split(4 * sum(lengths_q))
    begin = 0
    for q_b, k_b, v_b in zip(
        q[0].split(lengths_q), k[0].split(lengths_k), v[0].split(lengths_k), strict=True
    ):
        if len(q_b) == 0:
            continue
        ours = out[begin : begin + len(q_b)], lse[:, begin : begin + len(q_b)]
        theirs = hipkittens.attention(q_b[None], k_b[None], v_b[None], causal=True, return_lse=True)
        # One rounding of each, from sums in another order.
        assert torch.allclose(ours[0].float(), theirs[0][0].float(), rtol=2**-7, atol=1e-3)
        assert torch.allclose(ours[1], theirs[1][0], rtol=1e-6, atol=1e-6)
        begin += len(q_b)


def test_gradients(target):
    """The backward uses the merged LSE like any other."""
    q, k, v = tensors(1, 3, 1100, 2, 1, 64)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    out = hipkittens.attention(*leaves)
    assert was_split(2 * 3)
    out.float().square().sum().backward()
    exact = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    torch.nn.functional.scaled_dot_product_attention(
        *(tensor.transpose(1, 2) for tensor in exact), enable_gqa=True
    ).square().sum().backward()
    for ours, theirs in zip(leaves, exact, strict=True):
        error = (ours.grad.double() - theirs.grad).abs().max() / theirs.grad.abs().max()
        assert error < 2**-6
