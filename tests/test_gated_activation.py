# SPDX-License-Identifier: MIT
"""hipkittens.gated_activation through the public API."""

import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _accuracy, _backend, gated_activation

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
KINDS = ("silu", "gelu_tanh", "gelu", "relu", "tanh", "swiglu")


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_(grad)


def reference(x, kind="silu"):
    gate, other = x.chunk(2, -1)
    if kind == "swiglu":
        gate, other = gate.clamp(max=7.0), other.clamp(-7.0, 7.0) + 1
        return gate * torch.sigmoid(1.702 * gate) * other
    activated = {
        "silu": F.silu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "gelu": F.gelu,
        "relu": F.relu,
        "tanh": torch.tanh,
    }[kind](gate)
    return activated * other


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
    """Rounded to nearest up to float32's own error, with infinities and NaNs where PyTorch has them."""
    gate = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    x = torch.stack([gate, torch.ones_like(gate)], -1)
    mine, normal = gated_activation(x, kind)[:, 0].double(), gate.isfinite()
    exact = gate.double()
    # Without the cancellation of 1 + tanh and 1 + erf, which float64 suffers from, too.
    exact = {
        "silu": lambda x: x * x.sigmoid(),
        "gelu_tanh": lambda x: x * (math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)).sigmoid(),
        "gelu": lambda x: x / 2 * torch.special.erfc(-x / math.sqrt(2)),
        "relu": F.relu,
        "tanh": torch.tanh,
        "swiglu": lambda x: x.clamp(max=7) * (1.702 * x.clamp(max=7)).sigmoid() * 2,
    }[kind](exact)[normal]
    limits = torch.finfo(dtype)
    error = (mine[normal] - exact).abs()
    assert (error <= 0.505 * limits.eps * (exact.abs() + limits.tiny)).all()
    theirs = reference(x.float(), kind)[:, 0]
    assert torch.equal(mine[~normal].isnan(), theirs[~normal].isnan())
    assert torch.equal(mine.isposinf()[~normal], theirs.isposinf()[~normal])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (17,), (3, 257), (2, 5, 136)])
def test_gate_and_other_apart(target, kind, shape):
    """Bitwise equal to passing one tensor that holds both, including the gradients."""
    gate, other, dy = (draw(*shape, seed=seed) for seed in range(3))
    if not shape:
        gate, other, dy = (value.reshape(()) for value in (gate, other, dy))
    leaves = [gate.requires_grad_(), other.requires_grad_()]
    y = gated_activation(gate, kind, other=other)
    mine = [y, *torch.autograd.grad(y, leaves, dy)]
    row = shape or (1,)
    together = torch.cat((gate.reshape(row), other.reshape(row)), -1)
    right, dx = with_gradient(lambda x: gated_activation(x, kind), together, dy.reshape(row))
    assert all(torch.equal(a, b.reshape(shape)) for a, b in zip(mine, (right, *dx.chunk(2, -1)), strict=True))
    if len(shape) > 1:
        strided = [value.detach().transpose(0, -1) for value in (gate, other)]
        assert torch.equal(gated_activation(strided[0], kind, other=strided[1]), y.transpose(0, -1))
        wide = torch.cat((other, gate, other), -1).detach()
        inside = wide[..., shape[-1] : 2 * shape[-1]]
        assert torch.equal(gated_activation(inside, kind, other=other), y)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 17, 257, 514])
def test_bias(target, dtype, columns, apart):
    """The sum with the bias is not rounded, and the bias's gradient is a sum in float32."""
    rows = 40
    x = draw(rows, 2 * columns, dtype=dtype, scale=2.0)
    bias, dy = draw(2 * columns, dtype=dtype, seed=1), draw(rows, columns, dtype=dtype, seed=2)

    def gradients(function, x, bias):
        x, bias = (value.detach().requires_grad_() for value in (x, bias))
        y = function(x, bias)
        return [y.detach(), *torch.autograd.grad(y, (x, bias), dy.to(y.dtype))]

    def ours(x, bias):
        if not apart:
            return gated_activation(x, "swiglu", bias=bias)
        gate, other = x.chunk(2, -1)
        return gated_activation(gate, "swiglu", other=other, bias=bias)

    def theirs(x, bias):
        return reference(x + bias, "swiglu")

    mine = gradients(ours, x, bias)
    other, exact = gradients(theirs, x, bias), gradients(theirs, x.double(), bias.double())
    for a, b, right in zip(mine, other, exact, strict=True):
        assert a.dtype == dtype
        comparison = _accuracy.compare(a, b, right, right.abs().max().item())
        assert comparison.passes, comparison
    again = gradients(ours, x, bias)
    assert all(torch.equal(a, b) for a, b in zip(mine, again, strict=True))


