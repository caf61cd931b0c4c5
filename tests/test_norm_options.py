# SPDX-License-Identifier: MIT
"""Options of layer_norm and rms_norm: gates, padding, Gemma's weight, rounding points."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import layer_norm, rms_norm

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
COLUMNS = (1, 2, 17, 128, 255, 257, 512, 1040, 2050, 4096, 8192, 8200)


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, mean=0.0, grad=False):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) + mean).to(dtype).requires_grad_(grad)


def own(x, weight, bias=None, *, centred, residual=None, x_bias=None, gate=None, gemma=False, eps=1e-5,
        round_before_weight=False, round_residual=True, dtype=None):  # fmt: skip
    """PyTorch's operations, each of which rounds to its tensors' dtype. dtype: the rounding applied in float64."""
    dtype = x.dtype if dtype is None else dtype

    def rounded(value):
        return value + (value.to(dtype).to(value.dtype) - value).detach()

    z = x if x_bias is None else x + x_bias
    z = z if residual is None else z + residual
    returned = rounded(z)
    z = returned if round_residual else z
    y = F.layer_norm(z, z.shape[-1:], eps=eps) if centred else F.rms_norm(z, z.shape[-1:], eps=eps)
    if round_before_weight:
        y = rounded(y)
    if weight is not None:
        y = y * (weight + 1 if gemma else weight)
    if bias is not None:
        y = y + bias
    return (y if gate is None else y * F.silu(gate)), returned


def operands(columns, dtype, centred, rows=3):
    shapes = {
        "x": (rows, columns),
        "residual": (rows, columns),
        "gate": (rows, columns),
        "weight": (columns,),
    }
    if centred:
        shapes |= {"bias": (columns,), "x_bias": (columns,)}
    return {name: draw(*shape, dtype=dtype, seed=i) for i, (name, shape) in enumerate(shapes.items())}


def assert_within(mine, theirs, exact, what, dtype):
    """At most twice PyTorch's own error. Where that is small by luck, half a unit in the last place of the sums of absolute values
    that make up results of normal numbers, at least 1."""
    unit = {BF16: 2.0**-9, F16: 2.0**-12, F32: 2.0**-22}[dtype] * max(exact.abs().max().item(), 1.0)
    for norm in (lambda v: v.abs().max().item(), lambda v: v.square().mean().sqrt().item()):
        ours, own_error = norm(mine.double() - exact), norm(theirs.double() - exact)
        assert ours <= 2 * own_error + unit, (what, ours, own_error, unit)


OPTIONS = ({}, {"gemma": True}, {"round_before_weight": True}, {"round_residual": False},
           {"gemma": True, "round_before_weight": True, "round_residual": False})  # fmt: skip
WITHOUT = ((), ("residual",), ("gate",), ("residual", "gate", "x_bias"), ("gate", "bias"))


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("centred", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("columns", COLUMNS)
def test_values_and_gradients(target, columns, centred, dtype):
    for number, (options, without) in enumerate(itertools.product(OPTIONS, WITHOUT)):
        if (number + columns) % 4:  # over all columns and dtypes every pair comes up
            continue
        inputs = {
            name: value for name, value in operands(columns, dtype, centred).items() if name not in without
        }
        if not options and not inputs.keys() & {"gate", "x_bias"}:
            continue
        norm = layer_norm if centred else rms_norm
        gradients = [draw(3, columns, dtype=dtype, seed=8 + i) for i in range(2)]

        def results(function, kind, inputs=inputs, gradients=gradients, **extra):
            leaves = {name: value.detach().to(kind).requires_grad_() for name, value in inputs.items()}
            outputs = function(**leaves, **extra)
            found = torch.autograd.grad(outputs, list(leaves.values()), [g.to(kind) for g in gradients])
            return dict(zip(("y", "sum", *leaves), (*outputs, *found), strict=True))

        mine = results(norm, dtype, eps=1e-5, return_residual=True, **options)
        theirs = results(own, dtype, centred=centred, **options)
        exact = results(own, torch.float64, centred=centred, dtype=dtype, **options)
        # Documented: gradients are those without that rounding.
        smooth = options | {"round_before_weight": False}
        unrounded = results(own, torch.float64, centred=centred, dtype=dtype, **smooth)
        exact = unrounded | {"y": exact["y"]}
        for name, value in mine.items():
            assert value.dtype == dtype
            assert_within(value.detach(), theirs[name].detach(), exact[name].detach(), (name, options, without), dtype)  # fmt: skip


@pytest.mark.parametrize("columns", [1, 40, 257, 9000])
def test_options_that_change_nothing_change_no_value(target, columns):
    x, weight, residual = draw(4, columns), draw(columns, seed=1), draw(4, columns, seed=2)
    usual, z = rms_norm(x, weight, residual=residual, return_residual=True)
    padded, same = rms_norm(x, weight, residual=residual, return_residual=True, pad_to=columns)
    if columns > 1:
        assert torch.equal(z, same) and torch.equal(usual, padded)
    # A sum that is exact is the same before and after rounding.
    whole, other = ((value * 4).round() for value in (x, residual))
    assert torch.equal(
        rms_norm(whole, weight, residual=other, round_residual=False, pad_to=columns + 7)[:, :columns],
        rms_norm(whole, weight, residual=other, pad_to=columns + 7)[:, :columns],
    )
    assert torch.equal(rms_norm(x, weight - 1, gemma=True), rms_norm(x, (weight - 1).float() + 1))


def test_round_before_weight_rounds_there(target):
    x, weight = draw(64, 96), draw(96, seed=1)
    normalised = rms_norm(x, None)
    assert torch.equal(rms_norm(x, weight, round_before_weight=True), normalised * weight)
    assert not torch.equal(rms_norm(x, weight), normalised * weight)


def test_round_residual(target):
    x, residual = draw(64, 96), draw(64, 96, seed=1) * 100
    y, z = rms_norm(x, None, residual=residual, return_residual=True, round_residual=False)
    assert torch.equal(z, x + residual)
    exact = F.rms_norm(x.double() + residual.double(), (96,), eps=1e-6)
    early = rms_norm(x, None, residual=residual)
    assert (y.double() - exact).abs().sum() < 0.8 * (early.double() - exact).abs().sum()


@pytest.mark.parametrize("columns", [4, 16, 320, 640, 2880, 33, 1])
@pytest.mark.parametrize("pad_to", [256, 7])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_padding_is_zero(target, columns, pad_to, dtype):
    x, weight, bias = (
        draw(5, columns, dtype=dtype, mean=3.0),
        draw(columns, dtype=dtype),
        draw(columns, dtype=dtype),
    )
    residual = draw(5, columns, dtype=dtype, seed=3)
    for norm, parameters in ((rms_norm, (weight,)), (layer_norm, (weight, bias)), (layer_norm, (None,))):
        padded, z = norm(x, *parameters, residual=residual, pad_to=pad_to, return_residual=True)
        assert padded.shape == (5, -(-columns // pad_to) * pad_to) and z.shape == x.shape
        assert torch.equal(z, x + residual)
        assert (padded[:, columns:] == 0).all()
        inside = norm(x, *parameters, residual=residual)
        torch.testing.assert_close(
            padded[:, :columns], inside, rtol=2**-8 if dtype == BF16 else 2e-6, atol=1e-6
        )


def test_gradient_of_padding(target):
    x, weight = draw(3, 20, dtype=F32, grad=True), draw(20, dtype=F32, seed=1, grad=True)
    dy = draw(3, 32, dtype=F32, seed=2)
    padded = torch.autograd.grad(rms_norm(x, weight, pad_to=32), (x, weight), dy)
    usual = torch.autograd.grad(rms_norm(x, weight), (x, weight), dy[:, :20])
    for mine, right in zip(padded, usual, strict=True):
        torch.testing.assert_close(mine, right)


def test_dropout_with_the_rest(target):
    """x_bias is added before dropout, the residual after it, as in Megatron's bias-dropout-add."""
    x, x_bias, residual = draw(9, 70, dtype=F32, grad=True), draw(70, dtype=F32, seed=1, grad=True), draw(9, 70, dtype=F32, seed=2)  # fmt: skip
    weight = draw(70, dtype=F32, seed=3)
    y, z = layer_norm(x, weight, x_bias=x_bias, residual=residual, dropout_p=0.5, return_residual=True)
    factor = ((z - residual) / (x + x_bias)).detach().round()
    assert set(factor.unique().tolist()) == {0.0, 2.0}
    dy = draw(9, 70, dtype=F32, seed=4)
    mine = torch.autograd.grad(y, (x, x_bias), dy)
    exact = F.layer_norm((x + x_bias).double() * factor + residual.double(), (70,), weight.double())
    for value, right in zip(mine, torch.autograd.grad(exact, (x, x_bias), dy.double()), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-4, atol=1e-5)


