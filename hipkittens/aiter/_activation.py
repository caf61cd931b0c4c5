# SPDX-License-Identifier: MIT
"""Gates by AITER's names: act(input[..., :d]) * input[..., d:] into out, of any d."""

from __future__ import annotations

import torch

from ..activation import gated_activation
from ._quant import static_per_tensor_quant
from ._results import put


def silu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("silu_and_mul", "out", out, gated_activation(input, "silu"))


def gelu_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("gelu_and_mul", "out", out, gated_activation(input, "gelu"))


def gelu_tanh_and_mul(out: torch.Tensor, input: torch.Tensor) -> None:
    put("gelu_tanh_and_mul", "out", out, gated_activation(input, "gelu_tanh"))


def scaled_silu_and_mul(out: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    """silu(a) * b * (1 / scale) as 8-bit floats, rounded once; scale stays on the device."""
    static_per_tensor_quant(out, gated_activation(input.float(), "silu"), scale)
