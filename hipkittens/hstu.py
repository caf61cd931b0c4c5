# SPDX-License-Identifier: MIT
"""HSTU attention: weights are silu(scale Q K^T) instead of a softmax, over sequences of context, history and targets."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, check_whole_number
from ._autocast import to_autocast_dtype
from ._call import call
from .attention import check_sequences, checked_operands, shortened


@_backend.interruptible
def hstu_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    *,
    causal: bool = True,
    scale: float | None = None,
    num_targets: torch.Tensor | None = None,
    max_attn_len: int = 0,
    contextual_seq_len: int = 0,
) -> torch.Tensor:
    """HSTU attention, silu(scale q k^T) v / max_seqlen under HSTU's mask, over packed sequences.

    q is (T, H, D), k (T, H_k, D) and v (T, H_k, D_v), all bfloat16 or all float16; H is a multiple of H_k, and D and D_v are multiples of 8
    up to 256. The result is (T, H, D_v) in q's dtype. Products and sums are float32 and rounded once, except for the weights, which
    are rounded to q's dtype between the two GEMMs (in float16, weights beyond 65504 become infinite).

    - `cu_seqlens`: int32 on q's device, non-decreasing, from 0 to T. Sequence b consists of rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1
      and attends to itself; it may be empty.
    - `max_seqlen`: at least the longest sequence; every sum is divided by it.
    - `scale`: 1 / sqrt(D) by default.
    - `num_targets`: int32, for each sequence the number of its last rows, 0 to its length, that are targets.
    - `contextual_seq_len`: the number of first rows of each sequence that are its context.
    - `causal`, `max_attn_len`: see the mask below.

    Mask: the context rows share position 0, the targets share the position after the last of the other rows, and the rows between have
    consecutive positions. A row attends to itself and to rows at earlier positions (without causal, at other positions), with
    max_attn_len > 0 only up to that distance; a context row also attends to all rows that are not targets. Targets therefore do not
    attend to each other. Where context and targets leave no position between them (a context longer than the rest of the sequence, or
    all rows targets), each row attends only to itself. These are the masks of AITER and generative-recommenders.

    Differentiable in q, k and v; gradients are accumulated in one fixed order. The values of cu_seqlens and num_targets are validated on
    a CPU. On a GPU that would require a synchronization, so they are trusted. Raises TypeError or ValueError, before anything is
    launched, for a dtype, shape, device or option that no kernel supports.
    """
    q, k, v = to_autocast_dtype(q, k, v)
    options = _checked(
        "hipkittens.hstu_attention", q, k, v, cu_seqlens, max_seqlen, causal, scale, num_targets, max_attn_len,
        contextual_seq_len,
    )  # fmt: skip
    if _backend.uses_torch():
        return in_torch(q, k, v, cu_seqlens, num_targets, *options)
    return call("hstu_attention", q, k, v, cu_seqlens, num_targets, *options)


def gradients(
    where: str, grad_out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of q, k and v from that of hstu_attention's result, without computing the result. options: all its other arguments."""
    checked = _checked(where, q, k, v, **options)
    check_tensor(where, "grad_out", grad_out)
    check_dtype_and_device(where, "grad_out", grad_out, (q.dtype,), "q", q)
    if grad_out.shape != (*q.shape[:2], v.shape[2]):
        raise ValueError(
            f"{where}: grad_out has shape {tuple(grad_out.shape)}; that of the result is {(*q.shape[:2], v.shape[2])}"
        )
    sequences = options["cu_seqlens"], options["num_targets"]
    if _backend.uses_torch():
        with torch.enable_grad():
            leaves = [rows.detach().requires_grad_() for rows in (q, k, v)]
            out = in_torch(*leaves, *sequences, *checked)
        return torch.autograd.grad(out, leaves, grad_out)
    return call("hstu_attention_backward", grad_out, q, k, v, *sequences, *checked)


