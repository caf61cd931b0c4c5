# SPDX-License-Identifier: MIT
"""layer_norm and rms_norm over the last dimension, with the residual (and dropout) added in the same pass."""

from __future__ import annotations

import math
from typing import Literal, overload

import torch

from . import _autocast, _backend
from ._arguments import check_dtype_and_device, check_probability, check_tensor, number
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
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """(z - mean) / sqrt(variance + eps) * weight + bias over the last dimension of z = dropout(x) + residual.

    With return_residual the result is (y, z). z is rounded to x's dtype before it is normalised; everything else is
    float32 until y is rounded. weight and bias share a dtype, which may differ from x's. Dropout draws its seed from
    torch's generator of x's device, once per call, when dropout_p > 0.

    x and residual (..., features), weight and bias (features,): float32, bfloat16 or float16, up to 65536 features.
    Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    x, residual = _widened(x, residual)
    _check("layer_norm", x, weight, bias, residual, eps)
    check_probability("hipkittens.layer_norm", "dropout_p", dropout_p)
    if _backend.uses_torch():
        z = torch.nn.functional.dropout(x, dropout_p)
        z = z if residual is None else z + residual
        y = torch.nn.functional.layer_norm(
            z.float(), z.shape[-1:], _as_float(weight), _as_float(bias), eps
        ).to(z.dtype)
        return (y, z) if return_residual else y
    seed = None
    if dropout_p > 0.0:
        seed = torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=x.device)
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
) -> torch.Tensor: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float = 1e-6,
    *,
    residual: torch.Tensor | None = None,
    return_residual: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """z / sqrt(mean(z ** 2) + eps) * weight over the last dimension of z = x + residual.

    With return_residual the result is (y, z). Shapes, dtypes, rounding and errors are those of layer_norm.
    """
    x, residual = _widened(x, residual)
    _check("rms_norm", x, weight, None, residual, eps)
    if _backend.uses_torch():
        z = x if residual is None else x + residual
        y = torch.nn.functional.rms_norm(z.float(), z.shape[-1:], _as_float(weight), eps).to(z.dtype)
        return (y, z) if return_residual else y
    y, z, _ = call("rms_norm", x, residual, weight, eps, _differentiated(x, residual, weight))
    if not return_residual:
        return y
    return y, x if residual is None else z


def _differentiated(*tensors: torch.Tensor | None) -> bool:
    """Whether a gradient may be taken: what it needs beside y is written only then."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _as_float(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.float()


def _widened(x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Under autocast a 16-bit x and a float32 residual both become the wider dtype. x alone keeps its dtype, since sums
    are float32 in any case."""
    if (
        isinstance(x, torch.Tensor)
        and isinstance(residual, torch.Tensor)
        and x.dtype != residual.dtype
        and _autocast.is_on(x.device)
    ):
        dtype = torch.promote_types(x.dtype, residual.dtype)
        return x.to(dtype), residual.to(dtype)
    return x, residual


def _check(function: str, x, weight, bias, residual, eps) -> None:
    where = f"hipkittens.{function}"
    if not 0.0 <= number(where, "eps", eps) < math.inf:
        raise ValueError(f"{where}: eps is {eps}; it must be finite and not negative")
    named = [("x", x), ("weight", weight), ("bias", bias), ("residual", residual)]
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
    for name, value in named[1:3]:
        if value is not None and (value.dim() != 1 or value.shape[0] != columns):
            raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it must be ({columns},)")
    if bias is not None and weight is None:
        raise ValueError(f"{where}: there is a bias and no weight; pass a weight of ones")
    if bias is not None and bias.dtype != weight.dtype:
        raise TypeError(
            f"{where}: weight is {weight.dtype} and bias is {bias.dtype}; convert one to the other"
        )
    if residual is not None:
        if residual.shape != x.shape:
            raise ValueError(
                f"{where}: residual has shape {tuple(residual.shape)} and x {tuple(x.shape)}; they must be equal"
            )
        if residual.dtype != x.dtype:
            raise TypeError(
                f"{where}: x is {x.dtype} and residual is {residual.dtype}; convert one to the other"
            )
    _backend.check_device(where, "x", x)
