# SPDX-License-Identifier: MIT
"""hipkittens.scaled_matmul with float32 block scales: 1 or 128 rows by 128 of K."""

import pytest
import torch

import hipkittens
from hipkittens import aiter
from tests.oracles.aiter.formats import float8

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BLOCKS = ("1x128", "128x128")
# Root mean square of the error over that of the result: one rounding to 16 bits, and sums in float32.
BAR = {BF16: 2.5e-3, F16: 4e-4, F32: 1e-6}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def operand(target, rows, k, rows_of_block, seed, exponents=20, by_row=True):
    """Quantized values (rows, k), their scales, and the dequantized values in float64."""
    random = torch.Generator().manual_seed(seed)
    codes = torch.randn(rows, k, generator=random).to(float8(target))
    shape = (-(-rows // rows_of_block), -(-k // 128))
    scales = torch.ldexp(
        1 + torch.rand(shape, generator=random),
        torch.randint(-exponents, exponents + 1, shape, generator=random),
    )
    whole = scales.double().repeat_interleave(rows_of_block, 0)[:rows].repeat_interleave(128, 1)[:, :k]
    return codes, scales if by_row else scales.t().contiguous().t(), codes.double() * whole


def rms(out, reference):
    assert not out.isnan().any()
    return ((out.double() - reference).square().mean() / reference.square().mean()).sqrt().item()


def check(target, m, n, k, recipe=("1x128", "128x128"), dtype=F32, by_row=True, exponents=20, **options):
    rows = {"1x128": 1, "128x128": 128}
    a, scale_a, left = operand(target, m, k, rows[recipe[0]], m + k, exponents, by_row)
    b, scale_b, right = operand(target, n, k, rows[recipe[1]], n + k + 1, exponents)
    out = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), recipe=recipe, out_dtype=dtype, **options)
    assert rms(out, left @ right.T) <= BAR[dtype], (m, n, k, recipe)


# N inside a block of columns, K inside a block of K, rows of K that are not whole dwords, and a split K.
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 16, 128), (17, 132, 272), (130, 200, 416), (128, 257, 160), (70, 131, 275), (2, 64, 4224)],
)
def test_sizes(target, m, n, k):
    check(target, m, n, k, by_row=m != 17)


@pytest.mark.parametrize("recipe", [(a, b) for a in BLOCKS for b in BLOCKS])
def test_recipes(target, recipe):
    check(target, 140, 150, 400, recipe)


@pytest.mark.parametrize("recipe", [("1x128", "1x128"), ("128x128", "1x128")])
def test_rows_that_begin_anywhere(target, recipe):
    """No kernel supports them with these recipes: they are copied."""
    check(target, 33, 40, 275, recipe)
    rows = {"1x128": 1, "128x128": 128}
    a, scale_a, left = operand(target, 33, 272, rows[recipe[0]], 1)
    b, scale_b, right = operand(target, 40, 272, rows[recipe[1]], 2)
    wide = torch.zeros(33, 275, dtype=torch.uint8)
    wide[:, 3:] = a.view(torch.uint8)
    out = hipkittens.scaled_matmul(
        wide.view(a.dtype)[:, 3:], b.t(), scale_a, scale_b.t(), recipe=recipe, out_dtype=F32
    )
    assert rms(out, left @ right.T) <= BAR[F32]


@pytest.mark.filterwarnings("ignore")
def test_compiled(target, compile_backend):
    torch._dynamo.reset()
    a, scale_a, _ = operand(target, 33, 275, 1, 1)
    b, scale_b, _ = operand(target, 40, 275, 1, 2)

    def product(a, b, scale_a, scale_b):
        return hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), recipe=("1x128", "1x128"))

    given = (a, b, scale_a, scale_b)
    assert torch.equal(
        torch.compile(product, fullgraph=True, backend=compile_backend)(*given), product(*given)
    )


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_are_rounded_once(target, dtype):
    check(target, 40, 72, 256, dtype=dtype, exponents=3)


def test_a_product_of_large_tiles(target):
    check(target, 1024 + 6, 512, 512, dtype=BF16)


def test_bias_and_activation(target):
    a, scale_a, left = operand(target, 33, 256, 1, 1, 2)
    b, scale_b, right = operand(target, 136, 256, 128, 2, 2)
    bias = torch.randn(136, generator=torch.Generator().manual_seed(3))
    out = hipkittens.scaled_matmul(
        a, b.t(), scale_a, scale_b.t(), bias=bias, activation="relu", out_dtype=F32
    )
    assert rms(out, (left @ right.T + bias.double()).relu()) <= BAR[F32]


@pytest.mark.parametrize(("m", "n", "k"), [(1, 300, 128), (5, 100, 128), (200, 300, 100)])
def test_recipe_is_inferred_where_k_has_one_block(target, m, n, k):
    a, scale_a, left = operand(target, m, k, 1, 1)
    b, scale_b, right = operand(target, n, k, 128, 2)
    out = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), out_dtype=F32)
    assert rms(out, left @ right.T) <= BAR[F32]