def test_strides_and_offsets(target):
    storage, other = draw(7, 5, 6, 70), draw(7, 5, 6, 70, seed=1)
    for view in (lambda s: s[..., 3:43], lambda s: s.transpose(0, 2)[..., :64], lambda s: s[::2, 1:3, ::3, 1:],
                 lambda s: s[0, 0, 0], lambda s: s[:0], lambda s: s.permute(3, 1, 0, 2)):  # fmt: skip
        x, gate = view(storage), view(other)
        for mine, right in zip(
            rms_norm(x, None, gate=gate, residual=gate, return_residual=True, pad_to=16),
            rms_norm(x.contiguous(), None, gate=gate.contiguous(), residual=gate.contiguous(), return_residual=True, pad_to=16),
            strict=True,
        ):  # fmt: skip
            assert torch.equal(mine, right)


def test_a_nan_stays_in_its_row(target):
    x = draw(3, 300)
    x[1, 7] = math.nan
    y = layer_norm(x, draw(300), pad_to=512)
    assert y[1, :300].isnan().all() and not y[[0, 2]].isnan().any() and (y[:, 300:] == 0).all()


@pytest.mark.parametrize("parameter_dtype", [BF16, F16, F32])
def test_parameters_of_another_dtype(target, parameter_dtype):
    x, gate = draw(9, 72, grad=True), draw(9, 72, seed=4, grad=True)
    parameters = [draw(72, dtype=parameter_dtype, seed=i, grad=True) for i in (1, 2, 3)]
    weight, bias, x_bias = parameters
    y = layer_norm(x, weight, bias, x_bias=x_bias, gate=gate, gemma=True)
    found = torch.autograd.grad(y, (x, *parameters, gate), torch.ones_like(y))
    assert [each.dtype for each in found] == [BF16, *[parameter_dtype] * 3, BF16]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [3, 8])
