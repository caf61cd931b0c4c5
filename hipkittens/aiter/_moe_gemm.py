# SPDX-License-Identifier: MIT
"""Grouped GEMMs with MXFP4 expert weights by AITER's names, for rows ordered by AITER's routing or by its block-aligned sort."""

from __future__ import annotations

import math
from typing import Any

import torch

from .._arguments import check_tensor
from ..activation import gated_activation
from ..experts import expert_combine
from ..grouped import gathers_rows_of, grouped_matmul
from ..quantization import QuantSpec, quantize
from ..routing import expert_sort
from ._operands import check_has_mxfp4
from ._results import put, refuse

_FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def moe_gemm_a8w4(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor | None,
    w_scales: torch.Tensor,
    x_static_scale: torch.Tensor | None = None,
    quant_static_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    routing_data: Any = None,
    gather_indx: torch.Tensor | None = None,
    scatter_indx: torch.Tensor | None = None,
    gammas: torch.Tensor | None = None,
    swizzle_mx_scale: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    apply_swiglu: bool = False,
    alpha: float = 1.0,
    limit: float | None = 1.0,
    unpadded_N: int | None = None,
    unpadded_K: int | None = None,
) -> torch.Tensor:
    """Rows of experts x (rows, K) of float8_e4m3fn times w (E, K / 2, N) of e2m1, contiguous along K, on gfx950.

    x_scales (rows, K / 32) are bytes of e8m0, or None: then x_static_scale, float32 of one element or None for 1, is x's. w_scales
    (E, K / 32, N) are bytes of e8m0, or with swizzle_mx_scale "CDNA4_SCALE" AITER's swizzle_scales of them. bias (E, N). routing_data is
    AITER's; expt_hist, the number of rows of each expert, and n_expts_act are used. gather_indx: rows are x[gather_indx // n_expts_act].
    apply_swiglu: for even and odd columns g and u of the sums, g / (1 + exp(-alpha g)) (u + 1), with g at most `limit` and u within
    -limit .. limit; None: no limit. gammas multiply rows. quant_static_scale: the result is divided by it and rounded to e4m3, then
    converted to out_dtype. scatter_indx (tokens n_expts_act): the result for each token is the sum of the rows that it refers to, each
    rounded to out_dtype first; not with quant_static_scale.

    unpadded_N and unpadded_K, the beginning of padding, choose among AITER's tiles: padding is multiplied here, as in all but AITER's
    smallest tile, and must be zeros. Rows past the last expert's are zeros.
    """
    name = "moe_gemm_a8w4"
    check_has_mxfp4(name, x)
    if x_scales is not None and x_static_scale is not None:
        refuse(name, "x_static_scale", "given with x_scales", "multiply x_scales' powers of two, or gammas")
    if x_scales is None and x_static_scale is None:
        x_static_scale = torch.ones((), device=x.device)
    recipe = ("tensor" if x_scales is None else "1x32", "1x32")
    scale = x_static_scale if x_scales is None else x_scales
    if quant_static_scale is not None and scatter_indx is not None:
        refuse(name, "quant_static_scale", "given with scatter_indx", "quantise the sums of tokens")
    options = (apply_swiglu, alpha, limit, True)
    y = _routed_product(
        name, x, w, (scale, w_scales), recipe, bias, routing_data, gather_indx, gammas, swizzle_mx_scale, options,
        out_dtype if quant_static_scale is None else torch.float32,
    )  # fmt: skip
    if quant_static_scale is not None:
        return quantize(y, QuantSpec("fp8", "tensor"), quant_static_scale.reshape(()))[0].to(out_dtype)
    return _summed(y, scatter_indx, routing_data)


