# SPDX-License-Identifier: MIT
"""hipkittens.layer_norm and rms_norm from PyTorch."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import hipkittens
from hipkittens.nn import LayerNorm, Linear, RMSNorm
from tests.oracles.philox import philox

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
layer_norm, rms_norm = hipkittens.layer_norm, hipkittens.rms_norm


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, mean=0.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + mean).to(dtype).requires_grad_(grad)


def close(value, exact, dtype=BF16):
    tolerance = {BF16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-20}[dtype]
    torch.testing.assert_close(value.double(), exact.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 17, 255, 257, 4096, 16384])
def test_both_norms(target, dtype, columns):
    x, weight, bias = (
        draw(*shape, dtype=dtype, seed=i) for i, shape in enumerate([(3, columns), (columns,), (columns,)])
    )
    close(
        layer_norm(x, weight, bias),
        F.layer_norm(x.double(), (columns,), weight.double(), bias.double()),
        dtype,
    )
    close(rms_norm(x, weight), F.rms_norm(x.double(), (columns,), weight.double(), 1e-6), dtype)


def test_a_row_of_one_value_is_its_own_mean(target):
    x = torch.full((4, 40), 300.0, dtype=F16)
    assert torch.equal(layer_norm(x, None), torch.zeros_like(x))
    bias = draw(40, dtype=F16)
    assert torch.equal(layer_norm(x, torch.ones(40, dtype=F16), bias), bias.expand(4, 40))


@pytest.mark.parametrize("mean", [1e2, 1e4, -1e6])
def test_a_large_mean(target, mean):
    """E[x^2] - E[x]^2 in float32 would have no correct digit here."""
    x = draw(6, 1000, dtype=F32, mean=mean)
    exact = F.layer_norm(x.double(), (1000,))
    ours, theirs = (value.double() - exact for value in (layer_norm(x, None), F.layer_norm(x, (1000,))))
    assert ours.abs().max() <= 2 * theirs.abs().max() + 1e-6


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    views = [storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[:, 2], storage[::2, 1:3, ::3, 1:],
             storage.permute(2, 0, 1, 3), storage[0, 0, 0], draw(1, 64).expand(9, 64), storage[:0]]  # fmt: skip
    for x in views:
        assert torch.equal(rms_norm(x, None), rms_norm(x.contiguous(), None))
        residual = draw(*x.shape, seed=3)
        y, z = layer_norm(x, None, residual=residual, return_residual=True)
        assert torch.equal(z, x + residual)
        assert torch.equal(y, layer_norm(z, None))
    columns = draw(40, 12).t()
    assert torch.equal(layer_norm(columns, None), layer_norm(columns.contiguous(), None))


def test_five_dimensions_that_do_not_collapse(target):
    x = draw(3, 3, 3, 3, 16).permute(3, 1, 0, 2, 4)[::2, :, ::2]
    assert torch.equal(layer_norm(x, None), layer_norm(x.contiguous(), None))


def test_offsets_inside_a_storage(target):
    flat = draw(1 + 4 * 33, grad=False)
    for first in (0, 1):
        x = flat[first : first + 4 * 33].view(4, 33)
        assert torch.equal(rms_norm(x, None), rms_norm(x.clone(), None))


def test_the_residual_is_rounded_before_it_is_normalised(target):
    x, residual, weight = draw(5, 300), draw(5, 300, seed=1), draw(300, seed=2)
    y, z = rms_norm(x, weight, residual=residual, return_residual=True)
    assert torch.equal(z, x + residual)
    assert torch.equal(y, rms_norm(z, weight))
    assert rms_norm(x, weight, return_residual=True)[1] is x


@pytest.mark.parametrize("x_dtype", [BF16, F16, F32])
@pytest.mark.parametrize("parameter_dtype", [BF16, F16, F32])
def test_parameters_of_another_dtype(target, x_dtype, parameter_dtype):
    x = draw(9, 72, dtype=x_dtype, grad=True)
    weight, bias = (draw(72, dtype=parameter_dtype, seed=i, grad=True) for i in (1, 2))
    y = layer_norm(x, weight, bias)
    assert y.dtype == x_dtype
    dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))
    assert (dx.dtype, dweight.dtype, dbias.dtype) == (x_dtype, parameter_dtype, parameter_dtype)
    assert torch.equal(dbias, torch.full_like(dbias, 9))
    xhat = F.layer_norm(x.double(), (72,))
    close(dweight, xhat.sum(0), parameter_dtype)


def gradients(function, leaves):
    leaves = [value.detach().requires_grad_() for value in leaves]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weights = [draw(*value.shape, seed=9 + i).to(value.dtype) for i, value in enumerate(outputs)]
    return torch.autograd.grad(outputs, leaves, weights)


@pytest.mark.parametrize("columns", [40, 257, 9000])
def test_gradient_through_both_results(target, columns):
    leaves = [
        draw(4, columns, dtype=F32),
        draw(4, columns, dtype=F32, seed=1),
        draw(columns, dtype=F32, seed=2),
    ]

    def ours(x, residual, weight):
        return rms_norm(x, weight, residual=residual, return_residual=True)

    def exact(x, residual, weight):
        z = x + residual
        return F.rms_norm(z, (columns,), weight, 1e-6), z

    for mine, right in zip(
        gradients(ours, leaves), gradients(exact, [v.double() for v in leaves]), strict=True
    ):
        torch.testing.assert_close(mine.double(), right, rtol=1e-5, atol=1e-5)
    x, residual = (value.detach().requires_grad_() for value in leaves[:2])
    rms_norm(x, leaves[2], residual=residual, return_residual=True)[1].sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x)) and torch.equal(residual.grad, torch.ones_like(x))


@pytest.mark.parametrize("columns", [96, 1030, 8200])
def test_gradients_do_not_depend_on_the_order_of_waves(target, columns):
    leaves = [draw(50, columns), draw(columns, seed=1), draw(columns, seed=2)]
    first = gradients(layer_norm, leaves)
    for seed in range(1, 4):
        with hipkittens.simulate(target, checks=True, seed=seed, threads=1 + seed % 2):
            again = gradients(layer_norm, leaves)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("columns", [24, 700])
def test_more_rows_than_workers(target, columns):
    """1100 rows: workers process several rows each, and all of them count once."""
    x, weight, bias = (
        draw(1100, columns, dtype=F32, grad=True),
        draw(columns, dtype=F32, grad=True),
        draw(columns, dtype=F32, grad=True),
    )
    y = layer_norm(x, weight, bias)
    close(y, F.layer_norm(x.double(), (columns,), weight.double(), bias.double()), F32)
    dweight, dbias = torch.autograd.grad(y, (weight, bias), torch.ones_like(y))
    torch.testing.assert_close(
        dweight.double(), F.layer_norm(x.double(), (columns,)).sum(0), rtol=1e-4, atol=1e-3
    )
    assert torch.equal(dbias, torch.full_like(dbias, 1100))


def test_gradients_of_what_is_asked_for(target):
    x, weight, bias = draw(4, 24), draw(24, grad=True), draw(24)
    layer_norm(x, weight, bias).sum().backward()
    assert weight.grad is not None and x.grad is None and bias.grad is None
    x, parameter = draw(4, 24, grad=True), torch.nn.Parameter(draw(24))
    layer_norm(x, None).sum().backward()
    assert x.grad.shape == (4, 24)
    rms_norm(x, parameter).sum().backward()
    assert parameter.grad.shape == (24,)


def test_gradient_that_is_expanded(target):
    x = draw(6, 40, grad=True)
    (got,) = torch.autograd.grad(layer_norm(x, None).sum(), x)
    assert got.abs().max() < 2.0**-6  # the sum of a normalised row is constant


def test_no_rows(target):
    x, weight = torch.empty(0, 24, requires_grad=True), torch.ones(24, requires_grad=True)
    rms_norm(x, weight).sum().backward()
    assert x.grad.shape == (0, 24) and torch.equal(weight.grad, torch.zeros(24))


def test_double_backward_is_refused(target):
    x = draw(3, 16, grad=True)
    (first,) = torch.autograd.grad(rms_norm(x, None).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        first.sum().backward()


def test_the_oracle_is_philox():
    """Known answers of Random123's kat_vectors: philox4x32 10."""
    assert [int(v) for v in philox((0, 0, 0, 0), (0, 0))] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert [int(v) for v in philox((ones,) * 4, (ones, ones))] == [
        0x408F276D,
        0x41C83B0E,
        0xA20BC7C6,
        0x6D5451FD,
    ]


