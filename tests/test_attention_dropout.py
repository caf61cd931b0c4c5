# SPDX-License-Identifier: MIT
"""Dropout in attention: the mask itself, its effect on results and gradients, and its integration with PyTorch."""

import itertools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import hipkittens
from hipkittens._accuracy import BAR, compare
from tests.oracles.philox import dropped_fraction, kept_weights
from tests.test_attention_gradients import hidden, magnitudes, tensors

TARGETS = ("gfx942", "gfx950")
BF16, F16 = torch.bfloat16, torch.float16
NO_WINDOW = (-1, -1)


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def drawn(function, *arguments, seed=0, **options):
    """The function's result, and the two seeds that its attention takes from torch's generator."""
    torch.manual_seed(seed)
    philox_seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64)
    torch.manual_seed(seed)
    return function(*arguments, **options), philox_seed


def kept(seed, p, batch, heads, n_q, n_k):
    return torch.from_numpy(kept_weights(seed.tolist(), p, batch * heads, n_q, n_k)).view(
        batch, heads, n_q, n_k
    )


def mask_from_outputs(p, batch, heads, key_heads, n_q, n_k, size=64, **options):
    """The weights that attention keeps, derived from its results: zero queries weigh all keys alike, and the values of one
    key at a time are 1, each key in its own column."""
    result = torch.empty(batch, heads, n_q, n_k, dtype=torch.bool)
    q, k = (
        torch.zeros(batch, n_q, heads, size, dtype=F16),
        torch.zeros(batch, n_k, key_heads, size, dtype=F16),
    )
    for first in range(0, n_k, size):
        columns = min(size, n_k - first)
        v = torch.zeros_like(k)
        v[:, first : first + columns, :, :columns] = torch.eye(columns, dtype=F16)[None, :, None]
        out, seed = drawn(hipkittens.attention, q, k, v, dropout_p=p, **options)
        assert out[..., columns:].count_nonzero() == 0
        values = out[..., :columns].float()
        if options:
            values = values[values != 0]
        else:
            exact = 1 / (1 - dropped_fraction(p)) / n_k
            values = values[values != 0]
            torch.testing.assert_close(values, torch.full_like(values, exact), rtol=2**-10, atol=2**-24)
        result[..., first : first + columns] = out[..., :columns].transpose(1, 2) != 0
    return result, seed


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_mask(target, p):
    """Bitwise equal to the oracle's, with as many kept as the binomial distribution allows, and independent of neighboring elements."""
    batch, heads, n_q, n_k = 2, 2, 131, 193
    mask, seed = mask_from_outputs(p, batch, heads, 1, n_q, n_k)
    assert torch.equal(mask, kept(seed, p, batch, heads, n_q, n_k))
    count = mask.numel()
    assert abs(mask.double().mean().item() - (1 - p)) < 4 * (p * (1 - p) / count) ** 0.5
    centred = (mask.double() - (1 - p)) / (p * (1 - p)) ** 0.5
    for along, distance in itertools.product((0, 1, 2, 3), (1, 2, 3, 4, 5, 8, 32, 64)):
        length = mask.shape[along]
        if distance < length:
            pairs = centred.narrow(along, 0, length - distance) * centred.narrow(
                along, distance, length - distance
            )
            assert abs(pairs.mean().item()) < 5 / pairs.numel() ** 0.5, (along, distance)


def test_the_mask_does_not_depend_on_tiles_or_masks(target):
    """The same elements are kept for any head size, other rows and window."""
    expected, _ = mask_from_outputs(0.4, 1, 2, 2, 40, 70)
    for size in (128, 256):
        assert torch.equal(mask_from_outputs(0.4, 1, 2, 2, 40, 70, size)[0], expected)
    more, _ = mask_from_outputs(0.4, 1, 2, 2, 200, 300, 256)
    assert torch.equal(more[..., :40, :70], expected)
    for options in ({"causal": True}, {"window_size": (20, 3)}):
        seen, _ = mask_from_outputs(0.4, 1, 2, 1, 40, 70, **options)
        visible = ~hidden(40, 70, options.get("causal", False), options.get("window_size", NO_WINDOW))
        assert torch.equal(seen, expected & visible)


