# SPDX-License-Identifier: MIT
"""Scaled products with a multiplication and addition, or with heads that are split and concatenated: every tile, strides, refused arguments."""

import pytest
import torch

import hipkittens
from hipkittens import (
    QuantSpec,
    preshuffle,
    quantize,
    scaled_matmul,
    scaled_matmul_concat_heads,
    scaled_matmul_multiply_add,
)
from hipkittens._namespace import OPERATORS
from hipkittens.quantization import dtype_of
from tests.simulated_device import TARGETS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
RECIPES = {"outer": None, "blocks": ("1x128", "128x128"), "1x32": "1x32"}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def operands(m, n, k, scales="outer", seed=0):
    """Random values; scales are powers of two, so that the product of small integers is exact."""
    generator = torch.Generator().manual_seed(seed)

    def powers(*shape):
        return torch.exp2(torch.randint(-1, 2, shape, generator=generator).float())

    if scales == "1x32":
        a, w = (torch.randint(0, 256, (rows, k // 2), generator=generator).to(torch.uint8) for rows in (m, n))
        of_a, of_w = (
            torch.randint(126, 129, (rows, k // 32), generator=generator).to(torch.uint8) for rows in (m, n)
        )
        return a, w.t(), of_a, of_w.t()
    fp8, blocks = dtype_of("fp8", torch.device("cpu")), -(-k // 128)
    a, w = (torch.randint(-3, 4, (rows, k), generator=generator).to(F32).to(fp8) for rows in (m, n))
    if scales == "outer":
        return a, w.t(), powers(m, 1), powers(1, n)
    return a, w.t(), powers(m, blocks), powers(blocks, -(-n // 128))


def recipe(scales):
    return {"recipe": RECIPES[scales]}


def kinds(target):
    return ["outer", "blocks"] + ["1x32"] * (target == "gfx950")


SHAPES = [(1, 64, 160), (2, 192, 32), (17, 320, 2880), (65, 132, 288), (255, 257, 160), (257, 64, 128)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_residual(target, shape):
    """factor * product + addend of the product that scaled_matmul returns in float32, rounded once."""
    m, n, _ = shape
    for scales in kinds(target):
        given = operands(*shape, scales)
        product = scaled_matmul(*given, **recipe(scales), out_dtype=F32)
        for dtype, out in ((BF16, BF16), (F32, F16), (F16, F32)):
            residual = torch.randint(-8, 9, (m, n)).to(dtype)
            y = scaled_matmul_multiply_add(*given, 0.5, residual, **recipe(scales), out_dtype=out)
            assert y.dtype == out and torch.equal(y, (product * 0.5 + residual.float()).to(out))


@pytest.mark.parametrize("factor", ["number", "one", "row", "column", "all", "unaligned"])
@pytest.mark.parametrize("addend", ["number", "column", "all", "transposed"])
def test_terms(target, factor, addend):
    """A number, or any tensor that broadcasts, of any strides."""
    m, n, k = 33, 72, 96
    given = operands(m, n, k)
    product = scaled_matmul(*given, out_dtype=F32)

    def term(kind, dtype):
        draw = torch.Generator().manual_seed(len(kind))

        def integers(*shape):
            return torch.randint(-4, 5, shape, generator=draw).to(dtype)

        return {
            "number": -1.5,
            "one": integers(1),
            "row": integers(m, 1),
            "column": integers(n),
            "all": integers(m, n),
            "unaligned": integers(m, n + 3)[:, 3:],
            "transposed": integers(n, m).t(),
        }[kind]

    for dtype in (BF16, F32):
        left, right = term(factor, dtype), term(addend, dtype)
        y = scaled_matmul_multiply_add(*given, left, right, out_dtype=F32)
        wide = [each.float() if isinstance(each, torch.Tensor) else each for each in (left, right)]
        assert torch.equal(y, product * wide[0] + wide[1])


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
def test_bias_and_activation_come_first(target, activation):
    given, bias, residual = operands(20, 72, 96), torch.randn(72), torch.randn(20, 72)
    product = scaled_matmul(*given, bias=bias, activation=activation, out_dtype=F32)
    y = scaled_matmul_multiply_add(*given, 2.0, residual, bias=bias, activation=activation, out_dtype=F32)
    torch.testing.assert_close(y, product * 2.0 + residual, rtol=1e-6, atol=1e-6)


HEADS = [
    # m, heads, columns of a head, first, joined columns, K
    (1, 3, 64, 32, 16, 160),
    (17, 2, 256, 128, 64, 288),
    (65, 5, 24, 8, 8, 128),
    (255, 3, 17, 5, 3, 160),
    (33, 7, 40, 0, 24, 96),
    (66, 2, 96, 96, 10, 2880),
    (40, 4, 48, 24, 0, 64),
]


@pytest.mark.parametrize("shape", HEADS, ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_heads(target, shape, shared):
    m, heads, columns, first, joined_columns, k = shape
    for scales in kinds(target):
        given = operands(m, heads * columns, -(-k // 32) * 32, scales)
        for out in (BF16, F32):
            product = scaled_matmul(*given, **recipe(scales), out_dtype=out).view(m, heads, columns)
            joined = torch.randn(m, 1 if shared else heads, joined_columns).to(out).expand(-1, heads, -1)
            keys, rest = scaled_matmul_concat_heads(*given, joined, first, **recipe(scales))
            assert keys.is_contiguous() and rest.is_contiguous()
            assert torch.equal(keys, torch.cat((product[..., :first], joined), -1))
            assert torch.equal(rest, product[..., first:])


def test_joined_heads_of_any_strides(target):
    given = operands(20, 3 * 32, 64)
    wide = torch.randn(3, 20, 27).to(BF16)
    for joined in (wide[..., :16], wide[..., 5:14], wide[..., ::2]):
        joined = joined.transpose(0, 1)
        keys, _ = scaled_matmul_concat_heads(*given, joined, 16)
        assert torch.equal(keys[..., 16:], joined)


@pytest.mark.parametrize("scales", ["outer", "blocks", "1x32"])
def test_layouts(target, scales):
    """Preshuffled weights, rows apart, rows that are copied: the same bits."""
    if scales not in kinds(target):
        pytest.skip("gfx942 has no instruction for these")
    a, b, *factors = operands(40, 96, 128, scales)
    residual = torch.randn(40, 96).to(BF16)
    right = scaled_matmul_multiply_add(a, b, *factors, 1.0, residual, **recipe(scales))
    wide = torch.zeros(40, 200, dtype=torch.uint8).view(a.dtype)
    wide[:, 5 : 5 + a.shape[1]] = a
    for left, weight in (
        (wide[:, 5 : 5 + a.shape[1]], b),
        (a, b.contiguous()),
        (a, preshuffle(b.t().contiguous())),
    ):
        found = scaled_matmul_multiply_add(left, weight, *factors, 1.0, residual, **recipe(scales))
        assert torch.equal(found, right)


def test_shuffled_scales_of_quantize():
    with hipkittens.simulate("gfx950", checks="all") as simulation:
        spec = QuantSpec("mxfp4", layout="shuffled")
        (a, of_a), (w, of_w) = (quantize(torch.randn(rows, 256).to(BF16), spec) for rows in (48, 64))
        given, options = (a, w.t(), of_a, of_w), {"recipe": "1x32", "swizzle": "shuffled"}
        product = scaled_matmul(*given, **options, out_dtype=F32)
        y = scaled_matmul_multiply_add(*given, 1.0, torch.ones(48, 64), **options, out_dtype=F32)
        assert torch.equal(y, product + 1)
    assert simulation.findings == []


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("fp8_16x64x128", (16, 4096, 128)),
        ("fp8_32x64x128", (512, 1024, 288)),
        ("fp8_16x64x128_blocks", (16, 4096, 128)),
        ("fp8_32x64x128_blocks", (512, 1024, 288)),
        pytest.param("fp8_128x128x128", (2048, 2048, 288), marks=pytest.mark.slow),
        pytest.param("fp8_256x256x128", (4864, 4096, 160), marks=pytest.mark.slow),
    ],
)
def test_tiles(target, name, shape):
    m, n, _ = shape
    scales = "blocks" if name.endswith("blocks") else "outer"
    given = operands(*shape, scales)
    product = scaled_matmul(*given, **recipe(scales), out_dtype=F32)
    residual = torch.randn(m, n).to(BF16)
    y = scaled_matmul_multiply_add(*given, 1.0, residual, **recipe(scales), out_dtype=F32)
    assert f"fused_nt_{name}_gfx" in hipkittens._library.last_kernel()
    assert torch.equal(y, product + residual.float())


def test_a_factor_of_nan_and_infinite_addends(target):
    given = operands(20, 32, 64)
    addend = torch.zeros(20, 32)
    addend[3, 5], addend[4, 6] = torch.inf, torch.nan
    y = scaled_matmul_multiply_add(*given, 1.0, addend)
    assert y[3, 5] == torch.inf and y[4, 6].isnan() and y.isnan().sum() == 1
    assert scaled_matmul_multiply_add(*given, torch.nan, 0.0).isnan().all()


def test_empty(target):
    fp8 = dtype_of("fp8", torch.device("cpu"))
    one = torch.ones(())

    def zeros(*shape):
        return torch.zeros(shape).to(fp8)

    y = scaled_matmul_multiply_add(zeros(3, 0), zeros(0, 4), one, one, 2.0, torch.full((3, 4), 5.0))
    assert y.dtype == BF16 and (y == 5).all()
    assert scaled_matmul_multiply_add(zeros(0, 8), zeros(8, 4), one, one, 2.0, 1.0).shape == (0, 4)
    joined = torch.ones(3, 2, 5, dtype=BF16)
    keys, rest = scaled_matmul_concat_heads(zeros(3, 0), zeros(0, 8), one, one, joined, 3)
    assert keys.shape == (3, 2, 8) and (keys[..., 3:] == 1).all() and not keys[..., :3].any()
    assert rest.shape == (3, 2, 1) and not rest.any()


def test_operators(target):
    given = operands(20, 96, 64)
    a, b, of_a, of_w = given
    tensors = a.view(torch.uint8), b.t().view(torch.uint8), of_a.view(-1), of_w.view(-1), torch.randn(96)
    numbers = 0, 0, 1, 1
    for arguments in (
        (*tensors, None, torch.randn(20, 96), 0.5, 0.0, False, *numbers, -1, BF16),
        (*tensors, torch.randn(20, 1), torch.randn(1, 96).to(BF16), 0.0, 0.0, True, *numbers, 0, F32),
    ):
        torch.library.opcheck(OPERATORS.scaled_gemm_multiply_add, arguments)
    joined = torch.randn(20, 3, 8).to(BF16)
    torch.library.opcheck(OPERATORS.scaled_gemm_concat_heads, (*tensors, joined, 16, 16, *numbers, BF16))


def test_compiled_and_on_meta(target):
    given, residual = operands(20, 96, 64), torch.randn(20, 96).to(BF16)
    joined = torch.randn(20, 3, 8).to(BF16)

    def run(residual, joined):
        return scaled_matmul_multiply_add(*given, 1.0, residual * 2), *scaled_matmul_concat_heads(
            *given, joined, 16
        )

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    for mine, right in zip(compiled(residual, joined), run(residual, joined), strict=True):
        assert torch.equal(mine, right)


def test_other_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    a, w = (torch.randint(-3, 4, (rows, 64)).to(F32).to(torch.float8_e4m3fn) for rows in (20, 96))
    one, residual, joined = torch.ones(()), torch.randn(20, 96), torch.randn(20, 3, 8).to(BF16)
    product = a.float() @ w.float().t()
    y = scaled_matmul_multiply_add(a, w.t(), one, one, 0.5, residual, out_dtype=F32)
    assert torch.equal(y, product * 0.5 + residual)
    keys, rest = scaled_matmul_concat_heads(a, w.t(), one, one, joined, 8)
    heads = product.to(BF16).view(20, 3, 32)
    assert torch.equal(keys, torch.cat((heads[..., :8], joined), -1)) and torch.equal(rest, heads[..., 8:])


A, W = torch.zeros(20, 64).to(torch.float8_e4m3fn), torch.zeros(96, 64).to(torch.float8_e4m3fn)
ONE, JOINED = torch.ones(()), torch.zeros(20, 3, 8, dtype=BF16)
E5M2 = torch.zeros(20, 64).to(torch.float8_e5m2)


def add(*arguments, a=A, w=W, **options):
    return scaled_matmul_multiply_add(a, w.t(), ONE, ONE, *arguments, **options)


def concat(*arguments, **options):
    return scaled_matmul_concat_heads(A, W.t(), ONE, ONE, *arguments, **options)


REFUSED = [
    (lambda: add("2", 0.0), TypeError, "factor is '2'; it must be a number"),
    (lambda: add(1.0, None), TypeError, "addend is None; it must be a number"),
    (
        lambda: add(1.0, torch.zeros(96, 20)),
        ValueError,
        "addend has shape (96, 20); it must broadcast to (20, 96)",
    ),
    (lambda: add(torch.zeros(1, 20, 96), 0.0), ValueError, "factor has shape (1, 20, 96)"),
    (
        lambda: add(1.0, torch.zeros(20, 96, dtype=torch.float64)),
        TypeError,
        "addend is torch.float64; allowed",
    ),
    (
        lambda: add(1.0, torch.zeros(20, 96, requires_grad=True)),
        ValueError,
        "addend requires a gradient and gets none",
    ),
    (
        lambda: add(1.0, 0.0, out_dtype=A.dtype),
        TypeError,
        "out_dtype is torch.float8_e4m3fn; allowed: torch.bfloat16",
    ),
    (lambda: add(1.0, 0.0, a=E5M2), ValueError, "there is no kernel for a of bf8, b of fp8"),
    (
        lambda: add(1.0, 0.0, a=A.float().to(torch.int8), w=W.float().to(torch.int8)),
        ValueError,
        "no kernel for a of int8",
    ),
    (lambda: add(1.0, 0.0, activation="tanh"), ValueError, "activation is 'tanh'; allowed"),
    (
        lambda: concat(JOINED[:19], 16),
        ValueError,
        "joined has shape (19, 3, 8); it must be (20, heads, features)",
    ),
    (
        lambda: concat(torch.zeros(20, 7, 8, dtype=BF16), 16),
        ValueError,
        "joined has 7 heads and the product 96 columns",
    ),
    (lambda: concat(JOINED.double(), 16), TypeError, "joined is torch.float64; allowed: torch.bfloat16"),
    (lambda: concat(JOINED, 33), ValueError, "first is 33; a head has 32 features"),
    (lambda: concat(JOINED, 1.5), TypeError, "first is 1.5; it must be a whole number (int)"),
]


@pytest.mark.parametrize(("refused", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refused(refused, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        refused()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.scaled_matmul_")
