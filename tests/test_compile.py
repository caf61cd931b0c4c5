# SPDX-License-Identifier: MIT
"""torch.compile, forward and backward: one graph for all lengths, with eager's results.

Under inductor, torch's default backend, the C++ compiler takes most of the time: only one case of it runs by default. Sizes stay
below 4096 elements, the size from which inductor itself compiles anew.
"""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import hipkittens
from hipkittens import nn

pytestmark = pytest.mark.filterwarnings("error:Dynamo detected:UserWarning")  # users would see them

BF16 = torch.bfloat16
HEADS, KEY_HEADS, SIZE, WIDTH = 4, 2, 32, 64


def draw(*shape, seed=0, scale=1.0, grad=True):
    value = scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return value.to(BF16).requires_grad_(grad)


def parameters():
    wide = (HEADS + 2 * KEY_HEADS) * SIZE
    return [
        draw(wide, WIDTH, seed=1, scale=WIDTH**-0.5),
        draw(wide, seed=2),
        draw(HEADS * SIZE, WIDTH, seed=3, scale=(HEADS * SIZE) ** -0.5),
        draw(WIDTH, seed=4),
        draw(WIDTH, seed=5),
        draw(WIDTH, seed=6),
    ]


ANGLES = torch.outer(torch.arange(64.0), 10.0 ** -torch.arange(8.0))
COS, SIN = ANGLES.cos(), ANGLES.sin()


def block(x, attend, places, weights):
    """A transformer block that uses every operation of the package once."""
    project, bias, back, norm_weight, norm_bias, last = weights
    normed = hipkittens.layer_norm(x, norm_weight, norm_bias)
    packed = hipkittens.linear(normed, project, bias).unflatten(-1, (-1, SIZE))
    q, k, v = packed.split((HEADS, KEY_HEADS, KEY_HEADS), -2)
    q, k = hipkittens.rotary_qk(q, k, COS, SIN, **places)
    out, lse = attend(q, k, hipkittens.rotary(v, COS, SIN, interleaved=True, **places))
    added = hipkittens.matmul(out.flatten(-2), back)
    y, total = hipkittens.rms_norm(added, last, residual=x, return_residual=True)
    return y.float().square().mean() + total.float().mean() + lse.mean()


def dense(x, *weights):
    return block(x, lambda *qkv: hipkittens.attention(*qkv, causal=True, return_lse=True), {}, weights)


def packed(x, cu_seqlens, longest, *weights):
    def attend(q, k, v):
        return hipkittens.attention_varlen(
            q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True, return_lse=True
        )

    return block(x, attend, {"cu_seqlens": cu_seqlens}, weights)


def assert_compiles(function, calls, weights, backend, arch="gfx942"):
    """calls: arguments before the weights. The gradients of the first argument and the weights are compared."""
    torch._dynamo.reset()
    counter, graphs = CompileCounterWithBackend(backend), []
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    with hipkittens.simulate(arch):
        for arguments in calls:
            wanted = [arguments[0], *weights]
            results = []
            for run in (function, compiled):
                loss = run(*arguments, *weights)
                results.append([loss, *torch.autograd.grad(loss, wanted)])
            for eager, other in zip(*results, strict=True):
                # inductor keeps float32 between fused pointwise steps where eager rounds.
                torch.testing.assert_close(other, eager, rtol=2e-2, atol=2e-2 * eager.abs().max().item())
            graphs.append(counter.frame_count)
    assert graphs[0] > 0 and set(graphs) == {graphs[0]}, "compiled again for another length"


BACKENDS = pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])


def test_attention_under_the_default_backend():
    def loss(q, kv):
        out, lse = hipkittens.attention(q, *kv.unbind(2), causal=True, return_lse=True)
        return out.float().square().mean() + lse.mean()

    kv = draw(2, 20, 2, KEY_HEADS, SIZE, seed=1)
    calls = [(draw(2, length, HEADS, SIZE, seed=length),) for length in (9, 14, 11)]
    assert_compiles(loss, calls, [kv], "inductor")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@BACKENDS
def test_all_operations(backend, arch):
    calls = [(draw(2, length, WIDTH, seed=length),) for length in (17, 30, 23)]
    assert_compiles(dense, calls, parameters(), backend, arch)


@BACKENDS
def test_packed_sequences(backend):
    calls = []
    for lengths in ((9, 17), (3, 30), (25, 4)):
        ends = torch.tensor((0, *lengths)).cumsum(0).to(torch.int32)
        calls.append((draw(sum(lengths), WIDTH, seed=sum(lengths)), ends, max(lengths)))
    assert_compiles(packed, calls, parameters(), backend)


@BACKENDS
def test_multihead_attention(backend):
    module = nn.MultiheadAttention(WIDTH, 2, batch_first=True, dtype=BF16)

    def loss(x, padding, *_weights):
        causal, _ = module(x, x, x, need_weights=False, is_causal=True)
        padded, _ = module(x, x, x, need_weights=False, key_padding_mask=padding)
        return causal.float().square().mean() + padded.float().pow(3).mean()

    calls = [
        (draw(2, length, WIDTH, seed=length), torch.arange(length) >= torch.tensor([[length], [7]]))
        for length in (17, 30, 23)
    ]
    assert_compiles(loss, calls, list(module.parameters()), backend)