@pytest.mark.parametrize("columns", [20, 61, 600])
def test_the_mask_is_the_counters_bits(target, columns):
    rows, p, seed = 5, 0.3, torch.tensor([-(2**40) + 77, 12345678912345], dtype=torch.int64)
    x = torch.ones(rows, columns)
    _, z, _, _ = torch.ops.hipkittens.layer_norm(x, None, None, None, 1e-5, p, seed)
    column, row = np.meshgrid(np.arange(columns), np.arange(rows))
    key, offset = (int(v) & (2**64 - 1) for v in seed)
    words = philox((column // 4, row, np.full_like(row, offset & 0xFFFFFFFF), np.full_like(row, offset >> 32)),
                   (key & 0xFFFFFFFF, key >> 32))  # fmt: skip
    bits = np.choose(column % 4, words)
    expected = np.where(bits < int(p * 2**32), 0, np.float32(1 / (1 - p))).astype(np.float32)
    assert np.array_equal(z.numpy(), expected)


def test_dropout_follows_the_generator(target):
    x, residual = torch.ones(64, 512), torch.zeros(64, 512)

    def masked(seed, **options):
        torch.manual_seed(seed)
        return layer_norm(x, None, residual=residual, dropout_p=0.25, return_residual=True, **options)[1]

    first = masked(1)
    assert torch.equal(first, masked(1)) and not torch.equal(first, masked(2))
    assert not torch.equal(first, layer_norm(x, None, dropout_p=0.25, return_residual=True)[1])
    kept = (first != 0).double().mean().item()
    assert abs(kept - 0.75) < 5 * (0.25 * 0.75 / x.numel()) ** 0.5
    assert torch.equal(first[first != 0].unique(), torch.tensor([1 / 0.75], dtype=F32))
    assert abs(first.double().mean().item() - 1) < 0.02
    assert torch.equal(layer_norm(x, None, dropout_p=0.0), layer_norm(x, None))


def test_dropout_backward_rebuilds_the_mask(target):
    x, residual, weight = (draw(7, 90, dtype=F32, grad=True), draw(7, 90, dtype=F32, seed=1, grad=True),
                           draw(90, dtype=F32, seed=2, grad=True))  # fmt: skip
    y, z = layer_norm(x, weight, residual=residual, dropout_p=0.5, return_residual=True)
    factor = ((z - residual) / x).detach().round()
    assert set(factor.unique().tolist()) == {0.0, 2.0}
    dy = draw(7, 90, dtype=F32, seed=5)
    ours = torch.autograd.grad(y, (x, residual, weight), dy)
    leaves = [value.detach().double().requires_grad_() for value in (x, residual, weight)]
    exact = F.layer_norm(leaves[0] * factor.double() + leaves[1], (90,), leaves[2])
    for mine, right in zip(ours, torch.autograd.grad(exact, leaves, dy.double()), strict=True):
        close(mine, right, F32)


class _Statistics(TorchDispatchMode):
    """Records for each norm whether it was asked for statistics; the dispatcher omits arguments equal to their default."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.name() in ("hipkittens::layer_norm", "hipkittens::rms_norm"):
            self.asked.append(args[-1] is not False)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("norm", (layer_norm, rms_norm))
def test_statistics_are_taken_for_a_gradient_only(target, norm):
    x, weight = draw(3, 40, grad=True), draw(40)
    with _Statistics() as calls:
        with torch.no_grad():
            norm(x, weight)
        with torch.inference_mode():
            norm(x, weight)
        norm(x.detach(), weight)
        assert calls.asked == [False] * 3
        norm(x, weight)
        norm(x.detach(), weight, residual=x)
        norm(x.detach(), weight.requires_grad_())
        assert calls.asked[3:] == [True] * 3


@pytest.mark.parametrize("columns", (40, 43))
@pytest.mark.parametrize("dropout_p", (0.0, 0.25))
def test_without_statistics_all_else_is_the_same(target, columns, dropout_p):
    """And a gradient that is requested nevertheless computes them again."""
    x, residual, weight, bias = leaves = [
        draw(*shape, columns, seed=i, grad=True) for i, shape in enumerate(((3,), (3,), (), ()))
    ]
    seed = torch.tensor([5, 7]) if dropout_p else None
    operators = torch.ops.hipkittens
    calls = [
        (operators.layer_norm, (x, residual, weight, bias, 1e-5, dropout_p, seed), leaves),
        (operators.layer_norm, (x, None, weight, bias, 1e-5, dropout_p, seed), [x, weight, bias]),
        (operators.rms_norm, (x, residual, weight, 1e-5), [x, residual, weight]),
        (operators.rms_norm, (x, None, weight, 1e-5), [x, weight]),
    ]
    for operator, inputs, wanted in calls:
        (y, z, *statistics), (other, other_z, *none) = operator(*inputs), operator(*inputs, False)
        assert torch.equal(y, other) and torch.equal(z, other_z)
        assert all(value.shape == (3,) for value in statistics) and all(value.shape == (0,) for value in none)
        gradients = (torch.autograd.grad(result, wanted, torch.ones_like(result)) for result in (y, other))
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_opcheck(target):
    operators = torch.ops.hipkittens
    seed = torch.tensor([5, 7])
    x, x17 = draw(3, 4, 16, grad=True), draw(3, 4, 17, grad=True)
    weight = draw(16, grad=True)
    calls = [
        (operators.layer_norm, (x, None, weight, draw(16, grad=True), 1e-5, 0.0, None)),
        (operators.layer_norm, (x17, draw(3, 4, 17, grad=True), draw(17, dtype=F32, grad=True), None, 1e-5, 0.25, seed)),
        (operators.rms_norm, (x, draw(3, 4, 16, grad=True), weight, 1e-5)),
        (operators.rms_norm, (draw(8), None, None, 1e-5)),
        (operators.layer_norm, (x, x17[..., :16], weight, draw(16, grad=True), 1e-5, 0.0, None, False)),
        (operators.rms_norm, (x, None, weight, 1e-5, False)),
        (operators.norm_backward, (x.detach(), None, x.detach(), draw(16), None, torch.ones(3, 4), 0.0, None, True, False)),
    ]  # fmt: skip
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    weight, bias = draw(24, dtype=F32, grad=True), draw(24, dtype=F32, seed=1, grad=True)

    def block(x, residual):
        y, z = layer_norm(x, weight, bias, residual=residual, return_residual=True)
        return rms_norm(y, weight) + z

    def dropped(x):
        return layer_norm(x, weight, dropout_p=0.5)

    compiled, compiled_dropped = (
        torch.compile(f, fullgraph=True, dynamic=True, backend=compile_backend) for f in (block, dropped)
    )
    for rows in (3, 8):
        inputs = [draw(rows, 24, seed=rows + i, grad=True) for i in range(2)]
        mine, other = compiled(*inputs), block(*inputs)
        assert torch.equal(mine, other)
        for a, b in zip(
            *(torch.autograd.grad(v.float().sum(), (*inputs, weight, bias)) for v in (mine, other)),
            strict=True,
        ):
            assert torch.equal(a, b)
        assert compiled_dropped(inputs[0]).shape == (rows, 24)


def test_autocast(target):
    x, residual, weight = (
        draw(4, 16, grad=True),
        draw(4, 16, dtype=F32, seed=1, grad=True),
        draw(16, dtype=F32, grad=True),
    )
    with torch.autocast("cpu", BF16):
        y = rms_norm(x, weight, residual=residual)
        assert rms_norm(x, weight).dtype == BF16
    assert y.dtype == F32
    assert [g.dtype for g in torch.autograd.grad(y.sum(), (x, residual, weight))] == [BF16, F32, F32]


def test_meta_tensors():
    x = torch.empty(3, 5, dtype=BF16, device="meta")
    assert layer_norm(x, None).shape == (3, 5) and rms_norm(x, None, return_residual=True)[1] is x


def test_modules(target):
    for ours, theirs in ((LayerNorm(48), torch.nn.LayerNorm(48)), (RMSNorm(48), torch.nn.RMSNorm(48)),
                         (LayerNorm(48, elementwise_affine=False), torch.nn.LayerNorm(48, elementwise_affine=False)),
                         (LayerNorm((48,), 1e-3, bias=False), torch.nn.LayerNorm(48, 1e-3, bias=False))):  # fmt: skip
        assert list(ours.state_dict()) == list(theirs.state_dict())
        ours.load_state_dict(theirs.state_dict())
        x = draw(5, 48, dtype=F32)
        close(ours(x), theirs.double()(x.double()), F32)
    linear = Linear(48, 8, dtype=BF16)
    x = draw(5, 48)
    close(linear(x), F.linear(x.double(), linear.weight.double(), linear.bias.double()))


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: layer_norm([1.0], None), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: layer_norm(X.int(), None), TypeError, "x is torch.int32; allowed"),
    (lambda: rms_norm(X.double(), None), TypeError, "x is torch.float64; allowed"),
    (lambda: rms_norm(X[0, 0], None), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: rms_norm(X.to_sparse(), None), TypeError, "x is sparse"),
    (lambda: rms_norm(torch.zeros(2, 65537), None), ValueError, "rows of x have 65537 elements; allowed: 1 to 65536"),
    (lambda: rms_norm(torch.zeros(2, 0), None), ValueError, "rows of x have 0 elements; allowed: 1 to 65536"),
    (lambda: layer_norm(X, X[0, :7]), ValueError, "weight has shape (7,); it must be (8,)"),
    (lambda: layer_norm(X, None, X[0]), ValueError, "there is a bias and no weight"),
    (lambda: layer_norm(X, X[0], X[0].float()), TypeError, "weight is torch.bfloat16 and bias is torch.float32"),
    (lambda: layer_norm(X, None, residual=X[:3]), ValueError, "residual has shape (3, 8) and x (4, 8)"),
    (lambda: layer_norm(X, None, residual=X.float()), TypeError, "x is torch.bfloat16 and residual is torch.float32"),
    (lambda: layer_norm(X, None, dropout_p=1.0), ValueError, "dropout_p is 1.0; it must be in [0, 1)"),
    (lambda: layer_norm(X, X[0].to("meta")), ValueError, "weight is on meta and x on cpu"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows further apart than 32-bit offsets reach, forward and backward."""
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    x.requires_grad_()
    with hipkittens.simulate("gfx942"):
        y = rms_norm(x, None)
        (dx,) = torch.autograd.grad(y, x, draw(2, 64, seed=1))
        near = x.detach().clone().requires_grad_()
        expected = rms_norm(near, None)
        assert torch.equal(y, expected)
        assert torch.equal(dx, torch.autograd.grad(expected, near, draw(2, 64, seed=1))[0])
