# SPDX-License-Identifier: MIT
"""The experts of a mixture-of-experts layer by AITER's names: weights of bfloat16, float16, 8-bit floats, int8 and MXFP4."""

from __future__ import annotations

import enum

import torch

from .._panels import panels_of_rows
from .._scaled_experts import columns
from ..experts import expert_combine, moe
from ..scaled_grouped import FLOAT4, FLOAT8
from ._moe import local_numbers, moe_sorting_fwd, those_that_count
from ._operands import with_elements
from ._results import put, refuse


class ActivationType(enum.Enum):
    """AITER's numbers of activations; functions here accept AITER's own, these, and plain numbers."""

    No = -1
    Silu = 0
    Gelu = 1
    Swiglu = 2


class QuantType(enum.Enum):
    """AITER's numbers of scale granularities; functions here accept AITER's own, these, and plain numbers."""

    No = 0
    per_Tensor = 1
    per_Token = 2
    per_1x32 = 3
    per_1x128 = 4
    per_128x128 = 5


# How activations and weights are scaled, for quantized formats.
_RECIPES = {
    QuantType.per_Tensor: ("tensor", "tensor"),
    QuantType.per_Token: ("row", "row"),
    QuantType.per_1x32: ("1x32", "1x32"),
    QuantType.per_1x128: ("1x128", "128x128"),
    QuantType.per_128x128: ("1x128", "128x128"),
}
_DTYPES = {
    QuantType.No: (torch.bfloat16, torch.float16),
    QuantType.per_1x32: FLOAT4,
    QuantType.per_Tensor: (*FLOAT8, torch.int8),
    QuantType.per_Token: (*FLOAT8, torch.int8),
}
_KINDS = {ActivationType.Silu: "silu", ActivationType.Gelu: "gelu", ActivationType.Swiglu: "swiglu"}


def fused_moe(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weight: torch.Tensor,
    topk_ids: torch.Tensor,
    expert_mask: torch.Tensor | None = None,
    activation: ActivationType | int = ActivationType.Silu,
    quant_type: QuantType | int = QuantType.No,
    doweight_stage1: bool = False,
    w1_scale: torch.Tensor | None = None,
    w2_scale: torch.Tensor | None = None,
    a1_scale: torch.Tensor | None = None,
    a2_scale: torch.Tensor | None = None,
    block_size_M: int | None = None,
    num_local_tokens: torch.Tensor | None = None,
    moe_sorting_dispatch_policy: int = 0,
    dtype: torch.dtype | None = None,
    hidden_pad: int = 0,
    intermediate_pad: int = 0,
    bias1: torch.Tensor | None = None,
    bias2: torch.Tensor | None = None,
) -> torch.Tensor:
    """`hipkittens.moe`: w1 (E, 2 I, H), the gate's rows first, or (E, I, H) for experts without a gate; w2 (E, H, I).

    expert_mask: experts with 0 are not on this device, and the others are numbered from 0. num_local_tokens: only the first so many tokens
    are used; the rows of the others are zeros. Gelu is the erf form; Swiglu is gpt-oss', with its limit of 7, of halves. Weights whose
    attribute is_shuffled is true are in the order of aiter.ops.shuffle.shuffle_weight(w, layout=(16, 16)), which the kernels read directly.
    Without that attribute they are plain rows. block_size_M and moe_sorting_dispatch_policy choose among AITER's kernels, and have no
    effect. Paddings are not supported.

    quant_type: weights are the target's 8-bit floats, or with per_Token and per_Tensor int8, and w1_scale and w2_scale their scales.
    per_Token: one for each row, (E, 2 I, 1) and (E, H, 1); per_Tensor: one for each expert, (E,); per_128x128, and per_1x128, which refers
    to the activations: one for each 128 rows by 128 columns, (E, ceil(2 I / 128), ceil(H / 128)), or those of an expert in one dimension.
    per_1x32, on gfx950: weights are MXFP4, (E, 2 I, H / 2) and (E, H, I / 2) of float4_e2m1fn_x2 or uint8, and scales the result of
    e8m0_shuffle of those of all experts' rows, a multiple of 32 for each expert. Activations and gated values are quantized here by their
    largest magnitudes, as in `quantize`: a1_scale and a2_scale are not supported.
    """
    return _experts(
        "fused_moe", hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, quant_type, doweight_stage1,
        (w1_scale, w2_scale), (a1_scale, a2_scale), num_local_tokens, dtype, hidden_pad, intermediate_pad, (bias1, bias2),
    )  # fmt: skip