def moe_gemm_a4w4(
    x: torch.Tensor,
    w: torch.Tensor,
    x_scales: torch.Tensor,
    w_scales: torch.Tensor,
    bias: torch.Tensor | None = None,
    routing_data: Any = None,
    gather_indx: torch.Tensor | None = None,
    scatter_indx: torch.Tensor | None = None,
    gammas: torch.Tensor | None = None,
    swizzle_mx_scale: str | None = None,
    preshuffle_weights: bool = False,
    out_dtype: torch.dtype = torch.bfloat16,
    apply_swiglu: bool = False,
    alpha: float = 1.0,
    limit: float | None = 1.0,
    swiglu_add_residual: bool = True,
    unpadded_N: int | None = None,
    unpadded_K: int | None = None,
    backend: str | None = None,
) -> torch.Tensor:
    """`moe_gemm_a8w4` of x (rows, K / 2) of e2m1, which requires x_scales. swiglu_add_residual: u + 1, and u otherwise. preshuffle_weights
    and the backend "gluon" are for other GPUs.
    """
    name = "moe_gemm_a4w4"
    check_has_mxfp4(name, x)
    if preshuffle_weights:
        refuse(name, "preshuffle_weights", preshuffle_weights, "pass w as it is, (E, K / 2, N)")
    if backend not in (None, "triton"):
        refuse(name, "backend", repr(backend), "allowed: None, 'triton'")
    options = (apply_swiglu, alpha, limit, swiglu_add_residual)
    y = _routed_product(
        name, x, w, (x_scales, w_scales), ("1x32", "1x32"), bias, routing_data, gather_indx, gammas, swizzle_mx_scale, options,
        out_dtype,
    )  # fmt: skip
    return _summed(y, scatter_indx, routing_data)


def fused_moe_mxfp4(
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    A_mx_scale: torch.Tensor | None,
    B_mx_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    mul_routed_weight: bool,
    top_k: int,
    swizzle_mx_a: bool,
    swizzle_mx_b: bool,
    config: dict[str, Any],
    compute_type: Any,
) -> None:
    """C (tokens, top_k, N) = A_scale * B_scale[e] * A @ B[e].T of each choice e, with mul_routed_weight times topk_weights.

    A is (tokens, K) of bfloat16, on gfx950 also of float8_e4m3fn, or on gfx950 (tokens, K / 2) of torch.uint8, e2m1, with A_mx_scale
    (tokens, K / 32), which the others do not have. B (E, N, K / 2) is e2m1 and B_mx_scale (E, N, K / 32); both scales are bytes of e8m0.
    A_scale has one float32, B_scale E. sorted_token_ids, expert_ids and num_tokens_post_padded are those of moe_align_block_size with
    config["BLOCK_SIZE_M"], and topk_ids (tokens, top_k) gives the shape: blocks of expert -1 give zeros, and what is in no block is
    unchanged in C. compute_type, triton's or torch's, is the dtype to which sums are rounded. The rest of config chooses among AITER's
    kernels, and has no effect. Swizzled scales are not supported.
    """
    name = "fused_moe_mxfp4"
    sums, there = _sorted_product(
        name, A, B, A_scale, B_scale, A_mx_scale, B_mx_scale, topk_weights if mul_routed_weight else None, topk_ids,
        sorted_token_ids, expert_ids, num_tokens_post_padded, top_k, swizzle_mx_a or swizzle_mx_b, config, compute_type,
    )  # fmt: skip
    _put_there(name, C, sums.view(*topk_ids.shape, -1), there.view(*topk_ids.shape, 1))


def fused_moe_mxfp4_silu(
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    A_mx_scale: torch.Tensor | None,
    B_mx_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    sorted_token_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_tokens_post_padded: torch.Tensor,
    mul_routed_weight: bool,
    top_k: int,
    swizzle_mx_a: bool,
    swizzle_mx_b: bool,
    config: dict[str, Any],
    compute_type: Any,
) -> None:
    """C (tokens top_k, N / 2) = silu(first half) * second half of the columns of `fused_moe_mxfp4`, rounded before and after."""
    name = "fused_moe_mxfp4_silu"
    sums, there = _sorted_product(
        name, A, B, A_scale, B_scale, A_mx_scale, B_mx_scale, topk_weights if mul_routed_weight else None, topk_ids,
        sorted_token_ids, expert_ids, num_tokens_post_padded, top_k, swizzle_mx_a or swizzle_mx_b, config, compute_type,
    )  # fmt: skip
    _put_there(name, C, gated_activation(sums, "silu"), there[:, None])


