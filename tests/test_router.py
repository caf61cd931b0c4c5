# SPDX-License-Identifier: MIT
"""hipkittens.router through the public API: ids must be exact, weights match a float64 composition of PyTorch operations."""

import itertools
import math

import pytest
import torch

import hipkittens
from hipkittens import _backend, router

TARGETS = ("gfx942", "gfx950")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
SCORES = ("softmax", "sigmoid", "sqrtsoftplus")


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert not simulation.findings


def draw(*shape, dtype=F32, seed=0, scale=2.0):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def scores(logits, score):
    if score == "softmax":
        return logits.softmax(-1)
    return logits.sigmoid() if score == "sigmoid" else torch.log1p(logits.exp()).sqrt()


def expected_ids(values, k, groups=1, topk_groups=1, best=1):
    """The ids of one token, by Python's sort; NaN above infinity, ties to the lower number."""

    def key(value):
        return (0, 0.0) if math.isnan(value) else (1, -value)

    def group_key(group):
        first = sorted(group, key=key)[:best]
        return key(sum(first))

    size = len(values) // groups
    order = sorted(range(groups), key=lambda g: (group_key(values[g * size : (g + 1) * size]), g))[
        :topk_groups
    ]
    experts = [e for e in range(len(values)) if e // size in order]
    return sorted(experts, key=lambda e: (key(values[e]), e))[:k]


def expected_weights(logits, ids, score, renormalize, scale):
    weights = scores(logits, score).gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * scale


def check(logits, k, score="softmax", renormalize=False, scale=1.0, **groups):
    weights, ids = router(logits, k, score=score, renormalize=renormalize, scale=scale, **groups)
    assert weights.dtype == F32 and ids.dtype == torch.int32
    rows = logits.double().reshape(-1, logits.shape[-1])
    right = [expected_ids(row.tolist(), k, **groups) for row in rows]
    assert ids.reshape(-1, k).tolist() == right
    exact = expected_weights(rows, torch.tensor(right).reshape(-1, k), score, renormalize, scale)
    torch.testing.assert_close(weights.reshape(-1, k).double(), exact, rtol=1e-6, atol=1e-37)


MODELS = [
    (8, 2, 1, 1), (32, 4, 1, 1), (128, 8, 1, 1), (160, 6, 8, 3), (256, 8, 8, 4), (512, 10, 1, 1), (1500, 8, 1, 1), (1536, 8, 64, 3),
    (60, 4, 3, 2), (129, 128, 1, 1), (1, 1, 1, 1), (96, 96, 1, 1),
]  # fmt: skip


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("experts", "k", "groups", "topk_groups"), MODELS)
def test_ids_and_weights(target, experts, k, groups, topk_groups, score):
    for dtype, renormalize in itertools.product((F32, BF16, F16), (False, True)):
        # Weights with few distinct values: ties between experts and between groups.
        logits = draw(5, experts, dtype=dtype)
        for each in (logits, (logits * 2).round() / 2):
            check(each, k, score, renormalize, 2.5, groups=groups, topk_groups=topk_groups)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("experts", "k", "groups", "topk_groups"), MODELS)
