# SPDX-License-Identifier: MIT
"""vLLM's function names for gated delta rule steps and for Qwen3-Next's column order."""

import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens.integrations import vllm_delta_rule as vllm

BF16 = torch.bfloat16
HEADS, VALUE_HEADS, KEY, VALUE, SLOTS = 2, 6, 64, 32, 7


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(batch, tokens):
    q, k = (draw(batch, tokens, HEADS, KEY, seed=seed) for seed in (1, 2))
    v = draw(batch, tokens, VALUE_HEADS, VALUE, seed=3)
    return q, k, v, draw(SLOTS, VALUE_HEADS, KEY, VALUE, dtype=torch.float32, seed=4)


def recurrence(q, k, v, g, beta, state):
    """float64 recurrence of one sequence: (tokens, heads, ..) and (HV, K, V); outputs and the states after each token."""
    q, k = (F.normalize(each.double(), dim=-1).repeat_interleave(VALUE_HEADS // HEADS, 1) for each in (q, k))
    outputs, states, state = [], [], state.double()
    for t in range(q.shape[0]):
        state = state * g[t].double().exp()[:, None, None]
        change = beta[t].double()[:, None] * (v[t].double() - torch.einsum("hkv,hk->hv", state, k[t]))
        state = state + k[t][:, :, None] * change[:, None]
        outputs.append(torch.einsum("hkv,hk->hv", state, q[t]) * KEY**-0.5)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def near(found, exact, relative):
    return (found.double() - exact).norm() <= relative * exact.norm()


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize("v_first", [False, True])
def test_steps_on_slots(target, v_first):
    """Three sequences, the second of which is batch padding."""
    q, k, v, pool = problem(3, 1)
    a, b = draw(3, VALUE_HEADS, seed=5), draw(3, VALUE_HEADS, seed=6)
    A_log, dt_bias = draw(VALUE_HEADS, dtype=torch.float32, seed=7), draw(VALUE_HEADS, seed=8)
    slots = torch.tensor([5, -1, 2], dtype=torch.int32)
    g = -A_log.double().exp() * F.softplus(a.double() + dt_bias.double())
    beta = b.double().sigmoid()

    def laid(states):
        return states.transpose(2, 3).contiguous() if v_first else states.clone()

    calls = {
        "gates": lambda state: vllm.fused_sigmoid_gating_delta_rule_update(
            A_log,
            a,
            b,
            dt_bias,
            q,
            k,
            v,
            1.0,
            20.0,
            None,
            state,
            True,
            None,
            slots,
            None,
            True,
            state_v_first=v_first,
        ),
        "values": lambda state: vllm.fused_recurrent_gated_delta_rule(
            q,
            k,
            v,
            g.float()[:, None],
            beta.float()[:, None],
            None,
            state,
            True,
            None,
            slots,
            None,
            True,
            state_v_first=v_first,
        ),
    }
    for call in calls.values():
        state = laid(pool)
        with hipkittens.simulate(target):
            out, after = call(state)
        assert after is state and not out[1].any()
        after = after.transpose(2, 3) if v_first else after
        for sequence, slot in ((0, 5), (2, 2)):
            exact, states = recurrence(
                q[sequence], k[sequence], v[sequence], g[sequence, None], beta[sequence, None], pool[slot]
            )
            assert near(out[sequence], exact, 2**-8) and near(after[slot], states[0], 1e-5)
        untouched = [0, 1, 3, 4, 6]
        assert torch.equal(after[untouched], pool[untouched])


@pytest.mark.parametrize("v_first", [False, True])
def test_decays_of_channels(v_first):
    """Parameters in the shapes of vLLM's Kimi Linear: equal to `kimi_delta_step`."""
    q, k, v, pool = problem(3, 1)
    a, b = draw(3, 1, VALUE_HEADS, KEY, seed=5), draw(3, 1, VALUE_HEADS, seed=6)
    A_log, dt_bias = (
        draw(*shape, dtype=torch.float32, seed=7) for shape in ((VALUE_HEADS,), (VALUE_HEADS, KEY))
    )
    state, expected = (pool.mT.contiguous() if v_first else pool.clone() for _ in range(2))
    slots = torch.tensor([5, -1, 2])
    out, after = vllm.fused_sigmoid_gating_delta_rule_update(
        A_log.view(1, 1, -1, 1), a.flatten(2), b, dt_bias.flatten(), q, k, v, initial_state=state,
        ssm_state_indices=slots, use_qk_l2norm_in_kernel=True, is_kda=True, state_v_first=v_first,
    )  # fmt: skip
    same = hipkittens.kimi_delta_step(
        q, k, v, a, b, expected, state_indices=slots, l2norm=True, A_log=A_log, dt_bias=dt_bias, beta_logits=True,
        state_layout="vk" if v_first else "kv",
    )  # fmt: skip
    assert after is state and torch.equal(out, same) and torch.equal(state, expected)
    assert not torch.equal(state[5], pool.mT[5] if v_first else pool[5])


def test_speculative_tokens_of_packed_sequences():
    """Every token's state has a slot; the first sequence continues from its second token of the previous call."""
    q, k, v, pool = problem(1, 4)
    g, beta = -draw(1, 4, VALUE_HEADS, dtype=torch.float32, seed=5).abs(), torch.rand(1, 4, VALUE_HEADS)
    slots, accepted = torch.tensor([[0, 1], [4, 6]]), torch.tensor([2, 1])
    state = pool.clone()
    with hipkittens.simulate("gfx950"):
        out, _ = vllm.fused_recurrent_gated_delta_rule(
            q, k, v, g, beta, initial_state=state, cu_seqlens=torch.tensor([0, 2, 4]), ssm_state_indices=slots,
            num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
    for number, first in ((0, 1), (1, 4)):
        part = slice(2 * number, 2 * number + 2)
        exact, states = recurrence(*(each[0, part] for each in (q, k, v, g, beta)), pool[first])
        assert near(out[0, part], exact, 2**-8)
        assert near(state[slots[number]], states, 1e-5)


def test_columns_of_the_projections():
    tokens, group = 5, VALUE_HEADS // HEADS
    q, k = (draw(tokens, HEADS, KEY, seed=seed) for seed in (1, 2))
    v, z = (draw(tokens, HEADS, group, VALUE, seed=seed) for seed in (3, 4))
    b, a = (draw(tokens, HEADS, group, seed=seed) for seed in (5, 6))
    mixed = torch.cat((q, k, v.flatten(2), z.flatten(2)), 2).flatten(1), torch.cat((b, a), 2).flatten(1)
    found = vllm.fused_qkvzba_split_reshape_cat(*mixed, HEADS, VALUE_HEADS, KEY, VALUE)
    expected = (
        torch.cat([each.flatten(1) for each in (q, k, v)], 1),
        z.flatten(1, 2),
        b.flatten(1),
        a.flatten(1),
    )
    assert all(torch.equal(*pair) and pair[0].is_contiguous() for pair in zip(found, expected, strict=True))
    with pytest.raises(ValueError, match=r"mixed_ba has shape \(5, 11\); it needs \(tokens, 12\)"):
        vllm.fused_qkvzba_split_reshape_cat(mixed[0], mixed[1][:, 1:], HEADS, VALUE_HEADS, KEY, VALUE)
    with pytest.raises(ValueError, match="mixed_ba has 4 tokens and mixed_qkvz 5"):
        vllm.fused_qkvzba_split_reshape_cat(mixed[0], mixed[1][1:], HEADS, VALUE_HEADS, KEY, VALUE)
    with pytest.raises(ValueError, match="num_heads_v is 6 and num_heads_qk 4; allowed: a multiple"):
        vllm.fused_qkvzba_split_reshape_cat(*mixed, 4, VALUE_HEADS, KEY, VALUE)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"is_kda": True}, ValueError, r"a has shape \(2, 6\); it needs as many elements as \(2, 1, 6, 64\)"),
        ({"beta": 2.0}, NotImplementedError, "beta is 2.0; softplus has kernels for 1"),
        ({"threshold": 3.0}, NotImplementedError, "threshold is 3.0; allowed: 17 and above"),
        ({"inplace_final_state": False}, NotImplementedError, "inplace_final_state is False; states are changed in place"),
        ({"initial_state": None}, ValueError, "initial_state is None; pass the pool of states"),
        ({"a": torch.zeros(3)}, ValueError, r"a has shape \(3,\); it needs as many elements as \(2, 1, 6\)"),
    ],
)  # fmt: skip
def test_what_is_refused(options, error, message):
    q, k, v, pool = problem(2, 1)
    gate, head = torch.full((2, VALUE_HEADS), math.nan), torch.zeros(VALUE_HEADS)
    arguments = {
        "A_log": head,
        "a": gate,
        "b": gate,
        "dt_bias": head,
        "q": q,
        "k": k,
        "v": v,
        "initial_state": pool,
    }
    before = pool.clone()
    with pytest.raises(error, match=message):
        vllm.fused_sigmoid_gating_delta_rule_update(**{**arguments, **options})
    assert torch.equal(pool, before)
