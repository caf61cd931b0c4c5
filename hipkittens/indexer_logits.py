# SPDX-License-Identifier: MIT
"""Logits of an indexer, by which sparse attention chooses the keys of a token (DeepSeek V3.2's lightning indexer)."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import (
    check_dtype_and_device,
    check_flag,
    check_gets_no_gradient,
    check_tensor,
    check_whole_number,
)
from ._call import call
from ._paged_sequences import DTYPES, check_indices, check_rows, values_are_known
from .attention import shortened
from .cache import as_operand, is_quantized
from .quantization import dtype_of

HEAD_DIMS = (64, 128)
# The float32 after the quantized values of each key.
SCALE_BYTES = 4


@_backend.interruptible
def mqa_logits(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor | None,
    weights: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    *,
    clean: bool = True,
) -> torch.Tensor:
    """Relevance of each key to each token: the logits of DeepSeek V3.2's lightning indexer.

        logits[m, n] = k_scale[n] * sum over h of weights[m, h] * max(q[m, h] . k[n], 0)  for start[m] <= n < end[m]

    The result is (M, N) float32; pass it to `hipkittens.topk` with row_starts and row_ends.

    - `q`: (M, H, D), any number of heads, D 64 or 128: 8-bit floats (e4m3 of the target, or their bytes as uint8), bfloat16 or float16.
    - `k`: (N, D), in q's dtype.
    - `k_scale`: float32 (N,), multiplies the products with a key; None for 1.
    - `weights`: float32 (M, H), which also include the scale of q and of the softmax.
    - `start`, `end`: int32 (M,), the range of keys of each token. A start below 0 is 0, an end past the last key is N; a range may be
      empty. The contents of keys in no range do not matter, and blocks of 64 such keys are not read.
    - `clean`: logits of other keys are -inf; if False, they are not written and have arbitrary contents.

    Strides are arbitrary, except that the last dimension of q and k has unit stride and rows of both are aligned to 4 bytes. Products and
    sums are float32. The order in which heads are added depends only on H and D, so a token has the same bits alone and in a batch. NaN
    propagates. Infinite 16-bit keys give NaN where H is not a multiple of 16.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.mqa_logits"
    _check_queries(where, q, weights, 3, "(tokens, heads, 64 or 128)")
    _check_keys(where, "k", k, q)
    tokens, _, size = q.shape
    if k.dim() != 2 or k.shape[1] != size:
        raise ValueError(
            f"{where}: k has shape {tuple(k.shape)}; it must be (keys, {size}), as q {tuple(q.shape)}"
        )
    if k_scale is not None:
        check_tensor(where, "k_scale", k_scale)
        check_dtype_and_device(where, "k_scale", k_scale, (torch.float32,), "q", q)
        check_gets_no_gradient(where, "k_scale", k_scale)
        if k_scale.shape != k.shape[:1]:
            raise ValueError(
                f"{where}: k_scale has shape {tuple(k_scale.shape)}; it must be ({k.shape[0]},), a number for each key"
            )
    for name, limits in (("start", start), ("end", end)):
        check_indices(where, name, limits, 1, "(tokens,)", q)
        if limits.shape[0] != tokens:
            raise ValueError(
                f"{where}: {name} has {limits.shape[0]} entries and q {tokens} tokens; they must be equal"
            )
    check_flag(where, "clean", clean)
    _backend.check_device(where, "q", q)
    check_rows(where, "q", q)
    check_rows(where, "k", k)
    if _backend.uses_torch():
        return logits_in_torch(_in_numbers(q), _in_numbers(k), k_scale, weights, start, end)
    return call(
        "mqa_logits", as_operand(q), as_operand(k), k_scale, weights, start.contiguous(), end.contiguous(), bool(clean)
    )  # fmt: skip


