# SPDX-License-Identifier: MIT
"""gated_delta_rule and gated_delta_step compared with a float64 recurrence: gradients, states, packed sequences, refused arguments."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import gated_delta_rule, gated_delta_step
from hipkittens.delta_rule import in_torch
from tests.simulated_device import TARGETS

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
NAN = float("nan")


def random(*shape, dtype=torch.float32, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def problem(batch, tokens, key_heads, heads, key, value, dtype, gate=-1.0, seed=1):
    """q, k, v, g and beta, with standard normal elements."""
    q = random(batch, tokens, key_heads, key, dtype=dtype, seed=seed)
    k = random(batch, tokens, key_heads, key, dtype=dtype, seed=seed + 1)
    v = random(batch, tokens, heads, value, dtype=dtype, seed=seed + 2)
    g = gate * random(batch, tokens, heads, seed=seed + 3).sigmoid()
    return q, k, v, g, random(batch, tokens, heads, seed=seed + 4).sigmoid()


def recurrence(q, k, v, g, beta, initial=None, l2norm=True, starts=None):
    return in_torch(q, k, v, g, beta, k.shape[3] ** -0.5, initial, l2norm, starts, chunks=False)


def exact(*tensors, **options):
    return recurrence(*(each.double() for each in tensors), **options)


def relative(found, reference):
    return ((found.double() - reference).norm() / reference.norm().clamp_min(1e-30)).item()


def assert_close(found, reference, rounded_error=2.0, wide=2e-5):
    """16-bit results: at most twice the error of rounding the reference. float32 results, which come from sums of two elements and
    exponentials: a separate bound, a hundredth of what fla-core's tests allow."""
    assert found.shape == reference.shape and found.isfinite().all()
    if found.dtype == torch.float32:
        assert relative(found, reference) <= wide
        return
    rounded = reference.to(found.dtype).double()
    error, allowed = (found.double() - reference).abs(), (rounded - reference).abs()
    assert error.norm() <= rounded_error * allowed.norm()
    assert error.max() <= rounded_error * allowed.max() + 1e-7 * reference.abs().max()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "tokens, key_heads, heads, key, value",
    [(1, 1, 1, 128, 128), (2, 1, 3, 64, 17), (17, 1, 4, 60, 100), (64, 2, 2, 128, 32), (255, 1, 1, 100, 20)],
)  # fmt: skip
def test_outputs_states_and_gradients(target, dtype, tokens, key_heads, heads, key, value):
    check_gradients(target, dtype, tokens, key_heads, heads, key, value)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("key, value", [(256, 36), (192, 20), (132, 64)])
def test_gradients_of_wide_keys(target, dtype, key, value):
    # Queries of length 1 times the scale are about 1 / K: such a float16 sum has few bits above the smallest number.
    of_initial = 2e-5 * key / 128 if dtype == torch.float16 else 2e-5
    check_gradients(target, dtype, 70, 1, 2, key, value, of_initial)


