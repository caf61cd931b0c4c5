# SPDX-License-Identifier: MIT
"""Scales in bands of rows, with a new band at the start of each group: written by quantization, or rearranged into bands afterwards."""

import math

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, gated_activation_quantize, grouped_matmul, quantize
from hipkittens._call import call
from hipkittens.operations._tensors import ends_of
from hipkittens.scaled_gemm import shuffled

SIZES = [
    [5, 0, 40, 1, 33],
    [0, 0, 70],
    [0],
    [],
    [31, 1, 32, 33],
    [2, 0, 1] * 50,  # more groups than lanes
]
SPEC = QuantSpec("mxfp4", layout="shuffled")


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def in_bands(scale, sizes):
    """Bytes (rows, columns) in bands by the definition, and where bytes are written."""
    (rows, columns), begins = scale.shape, [0, *ends_of(sizes).tolist()]
    plain = torch.full((32 * (-(-rows // 32) + len(sizes)), -(-columns // 8) * 8), 127, dtype=torch.uint8)
    there = torch.zeros_like(plain)
    for group, (begin, end) in enumerate(zip(begins, [*begins[1:], rows], strict=True)):
        place = 32 * (begin // 32 + group)
        plain[place : place + end - begin, :columns] = scale[begin:end]
        there[place : place + end - begin] = 1
    return shuffled(plain), shuffled(there) == 1


def same(found, scale, sizes):
    expected, there = in_bands(scale, sizes)
    assert found.shape == expected.shape and found.dtype == torch.uint8
    assert torch.equal(found[there], expected[there])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("columns", [1, 8, 70])
def test_scales(target, sizes, columns):
    rows = sum(sizes) + 3
    scale = torch.arange(rows * columns).remainder(251).to(torch.uint8).view(rows, columns)
    for given in (scale, scale.t().contiguous().t(), torch.stack((scale, scale), -1)[..., 0]):
        same(call("scales_in_bands", given, ends_of(sizes)), scale, sizes)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("columns", [32, 320, 2052])
def test_quantize(target, sizes, columns):
    """The same quantized values and scales as without groups."""
    x = torch.randn(sum(sizes) + 3, columns, dtype=torch.bfloat16)
    x[0, 3], x[1] = math.nan, 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        codes, scales = quantize(x.to(dtype), SPEC, offs=ends_of(sizes))
        expected = quantize(x.to(dtype), QuantSpec("mxfp4"))
        assert torch.equal(codes, expected[0])
        same(scales, expected[1], sizes)


def test_gated_and_smooth(target):
    sizes = SIZES[0]
    offs, rows = ends_of(sizes), sum(sizes) + 3
    x, factors = torch.randn(rows, 192, dtype=torch.bfloat16), torch.rand(2, 96)
    ids = torch.arange(rows) % 3
    for given, plain in (
        (
            gated_activation_quantize(x, SPEC, "gelu", offs=offs),
            gated_activation_quantize(x, QuantSpec("mxfp4"), "gelu"),
        ),
        (
            quantize(x[:, :96], SPEC, smooth=factors, smooth_ids=ids, offs=offs),
            quantize(x[:, :96], QuantSpec("mxfp4"), smooth=factors, smooth_ids=ids),
        ),
    ):
        assert torch.equal(given[0], plain[0])
        same(given[1], plain[1], sizes)


def test_products_take_them():
    x, w = torch.randn(84, 288, dtype=torch.bfloat16), torch.randn(3 * 40, 288)
    offs = ends_of([40, 0, 41])
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        b, scale_b = quantize(w, QuantSpec("mxfp4"))
        given = {"b": b.view(3, 40, 144).mT, "offs": offs, "scale_b": scale_b.view(3, 40, 9).mT}
        for format in ("mxfp4", "mxfp8"):
            codes, scales = quantize(x, QuantSpec(format))
            expected = grouped_matmul(codes, scale_a=scales, **given)
            codes, scales = quantize(x, QuantSpec(format, layout="shuffled"), offs=offs)
            assert torch.equal(grouped_matmul(codes, scale_a=scales, **given), expected)
            with pytest.raises(ValueError, match=r"scale_a has shape \(192, 8\)"):
                grouped_matmul(codes, scale_a=scales[:, :8], **given)
    assert simulation.findings == []


def test_products_in_torch_take_none(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    codes, scale = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(64, 8, dtype=torch.uint8)
    b, scale_b = torch.zeros(1, 16, 8, dtype=torch.uint8), torch.zeros(1, 1, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="HIPKITTENS_BACKEND is torch, which reads no banded scales"):
        grouped_matmul(codes, b, ends_of([4]), scale_a=scale, scale_b=scale_b)


@pytest.mark.parametrize("offs", [[40, 10, 60], [-5, 20, 100], [2**31 - 1, 3, -(2**31)]], ids=str)
def test_wrong_ends_touch_no_other_memory(offs):
    ends = torch.tensor(offs, dtype=torch.int32)
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        call("scales_in_bands", torch.zeros(50, 9, dtype=torch.uint8), ends)
        quantize(torch.randn(50, 288), SPEC, offs=ends)
    assert {finding.kind for finding in simulation.findings} <= {"workgroups_write_after_write"}


def test_empty(target):
    for rows in (0, 3):
        _, scales = quantize(torch.zeros(rows, 64), SPEC, offs=ends_of([0, 0]))
        assert scales.shape == (64 + 32 * (rows > 0), 8)
        given = torch.zeros(rows, 0, dtype=torch.uint8)
        assert call("scales_in_bands", given, ends_of([0, 0])).shape == (64 + 32 * (rows > 0), 0)


def test_opcheck(target):
    inputs = torch.zeros(5, 9, dtype=torch.uint8), ends_of([2, 3])
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(torch.ops.hipkittens.scales_in_bands.default, inputs, test_utils=tests)
    assert set(results.values()) == {"SUCCESS"}


X, OFFS = torch.zeros(4, 64), torch.zeros(2, dtype=torch.int32)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: quantize(X, QuantSpec("mxfp4"), offs=OFFS), ValueError, "layout 'rows'; groups have bands"),
        (lambda: quantize(X, QuantSpec("fp8"), offs=OFFS), ValueError, "offs is given with format 'fp8'"),
        (lambda: quantize(X, SPEC, offs=OFFS.long()), TypeError, "offs is torch.int64; allowed: torch.int32"),
        (
            lambda: quantize(X, SPEC, offs=OFFS[None]),
            ValueError,
            r"offs \(1, 2\); groups are of the rows of a",
        ),
        (lambda: quantize(X[0], SPEC, offs=OFFS), ValueError, r"x has shape \(64,\) and offs"),
        (lambda: gated_activation_quantize(X, QuantSpec("mxfp4"), offs=OFFS), ValueError, "layout 'rows'"),
        (
            lambda: torch.ops.hipkittens.scales_in_bands(X, OFFS),
            RuntimeError,
            "scales need to be uint8, of rows and columns",
        ),
        (
            lambda: torch.ops.hipkittens.scales_in_bands(X.to(torch.uint8), OFFS.long()),
            RuntimeError,
            "ends need to be contiguous, int32",
        ),
    ],
)
def test_refused(call, error, says):
    with hipkittens.simulate("gfx950"), pytest.raises(error, match=says):
        call()
