# SPDX-License-Identifier: MIT
"""Every operation on GPU tensors: results and gradients, devices, autocast, modules, compiled graphs."""

import pytest
import torch

import hipkittens
from hipkittens import _doctor_kernels, operations
from tests.gpu.conftest import TARGET, drawn

EXAMPLES = {
    f"{operation.name}: {example.title}": example
    for operation in operations.every()
    for example in operations.checks(operation).examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_agrees_with_pytorch(name):
    row = _doctor_kernels.run_family(name, EXAMPLES[name], "cuda:0")
    assert row["error"] is None, row["error"]
    assert row["ok"], row


def attend(q, k, v):
    y = hipkittens.attention(q, k, v, causal=True)
    return y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))


def heads(seed, device="cuda"):
    return [
        drawn(2, 96, number, 64, seed=seed + i, device=device).requires_grad_()
        for i, number in enumerate((4, 2, 2))
    ]


def test_results_are_those_of_the_simulator(simulated):
    found = attend(*heads(0))
    assert all(value.device == torch.device("cuda:0") for value in found)
    for value, expected in zip(found, simulated(attend, *heads(0)), strict=True):
        assert torch.equal(value.cpu(), expected)


def test_views_offsets_and_parameters(simulated):
    whole = drawn(3, 130, 200)
    x = whole[1:, 1:129:2, 8:136]
    layer = torch.nn.Parameter(drawn(72, 128, seed=1)), torch.nn.Parameter(drawn(72, seed=2))
    found = hipkittens.linear(x, *layer)
    assert torch.equal(found.cpu(), simulated(hipkittens.linear, x, *layer))


def test_tensors_of_two_places_are_refused():
    with pytest.raises(
        ValueError, match=r"hipkittens\.rms_norm: weight is on cpu and x on cuda:0; move one to the other"
    ):
        hipkittens.rms_norm(drawn(4, 64), drawn(64, device="cpu"))
    with pytest.raises(ValueError, match=r"x is on the CPU, and this machine has an AMD GPU"):
        hipkittens.softmax(drawn(4, 64, device="cpu"))
    with hipkittens.simulate(TARGET), pytest.raises(ValueError, match=r"the simulator takes CPU tensors"):
        hipkittens.softmax(drawn(4, 64))


def test_autocast():
    x, w = drawn(32, 64, dtype=torch.float32), drawn(48, 64, seed=1, dtype=torch.float32)
    with torch.autocast("cuda", torch.bfloat16):
        y = hipkittens.linear(x, w)
    assert y.dtype == torch.bfloat16 and torch.equal(y, hipkittens.linear(x.bfloat16(), w.bfloat16()))


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        make = dict(dtype=torch.bfloat16, device="cuda")
        self.norm = hipkittens.nn.RMSNorm(128, **make)
        self.qkv = hipkittens.nn.Linear(128, 3 * 128, **make)
        self.out = hipkittens.nn.Linear(128, 128, **make)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 64)) for each in self.qkv(self.norm(x)).chunk(3, -1))
        return x + self.out(hipkittens.attention(q, k, v, causal=True).flatten(-2))


def step(module, x):
    x = x.detach().requires_grad_()
    y = module(x)
    return [y.detach(), *torch.autograd.grad(y.float().square().mean(), [x, *module.parameters()])]


def test_a_compiled_step():
    torch.manual_seed(0)
    block = Block()
    compiled = torch.compile(block, fullgraph=True)
    for length in (40, 64):
        x = drawn(2, length, 128, seed=length)
        for found, expected in zip(step(compiled, x), step(block, x), strict=True):
            difference = (found.float() - expected.float()).abs().max()
            assert difference <= 2**-6 * expected.float().abs().max().clamp(min=1e-3)


def test_scaled_dot_product_attention_is_taken_over():
    from hipkittens.integrations import sdpa

    q, k, v = (drawn(2, 4, 96, 64, seed=seed) for seed in range(3))
    with sdpa.active():
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    expected = hipkittens.attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=True)
    assert torch.equal(found, expected.transpose(1, 2))


def test_a_checkpointed_block_draws_its_dropout_again():
    q, k, v = heads(7)

    def dropped(q, k, v):
        return hipkittens.attention(q, k, v, dropout_p=0.3)

    def run(function):
        torch.manual_seed(5)
        y = function(q, k, v)
        return y, *torch.autograd.grad(y.float().square().sum(), (q, k, v))

    plain = run(dropped)
    again = run(lambda *given: torch.utils.checkpoint.checkpoint(dropped, *given, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
