# SPDX-License-Identifier: MIT
"""hipkittens.softmax through the public API."""

import math

import pytest
import torch

import hipkittens
from hipkittens import _accuracy, _backend, softmax

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype).requires_grad_(grad)


def with_gradient(function, x, dy):
    x = x.detach().requires_grad_()
    y = function(x)
    return y.detach(), torch.autograd.grad(y, x, dy.to(y.dtype))[0]


# Every number of lanes and kernel; rows that end inside a lane's eight columns; and rows that exceed every kernel's registers.
COLUMNS = [1, 2, 8, 9, 16, 17, 32, 40, 64, 120, 128, 255, 257, 512, 513, 1000, 2048, 2056, 8193, 20480, 32776]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [*COLUMNS, 131072, 131073, 140008])
def test_the_error_is_at_most_twice_torchs(target, dtype, columns):
    rows = max(2, min(300, 20000 // columns))
    x = draw(rows, columns, dtype=dtype, scale=3.0)
    dy = draw(rows, columns, dtype=dtype, seed=1)
    ours = with_gradient(softmax, x, dy)
    theirs = with_gradient(lambda x: torch.softmax(x, -1), x, dy)
    exact = with_gradient(lambda x: torch.softmax(x, -1), x.double(), dy)
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        assert mine.dtype == dtype
        comparison = _accuracy.compare(mine, other, right, right.abs().max().item())
        assert comparison.passes, comparison


@pytest.mark.parametrize("columns", [5, 64, 257, 2048, 9001, 40000])
def test_the_gradient_of_a_confident_row(target, columns):
    """All but one weight are tiny: dy minus its mean cancels to their terms, and roundings of the sum of products would exceed them."""
    x, dy = draw(20, columns, dtype=F32, scale=0.1), draw(20, columns, dtype=F32, seed=1)
    x[:, columns // 2] += 14 + math.log(columns)
    _, mine = with_gradient(softmax, x, dy)
    _, right = with_gradient(lambda x: torch.softmax(x, -1), x.double(), dy)
    # An exponent of about 20 is rounded to 2^-20.
    assert ((mine - right).abs().amax(-1) <= 2**-18 * right.abs().amax(-1)).all()


@pytest.mark.parametrize("columns", [5, 8, 100, 513, 2048, 9000, 140008])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_infinities_and_nan_as_in_torch(target, columns, dtype):
    x = draw(8, columns, dtype=dtype)
    x[1] = -math.inf
    x[2, columns // 2] = math.nan
    x[3, -1] = math.inf
    x[4, : columns - 1] = -math.inf
    x[5] = torch.finfo(dtype).max
    x[6] = torch.finfo(dtype).min
    x[6, 1] = torch.finfo(dtype).max
    mine, right = softmax(x), torch.softmax(x.float(), -1).to(dtype)
    torch.testing.assert_close(mine, right, equal_nan=True)
    assert mine.isnan().all(-1).tolist() == [False, True, True, True, False, False, False, False]


@pytest.mark.parametrize("columns", [7, 8, 640, 70000])
def test_each_row_is_alone(target, columns):
    """The bits of a row do not depend on the other rows."""
    x = draw(13, columns, dtype=F32)
    together = softmax(x)
    assert all(torch.equal(softmax(x[i : i + 1]), together[i : i + 1]) for i in (0, 5, 12))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_along_any_dimension(target, dim):
    x, dy = draw(5, 40, 9, dtype=F32), draw(5, 40, 9, dtype=F32, seed=1)
    mine = with_gradient(lambda x: softmax(x, dim), x, dy)
    right = with_gradient(lambda x: torch.softmax(x, dim), x.double(), dy)
    for a, b in zip(mine, right, strict=True):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=1e-6)
    assert torch.equal(softmax(x, dim=dim), mine[0])


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:69],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), draw(1, 800).expand(9, 800),
             draw(9, 900)[:, 50:650], draw(4, 5, 600).transpose(0, 1), draw(40, 12).t(), storage[:0],
             draw(3, 3, 3, 3, 16).permute(3, 1, 0, 2, 4)[::2, :, ::2]]  # fmt: skip
    for x in views:
        dy = draw(*x.shape, seed=2)
        mine = with_gradient(softmax, x, dy)
        assert all(
            torch.equal(a, b) for a, b in zip(mine, with_gradient(softmax, x.contiguous(), dy), strict=True)
        )


def test_offsets_inside_a_storage(target):
    flat = draw(1 + 4 * 640)
    for columns in (64, 66, 640):
        for first in (0, 1):
            x = flat[first : first + 4 * columns].view(4, columns)
            # Where a row begins decides which lane has which column, and therefore the order of a sum.
            torch.testing.assert_close(softmax(x), softmax(x.clone()), rtol=2**-7, atol=0)


