# SPDX-License-Identifier: MIT
"""moe with int8 weights and activations: compared with float64 of the dequantized operands, with per-column factors (SmoothQuant), and
refused arguments.
"""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, moe
from hipkittens.activation import gated_in_torch, in_torch
from hipkittens.operations._expert_sort_checks import drawn_experts
from tests.oracles.aiter.formats import float8
from tests.simulated_device import TARGETS

BF16, F16 = torch.bfloat16, torch.float16
HERE = torch.tensor([0, -1, 1, -1, 2, -1, 3, -1], dtype=torch.int32)
RECIPES = [("row", "row"), ("row", "tensor"), ("tensor", "tensor"), ("tensor", "row")]


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as run:
        yield request.param
        assert not run.findings


def quantized(values, scaling):
    """Quantized values, scales and dequantized values, of rows or matrices by the largest magnitude."""
    amax = values.float().abs().amax(-1 if scaling == "row" else (-2, -1), keepdim=True)
    scale = torch.where(amax > 0, amax / 127, 1.0)
    codes = (values.float() * (1 / scale)).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, codes.double() * scale.double()


def drawn(
    tokens, experts, k, recipe, *, hidden=192, inner=144, dtype=BF16, held=None, gated=True, smooth=False
):
    generator = torch.Generator().manual_seed(3)
    held = held or experts

    def random(*shape, scale=1.0):
        return torch.randn(shape, generator=generator) * scale

    w1, scale_w1, value1 = quantized(
        random(held, (2 if gated else 1) * inner, hidden, scale=hidden**-0.5), recipe[1]
    )
    w2, scale_w2, value2 = quantized(random(held, hidden, inner, scale=inner**-0.5), recipe[1])
    x = random(tokens, hidden).to(dtype)
    weights = torch.rand((tokens, k), generator=generator).to(dtype)
    ids = drawn_experts(tokens, experts, k, "cpu", generator)
    options = {"scale_w1": scale_w1, "scale_w2": scale_w2}
    if smooth:
        options["smooth1"] = 0.25 + torch.rand(held, hidden, generator=generator)
        options["smooth2"] = 0.25 + torch.rand(held, inner, generator=generator)
    return (x, w1, w2, weights, ids), options, (value1, value2)


def layer(arguments, values, recipe, wide, *, activation="silu", expert_map=None, gated=True, interleaved=False,
          swiglu_limit=None, weight_input=False, bias1=None, bias2=None, smooth1=None, smooth2=None, **_):  # fmt: skip
    """The layer on dequantized operands, rounded as moe rounds, or in float64 without rounding; rows are quantized in both."""
    x, w1, _, weights, ids = arguments
    tokens, k = ids.shape
    numbers = (ids if expert_map is None else expert_map[ids.long()]).long().reshape(-1)
    there = (numbers >= 0) & (numbers < len(w1))
    expert = torch.where(there, numbers, 0)
    weights = weights.to(wide).reshape(-1, 1)

    def rounded(value):
        return value if wide == torch.float64 else value.to(x.dtype).to(wide)

    def product(rows, which, bias, smooth):
        if smooth is not None:
            rows = rows.float() * smooth[expert]
        rows = quantized(torch.where(there[:, None], rows, 0), recipe[0])[2].to(wide)
        out = torch.bmm(rows[:, None], values[which].to(wide)[expert].mT)[:, 0]
        return rounded(out if bias is None else out + bias.to(wide)[expert])

    rows = x.to(wide).repeat_interleave(k, 0)
    if weight_input:
        rows = rounded(rows * weights)
    hidden = product(rows, 0, bias1, smooth1)
    if interleaved:
        hidden = torch.cat((hidden[:, 0::2], hidden[:, 1::2]), 1)
    hidden = rounded(
        gated_in_torch(hidden, activation, swiglu_limit) if gated else in_torch(hidden, activation)
    )
    y = product(hidden, 1, bias2, smooth2)
    if not weight_input:
        y = y * weights
    return rounded(torch.where(there[:, None], y, 0).view(tokens, k, -1).sum(1))


