# SPDX-License-Identifier: MIT
"""hipkittens.topk through the public API: positions and bits must be those of a stable sort."""

import itertools
import math

import pytest
import torch

import hipkittens
from hipkittens import _backend, topk

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BITS = {BF16: torch.int16, F16: torch.int16, F32: torch.int32}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert not simulation.findings


def draw(*shape, dtype=F32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def few_values(*shape, dtype=F32, seed=0):
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def expected(row, k, largest=True):
    """Positions in one row, by Python's sort of (value, position) with NaN above infinity."""

    def place(position):
        value = row[position]
        high = (math.isnan(value), 0.0 if math.isnan(value) else value)
        return (tuple(-part for part in high) if largest else high), position

    return sorted(range(len(row)), key=place)[:k]


def check(x, k, **options):
    values, indices = topk(x, k, **options)
    assert values.dtype == x.dtype and indices.dtype == torch.int64
    assert values.shape == indices.shape == (*x.shape[:-1], k)
    largest = options.get("largest", True)
    right = [expected(row, k, largest) for row in x.double().reshape(-1, x.shape[-1]).tolist()]
    assert indices.reshape(-1, k).tolist() == right
    bits = BITS[x.dtype]
    assert torch.equal(values.view(bits), x.contiguous().view(bits).gather(-1, indices))


# A row of each kernel, of two of its chunks, and of several parts; k at the limits of a list and of a lane's share.
SIZES = [
    (1, 1), (2, 2), (7, 3), (64, 64), (65, 1), (131, 5), (511, 128), (512, 32), (513, 8), (1000, 1000), (1023, 129),
    (1024, 64), (1025, 65), (4095, 256), (4096, 257), (4097, 1025), (16383, 1024), (16384, 2048),
]  # fmt: skip


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize(("columns", "k"), SIZES)
def test_positions_and_bits(target, dtype, columns, k):
    for x, largest in itertools.product(
        (draw(3, columns, dtype=dtype), few_values(2, columns, dtype=dtype)), (True, False)
    ):
        check(x, k, largest=largest)


@pytest.mark.parametrize(
    ("columns", "k", "rows"), [(16385, 3, 5), (20001, 2048, 2), (131072, 50, 2), (131072, 2048, 1)]
)
def test_rows_of_several_passes(target, columns, k, rows):
    for dtype in (F32, BF16):
        check(draw(rows, columns, dtype=dtype), k)
        check(few_values(rows, columns, dtype=dtype), k, largest=False)


def test_parts_do_not_depend_on_how_many_rows_there_are(target):
    """A few rows are cut into more parts than many rows."""
    x = few_values(600, 5000, dtype=BF16)
    values, indices = topk(x, 9)
    for row in (0, 599):
        assert torch.equal(topk(x[row], 9)[1], indices[row]) and torch.equal(topk(x[row], 9)[0], values[row])


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("columns", [70, 1500, 17000])
def test_special_values(target, dtype, columns):
    special = torch.tensor(
        [0.0, -0.0, math.nan, math.inf, -math.inf, 1.0, torch.finfo(dtype).smallest_normal / 2]
    )
    x = special[torch.randint(len(special), (2, columns), generator=torch.Generator().manual_seed(1))].to(
        dtype
    )
    negative_nan = x.clone().view(BITS[dtype])
    negative_nan[x.isnan()] |= torch.iinfo(BITS[dtype]).min
    rows = torch.cat([x, negative_nan.view(dtype), torch.full((1, columns), -math.inf, dtype=dtype),
                      torch.full((1, columns), math.nan, dtype=dtype), torch.zeros(1, columns, dtype=dtype)])  # fmt: skip
    for k, largest in itertools.product((1, 40, 66), (True, False)):
        check(rows, k, largest=largest)


def test_every_16_bit_value(target):
    for dtype in (BF16, F16):
        x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
        order = torch.randperm(2**16, generator=torch.Generator().manual_seed(0))
        check(x[order].view(32, 2048), 2048)


@pytest.mark.parametrize(("columns", "k"), [(100, 7), (1024, 200), (9000, 2048)])
def test_unsorted(target, columns, k):
    for x in (draw(3, columns), few_values(3, columns)):
        values, indices = topk(x, k, sorted=False)
        right = topk(x, k)[1]
        assert torch.equal(indices.sort(-1).values, right.sort(-1).values)
        assert torch.equal(values, x.gather(-1, indices))


@pytest.mark.parametrize("integer", [torch.int32, torch.int64])
@pytest.mark.parametrize("columns", [40, 3000, 20000])
def test_rows_that_are_limited(target, columns, integer):
    """As in top_k_per_row_prefill and _decode, except that positions are those in x."""
    k = 17
    starts = torch.tensor([0, 3, columns // 2, columns - 5, 9, columns, -4], dtype=integer)
    ends = torch.tensor([columns, columns - 1, columns // 2 + 20, columns + 9, 9, 3, 4], dtype=integer)
    for x, largest in itertools.product(
        (draw(7, columns, dtype=BF16), few_values(7, columns)), (True, False)
    ):
        for given in ({"row_starts": starts, "row_ends": ends}, {"row_ends": ends}, {"row_starts": starts}):
            values, indices = topk(x, k, largest=largest, **given)
            for row in range(7):
                first = max(0, int(given["row_starts"][row])) if "row_starts" in given else 0
                past = min(columns, int(given["row_ends"][row])) if "row_ends" in given else columns
                right = [first + i for i in expected(x[row, first:past].double().tolist(), k, largest)]
                assert indices[row].tolist() == right + [-1] * (k - len(right))
                assert torch.equal(values[row, : len(right)], x[row, right])
                rest = values[row, len(right) :]
                assert (rest == -math.inf).all() if largest else rest.isnan().all()


def test_limited_rows_of_more_dimensions(target):
    x, ends = draw(2, 3, 50), torch.tensor([[50, 1, 0], [7, 8, 9]])
    _, indices = topk(x, 5, row_ends=ends)
    for i, j in itertools.product(range(2), range(3)):
        right = expected(x[i, j, : ends[i, j]].tolist(), 5)
        assert indices[i, j].tolist() == right + [-1] * (5 - len(right))


def test_strides_and_dimensions(target):
    storage = draw(5, 6, 70, dtype=BF16)
    for x in (storage[..., 3:44], storage.transpose(0, 1)[..., :64], storage[::2, 1:3, 1:], storage[0, 0], storage[:, :, ::3],
              draw(1, 64).expand(9, 64)):  # fmt: skip
        check(x, 11)
    for dim in (0, 1, -2):
        values, indices = topk(storage, 4, dim)
        right = topk(storage.movedim(dim, -1).contiguous(), 4)
        assert torch.equal(values.movedim(dim, -1), right[0]) and torch.equal(
            indices.movedim(dim, -1), right[1]
        )


@pytest.mark.parametrize(("shape", "k"), [((0, 8), 3), ((3, 0), 0), ((3, 8), 0), ((2, 0, 4), 1), ((0,), 0)])
def test_empty(target, shape, k):
    x = torch.zeros(shape, requires_grad=True)
    values, indices = topk(x, k)
    assert values.shape == indices.shape == (*shape[:-1], k)
    assert torch.autograd.grad(values.sum(), x)[0].shape == shape


@pytest.mark.parametrize("dtype", BITS)
def test_the_gradient_goes_where_values_came_from(target, dtype):
    x = draw(4, 100, dtype=dtype).requires_grad_()
    values, indices = topk(x, 7)
    assert not indices.requires_grad
    dy = draw(4, 7, dtype=dtype, seed=1)
    (dx,) = torch.autograd.grad(values, x, dy)
    assert torch.equal(dx, torch.zeros_like(x).scatter(-1, indices, dy))
    limited = topk(x, 7, row_ends=torch.tensor([100, 3, 0, 7]))[0]
    (dx,) = torch.autograd.grad(limited, x, dy)
    assert dx.isfinite().all() and not dx[2].any() and not dx[1, 3:].any() and dx[1, :3].all()


def test_it_can_be_differentiated_twice(target):
    x = draw(3, 20).double().float().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x: topk(x.float(), 4)[0].double() ** 2,
        x.detach().double().requires_grad_(),
        eps=1e-2,
        atol=1e-1,
    )


def test_opcheck(target):
    operator = torch.ops.hipkittens.topk.default
    ends = torch.tensor([3, 20, 0], dtype=torch.int32)
    for inputs in [
        (draw(3, 20).requires_grad_(), 4, True, True, None, None),
        (draw(3, 20, dtype=BF16), 4, True, False, None, ends),
    ]:
        assert set(torch.library.opcheck(operator, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        values, indices = topk(x * 2, 5)
        return values + 1, indices

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = draw(rows, 40, seed=rows).requires_grad_()
        (mine, places), (other, right) = compiled(x), block(x)
        assert torch.equal(mine, other) and torch.equal(places, right)
        assert torch.equal(*(torch.autograd.grad(each.sum(), x)[0] for each in (mine, other)))


def test_meta_tensors():
    values, indices = topk(torch.empty(3, 10, device="meta"), 4)
    assert values.shape == indices.shape == (3, 4) and indices.dtype == torch.int64


def test_the_torch_backend(monkeypatch):
    x, ends = few_values(4, 30, dtype=F16), torch.tensor([30, 2, 0, 9])
    with hipkittens.simulate("gfx950"):
        right = [topk(x, 6, row_ends=ends, largest=largest) for largest in (True, False)]
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for largest, pair in zip((True, False), right, strict=True):
        for mine, other in zip(topk(x, 6, row_ends=ends, largest=largest), pair, strict=True):
            assert torch.equal(mine.nan_to_num(7.0), other.nan_to_num(7.0))


X = torch.zeros(4, 8)
BAD = [
    (lambda: topk([1.0], 1), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: topk(X.double(), 1), TypeError, "x is torch.float64; allowed"),
    (lambda: topk(X.to_sparse(), 1), TypeError, "x is sparse"),
    (lambda: topk(X[0, 0], 1), ValueError, "x has shape (); it needs at least 1 dimension"),
    (lambda: topk(X, 2.0), TypeError, "k is 2.0; it must be a whole number"),
    (lambda: topk(X, True), TypeError, "k is True; it must be a whole number"),
    (lambda: topk(X, 9), ValueError, "k is 9; dimension -1 of x has 8 elements, so 0 to 8 are allowed"),
    (lambda: topk(X, 5, 0), ValueError, "k is 5; dimension 0 of x has 4 elements, so 0 to 4 are allowed"),
    (lambda: topk(X, -1), ValueError, "k is -1; dimension -1 of x has 8"),
    (lambda: topk(torch.zeros(4096), 2049), ValueError, "k is 2049; allowed: up to 2048. Sort the rows instead"),
    (lambda: topk(X, 1, 2), ValueError, "dim is 2; x has 2 dimensions, so -2 to 1 are allowed"),
    (lambda: topk(X, 1, largest="no"), TypeError, "largest is 'no'; allowed: True, False"),
    (lambda: topk(X, 1, sorted=2), TypeError, "sorted is 2; allowed: True, False"),
    (lambda: topk(X, 1, row_ends=[1]), TypeError, "row_ends is list; it must be a torch.Tensor"),
    (lambda: topk(X, 1, row_ends=torch.zeros(4)), TypeError, "row_ends is torch.float32; allowed: torch.int32, torch.int64"),
    (lambda: topk(X, 1, row_starts=torch.zeros(3, dtype=torch.int64)), ValueError, "row_starts has shape (3,); it needs (4,)"),
    (lambda: topk(X, 1, 0, row_ends=torch.zeros(4, dtype=torch.int64)), ValueError, "row_ends is given and dim is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.topk: ")


OPERATOR = torch.ops.hipkittens.topk
ENDS = torch.zeros(4, dtype=torch.int32)
BAD_OPERANDS = [
    (lambda: OPERATOR(X, 9, True, True, None, None), "k is 9; 0 .. 8 are allowed"),
    (lambda: OPERATOR(torch.zeros(3000), 2049, True, True, None, None), "k is 2049; 0 .. 2048 are allowed"),
    (lambda: OPERATOR(X, 1, True, True, ENDS.long(), None), "row_starts needs to be int32"),
    (lambda: OPERATOR(X, 1, True, True, None, ENDS[:3]), "row_ends needs to be contiguous, with 4 elements"),
    (lambda: OPERATOR(torch.zeros(1).expand(2**23, 8), 1, True, True, None, None), "8388608 rows of 8 columns"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)


@pytest.mark.slow
def test_more_than_four_gibibytes():
    """Rows further apart than 32-bit offsets reach."""
    storage = torch.zeros(1 + 2**31 + 64, dtype=BF16)
    x = torch.as_strided(storage, (2, 64), (2**31, 1), 1)
    x.copy_(draw(2, 64))
    with hipkittens.simulate("gfx942"):
        assert all(torch.equal(a, b) for a, b in zip(topk(x, 5), topk(x.clone(), 5), strict=True))
