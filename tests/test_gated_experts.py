# SPDX-License-Identifier: MIT
"""Grouped products with a fused gate in one launch, as in the first layer of experts."""

import pytest
import torch

import hipkittens
from hipkittens._gated_experts import gated_groups
from hipkittens.activation import GATES, gated_in_torch

TARGETS = ("gfx942", "gfx950")
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


@pytest.fixture(params=TARGETS)
def arch(request):
    with hipkittens.simulate(request.param, checks="all") as run:
        yield request.param
    assert not run.findings


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape, dtype=torch.bfloat16, scale=1.0: (
        torch.randn(shape, generator=generator) * scale
    ).to(dtype)


def ends_of(sizes):
    return torch.tensor(sizes).cumsum(0).to(torch.int32)


def in_double(rows, w, ends, bias, kind="silu", interleaved=False, limit=None):
    """The float64 result; rows past the last group are zero."""
    rows, w = rows.double(), w.double()
    bias = rows.new_zeros(w.shape[:2]) if bias is None else bias.double()
    parts, begin = [], 0
    for group, end in enumerate(ends.tolist()):
        sums = rows[begin:end] @ w[group].T + (bias if bias.dim() == 1 else bias[group])
        if interleaved:
            parts.append(gated_in_torch(sums[:, ::2], kind, limit, other=sums[:, 1::2]))
        else:
            parts.append(gated_in_torch(sums, kind, limit))
        begin = end
    return torch.cat([*parts, rows.new_zeros(len(rows) - begin, w.shape[1] // 2)])


def check_rounded_once(result, reference):
    error = (result.double() - reference).abs()
    allowed = ROUNDING[result.dtype] * reference.abs() + 2e-5 * reference.abs().max()
    assert result.shape == reference.shape and (error <= allowed).all(), (error - allowed).max()


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("kind", GATES)
def test_kinds(arch, draw, dtype, interleaved, kind):
    sizes, n, k = (9, 0, 17, 40), 160, 96
    rows, w = draw(sum(sizes) + 5, k, dtype=dtype), draw(len(sizes), n, k, dtype=dtype, scale=0.1)
    bias, ends = draw(len(sizes), n, dtype=dtype), ends_of(sizes)
    found = gated_groups(rows, w, ends, bias, kind, interleaved, 1.5)
    check_rounded_once(found, in_double(rows, w, ends, bias, kind, interleaved, 1.5))


@pytest.mark.parametrize(
    "sizes, n, k",
    [
        ((1,), 2, 1),
        ((0, 2, 0), 34, 17),
        ((17, 255), 510, 264),
        ((257, 0, 1), 514, 255),
        ((200, 260, 300), 1024, 512),
        (tuple([3] * 70), 64, 40),
    ],
)
def test_sizes(arch, draw, sizes, n, k):
    rows, w, ends = draw(sum(sizes) + 2, k), draw(len(sizes), n, k, scale=k**-0.5), ends_of(sizes)
    for interleaved in (False, True):
        found = gated_groups(rows, w, ends, None, "silu", interleaved, None)
        check_rounded_once(found, in_double(rows, w, ends, None, interleaved=interleaved))


@pytest.mark.parametrize("sizes", ((1500, 0, 1497), (2930, 4, 50)))
def test_large_tiles(draw, sizes):
    """256 by 256, cut in every direction, and of most of which nothing is gated."""
    n, k = 4090, 200
    rows, w, ends = draw(sum(sizes) + 3, k), draw(3, n, k, scale=k**-0.5), ends_of(sizes)
    bias = draw(n).float()
    for device, target in (("MI300X", "gfx942"), ("MI355X", "gfx950")):
        for interleaved in (False, True):
            exact = in_double(rows, w, ends, bias, interleaved=interleaved)
            with hipkittens.timing(device) as run:
                found = gated_groups(rows, w, ends, bias, "silu", interleaved, None)
            check_rounded_once(found, exact)
            assert run.launches[0].kernel == f"hipkittens_gemm_gated_grouped_nt_bf16_256x256x64_{target}"
    with hipkittens.simulate("gfx950", checks="all") as run:
        check_rounded_once(
            gated_groups(rows, w, ends, bias, "silu", False, None), in_double(rows, w, ends, bias)
        )
    assert not run.findings


@pytest.mark.parametrize("interleaved", (False, True))
def test_gradients(arch, draw, interleaved):
    """At most twice the error of PyTorch, which rounds the pre-activation values; the result is the same with and without gradients."""
    sizes, n, k = (20, 0, 33), 128, 72
    tensors = draw(sum(sizes) + 3, k), draw(3, n, k, scale=0.1), draw(3, n)
    ends, grad = ends_of(sizes), draw(sum(sizes) + 3, n // 2)

    def gradients(function, dtype=None):
        leaves = [each.to(dtype or each.dtype).detach().requires_grad_() for each in tensors]
        result = function(*leaves)
        return [result, *torch.autograd.grad(result, leaves, grad.to(result.dtype))]

    def theirs(rows, w, bias):
        parts, begin = [], 0
        for group, end in enumerate(ends.tolist()):
            sums = torch.nn.functional.linear(rows[begin:end], w[group], bias[group])
            gate, other = (sums[:, ::2], sums[:, 1::2]) if interleaved else sums.chunk(2, -1)
            parts.append(torch.nn.functional.silu(gate) * other)
            begin = end
        return torch.cat([*parts, rows.new_zeros(len(rows) - begin, n // 2)])

    found = gradients(lambda rows, w, bias: gated_groups(rows, w, ends, bias, "silu", interleaved, None))
    assert torch.equal(
        found[0], gated_groups(tensors[0], tensors[1], ends, tensors[2], "silu", interleaved, None)
    )
    for mine, other, exact in zip(found, gradients(theirs), gradients(theirs, torch.float64), strict=True):
        mine, other = ((each.double() - exact).abs() for each in (mine, other))
        assert mine.max() <= 2 * other.max() and mine.square().mean() <= 4 * other.square().mean()


GATHERED = [
    # sizes of groups, rows behind them, n, k
    ((1,), 0, 34, 2),
    ((9, 0, 17, 40), 5, 160, 96),
    ((17, 255), 3, 510, 264),
    ((200, 260, 300), 8, 1024, 512),
    (tuple([3] * 70), 2, 64, 40),
]


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("sizes", "behind", "n", "k"), GATHERED, ids=str)
def test_rows_of_tokens(arch, draw, dtype, sizes, behind, n, k):
    """The bits of rows that were gathered first, for tokens and weights of any strides; entries that name no token are zeros."""
    count, tokens, choices = sum(sizes) + behind, 23, 3
    x, w = draw(tokens, k, dtype=dtype), draw(len(sizes), n, k, dtype=dtype, scale=k**-0.5)
    bias, ends = draw(len(sizes), n, dtype=dtype), ends_of(sizes)
    entries = torch.randint(0, tokens * choices, (count,), dtype=torch.int32)
    if count > 4:
        entries[2], entries[3], entries[4] = -1, tokens * choices, 0x7FFFFFFF
    rows = torch.zeros(count, k, dtype=dtype)
    there = (entries >= 0) & (entries < tokens * choices)
    rows[there] = x[entries[there] // choices]
    wide = torch.zeros(tokens, k + 3, dtype=dtype)
    wide[:, 3:] = x
    for interleaved in (False, True):
        expected = gated_groups(rows, w, ends, bias, "silu", interleaved, None)
        for given in (x, wide[:, 3:]):
            found = gated_groups(given, w, ends, bias, "silu", interleaved, None, entries, choices)
            assert torch.equal(found, expected)


def test_rows_of_tokens_in_panels(arch, draw):
    sizes = (20, 0, 33)
    x, w, ends = draw(40, 64), draw(3, 128, 64, scale=0.1), ends_of(sizes)
    entries = torch.randint(0, 40, (60,), dtype=torch.int32)
    expected = gated_groups(x[entries.long()], w, ends, None, "silu", False, None)
    panels = hipkittens.preshuffle(w)
    assert torch.equal(gated_groups(x, panels, ends, None, "silu", False, None, entries, 1), expected)


def test_large_tiles_of_tokens(draw):
    n, k, sizes = 4090, 200, (1500, 0, 1497)
    x, w, ends = draw(700, k), draw(3, n, k, scale=k**-0.5), ends_of(sizes)
    entries = torch.randint(0, 1400, (3000,), dtype=torch.int32)
    for arch in TARGETS:
        with hipkittens.simulate(arch, checks="all") as run:
            found = gated_groups(x, w, ends, None, "silu", False, None, entries, 2)
            assert hipkittens._library.last_kernel().startswith(
                "hipkittens_gemm_gated_grouped_nt_bf16_256x256x64"
            )
            assert torch.equal(
                found, gated_groups(x[entries.long() // 2], w, ends, None, "silu", False, None)
            )
        assert not run.findings


def test_gathered_rows_have_no_gradient(draw):
    x, w, entries = draw(20, 64).requires_grad_(), draw(1, 96, 64), torch.zeros(30, dtype=torch.int32)
    operator = torch.ops.hipkittens.grouped_gated
    options = ends_of((30,)), None, entries, 1, 0, False, 1.0, -1.0, True, torch.bfloat16
    with hipkittens.simulate("gfx950"):
        result, sums = operator(x, w.mT, *options)
        assert result.shape == (30, 48) and sums.shape == (30, 96)
        with pytest.raises(NotImplementedError, match="gathered rows have no gradient"):
            result.sum().backward()
        with pytest.raises(RuntimeError, match="rows of 63 elements are not gathered"):
            operator(x.detach()[:, :63], w[..., :63].mT, *options)


def test_weights_by_columns_are_not_copied(draw):
    """Two launches that read them in place."""
    rows, ends = draw(60, 64), ends_of((30, 30))
    w = draw(2, 64, 96).mT
    with hipkittens.timing("MI300X") as run:
        found = gated_groups(rows, w, ends, None, "silu", False, None)
    assert len(run.launches) == 2
    exact = in_double(rows, w, ends, None)
    assert (found.double() - exact).abs().max() <= 2.0**-7 * exact.abs().max()


def test_an_operator_without_sums_has_no_derivative(draw):
    rows, w = draw(20, 64).requires_grad_(), draw(1, 96, 64)
    operator = torch.ops.hipkittens.grouped_gated
    result, sums = operator(
        rows, w.mT, ends_of((20,)), None, None, 1, 0, False, 1.0, -1.0, False, torch.bfloat16
    )
    assert sums.shape == (0,)
    with pytest.raises(RuntimeError, match="keep_sums=False and is differentiated"):
        result.sum().backward()
