# SPDX-License-Identifier: MIT
"""hipkittens.router_top1: a float32 product followed by routing to one expert."""

import math

import pytest
import torch

import hipkittens
from hipkittens import _accuracy, _backend, router_top1

BF16, F16 = torch.bfloat16, torch.float16


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def draw(*shape, dtype=BF16, seed=0, scale=1.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def reference(x, w):
    values, ids = (x @ w).max(-1, keepdim=True)
    return values.sigmoid(), ids.to(torch.int32)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 17, 2), (17, 255, 60), (5, 257, 16), (33, 64, 300)])
def test_ids_weights_and_gradients(target, dtype, shape):
    tokens, features, experts = shape
    x, w = (
        draw(tokens, features, dtype=dtype),
        draw(features, experts, dtype=dtype, seed=1, scale=features**-0.5),
    )
    dy = draw(tokens, 1, dtype=torch.float32, seed=2)

    def with_gradients(function, x, w):
        leaves = [value.detach().requires_grad_() for value in (x, w)]
        weights, ids = function(*leaves)
        return ids, [weights.detach(), *torch.autograd.grad(weights, leaves, dy.to(weights.dtype))]

    ids, mine = with_gradients(router_top1, x, w)
    right_ids, exact = with_gradients(reference, x.double(), w.double())
    _, theirs = with_gradients(reference, x, w)
    assert torch.equal(ids, right_ids) and ids.dtype == torch.int32
    assert mine[0].dtype == torch.float32
    for a, b, right in zip(mine, theirs, exact, strict=True):
        comparison = _accuracy.compare(a, b, right, right.abs().max().item())
        assert comparison.passes, comparison
    assert (mine[0] - exact[0]).abs().max() <= 1e-6


def test_what_16_bits_would_round_together(target):
    """Logits stay float32: two that differ by less than a step of bfloat16 are distinguished."""
    x = torch.tensor([[64.0, 0.0625]], dtype=BF16)
    w = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, -1.0]], dtype=BF16)
    assert router_top1(x, w)[1].tolist() == [[1]]


def test_ties_nan_and_shared(target):
    x, w = draw(3, 64), draw(64, 8, seed=1)
    w[:, 5] = w[:, 2] = 0
    x[0] = 0
    x[1, 3] = math.nan
    weights, ids = router_top1(x.unsqueeze(0), w, shared=2)
    assert weights.shape == ids.shape == (1, 3, 3)
    assert ids[0, :2].tolist() == [[0, 8, 9], [0, 8, 9]] and weights[0, 0].tolist() == [0.5, 1.0, 1.0]
    assert weights[0, 1, 0].isnan() and (weights[..., 1:] == 1).all()


@pytest.mark.parametrize("experts_together", [True, False])
def test_many_tokens_are_a_few_at_a_time(target, experts_together):
    """More than 16 tokens for each of 304 compute units use another kernel. A token's result is the same."""
    x, w = draw(16 * 304 + 5, 72), draw(72, 11, seed=1)
    w = w if experts_together else w.T.contiguous().T
    weights, ids = router_top1(x, w)
    for first in (0, 2000, len(x) - 40):
        few = slice(first, first + 40)
        for mine, right in zip((weights[few], ids[few]), router_top1(x[few], w), strict=True):
            assert torch.equal(mine, right)


def test_strides_and_no_tokens(target):
    storage, w = draw(5, 6, 70), draw(60, 12, seed=1)
    x = storage.transpose(0, 1)[..., 7:67]
    for mine, right in zip(router_top1(x, w), router_top1(x.contiguous(), w), strict=True):
        assert torch.equal(mine, right)
    assert torch.equal(router_top1(x, w.t().contiguous().t())[0], router_top1(x, w)[0])
    weights, ids = router_top1(x[:0], w, shared=1)
    assert weights.shape == ids.shape == (0, 5, 2)


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    w = draw(24, 6, seed=1)
    compiled = torch.compile(
        lambda x: router_top1(x * 2, w), fullgraph=True, dynamic=True, backend=compile_backend
    )
    for rows in (3, 8):
        x = draw(rows, 24, seed=rows)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), router_top1(x * 2, w), strict=True))


def test_the_torch_backend(monkeypatch):
    monkeypatch.setattr(_backend._State, "backend", "torch")
    x, w = draw(5, 24), draw(24, 6, seed=1)
    weights, ids = router_top1(x, w)
    right, right_ids = reference(x.double(), w.double())
    assert torch.equal(ids, right_ids) and (weights - right).abs().max() < 1e-6


X, W = torch.zeros(4, 8, dtype=BF16), torch.zeros(8, 3, dtype=BF16)
BAD = [
    (lambda: router_top1([1.0], W), TypeError, "x is list; it must be a torch.Tensor"),
    (lambda: router_top1(X, None), TypeError, "w is NoneType; it must be a torch.Tensor"),
    (lambda: router_top1(X.float(), W.float()), TypeError, "x is torch.float32; allowed: torch.bfloat16, torch.float16"),
    (lambda: router_top1(X, W.half()), TypeError, "x is torch.bfloat16 and w torch.float16; they must be the same"),
    (lambda: router_top1(X, W[:7]), ValueError, "x has shape (4, 8) and w (7, 3); they must be (..., K) and (K, experts)"),
    (lambda: router_top1(X, W[:, :0]), ValueError, "w has 0 experts; allowed: 1 to 1536"),
    (lambda: router_top1(X, W, shared=-1), ValueError, "shared is -1; it must be 0 or more"),
    (lambda: router_top1(X, W, shared=1.5), TypeError, "shared is 1.5; it must be a whole number (int)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.router_top1: ")
