# SPDX-License-Identifier: MIT
"""hipkittens.sample through the public API."""

import math

import pytest
import torch

import hipkittens
from hipkittens import _backend, sample

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
COLUMNS = (1, 2, 17, 111, 255, 257, 1024, 8193, 32000, 151936)


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0, scale=4.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def exponentials_of(x, seed=1):
    return torch.empty(x.shape).exponential_(generator=torch.Generator().manual_seed(seed))


def race(logits, exponentials, temperature, eps=1e-10):
    """The definition, in float64."""
    temperature = torch.as_tensor(temperature, dtype=torch.float64).clamp(min=1e-5)
    probabilities = (logits.double() / temperature[..., None]).softmax(-1)
    return (probabilities / (exponentials.double() + eps)).argmax(-1)


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_greedy_with_ties_to_the_first(target, dtype, columns):
    x = draw(3, columns, dtype=dtype)
    x[1] = (x[1] / 4).round()
    assert torch.equal(
        sample(x, temperature=0), torch.stack([(row == row.max()).nonzero()[0, 0] for row in x])
    )


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("dtype", [BF16, F16, F32])
def test_ids_are_those_of_the_definition(target, dtype, columns):
    rows = 2 if columns > 100000 else 5
    x = draw(rows, columns, dtype=dtype)
    e, temperature = exponentials_of(x), torch.tensor([1.0, 0.3, 2.5, 1e-7, 0.8])[:rows]
    found = sample(x, temperature=temperature, exponentials=e)
    assert found.dtype == torch.int64 and torch.equal(found, race(x, e, temperature))


