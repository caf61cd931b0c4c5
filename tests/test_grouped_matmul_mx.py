# SPDX-License-Identifier: MIT
"""hipkittens.grouped_matmul with e8m0 scales of 32 of K: MXFP8, MXFP4, and MXFP4 weights with wider activations."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens import QuantSpec, dequantize, grouped_matmul, quantize
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.operations._tensors import ends_of
from tests.test_scaled_matmul_mixed import BAR, BF16, F16, F32, FP8, activations, rms, weights

FP4 = torch.uint8
# For a its dtype and scaling, and the dtype of b.
OPERANDS = [
    (FP4, "1x32", FP4),
    (FP8, "1x32", FP8),
    (FP8, "1x32", FP4),
    (FP8, "row", FP4),
    (FP8, "tensor", FP4),
    (BF16, "row", FP4),
    (BF16, None, FP4),
]
SIZES = [
    [5, 0, 40, 1, 0],  # with empty groups, the last among them
    [0, 0, 70],  # all rows in one
    [70],
    [0, 0],  # no rows at all: all are past the last group
    [1, 17, 2],
    [31, 1, 32, 33],  # groups that begin before, on and after a band of factors
]


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def has(target, operands):
    return target == "gfx950" or operands[0] == BF16


def left_operand(dtype, scaling, m, k, seed, exponents):
    if dtype == FP4:
        return weights(m, k, seed, exponents)
    return activations(dtype, scaling, m, k, seed, exponents)


def right_operand(dtype, groups, n, k, seed, exponents):
    """Quantized values and scales of (groups, n, ...), and their dequantized values."""
    if dtype == FP4:
        found = weights(groups * n, k, seed, exponents)
    else:
        found = activations(dtype, "1x32", groups * n, k, seed, exponents)
    return [each.view(groups, n, each.shape[1]) for each in found]


def operands(of, sizes, n, k, exponents=20, behind=3):
    m = sum(sizes) + behind
    a, scale_a, left = left_operand(of[0], of[1], m, k, m + k, exponents)
    b, scale_b, right = right_operand(of[2], len(sizes), n, k, n + k, exponents)
    return (a, b.mT, ends_of(sizes)), {"scale_a": scale_a, "scale_b": scale_b.mT}, left, right.mT


def check(of, sizes, n, k, dtype=F32, exponents=20, **options):
    arguments, scales, left, right = operands(of, sizes, n, k, exponents)
    out = grouped_matmul(*arguments, **scales, out_dtype=dtype, **options)
    assert out.dtype == dtype and not out[sum(sizes) :].any()
    if sum(sizes):
        assert rms(out, in_groups(left, right, arguments[2])) <= BAR[dtype], (of, sizes, n, k)


@pytest.mark.parametrize("of", OPERANDS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_of_groups(target, of, sizes):
    """N ends inside a tile; K ends inside one, and inside a block of factors."""
    if has(target, of):
        for n, k in ((136, 160), (257, 288), (3, 32)):
            check(of, sizes, n, k)


@pytest.mark.parametrize("of", OPERANDS, ids=str)
@pytest.mark.parametrize("sizes", [[255, 1, 257], [17, 0, 600]], ids=str)
def test_large_groups(target, of, sizes):
    if has(target, of):
        check(of, sizes, 272, 416, dtype=BF16, exponents=3)


def test_long_sums(target):
    for of in OPERANDS:
        if has(target, of):
            check(of, [9, 40], 72, 2880)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_are_rounded_once(target, dtype):
    for of in OPERANDS:
        if has(target, of):
            check(of, [20, 3], 72, 256, dtype=dtype, exponents=3)


# Sizes of groups, n and k at which the plan chooses a tile of so many rows.
SHAPES = {
    16: ((5, 0, 20), 136, 288),
    32: ((30, 0, 32), 8192, 416),
    64: ((64, 60), 8192, 8160),
    128: ((900, 700), 2048, 8160),
    256: ((1500, 0, 1497), 4096, 672),
}
KERNELS = {
    "mxfp4_{}x256": (OPERANDS[0], ("16x128", "32x128", "64x128", "128x128", "256x256")),
    "mxfp8_{}x128": (OPERANDS[1], ("16x128", "128x128")),
    "mxfp8_mxfp4_{}x128": (OPERANDS[2], ("32x128", "64x128", "128x128", "256x256")),
    "fp8_mxfp4_{}x128": (OPERANDS[3], ("32x128", "128x128")),
    "bf16_mxfp4_{}x128": (OPERANDS[6], ("16x128", "32x128", "64x128")),
}


@pytest.mark.parametrize(
    ("kernel", "tile"),
    [
        pytest.param(kernel, tile, marks=() if tile in ("16x128", "32x128") else pytest.mark.slow)
        for kernel, (_, tiles) in KERNELS.items()
        for tile in tiles
    ],
)
def test_tiles(target, kernel, tile):
    of = KERNELS[kernel][0]
    if (kernel, tile) == ("bf16_mxfp4_{}x128", "16x128") and target == "gfx950":
        return  # which takes 32 rows: its loads go to LDS directly
    if has(target, of):
        check(of, *SHAPES[int(tile.partition("x")[0])], dtype=BF16, exponents=3)
        assert f"grouped_nt_{kernel.format(tile)}" in hipkittens._library.last_kernel()


@pytest.mark.parametrize("of", [OPERANDS[0], OPERANDS[2], OPERANDS[-1]], ids=str)
def test_whole_numbers_are_exact(target, of):
    if not has(target, of):
        return
    sizes, n, k = [33, 0, 37], 132, 320
    arguments, scales, left, right = operands(of, sizes, n, k, exponents=0)
    if of[0] != FP4:
        random = torch.Generator().manual_seed(4)
        left = torch.randint(-8, 9, (73, k), generator=random).double()
        arguments = (left.to(of[0]), *arguments[1:])
        scales["scale_a"] = scales["scale_a"] if of[1] == "1x32" else None
    out = grouped_matmul(*arguments, **scales, out_dtype=F32)
    assert torch.equal(out.double(), in_groups(left, right, arguments[2]))


@pytest.mark.parametrize("per_group", [False, True])
def test_bias(target, per_group):
    for of in OPERANDS:
        if not has(target, of):
            continue
        arguments, scales, left, right = operands(of, [17, 0, 15], 33, 96, exponents=2)
        bias = torch.randn(3, 33) if per_group else torch.randn(33)
        out = grouped_matmul(*arguments, **scales, bias=bias, out_dtype=F32)
        rows = bias if per_group else bias.expand(3, 33)
        added = torch.cat([rows[0].expand(17, 33), rows[2].expand(15, 33), torch.zeros(3, 33)])
        assert rms(out, in_groups(left, right, arguments[2]) + added.double()) <= BAR[F32]


@pytest.mark.parametrize("of", OPERANDS, ids=str)
def test_ends_of_e8m0(target, of):
    """Bytes of 255 are NaN only in their row or their group's column, including rows past the last group; 0 is 2 ** -127."""
    if not has(target, of):
        return
    sizes, n, k = [20, 3, 9], 136, 256
    arguments, scales, left, right = operands(of, sizes, n, k, exponents=0)
    expected = in_groups(left, right, arguments[2])
    wrong = torch.zeros(35, n, dtype=torch.bool)
    scales["scale_b"][1, 3, 7] = 255
    wrong[20:23, 7] = True
    scales["scale_b"][0, :, 4] = 0
    if of[1] == "1x32":
        scales["scale_a"][5, 2] = 255
        scales["scale_a"][32:] = 255
        wrong[5] = True
    out = grouped_matmul(*arguments, **scales, out_dtype=F32)
    assert torch.equal(out.isnan(), wrong) and not out[32:].any()
    assert out[:5, 4].abs().max() < 1e-30
    wrong[:20, 4] = True
    assert rms(out[~wrong], expected[~wrong]) <= BAR[F32]


