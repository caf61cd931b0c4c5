# SPDX-License-Identifier: MIT
"""Liger-Kernel's operators compared with float64, results and gradients, on tensors of device="cuda" with every checker on.

The findings of the checkers in two of them come from Triton and change no result: OF_TRITON explains why, and the two tests after it
demonstrate that.
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
# For results and gradients, by norm: the order of float32's sums and its approximate exponentials; a few roundings to bfloat16.
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
    """Half of each divergence from the mean of both, per row."""
    p, q = x.exp(), y.exp()
    mean = ((p + q) / 2).log()
    return ((p * (x - mean) + q * (y - mean)) / 2).sum() / len(x)


def added(x, residual, w):
    """The sum is also a result."""
    y, total = liger("fused_add_rms_norm", "LigerFusedAddRMSNormFunction")(x, residual, w, EPS)
    return torch.cat((y, total))


LOGITS = [random(9, 700).log_softmax(-1), random(9, 700, seed=1).log_softmax(-1)]
# (name, theirs, the float64 reference, inputs that have gradients, others)
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
# Per operator: the kind of finding, the kernel, and the cause.
RACE = (
    "global_read_after_write",
    "_triton_rope",
    "Triton gives threads beyond a tensor's elements the first elements once more: in rope, which rotates in place, such threads read "
    "what others may have stored already, which racecheck reports. They store nothing: no result depends on it",
)
UNWRITTEN_HALF = (
    "uninitialised_register",
    "_dyt_fwd_kernel",
    "Triton's compiler multiplies one float32 by `v_pk_mul_f32`, whose other half has an operand that nothing has written, which "
    "initcheck reports. The product of that half is overwritten before it is read: no result depends on it",
)
OF_TRITON = {
    ("rope", torch.float32): RACE,
    ("rope", torch.bfloat16): RACE,
    ("dyt", torch.bfloat16): UNWRITTEN_HALF,
}


def run_theirs(name, inputs, others, step, target, checks):
    """Results and gradients on the CPU, and the checkers' findings."""
    with rocm.active(), hipkittens.simulate(target, checks=checks) as run:
        mine = [tensor.to("cuda").requires_grad_() for tensor in inputs]
        result = OPERATORS[name][0](*mine, *(tensor.to("cuda") for tensor in others))
        found = [result.detach().clone()]
        result.backward(step.to("cuda", result.dtype))  # some write gradients over it
        return [tensor.cpu() for tensor in (*found, *(tensor.grad for tensor in mine))], run.findings


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name, dtype, target, record_property):
    _, exact, inputs, others = OPERATORS[name]
    inputs, others = ([tensor.to(dtype) for tensor in tensors] for tensors in (inputs, others))
    right = [tensor.double().requires_grad_() for tensor in inputs]
    expected = exact(*right, *(tensor.double() for tensor in others))
    step = random(*expected.shape, seed=99).to(dtype)
    expected.backward(step.double())
    found, findings = run_theirs(name, inputs, others, step, target, "all")
    for ours, reference in zip(found, (expected.detach(), *(tensor.grad for tensor in right)), strict=True):
        assert float((ours.double() - reference).norm() / reference.norm()) < BARS[dtype]
    if (name, dtype) not in OF_TRITON:
        assert [str(finding) for finding in findings] == []
        return
    kind, kernel, why = OF_TRITON[name, dtype]
    assert {(finding.kind, finding.kernel) for finding in findings} == {(kind, kernel)}
    record_property("client_fault", why)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("heads", [(4, 2), (8, 2), (8, 8)], ids=str)
def test_the_races_of_rope_are_of_threads_without_an_element(heads, dtype, target):
    """Each half of a token's queries, or keys, is a tensor of heads x 32 elements, processed by a program of 256 threads. The number of
    reads that race with a store equals the number of threads without an element; no store races."""
    tokens, half, threads = 2 * 7, 32, 256
    inputs = [random(2, number, 7, 2 * half, seed=number).to(dtype) for number in heads]
    with rocm.active(), hipkittens.simulate(target, checks="all") as run:
        rope(*(tensor.to("cuda") for tensor in inputs))
    beyond = [tokens * (threads - number * half) for number in heads for _ in range(2)]
    assert sorted(finding.count for finding in run.findings) == sorted(number for number in beyond if number)
    assert {finding.kind for finding in run.findings} <= {RACE[0]}


@pytest.mark.parametrize("target", TARGETS)
def test_no_result_of_dyt_depends_on_the_half_that_is_not_written(target):
    """The checkers fill registers with NaNs before a launch; without them they are zeros."""
    inputs, step = [tensor.bfloat16() for tensor in OPERATORS["dyt"][2]], random(9, 700, seed=99).bfloat16()
    checked, findings = run_theirs("dyt", inputs, [], step, target, "all")
    assert {finding.second.text.partition(" ")[0] for finding in findings} == {"v_pk_mul_f32"}
    plain, _ = run_theirs("dyt", inputs, [], step, target, None)
    for with_nans, with_zeros in zip(checked, plain, strict=True):
        assert torch.equal(with_nans.view(torch.int16), with_zeros.view(torch.int16))