@pytest.mark.parametrize("columns", [8193, 20000, 64 * 16384 + 8200])
def test_rows_that_workgroups_share(target, columns):
    """The first of equal values, in whichever workgroup's share it is; and the last column, after whole chunks."""
    x = torch.zeros(1, columns, dtype=BF16)
    assert sample(x, temperature=0).item() == 0
    for place in (columns // 2 - 1, columns - 1):
        x[0, place] = 1.0
    assert sample(x, temperature=0).item() == columns // 2 - 1
    x[0, columns // 2 - 1] = 0.5
    assert sample(x, temperature=0).item() == columns - 1


def test_greedy_rows_among_drawn_ones(target):
    x = draw(6, 1111)
    e, temperature = exponentials_of(x), torch.tensor([0.0, 1.0, 0.0, 0.0, 0.5, 2.0])
    found = sample(x, temperature=temperature, exponentials=e)
    assert torch.equal(found, torch.where(temperature == 0, x.float().argmax(-1), race(x, e, temperature)))


def test_what_is_not_finite(target):
    x = torch.zeros(7, 130)
    x[0], x[1, 5:7], x[2, [3, 90]], x[3, 4] = -math.inf, math.inf, math.nan, math.nan
    x[3, 5], x[4], x[4, 77], x[5] = math.inf, -math.inf, -1e30, -0.0
    e = torch.ones_like(x)
    e[6, 100] = 0.0
    for temperature in (0.0, 1.0):
        assert sample(x, temperature=temperature, exponentials=e).tolist()[:6] == [0, 5, 3, 4, 77, 0]
    assert sample(x, exponentials=e)[6] == 100


def test_the_distribution(target):
    """Over 4096 draws, within five standard deviations."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -math.inf])
    drawn = sample(logits.expand(4096, 5), temperature=0.9, generator=torch.Generator().manual_seed(3))
    expected = (logits / 0.9).softmax(-1)
    share = torch.bincount(drawn, minlength=5) / 4096
    assert ((share - expected).abs() <= 5 * (expected * (1 - expected) / 4096).sqrt()).all()
    again = sample(logits.expand(4096, 5), temperature=0.9, generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn, again)


@pytest.mark.parametrize("top_k", [1, 2, 50, 2048])
def test_top_k(target, top_k):
    x = (draw(4, 5000) * 2).round() / 2
    e = exponentials_of(x)
    left = x.float().sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    mask = torch.full(x.shape, -math.inf).scatter(-1, left, 0.0)
    assert torch.equal(sample(x, top_k=top_k, exponentials=e), race(x + mask, e, torch.ones(4)))


@pytest.mark.parametrize("top_k", [None, 40])
@pytest.mark.parametrize("top_p", [1e-9, 0.3, 0.9, 1.0])
def test_top_p(target, top_p, top_k):
    x, temperature = draw(4, 600, dtype=F32), torch.tensor([1.0, 0.5, 3.0, 0.0])
    e = exponentials_of(x)
    values, order = (x.double() / temperature.double().clamp(min=1e-5)[:, None]).sort(
        dim=-1, descending=True, stable=True
    )
    values = values[:, :top_k]
    probabilities = values.softmax(-1)
    left = probabilities.cumsum(-1) - probabilities < top_p
    expected = []
    for row in range(4):
        ids = order[row, : left.shape[1]][left[row]]
        own = x[row, ids].double() / max(temperature[row].item(), 1e-5)
        # Greedy with temperature 0.
        keys = own if temperature[row] == 0 else own - (e[row, ids].double() + 1e-10).log()
        expected.append(ids[keys.argmax()])
    assert sample(x, temperature=temperature, top_k=top_k, top_p=top_p, exponentials=e).tolist() == expected
    each = torch.full((4,), top_p)
    assert sample(x, temperature=temperature, top_k=top_k, top_p=each, exponentials=e).tolist() == expected


def test_strides_and_shapes(target):
    storage = draw(3, 4, 50)
    e = exponentials_of(storage)
    for x, drawn in ((storage[:, 1:3, 3:40], e[:, 1:3, 3:40]), (storage.mT, e.mT), (storage[0, 0], e[0, 0]),
                     (storage[:, :, ::2], e[:, :, ::2]), (storage[0, 0].expand(5, 50), e[0, 0].expand(5, 50))):  # fmt: skip
        found = sample(x, exponentials=drawn)
        assert found.shape == x.shape[:-1]
        assert torch.equal(found, sample(x.contiguous(), exponentials=drawn.contiguous()))
    assert sample(storage[:0]).shape == (0, 4)


def test_opcheck(target):
    x = draw(3, 40)
    for inputs in ((x, None, None, 0.0), (x, exponentials_of(x), torch.ones(3), 1e-10)):
        assert set(torch.library.opcheck(torch.ops.hipkittens.sample.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    x = draw(3, 40)
    e = exponentials_of(x)
    compiled = torch.compile(
        lambda x, e: sample(x * 2, top_k=5, top_p=0.9, exponentials=e),
        fullgraph=True,
        backend=compile_backend,
    )
    assert torch.equal(compiled(x, e), sample(x * 2, top_k=5, top_p=0.9, exponentials=e))


def test_transforms():
    """vmap is a loop; a tangent is refused, as is a gradient."""
    x = draw(3, 2, 40)
    e = exponentials_of(x)
    assert torch.equal(
        torch.func.vmap(lambda x, e: sample(x, exponentials=e))(x, e), sample(x, exponentials=e)
    )
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda x: sample(x, exponentials=e), (x,), (x,))
    with pytest.raises(NotImplementedError, match="sample has no derivative"):
        torch.func.grad(lambda x: sample(x, exponentials=e).sum())(x)


def test_the_torch_backend(monkeypatch):
    x = draw(5, 300)
    e, temperature = exponentials_of(x), torch.tensor([0.0, 1.0, 0.5, 0.0, 2.0])
    mine = sample(x, temperature=temperature, exponentials=e)
    monkeypatch.setattr(_backend._State, "backend", "torch")
    assert torch.equal(sample(x, temperature=temperature, exponentials=e), mine)


X = torch.zeros(4, 8)
BAD = [
    (lambda: sample([1.0]), TypeError, "logits is list; it must be a torch.Tensor"),
    (lambda: sample(X.double()), TypeError, "logits is torch.float64; allowed"),
    (lambda: sample(X[:, :0]), ValueError, "logits has shape (4, 0); rows need 1 column or more"),
    (lambda: sample(X, temperature=-1.0), ValueError, "temperature is -1.0; it must be 0 or more, and finite"),
    (lambda: sample(X, temperature="hot"), TypeError, "temperature is 'hot'; it must be a number"),
    (lambda: sample(X, temperature=torch.ones(3)), ValueError, "temperature has shape (3,); it needs (4,), one for each row"),
    (lambda: sample(X, top_k=9), ValueError, "top_k is 9; allowed: 1 to 8, or None"),
    (lambda: sample(torch.zeros(1, 4096), top_k=4096), ValueError, "top_k is 4096; allowed: 1 to 2048"),
    (lambda: sample(X, top_p=0.0), ValueError, "top_p is 0.0; it must be above 0, up to 1"),
    (lambda: sample(X, top_p=1.5), ValueError, "top_p is 1.5; it must be above 0, up to 1"),
    (lambda: sample(X, exponentials=X[:2]), ValueError, "exponentials has shape (2, 8) and logits (4, 8)"),
    (lambda: sample(X, exponentials=X.half()), TypeError, "exponentials is torch.float16; allowed: torch.float32"),
    (lambda: sample(X, exponentials=X, generator=torch.Generator()), ValueError, "exponentials and generator are both given"),
    (lambda: sample(X, eps=-1.0), ValueError, "eps is -1.0; it must be 0 or more"),
    (lambda: sample(X.clone().requires_grad_()), NotImplementedError, "sample has no derivative; call it with logits.detach()"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith(
        ("hipkittens.sample: ", "hipkittens: sample")
    )


OPERATOR = torch.ops.hipkittens.sample
BAD_OPERANDS = [
    (lambda: OPERATOR(X, X, None, 0.0), "exponentials and temperatures go together"),
    (
        lambda: OPERATOR(X, X.mT, X[:, 0], 0.0),
        "exponentials needs to be float32, (4, 8) with rows of unit stride",
    ),
    (lambda: OPERATOR(X, X, X[0], 0.0), "temperatures needs to be float32, (4)"),
    (lambda: OPERATOR(X[:, :0], None, None, 0.0), "4 rows of 0 columns"),
]


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
