# SPDX-License-Identifier: MIT
"""The gradients of hipkittens.attention compared with float64, next to PyTorch's own, and their integration with PyTorch."""

import itertools
import os
import random

import pytest
import torch
from parity_attention import hidden
from torch.utils.flop_counter import FlopCounterMode

import hipkittens
from hipkittens._accuracy import BAR, compare

TARGETS = ("gfx942", "gfx950")
BF16, F16 = torch.bfloat16, torch.float16
NO_WINDOW = (-1, -1)
OPTIONS = (0.125, False, -1, -1)  # scale, causal, window


@pytest.fixture(params=TARGETS)
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param


def tensors(batch, n_q, n_k, heads, key_heads, size, dtype=BF16, seed=0):
    """q, k, v and the gradient of the output."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(batch, rows, count, size, generator=generator).to(dtype)
        for rows, count in ((n_q, heads), (n_k, key_heads), (n_k, key_heads), (n_q, heads))
    )


def steps(q, k, v, scale, mask, scale_first=False):
    """Attention written out in the dtype of its inputs; also the LSE, 0 for queries that see nothing."""
    group = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), *(t.repeat_interleave(group, dim=2).transpose(1, 2) for t in (k, v))
    scores = (q * scale) @ k.mT if scale_first else (q @ k.mT) * scale
    dead = mask.all(-1, keepdim=True)
    scores = scores.masked_fill(mask & ~dead, float("-inf"))
    p = torch.softmax(scores, dim=-1).masked_fill(dead, 0)
    return (p @ v).transpose(1, 2), scores.logsumexp(-1).masked_fill(dead[:, 0], 0)


def fused(q, k, v, scale, mask):
    seen = ~mask | mask.all(-1, keepdim=True)
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=seen, scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2).masked_fill(mask.all(-1)[:, None, None], 0), None


def gradients(function, inputs, grad_out, grad_lse=None, dtype=None):
    inputs = [tensor.detach().to(dtype or tensor.dtype).requires_grad_() for tensor in inputs]
    out, lse = function(*inputs)
    results, grads = [out], [grad_out.to(out.dtype)]
    if grad_lse is not None:
        results.append(lse)
        grads.append(grad_lse.to(lse.dtype))
    return torch.autograd.grad(results, inputs, grads)


def magnitudes(q, k, v, grad_out, scale, mask):
    """The largest sums of absolute values of the terms of each gradient."""
    group = q.shape[2] // k.shape[2]
    q, k, v, grad_out = (t.double().transpose(1, 2) for t in (q, k, v, grad_out))
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    dead = mask.all(-1, keepdim=True)
    p = torch.softmax((q @ k.mT * scale).masked_fill(mask & ~dead, float("-inf")), -1).masked_fill(dead, 0)
    ds = grad_out.abs() @ v.abs().mT
    ds = p * (ds + (p * ds).sum(-1, keepdim=True)) * abs(scale)
    sums = (ds @ k.abs(), ds.mT @ q.abs(), p.mT @ grad_out.abs())
    return [group * value.max().item() for value in sums]


def ours(q, k, v, scale, causal, window):
    return hipkittens.attention(q, k, v, scale=scale, causal=causal, window_size=window, return_lse=True)


def assert_parity(q, k, v, grad_out, *, causal=False, window=NO_WINDOW, scale=None, grad_lse=None):
    """Each gradient within 2x the larger error of PyTorch's own attentions, largest and RMS."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = hidden(q.shape[1], k.shape[1], causal, window)
    inputs = (q, k, v)
    result = gradients(lambda *i: ours(*i, scale, causal, window), inputs, grad_out, grad_lse)
    expected = gradients(lambda *i: steps(*i, scale, mask), inputs, grad_out, grad_lse, torch.float64)
    baselines = [gradients(lambda *i, o=order: steps(*i, scale, mask, o), inputs, grad_out, grad_lse)
                 for order in (False, True)]  # fmt: skip
    if grad_lse is None:
        baselines.append(gradients(lambda *i: fused(*i, scale, mask), inputs, grad_out))
    worst = 0.0
    for index, magnitude in enumerate(magnitudes(q, k, v, grad_out, scale, mask)):
        results = [compare(result[index], theirs[index], expected[index], magnitude) for theirs in baselines]
        ratio = max(min(r.ratio_max for r in results), min(r.ratio_rms for r in results))
        assert result[index].dtype == q.dtype and ratio <= BAR, (("dq", "dk", "dv")[index], results)
        worst = max(worst, ratio)
    return worst


