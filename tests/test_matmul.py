# SPDX-License-Identifier: MIT
"""hipkittens.matmul and linear from PyTorch."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens._accuracy import compare

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def random(*shape, dtype=BF16, seed=0, **options):
    return (
        torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        .to(dtype)
        .requires_grad_(options.get("requires_grad", False))
    )


def close(ours, reference, unit=2.0**-8):
    """Within one rounding of the result plus float32 noise."""
    difference = (ours.detach().double() - reference.detach()).abs()
    assert ours.shape == reference.shape
    assert torch.all(difference <= unit * reference.abs() + 1e-4 * reference.abs().max()), difference.max()


def test_shapes_of_torch_matmul(target):
    for a, b in [
        ((5, 7), (7, 3)), ((4, 5, 7), (7, 3)), ((5, 7), (4, 7, 3)), ((4, 5, 7), (4, 7, 3)), ((4, 1, 5, 7), (1, 2, 7, 3)),
        ((2, 3, 4, 5, 7), (7, 3)), ((1, 5, 7), (6, 7, 3)), ((2, 1, 5, 7), (3, 7, 3)),
    ]:  # fmt: skip
        x, y = random(*a), random(*b, seed=1)
        close(hipkittens.matmul(x, y), x.double() @ y.double())


@pytest.mark.parametrize("shape", [(0, 4, 5), (4, 0, 5), (4, 5, 0), (0, 0, 0)])
def test_empty(target, shape):
    m, n, k = shape
    result = hipkittens.matmul(random(m, k), random(k, n), bias=random(n))
    assert torch.equal(result, random(n).expand(m, n))
    assert torch.equal(hipkittens.matmul(random(m, k), random(k, n)), torch.zeros(m, n, dtype=BF16))
    assert hipkittens.matmul(random(0, m, k), random(0, k, n)).shape == (0, m, n)
    assert hipkittens.matmul(random(2, m, k), random(k, n)).shape == (2, m, n)
    assert torch.equal(hipkittens.linear(random(m, k), random(n, k), random(n)), random(n).expand(m, n))


def test_linear_has_the_shapes_of_torch(target):
    weight, bias = random(11, 24, seed=1), random(11, seed=2)
    for shape in [(24,), (5, 24), (2, 3, 24), (2, 1, 3, 24)]:
        x = random(*shape)
        close(
            hipkittens.linear(x, weight, bias),
            torch.nn.functional.linear(x.double(), weight.double(), bias.double()),
        )
        assert hipkittens.linear(x, weight).shape == (*shape[:-1], 11)


@pytest.mark.parametrize("out", [BF16, F16, F32])
@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("bias_dtype", [None, "same", F32])
def test_dtypes(target, dtype, out, bias_dtype):
    a, b = random(37, 41, dtype=dtype), random(41, 43, dtype=dtype, seed=1)
    bias = None if bias_dtype is None else random(43, dtype=dtype if bias_dtype == "same" else F32, seed=2)
    result = hipkittens.matmul(a, b, bias=bias, out_dtype=out)
    assert result.dtype == out
    close(
        result,
        a.double() @ b.double() + (0 if bias is None else bias.double()),
        {BF16: 2**-8, F16: 2**-11, F32: 1e-5}[out],
    )


def layouts_of(values):
    """The same matrix in every way a tensor can store it."""
    rows, columns = values.shape
    nan = float("nan")
    yield "dense", values
    yield "transposed", values.t().contiguous().t()
    wide = torch.full((rows, columns + 5), nan, dtype=values.dtype)
    wide[:, 2 : 2 + columns] = values
    yield "columns of a wider one", wide[:, 2 : 2 + columns]
    tall = torch.full((columns + 3, rows + 4), nan, dtype=values.dtype)
    tall[1 : 1 + columns, 1 : 1 + rows] = values.t()
    yield "transposed columns of a wider one", tall[1 : 1 + columns, 1 : 1 + rows].t()
    every_other = torch.full((rows, 2 * columns), nan, dtype=values.dtype)
    every_other[:, ::2] = values
    yield "every other column", every_other[:, ::2]
    alternate = torch.full((2 * rows, columns), nan, dtype=values.dtype)
    alternate[::2] = values
    yield "every other row", alternate[::2]


def test_layouts(target):
    a, b = random(35, 66), random(66, 34, seed=1)
    expected = hipkittens.matmul(a, b)
    close(expected, a.double() @ b.double())
    for name_a, x in layouts_of(a):
        for name_b, y in layouts_of(b):
            assert torch.equal(hipkittens.matmul(x, y), expected), f"a {name_a}, b {name_b}"


def test_expanded_operands(target):
    row, b = random(1, 64), random(64, 32, seed=1)
    close(hipkittens.matmul(row.expand(40, 64), b), (row.double() @ b.double()).expand(40, 32))
    one = random(1, 1)
    close(hipkittens.matmul(one.expand(33, 64), b), one.double().expand(33, 64) @ b.double())
    shared = random(64, 16, seed=2)
    x = random(3, 2, 24, 64, seed=3)
    close(hipkittens.matmul(x, shared.expand(3, 2, 64, 16)), x.double() @ shared.double())


def test_attention_like_views_are_not_copied(target):
    # batch and heads as in PyTorch's attention code: (B, N, H, D) viewed as (B, H, N, D)
    q, k = random(2, 40, 3, 32).transpose(1, 2), random(2, 24, 3, 32, seed=1).transpose(1, 2)
    close(hipkittens.matmul(q, k.mT), q.double() @ k.double().mT)


def test_parameter_and_storage_offset(target):
    weight = torch.nn.Parameter(random(30, 20))
    x = random(1000)[100:400].view(15, 20)
    result = hipkittens.linear(x, weight)
    close(result, x.double() @ weight.double().t())
    result.sum().backward()
    close(weight.grad, x.double().sum(0).expand(30, 20))


def test_neighbours_are_not_touched(target):
    a, b = random(33, 65), random(65, 31, seed=1)
    before = copy.deepcopy((a, b))
    hipkittens.matmul(a, b)
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def test_same_bits_every_time():
    a, b = random(129, 700), random(700, 65, seed=1)
    for target in TARGETS:
        with hipkittens.simulate(target):
            first = hipkittens.matmul(a, b)
        for threads, seed in [(1, 0), (2, 1), (3, 7)]:
            with hipkittens.simulate(target, threads=threads, seed=seed):
                assert torch.equal(hipkittens.matmul(a, b), first)


def test_deterministic_algorithms(target):
    a, b = random(20, 30), random(30, 40, seed=1)
    expected = hipkittens.matmul(a, b)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(hipkittens.matmul(a, b), expected)
    finally:
        torch.use_deterministic_algorithms(False)


def gradients(function, *leaves):
    leaves = [value.detach().requires_grad_() for value in leaves]
    result = function(*leaves)
    return torch.autograd.grad(result, leaves, random(*result.shape, seed=9).to(result.dtype))


@pytest.mark.parametrize(
    ("a", "b"),
    [((13, 17), (17, 9)), ((2, 13, 17), (17, 9)), ((2, 13, 17), (2, 17, 9)), ((2, 1, 13, 17), (3, 17, 9))],
)
def test_backward(target, a, b):
    a, b, bias = random(*a), random(*b, seed=1), random(9, seed=2)
    ours = gradients(lambda a, b, bias: hipkittens.matmul(a, b, bias=bias), a, b, bias)
    reference = gradients(lambda a, b, bias: a @ b + bias, a.double(), b.double(), bias.double())
    theirs = gradients(lambda a, b, bias: a @ b + bias, a, b, bias)
    for mine, other, exact, leaf in zip(ours, theirs, reference, (a, b, bias), strict=True):
        assert mine.dtype == leaf.dtype
        comparison = compare(mine, other, exact, exact.abs().max().item())
        assert comparison.passes, comparison


def test_backward_of_what_is_asked_for(target):
    a, b = random(4, 5, requires_grad=True), random(5, 6, seed=1)
    hipkittens.matmul(a, b).float().sum().backward()
    close(a.grad, b.double().sum(1).expand(4, 5))
    assert b.grad is None


def test_double_backward(target):
    """The derivative of a gradient is a product too, and is not silently zero."""
    a, b = random(6, 8), random(8, 5, seed=1)

    def penalty(product, a, b):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        first = torch.autograd.grad(product(a, b).square().sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(value.square().sum() for value in first), (a, b))

    for mine, exact in zip(
        penalty(hipkittens.matmul, a, b), penalty(torch.matmul, a.double(), b.double()), strict=True
    ):
        assert mine.abs().sum() > 0
        close(mine, exact, 2.0**-4)


def test_opcheck(target):
    operator = torch.ops.hipkittens.gemm.default
    for inputs in [
        (random(5, 8), random(8, 3), None, BF16, False),
        (
            random(5, 8, requires_grad=True),
            random(8, 3, requires_grad=True),
            random(3, requires_grad=True),
            F32,
            True,
        ),
        (random(2, 5, 8, dtype=F16, requires_grad=True), random(2, 3, 8, dtype=F16).mT, None, F16, False),
    ]:
        results = torch.library.opcheck(operator, inputs)
        assert set(results.values()) == {"SUCCESS"}


def test_fake_tensors():
    a, b = random(7, 8).to("meta"), random(8, 9).to("meta")
    result = torch.ops.hipkittens.gemm(a, b, None, F32, False)
    assert (result.shape, result.dtype, result.device.type) == ((7, 9), F32, "meta")
    assert hipkittens.matmul(a, b).shape == (7, 9)


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    weight, bias = random(16, 24, seed=1, requires_grad=True), random(16, seed=2, requires_grad=True)

    def layer(x):
        return hipkittens.linear(torch.nn.functional.relu(x), weight, bias) * 2

    compiled = torch.compile(layer, fullgraph=True, backend=compile_backend)
    for rows in (5, 12):
        x = random(rows, 24, seed=rows, requires_grad=True)
        expected = layer(x)
        result = compiled(x)
        assert torch.equal(result, expected)
        for mine, other in zip(
            torch.autograd.grad(result.float().sum(), (x, weight, bias)),
            torch.autograd.grad(expected.float().sum(), (x, weight, bias)),
            strict=True,
        ):
            assert torch.equal(mine, other)


def test_autocast(target):
    x, weight = (
        random(5, 8, dtype=F32, requires_grad=True),
        random(4, 8, dtype=F32, seed=1, requires_grad=True),
    )
    for dtype in (BF16, F16):
        with torch.autocast("cpu", dtype):
            y = hipkittens.linear(x, weight)
        assert y.dtype == dtype
        close(y, x.to(dtype).double() @ weight.to(dtype).double().t())
        gradient = torch.autograd.grad(y.float().sum(), x)[0]
        assert gradient.dtype == F32


def test_flop_count():
    with hipkittens.simulate("gfx950"), FlopCounterMode(display=False) as counter:
        hipkittens.matmul(random(3, 5, 8), random(3, 8, 7))
    assert counter.get_total_flops() == 2 * 3 * 5 * 8 * 7


def test_profiler_sees_the_operator():
    with torch.profiler.profile() as profile:
        hipkittens.matmul(random(4, 4), random(4, 4))
    assert "hipkittens::gemm" in {event.key for event in profile.key_averages()}


def test_simulate_puts_everything_back():
    from hipkittens import _backend, _library

    before = (_backend.arch(), _library.simulator_settings())
    with (
        pytest.raises(ZeroDivisionError),
        hipkittens.simulate("gfx950", checks=True, arithmetic="exact", threads=1),
    ):
        with hipkittens.simulate("gfx942"):
            assert _backend.arch() == "gfx942"
        assert _backend.arch() == "gfx950"
        assert _library.simulator_settings()["arithmetic"] == 2
        raise ZeroDivisionError
    assert (_backend.arch(), _library.simulator_settings()) == before


@pytest.mark.parametrize("arithmetic", ["fast", "strict", "exact"])
def test_arithmetic_modes(target, arithmetic):
    a, b = random(64, 128), random(128, 64, seed=1)
    with hipkittens.simulate(target, arithmetic=arithmetic):
        close(hipkittens.matmul(a, b), a.double() @ b.double())


def test_report(target):
    hipkittens.matmul(random(64, 64), random(64, 64))
    report = hipkittens.simulate.report()
    assert report["workgroups"] >= 1 and report["mfma_instructions"] > 0
    assert report["instructions"] == sum(
        value for name, value in report.items() if name.endswith("_instructions")
    )


def test_results_are_freed():
    def resident_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    a, b, bias = random(512, 256), random(256, 512), random(512)
    sizes = []
    for _ in range(3):
        for _ in range(50):  # 50 MiB of results
            torch.ops.hipkittens.gemm(a, b, bias, F32, False)
        sizes.append(resident_bytes())
    assert sizes[-1] - sizes[0] < 25 << 20


def test_torch_backend_needs_no_simulator():
    code = (
        "import torch, hipkittens\n"
        "a, b = torch.ones(3, 4, dtype=torch.bfloat16), torch.ones(4, 5, dtype=torch.bfloat16)\n"
        "assert torch.equal(hipkittens.matmul(a, b, bias=b[0]), torch.full((3, 5), 5.0, dtype=torch.bfloat16))\n"
        "assert 'hipkittens_simulator' not in open('/proc/self/maps').read()\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "HIPKITTENS_BACKEND": "torch"}, check=True
    )


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """a has 5 GiB of rows; the product of the last ones is right."""
    rows, k, n = 2**21 + 2**19 + 1, 1024, 32
    a = torch.zeros(rows, k, dtype=BF16)
    tail, b = random(100, k), random(k, n, seed=1)
    a[-100:] = tail
    a[0] = tail[0]
    with hipkittens.simulate("gfx950"):
        result = hipkittens.matmul(a, b)
    close(result[-100:], tail.double() @ b.double())
    close(result[0], tail[0].double() @ b.double())
    assert not result[1:-100].any()
