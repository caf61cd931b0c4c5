# SPDX-License-Identifier: MIT
"""Every way to specify the rotation of tokens: styles, widths, sides, tables, positions, grids, in place; forward and backward."""

import itertools

import pytest
import torch

import hipkittens
from hipkittens import rotary, rotary_qk, rotary_tables

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
HALF_ULP = {BF16: 2.0**-9, F16: 2.0**-12, F32: 2.0**-25}  # of 1, relative to twice that


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
        assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def angles_of(rows, columns, seed=7):
    return 6 * torch.rand(rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrix_of(cos, sin, features, begin, interleaved, full):
    """The linear map of one token's features, (features, features), from the columns of its row of the tables."""
    result = torch.eye(features, dtype=torch.float64)
    pairs = cos.shape[0] // (2 if full else 1)
    for i in range(pairs):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + pairs)
        of_a, of_b = (a, b) if full else (i, i)
        result[begin + a, begin + a] = cos[of_a]
        result[begin + a, begin + b] = -sin[of_a]
        result[begin + b, begin + b] = cos[of_b]
        result[begin + b, begin + a] = sin[of_b]
    return result


def maps_of(tables, rows, features, first, interleaved, full):
    """The map for each row in `rows`; for a grid, pairs of rows and two pairs of tables: (..., features, features)."""
    width = tables[0][0].shape[1] * (1 if full else 2)
    found = []
    for row in rows.reshape(-1, rows.shape[-1] if len(tables) > 1 else 1).tolist():
        whole = torch.eye(features, dtype=torch.float64)
        for axis, (cos, sin) in enumerate(tables):
            begin = first + axis * width
            whole = matrix_of(cos[row[axis]], sin[row[axis]], features, begin, interleaved, full) @ whole
        found.append(whole)
    shape = rows.shape[:-1] if len(tables) > 1 else rows.shape
    return torch.stack(found).view(*shape, features, features)


def assert_close(value, right, x):
    """Within half an ulp of the result, and float32's arithmetic error."""
    bound = right.abs() * 2 * HALF_ULP[value.dtype] + 2.0**-22 * x.double().abs().max() * 4
    if value.dtype == F16:
        bound = bound + 2.0**-25  # subnormals
    assert ((value.double() - right).abs() <= bound).all()


WIDTHS = ((64, 64), (64, 32), (64, 16), (256, 64), (40, 24), (17, 6))


