# SPDX-License-Identifier: MIT
"""scaled_matmul with results in the target's 8-bit floats: every tile, tails, the scale of the result, and refused arguments."""

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import scaled_matmul
from hipkittens.quantization import dtype_of
from tests.simulated_device import TARGETS

BF16, F16, F32, I8 = torch.bfloat16, torch.float16, torch.float32, torch.int8
OTHER = {"gfx942": torch.float8_e4m3fn, "gfx950": torch.float8_e4m3fnuz}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def operands(m, n, k, seed=0):
    generator = torch.Generator().manual_seed(seed)
    fp8 = dtype_of("fp8", torch.device("cpu"))
    a, w = (torch.randn(rows, k, generator=generator).to(fp8) for rows in (m, n))
    return a, w.t(), torch.rand(m, 1, generator=generator) + 0.5, torch.rand(1, n, generator=generator) + 0.5


def results(a, b, scale_a, scale_b, factor=1.0, bias=None, activation=None):
    """Results before rounding: in float64, and in float32 with 32 of K at a time."""
    found = []
    for wide, step in ((torch.float64, max(a.shape[1], 1)), (F32, 32)):
        sums = torch.zeros(a.shape[0], b.shape[1], dtype=wide)
        for first in range(0, a.shape[1], step):
            sums = sums + a[:, first : first + step].to(wide) @ b[first : first + step].to(wide)
        sums = sums * scale_a.to(wide) * scale_b.to(wide)
        if bias is not None:
            sums = sums + bias.to(wide)
        if activation is not None:
            sums = {"relu": F.relu, "silu": F.silu, "gelu": F.gelu}[activation](sums)
        largest = torch.finfo(a.dtype).max
        found.append((sums * factor).clamp(-largest, largest))
    return found


def check(y, exact, single, signed_zeros=True):
    """Within twice PyTorch's error; quantized values differ from PyTorch's only where the sums are on either side of a tie."""
    theirs = single.to(y.dtype)
    ours, right = ((each.double() - exact).norm() for each in (y, theirs))
    assert not y.float().isnan().any() and ours <= 2 * right + 1e-6 * exact.norm()
    ours, theirs = (each.view(torch.uint8) if signed_zeros else each.float() for each in (y, theirs))
    assert (ours != theirs).float().mean() <= 0.01 + 1 / max(y.numel(), 1)


