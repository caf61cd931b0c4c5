# SPDX-License-Identifier: MIT
"""flash-linear-attention's delta rules: its unchanged Triton kernels on the simulated GPUs, its own references, and the functions of the
same names in hipkittens.fla, all compared with one float64 recurrence that is independent of them."""

import importlib

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import rocm
from tests.oracles import fla_packages

TARGETS = ("gfx942", "gfx950")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(fla_packages.missing()), reason=fla_packages.missing()),
]
TOKENS, HEADS, SIZE = 70, 2, 64  # a whole chunk and a part of one
RULES = {
    "chunk_gated_delta_rule": ("fla.ops.gated_delta_rule", False),
    "fused_recurrent_gated_delta_rule": ("fla.ops.gated_delta_rule", False),
    "chunk_kda": ("fla.ops.kda", True),
    "fused_recurrent_kda": ("fla.ops.kda", True),
}
# The tolerance of flash-linear-attention's own tests, relative to the norm; its references compute in float32.
THEIR_BAR, REFERENCE_BAR = 5e-3, 1e-6
# Our error relative to theirs, as relative to PyTorch's: results in bfloat16 differ in their last rounding.
OF_THEIR_ERROR = 2.0
# For our states, in float32 (docs/gated_delta_rule.md): ours are computed in chunks; theirs, computed token by token, are
# more accurate.
STATE_BAR = 2e-5
# In three of its kernels Triton's compiler reads half of a mask, or of a pair of packed operands, that was never written.
OF_THEIR_COMPILER = {"uninitialised_register"}


@pytest.fixture
def fla():
    with fla_packages.importable():
        yield


def problem(by_channel):
    """q, k, v in bfloat16, the logarithm of the decay, beta."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(1, TOKENS, HEADS, *shape, generator=generator)  # noqa: E731
    q, k, v = (draw(SIZE).bfloat16() for _ in range(3))
    return q, k, v, -draw(*([SIZE] if by_channel else [])).sigmoid(), draw().sigmoid()


def recurrence(q, k, v, g, beta):
    """The recurrence in float64: token by token, with queries and keys of length 1."""
    q, k, v, g, beta = (each.double() for each in (q, k, v, g, beta))
    q, k = (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for each in (q, k))
    if g.dim() == 3:
        g = g[..., None]
    state, out = torch.zeros(1, HEADS, SIZE, SIZE, dtype=torch.float64), []
    for t in range(TOKENS):
        state = state * g[:, t, :, :, None].exp()
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * change[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) * SIZE**-0.5)
    return torch.stack(out, 1), state


def relative(found, exact):
    assert found.isfinite().all()
    return ((found.cpu().double() - exact).norm() / exact.norm()).item()


def called(function, inputs, device):
    q, k, v, g, beta = (each.to(device) for each in inputs)
    return function(q=q, k=k, v=v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", RULES)
def test_outputs_and_states(fla, target, name):
    module, by_channel = RULES[name]
    inputs = problem(by_channel)
    exact = recurrence(*inputs)
    with torch.no_grad(), rocm.active(), hipkittens.simulate(target, checks="all") as run:
        theirs = called(getattr(importlib.import_module(module), name), inputs, "cuda")
    assert {finding.kind for finding in run.findings} <= OF_THEIR_COMPILER
    with torch.no_grad(), hipkittens.simulate(target, checks="all") as run:
        ours = called(getattr(hipkittens.fla, name), inputs, "cpu")
    assert run.findings == []
    for mine, other, right in zip(ours, theirs, exact, strict=True):
        error = relative(other, right)
        assert error < THEIR_BAR
        bar = OF_THEIR_ERROR * error
        assert relative(mine, right) <= (max(bar, STATE_BAR) if mine.dtype == torch.float32 else bar)


@pytest.mark.parametrize("by_channel", [False, True])
def test_references(fla, by_channel):
    q, k, v, g, beta = (each.float() for each in problem(by_channel))
    exact = recurrence(q, k, v, g, beta)
    q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))
    module = importlib.import_module("fla.ops.kda.naive" if by_channel else "fla.ops.gated_delta_rule.naive")
    function = module.naive_recurrent_kda if by_channel else module.naive_recurrent_gated_delta_rule
    for found, right in zip(
        function(q=q, k=k, v=v, g=g, beta=beta, output_final_state=True), exact, strict=True
    ):
        assert relative(found, right) < REFERENCE_BAR


@pytest.mark.parametrize("target", TARGETS)
def test_gradients(fla, target):
    """Gradients of chunk_gated_delta_rule."""

    def gradients(function, inputs, **options):
        leaves = [each.detach().clone().requires_grad_() for each in inputs]
        out = function(*leaves, **options)
        out = out[0] if isinstance(out, tuple) else out
        return torch.autograd.grad(out, leaves, torch.ones_like(out))

    inputs = problem(False)
    exact = gradients(recurrence, [each.double() for each in inputs])
    options = {"use_qk_l2norm_in_kernel": True}
    with rocm.active(), hipkittens.simulate(target, checks="all") as run:
        rule = importlib.import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
        theirs = gradients(rule, [each.to("cuda") for each in inputs], **options)
    assert {finding.kind for finding in run.findings} <= OF_THEIR_COMPILER
    with hipkittens.simulate(target, checks="all") as run:
        ours = gradients(hipkittens.fla.chunk_gated_delta_rule, inputs, **options)
    assert run.findings == []
    for name, mine, other, right in zip(("q", "k", "v", "g", "beta"), ours, theirs, exact, strict=True):
        error = relative(other, right)
        assert error < 2e-2, name  # the tolerance of its tests for a gradient of gates
        assert relative(mine, right) <= OF_THEIR_ERROR * error, name
