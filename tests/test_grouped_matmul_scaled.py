# SPDX-License-Identifier: MIT
"""hipkittens.grouped_matmul of 8-bit floats with float32 scales per row, per tensor, and per block of 128."""

import pytest
import torch

import hipkittens
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.operations._tensors import ends_of
from tests.oracles.aiter.formats import float8

TARGETS = ("gfx942", "gfx950")
OTHER = {"gfx942": "gfx950", "gfx950": "gfx942"}
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# Root mean square of the error over that of the result: one rounding to 16 bits, and sums in float32.
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
SIZES = [
    [5, 0, 40, 1, 0],  # with empty groups, the last among them
    [0, 0, 70],  # all rows in one
    [70],
    [0, 0],  # no rows at all: all are past the last group
    [1, 17, 2],
]


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def drawn(*shape, seed, exponents):
    """Scales over 2 ** -exponents .. 2 ** exponents."""
    random = torch.Generator().manual_seed(seed)
    powers = torch.randint(-exponents, exponents + 1, shape, generator=random)
    return torch.ldexp(1 + torch.rand(shape, generator=random), powers)


def codes(target, *shape, seed):
    random = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=random).to(float8(target))


def operands(target, sizes, n, k, blocks=False, exponents=20, behind=3):
    """a, b, offs, both scales, and the dequantized values of a and b in float64."""
    m, groups = sum(sizes) + behind, len(sizes)
    a, w = codes(target, m, k, seed=k), codes(target, groups, n, k, seed=n)
    if not blocks:
        scale_a = drawn(m, 1, seed=1, exponents=exponents)
        scale_b = drawn(groups, 1, n, seed=2, exponents=exponents)
        return a, w.mT, ends_of(sizes), scale_a, scale_b, a.double() * scale_a, w.double().mT * scale_b
    count = -(-k // 128)
    scale_a = drawn(m, count, seed=1, exponents=exponents)
    scale_b = drawn(groups, count, -(-n // 128), seed=2, exponents=exponents)
    left = a.double() * scale_a.repeat_interleave(128, 1)[:, :k]
    whole = scale_b.repeat_interleave(128, 1)[:, :k].repeat_interleave(128, 2)[..., :n]
    return a, w.mT, ends_of(sizes), scale_a, scale_b, left, w.double().mT * whole


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


def check(target, sizes, n, k, blocks=False, dtype=F32, exponents=20):
    a, b, offs, scale_a, scale_b, left, right = operands(target, sizes, n, k, blocks, exponents)
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype)
    assert out.dtype == dtype and not out[sum(sizes) :].any()
    if sum(sizes):
        assert rms(out, in_groups(left, right, offs)) <= BAR[dtype], (sizes, n, k, blocks)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_sizes_of_groups(target, sizes, blocks):
    """N ends inside a tile and a block of columns; rows of K are whole dwords, or are copied so that they are."""
    for n, k in ((136, 160), (257, 275)):
        check(target, sizes, n, k, blocks)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("sizes", [[255, 1, 257], [17, 0, 600]], ids=str)
def test_large_groups(target, sizes, blocks):
    check(target, sizes, 272, 416, blocks, dtype=BF16, exponents=3)


@pytest.mark.parametrize("blocks", [False, True])
def test_results_are_rounded_once(target, blocks):
    for dtype in (BF16, F16):
        check(target, [20, 3], 72, 256, blocks, dtype=dtype, exponents=3)


def _takes(target, tile, sizes, n, k, blocks):
    check(target, sizes, n, k, blocks, dtype=BF16, exponents=3)
    name = hipkittens._library.last_kernel()
    assert f"grouped_nt_fp8_{tile}x128" in name and ("blocks" in name) == blocks


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize(
    ("tile", "sizes", "n", "k"),
    [
        ("16x64", (5, 0, 20), 136, 264),
        ("32x64", (30, 22) * 7 + (52, 0), 1024, 1032),
        pytest.param("128x128", (900, 700), 2048, 2128, marks=pytest.mark.slow),
        pytest.param("256x256", (1500, 0, 1497), 4096, 616, marks=pytest.mark.slow),
    ],
)
def test_tiles(target, tile, sizes, n, k, blocks):
    if (tile, blocks, target) == ("256x256", True, "gfx942"):
        tile = "128x128"  # the largest that fits into the registers of gfx942 with the sums of a block
    _takes(target, tile, sizes, n, k, blocks)


@pytest.mark.parametrize(
    ("tile", "sizes", "n", "k"),
    [
        # Short K and many columns: a workgroup processes three neighbors in a row of tiles, except for the last, which has one.
        ("32x64x128", (30, 26) * 31 + (56, 0), 8512, 264),
        ("64x64x128_two_buffers", (64, 56) * 16, 1536, 1032),
    ],
)
def test_whole_numbers_of_many_groups_are_exact(tile, sizes, n, k):
    random = torch.Generator().manual_seed(7)
    a = torch.randint(-4, 5, (sum(sizes), k), generator=random).float()
    b = torch.randint(-4, 5, (len(sizes), k, n), generator=random, dtype=torch.int8)
    wanted = torch.cat([rows @ each.float() for rows, each in zip(a.split(sizes), b, strict=True)])
    codes = (a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).mT.contiguous().mT)
    one = torch.ones(1)
    with hipkittens.simulate("gfx950"):
        out = hipkittens.grouped_matmul(*codes, ends_of(sizes), scale_a=one, scale_b=one, out_dtype=F32)
    assert torch.equal(out, wanted)
    assert f"grouped_nt_fp8_{tile}_gfx950" in hipkittens._library.last_kernel()


def test_scales_of_tensors(target):
    """One factor for all of an operand, or for each group's matrix; with row scales of the other operand, or with one."""
    a, b, offs, rows, columns, left, right = operands(target, [9, 0, 20], 40, 64, exponents=3)
    one, each = torch.tensor(0.75), torch.tensor([0.5, 3.0, 1.5])
    plain = a.double(), b.double()
    cases = (
        (one, one, plain[0] * 0.75, plain[1] * 0.75),
        (one, each, plain[0] * 0.75, plain[1] * each.double()[:, None, None]),
        (rows, each[:, None, None], left, plain[1] * each.double()[:, None, None]),
        (one.reshape(1, 1), columns, plain[0] * 0.75, right),
        (rows[:, 0], columns[:, 0], left, right),
    )
    for scale_a, scale_b, first, second in cases:
        out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, out_dtype=F32)
        assert rms(out, in_groups(first, second, offs)) <= BAR[F32]


