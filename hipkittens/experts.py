# SPDX-License-Identifier: MIT
"""Mixture-of-experts layer: tokens are gathered by expert, two GEMMs per expert, and the results combined as a weighted sum."""

from __future__ import annotations

import torch

from . import _backend, _gated_experts, _scaled_experts
from ._arguments import check_dtype_and_device, check_flag, check_gets_no_gradient, check_tensor
from ._autocast import to_autocast_dtype
from ._call import call
from ._panels import as_b, seen_as_rows
from .activation import ACTIVATIONS, GATES, gate_and_other
from .activation import activation as activate
from .gemm import INPUT_DTYPES
from .grouped import grouped_matmul
from .routing import expert_sort
from .selection import DTYPES


@_backend.interruptible
def expert_gather(
    x: torch.Tensor, entries: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Gather the rows of tokens in the order of their experts: x[entries // k], with entries from `expert_sort`.

    - `x`: (tokens, columns) bfloat16, float16 or float32.
    - `entries`: (rows,) int32, token * k + choice for each row of the result. Values outside 0 .. tokens k - 1 give a row of zeros.
    - `places`: (tokens, k) int32, the row of each choice, negative if it has none; used to compute the gradient.
    - `weights`: (tokens, k) float32, bfloat16 or float16. Each row is multiplied by its weight in float32 before it is rounded.

    entries and places are those of one `expert_sort`: each row of the result that has a token is the place of one choice. Differentiable
    in x and weights, any number of times. The gradient of x is `expert_combine`, which adds a token's rows in float32 in the order of its
    choices, so it is the same in every run.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    weights = _check("hipkittens.expert_gather", "x", x, entries, places, weights)
    if x.shape[0] != places.shape[0]:
        raise ValueError(
            f"hipkittens.expert_gather: x has {x.shape[0]} rows and places {places.shape[0]}; both have one for each token"
        )
    arguments = x, entries.contiguous(), places.contiguous(), weights
    if _backend.uses_torch():
        return gathered_in_torch(*arguments)
    return call("expert_gather", *arguments)


@_backend.interruptible
def expert_combine(
    y: torch.Tensor, entries: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Combine the experts' results for each token: out[t] = sum over its choices s of weights[t, s] y[places[t, s]].

    - `y`: (rows, columns) bfloat16, float16 or float32, in the order of experts.
    - `entries`: (rows,) int32, token * k + choice for each row of y, out of range if it has none; used to compute the gradient.
    - `places`: (tokens, k) int32, the row of each choice. Negative numbers and those past the end of y add nothing.
    - `weights`: (tokens, k) float32, bfloat16 or float16, or None for 1.

    Sums are float32, in the order of the choices, and rounded once. The result is the same in every run, and that of a token does not
    depend on other tokens. A row of y that no place refers to is not read, whatever it contains. Differentiable in y and weights, any
    number of times; the gradient of y is `expert_gather`.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    weights = _check("hipkittens.expert_combine", "y", y, entries, places, weights)
    if y.shape[0] != entries.shape[0]:
        raise ValueError(
            f"hipkittens.expert_combine: y has {y.shape[0]} rows and entries {entries.shape[0]}; they must be equal"
        )
    arguments = y, entries.contiguous(), places.contiguous(), weights
    if _backend.uses_torch():
        return combined_in_torch(*arguments)
    return call("expert_combine", *arguments)


@_backend.interruptible
def moe(
    x: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    *,
    activation: str = "silu",
    scale_w1: torch.Tensor | None = None,
    scale_w2: torch.Tensor | None = None,
    recipe: _scaled_experts.Recipe | None = None,
    swizzle: str | None = None,
    smooth1: torch.Tensor | None = None,
    smooth2: torch.Tensor | None = None,
    bias1: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
    expert_map: torch.Tensor | None = None,
    interleaved: bool = False,
    weight_input: bool = False,
    swiglu_limit: float | None = None,
    gated: bool = True,
) -> torch.Tensor:
    """Apply the experts of a mixture-of-experts layer to tokens and combine their results by the router's weights.

    The result is the sum over a token's choices e of weight * (gate(x @ w1[e].T + bias1[e]) @ w2[e].T + bias2[e]).

    - `x`: (tokens, H) bfloat16 or float16.
    - `w1`: (E, 2 I, H) of that dtype, or with scales 8-bit floats of the target, int8, or (E, 2 I, H / 2) bytes of e2m1 (uint8 or
      float4_e2m1fn_x2): I rows for the gate, then I rows for what it multiplies.
    - `w2`: (E, H, I), or (E, H, I / 2) of e2m1. w1, w2 or both may be preshuffled (panel layout) by `preshuffle` or AITER's shuffle_weight,
      (E, N / 16, bytes of a row / 16, 16, elements of 16 bytes), with the same result but no derivative.
    - `topk_weights`: (tokens, k) float32 or x's dtype, as returned by `router`.
    - `topk_ids`: (tokens, k) int32 or int64. Without a map, ids that are not those of an expert add nothing.
    - `activation`: a kind of `gated_activation`: "silu", "gelu_tanh", "gelu", "relu", "tanh", "swiglu" (gpt-oss).
    - `scale_w1`, `scale_w2`: float32 scales of quantized weights: (E, 2 I, 1) and (E, H, 1), as returned by
      quantize(w, QuantSpec("fp8", "row")) ("row"); (E, 1, 1) or one element ("tensor"); one for each 128 rows by 128 columns,
      (E, ceil(2 I / 128), ceil(H / 128)) and (E, ceil(H / 128), ceil(I / 128)) ("128x128"); or e8m0 bytes (uint8 or float8_e8m0fnu) for
      each 32 of a row, (E, 2 I, H / 32) and (E, H, I / 32) ("1x32").
    - `recipe`: how activations are quantized and how weights were: ("row", "row"), ("row", "tensor"), ("tensor", "tensor"),
      ("tensor", "row"), ("1x128", "128x128"), or on gfx950 ("1x32", "1x32") with 8-bit floats; with int8 the combinations of "row" and
      "tensor". With e2m1 weights the second is "1x32", and the first None: activations stay bfloat16 (both targets); or on gfx950 "row" or
      "tensor": 8-bit floats with a float32 scale; "mxfp8": 8-bit floats with e8m0 scales of 32; "1x32": e2m1 with e8m0 scales of 32.
      None for both infers it from the shapes and dtypes of the scales, with one scale for each row of activations, or for each 128 of its
      columns if weights have block scales; with e2m1 weights activations stay bfloat16.
    - `swizzle`: the order of the weights' 1x32 scales. None: rows, reordered for the kernels in each call. "shuffled": each expert's scales
      are in that order, as in `grouped_matmul`.
    - `smooth1`, `smooth2`: float32 (E, H) and (E, I), factors of an expert's input and of its gated hidden values before they are quantized
      (SmoothQuant, in which the weights were divided by them); for activations with scales of rows.
    - `bias1`, `bias2`: (E, 2 I) and (E, H), in x's dtype or float32.
    - `expert_map`: int32, the index among these E experts for each id, negative for an expert of another device (expert parallelism). The
      layer's result is the sum of the results of all devices.
    - `interleaved`: rows of w1 alternate between gate and multiplied half, as in gpt-oss; with scales, intermediate results are then copied
      once.
    - `weight_input`: weights multiply x before the first GEMM, as in Llama 4, instead of the experts' results.
    - `swiglu_limit`: the limit of `gated_activation`.
    - `gated`: if False, w1 is (E, I, H), bias1 (E, I), and the activation, one of `activation`, multiplies nothing.

    Without scales there are five launches, six without a gate or if columns of w1 are contiguous, and two more for over 65536 choices. None
    waits for the host: grids are sized for the largest possible number of rows, tokens k, and the experts' row counts stay on the device,
    so the call can be captured in a graph. Gated values and the results of the second GEMM are rounded to x's dtype (those of the first
    GEMM as well, if the gate is a separate launch); a token's sum is float32 and rounded once. Two runs give the same bytes, and permuted
    tokens give permuted results. Differentiable in x, w1, w2, topk_weights and the biases. Under torch.autocast x, w1, w2 and the biases
    are converted to its dtype; topk_weights are not.

    With scales, x and the gated values are quantized by their largest magnitudes, as in `quantize`. The gated values are quantized in the
    launch of the gate, unless they have a per-tensor scale or there is a smooth2. There are six launches, five if activations stay
    bfloat16, and one more for per-tensor scales or if weights multiply x. A token is quantized and stored once, and the first GEMM gathers
    its rows. 8-bit float weights are float8_e4m3fnuz on gfx942 and float8_e4m3fn on gfx950. Not differentiable: tensors that require a
    gradient are refused. Under torch.autocast weights are not converted.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    where = "hipkittens.moe"
    scaled = any(each is not None for each in (scale_w1, scale_w2, recipe, swizzle, smooth1, smooth2))
    if scaled:
        x, bias1, bias2 = to_autocast_dtype(x, bias1, bias2)
    else:
        x, w1, w2, bias1, bias2 = to_autocast_dtype(x, w1, w2, bias1, bias2)
    for name, value in (("interleaved", interleaved), ("weight_input", weight_input), ("gated", gated)):
        check_flag(where, name, value)
    as_rows = {
        name: seen_as_rows(where, name, w) if isinstance(w, torch.Tensor) and w.dim() == 5 else w
        for name, w in (("w1", w1), ("w2", w2))
    }
    _check_layer(where, x, *as_rows.values(), topk_weights, topk_ids, activation, bias1, bias2, gated, scaled)
    if as_rows["w1"] is not w1 or as_rows["w2"] is not w2:
        given = {"x": x, "w1": w1, "w2": w2, "topk_weights": topk_weights, "bias1": bias1, "bias2": bias2}
        for name, value in given.items():
            check_gets_no_gradient(where, name, value)
    if not gated and (interleaved or swiglu_limit is not None):
        name, value = ("interleaved", True) if interleaved else ("swiglu_limit", swiglu_limit)
        raise ValueError(f"{where}: {name} is {value} and gated False; only a gate has it: leave it out")
    scales = None
    if scaled:
        tensors = {"x": x, **as_rows, "topk_weights": topk_weights, "bias1": bias1, "bias2": bias2}
        scales = _scaled_experts.checked(
            where, tensors, scale_w1, scale_w2, recipe, swizzle, smooth1, smooth2
        )
    order = expert_sort(topk_ids, None, w1.shape[0], layout="ragged", expert_map=expert_map)
    ends, index = order.offsets[1:], (order.entries, order.places)
    if weight_input:
        takes_tokens = False
    elif scales is not None:
        takes_tokens = _scaled_experts.takes_tokens(scales, x)
    else:
        takes_tokens = gated and _gated_experts.takes_tokens(x, w1, order.places, bias1, interleaved)
    if takes_tokens:
        rows, tokens = x, index
    else:
        rows, tokens = expert_gather(x, *index, topk_weights if weight_input else None), ()
    y = _layer(rows, tokens, w1, w2, ends, scales, activation, bias1, bias2, interleaved, swiglu_limit, gated)
    return expert_combine(y, *index, None if weight_input else topk_weights)


def _layer(
    rows, tokens, w1, w2, ends, scales, activation, bias1, bias2, interleaved, limit, gated
) -> torch.Tensor:
    """Both GEMMs and the activation between them, of rows in the order of experts; or of tokens, given the entries and places of their
    choices in this order.
    """
    if scales is not None:
        sums = _scaled_experts.hidden_rows(rows, w1, ends, scales, bias1, *tokens)
        hidden, other = gate_and_other(sums, interleaved)
        return _scaled_experts.gated_rows(
            hidden, w2, ends, scales, bias2, kind=activation, other=other, limit=limit, gated=gated
        )
    if gated:
        of_tokens = (tokens[0], tokens[1].shape[1]) if tokens else (None, 1)
        hidden = _gated_experts.gated_groups(
            rows, w1, ends, bias1, activation, interleaved, limit, *of_tokens
        )
    else:
        hidden = activate(grouped_matmul(rows, as_b(w1), ends, bias=bias1), activation)
    return grouped_matmul(hidden, as_b(w2), ends, bias=bias2)


def gathered_in_torch(
    x: torch.Tensor, entries: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """expert_gather by PyTorch operations; float64 stays float64."""
    pairs = places.numel()
    if pairs == 0:
        return x.new_zeros(entries.shape[0], x.shape[1])
    there = (entries >= 0) & (entries < pairs)
    pair = torch.where(there, entries, 0).long()
    rows = x[pair // places.shape[1]].to(_wide(x))
    if weights is not None:
        rows = rows * weights.reshape(-1)[pair][:, None]
    return torch.where(there[:, None], rows, 0).to(x.dtype)


def combined_in_torch(
    y: torch.Tensor, entries: torch.Tensor, places: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """expert_combine by PyTorch operations; float64 stays float64."""
    there = (places >= 0) & (places < y.shape[0])
    total = y.new_zeros(places.shape[0], y.shape[1], dtype=_wide(y))
    for choice in range(places.shape[1] if y.shape[0] else 0):
        rows = y[torch.where(there[:, choice], places[:, choice], 0).long()].to(_wide(y))
        if weights is not None:
            rows = rows * weights[:, choice, None]
        total = total + torch.where(there[:, choice, None], rows, 0)
    return total.to(y.dtype)


def _wide(rows: torch.Tensor) -> torch.dtype:
    return rows.dtype if rows.dtype == torch.float64 else torch.float32


def _check(
    where: str,
    name: str,
    rows: torch.Tensor,
    entries: torch.Tensor,
    places: torch.Tensor,
    weights: torch.Tensor | None,
) -> torch.Tensor | None:
    """Raises for arguments that no kernel supports; returns the weights in the form that the kernels read."""
    check_tensor(where, name, rows)
    check_dtype_and_device(where, name, rows, DTYPES, name, rows)
    if rows.dim() != 2:
        raise ValueError(f"{where}: {name} has shape {tuple(rows.shape)}; it needs 2 dimensions")
    for each, value, count, needed in (
        ("entries", entries, 1, "1 dimension"),
        ("places", places, 2, "2 dimensions, tokens and choices"),
    ):
        check_tensor(where, each, value)
        check_dtype_and_device(where, each, value, (torch.int32,), name, rows)
        if value.dim() != count:
            raise ValueError(f"{where}: {each} has shape {tuple(value.shape)}; it needs {needed}")
    if places.shape[1] < 1:
        raise ValueError(f"{where}: places has shape {tuple(places.shape)}; a token needs at least 1 choice")
    if weights is not None:
        check_tensor(where, "weights", weights)
        check_dtype_and_device(where, "weights", weights, DTYPES, name, rows)
        if weights.shape != places.shape:
            raise ValueError(
                f"{where}: weights has shape {tuple(weights.shape)}; it needs that of places, {tuple(places.shape)}"
            )
        weights = weights.float().contiguous()
    _backend.check_device(where, name, rows)
    return weights


def _check_layer(where, x, w1, w2, topk_weights, topk_ids, activation, bias1, bias2, gated, scaled) -> None:
    for name, value, dimensions in (("x", x, 2), ("w1", w1, 3), ("w2", w2, 3)):
        check_tensor(where, name, value)
        weight = name != "x"
        if weight and value.dtype in _scaled_experts.WEIGHTS and not scaled:
            raise TypeError(
                f"{where}: {name} is {value.dtype}, codes without scales; give scale_w1 and scale_w2"
            )
        dtypes = _scaled_experts.WEIGHTS if weight and scaled else INPUT_DTYPES
        check_dtype_and_device(where, name, value, dtypes, "x", x)
        if value.dim() != dimensions:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs {dimensions} dimensions"
            )
        if weight and not scaled and value.dtype != x.dtype:
            raise TypeError(f"{where}: {name} is {value.dtype} and x is {x.dtype}; convert one to the other")
    experts, rows, features = *w1.shape[:2], _scaled_experts.columns(w1)
    if gated and rows % 2:
        raise ValueError(
            f"{where}: w1 has shape {tuple(w1.shape)}; it needs (E, 2 I, H), rows of the gate and as many of what it multiplies"
        )
    if features != x.shape[1]:
        raise ValueError(f"{where}: w1 has shape {tuple(w1.shape)} and x {tuple(x.shape)}; both end with H")
    inner = rows // 2 if gated else rows
    if (*w2.shape[:2], _scaled_experts.columns(w2)) != (experts, features, inner):
        of = "" if _scaled_experts.columns(w2) == w2.shape[2] else " codes, two in a byte"
        raise ValueError(
            f"{where}: w2 has shape {tuple(w2.shape)}; with w1 {tuple(w1.shape)} it needs {(experts, features, inner)}{of}"
        )
    check_tensor(where, "topk_ids", topk_ids)
    check_tensor(where, "topk_weights", topk_weights)
    check_dtype_and_device(where, "topk_weights", topk_weights, DTYPES, "x", x)
    check_dtype_and_device(where, "topk_ids", topk_ids, (torch.int32, torch.int64), "x", x)
    if topk_ids.dim() != 2 or topk_ids.shape[0] != x.shape[0]:
        raise ValueError(
            f"{where}: topk_ids has shape {tuple(topk_ids.shape)}; it needs ({x.shape[0]}, k), a row for each of x"
        )
    if topk_weights.shape != topk_ids.shape:
        raise ValueError(
            f"{where}: topk_weights has shape {tuple(topk_weights.shape)}; it needs that of topk_ids, {tuple(topk_ids.shape)}"
        )
    kinds = GATES if gated else ACTIVATIONS
    if activation not in kinds:
        raise ValueError(f"{where}: activation is {activation!r}; allowed: {', '.join(map(repr, kinds))}")
    for name, value, shape in (("bias1", bias1, (experts, rows)), ("bias2", bias2, (experts, features))):
        if value is None:
            continue
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, (x.dtype, torch.float32), "x", x)
        if value.shape != shape:
            raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it needs {shape}")
