# SPDX-License-Identifier: MIT
"""SageAttention by AITER's names."""

from __future__ import annotations

from typing import Any

import torch

from ..quantized_attention import attention_of_codes, attention_quantized
from ._results import refuse

_LAYOUTS = {"bshd": "bnhd", "bhsd": "bhnd"}
# Queries and keys that share a scale by default.
_BLOCKS = {"BLOCK_M": 256, "BLOCK_N": 128}
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def fav3_sage_wrapper_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_lse: bool = False,
    layout: str = "bshd",
    config: dict[str, Any] | None = None,
    block_lut: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None,
    smooth_k: bool = True,
    q_smooth: bool = False,
    hadamard_rotation: bool = False,
    R: torch.Tensor | None = None,
    BLOCK_R: int | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """hipkittens.attention_quantized of q (B, N, H, D), k (B, N_k, H_k, D) and v (B, N_k, H_k, D_v), or with layout "bhsd" of
    (B, H, N, D); the result is bfloat16, and with return_lse comes with the LSE, float32 (B, H, N).

    float32 operands are rounded to bfloat16. A softmax_scale of 0 is the default, as in AITER. In config, BLOCK_M and BLOCK_N (256 and 128)
    are the number of queries and keys that share a scale. Its other entries, and deterministic, choose among AITER's kernels and have no
    effect; sums have one order. Causal masks and windows are aligned so that the last query meets the last key.
    """
    name = "fav3_sage_wrapper_func"
    _refuse_options(name, attention_chunk, softcap, sm_margin)
    if block_lut is not None:
        refuse(name, "block_lut", "given", "pass block_lut=None, and every block is attended to")
    for argument, value in {"q_smooth": q_smooth, "hadamard_rotation": hadamard_rotation}.items():
        if value:
            refuse(name, argument, value, f"pass {argument}=False")
    for argument, value in {"R": R, "BLOCK_R": BLOCK_R}.items():
        if value is not None:
            refuse(name, argument, "given", "it belongs to hadamard_rotation; pass None")
    for argument, rows in {"q": q, "k": k, "v": v}.items():
        if rows.dtype not in _DTYPES:
            raise TypeError(
                f"hipkittens.aiter.{name}: {argument} is {rows.dtype}; allowed: {', '.join(map(str, _DTYPES))}; of codes there is "
                "fav3_sage_func"
            )
    q, k, v = (rows.to(torch.bfloat16) if rows.dtype == torch.float32 else rows for rows in (q, k, v))
    blocks = _blocks(config)
    out, lse = attention_quantized(
        q, k, v, causal=causal, scale=softmax_scale or None, window_size=window_size, smooth_k=smooth_k,
        layout=_layout(name, layout), return_lse=True, **blocks,
    )  # fmt: skip
    out = out.to(torch.bfloat16)
    return (out, lse) if return_lse else out


def fav3_sage_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_descale: torch.Tensor,
    k_descale: torch.Tensor,
    v_descale: torch.Tensor,
    bias: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    sm_margin: int = 0,
    return_lse: bool = False,
    layout: str = "bshd",
    config: dict[str, Any] | None = None,
    kv_block_indices: torch.Tensor | None = None,
    lut_start: torch.Tensor | None = None,
    lut_count: torch.Tensor | None = None,
    use_block_sparse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """hipkittens.attention_of_codes of int8 q and k and 8-bit float v, with scales as returned by AITER's sage_quant: q_descale includes
    the softmax scale and log2(e). The result is bfloat16, and comes with the LSE, or with None.

    softmax_scale is ignored, as in AITER: it is in q_descale. In config, BLOCK_M and BLOCK_N are used, as in fav3_sage_wrapper_func.
    """
    name = "fav3_sage_func"
    _refuse_options(name, attention_chunk, softcap, sm_margin)
    if bias is not None:
        refuse(name, "bias", "given", "it is q_smooth's; pass None, and codes of q as it is")
    if use_block_sparse:
        refuse(name, "use_block_sparse", True, "pass False, and every block is attended to")
    for argument, value in {
        "kv_block_indices": kv_block_indices,
        "lut_start": lut_start,
        "lut_count": lut_count,
    }.items():
        if value is not None:
            refuse(name, argument, "given", "it belongs to use_block_sparse; pass None")
    out, lse = attention_of_codes(
        q, k, v, q_descale, k_descale, v_descale, causal=causal, window_size=window_size, layout=_layout(name, layout),
        return_lse=True, **_blocks(config),
    )  # fmt: skip
    return out, lse if return_lse else None


def _refuse_options(name: str, attention_chunk: int, softcap: float, sm_margin: int) -> None:
    if attention_chunk not in (0, 1):
        refuse(name, "attention_chunk", attention_chunk, "pass 0")
    if softcap != 0.0:
        refuse(name, "softcap", softcap, "pass 0.0, or use hipkittens.attention")
    if sm_margin != 0:
        refuse(name, "sm_margin", sm_margin, "pass 0")


def _layout(name: str, layout: str) -> str:
    if layout not in _LAYOUTS:
        raise ValueError(f"hipkittens.aiter.{name}: layout is {layout!r}; allowed: {', '.join(_LAYOUTS)}")
    return _LAYOUTS[layout]


def _blocks(config: dict[str, Any] | None) -> dict[str, int]:
    given = {**_BLOCKS, **(config or {})}
    return {"query_block": given["BLOCK_M"], "key_block": given["BLOCK_N"]}
