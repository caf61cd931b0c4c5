# SPDX-License-Identifier: MIT
"""hipkittens.concat_heads and split_heads through the public API."""

import pytest
import torch

import hipkittens
from hipkittens import _backend, concat_heads, split_heads

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
BITS = {BF16: torch.int16, F16: torch.int16, F32: torch.int32}


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, grad=False):
    """Random bit patterns, including NaN of every kind."""
    bits = BITS[dtype]
    limits = torch.iinfo(bits)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(limits.min, limits.max, shape, generator=generator, dtype=torch.int64)
    return drawn.to(bits).view(dtype).requires_grad_(grad)


def same_bits(a, b):
    return a.dtype == b.dtype and torch.equal(a.detach().view(BITS[a.dtype]), b.detach().view(BITS[b.dtype]))


def joined(q1, q2, k1, k2):
    return torch.cat((q1, q2), -1), torch.cat((k1, k2), -1)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    "sizes", [(512, 64), (128, 128), (1, 1), (7, 9), (8, 3), (3, 8), (130, 62), (0, 5), (5, 0), (0, 0)]
)
def test_concat_heads(target, dtype, sizes):
    for heads, key_heads, tokens in ((16, 1, 17), (1, 4, 3), (2, 2, 0)):
        parts = [
            draw(tokens, count, size, dtype=dtype, seed=seed)
            for seed, (count, size) in enumerate(
                (count, size) for count in (heads, key_heads) for size in sizes
            )
        ]
        for mine, right in zip(concat_heads(*parts), joined(*parts), strict=True):
            assert mine.is_contiguous() and same_bits(mine, right)


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize(
    "sizes", [(4096, 1024), (128, 128), (1, 1), (17, 3), (0, 8), (8, 0), (0, 0), (66, 30)]
)
def test_split_heads(target, dtype, sizes):
    q, kv = sizes
    for rows in (0, 1, 9):
        x = draw(rows, q + 2 * kv, dtype=dtype)
        for mine, right in zip(split_heads(x, q, kv), x.split((q, kv, kv), -1), strict=True):
            assert mine.is_contiguous() and same_bits(mine, right)


def test_strides_and_offsets(target):
    wide = draw(5, 6, 200)
    q1, q2 = wide[..., 3:67], wide[..., 100:133]
    k1, k2 = wide.transpose(0, 1)[..., :64], wide.transpose(0, 1)[::1, :, 7:8]
    columns = draw(6, 12, 5).transpose(1, 2)
    for parts in ((q1, q2, k1, k2), (columns, columns, q1, q1), (q1[:1].expand(5, 6, 64), q2, k1, k2)):
        for mine, right in zip(concat_heads(*parts), joined(*parts), strict=True):
            assert same_bits(mine, right)
    for x in (
        wide[:, ::2, 4:100],
        wide[..., 1:97],
        wide.transpose(0, 1)[..., :96],
        draw(96, 7).t(),
        wide[0, 0, :96],
    ):
        for mine, right in zip(split_heads(x, 64, 16), x.split((64, 16, 16), -1), strict=True):
            assert same_bits(mine, right)


def test_gradients(target):
    parts = [torch.randn(3, count, size, requires_grad=True) for count in (4, 1) for size in (16, 5)]
    weights = [torch.randn(3, count, 21) for count in (4, 1)]

    def gradients(function):
        return torch.autograd.grad(
            sum((y * w).square().sum() for y, w in zip(function(*parts), weights, strict=True)), parts
        )

    for mine, right in zip(gradients(concat_heads), gradients(joined), strict=True):
        assert torch.equal(mine, right)
    (dq,) = torch.autograd.grad(concat_heads(*parts)[0].sum(), parts[:1])  # keys have no gradient
    assert torch.equal(dq, torch.ones_like(parts[0]))
    x = torch.randn(4, 96, requires_grad=True)
    q, _, v = split_heads(x, 64, 16)
    mine = torch.autograd.grad((q.square().sum() + 2 * v.sum()), x)[0]
    right = torch.cat((2 * x[:, :64], torch.zeros(4, 16), torch.full((4, 16), 2.0)), -1)
    assert torch.equal(mine, right)