def test_a_bias_that_is_strided_odd_or_of_no_rows(target):
    x, bias = draw(3, 5, 26), draw(26, seed=1)
    right = gated_activation(x, bias=bias)
    for same in (bias.repeat_interleave(3)[::3], torch.cat((bias[:1], bias))[1:]):
        assert torch.equal(gated_activation(x, bias=same), right)
    inside = torch.cat((draw(3, 5, 1), x, draw(3, 5, 1)), -1)[..., 1:-1]
    assert torch.equal(gated_activation(inside, bias=bias), right)
    gate, other = (torch.nn.functional.pad(part, (0, 1))[..., :13] for part in x.chunk(2, -1))
    assert torch.equal(gated_activation(gate, other=other, bias=bias), right)
    bias = bias.requires_grad_()
    (gradient,) = torch.autograd.grad(gated_activation(x[:0], bias=bias).sum(), bias)
    assert torch.equal(gradient, torch.zeros_like(bias))
    (gradient,) = torch.autograd.grad(gated_activation(x[0, 0], bias=bias).sum(), bias)
    assert gradient.shape == bias.shape


@pytest.mark.parametrize("options", [{"limit": 1.5}, {"alpha": 2.5}, {"alpha": 0.5, "limit": 0.25}])
@pytest.mark.parametrize("kind", ["silu", "swiglu", "gelu"])
def test_limit_and_alpha(target, kind, options):
    if kind == "gelu":
        options = {"limit": 1.5}
    x, dy = draw(5, 2 * 130, dtype=F32, scale=2.0), draw(5, 130, dtype=F32, seed=1)
    x[0, 3], x[1, 140] = math.nan, math.nan
    alpha = options.get("alpha", 1.702 if kind == "swiglu" else 1.0)
    limit = options.get("limit", 7.0 if kind == "swiglu" else math.inf)

    def theirs(x):
        gate, other = x[:, :130].clamp(max=limit), x[:, 130:].clamp(-limit, limit)
        gated = F.gelu(gate) if kind == "gelu" else gate * torch.sigmoid(alpha * gate)
        return gated * (other + 1 if kind == "swiglu" else other)

    mine = with_gradient(lambda x: gated_activation(x, kind, **options), x, dy)
    right = with_gradient(theirs, x.double(), dy)
    for a, b in zip(mine, right, strict=True):
        # PyTorch's clamp gives NaN the gradient 0.
        there = ~(a.isnan() | b.isnan()) & (~x.isnan() if a.shape == x.shape else True)
        assert there.sum() >= there.numel() - 4 and (b.isnan() <= a.isnan()).all()
        assert (a - b)[there].abs().max() <= 1e-6 * b[there].abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_large_and_special_floats(target, kind):
    values = [0.0, -0.0, 1e-40, 1e-30, 20.0, -20.0, 88.0, -88.0, 104.0, -104.0, 1e6, -1e6, math.inf, math.nan]
    gate = torch.tensor(values[:-2] + values[-1:] if kind == "gelu" else values)  # torch's gelu(inf) is NaN
    x = torch.cat([gate, torch.ones_like(gate)])
    # In float64, where 1 + erf and 1 - tanh^2 cancel only for larger arguments.
    mine, right = gated_activation(x, kind), reference(x.double(), kind).float()
    torch.testing.assert_close(
        mine, right, rtol=1e-6, atol=1e-14 if kind == "gelu" else 1e-37, equal_nan=True
    )
    gate = [-1e6, 1e6, -104.0, 104.0, -20.0, 20.0, 0.0]
    x = torch.tensor(gate + [1.0] * 7, requires_grad=True)
    mine, right = (
        torch.autograd.grad(y.sum(), x)[0] for y in (gated_activation(x, kind), reference(x.double(), kind))
    )
    torch.testing.assert_close(mine, right.float(), rtol=1e-6, atol=1e-14)


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
        (operators.gated_activation, (draw(3, 4, 16, grad=True), None, None, 0, 1.0, math.inf)),
        (
            operators.gated_activation,
            (draw(5, 34, dtype=F32, grad=True), None, draw(34, dtype=F32, grad=True), 5, 1.7, 7.0),
        ),
        (
            operators.gated_activation,
            (draw(3, 17, grad=True), draw(3, 17, seed=1, grad=True), None, 2, 1.0, 9.0),
        ),
        (
            operators.gated_activation_backward,
            (draw(3, 8), draw(3, 8), draw(3, 8), draw(16), 3, 1.0, math.inf),
        ),
        (operators.gated_activation_backward, (draw(3, 8), draw(3, 16), None, None, 0, 1.0, math.inf)),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    bias = draw(24, seed=9)

    def block(x):
        return gated_activation(x * 2, "gelu_tanh", bias=bias) + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
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
    x, bias = draw(3, 10, dtype=F16), draw(10, dtype=F16, seed=1)
    assert torch.equal(gated_activation(x, kind), reference(x.float(), kind).half())
    assert torch.equal(gated_activation(x, kind, bias=bias), reference(x.float() + bias.float(), kind).half())


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: gated_activation([1.0]), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: gated_activation(X.int()), TypeError, "x is torch.int32; allowed"),
    (lambda: gated_activation(X.double()), TypeError, "x is torch.float64; allowed"),
    (lambda: gated_activation(X.to_sparse()), TypeError, "x is sparse"),
    (lambda: gated_activation(X[0, 0]), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: gated_activation(X[:, 1:]), ValueError, "rows of x have 7 elements; they need an even number"),
    (lambda: gated_activation(X, "mish"), ValueError, "kind is 'mish'; allowed: 'silu', 'gelu_tanh'"),
    (lambda: gated_activation(X, other=X[:2]), ValueError, "other has shape (2, 8) and x (4, 8); they must be equal"),
    (lambda: gated_activation(X, other=X.half()), TypeError, "other is torch.float16; allowed: torch.bfloat16"),
    (lambda: gated_activation(X, bias=[1.0]), TypeError, "bias is list; it must be a torch.Tensor"),
    (lambda: gated_activation(X, bias=X[0].float()), TypeError, "bias is torch.float32; allowed: torch.bfloat16"),
    (lambda: gated_activation(X, bias=X[0, :4]), ValueError, "bias has shape (4,); it must be (8,)"),
    (lambda: gated_activation(X, other=X, bias=X[0]), ValueError, "bias has shape (8,); it must be (16,)"),
    (lambda: gated_activation(X[0, 0], other=X[0, 0], bias=X[0, :2]), ValueError, "x has shape () and there is a bias"),
    (lambda: gated_activation(X, limit=0), ValueError, "limit is 0; it must be above 0, or None"),
    (lambda: gated_activation(X, limit="7"), TypeError, "limit is '7'; it must be a number"),
    (lambda: gated_activation(X, "gelu", alpha=1.7), ValueError, "alpha is 1.7, and kind 'gelu' has none; 'silu' and 'swiglu'"),
    (lambda: gated_activation(X, alpha=math.inf), ValueError, "alpha is inf; it must be finite"),
    (lambda: gated_activation(X, 0), ValueError, "kind is 0; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.gated_activation: ")