def check_gradients(target, dtype, tokens, key_heads, heads, key, value, of_initial=2e-5):
    inputs = [each.requires_grad_() for each in problem(1, tokens, key_heads, heads, key, value, dtype)]
    initial = random(1, heads, key, value, seed=9).requires_grad_()
    exactly = [each.detach().double().requires_grad_() for each in (*inputs, initial)]
    expected = recurrence(*exactly)
    grads = random(*expected[0].shape, dtype=dtype, seed=10), random(*expected[1].shape, seed=11)
    reference = torch.autograd.grad(expected, exactly, [each.double() for each in grads])
    with hipkittens.simulate(target, checks="all") as run:
        out, state = gated_delta_rule(*inputs, initial_state=initial, l2norm=True, return_state=True)
        found = torch.autograd.grad((out, state), (*inputs, initial), grads)
    assert run.findings == []
    assert_close(out, expected[0].detach())
    assert_close(state, expected[1].detach())
    for name, ours, theirs in zip(("q", "k", "v", "g", "beta", "initial"), found, reference, strict=True):
        assert ours.isfinite().all(), name
        assert_close(ours, theirs, wide=of_initial if name == "initial" else 2e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("gate", [0.0, -1e-3, -50.0])
@pytest.mark.parametrize("tokens", [5, 150])
def test_equal_keys_and_any_decay(target, gate, tokens):
    """Keys that repeat with beta 1 give a system of ones; decays of e^-50 a step give sums of -7500."""
    q, k, v, _, _ = problem(1, tokens, 1, 2, 64, 32, torch.bfloat16)
    k = k[:, :1].expand_as(k)
    g, beta = torch.full((1, tokens, 2), gate), torch.ones(1, tokens, 2)
    inputs = [each.clone().requires_grad_() for each in (q, k, v, g, beta)]
    wide = [each.detach().double().requires_grad_() for each in inputs]
    expected = recurrence(*wide)[0]
    grad = random(*expected.shape, dtype=torch.bfloat16, seed=8)
    reference = torch.autograd.grad(expected, wide, grad.double())
    with hipkittens.simulate(target, checks="all") as run:
        out = gated_delta_rule(*inputs, l2norm=True)
        found = torch.autograd.grad(out, inputs, grad)
    assert run.findings == []
    assert_close(out, expected.detach())
    for ours, theirs in zip(found[:3], reference[:3], strict=True):
        assert ours.isfinite().all()
        assert relative(ours, theirs) <= 4e-3
    for ours, theirs in zip(found[3:], reference[3:], strict=True):
        # Sums of terms that cancel: relative to the largest gradient of all gates.
        assert (ours.double() - theirs).abs().max() <= 3e-4 * max(each.abs().max() for each in reference[3:])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_sequences_are_those_of_separate_calls(target, dtype):
    """Bitwise equal outputs, states and gradients; empty ones keep their state. Where each sequence has its own chunks."""
    ends = [0, 20, 20, 85, 213]
    inputs = [each.requires_grad_() for each in problem(1, ends[-1], 1, 2, 64, 24, dtype)]
    initial = random(4, 2, 64, 24, seed=9).requires_grad_()
    grad = random(1, ends[-1], 2, 24, dtype=dtype, seed=10)
    with hipkittens.simulate(target, checks="all"):
        starts = torch.tensor(ends)
        out, state = gated_delta_rule(
            *inputs, initial_state=initial, cu_seqlens=starts, return_state=True, l2norm=True
        )
        found = torch.autograd.grad((out, state), (*inputs, initial), (grad, torch.ones_like(state)))
        for n, (first, past) in enumerate(itertools.pairwise(ends)):
            own = [each.detach()[:, first:past].requires_grad_() for each in inputs]
            before = initial.detach()[n : n + 1].requires_grad_()
            alone = gated_delta_rule(*own, initial_state=before, return_state=True, l2norm=True)
            if first == past:
                assert torch.equal(state[n], initial[n]) and torch.equal(alone[1], before)
                continue
            assert torch.equal(out[:, first:past], alone[0]) and torch.equal(state[n], alone[1][0])
            gradients = torch.autograd.grad(
                alone, (*own, before), (grad[:, first:past], torch.ones_like(alone[1]))
            )
            for whole, piece in zip(found[:5], gradients[:5], strict=True):
                assert torch.equal(whole[:, first:past], piece)
            assert torch.equal(found[5][n], gradients[5][0])


@pytest.mark.parametrize("target", TARGETS)
def test_one_call_sixteen_chunks_and_a_thousand_steps(target):
    inputs = problem(1, 1024, 1, 1, 64, 32, torch.bfloat16, gate=-0.1)
    expected, final = exact(*inputs)
    with hipkittens.simulate(target):
        whole = gated_delta_rule(*inputs, l2norm=True, return_state=True)
        pieces, state, pool = [], None, torch.zeros(1, 1, 64, 32)
        for first in range(0, 1024, 64):
            out, state = gated_delta_rule(
                *(each[:, first : first + 64] for each in inputs),
                initial_state=state, l2norm=True, return_state=True,
            )  # fmt: skip
            pieces.append(out)
        steps = [
            gated_delta_step(*(each[:, t : t + 1] for each in inputs), pool, l2norm=True) for t in range(1024)
        ]
    for out, after in (whole, (torch.cat(pieces, 1), state), (torch.cat(steps, 1), pool)):
        assert_close(out, expected)
        assert relative(after, final) <= 1e-4


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [12, 70])
def test_tokens_behind_the_last_sequence_give_zeros(target, tokens):
    inputs = [each.requires_grad_() for each in problem(1, tokens, 1, 2, 64, 16, torch.bfloat16)]
    starts = torch.tensor([0, 3, tokens - 5])
    with hipkittens.simulate(target, checks="all") as run:
        out = gated_delta_rule(*inputs, l2norm=True, cu_seqlens=starts)
        found = torch.autograd.grad(out.float().square().sum(), inputs)
    assert run.findings == []
    for each in (out, *found):
        assert each.isfinite().all() and each[:, :-5].any() and not each[:, -5:].any()


