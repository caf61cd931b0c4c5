# SPDX-License-Identifier: MIT
"""expert_sort, grouped_matmul and gated_activation one after the other: the layer of a mixture of experts and its gradients."""

import pytest
import torch

import hipkittens

# Of fewer tokens, all to one expert, the gradient of weights has too few distinct elements for its norm to be compared.
TOKENS, HIDDEN, INNER, EXPERTS, CHOICES = 33, 64, 40, 8, 2
HERE = torch.tensor([0, -1, 1, -1, 2, -1, 3, -1], dtype=torch.int32)


def with_pieces(x, w1, w2, weights, ids, expert_map):
    """The gather and the weighted sum are PyTorch's; the experts' products and gates are kernels."""
    order = hipkittens.expert_sort(ids, None, w1.shape[0], layout="ragged", expert_map=expert_map)
    ends = order.offsets[1:]
    rows = x[order.entries.clamp(min=0).long() // CHOICES]
    gates = hipkittens.gated_activation(hipkittens.grouped_matmul(rows, w1.mT, ends))
    y = hipkittens.grouped_matmul(gates, w2.mT, ends)
    present = order.places >= 0
    chosen = y[order.places.clamp(min=0).long()].float() * present[..., None]
    return (chosen * weights[..., None]).sum(1).to(x.dtype)


def expert_by_expert(x, w1, w2, weights, ids, expert_map):
    """Every token by itself, in the arguments' dtype."""
    here = ids if expert_map is None else expert_map[ids.long()]
    rows = []
    for token in range(x.shape[0]):
        row = torch.zeros_like(x[token])
        for slot in range(CHOICES):
            expert = int(here[token, slot])
            if expert >= 0:
                gate, up = (w1[expert] @ x[token]).chunk(2)
                hidden = torch.nn.functional.silu(gate) * up
                row = row + (weights[token, slot] * (w2[expert] @ hidden)).to(x.dtype)
        rows.append(row)
    return torch.stack(rows)


def result_and_gradients(layer, dtype, arguments, grad, ids, expert_map):
    leaves = [value.detach().to(dtype).requires_grad_() for value in arguments]
    out = layer(*leaves, ids, expert_map)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
@pytest.mark.parametrize("experts", ("all", "half", "one"))
def test_layer_and_its_gradients(target, dtype, experts):
    """Within twice PyTorch's own error of float64: all experts here, half of them, and every token to one."""
    generator = torch.Generator().manual_seed(3)
    expert_map = HERE if experts == "half" else None
    held = EXPERTS // 2 if experts == "half" else EXPERTS

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    x, w1 = random(TOKENS, HIDDEN), random(held, 2 * INNER, HIDDEN, scale=HIDDEN**-0.5)
    w2, grad = random(held, HIDDEN, INNER, scale=INNER**-0.5), random(TOKENS, HIDDEN)
    weights = torch.rand((TOKENS, CHOICES), generator=generator).to(dtype)
    ids = torch.rand((TOKENS, EXPERTS), generator=generator).argsort(1)[:, :CHOICES].int()
    if experts == "one":
        ids = torch.full_like(ids, 5)
    arguments = (x, w1, w2, weights)
    exact = result_and_gradients(expert_by_expert, torch.float64, arguments, grad, ids, expert_map)
    torchs = result_and_gradients(expert_by_expert, dtype, arguments, grad, ids, expert_map)
    with hipkittens.simulate(target, checks="all"):
        ours = result_and_gradients(with_pieces, dtype, arguments, grad, ids, expert_map)
    for name, a, b, c in zip(("out", "x", "w1", "w2", "weights"), ours, torchs, exact, strict=True):
        error, allowed = (a.double() - c).norm(), 2 * (b.double() - c).norm()
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"