def test_layouts(target):
    """Rows at any alignment, weights that are not contiguous along K, scales of any strides, and those of PyTorch's dtypes."""
    for of in OPERANDS:
        if not has(target, of):
            continue
        (a, b, offs), scales, left, right = operands(of, [9, 0, 20], 140, 192)
        expected = grouped_matmul(a, b, offs, **scales, out_dtype=F32)
        assert rms(expected, in_groups(left, right, offs)) <= BAR[F32]
        wide = torch.zeros(len(a), a.shape[1] + 3, dtype=a.dtype)
        wide[:, 3:] = a
        apart = {
            name: None if each is None else torch.stack((each, each), -1)[..., 1]
            for name, each in scales.items()
        }
        for given in (
            (wide[:, 3:], b, scales),
            (a, b.contiguous(), scales),
            (a.t().contiguous().t(), b, apart),
        ):
            assert torch.equal(grouped_matmul(*given[:2], offs, **given[2], out_dtype=F32), expected)
        named = {
            name: each.view(torch.float8_e8m0fnu) if each is not None and each.dtype == torch.uint8 else each
            for name, each in scales.items()
        }
        first, second = (each.view(torch.float4_e2m1fn_x2) if each.dtype == FP4 else each for each in (a, b))
        assert torch.equal(grouped_matmul(first, second, offs, **named, out_dtype=F32), expected)


