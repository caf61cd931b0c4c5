# SPDX-License-Identifier: MIT
"""hipkittens.gated_activation as a PyTorch user meets it."""

import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _accuracy, _backend, gated_activation

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KINDS = ("silu", "gelu_tanh")


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_(grad)


def reference(x, kind="silu"):
    gate, other = x.chunk(2, -1)
    return (F.silu(gate) if kind == "silu" else F.gelu(gate, approximate="tanh")) * other


def with_gradient(function, x, dy):
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, dy.to(y.dtype))[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 6, 17, 255, 257, 514, 1030, 22016])
def test_the_error_is_at_most_twice_torchs(target, dtype, kind, columns):
    rows = max(3, 2000 // columns) if columns < 22016 else 2
    x = draw(rows, 2 * columns, dtype=dtype, scale=3.0)
    dy = draw(rows, columns, dtype=dtype, seed=1)
    ours = with_gradient(lambda x: gated_activation(x, kind), x, dy)
    theirs = with_gradient(lambda x: reference(x, kind), x, dy)
    exact = with_gradient(lambda x: reference(x, kind), x.double(), dy)
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == dtype
        comparison = _accuracy.compare(mine, other, right, right.abs().max().item())
        assert comparison.passes, comparison


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_every_16_bit_gate(target, dtype, kind):
    """Rounded to nearest but for float32's own error, and infinities and NaNs where PyTorch has them."""
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = torch.stack([gate, torch.ones_like(gate)], -1)
    mine, normal = gated_activation(x, kind)[:, 0].double(), gate.isfinite()
    exact = gate.double()
    # Without the cancellation of 1 + tanh, which float64 has, too.
    exponent = exact if kind == "silu" else math.sqrt(8 / math.pi) * (exact + 0.044715 * exact**3)
    exact = (exact * exponent.sigmoid())[normal]
    limits = torch.finfo(dtype)
    error = (mine[normal] - exact).abs()
    assert (error <= 0.505 * limits.eps * (exact.abs() + limits.tiny)).all()
    theirs = reference(x.float(), kind)[:, 0]
    assert torch.equal(mine[~normal].isnan(), theirs[~normal].isnan())
    assert torch.equal(mine.isposinf()[~normal], theirs.isposinf()[~normal])


@pytest.mark.parametrize("kind", KINDS)
def test_large_and_special_floats(target, kind):
    values = [0.0, -0.0, 1e-40, 1e-30, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 1e6, -1e6, math.inf, math.nan]
    gate = torch.tensor(values)
    x = torch.cat([gate, torch.ones_like(gate)])
    mine, theirs = gated_activation(x, kind), reference(x, kind)
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-37, equal_nan=True)
    x = torch.tensor([-1e6, 1e6, -104.0, 104.0, -20.0, 20.0, 0.0] + [1.0] * 7, requires_grad=True)
    for y in (gated_activation(x, kind), reference(x, kind)):
        mine, theirs = theirs, torch.autograd.grad(y.sum(), x)[0]
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-30)


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:69],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), storage[:0]]  # fmt: skip
    for x in views:
        dy = draw(*x.shape[:-1], x.shape[-1] // 2, seed=2)
        mine = with_gradient(gated_activation, x, dy)
        assert all(
            torch.equal(a, b)
            for a, b in zip(mine, with_gradient(gated_activation, x.contiguous(), dy), strict=True)
        )
    columns = draw(40, 12).t()
    assert torch.equal(gated_activation(columns), gated_activation(columns.contiguous()))
    x = draw(3, 3, 3, 3, 16).permute(3, 1, 0, 2, 4)[::2, :, ::2]
    assert torch.equal(gated_activation(x), gated_activation(x.contiguous()))


def test_offsets_inside_a_storage(target):
    flat = draw(1 + 4 * 66)
    for first in (0, 1):
        x = flat[first : first + 4 * 66].view(4, 66)
        assert torch.equal(gated_activation(x), gated_activation(x.clone()))


def test_a_gradient_that_is_expanded(target):
    x = draw(4, 36, dtype=F32, grad=True)
    (mine,) = torch.autograd.grad(gated_activation(x).sum(), x)
    (right,) = torch.autograd.grad(reference(x.double()).sum(), x)
    torch.testing.assert_close(mine, right.float())


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,), (2, 0, 4)])
def test_empty(target, shape):
    x = torch.zeros(shape, dtype=BF16, requires_grad=True)
    y = gated_activation(x)
    assert y.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_a_parameter(target):
    x = torch.nn.Parameter(draw(3, 8, dtype=F32))
    gated_activation(x).sum().backward()
    assert x.grad.shape == x.shape


def test_double_backward_is_refused(target):
    x = draw(3, 8, dtype=F32, grad=True)
    (dx,) = torch.autograd.grad(gated_activation(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        dx.sum().backward()


def test_opcheck(target):
    operators = torch.ops.hipkittens
    calls = [
        (operators.gated_activation, (draw(3, 4, 16, grad=True), 0)),
        (operators.gated_activation, (draw(5, 34, dtype=F32, grad=True), 1)),
        (operators.gated_activation_backward, (draw(3, 8), draw(3, 16), 0)),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target):
    torch._dynamo.reset()

    def block(x):
        return gated_activation(x * 2, "gelu_tanh") + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True)
    for rows in (3, 8):
        x = draw(rows, 24, seed=rows, grad=True)
        mine, other = compiled(x), block(x)
        assert torch.equal(mine, other)
        gradients = [torch.autograd.grad(value.float().sum(), x)[0] for value in (mine, other)]
        assert torch.equal(*gradients)


def test_meta_tensors():
    assert gated_activation(torch.empty(3, 10, device="meta")).shape == (3, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_torch_backend(monkeypatch, kind):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x = draw(3, 10, dtype=F16)
    assert torch.equal(gated_activation(x, kind), reference(x.float(), kind).half())


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: gated_activation([1.0]), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: gated_activation(X.int()), TypeError, "x is torch.int32; allowed"),
    (lambda: gated_activation(X.double()), TypeError, "x is torch.float64; allowed"),
    (lambda: gated_activation(X.to_sparse()), TypeError, "x is sparse"),
    (lambda: gated_activation(X[0, 0]), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: gated_activation(X[:, 1:]), ValueError, "rows of x have 7 elements; they need an even number"),
    (lambda: gated_activation(X, "gelu"), ValueError, "kind is 'gelu'; allowed: 'silu', 'gelu_tanh'"),
    (lambda: gated_activation(X, 0), ValueError, "kind is 0; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.gated_activation: ")


OPERATORS = torch.ops.hipkittens
BAD_OPERANDS = [
    (lambda: OPERATORS.gated_activation(X, 2), "activation is 2; 0 (silu) and 1 (gelu_tanh) are allowed"),
    (lambda: OPERATORS.gated_activation(X[:, 1:], 0), "x needs rows of an even number of elements"),
    (lambda: OPERATORS.gated_activation_backward(X, X, 0), "dy needs the shape of x with half as many"),
    (lambda: OPERATORS.gated_activation_backward(X[:, :4].half(), X, 0), "dy needs the dtype and the device of x"),
    (lambda: OPERATORS.gated_activation(torch.zeros(1, dtype=BF16).expand(2**32, 8), 0), "4294967296 rows of 4 columns; 1 .. "),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows that lie further apart than 32-bit offsets reach, forward and backward."""
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    dy = draw(2, 32, seed=1)
    with hipkittens.simulate("gfx942"):
        far, near = (with_gradient(gated_activation, value, dy) for value in (x, x.clone()))
        assert all(torch.equal(a, b) for a, b in zip(far, near, strict=True))
