# SPDX-License-Identifier: MIT
"""GEMMs under AITER's names, compared with the unmodified Triton kernels of its wheel, on the same bytes, both on the simulated device."""

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens import aiter
from hipkittens.integrations import triton as simulated
from tests.oracles.aiter import triton as aiter_triton
from tests.oracles.aiter.formats import float4_values, float8, tiled, tiled_scales
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = needs_wheel
BF16 = torch.bfloat16
# Relative to the root mean square of values whose operands are quantized first: e4m3 with scales of 128, MXFP4.
EIGHT_BITS, FOUR_BITS = 0.03, 0.13
PTGQ = "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant"
SIZES = [(1, 256, 512), (17, 512, 1024), (257, 256, 512)]


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


@pytest.fixture
def gfx950():
    with hipkittens.simulate("gfx950", checks=True):
        yield


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def error(out, exact):
    assert out.shape == exact.shape and not out.isnan().any()
    return (out.double() - exact).square().mean().sqrt().item()


def compare(exact, function, *arguments, module=None, bar=0.0025, **options):
    """Our error is at most 1.1 times theirs, and theirs is small enough to show that both compute the same thing."""
    theirs = getattr(aiter_triton.module(module or function.__name__), function.__name__)
    with simulated.active():
        found = theirs(*arguments, **options)
    mine = function(*arguments, **options)
    if not isinstance(exact, tuple):
        exact, found, mine = (exact,), (found,), (mine,)
    for right, other, own in zip(exact, found, mine, strict=True):
        errors = error(own, right), error(other, right)
        assert errors[0] <= 1.1 * errors[1], errors
        assert errors[1] <= bar * right.square().mean().sqrt(), errors


