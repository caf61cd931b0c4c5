# SPDX-License-Identifier: MIT
"""hipkittens.preshuffle, and products with preshuffled weights (panel layout): bitwise equal to those of the same weights in rows."""

import pytest
import torch

import hipkittens.aiter
from hipkittens import QuantSpec, grouped_matmul, moe, preshuffle, quantize, scaled_matmul, unshuffle
from hipkittens.operations._tensors import ends_of
from hipkittens.quantization import dtype_of
from tests.oracles.aiter.formats import float8

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("panel_rows", [16, 32])
@pytest.mark.parametrize("dtype", [BF16, F16, torch.int8, torch.uint8, torch.float8_e4m3fn])
def test_order(dtype, panel_rows):
    """Element (n, k) of AITER's shuffle_weight(w, (panel_rows, 16)), by its formula."""
    rows, columns = 3 * panel_rows, 96
    w = draw(2, rows, columns, seed=1).mul(40).to(dtype)
    panels = preshuffle(w, panel_rows=panel_rows)
    chunk = 16 // w.itemsize
    assert panels.shape == (2, 3, columns // chunk, panel_rows, chunk)
    assert panels.is_contiguous() and panels.dtype == dtype
    n, k = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    place = (
        n // panel_rows * panel_rows * columns
        + k // chunk * panel_rows * chunk
        + n % panel_rows * chunk
        + k % chunk
    )
    for matrix, found in zip(w, panels, strict=True):
        assert torch.equal(found.reshape(-1).view(torch.uint8), bytes_at(matrix, place))
    assert torch.equal(unshuffle(panels).view(torch.uint8), w.view(torch.uint8))


def bytes_at(matrix, place):
    ordered = torch.empty(matrix.numel(), dtype=matrix.dtype).view(
        torch.uint8 if matrix.itemsize == 1 else matrix.dtype
    )
    stored = matrix.contiguous().view(ordered.dtype)
    ordered[place.reshape(-1)] = stored.reshape(-1)
    return ordered.view(torch.uint8)


def operands(target, recipe, m, n, k, seed=3):
    """Operands of scaled_matmul: a, w (n, k), their scales, and the options; nothing where the target does not support them."""
    blocks = -(-k // 128)
    random = torch.Generator().manual_seed(seed)
    if recipe in ("outer", "codes", "e5m2", "int8"):
        scales = torch.rand(m, 1, generator=random) + 0.5, torch.rand(1, n, generator=random) + 0.5
        dtype = torch.int8 if recipe == "int8" else float8(target)
        a, w = draw(m, k, seed=seed).mul(9).to(dtype), draw(n, k, seed=seed + 1).mul(9).to(dtype)
        if recipe == "e5m2":
            a = a.float().to(torch.float8_e5m2fnuz if target == "gfx942" else torch.float8_e5m2)
        return a, w, scales, {"out_dtype": float8(target)} if recipe == "codes" else {}
    if recipe in ("blocks", "row blocks"):
        second = (blocks, -(-n // 128)) if recipe == "blocks" else (blocks, n)
        scales = torch.rand(m, blocks, generator=random) + 0.5, torch.rand(second, generator=random) + 0.5
        a, w = draw(m, k, seed=seed).to(float8(target)), draw(n, k, seed=seed + 1).to(float8(target))
        return a, w, scales, {"recipe": ("1x128", "128x128" if recipe == "blocks" else "1x128")}
    if k % 32 or (target == "gfx942" and recipe != "bf16 x mxfp4"):
        return None
    w, of_w = quantize(draw(n, k, seed=seed + 1), QuantSpec("mxfp8" if recipe == "mxfp8" else "mxfp4"))
    if recipe in ("bf16 x mxfp4", "fp8 x mxfp4"):
        a = draw(m, k, seed=seed, dtype=BF16)
        if recipe == "bf16 x mxfp4":
            return a, w, (None, of_w.t()), {"recipe": ("tensor", "1x32")}
        a, of_a = quantize(a, QuantSpec("fp8", "row"))
        return a, w, (of_a, of_w.t()), {"recipe": ("row", "1x32")}
    a, of_a = quantize(draw(m, k, seed=seed), QuantSpec("mxfp4" if recipe == "mxfp4" else "mxfp8"))
    return a, w, (of_a, of_w.t()), {"recipe": "1x32"}


RECIPES = [
    "outer",
    "codes",
    "e5m2",
    "int8",
    "blocks",
    "row blocks",
    "mxfp4",
    "mxfp8",
    "mxfp8 x mxfp4",
    "fp8 x mxfp4",
    "bf16 x mxfp4",
]


# One row and few, K that ends inside a tile and inside a line of memory, N inside a tile, tiles of every schedule, and a split K.
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 16, 64), (17, 144, 160), (3, 64, 4128), (70, 336, 352), (257, 272, 2880)]
)
@pytest.mark.parametrize("recipe", RECIPES)
def test_products(target, recipe, m, n, k):
    given = operands(target, recipe, m, n, k)
    if given is None:
        pytest.skip("no such matrix instruction")
    a, w, scales, options = given
    expected = scaled_matmul(a, w.t(), *scales, **options)
    for panel_rows in (16, 32):
        if n % panel_rows == 0:
            found = scaled_matmul(a, preshuffle(w, panel_rows=panel_rows), *scales, **options)
            assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))


