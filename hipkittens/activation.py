# SPDX-License-Identifier: MIT
"""Activations, and the gates of feed-forward blocks: one half of a row, activated, times the other half."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# In the order of the enumeration in csrc/kernels/activation/kinds.h.
GATES = ("silu", "gelu_tanh", "gelu", "relu", "tanh", "swiglu")
ACTIVATIONS = GATES[:-1]
# gpt-oss' swiglu: its factor in the sigmoid, and the limit to which gate and other are clamped.
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
NO_BOUND = -1.0


@_backend.interruptible
def activation(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Apply an activation elementwise: SiLU, GELU, tanh-approximated GELU, ReLU or tanh.

    `kind` is "silu", x / (1 + exp(-x)); "gelu", torch.nn.functional.gelu; "gelu_tanh", the same with approximate="tanh"; "relu"; or "tanh".
    `x` is float32, bfloat16 or float16 of any shape. The computation is float32 until the result is rounded to x's dtype. Raises TypeError
    or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.activation"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    _check_kind(where, kind, ACTIVATIONS)
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        return in_torch(x.float(), kind).to(x.dtype)
    return call("activation", x, ACTIVATIONS.index(kind))


@_backend.interruptible
def gated_activation(
    x: torch.Tensor,
    kind: str = "silu",
    *,
    other: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    limit: float | None = None,
    alpha: float | None = None,
) -> torch.Tensor:
    """Apply a gated activation, act(x[..., :d]) * x[..., d:], to rows of 2 d elements: SwiGLU, GeGLU, ReGLU.

    vLLM's silu_and_mul and gelu_tanh_and_mul. If `other` is passed, with x's shape and dtype, the result is act(x) * other, for models with
    two separate projections.

    - `x`: float32, bfloat16 or float16; any d, and any leading dimensions.
    - `kind`: one of `activation`, or "swiglu", gpt-oss' gate: g / (1 + exp(-alpha g)) * (u + 1) with alpha 1.702 and limit 7 by default.
    - `alpha`: for "swiglu", and for "silu", where it is 1 by default; other kinds have none.
    - `limit`: the gate g becomes min(g, limit), and the other half u is clamped to -limit .. limit; clamped values have no gradient.
    - `bias`: (2 d,), in x's dtype, is added to each row first, d elements to the gate and the others to what it multiplies, without
      rounding the sum. Its gradient is that of x summed in float32, the same in every run.

    The computation is float32 until the result is rounded to x's dtype. Raises TypeError or ValueError, before anything is launched, for
    arguments that no kernel supports.
    """
    where = "hipkittens.gated_activation"
    check_gate(where, x, kind, other, limit, alpha, bias)
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        second = None if other is None else other.float()
        added = None if bias is None else bias.float()
        return gated_in_torch(x.float(), kind, limit, alpha, second, added).to(x.dtype)
    return call("gated_activation", x, other, bias, GATES.index(kind), *constants_of(kind, limit, alpha))


def check_gate(
    where: str,
    x: torch.Tensor,
    kind: str,
    other: torch.Tensor | None,
    limit: float | None,
    alpha: float | None,
    bias: torch.Tensor | None,
) -> None:
    """Raises TypeError or ValueError for arguments that are not a gate; `where` is the function that was called."""
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    if x.dim() == 0 and other is None:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    if other is not None:
        check_tensor(where, "other", other)
        check_dtype_and_device(where, "other", other, (x.dtype,), "x", x)
        if other.shape != x.shape:
            raise ValueError(
                f"{where}: other has shape {tuple(other.shape)} and x {tuple(x.shape)}; they must be equal"
            )
    elif x.shape[-1] % 2:
        raise ValueError(
            f"{where}: rows of x have {x.shape[-1]} elements; they need an even number, the gate and what it multiplies"
        )
    if bias is not None:
        _check_bias(where, x, other, bias)
    check_gate_options(where, kind, limit, alpha)


def check_gate_options(where: str, kind: str, limit: float | None, alpha: float | None) -> None:
    """The same for a gate's options."""
    _check_kind(where, kind, GATES)
    if limit is not None and not number(where, "limit", limit) > 0.0:
        raise ValueError(f"{where}: limit is {limit}; it must be above 0, or None")
    if alpha is not None:
        if kind not in ("silu", "swiglu"):
            raise ValueError(
                f"{where}: alpha is {alpha}, and kind {kind!r} has none; 'silu' and 'swiglu' have one"
            )
        if not math.isfinite(number(where, "alpha", alpha)):
            raise ValueError(f"{where}: alpha is {alpha}; it must be finite")


def _check_bias(where: str, x: torch.Tensor, other: torch.Tensor | None, bias: torch.Tensor) -> None:
    check_tensor(where, "bias", bias)
    check_dtype_and_device(where, "bias", bias, (x.dtype,), "x", x)
    if x.dim() == 0:
        raise ValueError(f"{where}: x has shape () and there is a bias; x needs at least 1 dimension")
    columns = x.shape[-1] * (1 if other is None else 2)
    if bias.shape != (columns,):
        raise ValueError(
            f"{where}: bias has shape {tuple(bias.shape)}; it must be ({columns},), the gate's elements and then those of what it "
            "multiplies"
        )


def _check_kind(where: str, kind: str, allowed: tuple[str, ...]) -> None:
    if kind not in allowed:
        raise ValueError(f"{where}: kind is {kind!r}; allowed: {', '.join(map(repr, allowed))}")


def constants_of(kind: str, limit: float | None, alpha: float | None) -> tuple[float, float]:
    """alpha and limit, as passed or the kind's defaults; NO_BOUND for no limit, as operators expect."""
    if alpha is None:
        alpha = SWIGLU_ALPHA if kind == "swiglu" else 1.0
    if limit is None:
        limit = SWIGLU_LIMIT if kind == "swiglu" else math.inf
    return float(alpha), bound_argument(limit)


def bound_argument(bound: float) -> float:
    """An upper bound in the operators' form: below 0 for an infinite one, since AOTInductor's packages with an infinity cannot be read."""
    return NO_BOUND if bound == math.inf else float(bound)


def in_torch(x: torch.Tensor, kind: str, alpha: float = 1.0) -> torch.Tensor:
    """`activation` by PyTorch operations, in x's dtype."""
    if kind in ("silu", "swiglu"):
        return F.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)
    if kind in ("gelu", "gelu_tanh"):
        return F.gelu(x, approximate="none" if kind == "gelu" else "tanh")
    return F.relu(x) if kind == "relu" else torch.tanh(x)


def gate_and_other(sums: torch.Tensor, interleaved: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """x and other of `gated_activation` for rows of gates and what they multiply: halves, or alternating elements."""
    return (sums[..., ::2], sums[..., 1::2]) if interleaved else (sums, None)


def gated_in_torch(
    x: torch.Tensor,
    kind: str = "silu",
    limit: float | None = None,
    alpha: float | None = None,
    other: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """`gated_activation` by PyTorch operations, in x's dtype."""
    alpha, limit = constants_of(kind, limit, alpha)
    gate, other = x.chunk(2, -1) if other is None else (x, other)
    if bias is not None:
        gate, other = gate + bias[: gate.shape[-1]], other + bias[gate.shape[-1] :]
    if limit != NO_BOUND:
        gate, other = gate.clamp(max=limit), other.clamp(-limit, limit)
    return in_torch(gate, kind, alpha) * (other + 1 if kind == "swiglu" else other)
