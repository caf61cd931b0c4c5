# SPDX-License-Identifier: MIT
"""hipkittens.float8_linear compared with the same recipe in float64, for outputs and every gradient, and with torchao's emulation."""

import copy

import pytest
import torch

import hipkittens
from hipkittens.operations._float8_linear_checks import RECIPES, emulated

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
# One rounding of a uniformly spread mantissa is 2^-9 / sqrt(3) of bfloat16's and an eighth of that of float16's.
ROUNDING = {BF16: 2.5e-3, F16: 3.2e-4, F32: 1e-6}


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    # Rows and columns of very different magnitudes, which a single scale could not represent.
    rows = torch.randint(-6, 7, (*shape[:-1], 1), generator=generator)
    return (torch.randn(shape, generator=generator) * 2.0**rows).to(dtype)


def results(function, x, w, bias, dy, dtype):
    tensors = [None if each is None else each.detach().to(dtype).requires_grad_() for each in (x, w, bias)]
    y = function(*tensors)
    found = torch.autograd.grad(y, [each for each in tensors if each is not None], dy.to(dtype))
    return dict(zip(("y", "dx", "dw", "db"), (y, *found), strict=False))


def relative(ours, right):
    """Root mean square of the error over that of the exact values."""
    return ((ours.double() - right.double()).norm() / right.double().norm().clamp(min=1e-30)).item()


SHAPES = [(17, 160, 128), (1, 16, 257), (128, 255, 17), (257, 2, 1), (2, 1, 16), (64, 160, 96)]


@pytest.mark.parametrize("recipe", RECIPES)
def test_outputs_and_gradients(target, recipe):
    for (m, k, n), dtype, with_bias in zip(SHAPES, (BF16, F16) * 3, (True, True, False) * 2, strict=True):
        x, w = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype, seed=1) / 8
        bias, dy = draw(n, dtype=dtype, seed=2) if with_bias else None, draw(m, n, dtype=dtype, seed=3) / 8
        ours = results(lambda *t: hipkittens.float8_linear(*t, recipe=recipe), x, w, bias, dy, dtype)
        right = results(lambda *t: emulated(*t, recipe=recipe), x, w, bias, dy, torch.float64)
        for name, value in ours.items():
            assert value.dtype == dtype and value.shape == right[name].shape
            error = relative(value, right[name])
            assert error <= ROUNDING[dtype], (recipe, (m, k, n), dtype, name, error)


@pytest.mark.parametrize("recipe", RECIPES[:2])
def test_float32(target, recipe):
    x, w, dy = draw(33, 96, dtype=F32), draw(48, 96, dtype=F32, seed=1), draw(33, 48, dtype=F32, seed=2)
    ours = results(lambda *t: hipkittens.float8_linear(*t, recipe=recipe), x, w, None, dy, F32)
    right = results(lambda *t: emulated(*t, recipe=recipe), x, w, None, dy, torch.float64)
    assert all(relative(value, right[name]) <= ROUNDING[F32] for name, value in ours.items())


@pytest.mark.parametrize("recipe", RECIPES)
def test_beside_torchao(target, recipe):
    """torchao's emulation quantizes identically up to ties in the last step of a scale, and rounds the products once."""
    float8 = pytest.importorskip("torchao.float8")
    config = torchao_config(float8, recipe, target)
    m, k, n = 48, 64, 32
    theirs = torch.nn.Linear(k, n, bias=False, dtype=BF16)
    ours = hipkittens.nn.Float8Linear.from_float(copy.deepcopy(theirs), recipe)
    theirs = float8.convert_to_float8_training(theirs, config=config)
    x, dy = draw(m, k), draw(m, n, seed=3)
    found = []
    for module in (ours, theirs):
        given = x.clone().requires_grad_()
        y = module(given)
        y.backward(dy)
        found.append((y, given.grad, module.weight.grad))
    for mine, other in zip(*found, strict=True):
        assert relative(mine, other) <= (4e-3 if recipe != "tensorwise" else 1e-2)


