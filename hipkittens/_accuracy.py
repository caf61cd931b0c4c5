# SPDX-License-Identifier: MIT
"""Errors of a result against float64, compared with those of PyTorch's own result in the same dtype."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

BAR = 2.0
FLOAT32_UNIT_ROUNDOFF = 2.0**-24


@dataclass(frozen=True)
class Comparison:
    """Errors of ours and of PyTorch's against one float64 reference, and ours over PyTorch's."""

    max_ours: float
    max_torch: float
    rms_ours: float
    rms_torch: float
    ratio_max: float
    ratio_rms: float
    allowance: float = 0.0  # one float32 rounding of the largest sum

    @property
    def passes(self) -> bool:
        return self.ratio_max <= BAR and self.ratio_rms <= BAR


def compare(
    ours: torch.Tensor, theirs: torch.Tensor, reference: torch.Tensor, magnitude: float
) -> Comparison:
    """The bound: error(ours) <= 2 error(PyTorch's) + 2^-24 magnitude, for the largest error and for the RMS.

    magnitude is the largest sum of |a| |b| over k. The term is one float32 rounding of such a sum: without it, a result that PyTorch
    happens to compute exactly (a 1 x 1 product, for example) would leave no tolerance for any other order of summation.
    """
    if ours.shape != reference.shape:
        raise AssertionError(
            f"the result has shape {tuple(ours.shape)}, the reference {tuple(reference.shape)}"
        )
    if not reference.numel():
        return Comparison(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    error_ours, error_torch = (value.double() - reference for value in (ours, theirs))
    if not torch.isfinite(error_torch).all():
        raise AssertionError("PyTorch's own result is not finite: nothing to compare with")
    infinite = float("inf")
    max_torch, rms_torch = error_torch.abs().max().item(), error_torch.square().mean().sqrt().item()
    if not torch.isfinite(error_ours).all():
        return Comparison(infinite, max_torch, infinite, rms_torch, infinite, infinite)
    max_ours, rms_ours = error_ours.abs().max().item(), error_ours.square().mean().sqrt().item()
    allowance = FLOAT32_UNIT_ROUNDOFF * magnitude
    return Comparison(
        max_ours,
        max_torch,
        rms_ours,
        rms_torch,
        _ratio(max_ours, max_torch, allowance),
        _ratio(rms_ours, rms_torch, allowance),
        allowance,
    )


def mean_of(draws: Sequence[Comparison]) -> Comparison:
    """Over several draws of values: the mean of the largest errors, and the RMS of all errors. A NaN of ours stays infinite."""
    if len(draws) == 1:
        return draws[0]
    max_ours, max_torch, allowance = (
        sum(getattr(draw, name) for draw in draws) / len(draws)
        for name in ("max_ours", "max_torch", "allowance")
    )
    rms_ours, rms_torch = (
        (sum(getattr(draw, name) ** 2 for draw in draws) / len(draws)) ** 0.5
        for name in ("rms_ours", "rms_torch")
    )
    ratios = _ratio(max_ours, max_torch, allowance), _ratio(rms_ours, rms_torch, allowance)
    return Comparison(max_ours, max_torch, rms_ours, rms_torch, *ratios, allowance)


def _ratio(ours: float, theirs: float, allowance: float) -> float:
    if ours <= allowance:
        return min(ours / theirs, 1.0) if theirs else 0.0
    return (ours - allowance) / theirs if theirs else float("inf")
