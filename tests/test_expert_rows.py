# SPDX-License-Identifier: MIT
"""expert_gather and expert_combine: rows to experts and back, their gradients, and refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import expert_combine, expert_gather
from hipkittens.experts import combined_in_torch, gathered_in_torch
from hipkittens.operations._expert_rows_checks import _order_in_torch, order_of
from tests.simulated_device import TARGETS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAN = float("nan")


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def within_twice(found, torchs, exact):
    error, allowed = (found.double() - exact).abs(), (torchs.double() - exact).abs()
    return error.max() <= 2 * allowed.max() and error.norm() <= 2 * allowed.norm()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "tokens, k, columns", [(1, 1, 1), (2, 3, 17), (17, 8, 255), (33, 10, 257), (5, 4, 1032)]
)
def test_rows_and_gradients(target, dtype, tokens, k, columns):
    """Outputs are rounded once; a gradient is the other function, and is therefore bitwise equal to it."""
    with hipkittens.simulate(target, checks="all"):
        entries, places = order_of(tokens, k, 7)
        index = entries, places
        weights = random(tokens, k, seed=2).requires_grad_()
        x = random(tokens, columns, dtype=dtype).requires_grad_()
        y = random(tokens * k, columns, dtype=dtype, seed=3).requires_grad_()
        for given in (None, weights):
            rows = expert_gather(x, *index, given)
            assert torch.equal(rows, gathered_in_torch(x, *index, given))
            out = expert_combine(y, *index, given)
            exact = combined_in_torch(y.double(), *index, given)
            assert within_twice(out, combined_in_torch(y, *index, given), exact)
            grad_out, grad_rows = (
                random(*out.shape, dtype=dtype, seed=4),
                random(*rows.shape, dtype=dtype, seed=5),
            )
            dx, dy = (
                torch.autograd.grad(rows, x, grad_rows, retain_graph=True)[0],
                torch.autograd.grad(out, y, grad_out, retain_graph=True)[0],
            )
            assert torch.equal(dx, expert_combine(grad_rows, *index, given))
            assert torch.equal(dy, expert_gather(grad_out, *index, given))
        for result, grad, reference, argument in (
            (rows, grad_rows, gathered_in_torch, x),
            (out, grad_out, combined_in_torch, y),
        ):
            found = torch.autograd.grad(result, weights, grad)[0]
            wide = weights.detach().double().requires_grad_()
            exact = torch.autograd.grad(
                reference(argument.detach().double(), *index, wide), wide, grad.double()
            )[0]
            sizes = torch.autograd.grad(
                reference(argument.detach().double().abs(), *index, wide), wide, grad.double().abs()
            )[0]
            # A float32 sum of `columns` products.
            assert ((found.double() - exact).abs() <= columns * 2.0**-24 * sizes).all()
            assert (found[places < 0] == 0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_what_no_place_names_is_not_added(target):
    """NaN and infinities in rows without a token, and in a token without rows."""
    with hipkittens.simulate(target, checks="all"):
        entries, places = order_of(9, 4, 3)
        y = random(36, 40)
        y[entries < 0] = NAN
        assert (entries < 0).any() and not expert_combine(y, entries, places).isnan().any()
        y[places[0][places[0] >= 0][0]] = float("inf")
        found = expert_combine(y, entries, places)
        assert found[0].isinf().all() and found[1:].isfinite().all()
        outside = torch.full_like(places, 36)
        assert not expert_combine(y, entries, outside).any()
        assert not expert_gather(y[:9], torch.full_like(entries, 36), places).any()


def test_double_backward():
    """Of the sums and of the gradient of weights, as PyTorch differentiates its own operations twice."""
    entries, places = order_of(3, 2, 3)

    def reference(y, weights):
        return combined_in_torch(y, entries, places, weights)

    y, weights = random(6, 5).requires_grad_(), random(3, 2, seed=2).requires_grad_()
    found, expected = [], []
    for function, results in (
        (lambda *given: expert_combine(given[0], entries, places, given[1]), found),
        (reference, expected),
    ):
        dy, dweights = torch.autograd.grad(
            function(y, weights).square().sum(), (y, weights), create_graph=True
        )
        results += torch.autograd.grad(dy.square().sum() + dweights.pow(3).sum(), (y, weights))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-5)


def test_two_runs_and_permuted_tokens_give_the_same_bytes():
    entries, places = order_of(40, 8, 5)
    y, weights = random(320, 130, dtype=torch.bfloat16), random(40, 8, seed=2)
    first = expert_combine(y, entries, places, weights)
    assert torch.equal(first, expert_combine(y, entries, places, weights))
    turned = torch.randperm(40, generator=torch.Generator().manual_seed(3))
    assert torch.equal(first[turned], expert_combine(y, entries, places[turned], weights[turned]))


def test_strides_offsets_and_empty_tensors():
    entries, places = order_of(6, 2, 4)
    x = random(6, 33, dtype=torch.bfloat16)
    wide = torch.full((6, 70), NAN, dtype=torch.bfloat16)
    for view in (wide[:, 1:34], wide[:, ::2][:, 1:34], torch.empty(33, 6, dtype=torch.bfloat16).T):
        view.copy_(x)
        assert torch.equal(expert_gather(view, entries, places), expert_gather(x, entries, places))
        assert torch.equal(
            expert_combine(view[:, :20], torch.arange(6).int(), places[:3] % 6),
            expert_combine(x[:, :20], torch.arange(6).int(), places[:3] % 6),
        )
    none = torch.empty(0, 2, dtype=torch.int32)
    assert expert_gather(x[:0], none.reshape(-1), none).shape == (0, 33)
    assert expert_combine(x[:0], none.reshape(-1), none).shape == (0, 33)
    assert not expert_combine(x[:0], none.reshape(-1), places).any()
    assert expert_gather(x[:, :0], entries, places).shape == (12, 0)
    assert expert_combine(torch.empty(12, 0), entries, places).shape == (6, 0)


X, Y = random(4, 8), random(8, 8)
ENTRIES, PLACES = torch.arange(8, dtype=torch.int32), torch.arange(8, dtype=torch.int32).view(4, 2)
WRONG = [
    (lambda: expert_gather(X.double(), ENTRIES, PLACES), TypeError, "expert_gather: x is torch.float64; allowed"),
    (lambda: expert_gather(X[0], ENTRIES, PLACES), ValueError, "x has shape (8,); it needs 2 dimensions"),
    (lambda: expert_gather(Y, ENTRIES, PLACES), ValueError, "x has 8 rows and places 4"),
    (lambda: expert_gather(X, ENTRIES.long(), PLACES), TypeError, "entries is torch.int64; allowed: torch.int32"),
    (lambda: expert_gather(X, PLACES, PLACES), ValueError, "entries has shape (4, 2); it needs 1 dimension"),
    (lambda: expert_gather(X, ENTRIES, ENTRIES), ValueError, "places has shape (8,); it needs 2 dimensions, tokens and choices"),
    (lambda: expert_gather(X, ENTRIES, PLACES[:, :0]), ValueError, "a token needs at least 1 choice"),
    (lambda: expert_gather(X, ENTRIES, PLACES, X), ValueError, "weights has shape (4, 8); it needs that of places, (4, 2)"),
    (lambda: expert_gather(X, ENTRIES, PLACES, PLACES), TypeError, "weights is torch.int32; allowed"),
    (lambda: expert_combine(X, ENTRIES, PLACES), ValueError, "expert_combine: y has 4 rows and entries 8"),
    (lambda: expert_combine(Y.to("meta"), ENTRIES, PLACES), ValueError, "entries is on cpu and y on meta"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", WRONG)
def test_bad_input(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)


@pytest.mark.parametrize("name", ("expert_gather", "expert_combine", "expert_dot"))
def test_opcheck(name):
    entries, places = order_of(4, 2, 3)
    operator = getattr(torch.ops.hipkittens, name).default
    x, y = random(4, 16).requires_grad_(), random(8, 16).requires_grad_()
    weights = random(4, 2, seed=2).requires_grad_()
    arguments = {
        "expert_gather": (x, entries, places, weights),
        "expert_combine": (y, entries, places, weights),
        "expert_dot": (y, x, entries, places),
    }
    torch.library.opcheck(operator, arguments[name])


def test_compiled_and_with_pytorch_alone(monkeypatch, compile_backend):
    entries, places = order_of(4, 2, 3)
    x, weights = random(4, 16), random(4, 2, seed=2)

    def both(x):
        return expert_combine(expert_gather(x, entries, places, weights), entries, places, weights)

    expected = both(x)
    assert torch.equal(torch.compile(both, fullgraph=True, backend=compile_backend)(x), expected)
    monkeypatch.setattr("hipkittens._backend.uses_torch", lambda: True)
    assert torch.allclose(both(x), expected, rtol=1e-6)


def test_the_order_of_examples_is_the_sorted_one():
    for found, expected in zip(_order_in_torch(100, 4, 16), order_of(100, 4, 16), strict=True):
        assert torch.equal(found, expected)