def asm_moe(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weight: torch.Tensor,
    topk_ids: torch.Tensor,
    fc1_scale: torch.Tensor | None = None,
    fc2_scale: torch.Tensor | None = None,
    fc1_smooth_scale: torch.Tensor | None = None,
    fc2_smooth_scale: torch.Tensor | None = None,
    a16: bool = False,
    per_tensor_quant_scale: torch.Tensor | None = None,
    block_shape: tuple[int, int] | None = None,
    expert_mask: torch.Tensor | None = None,
    activation: ActivationType | int = ActivationType.Silu,
) -> torch.Tensor:
    """`fused_moe`, with a gate or without. The activation is applied, which AITER's bfloat16 kernel ignores. Weights of 8-bit floats and
    int8 have fc1_scale and fc2_scale: of rows, or for floats with block_shape (128, 128) of blocks. fc1_smooth_scale (E, 1, H) and
    fc2_smooth_scale (E, 1, I) multiply activations and gated values before they are quantized. per_tensor_quant_scale and a16 are not
    supported.
    """
    smooth = _smooth_factors("asm_moe", w2, fc1_smooth_scale, fc2_smooth_scale)
    _refuse_unscaled("asm_moe", per_tensor_quant_scale, a16)
    if block_shape is not None and tuple(block_shape) != (128, 128):
        refuse("asm_moe", "block_shape", tuple(block_shape), "allowed: (128, 128), or None")
    quantized = QuantType.per_Token if block_shape is None else QuantType.per_128x128
    if fc1_scale is None and fc2_scale is None and block_shape is None:
        quantized = QuantType.No
    return _experts(
        "asm_moe", hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, quantized,
        scales=(fc1_scale, fc2_scale), smooth=smooth,
    )  # fmt: skip


def asm_moe_tkw1(
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_weight: torch.Tensor,
    topk_ids: torch.Tensor,
    fc1_scale: torch.Tensor | None = None,
    fc2_scale: torch.Tensor | None = None,
    fc1_smooth_scale: torch.Tensor | None = None,
    fc2_smooth_scale: torch.Tensor | None = None,
    a16: bool = False,
    per_tensor_quant_scale: torch.Tensor | None = None,
    expert_mask: torch.Tensor | None = None,
    activation: ActivationType | int = ActivationType.Silu,
) -> torch.Tensor:
    """`asm_moe` with the weights applied before the activation (Llama 4)."""
    smooth = _smooth_factors("asm_moe_tkw1", w2, fc1_smooth_scale, fc2_smooth_scale)
    _refuse_unscaled("asm_moe_tkw1", per_tensor_quant_scale, a16)
    quantized = QuantType.No if fc1_scale is None and fc2_scale is None else QuantType.per_Token
    return _experts(
        "asm_moe_tkw1", hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, quantized, True,
        scales=(fc1_scale, fc2_scale), smooth=smooth,
    )  # fmt: skip


