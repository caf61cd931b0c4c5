# SPDX-License-Identifier: MIT
"""moe with weights in MX formats: compared with float64 of the dequantized operands, and refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, dequantize, moe, quantize
from hipkittens.activation import gated_in_torch, in_torch
from hipkittens.operations._expert_sort_checks import drawn_experts
from tests.test_moe_scaled import HERE
from tests.test_scaled_matmul_mixed import powers, weights

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
FP8 = torch.float8_e4m3fn
MX = "1x32"
# For 4-bit weights: how rows are quantized, and to what.
ROWS = {
    None: None,
    "row": QuantSpec("fp8", "row"),
    "tensor": QuantSpec("fp8", "tensor"),
    "mxfp8": QuantSpec("mxfp8"),
    MX: QuantSpec("mxfp4"),
}
SPEC_OF_8_BITS = QuantSpec("mxfp8")


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


@pytest.fixture
def gfx950():
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        yield
    assert simulation.findings == []


def has(target, rows):
    return target == "gfx950" or rows is None


def weight(format, experts, rows, k, seed):
    """Quantized values, scales and dequantized values whose sums over k are about as large as one of them."""
    if format == "fp4":
        codes, scales, values = weights(experts * rows, k, seed, exponents=2)
    else:
        random = torch.Generator().manual_seed(seed)
        codes = torch.randn(experts * rows, k, generator=random).to(FP8)
        scales, factors = powers(random, experts * rows, k, 2)
        values = codes.double() * factors
    shift = 4 if k >= 64 else 3
    return [each.view(experts, rows, each.shape[1]) for each in (codes, scales - shift, values * 2.0**-shift)]


def drawn(
    tokens, experts, k, *, format="fp4", hidden=192, inner=160, dtype=BF16, held=None, gated=True, seed=3
):
    generator = torch.Generator().manual_seed(seed)
    held = held or experts
    w1, scale_w1, value1 = weight(format, held, (2 if gated else 1) * inner, hidden, seed)
    w2, scale_w2, value2 = weight(format, held, hidden, inner, seed + 1)
    x = torch.randn(tokens, hidden, generator=generator).to(dtype)
    given = torch.rand((tokens, k), generator=generator).to(dtype)
    ids = drawn_experts(tokens, experts, k, "cpu", generator)
    return (x, w1, w2, given, ids), {"scale_w1": scale_w1, "scale_w2": scale_w2}, (value1, value2)


def layer(arguments, values, spec, wide, *, kind="silu", held=None, gated=True, interleaved=False, limit=None,
          weight_input=False, bias1=None, bias2=None):  # fmt: skip
    """The layer on dequantized operands. Quantized inputs are rounded before, as moe rounds; float64 rounds nothing after the last
    product."""
    x, _, _, topk_weights, ids = arguments
    tokens, k = ids.shape
    numbers = (ids if held is None else held[ids.long()]).long().reshape(-1)
    there = (numbers >= 0) & (numbers < len(values[0]))
    expert = torch.where(there, numbers, 0)
    topk_weights = topk_weights.to(wide).reshape(-1, 1)

    def quantized(rows):
        rows = torch.where(there[:, None], rows, 0)
        if spec is None:
            return rows.to(wide)
        codes, scales = quantize(rows, spec)
        return dequantize(codes, scales, spec, F32).to(wide)

    def product(rows, which, bias):
        out = torch.bmm(rows[:, None], values[which].to(wide)[expert].mT)[:, 0]
        return out if bias is None else out + bias.to(wide)[expert]

    rows = x.repeat_interleave(k, 0)
    if weight_input:
        rows = (rows.to(wide) * topk_weights).to(x.dtype)
    sums = product(quantized(rows), 0, bias1).to(x.dtype)
    if interleaved:
        sums = torch.cat((sums[:, 0::2], sums[:, 1::2]), 1)
    sums = sums.to(wide)
    hidden = (gated_in_torch(sums, kind, limit) if gated else in_torch(sums, kind)).to(x.dtype)
    y = product(quantized(hidden), 1, bias2)
    y = y if wide == F64 else y.to(x.dtype).to(wide)
    if not weight_input:
        y = y * topk_weights
    out = torch.where(there[:, None], y, 0).view(tokens, k, -1).sum(1)
    return out if wide == F64 else out.to(x.dtype)


def assert_close(found, arguments, values, spec, **options):
    """Within twice PyTorch's error, in norm and in the largest element."""
    exact = layer(arguments, values, spec, F64, **options)
    theirs = layer(arguments, values, spec, F32, **options).double()
    assert found.dtype == arguments[0].dtype and found.isfinite().all()
    for error in (torch.Tensor.norm, lambda value: value.abs().max()):
        assert error(found.double() - exact) <= 2 * error(theirs - exact)


