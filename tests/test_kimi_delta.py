# SPDX-License-Identifier: MIT
"""kimi_delta_attention and kimi_delta_step compared with a float64 recurrence, with gated_delta_step, and with themselves on sequences cut
into other pieces.
"""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import fla, gated_delta_rule, gated_delta_step, kimi_delta_attention, kimi_delta_step
from hipkittens._delta_rule_in_torch import gates, in_torch, unit_vectors
from tests.simulated_device import TARGETS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DTYPES = (BF16, F16, F32)
NAN = float("nan")


def random(*shape, dtype=F32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(batch, tokens, key_heads, heads, key, value, dtype, gate="mixed", seed=1):
    """q, k, v, g and beta, with standard normal elements, and decays from 0 to -50 in the channels of each token."""
    q = random(batch, tokens, key_heads, key, dtype=dtype, seed=seed)
    k = random(batch, tokens, key_heads, key, dtype=dtype, seed=seed + 1)
    v = random(batch, tokens, heads, value, dtype=dtype, seed=seed + 2)
    drawn = random(batch, tokens, heads, key, seed=seed + 3)
    g = -50.0 * drawn.sigmoid() ** 8 if gate == "mixed" else torch.full_like(drawn, gate)
    return q, k, v, g, random(batch, tokens, heads, seed=seed + 4).sigmoid()


def recurrence(q, k, v, g, beta, initial=None, l2norm=True):
    return in_torch(q, k, v, g, beta, k.shape[3] ** -0.5, initial, l2norm, chunks=False)


def exact(*tensors, **options):
    return recurrence(*(each.double() for each in tensors), **options)


def as_one_chunk(q, k, v, g, beta, initial):
    """All tokens as one system of equations: (I + A) V' = beta (V - e^gamma K S), per channel."""
    group = v.shape[2] // q.shape[2]
    q, k = (unit_vectors(each).repeat_interleave(group, 2).transpose(1, 2) for each in (q, k))
    v, g, beta = v.transpose(1, 2), g.transpose(1, 2), beta.transpose(1, 2)[..., None]
    gamma = g.cumsum(2)
    between = (gamma[..., :, None, :] - gamma[..., None, :, :]).clamp(max=0).exp()
    of_keys = torch.einsum("bhik,bhjk,bhijk->bhij", k, k, between).tril(-1)
    of_queries = torch.einsum("bhik,bhjk,bhijk->bhij", q, k, between).tril()
    unit = torch.eye(k.shape[2], dtype=k.dtype)
    rest = beta * (v - (gamma.exp() * k) @ initial)
    change = torch.linalg.solve_triangular(unit + beta * of_keys, rest, upper=False)
    out = k.shape[3] ** -0.5 * ((gamma.exp() * q) @ initial + of_queries @ change)
    left = (gamma[..., -1:, :] - gamma).exp() * k
    return out.transpose(1, 2), gamma[..., -1, :, None].exp() * initial + left.mT @ change


def relative(found, reference):
    return ((found.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


def in_chunks(dtype, tokens):
    """The error bound of float32 states: in chunks, sums of two 16-bit elements are operands; a hundredth of what fla-core's tests
    allow."""
    return 2e-5 if dtype != F32 and tokens >= 17 else 1e-6


def assert_close(found, reference, wide=1e-6):
    """16-bit results: at most twice the error of rounding the reference. float32 results: a few of their roundings."""
    assert found.shape == reference.shape and found.isfinite().all()
    if found.dtype == F32:
        assert relative(found, reference) <= wide
        return
    rounded = reference.to(found.dtype).double()
    error, allowed = (found.double() - reference).abs(), (rounded - reference).abs()
    assert error.norm() <= 2 * allowed.norm()
    assert error.max() <= 2 * allowed.max() + 1e-7 * reference.abs().max()


def test_chunks_of_pytorch_are_the_recurrence():
    """To float64's last bits, for several chunks and for packed sequences."""
    initial, starts = random(3, 2, 24, 16, dtype=torch.float64, seed=9), torch.tensor([0, 70, 70, 150])
    for gate in ("mixed", -50.0, -1e-2):
        inputs = [each.double() for each in problem(1, 150, 1, 2, 24, 16, F32, gate)]
        arguments = *inputs, 0.3, initial, True, starts
        for found, expected in zip(in_torch(*arguments), in_torch(*arguments, chunks=False), strict=True):
            assert relative(found, expected) < 1e-13


def test_two_references_agree():
    """The recurrence, and a whole sequence as one system of equations, to float64's last bits."""
    inputs = [each.double() for each in problem(2, 20, 1, 2, 24, 16, F32)]
    initial = random(2, 2, 24, 16, dtype=torch.float64, seed=9)
    for found, expected in zip(
        as_one_chunk(*inputs, initial), recurrence(*inputs, initial=initial), strict=True
    ):
        assert relative(found, expected) < 1e-13


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "tokens, key_heads, heads, key, value",
    [
        (1, 1, 1, 128, 128), (2, 1, 3, 64, 17), (17, 1, 4, 60, 100), (2, 2, 2, 256, 256), (255, 1, 1, 100, 20),
        (63, 1, 1, 64, 40), (64, 1, 2, 128, 32), (65, 2, 2, 128, 17), (257, 1, 1, 96, 8), (66, 1, 2, 256, 33),
    ],
)  # fmt: skip
def test_outputs_and_states(target, dtype, tokens, key_heads, heads, key, value):
    inputs = problem(1, tokens, key_heads, heads, key, value, dtype)
    initial = random(1, heads, key, value, seed=9)
    expected = exact(*inputs, initial=initial.double())
    with hipkittens.simulate(target, checks="all") as run:
        found = kimi_delta_attention(*inputs, initial_state=initial, l2norm=True, return_state=True)
    assert run.findings == []
    assert found[0].dtype == dtype and found[1].dtype == F32
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, in_chunks(dtype, tokens))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_of_many_states(target, dtype):
    """So many states that a workgroup processes 32 columns of one."""
    inputs = problem(1, 70, 80, 160, 56, 40, dtype)
    initial = random(1, 160, 56, 40, seed=9)
    expected = exact(*inputs, initial=initial.double())
    with hipkittens.simulate(target, checks="all") as run:
        found = kimi_delta_attention(*inputs, initial_state=initial, l2norm=True, return_state=True)
    assert run.findings == []
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, in_chunks(dtype, 70))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("gate", [0.0, -1e-3, -1.0, -5.0, -50.0, -1000.0, -math.inf])
@pytest.mark.parametrize("tokens", [5, 33, 150])
@pytest.mark.parametrize("every", [1, 2])
def test_equal_keys_and_any_decay(target, gate, tokens, every):
    """Keys that repeat with beta 1 give a system of ones, in which a decay that overflows or is NaN would spread everywhere. The remaining
    state is small compared with its former contents: PyTorch's chunks in bfloat16 are 1e-2 off."""
    q, k, v, g, _ = problem(1, tokens, 1, 2, 64, 32, BF16, gate)
    k, beta = k[:, :1].expand_as(k), torch.ones(1, tokens, 2)
    # Half of the channels keep everything, or all of them decay.
    if every == 2:
        g[..., ::2] = 0
    with hipkittens.simulate(target, checks="all") as run:
        found = kimi_delta_attention(q, k, v, g, beta, l2norm=True, return_state=True)
    assert run.findings == []
    for ours, theirs in zip(found, exact(q, k, v, g, beta), strict=True):
        assert_close(ours, theirs, 5 * in_chunks(BF16, tokens))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("at", range(0, 40, 3))
