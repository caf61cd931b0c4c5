# SPDX-License-Identifier: MIT
"""hipkittens.mul_add through the public API."""

import math

import pytest
import torch

import hipkittens
from hipkittens import _backend, mul_add

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_(grad)


def exactly(x, a, b):
    """Computed in float64, where a product of floats is exact, then rounded to float32 and to x's dtype."""
    a, b = (
        value.double() if isinstance(value, torch.Tensor) else float(torch.tensor(value, dtype=F32))
        for value in (a, b)
    )
    return (a * x.double() + b).float().to(x.dtype).reshape(x.shape)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 17, 255, 257, 514, 4096])
def test_every_source(target, dtype, columns):
    shape = (5, columns)
    x = draw(*shape, dtype=dtype)
    sources = [
        lambda seed: 0.3 + seed,
        lambda seed: draw(1, dtype=dtype, seed=seed),
        lambda seed: draw(1, 1, dtype=F32, seed=seed),
        lambda seed: draw(*shape, dtype=dtype, seed=seed),
    ]
    for a in sources:
        for b in sources:
            mine, right = mul_add(x, a(1), b(2)), exactly(x, a(1), b(2))
            assert mine.dtype == dtype and mine.shape == shape
            if dtype == F32:  # the rounding of the double itself
                torch.testing.assert_close(mine, right, rtol=2**-23, atol=0)
            else:
                assert torch.equal(mine, right)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("size", ["one", "each"])
def test_gradients(target, dtype, size):
    shape = (7, 130)
    of_size = (1,) if size == "one" else shape
    x, a, b = (draw(*s, dtype=dtype, seed=i, grad=True) for i, s in enumerate((shape, of_size, of_size)))
    dy = draw(*shape, dtype=dtype, seed=4)
    mine = torch.autograd.grad(mul_add(x, a, b), (x, a, b), dy)
    right = torch.autograd.grad(a.double() * x.double() + b.double(), (x, a, b), dy.double())
    for found, expected, leaf in zip(mine, right, (x, a, b), strict=True):
        assert found.dtype == dtype and found.shape == leaf.shape
        torch.testing.assert_close(found, expected, rtol=2e-6 if dtype == F32 else 0, atol=0)


def test_gradients_of_float32_scalars(target):
    x, a, b = draw(3, 40, grad=True), draw(1, dtype=F32, grad=True), torch.tensor(0.25, requires_grad=True)
    found = torch.autograd.grad(mul_add(x, a, b).sum(), (a, b))
    assert [value.dtype for value in found] == [F32, F32] and found[1].shape == ()
    torch.testing.assert_close(found[0], x.double().sum().float().reshape(1))
    assert found[1].item() == 120


def test_second_derivatives(target):
    x, a = draw(4, 9, dtype=F32, grad=True), draw(4, 9, dtype=F32, seed=1, grad=True)
    (dx,) = torch.autograd.grad(mul_add(x, a, 1.0).square().sum(), x, create_graph=True)
    mine = torch.autograd.grad(dx.sum(), (x, a))
    (dx,) = torch.autograd.grad((a * x + 1).square().sum(), x, create_graph=True)
    torch.testing.assert_close(mine, torch.autograd.grad(dx.sum(), (x, a)))


def test_into_a_tensor(target):
    x, a, b = (draw(6, 35, seed=seed) for seed in range(3))
    expected = mul_add(x, a, b)
    out = torch.empty_like(x)
    assert mul_add(x, a, b, out) is out and torch.equal(out, expected)
    for into in range(3):
        given = [x.clone(), a.clone(), b.clone()]
        assert torch.equal(mul_add(*given, out=given[into]), expected)
        assert torch.equal(given[into], expected)
    odd = torch.empty(1 + 6 * 35, dtype=BF16)[1:].view(6, 35)
    assert torch.equal(mul_add(x, a, b, out=odd), expected)
    wide = torch.cat((x, x), -1)
    assert torch.equal(mul_add(wide[:, 35:], a, 0.5, out=out), mul_add(x, a, 0.5))


def test_strides_and_offsets(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:69],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), storage[:0], draw(40, 12).t(),
             draw(1 + 4 * 66)[1:].view(4, 66), draw(3, 3, 3, 3, 16).permute(3, 1, 0, 2, 4)[::2, :, ::2]]  # fmt: skip
    for x in views:
        a = draw(*x.shape, seed=2)
        assert torch.equal(mul_add(x, a, 2.0), mul_add(x.contiguous(), a, 2.0))
        assert torch.equal(mul_add(a, x, x), mul_add(a, x.contiguous(), x.contiguous()))