@pytest.mark.parametrize("rows", ROWS, ids=str)
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_layer(target, rows, experts):
    """All experts here, half of them, and every token to one expert."""
    if not has(target, rows):
        return
    held = HERE if experts == "half" else None
    arguments, scales, values = drawn(33, 8, 2, held=4 if experts == "half" else 8)
    if experts == "one":
        arguments = (*arguments[:4], torch.full_like(arguments[4], 5))
    found = moe(*arguments, expert_map=held, recipe=(rows, MX), **scales)
    assert_close(found, arguments, values, ROWS[rows], held=held)


@pytest.mark.usefixtures("gfx950")
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_weights_of_8_bits(experts):
    held = HERE if experts == "half" else None
    arguments, scales, values = drawn(33, 8, 2, format="fp8", held=4 if experts == "half" else 8)
    if experts == "one":
        arguments = (*arguments[:4], torch.full_like(arguments[4], 5))
    found = moe(*arguments, expert_map=held, recipe=MX, **scales)
    assert_close(found, arguments, values, SPEC_OF_8_BITS, held=held)
    assert torch.equal(found, moe(*arguments, expert_map=held, **scales))


OPTIONS = [
    {"kind": "swiglu", "interleaved": True, "limit": 1.0},
    {"kind": "gelu_tanh", "weight_input": True},
    {"kind": "gelu", "gated": False},
]


