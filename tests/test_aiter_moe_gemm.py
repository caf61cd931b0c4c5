# SPDX-License-Identifier: MIT
"""hipkittens.aiter's expert GEMMs with MXFP4 weights compared with float64 products of the dequantized operands."""

import inspect
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, aiter, dequantize
from hipkittens.activation import gated_in_torch
from tests.test_aiter_gemm import BAR, BF16, F16, F32, I32, draw, float4, generator, nothing_launched, rms

FP8 = torch.float8_e4m3fn
TESTED = set()
# Names and arguments from AITER's main branch of August 2026, which the pinned version lacks.
NEWER = {
    "moe_gemm_a4w4": "x w x_scales w_scales bias routing_data gather_indx scatter_indx gammas swizzle_mx_scale preshuffle_weights "
    "out_dtype apply_swiglu alpha limit swiglu_add_residual unpadded_N unpadded_K backend",
}
TOKENS, K_OF_TOKENS, EXPERTS = 23, 2, 5
N, K = 96, 288


def of(*names):
    """Declare the names that a test covers."""
    TESTED.update(names)
    return lambda test: test


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


@pytest.fixture
def gfx950():
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        yield
    assert simulation.findings == []


def routed(seed=0):
    """AITER's routing data, gather and scatter indices for random experts, one of which is empty; each token has two experts."""
    ids = torch.rand(TOKENS, EXPERTS - 1, generator=generator(seed)).argsort(1)[:, :K_OF_TOKENS]
    ids = torch.where(ids == 2, EXPERTS - 1, ids).reshape(-1)
    gather = ids.argsort(stable=True).to(I32)
    histogram = torch.bincount(ids, minlength=EXPERTS).to(I32)
    routing = SimpleNamespace(
        block_m=16, gate_scal=None, expt_hist=histogram, n_expts_tot=EXPERTS, n_expts_act=K_OF_TOKENS, expt_data=None
    )  # fmt: skip
    return routing, gather, gather.argsort().to(I32), ids[gather.long()]


def experts_weights(seed=3):
    """w (EXPERTS, K / 2, N) with K contiguous in memory, its scales (EXPERTS, K / 32, N), and values (EXPERTS, K, N) in float64."""
    codes, scales, values = float4(EXPERTS * N, K, seed, exponents=2)
    return [each.view(EXPERTS, N, -1).mT for each in (codes, scales, values)]