@pytest.mark.parametrize("shape", [(), (0,), (0, 8), (3, 0), (1,)])
def test_small_shapes(target, shape):
    x = draw(*shape, dtype=F32).reshape(shape).requires_grad_()
    y = mul_add(x, 2.0, torch.ones(1))
    assert y.shape == shape and torch.equal(y, 2 * x + 1)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full(shape, 2.0))


def test_not_finite(target):
    x = torch.tensor([math.inf, -math.inf, math.nan, 3e38, 0.0, -0.0])
    mine = mul_add(x, torch.tensor([0.0, 2.0, 1.0, 2.0, math.inf, 1.0]), -1e38)
    assert mine.isnan().tolist() == [True, False, True, False, True, False]
    assert mine[1] == -math.inf and mine[3] == math.inf and mine[5] == torch.tensor(-1e38)


def test_opcheck(target):
    operators = torch.ops.hipkittens
    x = draw(3, 4, 16, grad=True)
    calls = [
        (operators.mul_add, (x, draw(3, 4, 16, seed=1, grad=True), draw(1, dtype=F32, grad=True), 0.0, 0.0)),
        (operators.mul_add, (x, None, draw(3, 4, 16, seed=1), 2.0, 0.0)),
        (operators.mul_add_into, (draw(5, 8), None, draw(1), 2.0, 0.0, torch.zeros(5, 8, dtype=BF16))),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x, a):
        return mul_add(x * 2, a, 0.5) + 1

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x, a = draw(rows, 24, seed=rows, grad=True), draw(rows, 24, seed=1, grad=True)
        mine, other = compiled(x, a), block(x, a)
        assert torch.equal(mine, other)
        for found, right in zip(
            *(torch.autograd.grad(value.float().sum(), (x, a)) for value in (mine, other)), strict=True
        ):
            assert torch.equal(found, right)


def test_meta_tensors():
    assert mul_add(torch.empty(3, 10, device="meta"), 2, 1).shape == (3, 10)


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x, a = draw(3, 10, dtype=F16), draw(1, dtype=F32)
    assert torch.equal(mul_add(x, a, 1.5), (a * x.float() + 1.5).half())
    assert mul_add(x, 2, x, out=x) is x


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: mul_add([1.0], 1, 1), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: mul_add(X.int(), 1, 1), TypeError, "x is torch.int32; allowed"),
    (lambda: mul_add(X, "2", 1), TypeError, "a is '2'; it must be a number"),
    (lambda: mul_add(X, 1, None), TypeError, "b is None; it must be a number"),
    (lambda: mul_add(X, X[0], 1), ValueError, "a has shape (8,) and x (4, 8); it needs one element or x's shape"),
    (lambda: mul_add(X, 1, X.float()), TypeError, "b is torch.float32; allowed: torch.bfloat16"),
    (lambda: mul_add(X, X[0, :1].half(), 1), TypeError, "a is torch.float16; allowed: torch.bfloat16, torch.float32"),
    (lambda: mul_add(X, 1, 1, out=X[:2]), ValueError, "out has shape (2, 8)"),
    (lambda: mul_add(X, 1, 1, out=X.t().contiguous().t()), ValueError, "out needs that shape, dense"),
    (lambda: mul_add(X, 1, 1, out=X.float()), TypeError, "out is torch.float32; allowed: torch.bfloat16"),
    (lambda: mul_add(X, X.clone().requires_grad_(), 1, out=X), RuntimeError, "out takes no part in derivatives"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.mul_add: ")


OPERATORS = torch.ops.hipkittens
FLAT = torch.zeros(64, dtype=BF16)
BAD_OPERANDS = [
    (lambda: OPERATORS.mul_add(X, X[:2], None, 0.0, 1.0), "a needs the shape and dtype of x, or one element"),
    (lambda: OPERATORS.mul_add(X, None, X[0, :1].half(), 0.0, 1.0), "b needs the shape and dtype of x, or one element"),
    (lambda: OPERATORS.mul_add_into(X, None, None, 0.0, 1.0, X[:2]), "out needs to be dense, of the shape"),
    (lambda: OPERATORS.mul_add_into(FLAT[:32], None, None, 2.0, 1.0, FLAT[1:33]), "out shares some of its memory with x"),
    (lambda: OPERATORS.mul_add_into(X, None, FLAT[:32].view(4, 8), 2.0, 1.0, FLAT[8:40].view(4, 8)), "out shares some of its memory with b"),
    (lambda: OPERATORS.mul_add_into(X, FLAT[:2].view(F32), None, 0.0, 1.0, FLAT[:32].view(4, 8)), "out shares some of its memory with a"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
