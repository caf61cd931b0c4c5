# SPDX-License-Identifier: MIT
"""hipkittens.activation through the public API; code shared with gated_activation is tested in that operation's tests."""

import math

import pytest
import torch

import hipkittens
from hipkittens import _accuracy, _backend
from hipkittens.activation import ACTIVATIONS, activation, in_torch

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def with_gradient(function, x, dy):
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, dy.to(y.dtype))[0]


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("shape", [(), (1,), (17,), (3, 255), (2, 3, 257), (5, 4104)])
def test_the_error_is_at_most_twice_torchs(target, dtype, kind, shape):
    x, dy = draw(*shape, dtype=dtype, scale=3.0), draw(*shape, dtype=dtype, seed=1)
    ours = with_gradient(lambda x: activation(x, kind), x, dy)
    theirs = with_gradient(lambda x: in_torch(x.float(), kind).to(x.dtype), x, dy)
    exact = with_gradient(lambda x: in_torch(x, kind), x.double(), dy)
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == dtype and mine.shape == shape
        comparison = _accuracy.compare(
            mine.reshape(-1), other.reshape(-1), right.reshape(-1), right.abs().max().item()
        )
        assert comparison.passes, comparison


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_special_floats(target, kind):
    x = torch.tensor(
        [0.0, -0.0, 1e-40, 1e-30, 20.0, -20.0, 104.0, -104.0, 1e6, -1e6, math.inf, -math.inf, math.nan]
    )
    if kind == "gelu":  # PyTorch's vectorised gelu(inf) is NaN
        x = x[~x.isposinf()]
    torch.testing.assert_close(activation(x, kind), in_torch(x, kind), rtol=1e-6, atol=1e-37, equal_nan=True)


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:69],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), storage[:0], draw(40, 12).t(), draw(131)[1:]]  # fmt: skip
    for x in views:
        dy = draw(*x.shape, seed=2)
        pairs = zip(
            with_gradient(lambda x: activation(x, "gelu"), x, dy),
            with_gradient(lambda x: activation(x, "gelu"), x.contiguous(), dy),
            strict=True,
        )
        assert all(torch.equal(a, b) for a, b in pairs)


def test_opcheck(target):
    operators = torch.ops.hipkittens
    x = draw(3, 4, 17).requires_grad_()
    for operator, inputs in (
        (operators.activation, (x, 2)),
        (operators.activation_backward, (draw(3, 8), draw(3, 8), 4)),
    ):
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


def test_meta_tensors():
    assert activation(torch.empty(3, 10, device="meta"), "relu").shape == (3, 10)


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x = draw(3, 10, dtype=F16)
    assert torch.equal(activation(x, "gelu"), in_torch(x.float(), "gelu").half())


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: activation([1.0], "silu"), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: activation(X.double(), "silu"), TypeError, "x is torch.float64; allowed"),
    (lambda: activation(X, "swiglu"), ValueError, "kind is 'swiglu'; allowed: 'silu', 'gelu_tanh', 'gelu', 'relu', 'tanh'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.activation: ")


def test_bad_operands():
    with (
        hipkittens.simulate("gfx950"),
        pytest.raises(RuntimeError, match=r"activation is 5; 0 \.\. 4 are allowed"),
    ):
        torch.ops.hipkittens.activation(X, 5)