def test_a_decay_of_one_row(target, at):
    """Each row's decay applies between the rows before it and those from it on, within blocks and from block to block."""
    q, k, v, g, beta = problem(1, 70, 1, 1, 64, 16, F32, 0.0)
    g[:, at::23, :, 1::2] = -3.0
    with hipkittens.simulate(target):
        found = kimi_delta_attention(q, k, v, g, beta, l2norm=True, return_state=True)
    for ours, theirs in zip(found, exact(q, k, v, g, beta), strict=True):
        assert_close(ours, theirs)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_equal_channels_of_chunks_are_a_head(target, dtype):
    q, k, v, _, beta = problem(2, 150, 1, 2, 100, 40, dtype)
    g = -random(2, 150, 2, seed=6).abs()
    with hipkittens.simulate(target):
        out, state = kimi_delta_attention(
            q, k, v, g[..., None].expand(2, 150, 2, 100), beta, l2norm=True, return_state=True
        )
        expected = gated_delta_rule(q, k, v, g, beta, l2norm=True, return_state=True)
    assert relative(out, expected[0].double()) <= {BF16: 4e-3, F16: 5e-4, F32: 2e-6}[dtype]
    assert relative(state, expected[1].double()) <= 2e-5


@pytest.mark.parametrize("target", TARGETS)
def test_errors_are_within_those_of_pytorch(target):
    """Compared with chunks in PyTorch's products of the same dtype: outputs and states."""
    inputs = problem(1, 200, 1, 2, 128, 64, BF16)
    expected = exact(*inputs)
    theirs = in_torch(*inputs, 128**-0.5, None, True, operand=BF16)
    with hipkittens.simulate(target):
        ours = kimi_delta_attention(*inputs, l2norm=True, return_state=True)
    for mine, other, reference in zip(ours, theirs, expected, strict=True):
        assert relative(mine, reference) <= relative(other, reference)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("gate", [-1.0, -0.3, -0.1, -1e-2, -1e-3])