def torchao_config(float8, recipe, target, emulate=True):
    """torchao's own recipe for an MI300 (fnuz) or MI350; torchao asks the GPU, which is absent here."""
    import dataclasses

    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    casts = {}
    for field in dataclasses.fields(config):
        cast = getattr(config, field.name)
        if field.name.startswith("cast_config") and target == "gfx942":
            fnuz = {torch.float8_e4m3fn: torch.float8_e4m3fnuz, torch.float8_e5m2: torch.float8_e5m2fnuz}
            casts[field.name] = dataclasses.replace(
                cast, target_dtype=fnuz.get(cast.target_dtype, cast.target_dtype)
            )
    return dataclasses.replace(config, emulate=emulate, pad_inner_dim=False, **casts)


def test_layouts_and_batches(target):
    x, w = draw(3, 5, 64), draw(48, 64, seed=1)
    right = hipkittens.float8_linear(x, w)
    assert right.shape == (3, 5, 48)
    assert torch.equal(hipkittens.float8_linear(x.transpose(0, 1).contiguous().transpose(0, 1), w), right)
    assert torch.equal(hipkittens.float8_linear(x, w.t().contiguous().t()), right)
    assert torch.equal(hipkittens.float8_linear(x[1, 2], w), right[1, 2])
    wide = torch.cat((x, x), -1)[..., :64]
    assert torch.equal(hipkittens.float8_linear(wide, w), right)


@pytest.mark.parametrize("recipe", RECIPES)
def test_sums_of_nothing(target, recipe):
    for m, k, n in [(0, 32, 16), (4, 0, 16), (4, 32, 0)]:
        x, w = (torch.zeros(*shape, dtype=BF16, requires_grad=True) for shape in ((m, k), (n, k)))
        bias = torch.ones(n, dtype=F32)
        y = hipkittens.float8_linear(x, w, bias, recipe)
        assert y.shape == (m, n) and (y == 1).all()
        assert [each.shape for each in torch.autograd.grad(y.sum(), (x, w))] == [x.shape, w.shape]


@pytest.mark.parametrize("recipe", RECIPES)
def test_zeros_and_nan(target, recipe):
    x, w = torch.zeros(4, 32, dtype=BF16), draw(16, 32)
    assert (hipkittens.float8_linear(x, w, recipe=recipe) == 0).all()
    x = draw(4, 32)
    x[1, 3] = torch.nan
    y = hipkittens.float8_linear(x, w, recipe=recipe)
    assert y[1].isnan().all() and (recipe == "tensorwise" or not y[[0, 2, 3]].isnan().any())


def test_gradients_of_some(target):
    """Frozen weights, inputs without a gradient: unneeded gradients are not computed, and the rest is the same."""
    x, w, dy = draw(16, 32), draw(48, 32, seed=1), draw(16, 48, seed=2)
    for recipe in RECIPES:
        both = results(lambda *t, r=recipe: hipkittens.float8_linear(*t, recipe=r), x, w, None, dy, BF16)
        for index, name in ((0, "dx"), (1, "dw")):
            given = [each.clone().requires_grad_(place == index) for place, each in enumerate((x, w))]
            y = hipkittens.float8_linear(*given, recipe=recipe)
            assert torch.equal(torch.autograd.grad(y, given[index], dy)[0], both[name])


def test_it_keeps_eight_bits(target):
    x, w = (draw(*shape).requires_grad_() for shape in ((64, 128), (32, 128)))
    for recipe, bytes_of_x in zip(RECIPES, (1, 1, 2), strict=True):
        kept = {}

        def keep(tensor, into=kept):
            if tensor.numel() == x.numel():
                into[tensor.data_ptr()] = tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            hipkittens.float8_linear(x, w, recipe=recipe)
        assert list(kept.values()) == [bytes_of_x], recipe