@pytest.mark.parametrize("per_group", [False, True])
def test_bias(target, per_group):
    a, b, offs, scale_a, scale_b, left, right = operands(target, [17, 0, 15], 33, 96, exponents=2)
    bias = torch.randn(3, 33) if per_group else torch.randn(33)
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, bias=bias, out_dtype=F32)
    rows = bias if per_group else bias.expand(3, 33)
    added = torch.cat([rows[0].expand(17, 33), rows[2].expand(15, 33), torch.zeros(3, 33)])
    assert rms(out, in_groups(left, right, offs) + added.double()) <= BAR[F32]


@pytest.mark.parametrize("blocks", [False, True])
def test_zero_and_nan_stay_where_they_are(target, blocks):
    """In scales, in quantized values, and past the last group, where they affect nothing."""
    sizes, n, k = [20, 3, 9], 136, 256
    a, b, offs, scale_a, scale_b, left, right = operands(target, sizes, n, k, blocks, exponents=0)
    expected = in_groups(left, right, offs)
    scale_a[2] = 0.0
    scale_a[5, -1] = torch.nan
    a.view(torch.uint8)[7, 3] = 0x80 if target == "gfx942" else 0x7F
    scale_b[1] = torch.nan
    scale_a[32:] = torch.nan
    a.view(torch.uint8)[33:] = 0x80 if target == "gfx942" else 0x7F
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, out_dtype=F32)
    wrong = torch.zeros(len(out), dtype=torch.bool)
    wrong[[5, 7, 20, 21, 22]] = True
    assert torch.equal(out.isnan(), wrong[:, None].expand(-1, n))
    assert not out[2].any() and not out[32:].any()
    kept = [row for row in range(32) if not wrong[row] and row != 2]
    assert rms(out[kept], expected[kept]) <= BAR[F32]