def _routed_product(
    name, x, w, scales, recipe, bias, routing_data, gather_indx, gammas, swizzle, options, out_dtype
) -> torch.Tensor:
    """Rows in the order of experts: GEMMs, biases, gates and gammas, rounded to out_dtype."""
    if routing_data is None:
        raise ValueError(f"hipkittens.aiter.{name}: routing_data is None; pass AITER's, with expt_hist")
    if swizzle not in (None, "CDNA4_SCALE"):
        refuse(name, "swizzle_mx_scale", repr(swizzle), "allowed: None, 'CDNA4_SCALE'")
    for argument, value in (("x", x), ("w", w), ("w_scales", scales[1])):
        check_tensor(f"hipkittens.aiter.{name}", argument, value)
    of_a, of_b = scales
    gathered = {}
    if gather_indx is not None:
        choices = routing_data.n_expts_act
        if recipe[0] == "1x32":
            of_a = _taken(of_a, _inside(gather_indx, len(x) * choices) // choices)
        x, gathered = _gathered(x, gather_indx, choices)
    apply_swiglu, alpha, limit, adds_one = options
    direct = not apply_swiglu and gammas is None
    y = grouped_matmul(
        x,
        w,
        routing_data.expt_hist.cumsum(0, dtype=torch.int32),
        scale_a=of_a,
        scale_b=of_b if swizzle is None else of_b.mT.contiguous(),
        recipe=recipe,
        swizzle=None if swizzle is None else "shuffled",
        bias=bias,
        out_dtype=out_dtype if direct else torch.float32,
        **gathered,
    )
    if apply_swiglu:
        kind, limit = "swiglu" if adds_one else "silu", math.inf if limit is None else limit
        y = gated_activation(y[:, ::2], kind, other=y[:, 1::2], limit=limit, alpha=alpha)
    return y if direct else (y if gammas is None else y * gammas[:, None]).to(out_dtype)


def _summed(y: torch.Tensor, scatter_indx: torch.Tensor | None, routing_data: Any) -> torch.Tensor:
    """The sum of each token's rows, if they are to be summed."""
    if scatter_indx is None:
        return y
    entries = torch.arange(len(y), dtype=torch.int32, device=y.device)
    return expert_combine(y, entries, scatter_indx.view(-1, routing_data.n_expts_act).to(torch.int32))


def _sorted_product(
    name, a, b, a_scale, b_scale, a_mx_scale, b_mx_scale, weights, topk_ids, sorted_ids, expert_ids, padded, top_k, swizzled, config,
    compute_type,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """For each choice, in the order of tokens: its row, rounded to compute_type, and whether it is in a block."""
    _check_sorted(name, a, b, a_mx_scale, topk_ids, top_k, swizzled)
    dtype = _FLOATS.get(str(getattr(compute_type, "name", compute_type)), compute_type)
    if dtype not in _FLOATS.values():
        raise TypeError(
            f"hipkittens.aiter.{name}: compute_type is {compute_type}; allowed: bfloat16, float16, float32"
        )
    expert, there = _experts_of_choices(
        topk_ids.numel(), sorted_ids, expert_ids, padded, int(config["BLOCK_SIZE_M"])
    )
    order = expert_sort(expert.view(topk_ids.shape), None, b.shape[0], layout="ragged")
    choice = _inside(order.entries, topk_ids.numel())
    a, gathered = _gathered(a, order.entries, top_k)
    first = None if a.dtype == torch.bfloat16 else torch.ones((), device=a.device)
    y = grouped_matmul(
        a,
        b.mT,
        order.offsets[1:],
        scale_a=first if a_mx_scale is None else _taken(a_mx_scale, choice // top_k),
        scale_b=b_mx_scale.mT,
        recipe=("tensor" if a_mx_scale is None else "1x32", "1x32"),
        out_dtype=torch.float32,
        **gathered,
    )
    factors = a_scale.reshape(()) * b_scale.reshape(-1)[_inside(expert[choice], b.shape[0])]
    y = y * factors[:, None]
    if weights is not None:
        y = y * weights.reshape(-1)[choice][:, None]
    place = order.places.reshape(-1)
    of_choices = torch.where((place >= 0)[:, None], y[place.clamp(min=0)], 0) if len(y) else y
    return of_choices.to(dtype), there


def _check_sorted(name, a, b, a_mx_scale, topk_ids, top_k, swizzled) -> None:
    where = f"hipkittens.aiter.{name}"
    if swizzled:
        refuse(name, "swizzle_mx_a or swizzle_mx_b", True, "pass scales in rows")
    for argument, value in (("A", a), ("B", b), ("topk_ids", topk_ids)):
        check_tensor(where, argument, value)
    if b.dtype != torch.uint8:
        refuse(name, "B", b.dtype, "allowed: torch.uint8, two e2m1 in a byte")
    if a.dtype not in (torch.uint8, torch.bfloat16, torch.float8_e4m3fn):
        refuse(name, "A", a.dtype, "allowed: torch.bfloat16, torch.float8_e4m3fn, torch.uint8 (e2m1)")
    if (a.dtype == torch.uint8) != (a_mx_scale is not None):
        raise ValueError(
            f"{where}: A is {a.dtype} and A_mx_scale is {'None' if a_mx_scale is None else 'given'}; e2m1, torch.uint8, has these "
            "scales, and others have none"
        )
    if topk_ids.dim() != 2 or topk_ids.shape != (a.shape[0], top_k):
        raise ValueError(
            f"{where}: topk_ids has shape {tuple(topk_ids.shape)}; it must be (tokens, top_k), {(a.shape[0], top_k)}"
        )
    if a.dtype != torch.bfloat16:
        check_has_mxfp4(name, a)


def _experts_of_choices(choices, sorted_ids, expert_ids, padded, block) -> tuple[torch.Tensor, torch.Tensor]:
    """The expert of each choice (token * top_k + slot), -1 for none, and whether it is in a block that is used."""
    place = torch.arange(len(sorted_ids), device=sorted_ids.device)
    counts = (place < padded.reshape(())) & (sorted_ids < choices)
    # Ignored entries go to one additional position.
    choice = torch.where(counts, sorted_ids, choices).long()
    expert = expert_ids.new_full((choices + 1,), -1, dtype=torch.int32)
    expert = expert.index_copy(0, choice, expert_ids[place // block].to(torch.int32))
    there = torch.zeros(choices + 1, dtype=torch.bool, device=choice.device).index_copy(0, choice, counts)
    return expert[:-1], there[:-1]


def _inside(numbers: torch.Tensor, past: int) -> torch.Tensor:
    """Numbers below `past`. Those of rows past the last expert's may be arbitrary: their products are discarded."""
    return numbers.to(torch.int64).clamp(0, max(past - 1, 0))


def _gathered(x: torch.Tensor, entries: torch.Tensor, choices: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """The first operand of a product of rows x[entries // choices], and the options with which the product gathers them; rows that it does
    not reach are gathered first. Where an entry is out of range, the row is discarded.
    """
    if gathers_rows_of(x):
        return x, {"entries": entries.to(torch.int32).contiguous(), "choices": choices}
    return _taken(x, _inside(entries, len(x) * choices) // choices), {}


def _taken(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The selected rows of quantized values or bytes of scales, unchanged."""
    found = x if x.dtype == torch.bfloat16 else x.view(torch.uint8)
    return found.index_select(0, rows).view(x.dtype)


def _put_there(name: str, into: torch.Tensor, result: torch.Tensor, there: torch.Tensor) -> None:
    put(name, "C", into, torch.where(there, result, into.view(result.shape)))