def test_a_bias_chooses_and_is_no_part_of_weights(target, experts, k, groups, topk_groups, score):
    """Steps of the bias that are wider than float32's rounding near -100; then steps smaller than the scores' differences."""
    logits = draw(6, experts)
    best = min(2, experts // groups)
    spread = torch.randperm(experts, generator=torch.Generator().manual_seed(1))
    for bias in (spread * 4.0 - 100, (spread % 3) * 0.25 - 0.25):
        weights, ids = router(
            logits,
            k,
            score=score,
            bias=bias,
            groups=groups,
            topk_groups=topk_groups,
            renormalize=True,
            scale=2.5,
        )
        choice = scores(logits.double(), score) + bias.double()
        right = torch.tensor([expected_ids(row.tolist(), k, groups, topk_groups, best) for row in choice])
        if not torch.equal(
            ids.long(), right
        ):  # float32 may confuse experts that differ by its rounding, and no others
            assert (choice.gather(-1, ids.long()) - choice.gather(-1, right)).abs().max() < 1e-6
        exact = expected_weights(logits.double(), ids.long(), score, True, 2.5)
        torch.testing.assert_close(weights.double(), exact, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("score", SCORES)
def test_scores_of_one_float_do_not_change_the_choice(target, score):
    """sigmoid(20) and sigmoid(30) are both 1 in floats, and softmax of a value 200 below the maximum is 0."""
    logits = torch.tensor([[20.0, 30.0, 25.0, -300.0, -250.0, -280.0]])
    weights, ids = router(logits, 6, score=score)
    assert ids.tolist() == [[1, 2, 0, 4, 5, 3]]
    torch.testing.assert_close(
        weights.double(),
        expected_weights(logits.double(), ids.long(), score, False, 1.0),
        rtol=1e-6,
        atol=1e-37,
    )


@pytest.mark.parametrize("score", SCORES[:2])
def test_experts_with_minus_infinity(target, score):
    logits = draw(3, 40)
    logits[0] = -math.inf
    logits[1, 5:] = -math.inf
    logits[2, ::2] = -math.inf
    weights, ids = router(logits, 30, score=score)
    for row in range(3):
        assert ids[row].tolist() == expected_ids(logits[row].tolist(), 30)
    chosen = logits.gather(-1, ids.long())
    assert (weights[1:][chosen[1:] == -math.inf] == 0).all()
    assert weights[0].isnan().all() if score == "softmax" else (weights[0] == 0).all()


@pytest.mark.parametrize("score", SCORES)
def test_nan(target, score):
    """Chosen first; NaN in a whole token, and in one group alone."""
    logits = draw(3, 64)
    logits[0, 17], logits[0, 40], logits[1] = math.nan, -math.nan, math.nan
    for bias in (None, torch.zeros(64)):
        weights, ids = router(logits, 4, score=score, bias=bias, groups=8, topk_groups=2)
        if bias is None or score != "softmax":
            assert ids[0, :2].tolist() == [17, 40] and ids[1].tolist() == [0, 1, 2, 3]
            assert all(each // 8 in (2, 5) for each in ids[0].tolist())
        assert weights[0, :2].isnan().all() and weights[1].isnan().all() and weights[2].isfinite().all()
        assert weights[0, 2:].isnan().all() == (score == "softmax")


def test_scale_and_shared_experts_at_every_number_of_tokens(target):
    for tokens in (1, 3, 700):
        logits = draw(tokens, 64)
        plain = router(logits, 4, score="sigmoid", renormalize=True)
        weights, ids = router(logits, 4, score="sigmoid", renormalize=True, scale=2.5, shared=2)
        torch.testing.assert_close(weights[:, :4], plain[0] * 2.5, rtol=3e-7, atol=0)
        assert torch.equal(ids[:, :4], plain[1])
        assert ids[:, 4:].tolist() == [[64, 65]] * tokens and (weights[:, 4:] == 1).all()


def test_no_tokens(target):
    logits = torch.zeros(0, 16, requires_grad=True)
    weights, ids = router(logits, 3, shared=1)
    assert weights.shape == ids.shape == (0, 4)
    assert torch.autograd.grad(weights.sum(), logits)[0].shape == (0, 16)


def test_strides_and_dimensions(target):
    storage = draw(4, 6, 70, dtype=BF16)
    for logits in (storage[..., 3:44], storage.transpose(0, 1), storage[::2, 1:3], storage[0, 0], storage[..., ::3],
                   draw(1, 64).expand(9, 64)):  # fmt: skip
        check(logits, 5)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("dtype", [F32, BF16])
def test_gradient_of_logits(target, score, renormalize, dtype):
    logits = draw(5, 24, dtype=dtype).requires_grad_()
    dy = draw(5, 5, seed=1)
    weights, ids = router(logits, 4, score=score, renormalize=renormalize, scale=2.5, shared=1)
    assert not ids.requires_grad
    (mine,) = torch.autograd.grad(weights, logits, dy)
    exact = logits.detach().double().requires_grad_()
    (right,) = torch.autograd.grad(
        expected_weights(exact, ids[:, :4].long(), score, renormalize, 2.5), exact, dy[:, :4].double()
    )
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if dtype == F32 else {"rtol": 2**-8, "atol": 1e-6}
    torch.testing.assert_close(mine.double(), right, **tolerance)
    assert mine.dtype == dtype


def test_a_gate_learns(target):
    """The gradient of the weights alone suffices to learn which expert a token needs."""
    torch.manual_seed(0)
    gate = torch.nn.Linear(8, 4, bias=False)
    optimizer = torch.optim.Adam(gate.parameters(), lr=0.1)
    tokens, losses = draw(32, 8), []
    for _ in range(12):
        weights, ids = router(gate(tokens), 2, score="sigmoid", renormalize=True)
        wanted = tokens[:, :4].argmax(-1, keepdim=True)
        loss = 1 - (weights * (ids == wanted)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1


def test_opcheck(target):
    operator = torch.ops.hipkittens.router.default
    bias = torch.linspace(0, 1, 24)
    calls = [(draw(3, 24).requires_grad_(), None, 4, 0, 1, 1, False, 1.0, 0),
             (draw(3, 24, dtype=BF16).requires_grad_(), bias, 4, 1, 4, 2, True, 2.5, 1)]  # fmt: skip
    for inputs in calls:
        assert set(torch.library.opcheck(operator, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()

    def block(logits):
        weights, ids = router(logits * 2, 3, renormalize=True)
        return weights + 1, ids

    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)
    for tokens in (3, 8):
        logits = draw(tokens, 24, seed=tokens).requires_grad_()
        (mine, places), (other, right) = compiled(logits), block(logits)
        assert torch.equal(mine, other) and torch.equal(places, right)
        dy = draw(tokens, 3)
        torch.testing.assert_close(*(torch.autograd.grad(each, logits, dy)[0] for each in (mine, other)))


def test_meta_tensors():
    weights, ids = router(torch.empty(3, 10, device="meta"), 4, shared=1)
    assert weights.shape == ids.shape == (3, 5) and ids.dtype == torch.int32 and weights.dtype == F32


@pytest.mark.parametrize("score", SCORES)
def test_the_torch_backend(monkeypatch, score):
    logits, bias = draw(6, 24, dtype=F16), torch.arange(24.0)
    calls = [lambda b=b, r=r: router(logits, 3, score=score, bias=b, groups=4, topk_groups=2, renormalize=r, shared=1)
             for b in (None, bias) for r in (False, True)]  # fmt: skip
    with hipkittens.simulate("gfx950"):
        right = [call() for call in calls]
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for call, (weights, ids) in zip(calls, right, strict=True):
        mine = call()
        torch.testing.assert_close(mine[0], weights, rtol=1e-5, atol=1e-7)
        assert torch.equal(mine[1], ids)


X = torch.zeros(4, 8)
BAD = [
    (lambda: router([1.0], 1), TypeError, "logits is list; it must be a torch.Tensor"),
    (lambda: router(X.double(), 1), TypeError, "logits is torch.float64; allowed"),
    (lambda: router(X[0, 0], 1), ValueError, "logits has shape (); it needs at least 1 dimension, the experts"),
    (lambda: router(torch.zeros(1, 1537), 1), ValueError, "logits has 1537 experts; allowed: 1 to 1536"),
    (lambda: router(torch.zeros(1, 0), 1), ValueError, "logits has 0 experts; allowed: 1 to 1536"),
    (lambda: router(X, 9), ValueError, "k is 9; allowed: 1 to 8, the experts of 1 of 1 groups"),
    (lambda: router(X, 0), ValueError, "k is 0; allowed: 1 to 8"),
    (lambda: router(X, 2.0), TypeError, "k is 2.0; it must be a whole number"),
    (lambda: router(X, 5, groups=4, topk_groups=2), ValueError, "k is 5; allowed: 1 to 4, the experts of 2 of 4 groups"),
    (lambda: router(X, 1, groups=3), ValueError, "groups is 3; allowed: 1 to 64 that divide the 8 experts"),
    (lambda: router(X, 1, groups=4, topk_groups=5), ValueError, "topk_groups is 5; allowed: 1 to groups, which is 4"),
    (lambda: router(X, 1, score="tanh"), ValueError, "score is 'tanh'; allowed: 'softmax', 'sigmoid', 'sqrtsoftplus'"),
    (lambda: router(X, 1, renormalize="no"), TypeError, "renormalize is 'no'; allowed: True, False"),
    (lambda: router(X, 1, scale="2"), TypeError, "scale is '2'; it must be a number"),
    (lambda: router(X, 1, scale=math.inf), ValueError, "scale is inf; it must be finite"),
    (lambda: router(X, 1, shared=-1), ValueError, "shared is -1; it must be 0 or more"),
    (lambda: router(X, 1, bias=torch.zeros(7)), ValueError, "bias has shape (7,); it needs (8,), one for each expert"),
    (lambda: router(X, 1, bias=torch.zeros(8).int()), TypeError, "bias is torch.int32; allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), BAD, ids=[row[2] for row in BAD])
def test_bad_input(call, error, message):
    with hipkittens.simulate("gfx950"), pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.router: ")


OPERATOR = torch.ops.hipkittens.router
BAD_OPERANDS = [
    (lambda: OPERATOR(X, None, 9, 0, 1, 1, False, 1.0, 0), "k is 9; 1 .. 8 are allowed"),
    (lambda: OPERATOR(X, None, 1, 3, 1, 1, False, 1.0, 0), "score is 3; 0, 1 and 2 are allowed"),
    (lambda: OPERATOR(X, None, 1, 0, 3, 1, False, 1.0, 0), "3 groups; 1 .. 64 that divide the experts"),
    (lambda: OPERATOR(X, X[0, ::2], 1, 0, 1, 1, False, 1.0, 0), "bias needs to be float32 and contiguous"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), BAD_OPERANDS, ids=[row[1] for row in BAD_OPERANDS])
def test_bad_operands(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises((RuntimeError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