SHAPES = [
    (1, 1, 16),
    (2, 17, 160),
    (17, 255, 2880),
    (255, 2, 128),
    (257, 257, 131),
    (64, 64, 1),
    (1, 4096, 160),
    (129, 136, 515),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(target, shape):
    given = operands(*shape)
    y = scaled_matmul(*given, out_dtype=given[0].dtype)
    assert y.dtype == given[0].dtype and y.shape == shape[:2]
    check(y, *results(*given))


@pytest.mark.parametrize("activation", [None, "relu", "silu", "gelu"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_factor_bias_and_activation(target, activation, dtype):
    """The factor multiplies the activation's output; also one factor of a tensor for both operands."""
    a, b, scale_a, scale_b = operands(33, 72, 96)
    bias, factor = torch.randn(72).to(dtype), torch.tensor(0.37)
    for scales in (
        (scale_a, scale_b),
        (torch.tensor(0.7), torch.tensor([1.9])),
        (scale_a, torch.tensor(0.9)),
    ):
        y = scaled_matmul(
            a, b, *scales, bias=bias, activation=activation, out_dtype=a.dtype, scale_result=factor
        )
        # Where gelu has underflowed, the sign of PyTorch's zero is that of the CPU's vector instructions.
        wanted = results(a, b, *scales, factor.double().item(), bias, activation)
        check(y, *wanted, signed_zeros=activation != "gelu")


@pytest.mark.parametrize(
    ("tile", "shape"),
    [
        ("64x64", (65, 130, 288)),
        pytest.param("128x128", (2048, 2048, 288), marks=pytest.mark.slow),
        pytest.param("256x256", (4864, 4096, 416), marks=pytest.mark.slow),
    ],
)
def test_tiles(target, tile, shape):
    given = operands(*shape)
    y = scaled_matmul(*given, out_dtype=given[0].dtype, scale_result=torch.tensor(0.5))
    assert f"codes_nt_fp8_{tile}x128" in hipkittens._library.last_kernel()
    a, b, scale_a, scale_b = given
    exact = (a.float() @ b.float()).double() * scale_a.double() * scale_b.double() * 0.5
    largest = torch.finfo(a.dtype).max
    check(y, exact.clamp(-largest, largest), exact.clamp(-largest, largest).float())


def test_what_is_too_large_becomes_the_largest_code(target):
    a, b, _, scale_b = operands(20, 32, 64)
    scale_a = torch.ones(20, 1)
    scale_a[3], scale_a[5], scale_a[7] = 1e30, torch.nan, 0.0
    y = scaled_matmul(a, b, scale_a, scale_b, out_dtype=a.dtype).float()
    assert (y[3].abs() == torch.finfo(a.dtype).max).all() and y[5].isnan().all() and not y[7].any()
    kept = [row for row in range(20) if row not in (3, 5, 7)]
    assert y[kept].isfinite().all()
    one = torch.ones(())
    y = scaled_matmul(a, b, one, one, out_dtype=a.dtype, scale_result=torch.tensor(torch.nan))
    assert y.float().isnan().all()


def test_layouts(target):
    a, b, scale_a, scale_b = operands(20, 36, 64)
    right = scaled_matmul(a, b, scale_a, scale_b, out_dtype=a.dtype).view(torch.uint8)
    wide = torch.zeros(20, 77, dtype=torch.uint8).view(a.dtype)
    wide[:, 5:69] = a
    for left in (wide[:, 5:69], a.t().contiguous().t()):
        found = scaled_matmul(left, b, scale_a, scale_b, out_dtype=a.dtype)
        assert torch.equal(found.view(torch.uint8), right)
    found = scaled_matmul(a, b.contiguous(), scale_a, scale_b, out_dtype=a.dtype)
    assert torch.equal(found.view(torch.uint8), right)


def test_it_is_an_operand_of_the_next_product(target):
    """A block of two products in 8 bits, with about the scale that its rows would have had."""
    a, up, one, _ = *operands(40, 96, 64)[:2], torch.ones(()), None
    down = operands(64, 1, 96, seed=3)[0].t()
    factor = torch.tensor(1 / 16)
    hidden = scaled_matmul(a, up, one, one, activation="relu", out_dtype=a.dtype, scale_result=factor)
    y = scaled_matmul(hidden, down, 1 / factor, one)
    exact = (a.double() @ up.double()).relu() @ down.double()
    assert (y.double() - exact).norm() <= 0.05 * exact.norm()


def test_empty(target):
    for shape in ((0, 5, 8), (6, 0, 8), (6, 8, 0)):
        a, b, scale_a, scale_b = operands(*shape)
        y = scaled_matmul(a, b, scale_a, scale_b, out_dtype=a.dtype)
        assert y.shape == shape[:2] and y.dtype == a.dtype and not y.float().any()


def test_torch_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    generator = torch.Generator().manual_seed(0)
    a, w = (torch.randn(rows, 48, generator=generator).to(torch.float8_e4m3fn) for rows in (9, 16))
    one = torch.ones(())
    given = a, w.t(), one, one
    y = scaled_matmul(*given, out_dtype=a.dtype, scale_result=torch.tensor(0.25))
    check(y, *results(*given, 0.25))


def test_opcheck(target):
    a, b, scale_a, scale_b = operands(9, 16, 32)
    inputs = (a.view(torch.uint8), b.t().view(torch.uint8), scale_a.flatten(), scale_b.flatten())
    for rest in ((None, None), (torch.ones(16), torch.ones(()))):
        found = torch.library.opcheck(
            torch.ops.hipkittens.scaled_gemm_codes.default, (*inputs, *rest, 1, 1, 0)
        )
        assert set(found.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    a, b, scale_a, scale_b = operands(9, 16, 32)

    def block(a, b, scale_a, scale_b, factor):
        return scaled_matmul(a, b, scale_a * 2, scale_b, out_dtype=a.dtype, scale_result=factor).float()

    given = (a, b, scale_a, scale_b, torch.tensor(0.5))
    assert torch.equal(torch.compile(block, fullgraph=True, backend=compile_backend)(*given), block(*given))


def test_bad_input(target):
    a, b, scale_a, scale_b = operands(8, 16, 32)
    fp8, one = a.dtype, torch.ones(())
    integers = torch.zeros(8, 32, dtype=I8), torch.zeros(32, 16, dtype=I8)
    wrong = [
        ((a, b, scale_a, scale_b), {"out_dtype": OTHER[target]}, TypeError, f"out_dtype is {OTHER[target]} and a is {fp8}; results"),
        ((*integers, one, one), {"out_dtype": fp8}, ValueError, "of a of int8, b of int8"),
        ((a, b, torch.ones(8, 1), torch.ones(1, 1)), {"out_dtype": fp8, "recipe": ("1x128", "128x128")}, ValueError, "('1x128', '128x128')"),
        ((a, b, scale_a, scale_b), {"scale_result": one}, ValueError, "scale_result is given and out_dtype is torch.bfloat16"),
        ((a, b, scale_a, scale_b), {"out_dtype": fp8, "scale_result": torch.ones(2)}, ValueError, "scale_result has shape (2,)"),
        ((a, b, scale_a, scale_b), {"out_dtype": fp8, "scale_result": one.double()}, TypeError, "scale_result is torch.float64"),
        ((a, b, scale_a, scale_b), {"out_dtype": fp8, "scale_result": one.clone().requires_grad_()}, ValueError, "scale_result requires"),
        ((a, b, scale_a, scale_b), {"out_dtype": torch.float8_e5m2}, TypeError, "and e4m3 of e4m3 operands"),
    ]  # fmt: skip
    for given, options, error, says in wrong:
        with pytest.raises(error) as raised:
            scaled_matmul(*given, **options)
        assert says in str(raised.value) and "hipkittens.scaled_matmul" in str(raised.value)