def test_second_derivatives(target):
    x = torch.randn(4, 96, requires_grad=True)
    (dx,) = torch.autograd.grad(split_heads(x, 64, 16)[0].pow(3).sum(), x, create_graph=True)
    (found,) = torch.autograd.grad(dx.sum(), x)
    torch.testing.assert_close(found, torch.cat((6 * x[:, :64], torch.zeros(4, 32)), -1))


def test_opcheck(target):
    operators = torch.ops.hipkittens
    parts = [torch.randn(3, count, size, requires_grad=True) for count in (4, 1) for size in (16, 5)]
    calls = [
        (operators.concat_heads, tuple(parts)),
        (operators.split_heads, (torch.randn(5, 24, requires_grad=True), 16, 4)),
    ]
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(x):
        q, k, v = split_heads(x * 2, 16, 8)
        return concat_heads(q, k, k, v)

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for rows in (3, 8):
        x = torch.randn(rows, 32, requires_grad=True)
        for mine, right in zip(compiled(x), block(x), strict=True):
            assert torch.equal(mine, right)
        found = [torch.autograd.grad(function(x)[0].square().sum(), x)[0] for function in (compiled, block)]
        assert torch.equal(*found)


def test_meta_tensors():
    x = torch.empty(3, 2, 12, device="meta")
    assert [part.shape[-1] for part in split_heads(x, 8, 2)] == [8, 2, 2]
    assert concat_heads(x, x[..., :4], x, x)[0].shape == (3, 2, 16)


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x = draw(3, 12)
    assert all(same_bits(a, b) for a, b in zip(split_heads(x, 8, 2), x.split((8, 2, 2), -1), strict=True))
    assert all(same_bits(a, b) for a, b in zip(concat_heads(x, x, x, x), joined(x, x, x, x), strict=True))


X = torch.zeros(4, 8, dtype=BF16)
BAD = [
    (lambda: concat_heads([1.0], X, X, X), TypeError, "concat_heads: q1 is list; it must be a torch.Tensor"),
    (lambda: concat_heads(X.int(), X, X, X), TypeError, "concat_heads: q1 is torch.int32; allowed"),
    (lambda: concat_heads(X, X.half(), X, X), TypeError, "concat_heads: q2 is torch.float16; allowed: torch.bfloat16"),
    (lambda: concat_heads(X, X[:2], X, X), ValueError, "concat_heads: q2 has shape (2, 8) and q1 (4, 8)"),
    (lambda: concat_heads(X, X, X[0], X), ValueError, "concat_heads: k2 has shape (4, 8) and k1 (8,)"),
    (lambda: concat_heads(X, X, X, X[0, 0]), ValueError, "concat_heads: k2 has shape (); it needs at least 1 dimension"),
    (lambda: split_heads(X.double(), 4, 2), TypeError, "split_heads: qkv is torch.float64; allowed"),
    (lambda: split_heads(X, 4.0, 2), TypeError, "split_heads: q_size is 4.0; it must be a whole number"),
    (lambda: split_heads(X, -4, 6), ValueError, "split_heads: q_size is -4; it must be 0 or more"),
    (lambda: split_heads(X, 4, 3), ValueError, "with q_size 4 and kv_size 3 its rows must have 10 elements"),
    (lambda: split_heads(X[0, 0], 0, 0), ValueError, "split_heads: qkv has shape ()"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.")


OPERATORS = torch.ops.hipkittens
BAD_OPERANDS = [
    (lambda: OPERATORS.concat_heads(X, X[:2], X, X), "q2 needs the shape of q1 but for the last dimension"),
    (lambda: OPERATORS.concat_heads(X, X, X.half(), X), "k1 needs the dtype and the device of q1"),
    (lambda: OPERATORS.split_heads(X, 4, 3), "rows of qkv need q_size + 2 kv_size elements"),
    (lambda: OPERATORS.split_heads(X, -2, 5), "rows of qkv need q_size + 2 kv_size elements"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