def assert_close(found, arguments, values, recipe, **options):
    """Within twice PyTorch's error, in norm and in the largest element."""
    exact = layer(arguments, values, recipe, torch.float64, **options)
    theirs = layer(arguments, values, recipe, torch.float32, **options).double()
    assert found.dtype == arguments[0].dtype and found.isfinite().all()
    for error in (torch.Tensor.norm, lambda value: value.abs().max()):
        assert error(found.double() - exact) <= 2 * error(theirs - exact)


@pytest.mark.parametrize("recipe", RECIPES, ids="-".join)
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_layer(target, recipe, experts):
    """All experts here, half of them, and every token to one expert."""
    arguments, scales, values = drawn(33, 8, 2, recipe, held=4 if experts == "half" else 8)
    options = {"expert_map": HERE} if experts == "half" else {}
    if experts == "one":
        arguments = (*arguments[:4], torch.full_like(arguments[4], 5))
    found = moe(*arguments, recipe=recipe, **options, **scales)
    assert_close(found, arguments, values, recipe, **options)


OPTIONS = [
    {"activation": "swiglu", "interleaved": True, "swiglu_limit": 1.0},
    {"activation": "gelu_tanh", "weight_input": True},
    {"activation": "gelu", "gated": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
@pytest.mark.parametrize("smooth", [False, True])
def test_options_and_biases(target, options, smooth):
    recipe = RECIPES[0]
    gated = options.get("gated", True)
    arguments, scales, values = drawn(40, 8, 2, recipe, gated=gated, inner=136, dtype=F16, smooth=smooth)
    biases = {
        name: torch.randn(8, value.shape[1]) for name, value in zip(("bias1", "bias2"), values, strict=True)
    }
    found = moe(*arguments, **biases, **scales, **options)
    assert_close(found, arguments, values, recipe, **biases, **scales, **options)


@pytest.mark.parametrize(("experts", "k"), [(8, 2), (256, 8)])
@pytest.mark.parametrize("tokens", (0, 1, 7, 64))
def test_tokens_and_experts(target, tokens, experts, k):
    """Including rows that are not aligned to 4 bytes: 17 columns are copied to 20."""
    for hidden, inner in ((64, 16), (17, 5)) if tokens == 7 else ((64, 16),):
        arguments, scales, values = drawn(tokens, experts, k, RECIPES[0], hidden=hidden, inner=inner)
        found = moe(*arguments, **scales)
        assert found.shape == (tokens, hidden)
        if tokens:
            assert_close(found, arguments, values, RECIPES[0])


def test_factors_of_columns(target):
    """With absent experts; factors on weights that were divided by them give the result of the plain ones."""
    recipe = RECIPES[0]
    arguments, options, values = drawn(33, 8, 2, recipe, held=4, smooth=True)
    found = moe(*arguments, expert_map=HERE, **options)
    assert_close(found, arguments, values, recipe, expert_map=HERE, **options)
    fp8 = QuantSpec("fp8", "row")
    plain = [torch.randn(4, 64, 48) / 8, torch.randn(4, 48, 32) / 6]
    factors = [2.0 ** torch.randint(-3, 4, each.shape[::2]) for each in plain]
    x, weights, ids = torch.randn(9, 48).to(BF16), torch.rand(9, 2), drawn_experts(9, 4, 2, "cpu")
    made = []
    for with_factors in (False, True):
        divided = [
            each / f[:, None] if with_factors else each for each, f in zip(plain, factors, strict=True)
        ]
        (w1, scale1), (w2, scale2) = (hipkittens.quantize(each.to(BF16), fp8) for each in divided)
        smooth = dict(zip(("smooth1", "smooth2"), factors, strict=True)) if with_factors else {}
        made.append(moe(x, w1, w2, weights, ids, scale_w1=scale1, scale_w2=scale2, **smooth).double())
    exact = moe(x, *(each.to(BF16) for each in plain), weights, ids).double()
    assert (made[1] - exact).norm() < 2 * (made[0] - exact).norm() + 1e-3 * exact.norm()


def test_weights_that_quantize_makes(target):
    """The scales are quantize's own; the error is that of 8 bits."""
    (x, _, _, weights, ids), *_ = drawn(9, 4, 2, RECIPES[0])
    generator = torch.Generator().manual_seed(1)
    plain = [
        torch.randn(shape, generator=generator).to(BF16) / 12 for shape in ((4, 288, 192), (4, 192, 144))
    ]
    exact = moe(x, *plain, weights, ids).double()
    (w1, scale_w1), (w2, scale_w2) = (hipkittens.quantize(each, QuantSpec("int8", "row")) for each in plain)
    found = moe(x, w1, w2, weights, ids, scale_w1=scale_w1, scale_w2=scale_w2)
    assert (found.double() - exact).norm() < 0.03 * exact.norm()


def test_nan_stays_with_its_token(target):
    arguments, scales, _ = drawn(12, 4, 2, RECIPES[0])
    expected = moe(*arguments, **scales)
    arguments[0][5, 7] = torch.nan
    found = moe(*arguments, **scales)
    kept = torch.arange(12) != 5
    assert found[5].isnan().all() and torch.equal(found[kept], expected[kept])


def test_two_runs_and_permuted_tokens_give_the_same_bytes():
    with hipkittens.simulate("gfx942"):
        (x, w1, w2, weights, ids), options, _ = drawn(64, 8, 2, RECIPES[0], smooth=True)
        first = moe(x, w1, w2, weights, ids, **options)
        assert torch.equal(first, moe(x, w1, w2, weights, ids, **options))
        order = torch.randperm(64, generator=torch.Generator().manual_seed(2))
        permuted = moe(x[order], w1, w2, weights[order], ids[order], **options)
        assert torch.equal(permuted, first[order])


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    arguments, options, _ = drawn(9, 4, 2, RECIPES[0], smooth=True)
    compiled = torch.compile(lambda *given: moe(*given, **options), fullgraph=True, backend=compile_backend)
    assert torch.equal(compiled(*arguments), moe(*arguments, **options))


ONES = {"scale_w1": torch.ones(4, 1, 1), "scale_w2": torch.ones(4, 1, 1)}
WRONG = [
    ({"scale_w2": None}, ValueError, "scale_w2 is None; weights of 8 and 4 bits have scales: give both"),
    ({"recipe": ("1x128", "128x128")}, ValueError, "no kernel for the recipe ('1x128', '128x128') and weights of int8"),
    ({"recipe": "1x32"}, ValueError, "no kernel for the recipe '1x32' and weights of int8"),
    ({"w2": torch.zeros(4, 192, 144).to(float8("gfx950"))}, TypeError, "both weights need codes of one format"),
    ({"smooth1": torch.ones(4, 191)}, ValueError, "smooth1 has shape (4, 191); it needs (4, 192)"),
    ({"smooth2": torch.ones(4, 144).double()}, TypeError, "smooth2 is torch.float64"),
    ({"smooth2": torch.ones(4, 144), **ONES, "recipe": "tensor"}, ValueError, "smooth2 is given and the recipe is ('tensor', 'tensor')"),
    ({"smooth1": torch.ones(4, 192, requires_grad=True)}, ValueError, "smooth1 requires a gradient and gets none"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", WRONG)
def test_bad_input(change, error, message):
    with hipkittens.simulate("gfx950"):
        given, scales, _ = drawn(5, 4, 2, RECIPES[0])
        names = ("x", "w1", "w2", "topk_weights", "topk_ids")
        with pytest.raises(error) as raised:
            moe(**dict(zip(names, given, strict=True)) | scales | change)
    assert message in str(raised.value) and "hipkittens.moe" in str(raised.value)


def test_factors_without_scales_are_refused():
    with hipkittens.simulate("gfx950"), pytest.raises(ValueError, match="scale_w1 is None"):
        x, weights = torch.zeros(2, 16, dtype=BF16), torch.zeros(3, 16, 16, dtype=torch.int8)
        topk = torch.ones(2, 1), torch.zeros(2, 1, dtype=torch.int32)
        moe(x, weights, weights[:, :, :8].contiguous(), *topk, smooth1=torch.ones(3, 16))