@pytest.mark.parametrize("tokens", [17, 63, 250])
@pytest.mark.parametrize("of_channels", [True, False])
def test_a_decayed_state(target, gate, tokens, of_channels):
    """Rates of 0 leave only the state and its decays: as in PyTorch, e to the power of a sum that is rounded once in each chunk."""
    q, k, v, g, _ = problem(1, tokens, 1, 2, 64, 32, F16, gate)
    initial, beta = random(1, 2, 64, 32, seed=9), torch.zeros(1, tokens, 2)
    rule = kimi_delta_attention if of_channels else gated_delta_rule
    g = g if of_channels else g[..., 0]
    with hipkittens.simulate(target):
        _, ours = rule(q, k, v, g, beta, initial_state=initial, l2norm=True, return_state=True)
    _, theirs = in_torch(q, k, v, g, beta, 64**-0.5, initial, True, operand=F16)
    _, reference = exact(q, k, v, g, beta, initial=initial.double())
    # An exponential here is accurate to two steps of a float32.
    chunks = -(-tokens // 64)
    assert relative(ours, reference) <= relative(theirs, reference) + 2 * chunks * 2.0**-24


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [17, 20, 63, 64])
@pytest.mark.parametrize("of_channels", [True, False])
def test_float32_sums_with_strong_decays(target, tokens, of_channels):
    """A chunk's last tokens are the larger terms of a state's sums, at any position within a matrix product. Over 30 draws together."""
    rule = kimi_delta_attention if of_channels else gated_delta_rule
    errors = torch.zeros(2, dtype=torch.float64)
    for draw in range(30):
        q, k, v, g, beta = problem(1, tokens, 1, 2, 64, 32, F32, -1.0, seed=10 * draw)
        g = g if of_channels else g[..., 0]
        with hipkittens.simulate(target):
            _, ours = rule(q, k, v, g, beta, l2norm=True, return_state=True)
        _, theirs = in_torch(q, k, v, g, beta, 64**-0.5, None, True)
        _, reference = exact(q, k, v, g, beta)
        errors += torch.stack([(found.double() - reference).square().sum() for found in (ours, theirs)])
    assert (errors[0] / errors[1]).sqrt() <= 2.0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("dtype, key", [(BF16, 128), (F16, 256), (F32, 60)], ids=str)
