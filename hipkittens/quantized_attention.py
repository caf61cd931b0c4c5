# SPDX-License-Identifier: MIT
"""Attention with quantized operands: int8 for the scores, 8-bit floats for weights and values (SageAttention)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch

from . import _backend
from ._arguments import check_flag, check_gets_no_gradient, check_tensor, check_whole_number
from ._autocast import to_autocast_dtype
from ._autograd import refuse_tangents
from ._call import call
from ._hidden_keys import distances, hidden_keys
from .attention import DTYPES, LARGEST_HEAD, check_layout, checked_operands, window_sides
from .quantization import dtype_of

QUERY_BLOCK, KEY_BLOCK = 128, 64
# The queries of a wave and the keys of a tile: each set has one factor.
SHORTEST_BLOCKS = {"query_block": 32, "key_block": 64}
LONGEST_BLOCK = 1 << 20
# Elements of int8, and of bytes of V along a channel, in one load.
_VECTOR = 16
_LOG2_E = math.log2(math.e)


class AttentionCodes(NamedTuple):
    """Quantized operands ("codes") of attention. Scores are base-2, (q . k) q_scale k_scale; values are v v_scale.

    q  int8 (B, N, H, D); q_scale float32 (B, H, query blocks), which includes the softmax scale
    k  int8 (B, N_k, H_k, D); k_scale float32 (B, H_k, key blocks)
    v  e4m3 of the target (B, H_k, D_v, M), one row per channel. M is N_k rounded up to a multiple of 16, and the contents past the
       last key do not matter; v_scale float32 (B, H_k, D_v)
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    q_scale: torch.Tensor
    k_scale: torch.Tensor
    v_scale: torch.Tensor