def test_layouts(target):
    """Rows with gaps, rows at any alignment, weights that are not contiguous along K, and scales of any strides."""
    a, b, offs, scale_a, scale_b, left, right = operands(target, [9, 0, 20], 140, 200, blocks=True)
    expected = in_groups(left, right, offs)

    def close(a, b, scale_a, scale_b):
        out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, out_dtype=F32)
        assert rms(out, expected) <= BAR[F32]

    for gap in (3, 8):
        wide = torch.full((len(a), 200 + gap), 0x7F, dtype=torch.uint8)
        wide[:, gap:] = a.view(torch.uint8)
        close(wide.view(a.dtype)[:, gap:], b, scale_a, scale_b)
    close(a, b.contiguous(), scale_a, scale_b)
    close(a, b, scale_a.t().contiguous().t(), scale_b.mT.contiguous().mT)
    apart = torch.full((len(a), 2, 5), torch.nan)
    apart[:, 1, 1:3] = scale_a
    close(a, b, apart[:, 1, 1:3], scale_b)


def test_more_groups_than_lanes(target):
    sizes = torch.randint(0, 3, (130,), generator=torch.Generator().manual_seed(0)).tolist()
    check(target, sizes, 16, 32)
    check(target, sizes, 16, 32, blocks=True)


def test_empty(target):
    fp8 = float8(target)
    offs, ones = ends_of([2, 2]), torch.ones(6, 1)

    def product(m, n, k, **options):
        a, b = torch.zeros(m, k).to(fp8), torch.zeros(2, n, k).to(fp8).mT
        return hipkittens.grouped_matmul(
            a, b, offs, scale_a=ones[:m], scale_b=torch.ones(2, 1, n), out_dtype=F32, **options
        )

    assert product(0, 5, 8).shape == (0, 5) and product(6, 0, 8).shape == (6, 0)
    bias = torch.randn(2, 8)
    added = bias.repeat_interleave(2, 0)
    assert torch.equal(product(6, 8, 0, bias=bias), torch.cat([added, torch.zeros(2, 8)]))
    nothing = hipkittens.grouped_matmul(
        torch.zeros(6, 0).to(fp8),
        torch.zeros(2, 8, 0).to(fp8).mT,
        offs,
        scale_a=torch.ones(6, 0),
        scale_b=torch.ones(2, 0, 1),
        recipe=("1x128", "128x128"),
    )
    assert torch.equal(nothing, torch.zeros(6, 8, dtype=BF16))


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("offs", [[40, 10, 60], [-5, 20, 100], [2**31 - 1, 3, -(2**31)]], ids=str)
def test_wrong_ends_touch_no_other_memory(arch, offs, blocks):
    """The simulator reports any access outside of the operands, of the scales and of the result. Groups that overlap write the same
    rows, which it reports, too."""
    with hipkittens.simulate(arch, checks="all") as simulation:
        a, b, _, scale_a, scale_b, *_ = operands(arch, [20, 10, 17], 24, 160, blocks)
        ends = torch.tensor(offs, dtype=torch.int32)
        hipkittens.grouped_matmul(a, b, ends, scale_a=scale_a, scale_b=scale_b)
        assert {finding.kind for finding in simulation.findings} <= {"workgroups_write_after_write"}


def test_the_default_result_is_bfloat16(target):
    a, b, offs, scale_a, scale_b, *_ = operands(target, [9], 16, 32)
    assert hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b).dtype == BF16


def test_a_tensor_of_the_other_target_is_refused(target):
    a, b, offs, scale_a, scale_b, *_ = operands(OTHER[target], [9], 16, 32)
    with pytest.raises(TypeError, match=f"a is {a.dtype}; {target} multiplies {float8(target)}"):
        hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b)


def test_ends_stay_on_the_device():
    """Shapes, and therefore launches, follow from sizes alone: offs without values suffices."""
    with hipkittens.simulate("gfx950"):
        given = [value.to("meta") for value in operands("gfx950", [9, 20], 16, 32)[:5]]
        a, b, offs, scale_a, scale_b = given
        assert hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b).shape == (32, 16)