@_backend.interruptible
def mqa_logits_paged(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_context_len: int,
    *,
    clean: bool = True,
) -> torch.Tensor:
    """`mqa_logits` of new tokens for keys in a paged cache.

    The result is (B * N, max_context_len) float32: the logits of token n of sequence b are in row b * N + n, in the columns of the keys'
    positions in the sequence.

    - `q`: (B, N, H, D), N tokens of each sequence; 8-bit floats, bfloat16 or float16, as in `mqa_logits`.
    - `kv_cache`: with 8-bit floats (blocks, block_size, D + 4) or (blocks, block_size, 1, D + 4), 8-bit floats or uint8: DeepGEMM's
      format, in which each block contains the values of all its keys followed by one float32 scale for each. With 16 bits
      (blocks, block_size, D) or (blocks, block_size, 1, D), in q's dtype, without scales.
    - `weights`: float32 (B * N, H).
    - `context_lens`: int32 (B,), the number of keys of each sequence including those of its new tokens, so that token n sees
      context_lens - N + 1 + n of them; or int32 (B, N), the number of keys that each token sees.
    - `block_table`: int32 (B, blocks per sequence), the blocks of each sequence in order; entries past the last key are never read.
    - `max_context_len`: the number of columns of the result. Keys past it are not computed.
    - `clean`: logits of keys that a token does not see are -inf; if False, they are not written and have arbitrary contents.

    Any block size. Strides of q are as in `mqa_logits`; blocks of kv_cache may be anywhere in a 64-bit address range, and blocks of 8-bit
    floats are contiguous themselves. The values of context_lens and block_table are validated on a CPU.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.mqa_logits_paged"
    _check_queries(where, q, weights, 4, "(sequences, tokens of each, heads, 64 or 128)")
    check_whole_number(where, "max_context_len", max_context_len)
    if max_context_len < 0:
        raise ValueError(f"{where}: max_context_len is {max_context_len}; it must be 0 or more")
    _check_keys(where, "kv_cache", kv_cache, q)
    sequences, tokens, heads, size = q.shape
    row = size + SCALE_BYTES if is_quantized(q) else size
    if kv_cache.dim() == 4 and kv_cache.shape[2] == 1:
        kv_cache = kv_cache.squeeze(2)
    if kv_cache.dim() != 3 or kv_cache.shape[2] != row or kv_cache.shape[1] == 0:
        kind = " and 4 bytes of a scale" if is_quantized(q) else ""
        raise ValueError(
            f"{where}: kv_cache has shape {tuple(kv_cache.shape)}; it must be (blocks, block_size, {row}) or (blocks, block_size, 1, "
            f"{row}), {size} elements as in q{kind}, with 1 place or more in a block"
        )
    check_tensor(where, "context_lens", context_lens)
    check_dtype_and_device(where, "context_lens", context_lens, (torch.int32,), "q", q)
    if context_lens.shape != (sequences,) and context_lens.shape != (sequences, tokens):
        raise ValueError(
            f"{where}: context_lens has shape {tuple(context_lens.shape)}; it must be ({sequences},) or ({sequences}, {tokens}), as q "
            f"{tuple(q.shape)}"
        )
    check_indices(where, "block_table", block_table, 2, "(sequences, blocks of a sequence)", q)
    if block_table.shape[0] != sequences:
        raise ValueError(
            f"{where}: block_table has {block_table.shape[0]} rows and q {sequences} sequences; they must be equal"
        )
    check_flag(where, "clean", clean)
    _backend.check_device(where, "q", q)
    q = q.reshape(sequences * tokens, heads, size)
    check_rows(where, "q", q)
    check_rows(where, "kv_cache", kv_cache)
    if is_quantized(q) and kv_cache.shape[1] > 1 and kv_cache.stride(1) != row:
        raise ValueError(
            f"{where}: kv_cache has strides {tuple(kv_cache.stride())}; a block of 8-bit floats must be contiguous: its codes, then its "
            "scales"
        )
    if values_are_known(context_lens, block_table):
        _check_values(where, kv_cache, context_lens, block_table, max_context_len)
    if block_table.stride(-1) != 1:
        block_table = block_table.contiguous()
    if _backend.uses_torch():
        return paged_logits_in_torch(q, kv_cache, weights, context_lens, block_table, max_context_len)
    return call(
        "mqa_logits_paged", as_operand(q), as_operand(kv_cache), weights, context_lens.contiguous(), block_table,
        max_context_len, bool(clean),
    )  # fmt: skip


def _check_queries(where: str, q: torch.Tensor, weights: torch.Tensor, dimensions: int, shape: str) -> None:
    check_tensor(where, "q", q)
    codes = dtype_of("fp8", q.device, where)
    check_dtype_and_device(where, "q", q, (*DTYPES, codes, torch.uint8), "q", q)
    if q.dim() != dimensions or q.shape[-1] not in HEAD_DIMS or q.shape[-2] == 0:
        raise ValueError(f"{where}: q has shape {tuple(q.shape)}; it must be {shape}, with 1 head or more")
    check_tensor(where, "weights", weights)
    check_dtype_and_device(where, "weights", weights, (torch.float32,), "q", q)
    rows = q.shape[:-2].numel()
    if weights.shape != (rows, q.shape[-2]):
        raise ValueError(
            f"{where}: weights has shape {tuple(weights.shape)}; it must be ({rows}, {q.shape[-2]}), a number for each token and head of "
            f"q {tuple(q.shape)}"
        )
    for name, value in (("q", q), ("weights", weights)):
        check_gets_no_gradient(where, name, value)


def _check_keys(where: str, name: str, keys: torch.Tensor, q: torch.Tensor) -> None:
    check_tensor(where, name, keys)
    codes = dtype_of("fp8", q.device, where)
    check_dtype_and_device(where, name, keys, (*DTYPES, codes, torch.uint8), "q", q)
    if keys.dtype != q.dtype and not (is_quantized(keys) and is_quantized(q)):
        raise TypeError(
            f"{where}: q is {q.dtype} and {name} is {keys.dtype}; convert one to the other's dtype"
        )
    check_gets_no_gradient(where, name, keys)


def _check_values(
    where: str, kv_cache: torch.Tensor, context_lens: torch.Tensor, block_table: torch.Tensor, columns: int
) -> None:
    """Validates the values of tensors in CPU memory."""
    blocks, size, _ = kv_cache.shape
    most = block_table.shape[1] * size
    for sequence, (lengths, row) in enumerate(zip(context_lens.tolist(), block_table.tolist(), strict=True)):
        length = max(lengths, default=0) if isinstance(lengths, list) else lengths
        if not 0 <= length <= most:
            raise ValueError(
                f"{where}: context_lens[{sequence}] is {length}; a row of block_table has {len(row)} blocks of {size} keys, 0 .. {most} are "
                "allowed"
            )
        used = row[: -(-min(length, columns) // size)]
        if used and not 0 <= min(used) <= max(used) < blocks:
            raise ValueError(
                f"{where}: block_table[{sequence}] is {shortened(used)} where keys are used; the cache has {blocks} blocks, "
                f"0 .. {blocks - 1} are allowed"
            )


def _in_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """8-bit floats that may be passed as bytes."""
    return tensor.view(dtype_of("fp8", tensor.device)) if tensor.dtype == torch.uint8 else tensor


def logits_in_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scale: torch.Tensor | None,
    weights: torch.Tensor,
    start: torch.Tensor,
    end: torch.Tensor,
    dtype: torch.dtype = torch.float32,
    summed: int | None = None,
) -> torch.Tensor:
    """The reference in PyTorch, one head at a time, computed in `dtype`; always clean. `summed`: how many products of a head are summed
    at a time, as matrix instructions do, if PyTorch's order is not wanted.
    """
    keys = k.to(dtype).T.split(summed or max(k.shape[1], 1))
    logits = torch.zeros((q.shape[0], k.shape[0]), dtype=dtype, device=q.device)
    for head in range(q.shape[1]):
        parts = q[:, head].to(dtype).split(keys[0].shape[0], -1)
        product = sum(left @ right for left, right in zip(parts, keys, strict=True))
        logits += weights[:, head, None].to(dtype) * product.relu()
    if k_scale is not None:
        logits *= k_scale.to(dtype)
    places = torch.arange(k.shape[0], device=q.device)
    seen = (places >= start.unsqueeze(1)) & (places < end.unsqueeze(1))
    return logits.masked_fill(~seen, float("-inf"))


def split_blocks(kv_cache: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Views of a cache's keys (blocks, block_size, size) and of their scales (blocks, block_size), None for 16 bits."""
    if not is_quantized(kv_cache):
        return kv_cache, None
    codes, count = kv_cache.view(torch.uint8).flatten(1), kv_cache.shape[1]
    scales = codes[:, count * size :].view(torch.float32)
    return _in_numbers(codes[:, : count * size]).unflatten(1, (count, size)), scales


