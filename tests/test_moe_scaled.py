# SPDX-License-Identifier: MIT
"""moe with 8-bit weights: compared with float64 of the dequantized operands, and refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec, _scaled_experts, moe, quantize
from hipkittens.activation import gated_in_torch, in_torch
from hipkittens.operations._expert_sort_checks import drawn_experts
from tests.oracles.aiter.formats import float8
from tests.simulated_device import TARGETS

BF16, F16 = torch.bfloat16, torch.float16
HERE = torch.tensor([0, -1, 1, -1, 2, -1, 3, -1], dtype=torch.int32)
RECIPES = [("row", "row"), ("row", "tensor"), ("1x128", "128x128"), ("tensor", "tensor"), ("tensor", "row")]


def codes_and_scales(values, scaling, fp8):
    """Quantized along the last dimension, per row, tensor (or each of several matrices), 128 of a row or 128 by 128."""
    largest = values.float().abs()
    shape = values.shape
    if scaling == "row":
        amax = largest.amax(-1, keepdim=True)
    elif scaling == "tensor":
        amax = largest.amax((-2, -1), keepdim=True)
    else:
        down = 128 if scaling == "128x128" else 1
        padded = torch.nn.functional.pad(largest, (0, -shape[-1] % 128, 0, -shape[-2] % down))
        blocks = padded.unflatten(-1, (-1, 128)).unflatten(-3, (-1, down))
        amax = blocks.amax((-3, -1))
    scale = torch.where(amax > 0, amax / torch.finfo(fp8).max, 1.0)
    expanded = scale
    for axis in (-2, -1):
        if scaling in ("1x128", "128x128") and scale.shape[axis] != shape[axis]:
            expanded = expanded.repeat_interleave(128, axis).narrow(axis, 0, shape[axis])
    bound = torch.finfo(fp8).max
    codes = (values.float() * (1 / expanded)).clamp(-bound, bound).to(fp8)
    return codes, scale, codes.double() * expanded.double()


def drawn(
    target, tokens, experts, k, recipe, *, hidden=192, inner=144, dtype=BF16, held=None, gated=True, seed=3
):
    generator = torch.Generator().manual_seed(seed)
    held = held or experts

    def random(*shape, scale=1.0):
        return torch.randn(shape, generator=generator) * scale

    fp8 = float8(target)
    w1, scale_w1, value1 = codes_and_scales(
        random(held, (2 if gated else 1) * inner, hidden, scale=hidden**-0.5), recipe[1], fp8
    )
    w2, scale_w2, value2 = codes_and_scales(random(held, hidden, inner, scale=inner**-0.5), recipe[1], fp8)
    x = random(tokens, hidden).to(dtype)
    weights = torch.rand((tokens, k), generator=generator).to(dtype)
    ids = drawn_experts(tokens, experts, k, "cpu", generator)
    return (x, w1, w2, weights, ids), {"scale_w1": scale_w1, "scale_w2": scale_w2}, (value1, value2)


def layer(arguments, values, recipe, wide, *, kind="silu", held=None, gated=True, interleaved=False, limit=None,
          weight_input=False, bias1=None, bias2=None):  # fmt: skip
    """The layer on dequantized operands, rounded as moe rounds, or in float64 without rounding; rows are quantized in both."""
    x, w1, _, weights, ids = arguments
    fp8, tokens, k = w1.dtype, *ids.shape
    numbers = (ids if held is None else held[ids.long()]).long().reshape(-1)
    there = (numbers >= 0) & (numbers < len(w1))
    expert = torch.where(there, numbers, 0)
    weights = weights.to(wide).reshape(-1, 1)

    def rounded(value):
        return value if wide == torch.float64 else value.to(x.dtype).to(wide)

    def quantized(value):
        return codes_and_scales(torch.where(there[:, None], value, 0), recipe[0], fp8)[2].to(wide)

    def product(rows, which, bias):
        out = torch.bmm(rows[:, None], values[which].to(wide)[expert].mT)[:, 0]
        return rounded(out if bias is None else out + bias.to(wide)[expert])

    rows = x.to(wide).repeat_interleave(k, 0)
    if weight_input:
        rows = rounded(rows * weights)
    hidden = product(quantized(rows), 0, bias1)
    if interleaved:
        hidden = torch.cat((hidden[:, 0::2], hidden[:, 1::2]), 1)
    hidden = rounded(gated_in_torch(hidden, kind, limit) if gated else in_torch(hidden, kind))
    y = product(quantized(hidden), 1, bias2)
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


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as run:
        yield request.param
        assert not run.findings


@pytest.mark.parametrize("recipe", RECIPES, ids="-".join)
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_layer(target, recipe, experts):
    """All experts here, half of them, and every token to one expert."""
    held = HERE if experts == "half" else None
    arguments, scales, values = drawn(target, 33, 8, 2, recipe, held=4 if experts == "half" else 8)
    if experts == "one":
        arguments = (*arguments[:4], torch.full_like(arguments[4], 5))
    found = moe(*arguments, expert_map=held, recipe=recipe, **scales)
    assert_close(found, arguments, values, recipe, held=held)


OPTIONS = [
    {"kind": "swiglu", "interleaved": True, "limit": 1.0},
    {"kind": "gelu_tanh", "weight_input": True},
    {"kind": "gelu", "gated": False},
]


@pytest.mark.parametrize("recipe", [RECIPES[0], RECIPES[2], RECIPES[3]], ids="-".join)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_options_and_biases(target, recipe, options):
    gated = options.get("gated", True)
    arguments, scales, values = drawn(target, 40, 8, 2, recipe, gated=gated, inner=136, dtype=F16)
    bias1, bias2 = (torch.randn(8, value.shape[1]) for value in values)
    given = {{"kind": "activation", "limit": "swiglu_limit"}.get(key, key): v for key, v in options.items()}
    found = moe(*arguments, bias1=bias1, bias2=bias2, recipe=recipe, **scales, **given)
    assert_close(found, arguments, values, recipe, bias1=bias1, bias2=bias2, **options)


@pytest.mark.parametrize("experts, k", [(8, 2), (256, 8)])
@pytest.mark.parametrize("tokens", (0, 1, 7, 64))
def test_tokens_and_experts(target, tokens, experts, k):
    recipe = RECIPES[0]
    arguments, scales, values = drawn(target, tokens, experts, k, recipe, hidden=64, inner=16)
    found = moe(*arguments, **scales)
    assert found.shape == (tokens, 64)
    if tokens:
        assert_close(found, arguments, values, recipe)


def test_recipe_is_that_of_the_shapes(target):
    for recipe in RECIPES[:3]:
        arguments, scales, _ = drawn(target, 5, 4, 2, recipe)
        assert torch.equal(moe(*arguments, **scales), moe(*arguments, recipe=recipe, **scales))
    arguments, scales, _ = drawn(target, 5, 4, 2, ("row", "row"))
    flat = {name: scale[..., 0] for name, scale in scales.items()}
    assert torch.equal(moe(*arguments, **scales), moe(*arguments, **flat))


def test_weights_that_quantize_makes(target):
    """The scales are quantize's own."""
    (x, _, _, weights, ids), *_ = drawn(target, 9, 4, 2, ("row", "row"))
    generator = torch.Generator().manual_seed(1)
    plain = [
        torch.randn(shape, generator=generator).to(BF16) / 12 for shape in ((4, 288, 192), (4, 192, 144))
    ]
    exact = moe(x, *plain, weights, ids).double()
    for spec in (QuantSpec("fp8", "row"), QuantSpec("fp8", (128, 128))):
        (w1, scale_w1), (w2, scale_w2) = (hipkittens.quantize(each, spec) for each in plain)
        found = moe(x, w1, w2, weights, ids, scale_w1=scale_w1, scale_w2=scale_w2)
        assert (found.double() - exact).norm() < 0.08 * exact.norm()