def test_batches_and_packed_sequences_agree(target):
    """Sequences of one length give the same bits packed, as a batch, and as (B, H, N, D)."""
    batch, rows, keys = 3, 37, 45
    q, k, v, grad_out = tensors(batch, rows, keys, 4, 2, 64)
    first_q, first_k = (torch.arange(batch + 1, dtype=torch.int32) * count for count in (rows, keys))
    results = []
    for form in ("batch", "heads first", "packed"):
        leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
        if form == "packed":
            function, given = hipkittens.attention_varlen, [leaf.flatten(0, 1) for leaf in leaves]
            given += [first_q, first_k, rows, keys]
        else:
            function, given = hipkittens.attention, leaves
        options = {"dropout_p": 0.3, "causal": True}
        if form == "heads first":
            given, options["layout"] = [leaf.transpose(1, 2) for leaf in leaves], "bhnd"
        out, _ = drawn(function, *given, seed=3, **options)
        out = out.transpose(1, 2) if form == "heads first" else out.view(q.shape)
        out.backward(grad_out)
        results.append((out.detach(), *(leaf.grad for leaf in leaves)))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            assert torch.equal(one, two)


def test_packed_sequences_have_masks_of_their_own(target):
    lengths_q, lengths_k = (5, 40, 0, 33), (70, 9, 12, 33)
    first_q, first_k = (
        torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32)
        for lengths in (lengths_q, lengths_k)
    )
    q = torch.zeros(sum(lengths_q), 2, 128, dtype=F16)
    k = torch.zeros(sum(lengths_k), 1, 128, dtype=F16)
    v = torch.zeros_like(k)
    v[:, 0] = torch.eye(128, dtype=F16)[torch.cat([torch.arange(length) for length in lengths_k])]
    out, seed = drawn(hipkittens.attention_varlen, q, k, v, first_q, first_k, 40, 70, dropout_p=0.5)
    every = kept(seed, 0.5, 4, 2, 40, 70)
    for index, (part, rows, keys) in enumerate(zip(out.split(lengths_q), lengths_q, lengths_k, strict=True)):
        assert torch.equal(part.transpose(0, 1)[..., :keys] != 0, every[index, :, :rows, :keys])