# The largest tiles, with two pieces per workgroup: one XCD has work for them.
@pytest.mark.parametrize("recipe", ["outer", "mxfp8 x mxfp4", "blocks"])
def test_large_tiles(target, recipe):
    given = operands(target, recipe, 1500, 2576, 480)
    if given is None:
        pytest.skip("no such matrix instruction")
    a, w, scales, options = given
    with hipkittens.simulate(target, partition="CPX", checks="racecheck"):
        expected = scaled_matmul(a, w.t(), *scales, **options)
        assert torch.equal(scaled_matmul(a, preshuffle(w), *scales, **options), expected)


SIZES = [[5, 0, 40, 1, 0], [70], [0, 0], [31, 1, 32, 33]]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("dtype", [BF16, F16, "outer", "blocks", "mxfp4", "bf16 x mxfp4"])
def test_groups(target, sizes, dtype):
    rows, groups, n, k = sum(sizes) + 3, len(sizes), 144, 352
    ends = ends_of(sizes)
    if isinstance(dtype, torch.dtype):
        a, w = draw(rows, k, dtype=dtype), draw(groups, n, k, dtype=dtype, seed=1)
        bias = draw(groups, n, seed=2)
        expected = grouped_matmul(a, w.mT, ends, bias=bias)
        assert torch.equal(grouped_matmul(a, preshuffle(w), ends, bias=bias), expected)
        return
    given = operands(target, dtype, rows, groups * n, k)
    if given is None:
        pytest.skip("no such matrix instruction")
    a, w, (of_a, of_w), options = given
    w = w.view(groups, n, w.shape[1])
    blocks = draw(groups, 3, 2, seed=9).abs() + 0.5
    of_w = blocks if dtype == "blocks" else of_w.t().reshape(groups, n, -1).mT
    expected = grouped_matmul(a, w.mT, ends, scale_a=of_a, scale_b=of_w, **options)
    found = grouped_matmul(a, preshuffle(w), ends, scale_a=of_a, scale_b=of_w, **options)
    assert torch.equal(found, expected)
    if dtype in ("mxfp4", "bf16 x mxfp4"):
        panels, shuffled = preshuffle(w, of_w.mT.contiguous())
        found = grouped_matmul(a, panels, ends, scale_a=of_a, scale_b=shuffled, swizzle="shuffled", **options)
        assert torch.equal(found, expected)


# A gate's rows and its partners' rows are in separate panels, share one, or alternate.
@pytest.mark.parametrize(("inner", "interleaved"), [(48, False), (40, False), (48, True)])
@pytest.mark.parametrize("tokens", [1, 40])
def test_experts(target, inner, interleaved, tokens):
    experts, hidden, k = 4, 96, 2
    x = draw(tokens, hidden, dtype=BF16)
    w1, w2 = (
        draw(experts, 2 * inner, hidden, dtype=BF16, seed=1),
        draw(experts, hidden, inner, dtype=BF16, seed=2),
    )
    weights = torch.rand(tokens, k, generator=torch.Generator().manual_seed(4))
    ids = torch.stack(
        [torch.randperm(experts, generator=torch.Generator().manual_seed(t))[:k] for t in range(tokens)]
    )
    bias = draw(experts, 2 * inner, seed=5)
    options = {"interleaved": interleaved, "bias1": bias}
    expected = moe(x, w1, w2, weights, ids, **options)
    found = moe(x, preshuffle(w1), preshuffle(w2), weights, ids, **options)
    if inner % 16 == 0 and not interleaved:
        assert torch.equal(found, expected)
    else:  # rounded between the product and the gate
        difference = (found.double() - expected.double()).square().mean() / expected.double().square().mean()
        assert difference.sqrt() < 1e-2
    assert torch.equal(moe(x, preshuffle(w1), w2, weights, ids, **options), found)


def test_large_gated_groups(target):
    """Tiles of two pieces, the second of which holds the gates' partners."""
    experts, hidden, inner, tokens = 2, 192, 1040, 1100
    x, ids = draw(tokens, hidden, dtype=BF16), torch.arange(tokens).remainder(experts).unsqueeze(1)
    w1, w2 = (
        draw(experts, 2 * inner, hidden, dtype=BF16, seed=1),
        draw(experts, hidden, inner, dtype=BF16, seed=2),
    )
    weights = torch.ones(tokens, 1)
    with hipkittens.simulate(target, partition="CPX", checks="racecheck"):
        expected = moe(x, w1, w2, weights, ids)
        assert torch.equal(moe(x, preshuffle(w1), preshuffle(w2), weights, ids), expected)


