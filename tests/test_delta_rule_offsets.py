# SPDX-License-Identifier: MIT
"""Delta rules on tensors whose elements are further apart than 32-bit offsets reach; only the elements themselves are ever touched. The
results have the same bits as for contiguous tensors."""

import pytest
import torch

import hipkittens
from hipkittens import gated_delta_rule, gated_delta_step, kimi_delta_attention, kimi_delta_step
from tests.simulated_device import TARGETS

BEYOND = 1 << 32  # bytes
RULES = {gated_delta_rule: False, kimi_delta_attention: True}
STEPS = {gated_delta_step: False, kimi_delta_step: True}


def inputs(tokens, by_channel, batch=2):
    generator = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(batch, tokens, *shape, generator=generator)  # noqa: E731
    q, k, v = draw(2, 64).bfloat16(), draw(2, 64).bfloat16(), draw(4, 24).bfloat16()
    return [q, k, v, -draw(4, *([64] if by_channel else [])).sigmoid(), draw(4).sigmoid()]


def apart(x, axis, bytes_apart):
    """A copy of x whose neighbors along that dimension are that far apart, and whose rows are unchanged."""
    strides = list(x.contiguous().stride())
    strides[axis] = bytes_apart // x.element_size()
    storage = torch.empty(
        1 + sum((n - 1) * each for n, each in zip(x.shape, strides, strict=True)), dtype=x.dtype
    )
    return torch.as_strided(storage, x.shape, strides).copy_(x)


def results(rule, by_channel, given):
    """Results, and gradients where the rule supports them."""
    if by_channel:
        return rule(*given, l2norm=True, return_state=True)
    leaves = [each.detach().requires_grad_() for each in given]
    out, state = rule(*leaves, l2norm=True, return_state=True)
    gradients = torch.autograd.grad(out.float().square().sum() + state.square().sum(), leaves)
    return [out.detach(), state.detach(), *gradients]


def check(rule, target, tokens, axis, bytes_apart):
    by_channel = RULES[rule]
    near = inputs(tokens, by_channel)
    far = [apart(each, axis, bytes_apart) for each in near]
    assert all(each.stride(axis) * each.element_size() == bytes_apart for each in far)
    with hipkittens.simulate(target):
        for mine, expected in zip(
            results(rule, by_channel, far), results(rule, by_channel, near), strict=True
        ):
            assert torch.equal(mine, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("tokens", [5, 70])
@pytest.mark.parametrize("axis, bytes_apart", [(0, BEYOND), (2, BEYOND // 2)], ids=["sequences", "heads"])
def test_sequences_and_heads(target, rule, tokens, axis, bytes_apart):
    check(rule, target, tokens, axis, bytes_apart)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize(
    "tokens, bytes_apart",
    # For the second, the last row of a chunk is within reach, and the next chunk begins beyond it.
    [(5, BEYOND // 2), (70, (1 << 31) // 63 // 16 * 16 - 128), (70, (1 << 31) // 63 // 16 * 16 + 16)],
)
def test_tokens(target, rule, tokens, bytes_apart):
    check(rule, target, tokens, 1, bytes_apart)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("layout", ["kv", "vk"])
def test_slots(target, step, layout):
    given = inputs(1, STEPS[step], batch=3)
    shape = (4, 64, 24) if layout == "kv" else (4, 24, 64)
    slots = BEYOND // (4 * 64 * 24 * 4) + 2
    pool = torch.empty(slots, *shape)
    near = torch.randn(3, *shape, generator=torch.Generator().manual_seed(2))
    order = torch.tensor([slots - 1, 0, slots // 2])
    pool[order] = near
    with hipkittens.simulate(target):
        out = step(*given, pool, state_indices=order, l2norm=True, state_layout=layout)
        assert torch.equal(out, step(*given, near, l2norm=True, state_layout=layout))
    assert torch.equal(pool[order], near)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_state_beyond_reach_is_refused(step):
    state = torch.empty(1 << 30).as_strided((1, 4, 64, 24), (96, 24, 1 << 24, 1))
    with pytest.raises(
        ValueError, match=r"state has strides .*; the 64 rows of one head need to lie within 2 GiB"
    ):
        step(*inputs(1, STEPS[step], batch=1), state)
