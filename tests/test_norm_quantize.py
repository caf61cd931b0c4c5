# SPDX-License-Identifier: MIT
"""hipkittens.norm_quantize: bitwise equal to quantizing the float32 norm."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import QuantSpec, layer_norm, norm_quantize, quantize, rms_norm

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SPECS = {
    "fp8 rows": QuantSpec("fp8"),
    "fp8 32": QuantSpec("fp8", 32),
    "fp8 128": QuantSpec("fp8", 128, floor=1e-10),
    "fp8 columns": QuantSpec("fp8", 64, layout="columns"),
    "fp8 tensor": QuantSpec("fp8", "tensor"),
    "bf8 rows": QuantSpec("bf8", scale_bound=2.0),
    "int8 rows": QuantSpec("int8"),
    "int8 truncate": QuantSpec("int8", rounding="truncate", zero_scale=0.0),
    "mxfp4": QuantSpec("mxfp4"),
    "mxfp4 shuffled": QuantSpec("mxfp4", scale_rule="round_up", rounding="away", layout="shuffled"),
    "mxfp8": QuantSpec("mxfp8"),
}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def same(mine, right):
    assert mine.dtype == right.dtype and mine.shape == right.shape
    as_bytes = (value.flatten().clone().view(torch.uint8) for value in (mine, right))
    assert torch.equal(*as_bytes), (mine.float() != right.float()).nonzero()[:4]


def widened(inputs):
    """A float32 kernel does the same arithmetic, and returns the norm that is quantized."""
    return {name: value.float() if torch.is_tensor(value) else value for name, value in inputs.items()}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 2, 17, 128, 514, 1040, 2880, 7168, 8774])
def test_codes_are_those_of_the_norm(target, name, dtype, columns):
    spec = SPECS[name]
    if (spec.format == "mxfp8" and target == "gfx942") or (spec.format == "mxfp4" and columns % 2):
        pytest.skip("refused: test_bad_input")
    scale = torch.tensor(0.02) if spec.granularity == "tensor" else None
    inputs = {"x": draw(5, columns, dtype=dtype), "weight": draw(columns, dtype=dtype, seed=1), "eps": 1e-5}
    inputs["x"][1] = 0
    more = {
        "residual": draw(5, columns, dtype=dtype, seed=2),
        "gate": draw(5, columns, dtype=dtype, seed=3),
        "smooth": draw(columns, dtype=F32, seed=4).exp(),
        "gemma": True,
        "round_residual": False,
    }
    layer = {"norm": "layer", "bias": draw(columns, dtype=dtype, seed=5)}
    for options in ({}, more, layer):
        given = inputs | options
        found = norm_quantize(**given, spec=spec, scale=scale, return_norm=True)
        wide = norm_quantize(**widened(given), spec=spec, scale=scale, return_norm=True)
        same(found.codes, wide.codes)
        exact = wide.norm if options is not more else wide.norm * more["smooth"]
        for mine, right in zip(found[:2], quantize(exact, spec, scale), strict=True):
            same(mine, right)
        same(found.norm, wide.norm.to(dtype))
        assert found.residual is None and found.second is None


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("columns", [1, 96, 600, 8200])
def test_the_norm_is_the_norm(target, dtype, columns):
    """Equal to rms_norm and layer_norm, up to summation order."""
    x, weight, residual = (
        draw(5, columns, dtype=dtype),
        draw(columns, dtype=dtype, seed=1),
        draw(5, columns, dtype=dtype, seed=2),
    )
    for kind, norm, parameters in (("rms", rms_norm, (weight,)), ("layer", layer_norm, (weight, weight))):
        found = norm_quantize(
            x, weight, 1e-5, QuantSpec("int8"), norm=kind, bias=weight if kind == "layer" else None,
            residual=residual, return_norm=True, return_residual=True,
        )  # fmt: skip
        y, z = norm(x, *parameters, eps=1e-5, residual=residual, return_residual=True)
        assert torch.equal(found.residual, z)
        tolerance = {BF16: 2.0**-7, F16: 2.0**-10, F32: 2.0**-20}[dtype]
        torch.testing.assert_close(found.norm, y, rtol=tolerance, atol=tolerance)
    assert norm_quantize(x, weight, 1e-5, QuantSpec("int8"), return_residual=True).residual is x


def test_both_residual_rules(target):
    x, residual = draw(64, 96), draw(64, 96, seed=1) * 100
    spec = QuantSpec("int8")
    early = norm_quantize(x, None, 1e-6, spec, residual=residual, return_residual=True)
    late = norm_quantize(x, None, 1e-6, spec, residual=residual, round_residual=False, return_residual=True)
    assert torch.equal(early.residual, x + residual) and torch.equal(late.residual, x + residual)
    for found, z in ((early, (x + residual).float()), (late, x.float() + residual.float())):
        same(found.codes, norm_quantize(z, None, 1e-6, spec).codes)
    assert not torch.equal(early.scales, late.scales)


@pytest.mark.parametrize("columns", [(1536, 512), (512, 1536), (576, 576), (9000, 64), (64, 9000), (17, 1)])
@pytest.mark.parametrize("spec", [QuantSpec("fp8", 128), QuantSpec("int8"), QuantSpec("int8", 64)], ids=str)
def test_a_second_input(target, columns, spec):
    """AITER's kernel truncates the first where it is longer than the second."""
    storage = draw(7, sum(columns) + 3, seed=2)
    x, second = storage[:, : columns[0]], storage[:, columns[0] : columns[0] + columns[1]]
    weight, other = draw(columns[0], seed=3), draw(columns[1], seed=4)
    options = {"residual": draw(7, columns[0], seed=5), "return_norm": True, "return_residual": True}
    both = norm_quantize(
        x, weight, 1e-6, spec, second=second, second_weight=other, second_eps=1e-3, **options
    )
    one = norm_quantize(x, weight, 1e-6, spec, **options)
    for mine, right in zip(both[:4], one[:4], strict=True):
        same(mine, right)
    expected = F.rms_norm(second.double(), (columns[1],), other.double(), 1e-3)
    torch.testing.assert_close(both.second.double(), expected, rtol=2.0**-7, atol=2.0**-7)


