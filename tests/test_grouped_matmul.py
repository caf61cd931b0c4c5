# SPDX-License-Identifier: MIT
"""hipkittens.grouped_matmul from PyTorch."""

import pytest
import torch

import hipkittens
from hipkittens._accuracy import compare
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.operations._tensors import ends_of

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INT32 = torch.int32


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def random(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def whole(*shape, dtype=BF16, seed=0):
    """Small integers, for which every sum of products is exact."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(a, b, offs):
    """Products of integers, in float64."""
    return in_groups(a.double(), b.double(), offs)


SIZES = [
    [5, 0, 40, 1, 0],  # with empty groups, the last among them
    [0, 0, 70],  # all rows in one
    [70],  # a single group
    [0, 0],  # no rows at all: all are past the last group
    [33, 32, 5],
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_groups_of_rows(target, sizes):
    """Exact, and zero past the last group; N and K are odd, so that the last element of a row occupies half a dword."""
    for n, k in ((257, 17), (72, 160)):
        a, b, offs = whole(70, k), whole(len(sizes), k, n, seed=1), ends_of(sizes)
        out = hipkittens.grouped_matmul(a, b, offs, out_dtype=F32)
        assert torch.equal(out.double(), exact(a, b, offs))
        assert not out[sum(sizes) :].any()


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_groups_of_the_summed_dimension(target, sizes):
    """Groups begin at odd positions of rows that run along K, too; an empty group's product is zero."""
    a, b, offs = whole(35, 70), whole(70, 48, seed=1), ends_of(sizes)
    expected = exact(a, b, offs)
    for first in (a, a.mT.contiguous().mT):
        for second in (b, b.mT.contiguous().mT):
            out = hipkittens.grouped_matmul(first, second, offs, out_dtype=F32)
            assert torch.equal(out.double(), expected)


def test_groups_of_columns(target):
    a, b, offs = whole(3, 24, 40), whole(40, 70, seed=1), ends_of([20, 0, 47])
    out = hipkittens.grouped_matmul(a, b, offs)
    assert torch.equal(out.double(), exact(a, b, offs)) and not out[:, 67:].any()
    assert torch.equal(hipkittens.grouped_matmul(a, b.mT.contiguous().mT, offs), out)


def test_a_matrix_for_each_group(target):
    a, b = whole(3, 24, 40), whole(3, 40, 17, seed=1)
    expected = a.double() @ b.double()
    assert torch.equal(hipkittens.grouped_matmul(a, b).double(), expected)
    bias = whole(3, 17, seed=2)
    for second in (b, b.mT.contiguous().mT):
        for first in (a, a.mT.contiguous().mT):
            out = hipkittens.grouped_matmul(first, second, bias=bias, out_dtype=F32)
            assert torch.equal(out.double(), expected + bias.double()[:, None])


def takes(tile, a, b, offs):
    out = hipkittens.grouped_matmul(a, b, offs, out_dtype=F32)
    assert f"_{tile}" in hipkittens._library.last_kernel()
    assert torch.equal(out, in_groups(a.float(), b.float(), offs))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("tile", "sizes", "n", "k"),
    [
        ("32x64x", (5, 0, 20), 136, 264),
        ("64x64x", (30, 28) * 3 + (58, 0), 2048, 1000),
        pytest.param("128x128x", (100, 0, 110), 8192, 616, marks=pytest.mark.slow),
        pytest.param("256x256x", (1500, 0, 1497), 4096, 360, marks=pytest.mark.slow),
    ],
)
def test_tiles_of_groups_of_rows(target, tile, sizes, n, k, transposed):
    if transposed and tile == "32x64x":
        tile = "16x"  # with weights in rows, which are streamed for few rows
    for dtype in (BF16, F16):
        a = whole(sum(sizes) + 3, k, dtype=dtype)
        b = whole(len(sizes), n, k, dtype=dtype).mT if transposed else whole(len(sizes), k, n, dtype=dtype)
        takes(tile, a, b, ends_of(sizes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tile", "m", "n", "sizes"),
    [("128x128x", 1024, 2048, (300, 0, 97)), ("256x256x", 2048, 2304, (150, 0, 70))],
)
def test_tiles_of_groups_of_the_summed_dimension(target, tile, m, n, sizes):
    for dtype in (BF16, F16):
        k = sum(sizes) + 3
        takes(tile, whole(k, m, dtype=dtype).mT, whole(k, n, dtype=dtype, seed=1), ends_of(sizes))


@pytest.mark.parametrize("k", [17, 160, 2880])
def test_error_beside_pytorch(target, k):
    a, offs = random(48, k), ends_of([20, 0, 25])
    b = random(3, k, 72, seed=1)
    ours, theirs = hipkittens.grouped_matmul(a, b, offs), in_groups(a, b, offs)
    reference = exact(a, b, offs)
    comparison = compare(ours, theirs, reference, (a.double().abs() @ b.double().abs()).max().item())
    assert comparison.passes, comparison


def test_more_groups_than_lanes(target):
    """A lane has two groups, then 32: the second search is among its own."""
    for groups in (63, 64, 65, 127, 2000):
        sizes = torch.randint(0, 3, (groups,), generator=torch.Generator().manual_seed(groups))
        offs = ends_of(sizes.tolist())
        rows = int(offs[-1]) + 5
        a, b = whole(rows, 8), whole(groups, 8, 8, seed=1)
        assert torch.equal(hipkittens.grouped_matmul(a, b, offs).double(), exact(a, b, offs))


def test_layouts(target):
    """Rows with gaps of NaN, matrices far apart, expanded ones, and strides with neither contiguous rows nor contiguous columns."""
    a, b, offs = whole(40, 48), whole(3, 48, 32, seed=1), ends_of([17, 3, 15])
    expected = exact(a, b, offs)
    nan = float("nan")
    for gap in (3, 8):
        wide_a = torch.full((40, 48 + gap), nan, dtype=BF16)
        wide_a[:, :48] = a
        wide_b = torch.full((6, 48, 32 + gap), nan, dtype=BF16)
        wide_b[::2, :, :32] = b
        out = hipkittens.grouped_matmul(wide_a[:, :48], wide_b[::2, :, :32], offs)
        assert torch.equal(out.double(), expected)
    apart = torch.full((3, 48, 64), nan, dtype=BF16)
    apart[..., ::2] = b
    assert torch.equal(hipkittens.grouped_matmul(a, apart[..., ::2], offs).double(), expected)
    assert torch.equal(hipkittens.grouped_matmul(a.mT.contiguous().mT, b, offs).double(), expected)
    shared = b[:1].expand(3, 48, 32)
    assert torch.equal(hipkittens.grouped_matmul(a, shared, offs).double(), exact(a, shared, offs))
    every_other = torch.stack([offs, offs + 1], 1)[:, 0]
    assert torch.equal(hipkittens.grouped_matmul(a, b, every_other).double(), expected)


def test_values_of_other_groups_are_not_read_into_sums(target):
    """NaN in a group stays there, and rows past the last group affect nothing."""
    nan = float("nan")
    a, b, offs = whole(40, 48), whole(3, 48, 32, seed=1), ends_of([17, 3, 15])
    a[17:20] = nan
    a[35:] = nan
    out = hipkittens.grouped_matmul(a, b, offs)
    assert out[17:20].isnan().all() and out[:17].isfinite().all() and out[20:35].isfinite().all()
    assert not out[35:].any()
    of_k = hipkittens.grouped_matmul(a.mT, whole(40, 8), offs)
    assert of_k[1].isnan().all() and of_k[0].isfinite().all() and of_k[2].isfinite().all()


def test_empty(target):
    offs = ends_of([2, 2])
    assert hipkittens.grouped_matmul(random(0, 8), random(2, 8, 5), torch.zeros(2, dtype=INT32)).shape == (
        0,
        5,
    )
    assert hipkittens.grouped_matmul(random(6, 8), random(2, 8, 0), offs).shape == (6, 0)
    bias = random(2, 8, seed=2)
    without_k = hipkittens.grouped_matmul(random(6, 0), random(2, 0, 8), offs, bias=bias)
    added = bias.repeat_interleave(2, 0)
    assert torch.equal(without_k, torch.cat([added, torch.zeros(2, 8, dtype=BF16)]))
    none = torch.zeros(0, dtype=INT32)
    assert not hipkittens.grouped_matmul(random(6, 8), random(0, 8, 5), none).any()
    assert hipkittens.grouped_matmul(random(6, 8), random(8, 5), none).shape == (0, 6, 5)
    zeros = hipkittens.grouped_matmul(random(6, 0), random(0, 5), torch.zeros(2, dtype=INT32))
    assert torch.equal(zeros, torch.zeros(2, 6, 5, dtype=BF16))


@pytest.mark.parametrize("offs", [[40, 10, 60], [-5, 20, 100], [2**31 - 1, 3, -(2**31)]], ids=str)
def test_wrong_ends_touch_no_other_memory(target, offs):
    """The simulator reports any access outside of the operands and of the result."""
    ends = torch.tensor(offs, dtype=INT32)
    hipkittens.grouped_matmul(random(50, 16), random(3, 16, 24), ends)
    hipkittens.grouped_matmul(random(50, 16).mT, random(50, 24), ends)


@pytest.mark.parametrize("out", [BF16, F16, F32])
@pytest.mark.parametrize("per_group", [False, True])
def test_bias(target, out, per_group):
    a, b, offs = whole(40, 48), whole(3, 48, 33, seed=1), ends_of([17, 0, 15])
    for dtype in (BF16, F32):
        bias = whole(3, 33, dtype=dtype, seed=2) if per_group else whole(33, dtype=dtype, seed=2)
        result = hipkittens.grouped_matmul(a, b, offs, bias=bias, out_dtype=out)
        rows = bias if per_group else bias.expand(3, 33)
        added = torch.cat([rows[0].expand(17, 33), rows[2].expand(15, 33), torch.zeros(8, 33)])
        assert torch.equal(result, (exact(a, b, offs) + added.double()).to(out))


def gradients(function, *leaves):
    leaves = [value.detach().requires_grad_() for value in leaves]
    result = function(*leaves)
    return torch.autograd.grad(result, leaves, random(*result.shape, seed=9).to(result.dtype))


KINDS = {
    "rows": ((40, 24), (3, 24, 17)),
    "transposed weights": ((40, 24), (3, 17, 24)),
    "the summed dimension": ((24, 40), (40, 17)),
    "columns": ((3, 24, 17), (17, 40)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_gradients(target, kind):
    """Rows past the last group have a gradient of zero."""
    offs = ends_of([17, 0, 15])
    a, b = (random(*shape, seed=seed) for seed, shape in enumerate(KINDS[kind]))

    def through(function):
        return lambda a, b: function(a, b.mT if kind == "transposed weights" else b, offs)

    ours = gradients(through(hipkittens.grouped_matmul), a, b)
    theirs = gradients(through(in_groups), a, b)
    reference = gradients(through(in_groups), a.double(), b.double())
    for mine, other, right, leaf in zip(ours, theirs, reference, (a, b), strict=True):
        assert mine.dtype == leaf.dtype
        comparison = compare(mine, other, right, right.abs().max().item())
        assert comparison.passes, comparison
    if kind == "rows":
        assert not ours[0][32:].any()
        assert not ours[1][1].any()
    if kind == "transposed weights":
        assert ours[1].is_contiguous()  # the order of the weights, so that no optimizer has to copy it


@pytest.mark.parametrize("per_group", [False, True])
@pytest.mark.parametrize("kind", ["rows", "the summed dimension", "none"])
def test_gradient_of_bias(target, kind, per_group):
    offs = None if kind == "none" else ends_of([17, 0, 15])
    shapes = KINDS.get(kind, ((3, 8, 24), (3, 24, 17)))
    a, b = (random(*shape, seed=seed) for seed, shape in enumerate(shapes))
    bias = random(3, 17, seed=3) if per_group else random(17, seed=3)

    def with_bias(a, b, bias):
        if kind == "none":
            return a @ b + (bias[:, None] if per_group else bias)
        out = in_groups(a, b, offs)
        if kind != "rows":
            return out + (bias[:, None] if per_group else bias)
        rows = bias if per_group else bias.expand(3, 17)
        return out + torch.cat([rows[0].expand(17, 17), rows[2].expand(15, 17), rows.new_zeros(8, 17)])

    ours = gradients(lambda a, b, bias: hipkittens.grouped_matmul(a, b, offs, bias=bias), a, b, bias)
    theirs = gradients(with_bias, a, b, bias)
    reference = gradients(with_bias, a.double(), b.double(), bias.double())
    for mine, other, right in zip(ours, theirs, reference, strict=True):
        comparison = compare(mine, other, right, right.abs().max().item())
        assert comparison.passes, comparison


def test_double_backward(target):
    """The derivative of a gradient is a grouped product too, and is not silently zero."""
    offs = ends_of([5, 0, 2])
    a, b = random(8, 6), random(3, 6, 5, seed=1)

    def penalty(product, a, b):
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        first = torch.autograd.grad(product(a, b, offs).square().sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(value.square().sum() for value in first), (a, b))

    ours = penalty(hipkittens.grouped_matmul, a, b)
    for mine, right in zip(ours, penalty(in_groups, a.double(), b.double()), strict=True):
        assert mine.abs().sum() > 0
        assert (mine.double() - right).abs().max() < 2.0**-4 * right.abs().max()


def test_opcheck(target):
    a, b, offs = random(8, 16).requires_grad_(), random(3, 16, 8, seed=1).requires_grad_(), ends_of([3, 0, 4])
    bias = random(3, 8, seed=2).requires_grad_()
    for inputs in [
        (a, b, offs, None, BF16),
        (a, b, offs, bias, F32),
        (random(8, 16).mT.requires_grad_(), random(8, 8, seed=1).requires_grad_(), offs, None, BF16),
        (random(3, 4, 16), b, None, bias, BF16),
    ]:
        results = torch.library.opcheck(torch.ops.hipkittens.grouped_gemm.default, inputs)
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    weight = random(3, 16, 24, seed=1).requires_grad_()

    def layer(x, offs):
        return hipkittens.grouped_matmul(torch.nn.functional.relu(x), weight.mT, offs) * 2

    compiled = torch.compile(layer, fullgraph=True, backend=compile_backend)
    for rows in (7, 12):
        x, offs = random(rows, 24, seed=rows).requires_grad_(), ends_of([2, 0, rows - 3])
        result, expected = compiled(x, offs), layer(x, offs)
        assert torch.equal(result, expected)
        for mine, other in zip(
            torch.autograd.grad(result.sum(), (x, weight)),
            torch.autograd.grad(expected.sum(), (x, weight)),
            strict=True,
        ):
            assert torch.equal(mine, other)


def test_ends_stay_on_the_device():
    """Shapes, and therefore launches, follow from sizes alone: offs without values suffices."""
    a, b, offs = (
        random(40, 24).to("meta"),
        random(3, 24, 16).to("meta"),
        torch.empty(3, dtype=INT32, device="meta"),
    )
    assert hipkittens.grouped_matmul(a, b, offs).shape == (40, 16)
    assert hipkittens.grouped_matmul(a.mT, random(40, 8).to("meta"), offs).shape == (3, 24, 8)


def test_torch_backend(monkeypatch):
    monkeypatch.setattr(hipkittens._backend._State, "backend", "torch")
    a, b, offs = whole(40, 24), whole(3, 24, 16, seed=1), ends_of([17, 0, 15])
    bias = whole(3, 16, seed=2)
    out = hipkittens.grouped_matmul(a, b, offs, bias=bias)
    added = torch.cat([bias[:1].expand(17, 16), bias[2:].expand(15, 16), torch.zeros(8, 16)])
    assert torch.equal(out.double(), exact(a, b, offs) + added.double())
    assert torch.equal(hipkittens.grouped_matmul(b.mT, a.mT, offs).double(), exact(b.mT, a.mT, offs))


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"a": [1.0]}, TypeError, "a is list"),
        ({"a": random(8)}, ValueError, "a has shape"),
        ({"b": random(2, 3, 16, 8)}, ValueError, "b has shape"),
        ({"a": random(8, 16, dtype=F32)}, TypeError, "a is torch.float32; allowed"),
        ({"b": random(3, 16, 8, dtype=F16)}, TypeError, "convert one to the other"),
        ({"b": random(3, 15, 8)}, ValueError, "a has 16 columns and b has 15 rows"),
        ({"offs": None}, ValueError, "offs is None"),
        ({"offs": torch.zeros(3, dtype=torch.int64)}, TypeError, "offs is torch.int64; allowed: torch.int32"),
        ({"offs": torch.zeros(3, 1, dtype=INT32)}, ValueError, "offs has shape"),
        ({"offs": torch.zeros(4, dtype=INT32)}, ValueError, "b has 3 groups and offs 4"),
        ({"a": random(3, 8, 16)}, ValueError, "pass None"),
        ({"a": random(2, 8, 16), "offs": None}, ValueError, "a has 2 groups and b 3"),
        ({"bias": random(2, 8)}, ValueError, "bias has shape (2, 8)"),
        ({"bias": random(8, dtype=F16)}, TypeError, "bias is torch.float16"),
        ({"a": random(3, 8, 16), "b": random(16, 9), "bias": random(9)}, ValueError, "groups of columns"),
        ({"out_dtype": torch.int32}, TypeError, "out_dtype is torch.int32"),
        (
            {"b": random(4096, 16, 1), "offs": torch.zeros(4096, dtype=INT32)},
            ValueError,
            "offs has 4096 groups; allowed: up to 4095",
        ),
        ({"a": random(8, 16).to_sparse()}, TypeError, "sparse"),
    ],
)
def test_messages(change, error, says):
    arguments = {"a": random(8, 16), "b": random(3, 16, 8), "offs": ends_of([2, 2, 3])} | change
    a, b, offs = (arguments.pop(name) for name in ("a", "b", "offs"))
    with hipkittens.simulate("gfx950"), pytest.raises(error) as raised:
        hipkittens.grouped_matmul(a, b, offs, **arguments)
    assert says in str(raised.value) and "hipkittens.grouped_matmul" in str(raised.value)


def test_autocast(target):
    a, b, offs = random(8, 16, dtype=F32), random(3, 16, 8, dtype=F32, seed=1), ends_of([2, 2, 3])
    with torch.autocast("cpu", dtype=BF16):
        out = hipkittens.grouped_matmul(a, b, offs)
    assert out.dtype == BF16
    assert torch.equal(out, hipkittens.grouped_matmul(a.bfloat16(), b.bfloat16(), offs))
