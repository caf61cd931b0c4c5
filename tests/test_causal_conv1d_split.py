# SPDX-License-Identifier: MIT
"""causal_conv1d and causal_conv1d_update with split: the parts of the unsplit result, each contiguous, from one launch."""

import pytest
import torch

import hipkittens
from hipkittens import _backend, aiter, causal_conv1d, causal_conv1d_update

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid_out(x, channels_last):
    return x.mT.contiguous().mT if channels_last else x


def equal_and_dense(parts, whole, split, axis, channels_last):
    for part, right in zip(parts, whole.split(split, axis), strict=True):
        dense = part.mT if channels_last and part.dim() > 1 and axis != part.dim() - 1 else part
        assert torch.equal(part, right) and dense.is_contiguous()


# With parts of whole vectors of channels, of other sizes, and empty ones.
SPLITS = [(8, 16, 8), (16, 0, 16), (5, 3, 24), (1, 30, 1), (0, 0, 32), (32, 0, 0)]


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("split", SPLITS)
def test_prompts(target, split, channels_last, dtype):
    weight, bias = draw(32, 4, dtype=dtype, seed=1), draw(32, dtype=dtype, seed=2)
    x = laid_out(draw(2, 32, 21, dtype=dtype), channels_last)
    whole = causal_conv1d(x, weight, bias, activation="silu")
    parts = causal_conv1d(x, weight, bias, activation="silu", split=split)
    assert hipkittens.simulate.report()["workgroups"] == -(-2 * 3 * 32 // 256) or channels_last
    equal_and_dense(parts, whole, split, 1, channels_last)
    starts, slots = torch.tensor([0, 4, 4, 13]), torch.tensor([2, -1, 0])
    states = [draw(3, 32, 3, dtype=dtype, seed=3) for _ in range(2)]
    options = {
        "query_start_loc": starts,
        "cache_indices": slots,
        "has_initial_state": torch.tensor([True, True, False]),
    }
    whole = causal_conv1d(x[0], weight, bias, conv_states=states[0], **options)
    parts = causal_conv1d(x[0], weight, bias, conv_states=states[1], **options, split=list(split))
    equal_and_dense(parts, whole, split, 0, channels_last)
    assert torch.equal(*states)


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("split", SPLITS)
def test_decoding(target, split, times):
    weight, x = draw(32, 4, seed=1), draw(3, 32, times)
    for options in (
        {},
        {"cache_seqlens": torch.tensor([4, 0, 9])},
        {"num_accepted_tokens": torch.tensor([1, times, 1])},
    ):
        states = [draw(4, 32, 6, seed=3) for _ in range(2)]
        whole = causal_conv1d_update(x, states[0], weight, None, "silu", **options)
        parts = causal_conv1d_update(x, states[1], weight, None, "silu", **options, split=split)
        assert all(map(torch.equal, parts, whole.split(split, 1))) and torch.equal(*states)
    two = causal_conv1d_update(x[..., 0], states[0], weight, split=split)
    assert [each.shape for each in two] == [(3, size) for size in split]


@pytest.mark.parametrize("channels_last", [False, True])
def test_gradients(target, channels_last):
    x, weight, bias = laid_out(draw(2, 24, 19), channels_last), draw(24, 3, seed=1), draw(24, seed=2)
    leaves = [each.requires_grad_() for each in (x, weight, bias)]
    dy = laid_out(draw(2, 24, 19, seed=4), channels_last)
    whole = torch.autograd.grad(causal_conv1d(*leaves, activation="silu"), leaves, dy)
    parts = causal_conv1d(*leaves, activation="silu", split=(8, 4, 12))
    found = torch.autograd.grad(parts, leaves, dy.split((8, 4, 12), 1))
    assert all(map(torch.equal, found, whole))


def test_opcheck(target):
    weight, bias, starts = draw(16, 4, seed=1), draw(16, seed=2), torch.tensor([0, 4, 9], dtype=torch.int32)
    operators, states = torch.ops.hipkittens, draw(2, 16, 3, seed=3)
    x = draw(1, 9, 16).requires_grad_()
    calls = [
        (operators.causal_conv1d_split, (x, weight, bias, starts, True, True, 4, 8)),
        (operators.causal_conv1d_split, (x.detach().mT.contiguous(), weight, None, None, False, False, 0, 16)),
        (operators.causal_conv1d_states_split,
         (x.detach(), weight, bias, starts, states, None, None, None, None, True, True, 4, 8)),
    ]  # fmt: skip
    for operator, inputs in calls:
        assert set(torch.library.opcheck(operator.default, inputs).values()) == {"SUCCESS"}


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    torch._dynamo.reset()
    weight = draw(16, 4, seed=1)

    def block(x):
        q, k, v = causal_conv1d(x * 2, weight, activation="silu", split=(4, 4, 8))
        return q + k, v

    for times in (5, 9):
        x = draw(2, 16, times)
        assert all(
            map(
                torch.equal,
                torch.compile(block, fullgraph=True, dynamic=True, backend=compile_backend)(x),
                block(x),
            )
        )


def test_the_torch_backend(monkeypatch):
    x, weight, state = draw(2, 16, 9), draw(16, 4, seed=1), draw(2, 16, 3, seed=3)

    def results():
        return [
            *causal_conv1d(x, weight, split=(4, 4, 8)),
            *causal_conv1d_update(x, state.clone(), weight, split=(0, 8, 8)),
        ]

    with hipkittens.simulate():
        mine = results()
    monkeypatch.setattr(_backend._State, "backend", "torch")
    for a, b in zip(mine, results(), strict=True):
        torch.testing.assert_close(a, b)


def test_the_names_of_aiter(target):
    starts, slots = (
        torch.tensor([0, 5, 6, 20], dtype=torch.int32),
        torch.tensor([2, -1, 0], dtype=torch.int32),
    )
    x, weight, bias = laid_out(draw(24, 20), True), draw(24, 4, seed=1), draw(24, seed=2)
    states = [draw(3, 24, 5, seed=3) for _ in range(2)]
    right = aiter.causal_conv1d_fn(x, weight, bias, states[0], starts, [5, 1, 14], slots)
    found = aiter.causal_conv1d_fn_split_qkv(x, weight, bias, states[1], starts, [5, 1, 14], 8, 8, slots)
    for part, expected in zip(found, right.t().split((8, 8, 8), -1), strict=True):
        assert part.is_contiguous() and torch.equal(part, expected)
    assert torch.equal(*states)
    for step in (draw(3, 24, seed=4), draw(3, 24, 2, seed=4)):
        given = step.clone()
        found = aiter.causal_conv1d_update_split_qkv(given, states[0], weight, 8, 8, bias, "silu", slots)
        right = aiter.causal_conv1d_update(
            step.clone(), states[1], weight, bias, "silu", conv_state_indices=slots
        )
        assert torch.equal(given, step) and torch.equal(*states)
        for part, expected in zip(found, right.split((8, 8, 8), 1), strict=True):
            assert part.is_contiguous() and torch.equal(part[::2], expected[::2]) and not part[1].any()


@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("qkv", TypeError, "split is 'qkv'; it must be three numbers of channels"),
        ((8, 8), TypeError, "split is (8, 8); it must be three numbers of channels"),
        ((8, 8.0, 0), TypeError, "an element of split is 8.0; it must be a whole number"),
        ((8, 8, 8), ValueError, "split is (8, 8, 8), 24 channels, and x has 16"),
        ((-8, 16, 8), ValueError, "they must be as many, none negative"),
    ],
)
def test_bad_input(split, error, message):
    x, weight, state = draw(2, 16, 5), draw(16, 4), draw(2, 16, 3)
    with hipkittens.simulate("gfx950"):
        for call in (
            lambda: causal_conv1d(x, weight, split=split),
            lambda: causal_conv1d_update(x, state, weight, split=split),
        ):
            with pytest.raises(error) as caught:
                call()
            assert message in str(caught.value) and str(caught.value).startswith("hipkittens.causal_conv1d")