@pytest.mark.parametrize("rows", [None, "row", MX], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_options_and_biases(target, rows, options):
    if not has(target, rows):
        return
    gated, dtype = options.get("gated", True), BF16 if rows is None else F16
    arguments, scales, values = drawn(40, 8, 2, gated=gated, inner=96, dtype=dtype)
    bias1, bias2 = (torch.randn(8, value.shape[1]) for value in values)
    given = {{"kind": "activation", "limit": "swiglu_limit"}.get(key, key): v for key, v in options.items()}
    found = moe(*arguments, bias1=bias1, bias2=bias2, recipe=(rows, MX), **scales, **given)
    assert_close(found, arguments, values, ROWS[rows], bias1=bias1, bias2=bias2, **options)


@pytest.mark.parametrize("rows", [None, MX], ids=str)
@pytest.mark.parametrize("experts, k", [(8, 2), (256, 8)])
@pytest.mark.parametrize("tokens", (0, 1, 7, 64))
def test_tokens_and_experts(target, rows, tokens, experts, k):
    if not has(target, rows):
        return
    arguments, scales, values = drawn(tokens, experts, k, hidden=64, inner=32)
    found = moe(*arguments, recipe=(rows, MX), **scales)
    assert found.shape == (tokens, 64)
    if tokens:
        assert_close(found, arguments, values, ROWS[rows])


def test_rows_stay_bfloat16_without_a_recipe(target):
    arguments, scales, _ = drawn(9, 4, 2)
    expected = moe(*arguments, recipe=(None, MX), **scales)
    assert torch.equal(moe(*arguments, **scales), expected)
    named = {name: scale.view(torch.float8_e8m0fnu) for name, scale in scales.items()}
    codes = [each.view(torch.float4_e2m1fn_x2) for each in arguments[1:3]]
    assert torch.equal(moe(arguments[0], *codes, *arguments[3:], **named), expected)


def test_shuffled_scales(target):
    for rows in filter(lambda rows: has(target, rows), ROWS):
        arguments, scales, _ = drawn(9, 4, 2, hidden=288)
        shuffled = {name: hipkittens.scaled_gemm.shuffled(scale) for name, scale in scales.items()}
        expected = moe(*arguments, recipe=(rows, MX), **scales)
        assert torch.equal(moe(*arguments, recipe=(rows, MX), swizzle="shuffled", **shuffled), expected)


def test_weights_that_quantize_makes(target):
    """Close to the layer with unquantized weights."""
    (x, _, _, topk_weights, ids), *_ = drawn(9, 4, 2)
    generator = torch.Generator().manual_seed(1)
    plain = [
        torch.randn(shape, generator=generator).to(BF16) / 12 for shape in ((4, 320, 192), (4, 192, 160))
    ]
    exact = moe(x, *plain, topk_weights, ids).double()
    (w1, scale_w1), (w2, scale_w2) = (quantize(each, QuantSpec("mxfp4")) for each in plain)
    for rows, bar in ((None, 0.2), (MX, 0.3)):
        if has(target, rows):
            found = moe(x, w1, w2, topk_weights, ids, scale_w1=scale_w1, scale_w2=scale_w2, recipe=(rows, MX))
            assert (found.double() - exact).norm() < bar * exact.norm()


def test_nan_stays_with_its_token(target):
    for rows in filter(lambda rows: has(target, rows) and rows != "tensor", ROWS):
        arguments, scales, _ = drawn(12, 4, 2)
        expected = moe(*arguments, recipe=(rows, MX), **scales)
        arguments[0][5, 7] = torch.nan
        found = moe(*arguments, recipe=(rows, MX), **scales)
        kept = torch.arange(12) != 5
        assert found[5].isnan().all() and torch.equal(found[kept], expected[kept])


def test_two_runs_and_permuted_tokens_give_the_same_bytes(gfx950):
    for rows in (None, "mxfp8", MX):
        (x, w1, w2, topk_weights, ids), scales, _ = drawn(64, 8, 2)
        scales["recipe"] = (rows, MX)
        first = moe(x, w1, w2, topk_weights, ids, **scales)
        assert torch.equal(first, moe(x, w1, w2, topk_weights, ids, **scales))
        turned = torch.randperm(64, generator=torch.Generator().manual_seed(1))
        assert torch.equal(first[turned], moe(x[turned], w1, w2, topk_weights[turned], ids[turned], **scales))


@pytest.mark.filterwarnings("ignore")
def test_compiled(target, compile_backend):
    torch._dynamo.reset()
    rows = MX if target == "gfx950" else None
    arguments, scales, _ = drawn(16, 8, 2)
    compiled = torch.compile(
        lambda *given: moe(*given, recipe=(rows, MX), **scales), fullgraph=True, backend=compile_backend
    )
    assert torch.equal(compiled(*arguments), moe(*arguments, recipe=(rows, MX), **scales))


def test_under_autocast(target):
    arguments, scales, _ = drawn(8, 4, 2)
    with torch.autocast("cpu", BF16):
        found = moe(arguments[0].float(), *arguments[1:], **scales)
    assert torch.equal(found, moe(*arguments, **scales))


def test_torch_backend(monkeypatch):
    arguments, scales, values = drawn(8, 4, 2)
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    assert_close(moe(*arguments, **scales), arguments, values, None)
    with pytest.raises(ValueError, match="HIPKITTENS_BACKEND is torch, which quantises nothing"):
        moe(*arguments, recipe=MX, **scales)


WRONG = [
    ({"scale_w2": None}, ValueError, "scale_w2 is None; weights of 8 and 4 bits have scales"),
    ({"scale_w1": None, "scale_w2": None}, TypeError, "w1 is torch.uint8, codes without scales"),
    ({"scale_w1": torch.zeros(4, 320, 5, dtype=torch.uint8)}, ValueError, "allowed with w1 (4, 320, 96): '1x32': (4, 320, 6)"),
    ({"scale_w1": torch.ones(4, 320, 6)}, ValueError, "scale_w1 has shape (4, 320, 6) and dtype torch.float32"),
    ({"recipe": "row"}, ValueError, "there is no kernel for the recipe 'row' and weights of fp4"),
    ({"recipe": ("1x128", MX)}, ValueError, "(None, '1x32'), ('row', '1x32'), ('tensor', '1x32'), ('mxfp8', '1x32'), ('1x32', '1x32')"),
    ({"swizzle": "32_4_4"}, ValueError, "swizzle is '32_4_4'; allowed: None, and 'shuffled'"),
    ({"x": torch.zeros(5, 192, dtype=F16)}, TypeError, "x is torch.float16; weights of 4 bits are multiplied with torch.bfloat16"),
    ({"w2": torch.zeros(4, 192, 160).to(FP8)}, TypeError, "w1 is torch.uint8 and w2 is torch.float8_e4m3fn; both weights need"),
    ({"w2": torch.zeros(4, 192, 160, dtype=torch.uint8)}, ValueError, "it needs (4, 192, 160) codes, two in a byte"),
    ({"x": torch.zeros(5, 96, dtype=BF16)}, ValueError, "both end with H"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", WRONG)
def test_bad_input(change, error, message):
    with hipkittens.simulate("gfx950"):
        given, scales, _ = drawn(5, 4, 2)
        names = ("x", "w1", "w2", "topk_weights", "topk_ids")
        with pytest.raises(error) as raised:
            moe(**dict(zip(names, given, strict=True)) | scales | change)
    assert message in str(raised.value) and "hipkittens.moe" in str(raised.value)


def test_gfx942_quantises_no_rows_for_such_weights():
    with hipkittens.simulate("gfx942"):
        given, scales, _ = drawn(5, 4, 2)
        for rows in filter(None, ROWS):
            with pytest.raises(
                ValueError, match=r"hipkittens\.moe: gfx942 has no matrix instruction with scales"
            ):
                moe(*given, recipe=(rows, MX), **scales)
    with hipkittens.simulate("gfx950"):
        given, scales, _ = drawn(5, 4, 2, inner=144 + 16)
        odd = given[1][:, :, :72], given[2]
        with pytest.raises(ValueError, match="rows of w1 have 144 codes; scales of 32 need a multiple"):
            moe(
                given[0][:, :144],
                odd[0],
                odd[1][:, :144],
                *given[3:],
                scale_w1=scales["scale_w1"][..., :4],
                scale_w2=scales["scale_w2"][:, :144],
            )