def test_two_runs_give_the_same_bytes():
    inputs = [each.requires_grad_() for each in problem(2, 130, 2, 4, 64, 32, torch.bfloat16)]
    results = []
    for _ in range(2):
        out = gated_delta_rule(*inputs, l2norm=True)
        results.append([out, *torch.autograd.grad(out.float().square().sum(), inputs)])
    for first, second in zip(*results, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [3, 70])
def test_strides_batches_and_layouts_of_states(target, tokens):
    """Slices of one projection, heads before tokens, odd offsets; states with the value dimension first."""
    inputs = problem(2, tokens, 2, 2, 64, 24, torch.bfloat16)
    q, k, v, g, beta = inputs
    projection = torch.full((2, tokens, 2, 64 + 64 + 24 + 9), NAN, dtype=torch.bfloat16)
    projection[..., 1:65], projection[..., 66:130], projection[..., 131:155] = q, k, v
    slices = projection[..., 1:65], projection[..., 66:130], projection[..., 131:155]
    turned = [each.transpose(1, 2).contiguous().transpose(1, 2) for each in (q, k, v)]
    state = random(2, 2, 64, 24, seed=7)
    with hipkittens.simulate(target, checks="all") as run:
        expected = gated_delta_rule(*inputs, initial_state=state, return_state=True)
        for given in (slices, turned, (q[..., :].as_strided(q.shape, q.stride()), k, v)):
            out, after = gated_delta_rule(
                *given, g.transpose(1, 2).contiguous().transpose(1, 2), beta[:, :, :],
                initial_state=state.transpose(-1, -2), state_layout="vk", return_state=True,
            )  # fmt: skip
            assert torch.equal(out, expected[0]) and torch.equal(after.transpose(-1, -2), expected[1])
    assert run.findings == []


def test_gates_of_qwen3_next():
    """A_log, dt_bias and logits of beta, with their gradients."""
    a, b = random(1, 40, 2, seed=5), random(1, 40, 2, seed=6)
    q, k, v, _, _ = problem(1, 40, 1, 2, 64, 16, torch.bfloat16)
    a_log, dt_bias = random(2, seed=7).requires_grad_(), random(2, seed=8).requires_grad_()
    found = gated_delta_rule(q, k, v, a, b, A_log=a_log, dt_bias=dt_bias, beta_logits=True, l2norm=True)
    g = -a_log.exp() * F.softplus(a + dt_bias)
    expected = gated_delta_rule(q, k, v, g, b.sigmoid(), l2norm=True)
    assert torch.equal(found, expected)
    grad = random(*found.shape, dtype=torch.bfloat16, seed=9)
    ours = torch.autograd.grad(found, (a_log, dt_bias), grad)
    for mine, theirs in zip(ours, torch.autograd.grad(expected, (a_log, dt_bias), grad), strict=True):
        assert torch.equal(mine, theirs) and mine.abs().sum() > 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["kv", "vk"])