def test_shuffled_scales_of_weights(target):
    """quantize's output for each group's matrix, in the kernels' order."""
    x, w = torch.randn(40, 320, dtype=BF16), torch.randn(3, 96, 320)
    offs = ends_of([20, 0, 17])
    codes, scales = quantize(w.view(288, 320), QuantSpec("mxfp4"))
    each = [quantize(matrix, QuantSpec("mxfp4", layout="shuffled"))[1] for matrix in w]
    codes, scales = codes.view(3, 96, 160), scales.view(3, 96, 10)
    expected = grouped_matmul(x, codes.mT, offs, scale_b=scales.mT)
    assert torch.equal(
        grouped_matmul(x, codes.mT, offs, scale_b=torch.stack(each), swizzle="shuffled"), expected
    )
    values = dequantize(codes.view(288, 160), scales.reshape(288, 10), QuantSpec("mxfp4"), F32).view(
        3, 96, 320
    )
    assert rms(expected, in_groups(x.double(), values.double().mT, offs)) <= BAR[BF16]
    with pytest.raises(ValueError, match="shuffled: whole blocks for each group"):
        grouped_matmul(x, codes.mT, offs, scale_b=torch.stack(each)[:, :16], swizzle="shuffled")


def test_more_groups_than_lanes(target):
    sizes = torch.randint(0, 3, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    for of in (OPERANDS[0], OPERANDS[-1]):
        if has(target, of):
            check(of, sizes, 16, 32)


def test_empty(target):
    offs = ends_of([2, 2])

    def product(m, n, k, bias=None):
        a, b = torch.zeros(m, k, dtype=BF16), torch.zeros(2, n, k // 2, dtype=FP4).mT
        scale = torch.full((2, n, k // 32), 127, dtype=torch.uint8).mT
        return grouped_matmul(a, b, offs, scale_b=scale, out_dtype=F32, bias=bias)

    assert product(0, 5, 32).shape == (0, 5) and product(6, 0, 32).shape == (6, 0)
    bias = torch.randn(2, 8)
    added = torch.cat([bias.repeat_interleave(2, 0), torch.zeros(2, 8)])
    for k in (0, 64):
        assert torch.equal(product(6, 8, k, bias), added)
    if target == "gfx950":
        none = torch.zeros(6, 0, dtype=FP4), torch.zeros(2, 8, 0, dtype=FP4).mT
        scales = {"scale_a": none[0], "scale_b": none[1]}
        assert torch.equal(grouped_matmul(*none, offs, **scales, bias=bias, out_dtype=F32), added)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("offs", [[40, 10, 60], [-5, 20, 100], [2**31 - 1, 3, -(2**31)]], ids=str)
def test_wrong_ends_touch_no_other_memory(arch, offs):
    """As for other grouped products; groups that overlap write the same rows, which the simulator reports."""
    with hipkittens.simulate(arch, checks="all") as simulation:
        for of in OPERANDS:
            if has(arch, of):
                (a, b, _), scales, *_ = operands(of, [20, 10, 17], 24, 160)
                grouped_matmul(a, b, torch.tensor(offs, dtype=torch.int32), **scales)
        assert {finding.kind for finding in simulation.findings} <= {"workgroups_write_after_write"}


def test_ends_stay_on_the_device():
    """Shapes, and therefore launches, follow from sizes alone: offs without values suffices."""
    with hipkittens.simulate("gfx950"):
        for of in OPERANDS:
            arguments, scales, *_ = operands(of, [9, 20], 16, 32)
            given = {name: None if each is None else each.to("meta") for name, each in scales.items()}
            assert grouped_matmul(*(each.to("meta") for each in arguments), **given).shape == (32, 16)


def test_torch_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    for of in OPERANDS:
        check(of, [9, 0, 20], 140, 192, exponents=3)
    arguments, scales, *_ = operands(OPERANDS[-1], [9, 0, 20], 32, 256)
    scales["scale_b"] = scales["scale_b"].mT.contiguous()
    with pytest.raises(ValueError, match="HIPKITTENS_BACKEND is torch, which reads no 'shuffled' scales"):
        grouped_matmul(*arguments, **scales, swizzle="shuffled")


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    for of in (OPERANDS[0], OPERANDS[-1]):
        if not has(target, of):
            continue
        arguments, scales, *_ = operands(of, [3, 0, 4], 24, 32)

        def layer(a, b, offs, scale_a, scale_b):
            return grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b).relu()

        compiled = torch.compile(layer, fullgraph=True, backend=compile_backend)
        assert torch.equal(compiled(*arguments, **scales), layer(*arguments, **scales))


def test_flops(target):
    """Counted in elements, not in bytes."""
    for of in OPERANDS:
        if has(target, of):
            arguments, scales, *_ = operands(of, [9, 20], 16, 64)
            with FlopCounterMode(display=False) as counter:
                grouped_matmul(*arguments, **scales)
            assert counter.get_total_flops() == 2 * 32 * 16 * 64


def test_opcheck(target):
    (a, b, offs), scales, *_ = operands(OPERANDS[-1], [3, 0, 4], 8, 32)
    shuffled = hipkittens.scaled_gemm.shuffled(scales["scale_b"].mT)
    inputs = (a.view(torch.uint8), b, offs, None, shuffled, torch.ones(3, 8), None, 1, 6, 3, 1, 3, BF16)
    results = torch.library.opcheck(torch.ops.hipkittens.scaled_grouped_gemm.default, inputs)
    assert set(results.values()) == {"SUCCESS"}


A, B = torch.zeros(8, 32, dtype=FP4), torch.zeros(3, 32, 8, dtype=FP4)
SCALE_A, SCALE_B = torch.zeros(8, 2, dtype=FP4), torch.zeros(3, 2, 8, dtype=FP4)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"scale_a": None}, ValueError, "scale_a is None; give the factors"),
        (
            {"scale_a": torch.ones(8, 1)},
            ValueError,
            "of torch.float32 and torch.uint8; allowed with a (8, 64)",
        ),
        ({"scale_b": SCALE_B[:, :1]}, ValueError, "('1x32', '1x32'): (8, 2) and (3, 2, 8)"),
        ({"recipe": "row"}, ValueError, "the recipe 'row' of a of fp4 and b of fp4; allowed: '1x32', None"),
        ({"swizzle": "32_4_4"}, ValueError, "swizzle is '32_4_4'; allowed: None, and 'shuffled'"),
        (
            {"a": A.view(torch.int8)},
            TypeError,
            "a is torch.int8 and b is torch.uint8; allowed: both e4m3, both torch.int8",
        ),
        ({"b": B.view(FP8)}, TypeError, "a is torch.uint8 and b is torch.float8_e4m3fn; allowed: both e4m3"),
        ({"a": A[:, :16]}, ValueError, "a has 16 columns and b has 32 rows, 32 and 64 of K"),
        (
            {"a": A[:, :20], "b": B[:, :20], "scale_a": SCALE_A[:, :1], "scale_b": SCALE_B[:, :1]},
            ValueError,
            "K is 40; scales of 32 of K need a multiple of 32",
        ),
        ({"b": B[0]}, ValueError, "groups of rows"),
    ],
)
def test_messages(change, error, says):
    arguments = {"a": A, "b": B, "offs": ends_of([2, 2, 3]), "scale_a": SCALE_A, "scale_b": SCALE_B} | change
    with hipkittens.simulate("gfx950"), pytest.raises(error) as raised:
        grouped_matmul(**arguments)
    assert says in str(raised.value) and "hipkittens.grouped_matmul" in str(raised.value)


def test_gfx942_has_no_such_instruction():
    offs, wide = ends_of([2, 2, 3]), torch.zeros(8, 64).to(torch.float8_e4m3fnuz)
    with hipkittens.simulate("gfx942"):
        for a, scale in ((A, SCALE_A), (wide, SCALE_A), (wide, torch.ones(8, 1))):
            with pytest.raises(ValueError, match="gfx942 has no matrix instruction with scales"):
                grouped_matmul(a, B, offs, scale_a=scale, scale_b=SCALE_B)