def test_equal_channels_are_a_head(target, layout, dtype, key):
    """Decays of 1 give the same bits; others agree up to the roundings of their products."""
    q, k, v, _, beta = problem(2, 2, 1, 2, key, 36, dtype)
    shape = (2, 2, key, 36) if layout == "kv" else (2, 2, 36, key)
    options = {"l2norm": True, "state_layout": layout}
    for g in (torch.zeros(2, 2, 2), -random(2, 2, 2, seed=6).abs()):
        ours, theirs = (random(*shape, seed=7) for _ in range(2))
        with hipkittens.simulate(target):
            out = kimi_delta_step(q, k, v, g[..., None].expand(2, 2, 2, key), beta, ours, **options)
            expected = gated_delta_step(q, k, v, g, beta, theirs, **options)
        if not g.any():
            assert torch.equal(out, expected) and torch.equal(ours, theirs)
        assert relative(out, expected.double()) <= {BF16: 4e-3, F16: 5e-4, F32: 1e-6}[dtype]
        assert relative(ours, theirs.double()) <= 1e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ends", [[0, 5, 5, 6, 13], [0, 20, 20, 85, 213]], ids=["steps", "chunks"])
def test_packed_sequences_are_those_of_separate_calls(target, dtype, ends):
    """Bitwise equal outputs and states; empty ones keep their state, and tokens past the last one give zeros."""
    inputs = problem(1, ends[-1] + 3, 1, 2, 64, 24, dtype)
    initial = random(4, 2, 64, 24, seed=9)
    with hipkittens.simulate(target, checks="all") as run:
        out, state = kimi_delta_attention(
            *inputs, initial_state=initial, cu_seqlens=torch.tensor(ends), return_state=True, l2norm=True
        )
        for n, (first, past) in enumerate(itertools.pairwise(ends)):
            own = [each[:, first:past] for each in inputs]
            alone = kimi_delta_attention(
                *own, initial_state=initial[n : n + 1], return_state=True, l2norm=True
            )
            assert torch.equal(out[:, first:past], alone[0]) and torch.equal(state[n], alone[1][0])
    assert run.findings == []
    assert torch.equal(state[1], initial[1]) and not out[:, ends[-1] :].any()


@pytest.mark.parametrize("target", TARGETS)
def test_pieces_and_steps_are_the_whole(target):
    """Bitwise equal: they are the same operations in the same order."""
    inputs = problem(2, 16, 1, 2, 64, 32, BF16)
    with hipkittens.simulate(target):
        out, final = kimi_delta_attention(*inputs, l2norm=True, return_state=True)
        state, pool, pieces, steps = None, torch.zeros(2, 2, 64, 32), [], []
        for first in range(0, 16, 6):
            own = [each[:, first : first + 6] for each in inputs]
            piece, state = kimi_delta_attention(*own, initial_state=state, l2norm=True, return_state=True)
            pieces.append(piece)
        for t in range(16):
            steps.append(kimi_delta_step(*(each[:, t : t + 1] for each in inputs), pool, l2norm=True))
    for found, after in ((torch.cat(pieces, 1), state), (torch.cat(steps, 1), pool)):
        assert torch.equal(found, out) and torch.equal(after, final)


@pytest.mark.parametrize("target", TARGETS)
def test_one_call_sixteen_chunks_and_a_thousand_steps(target):
    inputs = problem(1, 1024, 1, 1, 64, 32, BF16)
    expected, final = exact(*inputs)
    with hipkittens.simulate(target):
        whole = kimi_delta_attention(*inputs, l2norm=True, return_state=True)
        pieces, state, pool = [], None, torch.zeros(1, 1, 64, 32)
        for first in range(0, 1024, 64):
            own = [each[:, first : first + 64] for each in inputs]
            piece, state = kimi_delta_attention(*own, initial_state=state, l2norm=True, return_state=True)
            pieces.append(piece)
        steps = [
            kimi_delta_step(*(each[:, t : t + 1] for each in inputs), pool, l2norm=True) for t in range(1024)
        ]
    assert torch.equal(torch.cat(pieces, 1), whole[0]) and torch.equal(state, whole[1])
    for out, after in (whole, (torch.cat(steps, 1), pool)):
        assert_close(out, expected)
        assert relative(after, final) <= 2e-5