def test_torch_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    for blocks in (False, True):
        check("gfx950", [9, 0, 20], 140, 200, blocks)


def test_opcheck(target):
    a, b, offs, scale_a, scale_b, *_ = operands(target, [3, 0, 4], 8, 16)
    bytes_ = a.view(torch.uint8), b.mT.view(torch.uint8).mT
    inputs = (*bytes_, offs, scale_a, scale_b.mT, torch.ones(3, 8), None, 1, 0, 0, 1, 1, BF16)
    results = torch.library.opcheck(torch.ops.hipkittens.scaled_grouped_gemm.default, inputs)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    a, b, offs, scale_a, scale_b, *_ = operands(target, [3, 0, 4], 24, 16)

    def layer(a, b, offs, scale_a, scale_b):
        return hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a * 2, scale_b=scale_b).relu()

    compiled = torch.compile(layer, fullgraph=True, backend=compile_backend)
    arguments = (a, b, offs, scale_a, scale_b)
    assert torch.equal(compiled(*arguments), layer(*arguments))


ONES = torch.ones(8, 1)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"scale_b": None}, ValueError, "scale_b is None; give the factors"),
        ({"scale_a": None}, ValueError, "scale_a is None; give the factors"),
        ({"scale_a": torch.ones(8, 2)}, ValueError, "scale_a has shape (8, 2) and scale_b (3, 1, 8)"),
        ({"scale_b": torch.ones(3, 8, 1)}, ValueError, "('row', 'row'): (8, 1) and (3, 1, 8)"),
        ({"scale_a": ONES.double()}, TypeError, "scale_a is torch.float64; allowed: torch.float32"),
        ({"scale_a": ONES.clone().requires_grad_()}, ValueError, "scale_a requires a gradient and gets none"),
        ({"recipe": "1x32"}, ValueError, "scale_a has shape (8, 1) and scale_b (3, 1, 8)"),
        ({"recipe": "128x128"}, ValueError, "there is no kernel for the recipe '128x128'"),
        ({"recipe": "tensor"}, ValueError, "('tensor', 'tensor')"),
        (
            {"a": torch.zeros(8, 16, dtype=BF16)},
            TypeError,
            "a is torch.bfloat16 and b is torch.float8_e4m3fn; allowed: both e4m3",
        ),
        ({"a": torch.zeros(8, 16, dtype=torch.int16)}, TypeError, "a is torch.int16; allowed: torch.float8"),
        ({"offs": None}, ValueError, "offs is None"),
        ({"offs": torch.zeros(4, dtype=torch.int32)}, ValueError, "b has 3 groups and offs 4"),
        ({"b": torch.zeros(16, 8).to(float8("gfx950"))}, ValueError, "groups of rows"),
        ({"bias": torch.ones(2, 8)}, ValueError, "bias has shape (2, 8)"),
        (
            {"out_dtype": torch.int32},
            TypeError,
            "out_dtype is torch.int32; allowed: torch.bfloat16, torch.float16, torch.float32, and torch.int32 of int8",
        ),
    ],
)
def test_messages(change, error, says):
    fp8 = float8("gfx950")
    arguments = {
        "a": torch.zeros(8, 16).to(fp8),
        "b": torch.zeros(3, 16, 8).to(fp8),
        "offs": ends_of([2, 2, 3]),
        "scale_a": ONES,
        "scale_b": torch.ones(3, 1, 8),
    } | change
    with hipkittens.simulate("gfx950"), pytest.raises(error) as raised:
        hipkittens.grouped_matmul(**arguments)
    assert says in str(raised.value) and "hipkittens.grouped_matmul" in str(raised.value)


def test_codes_without_scales_are_refused():
    fp8 = float8("gfx950")
    a, b = torch.zeros(8, 16).to(fp8), torch.zeros(3, 16, 8).to(fp8)
    with hipkittens.simulate("gfx950"), pytest.raises(TypeError, match="give scale_a and scale_b"):
        hipkittens.grouped_matmul(a, b, ends_of([2, 2, 3]))
