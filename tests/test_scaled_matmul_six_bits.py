# SPDX-License-Identifier: MIT
"""6-bit floats, e2m3 and e3m2: hipkittens.quantize of both targets and hipkittens.scaled_matmul on gfx950."""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, dequantize, quantize, scaled_matmul
from hipkittens.quantization import shuffled_six_bits, six_bits_in_float

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
FORMATS = ("fp6", "bf6")
SIZES = [(1, 16, 32), (17, 128, 160), (255, 257, 288), (257, 130, 2880), (2, 48, 4096)]
LARGEST = {"fp6": 7.5, "bf6": 28.0}


@pytest.fixture
def gfx950():
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        yield
    assert simulation.findings == []


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def packed(numbers):
    """Encodings (rows, K) packed into bytes, the first in the lowest bits."""
    four = numbers.reshape(numbers.shape[0], -1, 4).int()
    word = four[..., 0] | four[..., 1] << 6 | four[..., 2] << 12 | four[..., 3] << 18
    return torch.stack([word & 255, word >> 8 & 255, word >> 16], -1).flatten(1).to(torch.uint8)


def table(format):
    """The value of each encoding, from OCP's definition of its bits in the microscaling formats."""
    fraction, bias = {"fp6": (3, 1), "bf6": (2, 3)}[format]
    magnitudes = []
    for code in range(32):
        exponent, rest = code >> fraction, code & (1 << fraction) - 1
        significand = (rest + (1 << fraction if exponent else 0)) / (1 << fraction)
        magnitudes.append(significand * 2.0 ** (max(exponent, 1) - bias))
    return torch.tensor([*magnitudes, *(-each for each in magnitudes)], dtype=torch.float64)