def test_two_runs_give_the_same_bytes():
    inputs = problem(2, 130, 2, 4, 64, 32, BF16)
    first, second = (kimi_delta_attention(*inputs, return_state=True, l2norm=True) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [3, 70])
@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_strides_and_layouts_of_states(target, tokens, dtype):
    """Slices of one projection, heads before tokens, decays that are not contiguous; states with the value dimension first."""
    inputs = problem(2, tokens, 2, 2, 64, 24, BF16)
    inputs = *inputs[:3], inputs[3].to(dtype), inputs[4].to(dtype)
    q, k, v, g, beta = inputs
    projection = torch.full((2, tokens, 2, 64 + 64 + 24 + 9), NAN, dtype=BF16)
    projection[..., 1:65], projection[..., 66:130], projection[..., 131:155] = q, k, v
    slices = projection[..., 1:65], projection[..., 66:130], projection[..., 131:155]
    turned = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v)]
    state = random(2, 2, 64, 24, seed=7)
    with hipkittens.simulate(target, checks="all") as run:
        expected = kimi_delta_attention(*inputs, initial_state=state, return_state=True)
        odd = torch.full((2, tokens, 2, 67), NAN, dtype=dtype)
        odd[..., 1:65] = g
        out, after = kimi_delta_attention(
            q, k, v, odd[..., 1:65], beta, initial_state=state, return_state=True
        )
        assert torch.equal(out, expected[0]) and torch.equal(after, expected[1])
        for given in (slices, turned):
            out, after = kimi_delta_attention(
                *given, g.transpose(1, 3).contiguous().transpose(1, 3), beta.mT.contiguous().mT,
                initial_state=state.mT, state_layout="vk", return_state=True,
            )  # fmt: skip
            assert torch.equal(out, expected[0]) and torch.equal(after.mT, expected[1])
    assert run.findings == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bound", [None, -5.0])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tokens", [12, 70])
def test_gates_in_the_kernel(target, bound, dtype, tokens):
    """A_log per head, dt_bias per channel, logits of beta; x of q's dtype."""
    q, k, v, _, _ = problem(1, tokens, 1, 2, 60, 16, dtype)
    x, b = 4 * random(1, tokens, 2, 60, dtype=dtype, seed=5), random(1, tokens, 2, dtype=dtype, seed=6)
    gate = {"A_log": 2 * random(2, seed=7), "dt_bias": random(2, 60, seed=8)}
    with hipkittens.simulate(target, checks="all") as run:
        found = kimi_delta_attention(
            q, k, v, x, b, **gate, lower_bound=bound, beta_logits=True, l2norm=True, return_state=True
        )
    assert run.findings == []
    a_log, bias = gate["A_log"].double()[:, None], gate["dt_bias"].double()
    if bound is None:
        g = -a_log.exp() * F.softplus(x.double() + bias, threshold=50)
    else:
        g = bound * torch.sigmoid(a_log.exp() * (x.double() + bias))
    expected = recurrence(*(each.double() for each in (q, k, v)), g, b.double().sigmoid())
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, in_chunks(dtype, tokens))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize("dtype, key", [(BF16, 128), (F16, 256), (F32, 60)], ids=str)
def test_step_with_slots(target, layout, dtype, key):
    """Slots in any order, one that does not exist, gates in the kernel, the rest of the pool untouched."""
    q, k, v, x, b = problem(3, 1, 2, 4, key, 36, dtype, gate=0.5)
    a_log, dt_bias = random(4, seed=7), random(4, key, seed=8)
    pool = random(6, 4, key, 36, seed=9)
    stored = pool.clone() if layout == "kv" else pool.mT.contiguous()
    slots = torch.tensor([5, -1, 2])
    g, beta = gates(x.double(), b.double(), a_log.double(), dt_bias.double(), True, 2.0)
    expected, after = recurrence(*(each.double() for each in (q, k, v)), g, beta, pool[[5, 0, 2]].double())
    with hipkittens.simulate(target, checks="all") as run:
        out = kimi_delta_step(
            q, k, v, x, b, stored, state_indices=slots, A_log=a_log, dt_bias=dt_bias, beta_logits=True,
            allow_neg_eigval=True, l2norm=True, state_layout=layout,
        )  # fmt: skip
    assert run.findings == []
    found = stored if layout == "kv" else stored.mT
    assert not out[1].any()
    assert_close(out[[0, 2]], expected[[0, 2]])
    assert_close(found[[5, 2]], after[[0, 2]])
    assert torch.equal(found[[0, 1, 3, 4]], pool[[0, 1, 3, 4]])