def test_scales_far_from_one(target):
    """Weight scales over 2 ** -20 .. 2 ** 20; zeros in a row, and in all of x."""
    recipe = ("row", "row")
    arguments, scales, values = drawn(target, 12, 4, 2, recipe)
    generator = torch.Generator().manual_seed(8)
    factors = torch.ldexp(torch.ones(4, 1, 1), torch.randint(-20, 21, (4, 1, 1), generator=generator))
    scales["scale_w1"] = scales["scale_w1"] * factors
    scales["scale_w2"] = scales["scale_w2"] / factors
    values = values[0] * factors, values[1] / factors
    x = arguments[0].clone()
    x[3] = 0
    arguments = (x, *arguments[1:])
    found = moe(*arguments, activation="relu", **scales)
    assert not found[3].any()
    assert_close(found, arguments, values, recipe, kind="relu")


def test_nan_stays_with_its_token(target):
    recipe = ("row", "row")
    arguments, scales, _ = drawn(target, 12, 4, 2, recipe)
    expected = moe(*arguments, **scales)
    arguments[0][5, 7] = torch.nan
    found = moe(*arguments, **scales)
    kept = torch.arange(12) != 5
    assert found[5].isnan().all() and torch.equal(found[kept], expected[kept])


def test_two_runs_and_permuted_tokens_give_the_same_bytes():
    with hipkittens.simulate("gfx950"):
        (x, w1, w2, weights, ids), scales, _ = drawn("gfx950", 64, 8, 2, ("row", "row"))
        first = moe(x, w1, w2, weights, ids, **scales)
        assert torch.equal(first, moe(x, w1, w2, weights, ids, **scales))
        turned = torch.randperm(64, generator=torch.Generator().manual_seed(1))
        assert torch.equal(first[turned], moe(x[turned], w1, w2, weights[turned], ids[turned], **scales))


