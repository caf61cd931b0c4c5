# SPDX-License-Identifier: MIT
"""attention_merge: two results merged, compared with float64; rows without keys; refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import attention_merge, attention_paged
from hipkittens.merged_attention import merged_in_torch
from hipkittens.operations._attention_paged_problems import draw_paged
from tests.simulated_device import TARGETS

INF, NAN = float("inf"), float("nan")
BOTH = pytest.mark.parametrize("target", TARGETS)


def parts(tokens, heads, size, dtype, scale=3.0):
    generator = torch.Generator().manual_seed(4)
    outs = [torch.randn(tokens, heads, size, generator=generator).to(dtype) for _ in range(2)]
    sums = [torch.randn(heads, tokens, generator=generator) * scale for _ in range(2)]
    return outs[0], sums[0], outs[1], sums[1]


@BOTH
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    "tokens, heads, size", [(1, 1, 8), (2, 3, 64), (17, 5, 72), (255, 1, 128), (257, 8, 256), (0, 4, 64)]
)
def test_beside_float64(target, dtype, tokens, heads, size):
    given = parts(tokens, heads, size, dtype)
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_merge(*given)
    assert run.findings == []
    assert (out.shape, out.dtype, lse.shape, lse.dtype) == (
        given[0].shape,
        dtype,
        (heads, tokens),
        torch.float32,
    )
    exact, sums = merged_in_torch(*(each.double() for each in given))
    torchs, _ = merged_in_torch(*given)
    error, allowed = (out.double() - exact).abs(), (torchs.double() - exact).abs()
    if tokens:
        rounding = 2.0**-23 if dtype == torch.float32 else 0
        assert error.max() <= 2 * allowed.max() + rounding and error.norm() <= 2 * allowed.norm() + rounding
    torch.testing.assert_close(lse.double(), sums, atol=1e-5, rtol=1e-5)


@BOTH
def test_rows_without_keys(target):
    """Their contents are ignored; flash-attn marks them by an LSE of +inf."""
    a, lse_a, b, lse_b = parts(6, 2, 16, torch.bfloat16)
    a[0], a[2], b[1], b[2] = NAN, INF, NAN, NAN
    lse_a[:, 0], lse_a[:, 2], lse_b[:, 1], lse_b[:, 2] = -INF, INF, INF, -INF
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_merge(a, lse_a, b, lse_b)
    assert run.findings == []
    assert torch.equal(out[0], b[0]) and torch.equal(out[1], a[1]) and (out[2] == 0).all()
    assert torch.equal(lse[:, 0], lse_b[:, 0]) and (lse[:, 2] == -INF).all() and out.isfinite().all()


@BOTH
def test_strides(target):
    a, lse_a, b, lse_b = parts(9, 4, 64, torch.bfloat16)
    with hipkittens.simulate(target, checks="all") as run:
        expected = attention_merge(a, lse_a, b, lse_b)
        wide = torch.full((9, 6, 80), NAN, dtype=torch.bfloat16)
        wide[:, 1:5, 2:66], odd = b, torch.full((9, 4, 65), NAN, dtype=torch.bfloat16)
        odd[..., 1:] = a
        found = attention_merge(odd[..., 1:], lse_a.T.contiguous().T, wide[:, 1:5, 2:66], lse_b)
    assert run.findings == []
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])


@BOTH
def test_two_halves_of_a_cache(target):
    """A prefix that a query sees entirely, and the keys after it, compared with all keys at once."""
    problem = draw_paged([200], 2, heads=4, head_dim=64, page=16)
    q, k, v, table, _, _, _ = problem.arguments()

    def of(blocks, length, causal):
        return attention_paged(
            q,
            k,
            v,
            table[:, blocks],
            torch.tensor([length], dtype=torch.int32),
            None,
            2,
            causal=causal,
            return_lse=True,
        )

    with hipkittens.simulate(target):
        whole, sums = attention_paged(*problem.arguments(), return_lse=True)
        first, rest = of(slice(0, 6), 96, False), of(slice(6, 13), 104, True)
        out, lse = attention_merge(*first, *rest)
    torch.testing.assert_close(out, whole, atol=2**-8, rtol=2**-7)
    torch.testing.assert_close(lse, sums, atol=1e-5, rtol=1e-5)


def test_operator_compile_and_torch_backend(monkeypatch, compile_backend):
    given = parts(9, 4, 64, torch.bfloat16)
    with hipkittens.simulate("gfx950"):
        torch.library.opcheck(torch.ops.hipkittens.attention_merge.default, given)
        found = torch.compile(attention_merge, fullgraph=True, backend=compile_backend)(*given)
        expected = attention_merge(*given)
    assert all(torch.equal(*each) for each in zip(found, expected, strict=True))
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    torch.testing.assert_close(attention_merge(*given), expected)


REFUSED = [
    (lambda a, x, b, y: (a, x, b.half(), y), TypeError, "out_a is torch.bfloat16 and out_b is torch.float16; convert one"),
    (lambda a, x, b, y: (a.double(), x, b, y), TypeError, "out_a is torch.float64; allowed: torch.bfloat16"),
    (lambda a, x, b, y: (a[..., :60], x, b[..., :60], y), ValueError, r"out_a has shape \(9, 4, 60\); it must be \(tokens, heads, D\)"),
    (lambda a, x, b, y: (a[0], x, b, y), ValueError, r"out_a has shape \(4, 64\)"),
    (lambda a, x, b, y: (a, x, b[:8], y), ValueError, r"out_a has shape \(9, 4, 64\) and out_b \(8, 4, 64\); both have the same"),
    (lambda a, x, b, y: (a, x.T, b, y), ValueError, r"lse_a has shape \(9, 4\); it must be \(4, 9\)"),
    (lambda a, x, b, y: (a, x, b, y.double()), TypeError, "lse_b is torch.float64; allowed: torch.float32"),
    (lambda a, x, b, y: (a, x, b, None), TypeError, "lse_b is NoneType; it must be a torch.Tensor"),
    (lambda a, x, b, y: (a.requires_grad_(), x, b, y), ValueError, "out_a requires a gradient and gets none"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(change, error, message):
    with hipkittens.simulate("gfx942"), pytest.raises(error, match=message):
        attention_merge(*change(*parts(9, 4, 64, torch.bfloat16)))