@pytest.mark.parametrize("rows", [1, 33, 257])
@pytest.mark.parametrize("groups", [1, 5, 16, 45, 260])
def test_shuffled_scales_and_their_padding(target, rows, groups):
    x = draw(rows, 32 * groups, dtype=F32) * torch.logspace(-4, 4, 32 * groups, base=2.0)
    spec = QuantSpec("mxfp4", layout="shuffled")
    found = norm_quantize(x, None, 1e-6, spec, return_norm=True)
    for mine, right in zip(found[:2], quantize(found.norm, spec), strict=True):
        same(mine, right)


def test_rows_and_groups_of_nan(target):
    x = draw(4, 256)
    x[1, 40], x[2, 3] = math.nan, math.inf
    found, clean = (norm_quantize(value, None, 1e-6, QuantSpec("fp8", 128)) for value in (x, draw(4, 256)))
    assert found.codes[1].float().isnan().all() and found.scales[1].isnan().all()
    same(found.codes[[0, 3]].view(torch.uint8), clean.codes[[0, 3]].view(torch.uint8))


def test_strides_without_copies(target):
    storage = draw(7, 5, 6, 70)
    for x in (storage[..., 3:43], storage.transpose(0, 2)[..., :64], storage[::2, 1:3, ::3, 1:69], storage[0, 0, 0],
              storage[:0], storage.permute(3, 1, 0, 2)):  # fmt: skip
        for spec in (QuantSpec("fp8"), QuantSpec("int8", 32, layout="columns")):
            found, right = (
                norm_quantize(v, None, 1e-6, spec, second=v, return_norm=True) for v in (x, x.contiguous())
            )
            for mine, other in zip(found, right, strict=True):
                assert mine is other or torch.equal(mine.float(), other.float())


