# SPDX-License-Identifier: MIT
"""Checks of the sequences, the caches and the output tensor of attention to paged caches."""

from __future__ import annotations

import itertools
import math

import torch

from ._arguments import check_dtype_and_device, check_flag, check_tensor, number
from .attention import shortened
from .cache import is_quantized
from .quantization import dtype_of

DTYPES = (torch.bfloat16, torch.float16)
LARGEST_NUM_SPLITS = 256
LARGEST_PLACE = 2**31 - 1


def check_cache(
    where: str, name: str, cache: torch.Tensor, q: torch.Tensor, others: tuple[torch.dtype, ...] = ()
) -> None:
    """Raises unless the cache has q's dtype, or 8-bit floats, or one of the 8-bit dtypes in `others`."""
    check_tensor(where, name, cache)
    codes = dtype_of("fp8", q.device, where)
    check_dtype_and_device(where, name, cache, (*DTYPES, codes, torch.uint8, *others), "q", q)
    if cache.dtype != q.dtype and not is_quantized(cache):
        raise TypeError(f"{where}: q is {q.dtype} and {name} is {cache.dtype}; convert q to the cache's")


def scale_factor(
    where: str,
    name: str,
    scale: torch.Tensor | float | None,
    cache_name: str,
    cache: torch.Tensor,
    shapes: dict[str, tuple[int, ...]],
) -> float:
    """A scale of a cache as a number; 1 if it is None or a tensor, whose values are read on the device. shapes: the allowed shapes of
    tensors with more than one element, by name.
    """
    if scale is None:
        return 1.0
    if not is_quantized(cache):
        raise ValueError(
            f"{where}: {name} is given and {cache_name} is {cache.dtype}; only caches of 8 bits have a scale"
        )
    if isinstance(scale, torch.Tensor):
        check_tensor(where, name, scale)
        check_dtype_and_device(where, name, scale, (torch.float32,), cache_name, cache)
        if scale.numel() != 1 and tuple(scale.shape) not in shapes.values():
            allowed = "".join(f", or be {words} {shape}" for words, shape in shapes.items())
            raise ValueError(
                f"{where}: {name} has shape {tuple(scale.shape)}; it must have one element{allowed}"
            )
        return 1.0
    factor = number(where, name, scale)
    if not math.isfinite(factor):
        raise ValueError(f"{where}: {name} is {factor}; it must be finite")
    return factor


def check_sequences(
    where: str,
    q: torch.Tensor,
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
    num_splits: int,
) -> None:
    """Raises for shapes and dtypes that do not match."""
    if table_starts is None:
        check_indices(where, "block_table", block_table, 2, "(sequences, blocks of a sequence)", q)
        given, sequences, rows = "block_table", block_table.shape[0], "rows"
    else:
        check_indices(where, "block_table", block_table, 1, "(blocks of all sequences,)", q)
        check_indices(where, "table_starts", table_starts, 1, "(sequences,)", q)
        given, sequences, rows = "table_starts", table_starts.shape[0], "entries"
    check_indices(where, "seqused_k", seqused_k, 1, "(sequences,)", q)
    if seqused_k.shape[0] != sequences:
        raise ValueError(
            f"{where}: seqused_k has {seqused_k.shape[0]} lengths and {given} {sequences} {rows}; they must be equal"
        )
    if max_seqlen_q < 0:
        raise ValueError(f"{where}: max_seqlen_q is {max_seqlen_q}; it must be 0 or more")
    if cu_seqlens_q is not None:
        check_indices(where, "cu_seqlens_q", cu_seqlens_q, 1, "(sequences + 1,)", q)
        if cu_seqlens_q.shape[0] != sequences + 1:
            raise ValueError(
                f"{where}: cu_seqlens_q has {cu_seqlens_q.shape[0]} entries; {sequences} {rows} of {given} need "
                f"{sequences + 1}"
            )
    elif q.shape[0] != sequences * max_seqlen_q:
        raise ValueError(
            f"{where}: q has {q.shape[0]} tokens and {given} {sequences} {rows}; without cu_seqlens_q each sequence has "
            f"max_seqlen_q = {max_seqlen_q} tokens"
        )
    if not 0 <= num_splits <= LARGEST_NUM_SPLITS:
        raise ValueError(f"{where}: num_splits is {num_splits}; allowed: 0 .. {LARGEST_NUM_SPLITS}")


def check_indices(
    where: str, name: str, value: torch.Tensor, dimensions: int, shape: str, q: torch.Tensor
) -> None:
    check_tensor(where, name, value)
    check_dtype_and_device(where, name, value, (torch.int32,), "q", q)
    if value.dim() != dimensions:
        raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it must be {shape}")


