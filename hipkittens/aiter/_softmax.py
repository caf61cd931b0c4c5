# SPDX-License-Identifier: MIT
"""Softmax by AITER's name."""

from __future__ import annotations

import torch

from .. import softmax as _softmax


def softmax(x: torch.Tensor) -> torch.Tensor:
    """`hipkittens.softmax` along the last dimension; rows of any length."""
    return _softmax(x)
