# SPDX-License-Identifier: MIT
"""hipkittens.grouped_matmul of int8: exact sums, scales per row and per tensor, every tile, refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.operations._tensors import ends_of
from tests.simulated_device import TARGETS

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
# Root mean square of the error over that of the result: one rounding to 16 bits, and three in float32.
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}
SIZES = [[5, 0, 40, 1, 0], [0, 0, 70], [0, 0], [1, 17, 2]]


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def codes(*shape, seed):
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed)).to(I8)


def operands(sizes, n, k, behind=3):
    return codes(sum(sizes) + behind, k, seed=k), codes(len(sizes), n, k, seed=n).mT, ends_of(sizes)


def factors(*shape, seed=0):
    random = torch.Generator().manual_seed(seed)
    powers = torch.randint(-20, 21, shape, generator=random)
    return torch.ldexp(1 + torch.rand(shape, generator=random), powers)


def expected(a, b, offs):
    return in_groups(a.double(), b.double(), offs)


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(136, 160), (257, 275), (1, 2880), (33, 1)])
def test_sums_are_exact(target, sizes, n, k):
    a, b, offs = operands(sizes, n, k)
    out = hipkittens.grouped_matmul(a, b, offs, out_dtype=I32)
    assert out.dtype == I32 and torch.equal(out.double(), expected(a, b, offs))


def test_largest_sums_are_exact(target):
    """-128 * -128 for each of the largest supported K: just below 2 ** 31."""
    k = 2**17 - 4
    a, b = torch.full((2, k), -128, dtype=I8), torch.full((1, k, 1), -128, dtype=I8)
    out = hipkittens.grouped_matmul(a, b, ends_of([1]), out_dtype=I32)
    assert out.tolist() == [[k * 2**14], [0]]


@pytest.mark.parametrize("sizes", [[255, 1, 257], [17, 0, 600]], ids=str)
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_scales_of_rows(target, sizes, dtype):
    n, k = 272, 416
    a, b, offs = operands(sizes, n, k)
    # float16 holds sums times these; the other dtypes any.
    scale_a, scale_b = factors(len(a), 1), factors(len(sizes), 1, n, seed=1)
    if dtype == F16:
        scale_a, scale_b = (0.5 + torch.rand(each.shape) / 1024 for each in (scale_a, scale_b))
        scale_a = scale_a / 512
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype)
    assert out.dtype == dtype and not out[sum(sizes) :].any()
    assert rms(out, in_groups(a.double() * scale_a, b.double() * scale_b, offs)) <= BAR[dtype]


def test_scales_of_tensors_and_bias(target):
    a, b, offs = operands([9, 0, 20], 40, 64)
    one, each = torch.tensor(0.75), torch.tensor([0.5, 3.0, 1.5])
    bias = torch.randn(3, 40)
    added = torch.cat((bias[0].expand(9, 40), bias[2].expand(20, 40), torch.zeros(3, 40))).double()
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=one, scale_b=each, bias=bias, out_dtype=F32)
    assert (
        rms(out, in_groups(a.double() * 0.75, b.double() * each.double()[:, None, None], offs) + added)
        <= BAR[F32]
    )


@pytest.mark.parametrize(
    ("tile", "sizes", "n", "k"),
    [
        ("16x64", (5, 0, 20), 136, 264),
        ("32x64", (30, 22) * 7 + (52, 0), 1024, 1000),
        pytest.param("128x128", (900, 700), 2048, 1000, marks=pytest.mark.slow),
        pytest.param("256x256", (1500, 0, 1497), 4096, 616, marks=pytest.mark.slow),
    ],
)
def test_tiles(target, tile, sizes, n, k):
    a, b, offs = operands(sizes, n, k)
    out = hipkittens.grouped_matmul(a, b, offs, out_dtype=I32)
    assert f"grouped_nt_i8_{tile}x128" in hipkittens._library.last_kernel()
    # float32 represents every sum of so few products of 8-bit values.
    assert k * 2**14 <= 2**24 and torch.equal(out.float(), in_groups(a.float(), b.float(), offs))


def test_layouts(target):
    """Rows with gaps, rows at any alignment, and weights that are not contiguous along K."""
    a, b, offs = operands([9, 0, 20], 140, 200)
    reference = expected(a, b, offs)
    for gap in (3, 8):
        wide = torch.full((len(a), 200 + gap), 99, dtype=I8)
        wide[:, gap:] = a
        assert torch.equal(
            hipkittens.grouped_matmul(wide[:, gap:], b, offs, out_dtype=I32).double(), reference
        )
    assert torch.equal(hipkittens.grouped_matmul(a, b.contiguous(), offs, out_dtype=I32).double(), reference)


def test_empty(target):
    offs = ends_of([2, 2])
    for m, n, k in ((0, 5, 8), (6, 0, 8), (6, 8, 0)):
        out = hipkittens.grouped_matmul(
            torch.zeros(m, k, dtype=I8), torch.zeros(2, n, k, dtype=I8).mT, offs, out_dtype=I32
        )
        assert out.shape == (m, n) and not out.any()


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("offs", [[40, 10, 60], [-5, 20, 100], [2**31 - 1, 3, -(2**31)]], ids=str)
def test_wrong_ends_touch_no_other_memory(arch, offs):
    with hipkittens.simulate(arch, checks="all") as simulation:
        a, b, _ = operands([20, 10, 17], 24, 160)
        hipkittens.grouped_matmul(a, b, torch.tensor(offs, dtype=I32), out_dtype=I32)
        assert {finding.kind for finding in simulation.findings} <= {"workgroups_write_after_write"}


def test_torch_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    a, b, offs = operands([9, 0, 20], 40, 4000)
    assert torch.equal(hipkittens.grouped_matmul(a, b, offs, out_dtype=I32).double(), expected(a, b, offs))
    one = torch.ones(())
    out = hipkittens.grouped_matmul(a, b, offs, scale_a=one, scale_b=one, out_dtype=F32)
    assert torch.equal(out, expected(a, b, offs).float())


def test_opcheck(target):
    a, b, offs = operands([3, 0, 4], 8, 16)
    bytes_ = a.view(torch.uint8), b.mT.view(torch.uint8).mT
    for scales, dtype in (((torch.ones(10, 1), torch.ones(3, 8, 1)), BF16), ((None, None), I32)):
        inputs = (*bytes_, offs, *scales, None, None, 1, 2, 2, 1, 1, dtype)
        results = torch.library.opcheck(torch.ops.hipkittens.scaled_grouped_gemm.default, inputs)
        assert set(results.values()) == {"SUCCESS"}


WRONG = [
    ({"out_dtype": None}, TypeError, "a is torch.int8, codes without scales; give scale_a and scale_b, or of int8 out_dtype=torch.int32"),
    ({"scale_a": torch.ones(())}, ValueError, "out_dtype is torch.int32, the sums themselves, and scale_a is given; leave it None"),
    ({"bias": torch.ones(8)}, ValueError, "out_dtype is torch.int32, the sums themselves, and bias is given"),
    ({"recipe": "row"}, ValueError, "and recipe is given"),
    ({"b": torch.zeros(3, 16, 8).to(torch.float8_e4m3fn)}, TypeError, "a is torch.int8 and b is torch.float8_e4m3fn"),
    ({"b": torch.zeros(3, 16, 8).to(torch.float8_e4m3fn), "out_dtype": BF16, "recipe": "row"}, TypeError,
     "a is torch.int8 and b is torch.float8_e4m3fn; allowed: both e4m3, both torch.int8"),
    ({"a": torch.zeros(1, 1, dtype=I8).expand(8, 2**17), "b": torch.zeros(1, 1, 1, dtype=I8).expand(3, 2**17, 8)}, ValueError,
     "K is 131072; sums of int8 products fit in 32 bits up to 131068: split K"),
    ({"recipe": ("1x128", "128x128"), "scale_a": torch.ones(8, 1), "scale_b": torch.ones(3, 1, 1), "out_dtype": BF16}, ValueError,
     "there is no kernel for the recipe ('1x128', '128x128') of a of int8 and b of int8"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "says"), WRONG)
def test_bad_input(change, error, says):
    a, b, offs = operands([2, 2, 3], 8, 16, behind=1)
    arguments = {"a": a, "b": b, "offs": offs, "out_dtype": I32} | change
    with hipkittens.simulate("gfx950"), pytest.raises(error) as raised:
        hipkittens.grouped_matmul(**arguments)
    assert says in str(raised.value) and "hipkittens.grouped_matmul" in str(raised.value)