LENGTHS = ((1, 1), (1, 257), (2, 17), (17, 2), (255, 255), (257, 255), (130, 300), (64, 64), (300, 130))
HEADS = ((1, 1), (3, 1), (4, 4), (8, 2), (5, 1), (8, 1))
SIZES = (64, 128, 32, 80, 256, 104)
MASKS = ((False, NO_WINDOW), (True, NO_WINDOW), (True, (20, -1)), (False, (40, 9)))


def covering_cases():
    """Each length with each mask and dtype; heads, sizes and batches cycle with coprime periods."""
    for number, (lengths, mask, dtype) in enumerate(itertools.product(LENGTHS, MASKS, (BF16, F16))):
        yield lengths, HEADS[number % 6], SIZES[(number // 2) % 5], 1 + number % 3 // 2, mask, dtype, number


def assert_all(cases):
    for (n_q, n_k), (heads, key_heads), size, batch, (causal, window), dtype, seed in cases:
        assert_parity(
            *tensors(batch, n_q, n_k, heads, key_heads, size, dtype, seed), causal=causal, window=window
        )


def test_parity(target):
    assert_all(list(covering_cases())[TARGETS.index(target) * 3 :: 11])


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_every_parity(target, part):
    assert_all(list(covering_cases())[part::4])


@pytest.mark.slow
def test_random_parity(target):
    seed = int(os.environ.get("HIPKITTENS_TEST_SEED", random.randrange(1 << 30)))
    print(f"HIPKITTENS_TEST_SEED={seed}")
    choose = random.Random(seed)
    for number in range(60):
        key_heads = choose.randint(1, 4)
        n_q, n_k = choose.randint(1, 400), choose.randint(1, 700)
        values = tensors(choose.randint(1, 2), n_q, n_k, key_heads * choose.randint(1, 5), key_heads,
                         8 * choose.randint(1, 32), choose.choice((BF16, F16)), seed + number)  # fmt: skip
        window = choose.choice(
            (NO_WINDOW, (choose.randint(0, 300), -1), (choose.randint(0, 99), choose.randint(0, 99)))
        )
        assert_parity(*values, causal=choose.random() < 0.5, window=window)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_parity_of_large_scores_and_odd_scales(target, dtype):
    q, k, v, grad_out = tensors(1, 100, 200, 2, 1, 64, dtype)
    assert_parity(q * 4, k * 2, v, grad_out)
    assert_parity(q, k, v, grad_out, scale=-0.3, causal=True)
    assert_parity(q, k, v, grad_out * 64, scale=0.5)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_parity_with_rows_far_larger_than_others(target, dtype):
    """The unit in which dQ is summed depends on the largest key and value: small rows among them keep their accuracy."""
    q, k, v, grad_out = tensors(1, 70, 600, 4, 2, 64, dtype)
    k[:, 450, :, :5] *= 16
    v[:, 17] *= 16
    grad_out[:, ::3] *= 2.0**-12
    assert_parity(q * 0.25, k, v, grad_out, causal=True)


def test_what_is_not_finite_is_not_finite_in_the_gradient(target):
    q, k, v, grad_out = tensors(1, 130, 200, 4, 2, 64)
    grad_out[0, 100, 1, 3] = float("inf")
    v[0, 150, 1] = float("nan")
    dq = gradients(lambda *i: ours(*i, 0.125, False, NO_WINDOW), (q, k, v), grad_out)[0]
    finite = dq.isfinite().all(-1)[0]
    assert not finite[100, 1] and not finite[:, 2:].any()
    finite[100, 1] = True
    assert finite[:, :2].all()


def test_parity_through_the_lse(target):
    for causal, dtype in itertools.product((False, True), (BF16, F16)):
        values = tensors(1, 70, 130, 4, 2, 64, dtype)
        assert_parity(*values, causal=causal, grad_lse=torch.randn(1, 4, 70))
    q, k, v, _ = (value.requires_grad_() for value in tensors(1, 20, 30, 2, 2, 64))
    _, lse = hipkittens.attention(q, k, v, return_lse=True)
    lse.sum().backward()  # a gradient of the LSE alone, with strides of zero
    assert v.grad.count_nonzero() == 0
    weights = torch.softmax(
        q.detach().double().transpose(1, 2) @ k.detach().double().permute(0, 2, 3, 1) / 8, -1
    )
    expected = (weights @ k.detach().double().transpose(1, 2) / 8).transpose(1, 2)
    torch.testing.assert_close(q.grad.double(), expected, rtol=2e-2, atol=2e-3)


def test_the_bar_sees_a_wrong_result(target):
    q, k, v, grad_out = tensors(1, 100, 200, 1, 1, 64)
    mask = hidden(100, 200, False, NO_WINDOW)
    expected = gradients(lambda *i: steps(*i, 0.125, mask), (q, k, v), grad_out, None, torch.float64)
    theirs = gradients(lambda *i: steps(*i, 0.125, mask), (q, k, v), grad_out)
    sizes = magnitudes(q, k, v, grad_out, 0.125, mask)
    right = gradients(lambda *i: ours(*i, 0.125, False, NO_WINDOW), (q, k, v), grad_out)
    masked = gradients(lambda *i: ours(*i, 0.125, False, (198, -1)), (q, k, v), grad_out)
    for index in range(3):
        assert compare(right[index], theirs[index], expected[index], sizes[index]).passes
        assert not compare(masked[index], theirs[index], expected[index], sizes[index]).passes


def test_strides_of_the_gradient(target):
    """Any strides, including zero, give the same bits as a contiguous gradient."""
    q, k, v, grad_out = tensors(2, 50, 70, 6, 2, 40)

    def from_gradient(given):
        return gradients(lambda *i: ours(*i, 0.2, True, NO_WINDOW), (q, k, v), given)

    def forms(value):
        yield value.transpose(1, 2).contiguous().transpose(1, 2)
        yield value.permute(3, 0, 1, 2).contiguous().permute(1, 2, 3, 0)
        odd = torch.full((*value.shape[:3], value.shape[3] + 3), float("nan"), dtype=value.dtype)
        odd[..., 1:-2] = value
        yield odd[..., 1:-2]

    expanded = (
        grad_out[:1, :1, :1, :1],
        grad_out[:, :1],
        grad_out[:1],
        grad_out[:, :, :1],
        grad_out[..., :1],
    )
    for value in (grad_out, *(part.expand_as(grad_out) for part in expanded)):
        expected = from_gradient(value.contiguous())
        for form in (value, *forms(value)):
            for one, other in zip(from_gradient(form), expected, strict=True):
                assert torch.equal(one, other)


def test_layouts_of_the_inputs(target):
    packed = torch.randn(2, 40, 3, 4, 64, dtype=BF16, requires_grad=True)
    grad_out = torch.randn(2, 4, 40, 64, dtype=BF16)
    parts = [packed[:, :, index].transpose(1, 2) for index in range(3)]
    (grad,) = torch.autograd.grad(hipkittens.attention(*parts, causal=True, layout="bhnd"), packed, grad_out)
    plain = [packed.detach()[:, :, index].contiguous() for index in range(3)]
    expected = gradients(lambda *i: ours(*i, 64**-0.5, True, NO_WINDOW), plain, grad_out.transpose(1, 2))
    for index in range(3):
        assert torch.equal(grad[:, :, index], expected[index])


def test_queries_without_keys(target):
    q, k, v, grad_out = tensors(1, 80, 30, 2, 1, 64)
    dq, dk, dv = gradients(lambda *i: ours(*i, 0.125, True, NO_WINDOW), (q, k, v), grad_out)
    assert dq[:, :50].count_nonzero() == 0 and dq[:, 50:].count_nonzero() > 0
    for grad in (dk, dv):
        assert grad.isfinite().all() and (grad != 0).any(-1).all()
    # Keys that nobody sees.
    dq, dk, dv = gradients(lambda *i: ours(*i, 0.125, False, (0, 0)), (q[:, :10], k, v), grad_out[:, :10])
    assert dk[:, :20].count_nonzero() == dv[:, :20].count_nonzero() == 0
    empty = k[:, :0]
    dq, dk, dv = gradients(lambda *i: ours(*i, 0.125, False, NO_WINDOW), (q, empty, empty), grad_out)
    assert dq.count_nonzero() == 0 and dk.shape == dv.shape == empty.shape
    dq, dk, dv = gradients(lambda *i: ours(*i, 0.125, False, NO_WINDOW), (q[:, :0], k, v), grad_out[:, :0])
    assert dk.count_nonzero() == dv.count_nonzero() == 0 and dq.shape == (1, 0, 2, 64)


@pytest.mark.parametrize("arch", TARGETS)
def test_bits_repeat(arch):
    values = tensors(2, 200, 300, 4, 2, 128)
    results = []
    for seed, threads in ((0, 1), (5, 2), (6, 0)):
        with hipkittens.simulate(arch, checks=True, seed=seed, threads=threads):
            results.append(gradients(lambda *i: ours(*i, 0.1, True, (90, -1)), values[:3], values[3]))
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_only_what_is_asked_for(target):
    q, k, v, grad_out = tensors(1, 20, 30, 2, 1, 64)
    expected = gradients(lambda *i: ours(*i, 0.125, False, NO_WINDOW), (q, k, v), grad_out)
    for index in range(3):
        inputs = [q.clone(), k.clone(), v.clone()]
        inputs[index].requires_grad_()
        ours(*inputs, 0.125, False, NO_WINDOW)[0].backward(grad_out)
        assert torch.equal(inputs[index].grad, expected[index])
        assert all(other.grad is None for other in inputs if other is not inputs[index])


def test_no_second_derivative(target):
    q, k, v, grad_out = tensors(1, 20, 30, 2, 1, 64)
    q.requires_grad_()
    (grad,) = torch.autograd.grad(hipkittens.attention(q, k, v), q, grad_out, create_graph=True)
    with pytest.raises(NotImplementedError, match="cannot be differentiated again"):
        grad.sum().backward()


def test_opcheck(target):
    q, k, v, grad_out = tensors(1, 20, 30, 4, 2, 64)
    out, lse = torch.ops.hipkittens.attention_forward(q, k, v, *OPTIONS)
    for grad_lse in (None, torch.randn_like(lse)):
        torch.library.opcheck(
            torch.ops.hipkittens.attention_backward, (grad_out, grad_lse, q, k, v, out, lse, *OPTIONS)
        )
    for tensor in (q, k, v):
        tensor.requires_grad_()
    torch.library.opcheck(torch.ops.hipkittens.attention_forward, (q, k, v, *OPTIONS))


def test_compile():
    def loss(q, k, v):
        out, lse = hipkittens.attention(q, k, v, causal=True, return_lse=True)
        return out.float().square().sum() + lse.sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    with hipkittens.simulate("gfx942"):
        for n in (17, 40):
            inputs = [value.requires_grad_() for value in tensors(1, n, n + 3, 4, 2, 64)[:3]]
            expected = torch.autograd.grad(loss(*inputs), inputs)
            for one, other in zip(torch.autograd.grad(compiled(*inputs), inputs), expected, strict=True):
                assert torch.equal(one, other)


def test_flops():
    q, k, v, grad_out = tensors(2, 20, 30, 4, 2, 64)
    q.requires_grad_()
    with hipkittens.simulate("gfx942"):
        out = hipkittens.attention(q, k, v)
        with FlopCounterMode(display=False) as counter:
            out.backward(grad_out)
    assert counter.get_total_flops() == 10 * 2 * 4 * 20 * 30 * 64


def test_wrong_tensors_are_refused(target):
    q, k, v, grad_out = tensors(1, 20, 30, 2, 1, 64)
    out, lse = torch.ops.hipkittens.attention_forward(q, k, v, *OPTIONS)

    def refused(match, **changes):
        given = {
            "grad_out": grad_out,
            "grad_lse": None,
            "q": q,
            "k": k,
            "v": v,
            "out": out,
            "lse": lse,
            **changes,
        }
        with pytest.raises(RuntimeError, match=match):
            torch.ops.hipkittens.attention_backward(*given.values(), *OPTIONS)

    refused("grad_out is \\(1, 19, 2, 64\\)", grad_out=grad_out[:, :19])
    refused("grad_out is not bfloat16", grad_out=grad_out.half())
    refused("lse is \\(1, 2, 19\\)", lse=lse[..., :19])
    refused("lse is not float32", lse=lse.to(BF16))
    refused("grad_lse is \\(2, 20\\)", grad_lse=lse[0])
    refused("k and v need the same shape", v=v[:, :29])
