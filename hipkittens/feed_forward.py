# SPDX-License-Identifier: MIT
"""Feed-forward blocks: a projection with its activation or gate fused into the GEMM, and the projection back."""

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
    """Gated linear layer in one launch: act(x @ G.T + g) * (x @ U.T + u).

    - `x`: (..., K).
    - `weight`: (2 I, K); its first I rows are G, the others U.
    - `bias`: (2 I), g and u in the same order; of the weight's dtype or float32.
    - `kind`: "silu", "gelu", "gelu_tanh", "relu", "tanh" or "swiglu", as in hipkittens.gated_activation, with its `limit` and `alpha`.
    - `interleaved`: rows of G and U alternate in weight, and elements in bias, as in gpt-oss.
    - `out_dtype`: bfloat16, float16 or float32; x's dtype by default.

    The result is (..., I). The values before the gate are neither written to memory nor read back: both accumulators are float32 until
    their product is rounded to out_dtype. Where a gradient is recorded they are stored, rounded to x's dtype, and the result is
    bit-identical.

    x and weight are bfloat16 or float16, both the same. Raises TypeError or ValueError, before anything is launched, for arguments that no
    kernel supports.
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
    """Feed-forward block of a transformer, gated or not, in two launches.

    Computes linear(gated_linear(x, w_up, bias_up, activation), w_down, bias_down), or if gated is False
    linear(linear(x, w_up, bias_up, activation=activation), w_down, bias_down).

    - `x`: (..., K), bfloat16 or float16, like the weights.
    - `w_up`: (2 I, K), gates followed by what they multiply (`interleaved`: alternating); (I, K) if `gated` is False.
    - `w_down`: (M, I); the result is (..., M).
    - `activation`: with gates "silu", "gelu", "gelu_tanh", "relu", "tanh" or "swiglu" with `limit` and `alpha`, as in
      hipkittens.gated_activation; without gates one of the first four.
    - `bias_up`, `bias_down`: as many elements as their weight has rows, in x's dtype or float32.

    The hidden values are rounded once to x's dtype. There are no atomics, and two runs are bit-identical. Differentiable in all tensors.
    Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
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
