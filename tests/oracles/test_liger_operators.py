# SPDX-License-Identifier: MIT
"""Liger-Kernel's operators beside float64, results and gradients, on tensors of device="cuda" with every checker on.

What checkers find and nobody has traced to its cause yet is skipped, with what they say: UNEXPLAINED.
"""

import importlib

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")
pytest.importorskip("liger_kernel", reason="liger-kernel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import rocm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TARGETS = ("gfx942", "gfx950")
# Of results and gradients, by norm: the order of float32's sums and its approximate exponentials; a few roundings to bfloat16.
BARS = {torch.float32: 2e-6, torch.bfloat16: 8e-3}
EPS = 1e-6
functional = torch.nn.functional


def random(*sizes, seed=0):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def liger(module, function):
    return getattr(importlib.import_module(f"liger_kernel.ops.{module}"), function).apply


def rms(x, dim=-1):
    return x * (x.square().mean(dim, keepdim=True) + EPS).rsqrt()


def angles(tokens=7, size=64):
    phase = torch.arange(tokens)[:, None] / 100.0 ** (torch.arange(size // 2) / (size // 2))
    return phase.cos().repeat(1, 2)[None], phase.sin().repeat(1, 2)[None]


def rotated(x):
    cos, sin = (part.double() for part in angles())
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def rope(q, k):
    return torch.cat(liger("rope", "LigerRopeFunction")(q, k, *(part.to(q) for part in angles())), 1)


def jsd(x, y):
    """Half of each divergence to the mean of both, by row."""
    p, q = x.exp(), y.exp()
    mean = ((p + q) / 2).log()
    return ((p * (x - mean) + q * (y - mean)) / 2).sum() / len(x)


def added(x, residual, w):
    """The sum is a result, too."""
    y, total = liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")(x, residual, w, EPS)
    return torch.cat((y, total))


LOGITS = [random(9, 700).log_softmax(-1), random(9, 700, seed=1).log_softmax(-1)]
# (name, theirs, float64's, inputs that have gradients, others)
OPERATORS = {
    "rms_norm": (lambda x, w: liger("rms_norm", "LigerRMSNormFunction")(x, w, EPS), lambda x, w: rms(x) * w, [random(9, 700), random(700, seed=1)], []),
    "fused_add_rms_norm": (added, lambda x, r, w: torch.cat((rms(x + r) * w, x + r)), [random(9, 700), random(9, 700, seed=1), random(700, seed=2)], []),
    "layer_norm": (lambda x, w, b: liger("layer_norm", "LigerLayerNormFunction")(x, w, b, EPS), lambda x, w, b: functional.layer_norm(x, (700,), w, b, EPS), [random(9, 700), random(700, seed=1), random(700, seed=2)], []),
    "group_norm": (lambda x, w, b: liger("group_norm", "LigerGroupNormFunction")(x, w, b, 12, 3, EPS), lambda x, w, b: functional.group_norm(x, 3, w, b, EPS), [random(4, 12, 90), random(12, seed=1), random(12, seed=2)], []),
    "swiglu": (liger("swiglu", "LigerSiLUMulFunction"), lambda a, b: functional.silu(a) * b, [random(9, 700), random(9, 700, seed=1)], []),
    "geglu": (liger("geglu", "LigerGELUMulFunction"), lambda a, b: functional.gelu(a, approximate="tanh") * b, [random(9, 700), random(9, 700, seed=1)], []),
    "relu_squared": (liger("relu_squared", "LigerReLUSquaredFunction"), lambda x: x.relu().square(), [random(9, 700)], []),
    "softmax": (liger("softmax", "LigerSoftmaxFunction"), lambda x: x.softmax(-1), [random(9, 700)], []),
    "dyt": (liger("dyt", "LigerDyTFunction"), lambda x, a, g, b: g * (a * x).tanh() + b, [random(9, 700), random(1, seed=1), random(700, seed=2), random(700, seed=3)], []),
    "rope": (rope, lambda q, k: rotated(torch.cat((q, k), 1)), [random(2, 4, 7, 64), random(2, 2, 7, 64, seed=1)], []),
    "poly_norm": (lambda x, w, b: liger("poly_norm", "LigerPolyNormFunction")(x, w, b, EPS), lambda x, w, b: w[0] * rms(x**3) + w[1] * rms(x**2) + w[2] * rms(x) + b, [random(9, 700), random(3, seed=1), torch.tensor(0.3)], []),
    "kl_div": (lambda x, y: liger("kl_div", "LigerKLDivLossFunction")(x, y, "batchmean", True), lambda x, y: functional.kl_div(x, y, reduction="batchmean", log_target=True), LOGITS[:1], LOGITS[1:]),
    "jsd": (lambda x, y: liger("jsd", "LigerJSDFunction")(x, y, None), jsd, LOGITS[:1], LOGITS[1:]),
    "tvd": (lambda x, y: liger("tvd", "LigerTVDLossFunction")(x, y), lambda x, y: (x - y).abs().sum() / 2 / len(x), [LOGITS[0].exp()], [LOGITS[1].exp()]),
}  # fmt: skip
# Of an operator: the kind of finding, and of which kernel.
UNEXPLAINED = {
    ("rope", torch.float32): "racecheck: global_read_after_write: kernel _triton_rope",
    ("rope", torch.bfloat16): "racecheck: global_read_after_write: kernel _triton_rope",
    ("dyt", torch.bfloat16): "initcheck: uninitialised_register: kernel _dyt_fwd_kernel",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, dtype, target):
    theirs, exact, inputs, others = OPERATORS[name]
    inputs, others = ([tensor.to(dtype) for tensor in tensors] for tensors in (inputs, others))
    right = [tensor.double().requires_grad_() for tensor in inputs]
    expected = exact(*right, *(tensor.double() for tensor in others))
    step = random(*expected.shape, seed=99).to(dtype)
    expected.backward(step.double())
    with rocm.active(), hipkittens.simulate(target, checks="all") as run:
        mine = [tensor.to("cuda").requires_grad_() for tensor in inputs]
        result = theirs(*mine, *(tensor.to("cuda") for tensor in others))
        found = [result.detach().clone()]
        result.backward(step.to("cuda", result.dtype))  # some write gradients over it
        found = [tensor.cpu().double() for tensor in (*found, *(tensor.grad for tensor in mine))]
    findings = [str(finding) for finding in run.findings]
    unexplained = UNEXPLAINED.get((name, dtype))
    if unexplained:
        assert any(finding.startswith(unexplained) for finding in findings)
        pytest.skip(f"not explained yet: {findings[0]}")
    assert findings == []
    for ours, reference in zip(found, (expected.detach(), *(tensor.grad for tensor in right)), strict=True):
        assert float((ours - reference).norm() / reference.norm()) < BARS[dtype]
