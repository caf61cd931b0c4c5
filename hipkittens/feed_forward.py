# SPDX-License-Identifier: MIT
"""Feed-forward blocks: a projection whose activation or gate is part of the matrix product, and the projection back."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_tensor
from ._autocast import to_autocast_dtype
from ._call import call
from .activation import (
    GATES,
    check_gate_options,
    constants_of,
    gate_and_other,
    gated_activation,
    gated_in_torch,
)
from .gemm import ACTIVATIONS_OF_SUMS, check_linear, linear, records


@_backend.interruptible
def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    kind: str = "silu",
    *,
    interleaved: bool = False,
    limit: float | None = None,
    alpha: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """act(x @ G.T + g) * (x @ U.T + u): x (..., K), weight (2 I, K) whose first I rows are G and whose others are U, bias (2 I)
    likewise; the result is (..., I).

    One launch, which neither writes nor reads what is multiplied: both sums are float32 until their product is rounded to
    out_dtype (x's by default, or bfloat16, float16, float32). Where a gradient is recorded the sums are kept, rounded to x's dtype,
    and the result is the same to the bit.

    kind         "silu", "gelu", "gelu_tanh", "relu", "tanh" or "swiglu", as hipkittens.gated_activation has them; limit and alpha
                 also
    interleaved  rows of G and U alternate in weight, and elements in bias, as gpt-oss has them

    x and weight are bfloat16 or float16, both the same; bias is of their dtype or float32. Raises TypeError or ValueError, before
    anything is launched, for what has no kernel.
    """
    where = "hipkittens.gated_linear"
    x, weight, bias = to_autocast_dtype(x, weight, bias)
    out_dtype = check_linear(where, x, weight, bias, out_dtype)
    if not isinstance(interleaved, bool):
        raise TypeError(f"{where}: interleaved is {interleaved!r}; it must be True or False")
    if weight.shape[0] % 2:
        raise ValueError(
            f"{where}: weight has {weight.shape[0]} rows; it needs an even number, those of the gates and of what they multiply"
        )
    check_gate_options(where, kind, limit, alpha)
    if _backend.uses_torch():
        return _in_torch(x, weight, bias, kind, interleaved, limit, alpha).to(out_dtype)
    if 0 in (*x.shape, *weight.shape):
        sums = linear(x, weight, bias, out_dtype=torch.float32)
        gate, other = gate_and_other(sums, interleaved)
        return gated_activation(gate, kind, other=other, limit=limit, alpha=alpha).to(out_dtype)
    result, _ = call(
        "linear_gated",
        x.reshape(-1, x.shape[-1]),
        weight,
        None if bias is None else bias.contiguous(),
        GATES.index(kind),
        interleaved,
        *constants_of(kind, limit, alpha),
        records(x, weight, bias),
        out_dtype,
    )
    return result.reshape(*x.shape[:-1], result.shape[-1])


@_backend.interruptible
def feed_forward(
    x: torch.Tensor,
    w_up: torch.Tensor,
    w_down: torch.Tensor,
    *,
    activation: str = "silu",
    gated: bool = True,
    bias_up: torch.Tensor | None = None,
    bias_down: torch.Tensor | None = None,
    interleaved: bool = False,
    limit: float | None = None,
    alpha: float | None = None,
) -> torch.Tensor:
    """The feed-forward block of a transformer: linear(gated_linear(x, w_up, bias_up, activation), w_down, bias_down), or where
    gated is False linear(linear(x, w_up, bias_up, activation=activation), w_down, bias_down).

    Two launches, no atomics: what is between the products is rounded once to x's dtype, and two runs are equal to the bit.

    x           (..., K), bfloat16 or float16, as the weights are
    w_up        (2 I, K), gates and then what they multiply (interleaved: alternately); (I, K) without gates
    w_down      (M, I); the result is (..., M)
    activation  of gates: "silu", "gelu", "gelu_tanh", "relu", "tanh" or "swiglu" with limit and alpha, as
                hipkittens.gated_activation has them; without gates the first four
    bias_up, bias_down  of as many elements as their weight has rows, in x's dtype or float32

    With derivatives of all tensors. Raises TypeError or ValueError, before anything is launched, for what has no kernel.
    """
    where = "hipkittens.feed_forward"
    if not isinstance(gated, bool):
        raise TypeError(f"{where}: gated is {gated!r}; it must be True or False")
    for name, weight in (("w_up", w_up), ("w_down", w_down)):
        check_tensor(where, name, weight)
        if weight.dim() != 2:
            raise ValueError(f"{where}: {name} has shape {tuple(weight.shape)}; it must be (out, in)")
    inner = w_up.shape[0] // 2 if gated else w_up.shape[0]
    if w_down.shape[1] != inner:
        raise ValueError(
            f"{where}: w_down takes {w_down.shape[1]} features and w_up {tuple(w_up.shape)} makes {inner} "
            f"{'with' if gated else 'without'} gates; they must be equal"
        )
    if gated:
        hidden = gated_linear(x, w_up, bias_up, activation, interleaved=interleaved, limit=limit, alpha=alpha)
        return linear(hidden, w_down, bias_down)
    for name, value, none in (
        ("interleaved", interleaved, False),
        ("limit", limit, None),
        ("alpha", alpha, None),
    ):
        if value is not none and value != none:
            raise ValueError(f"{where}: {name} is {value!r} and gated is False; it is a gate's")
    if activation not in ACTIVATIONS_OF_SUMS:
        allowed = ", ".join(map(repr, ACTIVATIONS_OF_SUMS))
        raise ValueError(
            f"{where}: activation is {activation!r} and gated is False; allowed without gates: {allowed}"
        )
    return linear(linear(x, w_up, bias_up, activation=activation), w_down, bias_down)


def _in_torch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    kind: str,
    interleaved: bool,
    limit: float | None,
    alpha: float | None,
) -> torch.Tensor:
    sums = x.float() @ weight.float().t()
    if bias is not None:
        sums = sums + bias.float()
    gate, other = gate_and_other(sums, interleaved)
    return gated_in_torch(gate, kind, limit, alpha, other)