@pytest.mark.parametrize("target", TARGETS)
def test_speculative_decoding(target):
    """The state after each token in its own slot, from which the next call continues after the accepted tokens."""
    first, second = (problem(2, 3, 1, 2, 64, 16, BF16, seed=seed) for seed in (1, 20))
    pool = torch.full((8, 2, 64, 16), NAN)
    pool[[0, 4]] = initial = random(2, 2, 64, 16, seed=9)
    slots, accepted = torch.tensor([[0, 1, 2], [4, 5, 6]]), torch.tensor([2, 3])
    with hipkittens.simulate(target, checks="all") as run:
        kimi_delta_step(*first, pool, state_indices=slots)
        for n in range(2):
            row = initial[n : n + 1]
            for t in range(3):
                kimi_delta_step(*(each[n : n + 1, t : t + 1] for each in first), row)
                assert torch.equal(pool[slots[n, t]], row[0])
        before = pool[[1, 6]].clone()
        out = kimi_delta_step(*second, pool, state_indices=slots, accepted=accepted)
        assert torch.equal(out, kimi_delta_step(*second, before))
        assert torch.equal(pool[[2, 6]], before)
    assert run.findings == []


def test_empty_tensors():
    inputs, state = problem(2, 0, 1, 2, 64, 16, BF16), random(2, 2, 64, 16)
    out, after = kimi_delta_attention(*inputs, initial_state=state, return_state=True)
    assert out.shape == (2, 0, 2, 16) and torch.equal(after, state)
    assert not kimi_delta_attention(*inputs, return_state=True)[1].any()
    assert kimi_delta_attention(*problem(0, 20, 1, 2, 64, 16, BF16)).shape == (0, 20, 2, 16)
    before = state.clone()
    assert kimi_delta_step(*inputs, state).shape == (2, 0, 2, 16) and torch.equal(state, before)


def test_torch_backend(monkeypatch):
    inputs = problem(2, 20, 1, 2, 64, 16, F32)
    gate = {"A_log": random(2, seed=7), "dt_bias": random(2, 64, seed=8), "lower_bound": -4.0, "l2norm": True}
    pool, other = (random(3, 2, 64, 16, seed=9) for _ in range(2))
    few = [each[:, :2] for each in inputs]
    slots = torch.tensor([[1, 2], [0, 5]])
    ours = kimi_delta_attention(*inputs, **gate, return_state=True)
    out = kimi_delta_step(*few, pool, state_indices=slots, **gate)
    monkeypatch.setattr("hipkittens._backend._State.backend", "torch")
    theirs = kimi_delta_attention(*inputs, **gate, return_state=True)
    assert torch.allclose(out, kimi_delta_step(*few, other, state_indices=slots, **gate), atol=1e-5)
    for mine, reference in (*zip(ours, theirs, strict=True), (pool, other)):
        assert torch.allclose(mine, reference, atol=1e-5)