def test_experts_of_codes(target):
    experts, hidden, inner, tokens = 3, 128, 64, 33
    x, weights = (
        draw(tokens, hidden, dtype=BF16),
        torch.rand(tokens, 2, generator=torch.Generator().manual_seed(4)),
    )
    ids = torch.stack([torch.arange(tokens) % 3, (torch.arange(tokens) + 1) % 3], 1)
    w1, w2 = draw(experts, 2 * inner, hidden, seed=1), draw(experts, hidden, inner, seed=2)
    for spec in ("fp8", "mxfp4"):
        named = QuantSpec(spec, "row") if spec == "fp8" else QuantSpec(spec)
        (first, of_first), (second, of_second) = quantize(w1, named), quantize(w2, named)
        options = {"scale_w1": of_first, "scale_w2": of_second}
        expected = moe(x, first, second, weights, ids, **options)
        assert torch.equal(moe(x, preshuffle(first), preshuffle(second), weights, ids, **options), expected)


def test_by_pytorch(monkeypatch):
    monkeypatch.setattr("hipkittens._backend.uses_torch", lambda: True)
    a, w = draw(5, 64).to(torch.float8_e4m3fn), draw(48, 64, seed=1).to(torch.float8_e4m3fn)
    one = torch.ones(())
    assert torch.equal(scaled_matmul(a, preshuffle(w), one, one), scaled_matmul(a, w.t(), one, one))
    a, w, ends = draw(5, 64, dtype=BF16), draw(2, 48, 64, dtype=BF16, seed=1), ends_of([2, 3])
    assert torch.equal(grouped_matmul(a, preshuffle(w), ends), grouped_matmul(a, w.mT, ends))


def test_shapes_without_kernels():
    a, w = (
        torch.empty(5, 64, dtype=torch.float8_e4m3fn, device="meta"),
        torch.empty(3, 4, 16, 16, dtype=torch.float8_e4m3fn, device="meta"),
    )
    one = torch.ones((), device="meta")
    assert scaled_matmul(a, w, one, one).shape == (5, 48)
    a, w = (
        torch.empty(5, 64, dtype=BF16, device="meta"),
        torch.empty(2, 3, 8, 16, 8, dtype=BF16, device="meta"),
    )
    assert grouped_matmul(a, w, torch.empty(2, dtype=torch.int32, device="meta")).shape == (5, 48)


def test_compiled(target, compile_backend):
    codes = dtype_of("fp8", torch.device("cpu"), "here")
    a, w = draw(5, 64).to(codes), preshuffle(draw(48, 64, seed=1).to(codes))
    one = torch.ones(())
    compiled = torch.compile(
        lambda a, w: scaled_matmul(a, w, one, one), backend=compile_backend, fullgraph=True
    )
    assert torch.equal(compiled(a, w), scaled_matmul(a, w, one, one))


def test_aiter_names_the_argument_that_is_no_panel(target):
    codes = torch.zeros(2, 3, 4, 5, dtype=float8(target))
    with pytest.raises(ValueError, match=r"hipkittens\.aiter\.gemm_a8w8: w has shape \(2, 3, 4, 5\)"):
        hipkittens.aiter.gemm_a8w8(codes[0, 0], codes, torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"hipkittens\.aiter\.gemm_a8w8_blockscale: WQ has shape"):
        hipkittens.aiter.gemm_a8w8_blockscale(
            codes[0, 0], codes, torch.ones(4, 1), torch.ones(1, 1), y=torch.ones(4, 6)
        )


def test_what_is_refused(target):
    codes = float8(target)
    w, one, ends = draw(48, 64, seed=1).to(codes), torch.ones(()), ends_of([5])
    with pytest.raises(ValueError, match=r"w has shape \(40, 64\).*N a multiple of 16"):
        preshuffle(w[:40])
    with pytest.raises(ValueError, match=r"rows of 16 bytes or a multiple"):
        preshuffle(w[:, :40])
    with pytest.raises(ValueError, match="panel_rows is 8; allowed: 16, 32"):
        preshuffle(w, panel_rows=8)
    with pytest.raises(ValueError, match=r"scales has shape \(48, 3\) and dtype torch\.float32"):
        preshuffle(w, torch.ones(48, 3))
    with pytest.raises(ValueError, match="w requires a gradient"):
        preshuffle(draw(16, 64).requires_grad_())
    panels = preshuffle(w)
    with pytest.raises(
        ValueError,
        match=r"hipkittens\.scaled_matmul: b has shape \(3, 16, 4, 16\).*as hipkittens\.preshuffle",
    ):
        scaled_matmul(draw(5, 64).to(codes), panels.transpose(1, 2), one, one)
    with pytest.raises(ValueError, match=r"a has 80 columns and b has 64 rows"):
        scaled_matmul(draw(5, 80).to(codes), panels, one, one)
    with pytest.raises(ValueError, match=r"panels has shape \(48, 64\)"):
        unshuffle(w)
    weights = preshuffle(draw(1, 48, 64, dtype=BF16))
    with pytest.raises(ValueError, match="a requires a gradient and gets none"):
        grouped_matmul(draw(5, 64, dtype=BF16).requires_grad_(), weights, ends)
    with pytest.raises(ValueError, match="b is in panels; they are for groups of rows"):
        grouped_matmul(draw(1, 5, 64, dtype=BF16), weights, None)