def paged_logits_in_torch(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    max_context_len: int,
    dtype: torch.dtype = torch.float32,
    summed: int | None = None,
) -> torch.Tensor:
    """`mqa_logits_paged` of q (B * N, H, D) by PyTorch operations in `dtype`, which read lengths from the device; always clean. `summed` as
    in logits_in_torch.
    """
    keys, scales = split_blocks(kv_cache, q.shape[2])
    sequences = len(context_lens)
    tokens = q.shape[0] // sequences if sequences else 0
    logits = torch.full((q.shape[0], max_context_len), float("-inf"), dtype=dtype, device=q.device)
    ends = context_lens
    if ends.dim() == 1:
        ends = ends[:, None] - tokens + 1 + torch.arange(tokens, device=q.device)
    for sequence in range(sequences):
        past = min(int(ends[sequence].max()), max_context_len) if tokens else 0
        if past <= 0:
            continue
        used = block_table[sequence, : -(-past // keys.shape[1])].long()
        rows = slice(sequence * tokens, (sequence + 1) * tokens)
        logits[rows, :past] = logits_in_torch(
            _in_numbers(q[rows]),
            keys[used].flatten(0, 1)[:past],
            None if scales is None else scales[used].flatten()[:past],
            weights[rows],
            torch.zeros_like(ends[sequence]),
            ends[sequence],
            dtype,
            summed,
        )
    return logits