def case_of(kind, tokens, pairs, full):
    """Options, tables as pairs of float32, and rows (batch, tokens[, 2])."""
    columns = pairs * (2 if full else 1)
    cos, sin = rotary_tables(angles_of(tokens + 9, columns))
    token = torch.arange(tokens).expand(2, tokens)
    generator = torch.Generator().manual_seed(5)
    if kind == "cached":
        return {"offset": 3}, [(cos, sin)], token + 3
    if kind == "positions":
        rows = torch.randint(tokens + 9, (2, tokens), generator=generator)
        return {"positions": rows.int()}, [(cos, sin)], rows
    if kind == "offsets":
        more = torch.randint(9, (2, tokens), generator=generator)
        return {"offsets": more}, [(cos, sin)], token + more
    if kind == "positions and offsets":
        rows, more = (
            torch.randint(tokens, (2, tokens), generator=generator),
            torch.randint(9, (tokens,), generator=generator),
        )
        return {"positions": rows, "offsets": more.int()}, [(cos, sin)], rows + more
    width = 5
    others = rotary_tables(angles_of(width, columns, seed=8))
    rows = torch.stack((token // width, token % width), -1)
    return {"column_tables": others}, [(cos, sin), others], rows


KINDS = ("cached", "positions", "offsets", "positions and offsets", "grid")
CASES = [
    (kind, width, nope_first, interleaved, full)
    for kind, width, nope_first, interleaved, full in itertools.product(KINDS, WIDTHS, *[(False, True)] * 3)
    if not (kind == "grid" and width[1] % 4)
]


@pytest.mark.parametrize(("kind", "width", "nope_first", "interleaved", "full"), CASES)
def test_every_combination(target, kind, width, nope_first, interleaved, full):
    features, rotated = width
    tokens, dtype = {64: 7, 256: 1, 40: 33, 17: 8}[features], (BF16, F16, F32)[rotated % 3]
    pairs = rotated // (4 if kind == "grid" else 2)
    options, tables, rows = case_of(kind, tokens, pairs, full)
    options |= {"nope_first": nope_first, "interleaved": interleaved, "full_tables": full}
    x = draw(2, tokens, 3, features, dtype=dtype).requires_grad_()
    maps = maps_of(tables, rows, features, features - rotated if nope_first else 0, interleaved, full)
    cos, sin = tables[0]
    y = rotary(x, cos, sin, **options)
    right = torch.einsum("btij,bthj->bthi", maps, x.detach().double())
    assert_close(y.detach(), right, x)
    grad = draw(*y.shape, dtype=dtype, seed=1)
    (dx,) = torch.autograd.grad(y, x, grad)
    assert_close(dx, torch.einsum("btji,bthj->bthi", maps, grad.double()), grad)
    plain = x.detach()
    outside = slice(0, features - rotated) if nope_first else slice(rotated, features)
    assert torch.equal(y[..., outside], plain[..., outside])
    q, k = rotary_qk(plain, plain[:, :, :1], cos, sin, **options)
    assert torch.equal(q, y) and torch.equal(k, y[:, :, :1])
    across = rotary(plain.transpose(1, 2), cos, sin, layout="bhnd", **options)
    assert torch.equal(across.transpose(1, 2), y)
    written = plain.clone()
    assert rotary(written, cos, sin, inplace=True, **options) is written and torch.equal(written, y)


def test_packed_sequences_with_offsets(target):
    x, (cos, sin) = draw(9, 2, 32), rotary_tables(angles_of(30, 16))
    ends, more = torch.tensor([0, 4, 4, 9]), torch.tensor([10, 10, 10, 10, 3, 3, 3, 3, 3])
    rows = torch.tensor([10, 11, 12, 13, 3, 4, 5, 6, 7])
    options = {"nope_first": True, "full_tables": False}
    assert torch.equal(
        rotary(x, cos, sin, cu_seqlens=ends, offsets=more, **options),
        rotary(x, cos, sin, positions=rows, **options),
    )


def test_halves_that_are_equal_change_nothing(target):
    """Tables per feature in which both features of a pair have the same column, as Transformers makes them."""
    x, (cos, sin) = draw(1, 6, 2, 64), rotary_tables(angles_of(6, 32))
    for interleaved in (False, True):
        wide = [t.repeat_interleave(2, 1) if interleaved else torch.cat((t, t), 1) for t in (cos, sin)]
        expected = rotary(x, cos, sin, interleaved=interleaved)
        assert torch.equal(rotary(x, *wide, interleaved=interleaved, full_tables=True), expected)


def test_tables_of_other_dtypes_and_strides(target):
    x = draw(1, 6, 2, 64)
    for dtype, full in itertools.product((BF16, F16), (False, True)):
        cos, sin = rotary_tables(angles_of(6, 64 if full else 32), dtype)
        wider = rotary(x, cos.float(), sin.float(), full_tables=full, nope_first=True)
        assert torch.equal(rotary(x, cos, sin, full_tables=full, nope_first=True), wider)
        gaps = [torch.stack((t, t), -1)[..., 1] for t in (cos, sin)]
        assert torch.equal(rotary(x, *gaps, full_tables=full, nope_first=True), wider)


def test_tables_of_angles():
    angles = angles_of(5, 4)
    cos, sin = rotary_tables(angles)
    assert torch.equal(cos, angles.cos().float()) and torch.equal(sin, angles.sin().float())
    assert rotary_tables(angles.bfloat16(), F16)[0].dtype == F16
    with pytest.raises(
        ValueError, match=r"hipkittens.rotary_tables: angles is \(4,\) torch.float64; it must be"
    ):
        rotary_tables(angles[0])
    with pytest.raises(TypeError, match=r"hipkittens.rotary_tables: dtype is torch.int32; allowed"):
        rotary_tables(angles, torch.int32)


def test_the_other_backend(monkeypatch):
    from hipkittens import _backend

    x = draw(2, 10, 3, 40, dtype=F32)
    for kind, nope_first, full in itertools.product(KINDS, (False, True), (False, True)):
        options, tables, _ = case_of(kind, 10, 8, full)
        options |= {"nope_first": nope_first, "full_tables": full, "interleaved": full != nope_first}
        with hipkittens.simulate():
            mine = rotary(x, *tables[0], **options)
        monkeypatch.setattr(_backend._State, "backend", "torch")
        theirs = rotary(x, *tables[0], **options)
        monkeypatch.undo()
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    options, tables, _ = case_of("grid", 10, 4, True)
    (cos, sin), more = tables[0], torch.arange(10) % 4

    def both(x):
        turned = rotary(x, cos, sin, full_tables=True, nope_first=True, **options)
        return rotary(turned, cos[:, :4], sin[:, :4], offsets=more)

    x = draw(1, 10, 2, 20).requires_grad_()
    compiled = torch.compile(both, fullgraph=True, backend=compile_backend)
    mine, right = compiled(x), both(x)
    assert torch.equal(mine, right)
    grads = [torch.autograd.grad(each, x, torch.ones_like(each))[0] for each in (mine, right)]
    assert torch.equal(*grads)


@pytest.mark.parametrize("wrong", [-2, 8, 2**40])
def test_an_offset_without_a_row(target, wrong):
    x, (cos, sin) = draw(1, 3, 1, 8), rotary_tables(angles_of(9, 4))
    with pytest.raises(RuntimeError, match=rf"position {wrong + 1} at \[0, 1\]; cos and sin have 9 rows"):
        rotary(x, cos, sin, offsets=torch.tensor([0, wrong, 1]))


X = torch.zeros(2, 6, 4, 16, dtype=BF16)
COS = torch.zeros(3, 4)
GRID = (torch.zeros(2, 4), torch.zeros(2, 4))
IDS = torch.zeros(6, dtype=torch.int64)
BAD = [
    (lambda: rotary(X, COS, COS, nope_first="no"), TypeError, "nope_first is 'no'; allowed: True, False"),
    (lambda: rotary(X, COS, COS, full_tables=2), TypeError, "full_tables is 2; allowed: True, False"),
    (lambda: rotary(X, COS[:, :3], COS[:, :3], full_tables=True, positions=IDS), ValueError, "cos has 3 columns; full_tables have two for each pair"),
    (lambda: rotary(X[..., :3], COS, COS, full_tables=True), ValueError, "cos has 4 columns and x 3 features; 1 to 2 are allowed"),
    (lambda: rotary(X[..., :12], COS, COS, column_tables=GRID), ValueError, "cos has 4 columns and x 12 features; 1 to 3 are allowed"),
    (lambda: rotary(X, COS, COS, offsets=[1]), TypeError, "offsets is list; allowed: a tensor of torch.int32 or torch.int64"),
    (lambda: rotary(X, COS, COS, offsets=IDS[:2]), ValueError, "offsets has shape (2,); it must be (6,) or (2, 6)"),
    (lambda: rotary(X, COS, COS, offsets=IDS.to("meta")), ValueError, "offsets is on meta and x on cpu"),
    (lambda: rotary(X, COS, COS, column_tables=COS), TypeError, "column_tables is Tensor; it must be a pair, (cos, sin)"),
    (lambda: rotary(X, COS, COS, column_tables=(GRID[0], 1)), TypeError, "column_tables' sin is int"),
    (lambda: rotary(X, COS, COS, column_tables=(GRID[0].half(), GRID[1])), TypeError, "column_tables' cos is torch.float16; allowed: torch.float32"),
    (lambda: rotary(X, COS, COS, column_tables=(GRID[0], GRID[1][:1])), ValueError, "column_tables' sin has shape (1, 4)"),
    (lambda: rotary(X, COS, COS, column_tables=(GRID[0][:, :2], GRID[1])), ValueError, "it must be (columns of tokens, 4)"),
    (lambda: rotary(X, COS, COS, column_tables=GRID, positions=IDS), ValueError, "positions and column_tables are both given"),
    (lambda: rotary(X, COS, COS, column_tables=GRID, offset=1), ValueError, "offset is 1; tokens of a grid begin with its first row"),
    (lambda: rotary(X, COS[:2], COS[:2], column_tables=GRID), ValueError, "x has 6 tokens in a grid of 2 rows of 2"),
    (lambda: rotary(X, COS, COS, column_tables=(GRID[0].clone().requires_grad_(), GRID[1])), ValueError, "requires a gradient and gets none"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")