def test_more_rows_than_workers(columns):
    rows = (1 << 18) + 5
    x = draw(rows, columns, dtype=F32)
    with hipkittens.simulate("gfx942"):
        y = rms_norm(x, None, 1e-6, pad_to=8)
    torch.testing.assert_close(y[:, :columns], F.rms_norm(x, (columns,), eps=1e-6), rtol=1e-5, atol=1e-6)


def test_the_torch_backend_says_the_same(target, monkeypatch):
    inputs = operands(96, F32, True)
    options = {"gemma": True, "round_residual": False, "pad_to": 64, "return_residual": True}
    mine = layer_norm(**inputs, **options)
    monkeypatch.setenv("HIPKITTENS_BACKEND", "torch")
    for value, right in zip(mine, layer_norm(**inputs, **options), strict=True):
        torch.testing.assert_close(value, right, rtol=1e-5, atol=1e-5)


def test_opcheck(target):
    operator = torch.ops.hipkittens.norm
    full = operands(17, BF16, True)
    names = ("x", "residual", "weight", "bias", "x_bias", "gate")
    tensors = [full[name].requires_grad_() for name in names]
    x = draw(3, 4, 16, grad=True)
    calls = [
        (*tensors, None, True, 1e-5, 0.0, True, True, False, 32),
        (*tensors[:5], None, torch.tensor([5, 7]), True, 1e-5, 0.25, False, False, True, 17),
        (x, None, None, None, None, draw(3, 4, 16, seed=2, grad=True), None, False, 1e-5, 0.0, False, False, True, 16, False),
        (draw(8), None, None, None, None, None, None, False, 1e-5, 0.0, False, False, True, 12, False),
    ]  # fmt: skip
    for inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    weight = draw(24, dtype=F32, grad=True)

    def block(x, gate):
        return rms_norm(x, weight, gate=gate, gemma=True, round_before_weight=True, pad_to=32)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        inputs = [draw(rows, 24, seed=rows + i, grad=True) for i in range(2)]
        mine, other = compiled(*inputs), block(*inputs)
        assert torch.equal(mine, other)
        found = [torch.autograd.grad(v.float().sum(), (*inputs, weight)) for v in (mine, other)]
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: rms_norm(X, None, gemma=True), ValueError, "rms_norm: gemma is True and weight is None"),
    (lambda: rms_norm(X, X[0], gemma="no"), TypeError, "rms_norm: gemma is 'no'; allowed: True, False"),
    (lambda: rms_norm(X, None, round_residual=2), TypeError, "rms_norm: round_residual is 2; allowed: True, False"),
    (lambda: rms_norm(X, None, pad_to=0), ValueError, "rms_norm: pad_to is 0; allowed: 1 to 65536"),
    (lambda: rms_norm(X, None, pad_to=1.5), TypeError, "rms_norm: pad_to is 1.5; it must be a whole number"),
    (lambda: rms_norm(X, None, gate=X[:3]), ValueError, "rms_norm: gate has shape (3, 8) and x (4, 8); they must be equal"),
    (lambda: rms_norm(X, None, gate=X.float()), TypeError, "rms_norm: x is torch.bfloat16 and gate is torch.float32"),
    (lambda: layer_norm(X, None, x_bias=X[0, :7]), ValueError, "layer_norm: x_bias has shape (7,); it must be (8,)"),
    (lambda: layer_norm(X, X[0], x_bias=X[0].float()), TypeError, "layer_norm: weight is torch.bfloat16 and x_bias is torch.float32"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


def test_double_backward_is_refused(target):
    x = draw(3, 16, grad=True)
    (first,) = torch.autograd.grad(rms_norm(x, None, gate=x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        first.sum().backward()