def test_a_gradient_that_is_expanded(target):
    x = draw(4, 36, dtype=F32, grad=True)
    weights = draw(36, dtype=F32, seed=1)
    (mine,) = torch.autograd.grad((softmax(x) * weights).sum(), x)
    (right,) = torch.autograd.grad((torch.softmax(x.double(), -1) * weights).sum(), x)
    torch.testing.assert_close(mine, right.float())
    (mine,) = torch.autograd.grad(softmax(x).sum(), x)
    torch.testing.assert_close(mine, torch.zeros_like(x), rtol=0, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0,), (2, 0, 4)])
def test_empty(target, shape):
    x = torch.zeros(shape, dtype=BF16, requires_grad=True)
    y = softmax(x)
    assert y.shape == shape
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_a_single_number(target):
    x = torch.tensor(3.0, requires_grad=True)
    y = softmax(x, 0)
    assert y.shape == () and y.item() == 1.0
    assert torch.autograd.grad(y, x)[0].item() == 0.0


def test_double_backward_is_refused(target):
    x = draw(3, 8, dtype=F32, grad=True)
    (dx,) = torch.autograd.grad(softmax(x)[:, 0].sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradient of softmax cannot be differentiated again"):
        dx.sum().backward()


def test_opcheck(target):
    operators = torch.ops.hipkittens
    calls = [
        (operators.softmax, (draw(3, 4, 16, grad=True),)),
        (operators.softmax, (draw(2, 700, dtype=F32, grad=True),)),
        (operators.softmax_backward, (draw(3, 8), draw(3, 8, seed=1))),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        return softmax(x * 2, 0) + softmax(x)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = draw(rows, 24, seed=rows, grad=True)
        mine, other = compiled(x), block(x)
        assert torch.equal(mine, other)
        gradients = [torch.autograd.grad(value.float().square().sum(), x)[0] for value in (mine, other)]
        assert torch.equal(*gradients)


def test_meta_tensors():
    assert softmax(torch.empty(3, 10, device="meta"), 0).shape == (3, 10)


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x = draw(3, 10, dtype=F16)
    assert torch.equal(softmax(x, 0), torch.softmax(x.float(), 0).half())


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: softmax([1.0]), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: softmax(X.int()), TypeError, "x is torch.int32; allowed"),
    (lambda: softmax(X.double()), TypeError, "x is torch.float64; allowed"),
    (lambda: softmax(X.to_sparse()), TypeError, "x is sparse"),
    (lambda: softmax(X, 2), ValueError, "dim is 2 and x has 2 dimensions; allowed: -2 to 1"),
    (lambda: softmax(X[0, 0], 1), ValueError, "dim is 1 and x has 0 dimensions; allowed: -1 to 0"),
    (lambda: softmax(X, 1.0), TypeError, "dim is 1.0; it must be a whole number"),
    (lambda: softmax(X, None), TypeError, "dim is None; it must be a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.softmax: ")


OPERATORS = torch.ops.hipkittens
BAD_OPERANDS = [
    (lambda: OPERATORS.softmax(X[0, 0]), "x needs at least 1 dimension"),
    (lambda: OPERATORS.softmax_backward(X[:2], X), "dy needs the shape of y"),
    (lambda: OPERATORS.softmax_backward(X.half(), X), "dy needs the dtype and the device of y"),
    (lambda: OPERATORS.softmax(torch.zeros(1, dtype=BF16).expand(2**31, 8)), "2147483648 rows of 8 columns; 1 .. "),
    (lambda: OPERATORS.softmax(torch.zeros(1, dtype=BF16).expand(2**22, 1024)), "4194304 rows of 1024 columns; 1 .. "),
    (lambda: OPERATORS.softmax(torch.zeros(1, dtype=BF16).expand(1, 2**28)), "1 rows of 268435456 columns; 1 .. 268435455 columns"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("columns", [64, 640])
def test_more_than_four_gibibytes(columns):
    """Rows further apart than 32-bit offsets reach, forward and backward."""
    storage = torch.zeros(1 + 2**31 + columns, dtype=BF16)
    x = torch.as_strided(storage, (2, columns), (2**31, 1), 1)
    x.copy_(draw(2, columns))
    dy = draw(2, columns, seed=1)
    with hipkittens.simulate("gfx942"):
        far = with_gradient(softmax, x, dy)
        near = with_gradient(softmax, x.clone(), dy)
    for a, b in zip(far, near, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-6, atol=1e-6)