def blocks(target, rows, k, of_rows, seed):
    """e4m3 values, a float32 scale for each of_rows by 128 of them, and their dequantized values in float64."""
    codes = draw(rows, k, dtype=torch.float32, seed=seed).to(float8(target))
    shape = (-(-rows // of_rows), -(-k // 128))
    scales = torch.rand(shape, generator=torch.Generator().manual_seed(seed + 1)) + 0.1
    whole = scales.double().repeat_interleave(of_rows, 0)[:rows].repeat_interleave(128, 1)[:, :k]
    return codes, scales, codes.double() * whole


def float4(rows, k, seed):
    random = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, k // 2), generator=random).to(torch.uint8)
    scales = torch.randint(124, 131, (rows, k // 32), generator=random).to(torch.uint8)
    return codes, scales, float4_values(codes, scales)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_16_bits(target, m, n, k, monkeypatch):
    """Triton's schedule with two groups of waves leaves LDS reads outstanding across a barrier after which the other group writes:
    racecheck reports it, and on the simulated gfx942 such reads see the writes."""
    monkeypatch.setenv("TRITON_HIP_USE_BLOCK_PINGPONG", "0")
    x, w, bias = draw(m, k), draw(n, k, seed=1), draw(n, seed=2) * 8
    exact = x.double() @ w.double().T
    compare(exact + bias.double(), aiter.gemm_a16w16, x, w, bias)
    compare(exact, aiter.gemm_a16w16_atomic, x, w)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_batches_of_16_bits(target, m, n, k):
    """Theirs rounds before it adds the bias."""
    x, w, bias = draw(3, m, k), draw(3, n, k, seed=1), draw(3, 1, n, seed=2) * 8
    compare(x.double() @ w.double().mT + bias.double(), aiter.batched_gemm_bf16, x, w, bias, bar=0.003)


@pytest.mark.parametrize("pre_quant", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_weights_of_8_bits(target, m, n, k, pre_quant):
    x, (w, w_scale, right) = draw(m, k), blocks(target, n, k, 128, 1)
    compare(
        x.double() @ right.T,
        aiter.gemm_a16w8_blockscale,
        x,
        w,
        w_scale,
        pre_quant=pre_quant,
        bar=EIGHT_BITS if pre_quant else 0.0025,
    )


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_8_bits(target, m, n, k):
    (x, x_scale, left), (w, w_scale, right) = blocks(target, m, k, 1, 1), blocks(target, n, k, 128, 4)
    wide, other = draw(m, k), draw(48, k, seed=1)
    exact = left @ right.T, wide.double() @ other.double().T
    compare(exact[0], aiter.gemm_a8w8_blockscale, x, w, x_scale, w_scale)
    compare(exact, aiter.fused_gemm_a8w8_blockscale_a16w16, x, w, x_scale, w_scale, wide, other)


@pytest.mark.parametrize("codes", ["fp8", "int8"])
@pytest.mark.parametrize(("m", "n", "k"), [*SIZES[:2], (256, 256, 512)])
def test_batches_of_8_bits(target, m, n, k, codes):
    """Theirs reads scales past the last row if M is not a multiple of the tile."""
    dtype = torch.int8 if codes == "int8" else float8(target)
    x, w = ((draw(3, rows, k, dtype=torch.float32, seed=rows) * 30).to(dtype) for rows in (m, n))
    random = torch.Generator().manual_seed(5)
    x_scale, w_scale = torch.rand(3, m, 1, generator=random), torch.rand(3, 1, n, generator=random)
    exact = (x.double() @ w.double().mT) * x_scale.double() * w_scale.double()
    compare(exact, aiter.batched_gemm_a8w8, x, w, x_scale, w_scale)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_batches_with_weights_of_8_bits(target, m, n, k):
    x, w = draw(3, m, k), draw(3, n, k, dtype=torch.float32, seed=1).to(float8(target))
    exact = (x.double() @ w.double().mT) * 0.75
    compare(exact, getattr(aiter, PTGQ), x, w, torch.tensor([0.75]), bar=EIGHT_BITS)


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_products_of_4_bits(gfx950, m, n, k):
    (x, x_scales, left), (w, w_scales, right) = float4(m, k, 1), float4(n, k, 3)
    exact, module = left @ right.T, "gemm_afp4wfp4"
    compare(exact, aiter.gemm_afp4wfp4, x, w, x_scales, w_scales)
    tiles = [tiled_scales(each) for each in (x_scales, w_scales)]
    shaped = [each.view(each.shape[0] // 32, -1) for each in tiles]
    if m >= 32:
        compare(exact, aiter.gemm_afp4wfp4_preshuffled_scales, x, w, *shaped, module=module)
    panels = tiled(w).view(n // 16, -1)
    scales = shaped[0] if m >= 32 else x_scales, shaped[1]
    compare(
        exact, aiter.gemm_afp4wfp4_preshuffled_weight_scales, x, panels, *scales, use_aot=False, module=module
    )


@pytest.mark.parametrize(("m", "n", "k"), SIZES)
def test_weights_of_4_bits(gfx950, m, n, k):
    x, (w, w_scales, right) = draw(m, k), float4(n, k, 3)
    exact = x.double() @ right.T
    compare(
        exact,
        aiter.gemm_afp4wfp4_pre_quant,
        x,
        w,
        w_scales,
        module="gemm_afp4wfp4_pre_quant_atomic",
        bar=FOUR_BITS,
    )


@pytest.mark.parametrize(("m", "n", "k"), SIZES[1:])
def test_groups(target, m, n, k):
    """Theirs leaves the results of empty groups unwritten."""
    sizes = torch.tensor([m // 3, 1, m - m // 3 - 1], dtype=torch.int32)
    group = torch.repeat_interleave(torch.arange(3), sizes.long())
    rows, weights, others = draw(m, k), draw(3, k, n, seed=1), draw(m, n, seed=2)
    exact = torch.stack([row @ weights.double()[g] for row, g in zip(rows.double(), group, strict=True)])
    compare(exact, aiter.gmm, rows, weights, sizes)
    exact = torch.stack([rows[group == g].double().T @ others[group == g].double() for g in range(3)])
    for function in (aiter.ptgmm, aiter.nptgmm):
        compare(exact, function, rows.t(), others, sizes, module="gmm")