def written_out(q, k, v, scale, hide, factor, scale_first=False):
    """Attention in the dtype of its inputs, each weight multiplied by its dropout factor; also the LSE."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(t.repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v))
    scores = (q * scale) @ k.mT if scale_first else (q @ k.mT) * scale
    dead = hide.all(-1, keepdim=True)
    scores = scores.masked_fill(hide & ~dead, float("-inf"))
    weights = torch.softmax(scores, dim=-1).masked_fill(dead, 0) * factor.to(q.dtype)
    return (weights @ v).transpose(1, 2), scores.logsumexp(-1).masked_fill(dead[:, 0], 0)


def worst_ratio(q, k, v, grad_out, p, *, causal=False, window=NO_WINDOW, wrong_mask=False):
    """Errors of output and gradients over those of PyTorch's own steps with the same mask (the larger of two orders)."""
    scale = q.shape[-1] ** -0.5
    hide = hidden(q.shape[1], k.shape[1], causal, window)
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    (out, lse), seed = drawn(hipkittens.attention, *leaves, causal=causal, window_size=window, dropout_p=p,
                             return_lse=True)  # fmt: skip
    grads = torch.autograd.grad(out, leaves, grad_out)
    mask = kept(seed + wrong_mask, p, q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    factor = mask / (1 - dropped_fraction(p))

    def of(dtype, **order):
        inputs = [tensor.detach().to(dtype).requires_grad_() for tensor in (q, k, v)]
        out, lse = written_out(*inputs, scale, hide, factor, **order)
        return [out.detach(), *torch.autograd.grad(out, inputs, grad_out.to(dtype))], lse

    exact, exact_lse = of(torch.float64)
    torch.testing.assert_close(
        lse.double().masked_fill(lse.isinf(), 0), exact_lse.detach(), rtol=1e-5, atol=1e-5
    )
    baselines = [of(q.dtype, scale_first=order)[0] for order in (False, True)]
    sizes = magnitudes(q, k, v, grad_out, scale, hide)
    sizes = [v.abs().max().item(), *sizes]
    worst = 0.0
    for index, size in enumerate(sizes):
        results = [compare((out, *grads)[index].detach(), theirs[index], exact[index], size / (1 - p))
                   for theirs in baselines]  # fmt: skip
        worst = max(worst, min(r.ratio_max for r in results), min(r.ratio_rms for r in results))
    return worst


CASES = [
    # n_q, n_k, heads, key heads, head size, batch, options
    (64, 64, 1, 1, 64, 1, {}),
    (130, 257, 4, 2, 64, 2, {"causal": True}),
    (257, 130, 3, 1, 128, 1, {"window": (40, 9)}),
    (33, 70, 5, 1, 256, 1, {"causal": True}),
    (1, 190, 8, 2, 80, 2, {}),
    (71, 141, 2, 2, 200, 1, {"causal": True, "window": (20, -1)}),
]


@pytest.mark.parametrize(("dtype", "p"), [(BF16, 0.1), (F16, 0.5), (BF16, 0.9)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_and_gradients(target, dtype, p, case):
    n_q, n_k, heads, key_heads, size, batch, options = case
    values = tensors(batch, n_q, n_k, heads, key_heads, size, dtype)
    assert worst_ratio(*values, p, **options) <= BAR


def test_the_bar_sees_another_mask(target):
    assert worst_ratio(*tensors(1, 64, 64, 1, 1, 64), 0.1, wrong_mask=True) > 4 * BAR


def test_the_mean_over_seeds_is_attention_without_dropout(target):
    q, k, v, grad_out = tensors(1, 12, 40, 2, 2, 64, F16)
    count, p = 200, 0.4
    several = [tensor.expand(count, -1, -1, -1) for tensor in (q, k, v, grad_out)]  # a head of its own each
    leaves = [tensor.contiguous().requires_grad_() for tensor in several[:3]]
    out = hipkittens.attention(*leaves, dropout_p=p)
    out.backward(several[3])
    plain = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    exact = written_out(*plain, 0.125, hidden(12, 40, False, NO_WINDOW), torch.ones(()))[0]
    exact.backward(grad_out.double())
    for samples, mean in (
        (out, exact),
        *((leaf.grad, value.grad) for leaf, value in zip(leaves, plain, strict=True)),
    ):
        samples = samples.detach().double()
        spread = (samples.var(0, keepdim=True) / count).sqrt()
        off = (samples.mean(0, keepdim=True) - mean.detach()) / (spread + 1e-4)
        assert off.abs().max() < 5.5 and abs(off.mean().item()) < 0.3


def test_the_generator_decides(target):
    q, k, v, _ = tensors(1, 40, 90, 2, 1, 64)

    def out(seed, p=0.2):
        return drawn(hipkittens.attention, q, k, v, dropout_p=p, seed=seed)[0]

    assert torch.equal(out(1), out(1)) and not torch.equal(out(1), out(2))
    first = out(1)
    assert not torch.equal(first, hipkittens.attention(q, k, v, dropout_p=0.2))  # the generator has advanced
    state = torch.get_rng_state()
    assert torch.equal(hipkittens.attention(q, k, v, dropout_p=0.0), hipkittens.attention(q, k, v))
    assert torch.equal(torch.get_rng_state(), state)
    # Less than half a step drops nothing. Kernels with dropout round in other places than those without; a lost key shows more.
    torch.testing.assert_close(out(1, 1e-9), hipkittens.attention(q, k, v), rtol=2**-6, atol=2**-9)
    mostly = out(1, 0.9999999)
    assert mostly.isfinite().all() and (mostly == 0).double().mean() > 0.98


def test_the_other_doors_drop_the_same(target):
    q, k, v, _ = tensors(2, 40, 40, 4, 2, 64)
    expected, _ = drawn(hipkittens.attention, q, k, v, dropout_p=0.2, causal=True)
    flash, _ = drawn(hipkittens.flash_attn.flash_attn_func, q, k, v, 0.2, causal=True)
    assert torch.equal(flash, expected)
    module = hipkittens.nn.MultiheadAttention(64, 2, dropout=0.5, batch_first=True, dtype=BF16)
    x = torch.randn(2, 20, 64, dtype=BF16)
    (first, _), _ = drawn(module, x, x, x, need_weights=False)
    (again, _), _ = drawn(module, x, x, x, need_weights=False)
    assert torch.equal(first, again)
    assert not torch.equal(first, module(x, x, x, need_weights=False)[0])
    assert not torch.equal(first, module.eval()(x, x, x, need_weights=False)[0])


@pytest.mark.parametrize("arch", TARGETS)
def test_bits_repeat(arch):
    values = tensors(1, 200, 300, 4, 2, 128)
    results = []
    for seed, threads in ((0, 1), (5, 2)):
        with hipkittens.simulate(arch, checks=True, seed=seed, threads=threads):
            leaves = [value.clone().requires_grad_() for value in values[:3]]
            out, _ = drawn(hipkittens.attention, *leaves, causal=True, dropout_p=0.25)
            results.append((out.detach(), *torch.autograd.grad(out, leaves, values[3])))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


def test_checkpointing_repeats_the_mask(target):
    q, k, v, grad_out = tensors(1, 30, 50, 2, 2, 64)
    results = []
    for run in (
        lambda *i: hipkittens.attention(*i, dropout_p=0.5),
        lambda *i: checkpoint(hipkittens.attention, *i, use_reentrant=False, dropout_p=0.5),
    ):
        leaves = [value.clone().requires_grad_() for value in (q, k, v)]
        out, _ = drawn(run, *leaves)
        torch.rand(3)  # the generator's state differs when the checkpoint runs again
        out.backward(grad_out)
        results.append((out.detach(), *(leaf.grad for leaf in leaves)))
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(backend):
    torch._dynamo.reset()

    def block(q, k, v):
        return hipkittens.attention(torch.relu(q), k, v, causal=True, dropout_p=0.5) * 2

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    q, k, v, grad_out = tensors(1, 20, 23, 4, 2, 64)
    with hipkittens.simulate("gfx942"):
        gradients = []
        for _ in range(2):
            torch.manual_seed(5)
            leaves = [value.clone().requires_grad_() for value in (q, k, v)]
            out = compiled(*leaves)
            out.backward(grad_out)
            gradients.append((out.detach(), *(leaf.grad for leaf in leaves)))
        assert all(torch.equal(one, two) for one, two in zip(*gradients, strict=True))
        assert not torch.equal(compiled(q, k, v), gradients[0][0])
        if backend == "aot_eager":
            assert torch.equal(drawn(block, q, k, v, seed=5)[0], gradients[0][0])
        # One mask forward and backward: v enters linearly, so sum(dv v) is sum(dout out).
        out, _, _, grad_v = gradients[0]
        inner = (grad_v.double() * v.double()).sum()
        torch.testing.assert_close(inner, (grad_out.double() * out.double()).sum(), rtol=0.05, atol=0.05)


def test_opcheck(target):
    q, k, v, grad_out = tensors(1, 20, 30, 4, 2, 64)
    options = (0.125, True, -1, -1, 0.25, torch.tensor([-5, 7]))
    out, lse = torch.ops.hipkittens.attention_forward(q, k, v, *options)
    backward = torch.ops.hipkittens.attention_backward.default
    assert set(torch.library.opcheck(backward, (grad_out, None, q, k, v, out, lse, *options)).values()) == {
        "SUCCESS"
    }
    for tensor in (q, k, v):
        tensor.requires_grad_()
    forward = torch.ops.hipkittens.attention_forward.default
    assert set(torch.library.opcheck(forward, (q, k, v, *options)).values()) == {"SUCCESS"}


def test_a_seed_comes_with_dropout(target):
    q, k, v, _ = tensors(1, 4, 5, 1, 1, 64)
    forward = torch.ops.hipkittens.attention_forward
    for p, seed, match in (
        (0.5, None, "a seed is needed exactly when dropout_p > 0"),
        (0.0, torch.tensor([1, 2]), "a seed is needed exactly when dropout_p > 0"),
        (0.5, torch.tensor([1, 2, 3]), "2 contiguous int64"),
        (0.5, torch.tensor([1, 2], dtype=torch.int32), "2 contiguous int64"),
        (1.5, torch.tensor([1, 2]), "dropout_p"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=match):
            forward(q, k, v, 1.0, False, -1, -1, p, seed)