def test_autocast(target):
    layer = hipkittens.nn.Float8Linear(64, 32)
    x = draw(8, 64, dtype=F32).requires_grad_()
    with torch.autocast("cpu", BF16):
        y = layer(x)
    y.sum().backward()
    assert y.dtype == BF16 and layer.weight.grad.dtype == F32 and x.grad.dtype == F32
    assert torch.equal(y, hipkittens.float8_linear(x.to(BF16), layer.weight.to(BF16), layer.bias.to(BF16)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("recipe", RECIPES)
def test_compile(target, recipe, compile_backend):
    torch._dynamo.reset()
    x, w, bias, dy = draw(24, 64), draw(48, 64, seed=1), draw(48, seed=2), draw(24, 48, seed=3)

    def block(*tensors):
        return hipkittens.float8_linear(*tensors, recipe=recipe)

    eager = results(block, x, w, bias, dy, BF16)
    compiled = results(torch.compile(block, fullgraph=True, backend=compile_backend), x, w, bias, dy, BF16)
    for name, value in eager.items():
        assert relative(compiled[name], value) <= 1e-4, name


def test_transforms(target):
    x, w = draw(4, 32), draw(16, 32, seed=1)
    plain = results(hipkittens.float8_linear, x, w, None, torch.ones(4, 16), BF16)
    found = torch.func.grad(lambda x, w: hipkittens.float8_linear(x, w).float().sum(), (0, 1))(x, w)
    assert torch.equal(found[0], plain["dx"]) and torch.equal(found[1], plain["dw"])
    batch = torch.stack((x, 2 * x))
    each = torch.vmap(lambda x: hipkittens.float8_linear(x, w))(batch)
    assert torch.equal(each, torch.stack([hipkittens.float8_linear(x, w) for x in batch]))
    with pytest.raises(NotImplementedError, match="float8_linear has no forward-mode derivative"):
        torch.func.jvp(lambda x: hipkittens.float8_linear(x, w), (x,), (x,))


def test_module(target):
    plain = torch.nn.Linear(32, 16, dtype=BF16).eval()
    layer = hipkittens.nn.Float8Linear.from_float(plain, "tensorwise")
    assert layer.weight is plain.weight and layer.bias is plain.bias and not layer.training
    fresh = hipkittens.nn.Float8Linear(32, 16, dtype=BF16, recipe="tensorwise")
    fresh.load_state_dict(plain.state_dict())
    x = draw(4, 32)
    assert torch.equal(fresh(x), layer(x)) and "recipe=tensorwise" in repr(layer)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert hipkittens.nn.Float8Linear(32, 16, bias=False).bias is None


X, W = torch.zeros(4, 32, dtype=BF16), torch.zeros(16, 32, dtype=BF16)
BAD = [
    (lambda: hipkittens.float8_linear(X, W, recipe="row"), ValueError, "recipe is 'row'; allowed: 'tensorwise', 'rowwise'"),
    (lambda: hipkittens.float8_linear(X, W.float()), TypeError, "w is torch.float32"),
    (lambda: hipkittens.float8_linear(X.double(), W.double()), TypeError, "x is torch.float64"),
    (lambda: hipkittens.float8_linear(X, W.t()), ValueError, "x has shape (4, 32) and w (32, 16); they must be (..., K)"),
    (lambda: hipkittens.float8_linear(X, W, X[0]), ValueError, "bias has shape (32,); it must be (16,)"),
    (lambda: hipkittens.float8_linear(X.float(), W.float(), recipe="rowwise_with_gw_hp"), TypeError, "x is torch.float32 and"),
    (lambda: hipkittens.nn.Float8Linear(4, 4, recipe="mx"), ValueError, "Float8Linear: recipe is 'mx'"),
    (lambda: hipkittens.nn.Float8Linear.from_float(torch.nn.ReLU()), TypeError, "module is ReLU; it must be"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


def test_which_products_run(target, monkeypatch):
    """bf8 operands occur in tensorwise's backward products only."""
    from hipkittens import float8

    seen = []
    product = float8.scaled_matmul

    def watched(a, b, *arguments, **options):
        seen.append((a.dtype, b.dtype))
        return product(a, b, *arguments, **options)

    monkeypatch.setattr(float8, "scaled_matmul", watched)
    fnuz = target == "gfx942"
    fp8 = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    bf8 = torch.float8_e5m2fnuz if fnuz else torch.float8_e5m2
    expected = {
        "tensorwise": [(fp8, fp8), (bf8, fp8), (bf8, fp8)],
        "rowwise": [(fp8, fp8)] * 3,
        "rowwise_with_gw_hp": [(fp8, fp8)] * 2,
    }
    x, w = (draw(*shape).requires_grad_() for shape in ((16, 32), (48, 32)))
    for recipe in RECIPES:
        seen.clear()
        hipkittens.float8_linear(x, w, recipe=recipe).sum().backward()
        assert seen == expected[recipe]