@pytest.mark.parametrize(
    "dtype, state_dtype, key",
    [(torch.bfloat16, torch.float32, 128), (torch.bfloat16, torch.bfloat16, 64),
     (torch.float16, torch.float32, 256), (torch.float32, torch.float32, 60)],
    ids=str,
)  # fmt: skip
def test_step_with_slots(target, layout, dtype, state_dtype, key):
    """Slots in any order, one that does not exist, gates in the kernel, the rest of the pool untouched."""
    q, k, v, a, b = problem(3, 1, 2, 4, key, 36, dtype)
    a_log, dt_bias = random(4, seed=7), random(4, seed=8)
    pool = random(6, 4, key, 36, dtype=state_dtype, seed=9)
    stored = pool.clone() if layout == "kv" else pool.transpose(-1, -2).contiguous()
    slots = torch.tensor([5, -1, 2])
    g, beta = -a_log.double().exp() * F.softplus(a.double() + dt_bias.double()), 2 * b.double().sigmoid()
    expected, after = recurrence(*(each.double() for each in (q, k, v)), g, beta, pool[[5, 0, 2]].double())
    with hipkittens.simulate(target, checks="all") as run:
        out = gated_delta_step(
            q, k, v, a, b, stored, state_indices=slots, A_log=a_log, dt_bias=dt_bias, beta_logits=True,
            allow_neg_eigval=True, l2norm=True, state_layout=layout,
        )  # fmt: skip
    assert run.findings == []
    found = stored if layout == "kv" else stored.transpose(-1, -2)
    assert not out[1].any()
    assert_close(out[[0, 2]], expected[[0, 2]], wide=1e-6)
    assert_close(found[[5, 2]], after[[0, 2]], wide=1e-6)
    assert torch.equal(found[[0, 1, 3, 4]], pool[[0, 1, 3, 4]])


@pytest.mark.parametrize("target", TARGETS)
def test_speculative_decoding(target):
    """The state after each token in its own slot, from which the next call continues after the accepted tokens."""
    first, second = (problem(2, 3, 1, 2, 64, 16, torch.bfloat16, seed=seed) for seed in (1, 20))
    pool = torch.full((8, 2, 64, 16), NAN)
    pool[[0, 4]] = initial = random(2, 2, 64, 16, seed=9)
    slots, accepted = torch.tensor([[0, 1, 2], [4, 5, 6]]), torch.tensor([2, 3])
    with hipkittens.simulate(target, checks="all") as run:
        gated_delta_step(*first, pool, state_indices=slots)
        rows = [initial[n : n + 1] for n in range(2)]
        for n in range(2):
            for t in range(3):
                own = (each[n : n + 1, t : t + 1] for each in first)
                gated_delta_step(*own, rows[n])
                assert torch.equal(pool[slots[n, t]], rows[n][0])
        before = pool[[1, 6]].clone()
        out = gated_delta_step(*second, pool, state_indices=slots, accepted=accepted)
        assert torch.equal(out, gated_delta_step(*second, before))
        assert torch.equal(pool[[2, 6]], before)
    assert run.findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_packed_steps_and_empty_sequences(target):
    inputs = problem(1, 4, 1, 2, 64, 16, torch.bfloat16)
    pool = random(3, 2, 64, 16, seed=9)
    before = pool.clone()
    with hipkittens.simulate(target, checks="all") as run:
        out = gated_delta_step(*inputs, pool, cu_seqlens=torch.tensor([0, 3, 3, 4]))
        alone = [before[n : n + 1].clone() for n in (0, 2)]
        pieces = [
            gated_delta_step(*(each[:, first:past] for each in inputs), state)
            for (first, past), state in zip(((0, 3), (3, 4)), alone, strict=True)
        ]
    assert run.findings == []
    assert torch.equal(out, torch.cat(pieces, 1)) and torch.equal(pool[[0, 2]], torch.cat(alone))
    assert torch.equal(pool[1], before[1])


def test_empty_tensors():
    q, k, v, g, beta = problem(2, 0, 1, 2, 64, 16, torch.bfloat16)
    state = random(2, 2, 64, 16)
    out, after = gated_delta_rule(q, k, v, g, beta, initial_state=state, return_state=True)
    assert out.shape == (2, 0, 2, 16) and torch.equal(after, state)
    assert not gated_delta_rule(q, k, v, g, beta, return_state=True)[1].any()
    none = problem(0, 20, 1, 2, 64, 16, torch.bfloat16)
    assert gated_delta_rule(*none).shape == (0, 20, 2, 16)
    before = state.clone()
    assert gated_delta_step(q, k, v, g, beta, state).shape == (2, 0, 2, 16) and torch.equal(state, before)


