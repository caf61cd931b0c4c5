# SPDX-License-Identifier: MIT
"""hipkittens.aiter's HSTU attention: AITER's argument orders over hipkittens.hstu_attention."""

import pytest
import torch

import hipkittens
from hipkittens import aiter, hstu_attention

TESTED = {"triton_hstu_attention_fwd", "triton_hstu_attention_bwd"}
BF16 = torch.bfloat16


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def problem():
    """q, k, v and the gradient of the result; two sequences and an empty one, with int64 offsets as in AITER's tests."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(100, 2, 64, generator=generator).to(BF16) for _ in range(4)]
    return tensors, torch.tensor([0, 67, 67, 100]), torch.tensor([5, 0, 33])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("max_attn_len, context", [(0, 0), (20, 0), (0, 6), (20, 6)])
@pytest.mark.parametrize("with_targets", [True, False])
def test_forward_and_gradients(target, causal, max_attn_len, context, with_targets):
    (q, k, v, dout), ends, targets = problem()
    targets = targets if with_targets else None
    leaves = [rows.clone().requires_grad_() for rows in (q, k, v)]
    out = hstu_attention(
        *leaves, ends.int(), 80, causal=causal, scale=0.3, num_targets=targets.int() if with_targets else None,
        max_attn_len=max_attn_len, contextual_seq_len=context,
    )  # fmt: skip
    expected = torch.autograd.grad(out, leaves, dout)
    order = torch.tensor([0, 2, 1])
    again = aiter.triton_hstu_attention_fwd(
        80, 0.3, *leaves, ends, causal, targets, max_attn_len, context, order, {"BLOCK_M": 64}
    )
    assert torch.equal(again, out)
    assert all(map(torch.equal, torch.autograd.grad(again, leaves, dout), expected))
    into = [torch.full_like(rows, float("nan")) for rows in (q, k, v)]
    given = aiter.triton_hstu_attention_bwd(
        dout, q, k, v, *into, ends, targets, 80, 0.3, max_attn_len, causal, context, None
    )
    assert all(one is other for one, other in zip(given, into, strict=True))
    assert all(map(torch.equal, into, expected))


def test_gradients_in_pytorch(monkeypatch):
    (q, k, v, dout), ends, targets = problem()
    found = []
    for backend in ("", "torch"):
        if backend:
            monkeypatch.setenv("HIPKITTENS_BACKEND", backend)
        into = [torch.empty_like(rows) for rows in (q, k, v)]
        with hipkittens.simulate("gfx950"):
            aiter.triton_hstu_attention_bwd(dout, q, k, v, *into, ends, targets, 80, 0.3, 20, True, 6, None)
        found.append(into)
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, atol=2e-2, rtol=2e-2)


def test_what_is_refused():
    (q, k, v, dout), ends, targets = problem()
    rows = torch.empty_like(q)

    def backward(*, dout=dout, dq=rows, N=80):
        aiter.triton_hstu_attention_bwd(
            dout, q, k, v, dq, rows, rows, ends, targets, N, 0.3, 0, True, 0, None
        )

    where = "hipkittens.aiter.triton_hstu_attention_bwd: "
    for changed, error, message in (
        ({"dout": dout.half()}, TypeError, "grad_out is torch.float16; allowed: torch.bfloat16"),
        ({"dout": dout[:, :1]}, ValueError, r"grad_out has shape \(100, 1, 64\); that of the result is \(100, 2, 64\)"),
        ({"dq": rows[:3]}, ValueError, r"dq has shape \(3, 2, 64\)"),
        ({"N": 60}, ValueError, "max_seqlen is 60 and the longest sequence of cu_seqlens has 67 rows"),
    ):  # fmt: skip
        with pytest.raises(error, match=where + message):
            backward(**changed)