@pytest.mark.filterwarnings("ignore")
def test_compiled(target, compile_backend):
    torch._dynamo.reset()
    arguments, scales, _ = drawn(target, 16, 8, 2, ("row", "row"))
    compiled = torch.compile(lambda *given: moe(*given, **scales), fullgraph=True, backend=compile_backend)
    assert torch.equal(compiled(*arguments), moe(*arguments, **scales))


def test_under_autocast(target):
    arguments, scales, _ = drawn(target, 8, 4, 2, ("row", "row"))
    with torch.autocast("cpu", BF16):
        found = moe(arguments[0].float(), *arguments[1:], **scales)
    assert torch.equal(found, moe(*arguments, **scales))


WRONG = [
    ({"scale_w2": None}, ValueError, "scale_w2 is None; weights of 8 and 4 bits have scales"),
    ({"scale_w1": None, "scale_w2": None}, TypeError, "w1 is torch.float8_e4m3fn, codes without scales"),
    ({"scale_w1": torch.ones(4, 287, 1)}, ValueError, "scale_w1 has shape (4, 287, 1) and dtype torch.float32; allowed with w1 (4, 288, 192): 'row': (4, 288, 1)"),
    ({"scale_w1": torch.ones(4, 1, 1)}, ValueError, "both weights need scales of one kind"),
    ({"scale_w1": torch.ones(4, 288, 1, dtype=F16)}, TypeError, "scale_w1 is torch.float16; allowed: torch.float32"),
    ({"recipe": "1x32"}, ValueError, "allowed with w1 (4, 288, 192): '1x32': (4, 288, 6)"),
    ({"recipe": ("1x128", "row")}, ValueError, "there is no kernel for the recipe ('1x128', 'row')"),
    ({"w1": torch.zeros(4, 288, 192, dtype=BF16)}, TypeError, "w1 is torch.bfloat16; allowed: torch.float8"),
    ({"w1": torch.zeros(4, 288, 192).to(torch.float8_e4m3fnuz)}, TypeError, "w1 is torch.float8_e4m3fnuz; gfx950 multiplies"),
    ({"x": torch.zeros(5, 192, dtype=BF16, requires_grad=True)}, ValueError, "x requires a gradient and gets none"),
]  # fmt: skip


@pytest.mark.parametrize("change, error, message", WRONG)
def test_bad_input(change, error, message):
    with hipkittens.simulate("gfx950"):
        given, scales, _ = drawn("gfx950", 5, 4, 2, ("row", "row"))
        names = ("x", "w1", "w2", "topk_weights", "topk_ids")
        with pytest.raises(error) as raised:
            moe(**dict(zip(names, given, strict=True)) | scales | change)
    assert message in str(raised.value) and "hipkittens.moe" in str(raised.value)


@pytest.mark.parametrize("blocks", [False, True])
def test_gathered_rows_are_those_of_copies(target, blocks, monkeypatch):
    """The first GEMM gathers the rows of tokens: the same bits as with a copy per expert."""
    x = torch.randn(21, 256, generator=torch.Generator().manual_seed(3)).to(BF16)
    ids = torch.randint(7, (21, 3), generator=torch.Generator().manual_seed(4))  # expert 6 does not exist
    spec = QuantSpec("fp8", (128, 128) if blocks else "row")
    weights = [
        torch.randn(6, *sizes, generator=torch.Generator().manual_seed(5))
        for sizes in ((256, 256), (256, 128))
    ]
    (w1, scale_w1), (w2, scale_w2) = (quantize(w, spec) for w in weights)
    arguments = x, w1, w2, torch.ones(21, 3), ids
    gathered = moe(*arguments, scale_w1=scale_w1, scale_w2=scale_w2)
    monkeypatch.setattr(_scaled_experts, "reads_tokens_once", lambda *_: False)
    assert torch.equal(gathered, moe(*arguments, scale_w1=scale_w1, scale_w2=scale_w2)) and gathered.any()