def test_scales_of_zero_and_nan_stay_in_their_blocks(target):
    m, n, k = 20, 300, 384
    a, scale_a, left = operand(target, m, k, 1, 1, 0)
    b, scale_b, right = operand(target, n, k, 128, 2, 0)
    scale_b[1] = 0
    right[128:256] = 0
    scale_b[2, 1] = torch.nan
    scale_a[3, 2] = torch.nan
    out = hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), out_dtype=F32)
    wrong = torch.zeros(m, n, dtype=torch.bool)
    wrong[3] = True
    wrong[:, 256:] = True
    assert torch.equal(out.isnan(), wrong)
    kept = [row for row in range(m) if row != 3]
    assert not out[kept][:, 128:256].any()
    assert rms(out[kept][:, :128], (left @ right.T)[kept][:, :128]) <= BAR[F32]


def test_scales_of_any_strides(target):
    m, n, k = 30, 140, 300
    a, scale_a, left = operand(target, m, k, 1, 1)
    b, scale_b, right = operand(target, n, k, 128, 2)
    wide_a, wide_b = torch.full((m, 3, 5), torch.nan), torch.full((2, 7), torch.nan)
    wide_a[:, 1, :3], wide_b[:, 2:5] = scale_a, scale_b
    out = hipkittens.scaled_matmul(a, b.t(), wide_a[:, 1, :3], wide_b[:, 2:5].t(), out_dtype=F32)
    assert rms(out, left @ right.T) <= BAR[F32]
    one = torch.ones(1, 1).expand(m, 3)
    out = hipkittens.scaled_matmul(a, b.t(), one, scale_b.t(), out_dtype=F32)
    assert rms(out, a.double() @ right.T) <= BAR[F32]


def test_the_same_bits_as_often_as_it_is_called(target):
    a, scale_a, _ = operand(target, 3, 4096, 1, 1)
    b, scale_b, _ = operand(target, 64, 4096, 128, 2)
    first, second = (hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t()) for _ in range(2))
    assert torch.equal(first, second)


def test_without_kernels(target, monkeypatch):
    monkeypatch.setattr("hipkittens._backend.uses_torch", lambda: True)
    check(target, 140, 150, 400, dtype=BF16)


def shuffled(weight):
    """aiter.ops.shuffle.shuffle_weight(weight, layout=(16, 16)) of bytes."""
    n, k = weight.shape
    return (
        weight.view(torch.uint8)
        .view(n // 16, 16, k // 16, 16)
        .transpose(1, 2)
        .reshape(n, k)
        .view(weight.dtype)
    )


def test_names_of_aiter(target):
    m, n, k = 18, 272, 416
    a, scale_a, left = operand(target, m, k, 1, 1, 3)
    b, scale_b, right = operand(target, n, k, 128, 2, 3)
    columns = scale_a.t().contiguous().view(scale_a.shape)
    reference = left @ right.T
    results = (
        aiter.gemm_a8w8_blockscale(a, b, scale_a, scale_b),
        aiter.gemm_a8w8_blockscale(a, shuffled(b), columns, scale_b, isBpreshuffled=True),
        aiter.gemm_a8w8_blockscale_bpreshuffle(a, shuffled(b), columns, scale_b, torch.float32),
        aiter.flatmm_a8w8_blockscale_ASM(a, shuffled(b), columns, scale_b.t().contiguous()),
    )
    for out, dtype in zip(results, (BF16, BF16, F32, F16), strict=True):
        assert out.dtype == dtype
        assert rms(out, reference) <= BAR[dtype]
    with pytest.raises(ValueError, match="and a multiple of 16 of them"):
        aiter.gemm_a8w8_blockscale_bpreshuffle(a, b[:270], columns, scale_b)


def test_what_is_refused(target):
    a, scale_a, _ = operand(target, 20, 256, 1, 1)
    b, scale_b, _ = operand(target, 300, 256, 128, 2)
    with pytest.raises(ValueError, match="scale_b has shape"):
        hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b[:2].t(), recipe=("1x128", "128x128"))
    with pytest.raises(ValueError, match="no kernel for the recipe"):
        hipkittens.scaled_matmul(a, b.t(), scale_a, torch.ones(1, 300), recipe=("1x128", "row"))
    with pytest.raises(TypeError, match=r"scale_a is torch\.float64"):
        hipkittens.scaled_matmul(a, b.t(), scale_a.double(), scale_b.t())
    e5m2 = torch.float8_e5m2fnuz if target == "gfx942" else torch.float8_e5m2
    with pytest.raises(TypeError, match="both e4m3"):
        hipkittens.scaled_matmul(a.float().to(e5m2), b.t(), scale_a, scale_b.t())
