# SPDX-License-Identifier: MIT
"""Sparse multi-head latent attention: each token attends to its own list of cached keys, as chosen by the indexer of DeepSeek V3.2."""

from __future__ import annotations

from typing import Literal, overload

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor
from ._paged_sequences import DTYPES, check_indices, rows_as_pages
from .latent_attention import LATENT, attend_latent, check_latent_cache


@overload
def attention_mla_sparse(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    topk_length: torch.Tensor | None = None,
    head_dim_v: int = LATENT,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_mla_sparse(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    topk_length: torch.Tensor | None = None,
    head_dim_v: int = LATENT,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_mla_sparse(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    topk_length: torch.Tensor | None = None,
    head_dim_v: int = LATENT,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_mla_sparse(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    scale: float,
    topk_length: torch.Tensor | None = None,
    head_dim_v: int = LATENT,
    sinks: torch.Tensor | None = None,
    kv_scale: torch.Tensor | float | None = None,
    num_splits: int = 0,
    out: torch.Tensor | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sparse multi-head latent attention: each token attends to its own list of cached keys, in decoding and prefill.

    The result is (T, H, 512) in q's dtype.

    - `q`, `kv_cache`, `scale`, `head_dim_v`, `sinks`, `kv_scale`, `num_splits`, `out`, `return_lse`: as in `attention_mla`. A cache
      (keys, 1, 576) without pages is one with pages of one key.
    - `indices`: int32 (T, k), the keys of each token: block * block_size + the position in the block, in any order. A key that is listed
      twice counts twice. Negative numbers and numbers past the end of the cache are ignored wherever they are in a list. A token
      without any key has result 0 and LSE -inf.
    - `topk_length`: int32 (T,), how many leading entries of each list count; all by default.

    Lists are compacted by PyTorch operations on their device, without synchronization. The kernels are those of `attention_mla` with pages
    of one key. The cache is not copied, whatever its strides.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.attention_mla_sparse"
    check_tensor(where, "q", q)
    check_dtype_and_device(where, "q", q, DTYPES, "q", q)
    if isinstance(kv_cache, torch.Tensor) and kv_cache.dim() == 3:
        kv_cache = kv_cache.unsqueeze(2)
    check_latent_cache(where, kv_cache, q)
    check_indices(where, "indices", indices, 2, "(tokens, keys of a token)", q)
    if q.dim() != 3 or indices.shape[0] != q.shape[0]:
        raise ValueError(
            f"{where}: q has shape {tuple(q.shape)} and indices {tuple(indices.shape)}; they must be (tokens, heads, 576) and (tokens, "
            "keys of a token)"
        )
    if topk_length is not None:
        check_indices(where, "topk_length", topk_length, 1, "(tokens,)", q)
        if topk_length.shape[0] != q.shape[0]:
            raise ValueError(
                f"{where}: topk_length has {topk_length.shape[0]} lengths and q {q.shape[0]} tokens; they must be equal"
            )
    rows, places = rows_as_pages(where, "kv_cache", kv_cache, indices)
    table, lengths = _moved_together(indices, places, kv_cache.shape[0] * kv_cache.shape[1], topk_length)
    return attend_latent(
        where, q, rows, table, lengths, None, 1, scale, head_dim_v, False, None, sinks, kv_scale, num_splits, out, return_lse
    )  # fmt: skip


def _moved_together(
    indices: torch.Tensor, places: torch.Tensor, keys: int, topk_length: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """A block table with one row for each token, which contains its valid keys in their listed order, and their number."""
    tokens, width = indices.shape
    taken = (indices >= 0) & (indices < keys)
    if topk_length is not None:
        taken = taken & (torch.arange(width, device=indices.device) < topk_length.unsqueeze(1))
    # Invalid entries go to a position past the row.
    to = torch.where(taken, taken.cumsum(1) - 1, width)
    table = places.new_zeros((tokens, width + 1)).scatter(1, to, places)
    return table[:, :width], taken.sum(1, dtype=torch.int32)