def _checked(
    where: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    causal: bool,
    scale: float | None,
    num_targets: torch.Tensor | None,
    max_attn_len: int,
    contextual_seq_len: int,
) -> tuple[int, float, bool, int, int]:
    """The operators' arguments after their tensors. Raises for arguments that no kernel supports."""
    scale, _, _ = checked_operands(where, q, k, v, "thd", scale, causal, (-1, -1), 0.0, None)
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{where}: q has {q.shape[0]} rows and k {k.shape[0]}; sequences attend to themselves, so they must be equal"
        )
    check_sequences(where, "", cu_seqlens, max_seqlen, "q", q)
    for name, value in {"max_attn_len": max_attn_len, "contextual_seq_len": contextual_seq_len}.items():
        check_whole_number(where, name, value)
        if value < 0:
            raise ValueError(f"{where}: {name} is {value}; it must be 0 (none) or more")
    if num_targets is not None:
        _check_targets(where, num_targets, cu_seqlens)
    return max_seqlen, scale, bool(causal), max_attn_len, contextual_seq_len


def _check_targets(where: str, num_targets: torch.Tensor, cu_seqlens: torch.Tensor) -> None:
    check_tensor(where, "num_targets", num_targets)
    sequences = cu_seqlens.shape[0] - 1
    if num_targets.dtype != torch.int32 or tuple(num_targets.shape) != (sequences,):
        raise ValueError(
            f"{where}: num_targets is {num_targets.dtype} of shape {tuple(num_targets.shape)}; it must be torch.int32 of shape "
            f"({sequences},), one for each sequence"
        )
    if not num_targets.is_contiguous():
        raise ValueError(f"{where}: num_targets is not contiguous; call .contiguous()")
    if num_targets.device != cu_seqlens.device:
        raise ValueError(
            f"{where}: num_targets is on {num_targets.device} and q on {cu_seqlens.device}; move one"
        )
    if (
        torch.compiler.is_compiling()
        or {type(num_targets), type(cu_seqlens)} != {torch.Tensor}
        or num_targets.device.type != "cpu"
    ):
        return
    targets, ends = num_targets.tolist(), cu_seqlens.tolist()
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    if not all(0 <= some <= length for some, length in zip(targets, lengths, strict=True)):
        raise ValueError(
            f"{where}: num_targets is {shortened(targets)} and the sequences have {shortened(lengths)} rows; each must be from 0 "
            "to its sequence's rows"
        )


def seen(
    length: int, targets: int, causal: bool, max_attn_len: int, contextual_seq_len: int, device: torch.device
) -> torch.Tensor:
    """The mask: which row (first dimension) of a sequence attends to which."""
    row = torch.arange(length, device=device)
    behind = length - targets - max(contextual_seq_len - 1, 0)  # the position of targets
    place = (row - max(contextual_seq_len - 1, 0)).clamp(min=0).clamp(max=behind)
    distance = place[:, None] - place[None, :]
    if not causal:
        distance = distance.abs()
    near = distance > 0
    if max_attn_len > 0:
        near &= distance <= max_attn_len
    of_context = (row < contextual_seq_len)[:, None] & (place == 0)[:, None] & (place < behind)[None, :]
    return near | of_context | (row[:, None] == row[None, :])


def in_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    num_targets: torch.Tensor | None,
    max_seqlen: int,
    scale: float,
    causal: bool,
    max_attn_len: int,
    contextual_seq_len: int,
) -> torch.Tensor:
    """The reference in PyTorch, one sequence at a time, rounded where the kernels round: in float32, or in float64 if q is."""
    wide, group = torch.promote_types(q.dtype, torch.float32), q.shape[1] // k.shape[1]
    lengths = cu_seqlens.diff().tolist()
    targets = [0] * len(lengths) if num_targets is None else num_targets.tolist()
    parts = []
    for q_b, k_b, v_b, of_targets in zip(
        q.split(lengths), k.split(lengths), v.split(lengths), targets, strict=True
    ):
        q_b, k_b, v_b = (rows.to(wide).transpose(0, 1) for rows in (q_b, k_b, v_b))
        k_b, v_b = (rows.repeat_interleave(group, 0) for rows in (k_b, v_b))
        visible = seen(q_b.shape[1], of_targets, causal, max_attn_len, contextual_seq_len, q.device)
        weights = torch.nn.functional.silu(scale * q_b @ k_b.mT).masked_fill(~visible, 0)
        parts.append((weights.to(q.dtype).to(wide) @ v_b / max(max_seqlen, 1)).transpose(0, 1))
    return torch.cat(parts).to(q.dtype)
