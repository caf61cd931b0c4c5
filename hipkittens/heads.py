# SPDX-License-Identifier: MIT
"""Copies that concatenate the two parts of heads, and that split queries, keys and values; each in one launch."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@_backend.interruptible
def concat_heads(
    q1: torch.Tensor, q2: torch.Tensor, k1: torch.Tensor, k2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Concatenate the two parts of query heads and of key heads, in one launch: torch.cat((q1, q2), -1) and torch.cat((k1, k2), -1).

    For heads with a separate rotary part (multi-head latent attention); AITER's fused_qk_cat. `q1` (..., D1) and `q2` (..., D2) have their
    other dimensions in common, and so do `k1` and `k2`; those of queries and keys may differ. All have one dtype, float32, bfloat16 or
    float16, with any strides between rows. The results are dense, exact copies. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.concat_heads"
    named = {"q1": q1, "q2": q2, "k1": k1, "k2": k2}
    for name, value in named.items():
        check_tensor(where, name, value)
        check_dtype_and_device(where, name, value, DTYPES if name == "q1" else (q1.dtype,), "q1", q1)
        if value.dim() == 0:
            raise ValueError(f"{where}: {name} has shape (); it needs at least 1 dimension")
    for first, second in (("q1", "q2"), ("k1", "k2")):
        if named[first].shape[:-1] != named[second].shape[:-1]:
            raise ValueError(
                f"{where}: {second} has shape {tuple(named[second].shape)} and {first} {tuple(named[first].shape)}; all "
                "dimensions but the last must be equal"
            )
    _backend.check_device(where, "q1", q1)
    if _backend.uses_torch():
        return torch.cat((q1, q2), -1), torch.cat((k1, k2), -1)
    return call("concat_heads", q1, q2, k1, k2)


@_backend.interruptible
def split_heads(
    qkv: torch.Tensor, q_size: int, kv_size: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split packed rows into dense q, k and v, in one launch: qkv[..., :q_size], the next kv_size columns and the last kv_size.

    AITER's split_qkv. `qkv` (..., q_size + 2 kv_size) is float32, bfloat16 or float16, with any strides between rows. The results are exact
    copies. Raises TypeError or ValueError, before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.split_heads"
    check_tensor(where, "qkv", qkv)
    check_dtype_and_device(where, "qkv", qkv, DTYPES, "qkv", qkv)
    for name, size in (("q_size", q_size), ("kv_size", kv_size)):
        check_whole_number(where, name, size)
        if size < 0:
            raise ValueError(f"{where}: {name} is {size}; it must be 0 or more")
    if qkv.dim() == 0 or qkv.shape[-1] != q_size + 2 * kv_size:
        raise ValueError(
            f"{where}: qkv has shape {tuple(qkv.shape)}; with q_size {q_size} and kv_size {kv_size} its rows must have "
            f"{q_size + 2 * kv_size} elements"
        )
    _backend.check_device(where, "qkv", qkv)
    if _backend.uses_torch():
        return tuple(part.contiguous() for part in qkv.split((q_size, kv_size, kv_size), -1))
    return call("split_heads", qkv, q_size, kv_size)