def test_chunks_are_the_recurrence():
    """PyTorch's chunked operations agree with the recurrence to float64's last bits."""
    inputs = [each.double() for each in problem(1, 150, 1, 2, 24, 16, torch.float32)]
    state, starts = random(3, 2, 24, 16, dtype=torch.float64), torch.tensor([0, 70, 70, 150])
    for found, expected in zip(
        in_torch(*inputs, 0.3, state, True, starts),
        recurrence(*inputs, initial=state, starts=starts),
        strict=True,
    ):
        assert (
            relative(found, expected * (0.3 * 24**0.5 if found.dim() == 4 and found.shape[1] == 150 else 1))
            < 1e-12
        )


def test_torch_backend(monkeypatch):
    inputs = problem(2, 20, 1, 2, 64, 16, torch.float32)
    pool, other = (random(3, 2, 64, 16, seed=9) for _ in range(2))
    slots = torch.tensor([[1, 2], [0, 5]])
    few = [each[:, :2] for each in inputs]
    ours = gated_delta_rule(*inputs, l2norm=True, return_state=True)
    out = gated_delta_step(*few, pool, state_indices=slots, l2norm=True)
    monkeypatch.setattr("hipkittens._backend._State.backend", "torch")
    theirs = gated_delta_rule(*inputs, l2norm=True, return_state=True)
    assert torch.allclose(out, gated_delta_step(*few, other, state_indices=slots, l2norm=True), atol=1e-5)
    for mine, reference in (*zip(ours, theirs, strict=True), (pool, other)):
        assert torch.allclose(mine, reference, atol=1e-5)


@pytest.mark.parametrize("rule", ["gated_delta_rule", "kimi_delta_attention"])
@pytest.mark.parametrize("ends", [[2, 9, 9, 20], [5, 5], [4]], ids=str)
def test_torch_backend_of_tokens_without_a_sequence(monkeypatch, rule, ends):
    """Before the first sequence and after the last one, and where there is none: zeros, as from the kernels, and gradients of zero."""
    inputs = list(problem(1, 24, 1, 2, 64, 16, torch.float32))
    if rule == "kimi_delta_attention":
        inputs[3] = inputs[3][..., None].expand(1, 24, 2, 64)
    inputs[2].requires_grad_(rule == "gated_delta_rule")
    options = {"cu_seqlens": torch.tensor(ends), "l2norm": True, "return_state": True}
    ours = getattr(hipkittens, rule)(*inputs, **options)
    monkeypatch.setattr("hipkittens._backend._State.backend", "torch")
    theirs = getattr(hipkittens, rule)(*inputs, **options)
    for mine, reference in zip(ours, theirs, strict=True):
        assert mine.shape == reference.shape and torch.allclose(mine, reference, atol=1e-5)
    for out in (ours[0], theirs[0]):
        assert not out[:, : ends[0]].any() and not out[:, ends[-1] :].any()
        if inputs[2].requires_grad:
            (grad,) = torch.autograd.grad(out.sum(), inputs[2])
            assert not grad[:, : ends[0]].any() and not grad[:, ends[-1] :].any()


def test_opcheck_and_compile(compile_backend):
    inputs = [each.requires_grad_() for each in problem(1, 20, 1, 2, 64, 16, torch.bfloat16)]
    state = random(1, 2, 64, 16).requires_grad_()
    torch.library.opcheck(torch.ops.hipkittens.gated_delta_rule, (*inputs, state, None, 0.125, True))
    plain = [each.detach() for each in inputs]
    pool = random(2, 2, 64, 16)
    torch.library.opcheck(
        torch.ops.hipkittens.gated_delta_step,
        (
            *(each[:, :1] for each in plain),
            None,
            None,
            pool,
            None,
            None,
            None,
            0.125,
            1.0,
            True,
            False,
            False,
        ),
    )

    def layer(*tensors):
        return gated_delta_rule(*tensors, l2norm=True).float().square().sum()

    compiled = torch.compile(layer, fullgraph=True, backend=compile_backend)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    for ours, eager in zip(found, torch.autograd.grad(layer(*inputs), inputs), strict=True):
        assert torch.equal(ours, eager)