def tokens_of(format, rows, seed=7):
    """x, x_scales, the static scale, and the dequantized values."""
    if format == "fp4":
        codes, scales, values = float4(rows, K, seed, exponents=2)
        return codes, scales, None, values
    codes = draw(rows, K, dtype=F32, seed=seed).to(FP8)
    if format == "static":
        return codes, None, torch.tensor(0.37), codes.double() * torch.tensor(0.37).double()
    scales = torch.randint(125, 130, (rows, K // 32), generator=generator(seed + 1)).to(torch.uint8)
    return codes, scales, None, dequantize(codes, scales, QuantSpec("mxfp8"), F32).double()


def gated(sums, alpha, limit, adds_one):
    gate, other = sums[:, ::2], sums[:, 1::2]
    if limit is not None:
        gate, other = gate.clamp(max=limit), other.clamp(-limit, limit)
    return gate * torch.sigmoid(alpha * gate) * (other + int(adds_one))


def expected(values, w, expert, bias=None, swiglu=None, gammas=None):
    out = torch.bmm(values[:, None], w[expert])[:, 0]
    if bias is not None:
        out = out + bias.double()[expert]
    if swiglu is not None:
        out = gated(out, *swiglu)
    return out if gammas is None else out * gammas.double()[:, None]


def call(format, x, w, x_scales, static, w_scales, **options):
    if format == "fp4":
        return aiter.moe_gemm_a4w4(x, w, x_scales, w_scales, **options)
    return aiter.moe_gemm_a8w4(x, w, x_scales, w_scales, static, **options)


FORMATS = ["fp4", "mxfp8", "static"]


def test_arguments_are_those_of_the_main_branch():
    for name, arguments in NEWER.items():
        parameters = inspect.signature(getattr(aiter, name)).parameters
        assert list(parameters) == arguments.split()


@of("moe_gemm_a4w4", "moe_gemm_a8w4")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("gathered", [False, True])
def test_rows_of_experts(gfx950, format, gathered):
    """Rows in the order of experts, or of tokens; swizzled scales give the same bytes."""
    routing, gather, _, expert = routed()
    w, w_scales, of_w = experts_weights()
    x, x_scales, static, values = tokens_of(format, TOKENS if gathered else TOKENS * K_OF_TOKENS)
    options = {"routing_data": routing, "gather_indx": gather if gathered else None}
    for dtype in (BF16, F16, F32):
        out = call(format, x, w, x_scales, static, w_scales, out_dtype=dtype, **options)
        rows = values[gather.long() // K_OF_TOKENS] if gathered else values
        assert out.dtype == dtype and rms(out, expected(rows, of_w, expert)) <= BAR[dtype]


@pytest.mark.parametrize("format", FORMATS)
def test_swizzled_scales(gfx950, format):
    """Swizzled as AITER does: N a multiple of 32, and K / 32 a multiple of 8."""
    routing, gather, _, expert = routed()
    codes, scales, of_w = float4(EXPERTS * N, 512, 3, exponents=2)
    w, scales = codes.view(EXPERTS, N, 256).mT, scales.view(EXPERTS, N, 16)
    x, x_scales, static, values = tokens_of(format, TOKENS)
    grown = {"fp4": 256, "mxfp8": 512, "static": 512}[format]
    x = torch.nn.functional.pad(x.view(torch.uint8), (0, grown - x.shape[1])).view(x.dtype)
    x_scales = (
        None
        if x_scales is None
        else torch.nn.functional.pad(x_scales, (0, 16 - x_scales.shape[1]), value=127)
    )
    tiles = (
        scales.view(-1, N // 32, 2, 16, 2, 2, 4)
        .permute(0, 1, 4, 6, 3, 5, 2)
        .reshape(EXPERTS, N // 32, 512)
        .mT
    )
    options = {"routing_data": routing, "gather_indx": gather}
    plain = call(format, x, w, x_scales, static, scales.mT, **options)
    assert torch.equal(
        call(format, x, w, x_scales, static, tiles, swizzle_mx_scale="CDNA4_SCALE", **options), plain
    )
    rows = torch.nn.functional.pad(values, (0, 512 - K))[gather.long() // K_OF_TOKENS]
    assert rms(plain, expected(rows, of_w.view(EXPERTS, N, 512).mT, expert)) <= BAR[BF16]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("limit", [None, 1.5])
def test_gates_biases_and_gammas(gfx950, format, limit):
    routing, gather, _, expert = routed()
    w, w_scales, of_w = experts_weights()
    x, x_scales, static, values = tokens_of(format, TOKENS)
    bias, gammas = draw(EXPERTS, N, dtype=F32, seed=1), draw(len(gather), dtype=F32, seed=2)
    rows = values[gather.long() // K_OF_TOKENS]
    options = {"routing_data": routing, "gather_indx": gather, "bias": bias, "out_dtype": F32}
    for adds_one in (True, False) if format == "fp4" else (True,):
        added = {"swiglu_add_residual": adds_one} if format == "fp4" else {}
        out = call(format, x, w, x_scales, static, w_scales, gammas=gammas, apply_swiglu=True, alpha=1.3, limit=limit,
                   **options, **added)  # fmt: skip
        wanted = expected(rows, of_w, expert, bias, (1.3, limit, adds_one), gammas)
        assert rms(out, wanted) <= 2e-6  # of float32's exponential, too
    out = call(format, x, w, x_scales, static, w_scales, gammas=gammas, **options)
    assert rms(out, expected(rows, of_w, expert, bias, None, gammas)) <= BAR[F32]


@pytest.mark.parametrize("format", FORMATS)
def test_sums_of_tokens(gfx950, format):
    routing, gather, scatter, expert = routed()
    w, w_scales, of_w = experts_weights()
    x, x_scales, static, values = tokens_of(format, TOKENS * K_OF_TOKENS)
    gammas = draw(len(gather), dtype=F32, seed=2)
    out = call(
        format, x, w, x_scales, static, w_scales, routing_data=routing, scatter_indx=scatter, gammas=gammas
    )
    rows = expected(values, of_w, expert, None, None, gammas)
    assert out.shape == (TOKENS, N)
    assert rms(out, rows[scatter.long().view(TOKENS, K_OF_TOKENS)].sum(1)) <= 2 * BAR[BF16]


def test_results_of_8_bits(gfx950):
    routing, _, _, expert = routed()
    w, w_scales, of_w = experts_weights()
    x, _, static, values = tokens_of("static", TOKENS * K_OF_TOKENS)
    exact = expected(values, of_w, expert)
    scale = (exact.abs().max() / 448).float()
    out = aiter.moe_gemm_a8w4(x, w, None, w_scales, static, scale, routing_data=routing, out_dtype=FP8)
    assert out.dtype == FP8
    nearest = (exact / scale.double()).float().to(FP8)
    assert (out.view(torch.uint8) != nearest.view(torch.uint8)).double().mean() < 1e-3
    wide = aiter.moe_gemm_a8w4(x, w, None, w_scales, static, scale, routing_data=routing)
    assert torch.equal(wide, out.to(BF16))


def sorted_choices(ids, block, absent=()):
    """The output of moe_align_block_size: blocks of absent experts are marked -1."""
    places = ids.numel() + EXPERTS * (block - 1)
    entries, experts = (
        torch.full((places,), ids.numel(), dtype=I32),
        torch.full((-(-places // block),), -1, dtype=I32),
    )
    first = 0
    for expert in range(EXPERTS):
        chosen = (ids.reshape(-1) == expert).nonzero()[:, 0]
        entries[first : first + len(chosen)] = chosen.to(I32)
        blocks = -(-len(chosen) // block)
        experts[first // block : first // block + blocks] = -1 if expert in absent else expert
        first += blocks * block
    return entries, experts, torch.tensor([first], dtype=I32)


def layer_arguments(dtype, block=16, absent=()):
    ids = torch.rand(TOKENS, EXPERTS, generator=generator(5)).argsort(1)[:, :K_OF_TOKENS].to(I32)
    codes, scales, values = float4(EXPERTS * N, K, 3, exponents=2)
    b, b_mx, of_b = (each.view(EXPERTS, N, -1) for each in (codes, scales, values))
    a, a_mx = draw(TOKENS, K, dtype=F32, seed=7).to(dtype if dtype != torch.uint8 else BF16), None
    of_a = a.double()
    if dtype == torch.uint8:
        a, a_mx, of_a = float4(TOKENS, K, 7, exponents=2)
    a_scale, b_scale = torch.tensor([0.7]), torch.rand(EXPERTS, generator=generator(8)) + 0.5
    weights = torch.rand(TOKENS, K_OF_TOKENS, generator=generator(9))
    sums = torch.einsum("tk,tsnk->tsn", of_a, of_b[ids.long()])
    sums *= (a_scale * b_scale).double()[ids.long()][..., None]
    for expert in absent:
        sums[ids == expert] = 0
    arguments = (a, b, a_scale, b_scale, a_mx, b_mx, weights, ids, *sorted_choices(ids, block, absent))
    return arguments, sums, weights


def run(name, arguments, into, weighted, block=16, compute_type=BF16):
    options = (weighted, K_OF_TOKENS, False, False, {"BLOCK_SIZE_M": block, "GROUP_SIZE_M": 4}, compute_type)
    assert getattr(aiter, name)(*arguments[:2], into, *arguments[2:], *options) is None


DTYPES = [BF16, FP8, torch.uint8]


@of("fused_moe_mxfp4", "fused_moe_mxfp4_silu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_of_experts(target, dtype, weighted):
    if target == "gfx942" and dtype != BF16:
        return
    for block, absent in ((16, ()), (64, (1, 3))):
        arguments, sums, weights = layer_arguments(dtype, block, absent)
        exact = sums * weights.double()[..., None] if weighted else sums
        into = torch.full((TOKENS, K_OF_TOKENS, N), torch.nan, dtype=BF16)
        run("fused_moe_mxfp4", arguments, into, weighted, block)
        assert rms(into, exact) <= BAR[BF16]
        into = torch.full((TOKENS * K_OF_TOKENS, N // 2), torch.nan, dtype=BF16)
        run("fused_moe_mxfp4_silu", arguments, into, weighted, block)
        assert rms(into, gated_in_torch(exact.flatten(0, 1), "silu")) <= 2 * BAR[BF16]


def test_what_is_in_no_block_stays(target):
    """Including places past num_tokens_post_padded; a non-contiguous output, and triton's dtypes."""
    arguments, sums, _ = layer_arguments(BF16)
    entries, experts, _ = arguments[-3:]
    past = torch.tensor([16], dtype=I32)
    listed = torch.zeros(TOKENS * K_OF_TOKENS + 1, dtype=torch.bool)
    listed[entries[:16].long()] = True
    listed = listed[:-1].view(TOKENS, K_OF_TOKENS)
    wide = torch.full((TOKENS, K_OF_TOKENS, N + 3), -7.0)
    into = wide[..., :N]
    named = SimpleNamespace(name="fp32")
    run("fused_moe_mxfp4", (*arguments[:-3], entries, experts, past), into, False, compute_type=named)
    assert listed.any() and not listed.all() and (into[~listed] == -7).all() and (wide[..., N:] == -7).all()
    assert rms(into[listed], sums[listed]) <= BAR[F32]


ROUTED = routed()
CODES, SCALES, _ = experts_weights()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"routing_data": None}, ValueError, "routing_data is None; pass AITER's"),
        ({"swizzle_mx_scale": "GFX1250_SCALE"}, NotImplementedError, "swizzle_mx_scale is 'GFX1250_SCALE'"),
        ({"preshuffle_weights": True}, NotImplementedError, "preshuffle_weights is True"),
        ({"backend": "gluon"}, NotImplementedError, "backend is 'gluon'"),
        ({"w": None}, TypeError, "w is NoneType"),
    ],
)
def test_bad_input_of_rows(change, error, says):
    x, x_scales, *_ = tokens_of("fp4", TOKENS * K_OF_TOKENS)
    given = {"x": x, "w": CODES, "x_scales": x_scales, "w_scales": SCALES, "routing_data": ROUTED[0]} | change
    with nothing_launched("gfx950"), pytest.raises(error) as raised:
        aiter.moe_gemm_a4w4(**given)
    assert says in str(raised.value) and "hipkittens.aiter.moe_gemm_a4w4" in str(raised.value)


def test_both_scales_of_rows_are_refused():
    x, x_scales, *_ = tokens_of("mxfp8", TOKENS * K_OF_TOKENS)
    one = torch.ones(())
    with nothing_launched("gfx950"):
        with pytest.raises(NotImplementedError, match="x_static_scale is given with x_scales"):
            aiter.moe_gemm_a8w4(x, CODES, x_scales, SCALES, one, routing_data=ROUTED[0])
        with pytest.raises(NotImplementedError, match="quant_static_scale is given with scatter_indx"):
            aiter.moe_gemm_a8w4(x, CODES, x_scales, SCALES, None, one, None, *ROUTED[:3])


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"swizzle_mx_b": True}, NotImplementedError, "swizzle_mx_a or swizzle_mx_b is True"),
        ({"compute_type": torch.int8}, TypeError, "compute_type is torch.int8; allowed"),
        ({"A": torch.zeros(TOKENS, K, dtype=F16)}, NotImplementedError, "A is torch.float16"),
        ({"B": torch.zeros(EXPERTS, N, K).to(FP8)}, NotImplementedError, "B is torch.float8_e4m3fn"),
        (
            {"A": torch.zeros(TOKENS, K // 2, dtype=torch.uint8)},
            ValueError,
            "A is torch.uint8 and A_mx_scale is None",
        ),
        ({"top_k": 3}, ValueError, "topk_ids has shape (23, 2); it must be (tokens, top_k), (23, 3)"),
    ],
)
def test_bad_input_of_blocks(change, error, says):
    arguments, *_ = layer_arguments(BF16)
    into = torch.zeros(TOKENS, K_OF_TOKENS, N, dtype=BF16)
    rest = (False, K_OF_TOKENS, False, False, {"BLOCK_SIZE_M": 16}, BF16)
    names = inspect.signature(aiter.fused_moe_mxfp4).parameters
    given = dict(zip(names, (*arguments[:2], into, *arguments[2:], *rest), strict=True)) | change
    with nothing_launched("gfx950"), pytest.raises(error) as raised:
        aiter.fused_moe_mxfp4(**given)
    assert says in str(raised.value) and "hipkittens.aiter.fused_moe_mxfp4" in str(raised.value)


def test_gfx942_has_bfloat16_rows_alone():
    for dtype in (torch.uint8, FP8):
        arguments, *_ = layer_arguments(dtype)
        with (
            nothing_launched("gfx942"),
            pytest.raises(ValueError, match="gfx942 has no matrix instruction with scales"),
        ):
            run("fused_moe_mxfp4", arguments, torch.zeros(TOKENS, K_OF_TOKENS, N, dtype=BF16), False)
    x, x_scales, *_ = tokens_of("fp4", TOKENS * K_OF_TOKENS)
    with nothing_launched("gfx942"), pytest.raises(ValueError, match="moe_gemm_a4w4: gfx942 has no matrix"):
        aiter.moe_gemm_a4w4(x, CODES, x_scales, SCALES, routing_data=ROUTED[0])