@overload
def attention_quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    smooth_k: bool = True,
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    smooth_k: bool = True,
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    smooth_k: bool = True,
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    smooth_k: bool = True,
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention that quantizes its operands: int8 products for the scores, 8-bit floats for weights and values.

    q (B, N, H, D), k (B, N_k, H_k, D) and v (B, N_k, H_k, D_v) are all bfloat16 or all float16. D is a multiple of 16 and D_v of 8, both up
    to 256; H is a multiple of H_k. The result is softmax(scale q k^T) v in q's dtype. causal, window_size, layout, scale and the LSE
    requested by return_lse are those of `hipkittens.attention`, and so are the shapes.

    q is quantized to int8 with one scale for every query_block queries of a head, k to int8 with one scale for every key_block keys of a
    head, and v to the target's e4m3 (e4m3fnuz on gfx942, e4m3fn on gfx950) with one scale for each channel of a head. Products of int8
    are exact, sums are float32, and weights are rounded to e4m3 between the two GEMMs. smooth_k first subtracts the mean over all keys
    from k: this does not change the softmax, and the remainder is represented better in int8. The LSE is still that of the original k.

    query_block and key_block are powers of two up to 2^20, query_block at least 32 and key_block at least 64. A NaN or an infinity in q
    makes its query block NaN; in k everything that attends to its key block (with smooth_k, the whole head); in v its channel.

    Quantization uses PyTorch operations, the attention is one kernel. Not differentiable: raises ValueError where autograd would record
    the call. Raises TypeError or ValueError, before anything is launched, for a dtype, shape, device or option that no kernel supports.
    """
    where = "hipkittens.attention_quantized"
    check_layout(where, layout)
    q, k, v = to_autocast_dtype(q, k, v)
    scale, left, right = checked_operands(where, q, k, v, layout, scale, causal, window_size, 0.0, None)
    for name, value in {"q": q, "k": k, "v": v}.items():
        check_gets_no_gradient(where, name, value)
    check_flag(where, "smooth_k", smooth_k)
    _check_sizes(where, q.shape[-1], query_block, key_block)
    if layout == "bhnd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mean = k.float().mean(1, keepdim=True) if smooth_k and k.shape[1] > 0 else None
    codes = quantized(q, k, v, scale, mean, query_block, key_block)
    out, lse = _attend(codes, query_block, key_block, bool(causal), left, right, q.dtype)
    if layout == "bhnd":
        out = out.transpose(1, 2)
    if not return_lse:
        return out
    if mean is not None:
        grouped = q.float().unflatten(2, (k.shape[2], -1))
        lse = lse + scale * torch.einsum("bnhgd,bmhd->bhgn", grouped, mean).flatten(1, 2)
    return out, lse


@overload
def attention_of_codes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_of_codes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_of_codes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_of_codes(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_scale: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    out_dtype: torch.dtype = torch.bfloat16,
    *,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    layout: str = "bnhd",
    query_block: int = QUERY_BLOCK,
    key_block: int = KEY_BLOCK,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of operands that are already quantized: the kernel of `attention_quantized`.

    - `q`, `k`: int8 (B, N, H, D) and (B, N_k, H_k, D).
    - `v`: e4m3 of the target, (B, N_k, H_k, D_v). It is copied into channel-major order.
    - `q_scale`, `k_scale`, `v_scale`: float32 (B, H, blocks of query_block queries), (B, H_k, blocks of key_block keys) and
      (B, H_k, D_v). Scales of q and k are finite and not negative.
    - `out_dtype`: bfloat16 or float16.
    - `causal`, `window_size`, `layout`: as in `hipkittens.attention`.
    - `query_block`, `key_block`: as in `attention_quantized`.
    - `return_lse`: also return the LSE of the scores, in natural logarithm, float32 (B, H, N).

    Scores are base-2, (q . k) q_scale k_scale: q_scale includes the softmax scale and log2(e). Not differentiable. Raises TypeError or
    ValueError, before anything is launched, for a dtype, shape, device or option that no kernel supports.
    """
    where = "hipkittens.attention_of_codes"
    check_layout(where, layout)
    if out_dtype not in DTYPES:
        raise TypeError(f"{where}: out_dtype is {out_dtype}; allowed: {', '.join(map(str, DTYPES))}")
    check_flag(where, "causal", causal)
    left, right = window_sides(where, window_size)
    check_tensor(where, "q", q)
    dtypes = {"q": torch.int8, "k": torch.int8, "v": dtype_of("fp8", q.device, where)}
    for (name, dtype), value in zip(dtypes.items(), (q, k, v), strict=True):
        check_tensor(where, name, value)
        if value.dtype != dtype:
            raise TypeError(f"{where}: {name} is {value.dtype}; it must be {dtype}")
        if value.dim() != 4 or value.device != q.device:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)} on {value.device}; it needs 4 dimensions ({layout}) on {q.device}"
            )
    check_gets_no_gradient(where, "v", v)
    refuse_tangents("attention_of_codes", v)
    _backend.check_device(where, "q", q)
    if layout == "bhnd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    shapes = f"q: {tuple(q.shape)}, k: {tuple(k.shape)}, v: {tuple(v.shape)}; (B, N, H, D)"
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"{where}: sizes do not fit together ({shapes})")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        raise ValueError(f"{where}: heads of q are not a multiple of those of k ({shapes})")
    for value, of in ((q, ""), (v, " of v")):
        if not 8 <= value.shape[3] <= LARGEST_HEAD or value.shape[3] % 8:
            raise ValueError(
                f"{where}: the head size{of} is {value.shape[3]}; allowed: multiples of {8 if of else 16} up to {LARGEST_HEAD}"
            )
    _check_sizes(where, q.shape[3], query_block, key_block)
    scales = {
        "q_scale": (q_scale, (q.shape[0], q.shape[2], -(-q.shape[1] // query_block))),
        "k_scale": (k_scale, (k.shape[0], k.shape[2], -(-k.shape[1] // key_block))),
        "v_scale": (v_scale, (v.shape[0], v.shape[2], v.shape[3])),
    }
    for name, (value, shape) in scales.items():
        check_tensor(where, name, value)
        check_gets_no_gradient(where, name, value)
        if value.dtype != torch.float32 or tuple(value.shape) != shape or value.device != q.device:
            raise ValueError(
                f"{where}: {name} is {value.dtype} of shape {tuple(value.shape)} on {value.device}; it must be torch.float32 of shape "
                f"{shape} on {q.device}"
            )
    codes = AttentionCodes(
        q, k, _by_channel(v), q_scale.contiguous(), k_scale.contiguous(), v_scale.contiguous()
    )
    out, lse = _attend(codes, query_block, key_block, bool(causal), left, right, out_dtype)
    if layout == "bhnd":
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


def _check_sizes(where: str, head_dim: int, query_block: int, key_block: int) -> None:
    if head_dim % _VECTOR:
        raise ValueError(
            f"{where}: the head size is {head_dim}; of int8 it must be a multiple of {_VECTOR} up to {LARGEST_HEAD}"
        )
    for name, value in {"query_block": query_block, "key_block": key_block}.items():
        check_whole_number(where, name, value)
        if not SHORTEST_BLOCKS[name] <= value <= LONGEST_BLOCK or value & value - 1:
            raise ValueError(
                f"{where}: {name} is {value}; it must be a power of two from {SHORTEST_BLOCKS[name]} to {LONGEST_BLOCK}"
            )


def _attend(
    codes: AttentionCodes,
    query_block: int,
    key_block: int,
    causal: bool,
    left: int,
    right: int,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    options = query_block, key_block, causal, left, right
    if _backend.uses_torch():
        out, lse = in_torch(codes, *options)
        return out.to(dtype), lse
    return call("attention_quantized", *codes[:2], codes.v.view(torch.uint8), *codes[3:], *options, dtype)


def quantized(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    mean: torch.Tensor | None,
    query_block: int,
    key_block: int,
) -> AttentionCodes:
    """Quantizes q, k minus its mean, and v, each (B, N, H, D)."""
    q_codes, q_scale = _in_int8(q.float() * (scale * _LOG2_E), query_block)
    k_codes, k_scale = _in_int8(k.float() if mean is None else k.float() - mean, key_block)
    dtype = dtype_of("fp8", v.device)
    v_scale = _scale_of(_padded(v.float(), 1, 1).abs().amax(1), torch.finfo(dtype).max)
    v_codes = (v.float() / v_scale.unsqueeze(1)).to(dtype)
    return AttentionCodes(q_codes, k_codes, _by_channel(v_codes), q_scale, k_scale, v_scale)


def _scale_of(largest: torch.Tensor, largest_code: float) -> torch.Tensor:
    """The scale for this largest magnitude; 1 if all values are zero."""
    return torch.where(largest == 0, torch.ones_like(largest), largest / largest_code)


def _padded(rows: torch.Tensor, multiple: int, least: int = 0) -> torch.Tensor:
    """(B, N, ...) padded with zeros so that N is a multiple of `multiple`, and at least `least`."""
    count = max(-(-rows.shape[1] // multiple) * multiple, least)
    if count == rows.shape[1]:
        return rows
    return torch.cat([rows, rows.new_zeros((rows.shape[0], count - rows.shape[1], *rows.shape[2:]))], dim=1)


def _in_int8(rows: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, N, H, D) quantized to int8, and the scales (B, H, blocks)."""
    block = min(block, max(rows.shape[1], 1))
    blocks = _padded(rows, block).unflatten(1, (-1, block))
    scale = _scale_of(blocks.abs().amax((2, 4)), 127.0)
    codes = (blocks / scale[:, :, None, :, None]).round().to(torch.int8)
    return codes.flatten(1, 2)[:, : rows.shape[1]].contiguous(), scale.transpose(1, 2).contiguous()


def _by_channel(v: torch.Tensor) -> torch.Tensor:
    """(B, N_k, H_k, D_v) of one-byte elements as (B, H_k, D_v, N_k rounded up to a multiple of 16)."""
    return _padded(v.view(torch.uint8), _VECTOR).permute(0, 2, 3, 1).contiguous().view(v.dtype)


def in_torch(
    codes: AttentionCodes,
    query_block: int,
    key_block: int,
    causal: bool,
    left: int,
    right: int,
    wide: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention in PyTorch. In float32, weights are rounded to v's 8-bit floats like in the kernels; in float64, not at all."""
    group = codes.q.shape[2] // codes.k.shape[2]
    n_q, n_k = codes.q.shape[1], codes.k.shape[1]
    k, k_scale, v, v_scale = (
        tensor.repeat_interleave(group, axis).to(wide)
        for tensor, axis in (
            (codes.k, 2),
            (codes.k_scale, 1),
            (codes.v[..., :n_k].to(wide), 1),
            (codes.v_scale, 1),
        )
    )
    products = codes.q.to(wide).transpose(1, 2) @ k.permute(0, 2, 3, 1)
    by_query = codes.q_scale.to(wide).repeat_interleave(min(query_block, max(n_q, 1)), 2)[..., :n_q, None]
    by_key = k_scale.repeat_interleave(min(key_block, max(n_k, 1)), 2)[..., None, :n_k]
    scores = products * (by_query * by_key)
    hidden = hidden_keys(distances(n_q, n_k, products.device), causal, left, right)
    scores = scores.masked_fill(hidden, float("-inf"))
    if n_k == 0:
        largest = scores.new_full((*scores.shape[:-1], 1), float("-inf"))
    else:
        largest = scores.amax(-1, keepdim=True)
    # 2^7 and 2^8 are the largest powers of two among the codes.
    most = 0 if wide == torch.float64 else math.floor(math.log2(torch.finfo(codes.v.dtype).max))
    weights = torch.exp2(scores - largest.masked_fill(largest == float("-inf"), 0) + most)
    total = weights.sum(-1, keepdim=True)
    lse = (largest.masked_fill(total == 0, float("-inf")) - most + total.log2()).squeeze(-1) / _LOG2_E
    if wide != torch.float64:
        weights = weights.to(codes.v.dtype).to(wide)
    out = weights @ v.mT * v_scale.unsqueeze(2) / total.masked_fill(total == 0, 1)
    return out.transpose(1, 2).contiguous(), lse