OPERATORS = torch.ops.hipkittens
BAD_OPERANDS = [
    (lambda: OPERATORS.gated_activation(X, None, None, 6, 1.0, 1.0), "activation is 6; 0 .. 5 are allowed"),
    (lambda: OPERATORS.gated_activation(X[:, 1:], None, None, 0, 1.0, 1.0), "x needs rows of an even number of elements"),
    (lambda: OPERATORS.gated_activation_backward(X, X, None, None, 0, 1.0, 1.0), "dy needs the shape of x with half as many"),
    (lambda: OPERATORS.gated_activation_backward(X[:, :4].half(), X, None, None, 0, 1.0, 1.0), "dy needs the dtype and the device of x"),
    (lambda: OPERATORS.gated_activation(torch.zeros(1, dtype=BF16).expand(2**32, 8), None, None, 0, 1.0, 1.0), "4294967296 rows of 4 columns; 1 .. "),
    (lambda: OPERATORS.gated_activation(X, None, X[0, :4], 0, 1.0, 1.0), "bias needs one dimension with the elements"),
    (lambda: OPERATORS.gated_activation(X, None, X[0].half(), 0, 1.0, 1.0), "bias needs the dtype and the device of x"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows further apart than 32-bit offsets reach, forward and backward."""
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    dy = draw(2, 32, seed=1)
    with hipkittens.simulate("gfx942"):
        far, near = (with_gradient(gated_activation, value, dy) for value in (x, x.clone()))
        assert all(torch.equal(a, b) for a, b in zip(far, near, strict=True))
