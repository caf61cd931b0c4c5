# SPDX-License-Identifier: MIT
"""Liger-Kernel's cross entropy, plain and fused with the linear layer, with every checker on.

Its Triton kernels overwrite their inputs with gradients, ordered only by __syncthreads, that is by a workgroup barrier. They are compared
with float64, next to PyTorch's own.
"""

import pytest
import torch

pytest.importorskip("triton", reason="the triton wheel is not installed (./run test installs it)")
pytest.importorskip("liger_kernel", reason="liger-kernel is not installed (./run test installs it)")

import hipkittens
from hipkittens.integrations import triton as simulated

TARGETS = ("gfx942", "gfx950")
# One rounding to bf16 of every value of a gradient; in float32 the summation order.
BARS = {torch.float32: 5e-7, torch.bfloat16: 5e-3}
cross_entropy = torch.nn.functional.cross_entropy


@pytest.fixture(autouse=True)
def rocm(monkeypatch):
    """Liger asks PyTorch whether this is ROCm, and otherwise launches more threads than an AMD workgroup can have."""
    monkeypatch.setattr(torch.version, "hip", "6.4")


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    return float((result.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize(("rows", "classes", "smoothing"), [(24, 1000, 0.0), (5, 40000, 0.1)])
def test_cross_entropy(target, dtype, rows, classes, smoothing):
    with simulated.active(), hipkittens.simulate(target, checks="all") as run:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

        generator = torch.Generator().manual_seed(0)
        values = torch.randn(rows, classes, generator=generator).to(dtype)
        labels = torch.randint(0, classes, (rows,), generator=generator)
        labels[::5] = -100
        ours = values.clone().requires_grad_()
        LigerCrossEntropyFunction.apply(ours, labels, None, -100, 0.0, smoothing)[0].backward()
    exact = values.double().requires_grad_()
    cross_entropy(exact, labels, label_smoothing=smoothing).backward()
    assert relative_error(ours.grad, exact.grad) < BARS[dtype]
    assert [str(finding) for finding in run.findings] == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", BARS, ids=str)
def test_fused_linear_cross_entropy(target, dtype):
    with simulated.active(), hipkittens.simulate(target, checks="all") as run:
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        generator = torch.Generator().manual_seed(0)
        x = torch.randn(40, 128, generator=generator).to(dtype)
        weight = (torch.randn(2000, 128, generator=generator) * 0.1).to(dtype)
        labels = torch.randint(0, 2000, (40,), generator=generator)
        ours = [value.clone().requires_grad_() for value in (x, weight)]
        LigerFusedLinearCrossEntropyFunction.apply(*ours, labels)[0].backward()
    exact = [value.double().requires_grad_() for value in (x, weight)]
    cross_entropy(exact[0] @ exact[1].T, labels).backward()
    for result, reference in zip(ours, exact, strict=True):
        assert relative_error(result.grad, reference.grad) < BARS[dtype]
    assert [str(finding) for finding in run.findings] == []