def operand(format, rows, k, seed, exponents=20):
    random = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 64, (rows, k), generator=random)
    scales = torch.randint(127 - exponents, 128 + exponents, (rows, k // 32), generator=random)
    powers = torch.ldexp(torch.ones(scales.shape, dtype=torch.float64), scales.int() - 127)
    values = table(format)[numbers]
    return packed(numbers), scales.to(torch.uint8), values, values * powers.repeat_interleave(32, 1)


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


@pytest.mark.parametrize("format", FORMATS)
def test_values_of_codes(format):
    codes = packed(torch.arange(64).reshape(1, 64))
    assert torch.equal(six_bits_in_float(codes, format)[0].double(), table(format))
    assert table(format).max() == LARGEST[format]


@pytest.mark.parametrize("format", FORMATS)
def test_every_code_and_tie(target, format):
    """To nearest, ties to even, and values beyond the largest encoding to it."""
    codes = table(format)[:32]
    middles = (codes[1:] + codes[:-1]) / 2
    values = torch.cat(
        [
            codes,
            middles,
            middles * (1 + 2**-20),
            middles * (1 - 2**-20),
            codes[-1:] * 1.2,
            torch.rand(866) * 9,
        ]
    )
    values = torch.cat([values, -values]).float()
    values = torch.nn.functional.pad(values, (0, -len(values) % 32)).reshape(1, -1)
    found, _ = quantize(values, QuantSpec(format, "tensor"), torch.ones(()))
    distance = (values[0].double().abs().unsqueeze(1) - codes).abs()
    # Of two equally near encodings, the even one comes first.
    order = torch.cat([torch.arange(0, 32, 2), torch.arange(1, 32, 2)])
    nearest = codes[order[distance[:, order].argmin(1)]]
    expected = torch.where(torch.signbit(values[0]), -nearest, nearest)
    assert torch.equal(six_bits_in_float(found, format)[0].double(), expected)


@pytest.mark.parametrize("spec", [QuantSpec(f"{mx}{format}", scale_rule=rule) for format in FORMATS for mx, rule in (
    ("", None), ("mx", "even"), ("mx", "round_up"), ("mx", "floor"))], ids=str)  # fmt: skip
def test_quantize_and_back(target, spec):
    random = torch.Generator().manual_seed(3)
    x = torch.randn(7, 320, generator=random) * torch.exp2(
        torch.randint(-20, 20, (7, 1), generator=random).float()
    )
    x[3] = 0
    for dtype in (F32, BF16, F16):
        small = x.to(dtype).clamp(-60000, 60000)
        codes, scales = quantize(small, spec)
        assert codes.shape == (7, 240) and codes.dtype == torch.uint8
        back = dequantize(codes, scales, spec, F32)
        rows = [row for row in range(7) if small[row].abs().max() > 1e-4]
        error = (back - small.float())[rows].norm(dim=1) / small.float()[rows].norm(dim=1)
        assert error.max() < (0.05 if "fp6" in spec.format else 0.08) and (back[3] == 0).all()
    x[4, 40] = torch.nan
    codes, scales = quantize(x, spec)
    nan = scales == 255 if scales.dtype == torch.uint8 else scales.isnan()
    assert nan.sum() == 1 and nan[4].any()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("scaling", ["1x32", "row", "tensor"])
def test_sizes(gfx950, format, shape, scaling):
    m, n, k = shape
    (a, scale_a, left, left_scaled), (b, scale_b, right, right_scaled) = (
        operand(format, rows, k, rows + k) for rows in (m, n)
    )
    if scaling == "1x32":
        out = scaled_matmul(a, b.t(), scale_a, scale_b.t(), formats=format, out_dtype=F32)
        assert rms(out, left_scaled @ right_scaled.T) <= BAR[F32]
        return
    random = torch.Generator().manual_seed(9)
    shapes = ((m, 1), (1, n)) if scaling == "row" else ((), ())
    factors = [
        torch.ldexp(torch.rand(each, generator=random) + 0.5, torch.randint(-20, 21, each, generator=random))
        for each in shapes
    ]
    out = scaled_matmul(a, b.t(), *factors, formats=format, out_dtype=F32)
    reference = (left @ right.T) * factors[0].double() * factors[1].double()
    assert rms(out, reference) <= BAR[F32]


@pytest.mark.parametrize("format", FORMATS)
def test_sums_of_codes_are_exact(gfx950, format):
    (a, _, left, _), (b, _, right, _) = (operand(format, rows, 320, rows) for rows in (70, 132))
    one = torch.ones(())
    assert torch.equal(
        scaled_matmul(a, b.t(), one, one, formats=format, out_dtype=F32).double(), left @ right.T
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_bias_activation_and_one_rounding(gfx950, dtype):
    bias = torch.randn(72, generator=torch.Generator().manual_seed(1))
    for k in (256, 4096):
        (a, scale_a, _, left), (b, scale_b, _, right) = (
            operand("fp6", rows, k, rows, 3) for rows in (33, 72)
        )
        out = scaled_matmul(
            a,
            b.t(),
            scale_a - 3,
            scale_b.t() - 3,
            formats="fp6",
            bias=bias,
            activation="relu",
            out_dtype=dtype,
        )
        assert rms(out, (left @ right.T / 64 + bias.double()).relu()) <= BAR[dtype]


@pytest.mark.parametrize("format", FORMATS)
def test_order_of_the_kernels(gfx950, format):
    """Operands that quantize brings into it give the same bytes; K ends inside of 128."""
    random = torch.Generator().manual_seed(2)
    x, w = (torch.randn(rows, 160, generator=random) for rows in (70, 96))
    for spec, recipe in ((QuantSpec(f"mx{format}"), "1x32"), (QuantSpec(format), "row")):
        (a, scale_a), (b, scale_b) = quantize(x, spec), quantize(w, spec)
        out = scaled_matmul(a, b.t(), scale_a, scale_b.t(), formats=format, out_dtype=F32)
        left, right = (dequantize(*each, spec, F32).double() for each in ((a, scale_a), (b, scale_b)))
        assert rms(out, left @ right.T) <= BAR[F32]
        ordered = QuantSpec(spec.format, layout="shuffled")
        (a, scale_a), (b, scale_b) = quantize(x, ordered), quantize(w, ordered)
        assert a.shape == (70, 192) and torch.equal(a, shuffled_six_bits(quantize(x, spec)[0]))
        scales = (scale_a, scale_b) if recipe == "1x32" else (scale_a, scale_b.t())
        same = scaled_matmul(
            a, b.t(), *scales, recipe=recipe, swizzle="shuffled", formats=format, out_dtype=F32
        )
        assert torch.equal(same, out)


@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (5, 96), (3, 320)])
def test_order_of_bytes(rows, columns):
    """In blocks of 128 columns: 64 bytes of each row, then 32 of each, as docs/scaled_gemm.md says; zeros past the last column."""
    codes = torch.arange(1, rows * columns * 3 // 4 + 1).reshape(rows, -1)
    blocks = (columns + 127) // 128
    expected = torch.zeros(rows * blocks * 96, dtype=codes.dtype)
    for row in range(rows):
        for byte in range(columns * 3 // 4):
            block, group, place = byte // 96, byte // 24 % 4, byte % 24
            within = (
                row * 64 + group * 16 + place if place < 16 else rows * 64 + row * 32 + group * 8 + place - 16
            )
            expected[block * rows * 96 + within] = codes[row, byte]
    assert torch.equal(shuffled_six_bits(codes), expected.reshape(rows, -1))


def test_ends_of_e8m0_and_strides(gfx950):
    (a, scale_a, _, left), (b, scale_b, _, right) = (operand("fp6", rows, 96, rows, 2) for rows in (20, 48))
    expected = scaled_matmul(a, b.t(), scale_a, scale_b.t(), formats="fp6", out_dtype=F32)
    wide = torch.zeros(20, 79, dtype=torch.uint8)
    wide[:, 3:75] = a
    same = scaled_matmul(
        wide[:, 3:75], b.t().contiguous(), scale_a, scale_b.t(), formats="fp6", out_dtype=F32
    )
    assert torch.equal(same, expected) and rms(expected, left @ right.T) <= BAR[F32]
    scale_a[3, 1], scale_a[4] = 255, 0
    out = scaled_matmul(a, b.t(), scale_a, scale_b.t(), formats="fp6", out_dtype=F32)
    assert out[3].isnan().all() and not out[[*range(3), *range(4, 20)]].isnan().any()
    assert out[4].abs().max() < 1e-30


def test_in_torch(monkeypatch):
    monkeypatch.setattr("hipkittens.scaled_gemm._backend.uses_torch", lambda: True)
    (a, scale_a, _, left), (b, scale_b, _, right) = (operand("bf6", rows, 96, rows, 2) for rows in (20, 48))
    out = scaled_matmul(a, b.t(), scale_a, scale_b.t(), formats="bf6", out_dtype=F32)
    assert rms(out, left @ right.T) <= BAR[F32]


def test_bad_input(gfx950):
    a, b, one = torch.zeros(20, 48, dtype=torch.uint8), torch.zeros(48, 16, dtype=torch.uint8), torch.ones(())
    for arguments, options, error, message in [
        ((a, b, one, one), {"formats": ("fp6", "bf6")}, TypeError, "with formats .'fp6', 'bf6'.; allowed: both e4m3"),
        ((a[:, :40], b, one, one), {"formats": "fp6"}, ValueError, "a has 40 bytes along K; 24 hold 32 codes of 6 bits"),
        ((a, b, one, one), {"formats": "fp6", "swizzle": "shuffled"}, ValueError, "a has 48 bytes along K; 96 hold 128"),
        ((a.to(torch.float8_e4m3fn), b, one, one), {"formats": ("bf6", "bf6")}, TypeError, "formats says 'bf6' of a"),
        ((a, b, torch.ones(20, 1), torch.ones(1, 3)), {"formats": "fp6"}, ValueError, "scale_b has shape .1, 3."),
        ((a, b, one, one), {"formats": "fp6", "out_dtype": torch.int32}, TypeError, "out_dtype is torch.int32"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            scaled_matmul(*arguments, **options)
    order = {"formats": "fp6", "swizzle": "shuffled"}
    whole, apart = torch.zeros(16, 192, dtype=torch.uint8), torch.zeros(16, 288, dtype=torch.uint8)[:, :192]
    for left, right, name in ((apart, whole, "a"), (whole, apart, r"b\.t\(\)")):
        with pytest.raises(
            ValueError, match=rf"{name} has the strides \(288, 1\); 'shuffled' codes of 6 bits are one"
        ):
            scaled_matmul(left, right.t(), one, one, **order)
    rows = (4095 << 20) // 96 + 1
    many = torch.empty(1, 24, dtype=torch.uint8).expand(rows, 24)
    with pytest.raises(
        ValueError, match=f"a has {rows} rows of 32 codes of 6 bits, {96 * rows} bytes; at most 4293918720"
    ):
        scaled_matmul(many, torch.zeros(24, 16, dtype=torch.uint8), one, one, formats="fp6")
    with pytest.raises(ValueError, match="rows of x have 40 elements; fp6 has 32 in 24 bytes"):
        quantize(torch.zeros(2, 40), QuantSpec("fp6"))
    with pytest.raises(ValueError, match="granularity is 128; allowed with 'fp6': 'tensor', 'row'"):
        QuantSpec("fp6", 128)


def test_gfx942_has_no_such_instruction():
    a, one = torch.zeros(20, 48, dtype=torch.uint8), torch.ones(())
    with hipkittens.simulate("gfx942"), pytest.raises(ValueError, match="gfx942 has no matrix instruction"):
        scaled_matmul(a, a.t(), one, one, formats="fp6")
