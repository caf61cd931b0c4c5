# SPDX-License-Identifier: MIT
"""How far a result is from float64, beside how far PyTorch's own result in the same dtype is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 2.0**-25}


@dataclass(frozen=True)
class Comparison:
    """Errors of ours and of PyTorch's, against the same float64 reference."""

    max_ours: float
    max_torch: float
    rms_ours: float
    rms_torch: float
    ratio_max: float
    ratio_rms: float

    @property
    def passes(self) -> bool:
        return self.ratio_max <= 2.0 and self.ratio_rms <= 2.0


def compare(ours: torch.Tensor, theirs: torch.Tensor, reference: torch.Tensor) -> Comparison:
    """Ratios are ours over PyTorch's, once one rounding unit of the largest value (for the maximum) and of the mean
    square (for the RMS) is allowed to ours: without it a case that PyTorch happens to hit exactly has no bar at all."""
    if ours.shape != reference.shape:
        raise AssertionError(f"the result has shape {tuple(ours.shape)}, the reference {tuple(reference.shape)}")
    if not reference.numel():
        return Comparison(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    unit = UNIT_ROUNDOFF[ours.dtype]
    error_ours, error_torch = (value.double() - reference for value in (ours, theirs))
    if not torch.isfinite(error_ours).all():
        return Comparison(float("inf"), error_torch.abs().max().item(), float("inf"), 0.0, float("inf"), float("inf"))
    max_ours, max_torch = error_ours.abs().max().item(), error_torch.abs().max().item()
    rms_ours, rms_torch = (error.square().mean().sqrt().item() for error in (error_ours, error_torch))
    return Comparison(
        max_ours,
        max_torch,
        rms_ours,
        rms_torch,
        _ratio(max_ours, max_torch, unit * reference.abs().max().item()),
        _ratio(rms_ours, rms_torch, unit * reference.square().mean().sqrt().item()),
    )


def _ratio(ours: float, theirs: float, allowance: float) -> float:
    if theirs == 0.0:
        return 0.0 if ours <= allowance else float("inf")
    return ours / theirs if ours > allowance else min(ours / theirs, 1.0)
