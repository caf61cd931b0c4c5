# SPDX-License-Identifier: MIT
"""layer_norm and rms_norm over the last dimension, with the residual (and dropout) added in the same pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, overload

import torch

from . import _autocast, _backend
from ._arguments import (
    check_dtype_and_device,
    check_flag,
    check_probability,
    check_tensor,
    check_whole_number,
    number,
)
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LARGEST_ROW = 65536


@overload
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_residual: Literal[False] = False,
    x_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor: ...


@overload
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_residual: Literal[True],
    x_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_residual: bool,
    x_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    *,
    residual: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    return_residual: bool = False,
    x_bias: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Layer normalization over the last dimension, with dropout and a residual addition fused in one pass.

    Computes y = (z - mean) / sqrt(variance + eps) * weight + bias of z = dropout(x + x_bias) + residual. With `return_residual` the result
    is (y, z). z is rounded to x's dtype before it is normalized; everything else is float32 until y is rounded.

    - `x`, `residual`, `gate`: (..., features), float32, bfloat16 or float16, up to 65536 features.
    - `weight`, `bias`, `x_bias`: (features,), of one dtype, which may differ from x's. x_bias is added to x first
      (AITER's layernorm2d_fwd).
    - `dropout_p`: the probability of dropout. If > 0, each call draws a seed from torch's generator of x's device.
    - `gate`: y is multiplied by gate / (1 + exp(-gate)) before it is rounded: the gated norm of Qwen3-Next and Mamba 2.
    - `gemma`: the factor is 1 + weight, as Gemma and Qwen3-Next store it.
    - `round_before_weight`: (z - mean) / sqrt(variance + eps) is rounded to x's dtype before it is multiplied by the weight, as in T5 and
      Llama of Transformers (AITER's use_model_sensitive_rmsnorm).
    - `round_residual`: if False, the sum z is normalized in float32, and only the returned z is rounded.
    - `pad_to`: the columns of y are padded with zeros to a multiple of this.

    All tensors have gradients. With round_before_weight they are those of the norm without that rounding.
    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    x, residual = _widened(x, residual)
    _check("layer_norm", x, weight, bias, residual, eps, x_bias, gate)
    check_probability("hipkittens.layer_norm", "dropout_p", dropout_p)
    around = _Around(x_bias, gate, gemma, round_before_weight, round_residual, pad_to)
    around.check("hipkittens.layer_norm", x, weight)
    if _backend.uses_torch():
        return _in_torch(x, weight, bias, eps, residual, dropout_p, True, around, return_residual)
    seed = None
    if dropout_p > 0.0:
        seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)
    if around.is_there():
        return _fused(x, weight, bias, eps, residual, dropout_p, seed, True, around, return_residual)
    y, z, _, _ = call(
        "layer_norm",
        x,
        residual,
        weight,
        bias,
        eps,
        dropout_p,
        seed,
        _differentiated(x, residual, weight, bias),
    )
    if not return_residual:
        return y
    return y, x if residual is None and seed is None else z


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: Literal[False] = False,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: Literal[True],
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: bool,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: bool = False,
    gate: torch.Tensor | None = None,
    gemma: bool = False,
    round_before_weight: bool = False,
    round_residual: bool = True,
    pad_to: int = 1,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """RMS normalization over the last dimension, with a residual addition fused in one pass.

    Computes y = z / sqrt(mean(z ** 2) + eps) * weight of z = x + residual. With `return_residual` the result is (y, z). Shapes, dtypes,
    rounding and errors are those of layer_norm, and so are the options gate, gemma, round_before_weight, round_residual and pad_to.
    """
    x, residual = _widened(x, residual)
    _check("rms_norm", x, weight, None, residual, eps, None, gate)
    around = _Around(None, gate, gemma, round_before_weight, round_residual, pad_to)
    around.check("hipkittens.rms_norm", x, weight)
    if _backend.uses_torch():
        return _in_torch(x, weight, None, eps, residual, 0.0, False, around, return_residual)
    if around.is_there():
        return _fused(x, weight, None, eps, residual, 0.0, None, False, around, return_residual)
    y, z, _ = call("rms_norm", x, residual, weight, eps, _differentiated(x, residual, weight))
    if not return_residual:
        return y
    return y, x if residual is None else z


@dataclass(frozen=True)
class _Around:
    """Options that most calls leave at their defaults."""

    x_bias: torch.Tensor | None
    gate: torch.Tensor | None
    gemma: bool
    round_before_weight: bool
    round_residual: bool
    pad_to: int

    def is_there(self) -> bool:
        return (
            self.x_bias is not None
            or self.gate is not None
            or self.gemma
            or self.round_before_weight
            or not self.round_residual
            or self.pad_to != 1
        )

    def check(self, where: str, x: torch.Tensor, weight: torch.Tensor | None) -> None:
        check_flags(where, self.gemma, self.round_before_weight, self.round_residual, weight)
        check_whole_number(where, "pad_to", self.pad_to)
        if not 1 <= self.pad_to <= LARGEST_ROW:
            raise ValueError(f"{where}: pad_to is {self.pad_to}; allowed: 1 to {LARGEST_ROW}")

    def columns(self, x: torch.Tensor) -> int:
        """The number of columns of y."""
        return -(-x.shape[-1] // self.pad_to) * self.pad_to


def check_flags(where: str, gemma, round_before_weight, round_residual, weight) -> None:
    flags = {
        "gemma": gemma,
        "round_before_weight": round_before_weight,
        "round_residual": round_residual,
    }
    for name, value in flags.items():
        check_flag(where, name, value)
    if gemma and weight is None:
        raise ValueError(f"{where}: gemma is True and weight is None; pass the weight that 1 is added to")


def _fused(x, weight, bias, eps, residual, dropout_p, seed, centred, around, return_residual):
    y, z, _, _ = call(
        "norm",
        x,
        residual,
        weight,
        bias,
        around.x_bias,
        around.gate,
        seed,
        centred,
        eps,
        dropout_p,
        around.gemma,
        around.round_before_weight,
        around.round_residual,
        around.columns(x),
        _differentiated(x, residual, weight, bias, around.x_bias, around.gate),
    )
    if not return_residual:
        return y
    return y, x if residual is None and seed is None and around.x_bias is None else z


def _in_torch(x, weight, bias, eps, residual, dropout_p, centred, around, return_residual):
    """HIPKITTENS_BACKEND=torch: PyTorch operations in float32."""
    z = x.float() if around.x_bias is None else x.float() + around.x_bias.float()
    z = torch.nn.functional.dropout(z, dropout_p)
    z = z if residual is None else z + residual.float()
    rounded = z.to(x.dtype)
    y = rounded.float() if around.round_residual else z
    normalised = torch.nn.functional.layer_norm if centred else torch.nn.functional.rms_norm
    y = normalised(y, y.shape[-1:], eps=eps)
    if around.round_before_weight:
        y = y.to(x.dtype).float()
    if weight is not None:
        y = y * (weight.float() + 1.0 if around.gemma else weight.float())
    if bias is not None:
        y = y + bias.float()
    if around.gate is not None:
        y = y * torch.nn.functional.silu(around.gate.float())
    y = torch.nn.functional.pad(y.to(x.dtype), (0, around.columns(x) - x.shape[-1]))
    return (y, rounded) if return_residual else y


def _differentiated(*tensors: torch.Tensor | None) -> bool:
    """Whether a gradient may be required: only then is what it needs written in addition to y."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _widened(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Under autocast a 16-bit x and a float32 residual are both converted to the wider dtype. x alone keeps its dtype, since sums
    are float32 in any case.
    """
    if (
        isinstance(x, torch.Tensor)
        and isinstance(residual, torch.Tensor)
        and x.dtype != residual.dtype
        and _autocast.is_on(x.device)
    ):
        dtype = torch.promote_types(x.dtype, residual.dtype)
        return x.to(dtype), residual.to(dtype)
    return x, residual


def _check(function: str, x, weight, bias, residual, eps, x_bias, gate) -> None:
    check_operands(f"hipkittens.{function}", x, weight, bias, residual, eps, x_bias, gate)


def check_operands(where: str, x, weight, bias, residual, eps, x_bias, gate) -> None:
    """Raises TypeError or ValueError for operands of a norm that no kernel supports."""
    if not 0.0 <= number(where, "eps", eps) < math.inf:
        raise ValueError(f"{where}: eps is {eps}; it must be finite and not negative")
    named = [
        ("x", x),
        ("weight", weight),
        ("bias", bias),
        ("x_bias", x_bias),
        ("residual", residual),
        ("gate", gate),
    ]
    for name, value in named:
        if value is None and name != "x":
            continue
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, DTYPES, "x", x)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    columns = x.shape[-1]
    if not 1 <= columns <= LARGEST_ROW:
        raise ValueError(f"{where}: rows of x have {columns} elements; allowed: 1 to {LARGEST_ROW}")
    for name, value in named[1:4]:
        if value is not None and (value.dim() != 1 or value.shape[0] != columns):
            raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it must be ({columns},)")
    if bias is not None and weight is None:
        raise ValueError(f"{where}: there is a bias and no weight; pass a weight of ones")
    parameters = [(name, value) for name, value in named[1:4] if value is not None]
    for name, value in parameters[1:]:
        first_name, first = parameters[0]
        if value.dtype != first.dtype:
            raise TypeError(
                f"{where}: {first_name} is {first.dtype} and {name} is {value.dtype}; convert one to the other"
            )
    for name, value in named[4:]:
        if value is None:
            continue
        if value.shape != x.shape:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)} and x {tuple(x.shape)}; they must be equal"
            )
        if value.dtype != x.dtype:
            raise TypeError(f"{where}: x is {x.dtype} and {name} is {value.dtype}; convert one to the other")
    _backend.check_device(where, "x", x)