def check_flag_and_output(
    where: str, q: torch.Tensor, size: int, out: torch.Tensor | None, return_lse: bool
) -> None:
    """size: the number of features in a row of the result."""
    check_flag(where, "return_lse", return_lse)
    if out is None:
        return
    check_tensor(where, "out", out)
    shape = (*q.shape[:2], size)
    if tuple(out.shape) != shape or out.dtype != q.dtype or out.device != q.device:
        raise ValueError(
            f"{where}: out is {out.dtype} of shape {tuple(out.shape)} on {out.device}; it must be as q, {q.dtype} of "
            f"{shape} on {q.device}"
        )
    if torch.is_grad_enabled() and out.requires_grad:
        raise ValueError(f"{where}: out requires a gradient; it is written in place and has none")
    if any(size > 1 and step == 0 for size, step in zip(out.shape, out.stride(), strict=True)):
        raise ValueError(f"{where}: out is expanded, so that rows share memory; clone it first")
    check_rows(where, "out", out)


def check_rows(where: str, name: str, value: torch.Tensor) -> None:
    """Raises for rows that kernels cannot read in vectors: caches are too large to be copied implicitly."""
    if torch.compiler.is_compiling() or value.numel() == 0:
        return
    *steps, last = value.stride()
    is_readable = type(value) is torch.Tensor and value.device.type != "meta"
    beyond = value.data_ptr() % 4 if is_readable and not torch._C._are_functorch_transforms_active() else 0
    even = all(
        step * value.itemsize % 4 == 0 or size == 1 for step, size in zip(steps, value.shape, strict=False)
    )
    if last != 1 or not even or beyond:
        raise ValueError(
            f"{where}: {name} has strides {tuple(value.stride())} and begins at address % 4 = {beyond}; it needs unit stride "
            "along its last dimension, and rows on 4 bytes; call .contiguous()"
        )


def rows_as_pages(
    where: str, name: str, cache: torch.Tensor, indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache (blocks, block_size, heads, D) as pages of one key, without a copy, and the pages of `indices`, which are block * block_size
    + position. If there are gaps between the cache's pages, such pages overlap.
    """
    blocks, size, heads, features = cache.shape
    page, slot = cache.stride()[:2]
    if blocks <= 1 or size == 1 or page == size * slot:
        rows = cache.transpose(0, 1) if blocks == 1 else cache.reshape(blocks * size, 1, heads, features)
        return rows, indices
    unit = math.gcd(page, slot) or 1
    count = ((blocks - 1) * page + (size - 1) * slot) // unit + 1
    if count - 1 > LARGEST_PLACE:
        raise ValueError(
            f"{where}: {name} has strides {tuple(cache.stride())}, so that its rows lie at multiples of {unit} elements, {count} of "
            f"them; 2^31 are allowed: make the room between its pages a multiple of a row, or call .contiguous()"
        )
    rows = cache.as_strided((count, 1, heads, features), (unit, unit, *cache.stride()[2:]))
    blocks_of = indices // size
    return rows, blocks_of * (page // unit) + (indices - blocks_of * size) * (slot // unit)


def values_are_known(*tensors: torch.Tensor | None) -> bool:
    return not (torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()) and all(
        tensor is None or (type(tensor) is torch.Tensor and tensor.device.type == "cpu") for tensor in tensors
    )


def check_values(
    where: str,
    q: torch.Tensor,
    key_blocks: tuple[int, int],
    block_table: torch.Tensor,
    table_starts: torch.Tensor | None,
    seqused_k: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
    left: int,
) -> None:
    """Validates tensors in CPU memory. Blocks that a window hides may be arbitrary."""
    blocks, block_size = key_blocks
    table = block_table.tolist()
    if table_starts is not None:
        starts = table_starts.tolist()
        if starts and not 0 <= min(starts) <= max(starts) <= len(table):
            raise ValueError(
                f"{where}: table_starts is {shortened(starts)}; block_table has {len(table)} entries, 0 .. {len(table)} are allowed"
            )
        table = [table[start:] for start in starts]
    lengths = seqused_k.tolist()
    for sequence, length in enumerate(lengths):
        entries = len(table[sequence])
        if not 0 <= length <= entries * block_size:
            raise ValueError(
                f"{where}: seqused_k[{sequence}] is {length}; a row of block_table has {entries} blocks of "
                f"{block_size} keys, 0 .. {entries * block_size} are allowed"
            )
    tokens = [max_seqlen_q] * len(lengths)
    if cu_seqlens_q is not None:
        ends = cu_seqlens_q.tolist()
        tokens = [after - before for before, after in itertools.pairwise(ends)]
        if ends[0] != 0 or ends[-1] > q.shape[0] or min(tokens, default=0) < 0:
            raise ValueError(
                f"{where}: cu_seqlens_q is {shortened(ends)}; it must rise from 0 to at most the {q.shape[0]} rows of q"
            )
        if max(tokens, default=0) > max_seqlen_q:
            raise ValueError(
                f"{where}: max_seqlen_q is {max_seqlen_q} and the longest sequence of cu_seqlens_q has {max(tokens)} rows; pass "
                f"{max(tokens)} or more"
            )
    for sequence, (length, count) in enumerate(zip(lengths, tokens, strict=True)):
        first = max(length - count - left, 0) if left >= 0 else 0
        used = table[sequence][first // block_size : -(-length // block_size)] if count else []
        if used and not 0 <= min(used) <= max(used) < blocks:
            raise ValueError(
                f"{where}: block_table[{sequence}] is {shortened(used)} where keys are used; the cache has {blocks} "
                f"blocks, 0 .. {blocks - 1} are allowed"
            )