def test_opcheck_and_compile(compile_backend):
    inputs, state = problem(1, 4, 1, 2, 64, 16, BF16), random(1, 2, 64, 16)
    a_log, dt_bias = random(2, seed=7), random(2, 64, seed=8)
    rest = (0.125, True, False, -5.0)
    torch.library.opcheck(
        torch.ops.hipkittens.kimi_delta_attention, (*inputs, a_log, dt_bias, state, None, *rest)
    )
    torch.library.opcheck(
        torch.ops.hipkittens.kimi_delta_attention, (*inputs, None, None, None, None, *rest[:3], 0.0)
    )
    pool = random(2, 2, 64, 16)
    torch.library.opcheck(
        torch.ops.hipkittens.kimi_delta_step,
        (*inputs, None, None, pool, None, None, None, 0.125, 1.0, True, False, False, 0.0),
    )

    def layer(*tensors):
        return kimi_delta_attention(*tensors, l2norm=True)

    assert torch.equal(torch.compile(layer, fullgraph=True, backend=compile_backend)(*inputs), layer(*inputs))


def test_names_of_fla():
    q, k, v, x, b = problem(1, 6, 1, 2, 64, 16, BF16, gate=0.5)
    g, beta, initial = -x, b.sigmoid(), random(1, 2, 64, 16, seed=9)
    expected = kimi_delta_attention(
        q, k, v, g, beta, scale=0.5, initial_state=initial, l2norm=True, return_state=True
    )
    found = fla.chunk_kda(q, k, v, g, beta, 0.5, initial, True, True)
    recurrent = fla.fused_recurrent_kda(q, k, v, g, beta, None, None, 0.5, initial, True, True)
    for one in (found, recurrent):
        assert torch.equal(one[0], expected[0]) and torch.equal(one[1], expected[1])
    first = fla.chunk_kda(q, k, v, g, beta, 0.5, initial.mT, True, True, state_v_first=True)
    assert torch.equal(first[0], expected[0]) and torch.equal(first[1].mT, expected[1])
    assert fla.chunk_kda(q, k, v, g, beta)[1] is None
    a_log, dt_bias = random(2, seed=7), random(2 * 64, seed=8)
    gate = {"A_log": a_log, "dt_bias": dt_bias.view(2, 64), "lower_bound": -5.0, "l2norm": True}
    gated = kimi_delta_attention(q, k, v, x, 2 * b.float().sigmoid(), **gate)
    options = {
        "use_qk_l2norm_in_kernel": True, "use_gate_in_kernel": True, "use_beta_sigmoid_in_kernel": True,
        "allow_neg_eigval": True, "lower_bound": -5.0, "dt_bias": dt_bias,
    }  # fmt: skip
    for function in (fla.chunk_kda, fla.fused_recurrent_kda):
        assert torch.equal(function(q, k, v, x, b, A_log=a_log.view(1, 1, 2, 1), **options)[0], gated)
    safe = fla.chunk_kda(q, k, v, x, b, A_log=a_log, safe_gate=True, chunk_size=32, **options)[0]
    assert torch.equal(safe, gated)
    without = fla.fused_recurrent_kda(q, k, v, x, b, **options)[0]
    gate["A_log"] = torch.zeros(2)
    assert torch.equal(without, kimi_delta_attention(q, k, v, x, 2 * b.float().sigmoid(), **gate))
    no_bias = fla.chunk_kda(q, k, v, x, beta, use_gate_in_kernel=True, A_log=a_log)[0]
    zeros = torch.zeros(2, 64)
    assert torch.equal(no_bias, kimi_delta_attention(q, k, v, x, beta, A_log=a_log, dt_bias=zeros))


