# SPDX-License-Identifier: MIT
"""hipkittens.gated_activation_quantize: bitwise equal to gated_activation followed by quantize."""

import math

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, _backend, gated_activation, gated_activation_quantize, quantize

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPECS = [
    QuantSpec("fp8"),
    QuantSpec("bf8", scale_bound=2.0),
    QuantSpec("int8", rounding="truncate"),
    QuantSpec("fp8", 128, floor=1e-10),
    QuantSpec("int8", 64, layout="columns"),
    QuantSpec("mxfp4"),
    QuantSpec("mxfp4", scale_rule="round_up", rounding="away", layout="shuffled"),
]


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def same(mine, right):
    for a, b in zip(mine, right, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        if a.dtype.itemsize == 1:
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("spec", SPECS, ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [2, 64, 130, 2880, 9002])
def test_the_bits_of_two_calls(target, spec, dtype, columns):
    rows = 5 if columns < 9000 else 2
    x = draw(rows, 2 * columns, dtype=dtype, scale=2.0)
    same(gated_activation_quantize(x, spec), quantize(gated_activation(x), spec))
    x = x.view(rows, 2, columns)
    gate, other = x[:, 0], x[:, 1]  # strided
    same(
        gated_activation_quantize(gate, spec, other=other),
        quantize(gated_activation(gate, other=other), spec),
    )


@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "gelu", "relu", "tanh", "swiglu"])
@pytest.mark.parametrize("columns", [13, 96])
def test_every_gate(target, kind, columns):
    x = draw(7, 2 * columns, scale=3.0)
    bias = draw(2 * columns, seed=1)
    options = {"limit": 1.5, "bias": bias, **({"alpha": 0.7} if kind in ("silu", "swiglu") else {})}
    one = torch.tensor(0.02)
    for spec, scale in (
        (QuantSpec("fp8"), None),
        (QuantSpec("int8", 32), None),
        (QuantSpec("fp8", "tensor"), one),
    ):
        for given in ({}, options):
            mine = gated_activation_quantize(x, spec, kind, scale=scale, **given)
            same(mine, quantize(gated_activation(x, kind, **given), spec, scale))


def test_strides_offsets_and_dimensions(target):
    storage = draw(7, 5, 6, 70)
    odd = draw(1 + 4 * 66)[1:].view(4, 66)
    for x in (
        storage[..., 3:43],
        storage.transpose(0, 2)[..., :64],
        storage[::2, 1:3, ::3, 1:69],
        storage[0, 0, 0],
        odd,
        draw(40, 12).t(),
    ):
        for spec in (QuantSpec("fp8"), QuantSpec("fp8", 32), QuantSpec("mxfp4")):
            if spec.format == "mxfp4" and x.shape[-1] % 4:
                continue
            same(gated_activation_quantize(x, spec), quantize(gated_activation(x), spec))


def test_nan_and_infinity(target):
    x = draw(4, 2 * 256, dtype=F32)
    x[0, 3], x[1, 300], x[2, 5] = math.nan, math.nan, math.inf
    x[3] = 0
    for spec in SPECS:
        same(gated_activation_quantize(x, spec), quantize(gated_activation(x), spec))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 4)])
def test_empty(target, shape):
    x = torch.zeros(shape, dtype=BF16)
    same(gated_activation_quantize(x, QuantSpec("fp8")), quantize(gated_activation(x), QuantSpec("fp8")))


def test_it_has_no_derivative(target):
    x = draw(4, 64).requires_grad_()
    _, scales = gated_activation_quantize(x, QuantSpec("int8"))
    with pytest.raises(NotImplementedError, match="gated_activation_quantize has no derivative"):
        scales.sum().backward()


def test_opcheck(target):
    operator = torch.ops.hipkittens.gated_activation_quantize.default
    options = (0, -1, 0, 0.0, math.inf, 1.0, -1, 0, False)
    for inputs in (
        (draw(3, 64), None, None, None, None, 0, 1.0, math.inf, *options),
        (draw(3, 64), draw(3, 64, seed=1), draw(128), None, None, 5, 1.7, 7.0, *options),
    ):
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        found = torch.library.opcheck(operator, inputs, test_utils=tests)
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        return gated_activation_quantize(x * 2, QuantSpec("int8", 32), "gelu")

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = draw(rows, 192, seed=rows)
        same(compiled(x), block(x))


X = torch.zeros(4, 8, dtype=BF16)
FP8 = QuantSpec("fp8")
BAD = [
    (lambda: gated_activation_quantize([1.0], FP8), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: gated_activation_quantize(X.double(), FP8), TypeError, "x is torch.float64; allowed"),
    (lambda: gated_activation_quantize(X[0, 0], FP8), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: gated_activation_quantize(X[0, 0], FP8, other=X[0, 0]), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: gated_activation_quantize(X[:, 1:], FP8), ValueError, "rows of x have 7 elements; they need an even number"),
    (lambda: gated_activation_quantize(X[:, :0], FP8), ValueError, "its rows need 1 element or more"),
    (lambda: gated_activation_quantize(X[:, :6], QuantSpec("mxfp4")), ValueError, "rows of x have 3 elements; mxfp4"),
    (lambda: gated_activation_quantize(X, "fp8"), TypeError, "spec is str; it must be a hipkittens.QuantSpec"),
    (lambda: gated_activation_quantize(X, FP8, "mish"), ValueError, "kind is 'mish'; allowed: 'silu'"),
    (lambda: gated_activation_quantize(X, FP8, other=X[:2]), ValueError, "other has shape (2, 8) and x (4, 8)"),
    (lambda: gated_activation_quantize(X, FP8, bias=X[0, :4]), ValueError, "bias has shape (4,); it must be (8,)"),
    (lambda: gated_activation_quantize(X, QuantSpec("fp8", (128, 128))), ValueError, "granularity is (128, 128), which no row can"),
    (lambda: gated_activation_quantize(X, FP8, limit=0), ValueError, "limit is 0; it must be above 0, or None"),
    (lambda: gated_activation_quantize(X, QuantSpec("fp8", "tensor")), ValueError, "granularity is 'tensor' and scale is None"),
    (lambda: gated_activation_quantize(X, FP8, scale=torch.ones(1)), ValueError, "a scale that is given has one element"),
    (lambda: gated_activation_quantize(X, QuantSpec("mxfp8")), ValueError, "e4m3fn codes, which gfx942 has not"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx942"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


def test_no_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    with pytest.raises(ValueError, match="HIPKITTENS_BACKEND is torch"):
        gated_activation_quantize(X, FP8)


OPERATOR = torch.ops.hipkittens.gated_activation_quantize
GATE, REST = (0, 1.0, math.inf), (0, 0.0, math.inf, 1.0, -1, 0, False)
BAD_OPERANDS = [
    (lambda: OPERATOR(X[:, 1:], None, None, None, None, *GATE, 0, -1, *REST), "x needs rows of an even number of elements"),
    (lambda: OPERATOR(X, X[:2], None, None, None, *GATE, 0, -1, *REST), "other needs the shape, dtype and device of x"),
    (lambda: OPERATOR(X, None, None, None, None, 6, 1.0, math.inf, 0, -1, *REST), "activation is 6; 0 .. 5 are allowed"),
    (lambda: OPERATOR(X, None, None, None, None, *GATE, 0, 0, *REST), "the scale of a gated tensor must be given"),
    (lambda: OPERATOR(X, None, None, None, None, *GATE, 0, -2, *REST), "no kernel has blocks of gated rows"),
    (lambda: OPERATOR(X, None, X[0, 1:], None, None, *GATE, 0, -1, *REST), "bias needs one dimension with the elements"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