def test_opcheck(target):
    operator = torch.ops.hipkittens.norm_quantize
    x, weight = draw(3, 4, 34), draw(34, seed=1)
    rest = (0.0, math.inf, 1.0)
    calls = [
        (x, None, weight, None, None, None, None, None, None, None, False, 1e-6, False, False, True, 0.0, False,
         0, -1, 0, *rest, -1, 0, False),
        (x, x, weight, weight, weight, x, weight.float(), None, x[..., :5], None, True, 1e-6, True, True, False, 1e-3, True,
         3, 32, 2, *rest, 2, 1 << 22, True),
        (x, None, None, None, None, None, None, torch.ones(1), None, None, False, 1e-6, False, False, True, 0.0, False,
         2, 0, 0, *rest, -1, 0, False),
    ]  # fmt: skip
    for inputs in calls:
        tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
        assert set(torch.library.opcheck(operator.default, inputs, test_utils=tests).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        found = norm_quantize(x * 2, None, 1e-6, QuantSpec("int8"), return_norm=True)
        return found.codes.float() * found.scales + found.norm

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = draw(rows, 24, seed=rows)
        assert torch.equal(compiled(x), block(x))


def test_it_has_no_derivative(target):
    x = draw(3, 8, dtype=F32).requires_grad_()
    found = norm_quantize(x, None, 1e-6, QuantSpec("int8"))
    with pytest.raises(NotImplementedError, match="norm_quantize has no derivative"):
        found.scales.sum().backward()


X, W, INT8 = torch.zeros(4, 8, dtype=BF16), torch.zeros(8, dtype=BF16), QuantSpec("int8")
BAD = [
    (lambda: norm_quantize(X, W, 1e-6, "int8"), TypeError, "spec is str; it must be a hipkittens.QuantSpec"),
    (lambda: norm_quantize(X, W, 1e-6, QuantSpec("int8", (128, 128))), ValueError, "granularity is (128, 128), which no row can be quantised by alone"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, norm="group"), ValueError, "norm is 'group'; allowed: 'rms', 'layer'"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, bias=W), ValueError, "norm is 'rms', which has no bias"),
    (lambda: norm_quantize(X, W[:7], 1e-6, INT8), ValueError, "weight has shape (7,); it must be (8,)"),
    (lambda: norm_quantize(X, W, -1.0, INT8), ValueError, "eps is -1.0; it must be finite and not negative"),
    (lambda: norm_quantize(X, W, 1e-6, QuantSpec("fp8", "tensor")), ValueError, "granularity is 'tensor' and scale is None"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, torch.ones(1)), ValueError, "scale has shape (1,) and granularity is 'row'"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, smooth=W), TypeError, "smooth is torch.bfloat16; allowed: torch.float32"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, smooth=torch.ones(7)), ValueError, "smooth has shape (7,); it must be (8,)"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, second=X[:3]), ValueError, "second has shape (3, 8) and x (4, 8)"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, second=X.float()), TypeError, "second is torch.float32; allowed: torch.bfloat16"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, second_weight=W), ValueError, "there is second_weight and no second"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, second=X, gemma=True), ValueError, "gemma is True and second_weight is None"),
    (lambda: norm_quantize(X, W, 1e-6, INT8, return_norm=1.5), TypeError, "return_norm is 1.5; allowed: True, False"),
    (lambda: norm_quantize(X[:, :7], W[:7], 1e-6, QuantSpec("mxfp4")), ValueError, "rows of x have 7 elements; mxfp4 has two"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.norm_quantize: ")


def test_mxfp8_is_gfx950s():
    with (
        hipkittens.simulate("gfx942"),
        pytest.raises(ValueError, match="norm_quantize: format 'mxfp8' has e4m3fn"),
    ):
        norm_quantize(X, W, 1e-6, QuantSpec("mxfp8"))


def test_every_combination_of_results(target):
    x = draw(3, 40)
    full = norm_quantize(x, None, 1e-6, INT8, residual=x, second=x, return_norm=True, return_residual=True)
    for wanted in itertools.product((False, True), repeat=3):
        second, norm, residual = wanted
        found = norm_quantize(x, None, 1e-6, INT8, residual=x, second=x if second else None, return_norm=norm,
                              return_residual=residual)  # fmt: skip
        assert [value is not None for value in found] == [True, True, norm, residual, second]
        for mine, right in zip(found, full, strict=True):
            assert mine is None or torch.equal(mine, right)