Q, K, V, G, BETA = problem(1, 2, 2, 4, 64, 16, BF16)
POOL, HEADS, BIAS = torch.zeros(2, 4, 64, 16), torch.zeros(4), torch.zeros(4, 64)
WRONG = [
    (lambda: kimi_delta_attention(Q, K, V, BETA, BETA), ValueError, "kimi_delta_attention: g has shape (1, 2, 4); it needs (1, 2, 4, 64), (batch, tokens, heads of v, elements of k)"),
    (lambda: kimi_delta_attention(Q, K, V, G[..., :8], BETA), ValueError, "g has shape (1, 2, 4, 8); it needs (1, 2, 4, 64)"),
    (lambda: kimi_delta_attention(Q, K, V, G.double(), BETA), TypeError, "g is torch.float64; allowed"),
    (lambda: kimi_delta_attention(Q, K, V, G, G), ValueError, "beta has shape (1, 2, 4, 64); it needs (1, 2, 4), (batch, tokens, heads of v)"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, A_log=HEADS), ValueError, "A_log is given without dt_bias"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, A_log=HEADS, dt_bias=HEADS), ValueError, "dt_bias has shape (4,); it needs (4, 64), (heads of v, elements of k)"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, lower_bound=-5.0), ValueError, "lower_bound is given without A_log and dt_bias"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, A_log=HEADS, dt_bias=BIAS, lower_bound=5), ValueError, "lower_bound is 5.0; it must be below 0 and finite"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, A_log=HEADS, dt_bias=BIAS, lower_bound="low"), TypeError, "lower_bound is 'low'; it must be a number"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, initial_state=POOL), ValueError, "initial_state has shape (2, 4, 64, 16); it needs (1, 4, 64, 16)"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, state_layout="v"), ValueError, "state_layout is 'v'; allowed: 'kv', 'vk'"),
    (lambda: kimi_delta_attention(*problem(1, 2, 1, 1, 264, 16, F32)), ValueError, "q and k have 264 elements; kernels have 1 to 256"),
    (lambda: kimi_delta_attention(Q, K, V, G.clone().requires_grad_(), BETA), ValueError, "kimi_delta_attention: g requires a gradient and gets none; pass g.detach()"),
    (lambda: kimi_delta_attention(Q, K, V, G, BETA, initial_state=POOL[:1].clone().requires_grad_()), ValueError, "initial_state requires a gradient and gets none"),
    (lambda: kimi_delta_step(Q, K, V, G, BETA, POOL.bfloat16()), TypeError, "kimi_delta_step: state is torch.bfloat16; allowed: torch.float32"),
    (lambda: kimi_delta_step(Q, K, V, G, BETA, POOL.mT), ValueError, "state has shape (2, 4, 16, 64); it needs (slots, 4, 64, 16)"),
    (lambda: kimi_delta_step(Q, K, V, G, BETA, POOL[:0]), ValueError, "there are 1 sequences and 0 slots of state"),
    (lambda: kimi_delta_step(Q, K, V, G, BETA, POOL, accepted=torch.tensor([1])), ValueError, "accepted is given without slots of each token"),
    (lambda: kimi_delta_step(Q, K, V, G, BETA, POOL.clone().requires_grad_()), ValueError, "state requires a gradient and gets none"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, cp_context=1), NotImplementedError, "fla.chunk_kda: cp_context is given"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, return_intermediate_states=True), NotImplementedError, "return_intermediate_states is True"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, chunk_size=16), ValueError, "chunk_size is 16; allowed: 32, 64"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, safe_gate=True, use_gate_in_kernel=True, A_log=HEADS), ValueError, "safe_gate is True and lower_bound None"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, max_num_seqs=3), ValueError, "max_num_seqs is 3; cu_seqlens needs 4 elements"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, lower_bound=-5.0), ValueError, "lower_bound is given and use_gate_in_kernel is False"),
    (lambda: fla.chunk_kda(Q, K, V, G, BETA, use_gate_in_kernel=True), ValueError, "A_log and lower_bound are None"),
    (lambda: fla.fused_recurrent_kda(Q, K, V, G, BETA, BIAS, use_gate_in_kernel=True), ValueError, "fused_recurrent_kda: A_log has 256 elements; it needs 4"),
    (lambda: fla.fused_recurrent_kda(Q, K, V, G, BETA, allow_neg_eigval=True), ValueError, "allow_neg_eigval is True and use_beta_sigmoid_in_kernel False"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, message", WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_bad_input(call, kind, message):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)