Q, K, V, G, BETA = problem(1, 2, 2, 4, 64, 16, torch.bfloat16)
POOL = torch.zeros(2, 4, 64, 16)
WRONG = [
    (lambda: gated_delta_rule(Q.double(), K, V, G, BETA), TypeError, "gated_delta_rule: q is torch.float64; allowed"),
    (lambda: gated_delta_rule(Q, K.float(), V, G, BETA), TypeError, "k is torch.float32; allowed: torch.bfloat16"),
    (lambda: gated_delta_rule(Q[0], K, V, G, BETA), ValueError, "q has shape (2, 2, 64); it needs 4 dimensions"),
    (lambda: gated_delta_rule(Q, K[..., :8], V, G, BETA), ValueError, "k has shape (1, 2, 2, 8) and q (1, 2, 2, 64)"),
    (lambda: gated_delta_rule(Q, K, V[:, :1], G, BETA), ValueError, "v has shape (1, 1, 4, 16); it needs the batch and tokens of q"),
    (lambda: gated_delta_rule(Q, K, V[:, :, :3], G, BETA), ValueError, "v has 3 heads and q 2; allowed: a multiple"),
    (lambda: gated_delta_rule(Q, K, V, G[..., 0], BETA), ValueError, "g has shape (1, 2); it needs (1, 2, 4)"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA.int()), TypeError, "beta is torch.int32; allowed"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, A_log=POOL), ValueError, "A_log is given without dt_bias"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, A_log=G, dt_bias=G), ValueError, "A_log has shape (1, 2, 4); it needs (4,)"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, state_layout="v"), ValueError, "state_layout is 'v'; allowed: 'kv', 'vk'"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, l2norm="no"), TypeError, "l2norm is 'no'; allowed: True, False"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, initial_state=POOL), ValueError, "initial_state has shape (2, 4, 64, 16); it needs (1, 4, 64, 16)"),
    (lambda: gated_delta_rule(Q, K, V, G, BETA, cu_seqlens=torch.tensor([0.0, 2.0])), TypeError, "cu_seqlens is torch.float32; allowed"),
    (lambda: gated_delta_rule(*problem(2, 2, 1, 1, 64, 16, torch.float32), cu_seqlens=torch.tensor([0, 2])), ValueError, "q has a batch of 2; packed sequences are a batch of 1"),
    (lambda: gated_delta_rule(*problem(1, 2, 1, 1, 264, 16, torch.float32)), ValueError, "q and k have 264 elements; kernels have 1 to 256"),
    (lambda: gated_delta_rule(*(x.requires_grad_() for x in problem(1, 2, 1, 1, 192, 16, torch.float32))), NotImplementedError, "K is 192, and derivatives in torch.float32 have kernels of up to 128"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL.bfloat16()[:, :, :32]), ValueError, "state has shape (2, 4, 32, 16); it needs (slots, 4, 64, 16)"),
    (lambda: gated_delta_step(Q.float(), K.float(), V.float(), G, BETA, POOL.bfloat16()), TypeError, "state is torch.bfloat16; allowed: torch.float32"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL.transpose(2, 3).contiguous().transpose(2, 3)), ValueError, "rows need to be contiguous"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL[:0]), ValueError, "there are 1 sequences and 0 slots of state; pass state_indices"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL, state_indices=torch.tensor([0, 1])), ValueError, "state_indices has shape (2,); it needs (1,), or (1, slots)"),
    (lambda: gated_delta_step(*problem(1, 3, 1, 4, 64, 16, torch.float32), POOL, state_indices=torch.tensor([[0, 1]])), ValueError, "state_indices has 2 slots of each sequence and there are 3 tokens"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL, accepted=torch.tensor([1])), ValueError, "accepted is given without slots of each token"),
    (lambda: gated_delta_step(Q, K, V, G, BETA, POOL.clone().requires_grad_()), NotImplementedError, "gated_delta_step has no derivative"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, message", WRONG, ids=[message[:40] for _, _, message in WRONG])
def test_bad_input(call, kind, message):
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)