def moe_sorting(
    topk_ids: torch.Tensor,
    topk_weights: torch.Tensor,
    num_experts: int,
    model_dim: int,
    moebuf_dtype: torch.dtype,
    block_size: int = 32,
    expert_mask: torch.Tensor | None = None,
    num_local_tokens: torch.Tensor | None = None,
    dispatch_policy: int = 0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(sorted_ids, sorted_weights, sorted_expert_ids, num_valid_ids, moe_buf) of `moe_sorting_fwd`.

    moe_buf is (tokens, model_dim) zeros of moebuf_dtype. Places past the last sorted one are padding, and their blocks have expert -1;
    AITER leaves both unspecified.
    """
    tokens, k = topk_ids.shape
    places = max(topk_ids.numel() + num_experts * block_size - k, 0)
    blocks = -(-places // block_size)
    entries = topk_ids.new_full((places,), k << 24 | tokens, dtype=torch.int32)
    weights = topk_ids.new_zeros((places,), dtype=torch.float32)
    block_experts = topk_ids.new_full((blocks,), -1, dtype=torch.int32)
    valid = topk_ids.new_zeros((2,), dtype=torch.int32)
    into = topk_ids.new_zeros((tokens, model_dim), dtype=moebuf_dtype)
    moe_sorting_fwd(
        topk_ids,
        topk_weights,
        entries,
        weights,
        block_experts,
        valid,
        into,
        num_experts,
        block_size,
        expert_mask,
        num_local_tokens,
        dispatch_policy,
    )
    return entries, weights, block_experts, valid, into


def moe_sum(input: torch.Tensor, output: torch.Tensor) -> None:
    """The sum over the choices of each token: input (tokens, k, columns), in float32 and rounded once."""
    if input.dim() != 3:
        raise ValueError(
            f"hipkittens.aiter.moe_sum: input has shape {tuple(input.shape)}; it needs (tokens, k, columns)"
        )
    tokens, k, columns = input.shape
    entries = torch.arange(tokens * k, dtype=torch.int32, device=input.device)
    found = expert_combine(input.reshape(tokens * k, columns), entries, entries.view(tokens, k))
    put("moe_sum", "output", output, found)


def _experts(
    name, hidden_states, w1, w2, topk_weight, topk_ids, expert_mask, activation, quant_type, doweight_stage1=False,
    scales=(None, None), row_scales=(None, None), num_local_tokens=None, dtype=None, hidden_pad=0, intermediate_pad=0,
    biases=(None, None), smooth=(None, None),
) -> torch.Tensor:  # fmt: skip
    """`fused_moe`, and with each expert's factors of columns `asm_moe`."""
    kind, quantized = _member(name, "activation", activation), _member(name, "quant_type", quant_type)
    recipe = _RECIPES.get(quantized)
    if recipe is None and quantized is not QuantType.No:
        refuse(name, "quant_type", quantized, f"allowed: QuantType.No, {', '.join(map(str, _RECIPES))}")
    if kind not in _KINDS:
        raise ValueError(
            f"hipkittens.aiter.{name}: activation is {kind}; allowed: {', '.join(map(str, _KINDS))}"
        )
    for argument, value in zip(("a1_scale", "a2_scale"), row_scales, strict=True):
        if value is not None:
            refuse(
                name,
                argument,
                f"a {type(value).__name__}",
                "leave it out: what is multiplied is quantised here",
            )
    for argument, value in zip(("w1_scale", "w2_scale"), scales, strict=True):
        if recipe is None and value is not None:
            refuse(name, argument, f"a {type(value).__name__}", "leave it out: quant_type No has no scales")
        if recipe is not None and value is None:
            raise ValueError(
                f"hipkittens.aiter.{name}: {argument} is None; quant_type {quantized} needs the weights' scales"
            )
    for argument, value in zip(("fc1_smooth_scale", "fc2_smooth_scale"), smooth, strict=True):
        if recipe is None and value is not None:
            refuse(name, argument, f"a {type(value).__name__}", "leave it out: these weights have no scales")
    for argument, padding in (("hidden_pad", hidden_pad), ("intermediate_pad", intermediate_pad)):
        if padding:
            refuse(name, argument, padding, "allowed: 0; pass weights without padding")
    for argument, weight in (("w1", w1), ("w2", w2)):
        dtypes = _DTYPES.get(quantized, FLOAT8)
        if weight.dtype not in dtypes:
            allowed = f"allowed with quant_type {quantized}: {', '.join(map(str, dtypes))}"
            refuse(name, argument, weight.dtype, allowed)
    if dtype not in (None, hidden_states.dtype):
        refuse(name, "dtype", dtype, f"allowed: that of hidden_states, {hidden_states.dtype}, or None")
    gated = w1.shape[-2] != columns(w2)
    if not gated and kind is ActivationType.Swiglu:
        raise ValueError(
            f"hipkittens.aiter.{name}: activation is {kind} and w1 has shape {tuple(w1.shape)}; Swiglu needs a gate, (E, 2 I, H)"
        )
    return moe(
        hidden_states,
        _in_panels(name, "w1", w1),
        _in_panels(name, "w2", w2),
        topk_weight,
        topk_ids if num_local_tokens is None else those_that_count(topk_ids, num_local_tokens),
        activation=_KINDS[kind],
        scale_w1=_scale_of(name, "w1", w1, scales[0], recipe),
        scale_w2=_scale_of(name, "w2", w2, scales[1], recipe),
        recipe=recipe,
        swizzle="shuffled" if quantized is QuantType.per_1x32 else None,
        smooth1=smooth[0],
        smooth2=smooth[1],
        bias1=biases[0],
        bias2=biases[1],
        expert_map=None if expert_mask is None else local_numbers(expert_mask),
        weight_input=bool(doweight_stage1),
        gated=gated,
    )


def _refuse_unscaled(name: str, static: object, a16: bool) -> None:
    if static is not None:
        refuse(
            name,
            "per_tensor_quant_scale",
            f"a {type(static).__name__}",
            "leave it out: rows are quantised here",
        )
    if a16:
        refuse(name, "a16", a16, "leave it out: 8-bit weights are multiplied with 8-bit rows")


def _smooth_factors(name: str, w2: torch.Tensor, *given: torch.Tensor | None) -> list[torch.Tensor | None]:
    """(E, H) and (E, I) from AITER's (E, 1, H) and (E, 1, I)."""
    experts, features, _ = w2.shape
    factors: list[torch.Tensor | None] = []
    for argument, value, length in zip(
        ("fc1_smooth_scale", "fc2_smooth_scale"), given, (features, columns(w2)), strict=True
    ):
        if value is not None:
            value = with_elements(name, argument, value, experts, length)
        factors.append(value)
    return factors


def _scale_of(
    name: str,
    argument: str,
    weight: torch.Tensor,
    scale: torch.Tensor | None,
    recipe: tuple[str, str] | None,
) -> torch.Tensor | None:
    """The scale in three dimensions, if an expert's blocks are in one, or all experts' bytes are."""
    if recipe is not None and recipe[1] == "1x32":
        return _bytes_of_experts(name, argument, weight, scale)
    if scale is None or recipe is None or recipe[1] != "128x128" or scale.dim() != 2:
        return scale
    experts, rows, columns = weight.shape
    down, along = -(-rows // 128), -(-columns // 128)
    return scale.view(experts, down, along) if tuple(scale.shape) == (experts, down * along) else scale


def _bytes_of_experts(name: str, argument: str, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(E, bytes) of e8m0_shuffle's result: bands of 32 rows, a whole number for each expert."""
    experts, rows, _ = weight.shape
    along = -(-columns(weight) // 256) * 8
    if rows % 32:
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} has shape {tuple(weight.shape)}; QuantType.per_1x32 needs a multiple of 32 rows"
        )
    if scale.numel() < experts * rows * along:
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument}_scale has shape {tuple(scale.shape)}; it needs {experts * rows * along} bytes or "
            "more, shuffled"
        )
    return scale.reshape(-1)[: experts * rows * along].view(experts, rows, along)


def _member(name: str, argument: str, value: object) -> ActivationType | QuantType:
    """The member for a number, or for one of AITER's or our members."""
    kind = ActivationType if argument == "activation" else QuantType
    try:
        return kind(int(getattr(value, "value", value)))  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} is {value!r}; allowed: {', '.join(map(str, kind))}"
        ) from None


def _in_panels(name: str, argument: str, weight: torch.Tensor) -> torch.Tensor:
    """The weight; one in shuffle_weight's order is returned in the panel layout's shape."""
    if not getattr(weight, "is_shuffled", False):
        return weight
    if weight.dim() != 3 or weight.shape[1] % 16 or weight.shape[2] % 32:
        raise ValueError(
            f"hipkittens.aiter.{name}: {argument} is shuffled and has shape {tuple(weight.shape)}; it needs (E, rows, columns), rows "
            "a multiple of 16 and columns of 32"
        )
    return panels_of_rows(weight)
