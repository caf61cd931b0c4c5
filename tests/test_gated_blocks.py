# SPDX-License-Identifier: MIT
"""hipkittens.nn.SwiGLU and GeGLU, and patched blocks with gate_up_proj: their gate is fused into the first product, unless something
else has to be called with the projection."""

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import nn
from hipkittens._accuracy import compare
from tests.simulated_device import TARGETS

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
GATES = {"SwiGLU": F.silu, "GeGLU": lambda gate: F.gelu(gate, approximate="tanh")}


class Phi3MLP(torch.nn.Module):
    """As in Transformers: gate and up are the halves of one projection."""

    def __init__(self, hidden=64, inner=40, dtype=BF16):
        super().__init__()
        self.gate_up_proj = torch.nn.Linear(hidden, 2 * inner, bias=False, dtype=dtype)
        self.down_proj = torch.nn.Linear(inner, hidden, bias=False, dtype=dtype)

    def forward(self, hidden_states):
        gate, up = self.gate_up_proj(hidden_states).chunk(2, dim=-1)
        return self.down_proj(up * F.silu(gate))


def draw(*shape, dtype=BF16, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def in_torch(module, gate, x):
    left, right = F.linear(x, module.gate_up_proj.weight, module.gate_up_proj.bias).chunk(2, -1)
    return F.linear(gate(left) * right, module.down_proj.weight, module.down_proj.bias)


def gradients(module, function, x, grad):
    leaf = x.clone().requires_grad_()
    out = function(leaf)
    names = ("x", *(name for name, _ in module.named_parameters()))
    return {
        "out": out.detach(),
        **dict(
            zip(
                names, torch.autograd.grad(out, [leaf, *module.parameters()], grad.to(out.dtype)), strict=True
            )
        ),
    }


def kernels(module, x):
    with hipkittens.timing("MI355X") as run:
        module(x)
    return [launch.kernel for launch in run.launches]


def has_gate_in_product(names):
    return len(names) == 2 and "gemm_gated" in names[0]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
@pytest.mark.parametrize(("name", "bias"), [("SwiGLU", False), ("GeGLU", True)])
def test_results_and_gradients(target, dtype, name, bias):
    torch.manual_seed(0)
    module = getattr(nn, name)(64, 40, bias=bias, dtype=dtype)
    x, grad = draw(2, 17, 64, dtype=dtype), draw(2, 17, 64, dtype=dtype, seed=2)
    with hipkittens.simulate(target, checks="all") as run:
        ours = gradients(module, module, x, grad)
    assert not run.findings
    gate = GATES[name]
    theirs = gradients(module, lambda leaf: in_torch(module, gate, leaf), x, grad)
    module.to(F64)
    exact = gradients(module, lambda leaf: in_torch(module, gate, leaf), x.to(F64), grad)
    for key, value in ours.items():
        comparison = compare(value, theirs[key], exact[key], exact[key].abs().max().item())
        assert comparison.passes, (key, comparison)


def test_two_launches_without_and_three_with_a_hook():
    module, x, seen = nn.SwiGLU(64, 40, dtype=BF16), draw(3, 64), []
    assert has_gate_in_product(kernels(module, x))
    for register in ("register_forward_hook", "register_forward_pre_hook"):
        handle = getattr(module.gate_up_proj, register)(lambda *call: seen.append(len(call)))
        assert len(kernels(module, x)) == 3
        handle.remove()
    assert seen == [3, 2]
    handle = module.gate_up_proj.register_full_backward_hook(lambda *call: seen.append(len(call)))
    with hipkittens.simulate("gfx950"):
        module(x.clone().requires_grad_()).sum().backward()
    handle.remove()
    assert seen == [3, 2, 3]
    with torch.nn.modules.module.register_module_forward_hook(lambda *call: seen.append(call[0])):
        assert len(kernels(module, x)) == 3
    assert module.gate_up_proj in seen
    assert has_gate_in_product(kernels(module, x))


def test_other_projections_are_called():
    module, x = nn.SwiGLU(64, 48, dtype=BF16), draw(3, 64)
    with hipkittens.simulate("gfx950"):
        plain = module(x)
        module.gate_up_proj.forward = lambda value: torch.zeros(3, 96, dtype=BF16)
        assert not module(x).any()
        del module.gate_up_proj.forward
        assert torch.equal(module(x), plain)
    module.gate_up_proj = nn.Float8Linear(64, 96, bias=False, dtype=BF16)
    assert not any("gemm_gated" in name for name in kernels(module, x))


def test_patched_blocks_follow_their_projection():
    """Without linear=True the product stays PyTorch's, and so does everything that uses it."""
    module, x = Phi3MLP(), draw(3, 64)
    expected = module(x)
    with hipkittens.patched(module):
        assert len(kernels(module, x)) == 1
    with hipkittens.patched(module, linear=True):
        assert has_gate_in_product(kernels(module, x))
        with hipkittens.simulate("gfx950"):
            torch.testing.assert_close(module(x), expected, rtol=0.02, atol=0.01)
    assert torch.equal(module(x), expected)


def test_in_one_graph():
    module, x = nn.SwiGLU(64, 40, dtype=BF16), draw(3, 64)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with hipkittens.simulate("gfx950"):
        assert torch.equal(compiled(x), module(x))
    assert has_gate_in_product(kernels(compiled, x))


def test_under_autocast():
    module, x = nn.SwiGLU(64, 40), draw(3, 64, dtype=torch.float32)
    with torch.autocast("cpu", BF16):
        assert has_gate_in_product(kernels(module, x))
        with hipkittens.simulate("gfx950"):
            assert module(x).dtype == BF16
