# SPDX-License-Identifier: MIT
"""Attention whose weights are silu(scale Q K^T) in place of a softmax, over sequences of context, history and targets: HSTU."""

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
    """silu(scale q k^T) v / max_seqlen over what each row sees: q (T, H, D), k (T, H_k, D), v (T, H_k, D_v), H a multiple of H_k.

    Sequences lie one after the other and attend to themselves: sequence b has rows cu_seqlens[b] .. cu_seqlens[b + 1] - 1, int32 on
    q's device, from 0 to T, never falling; one may be empty. max_seqlen is at least the longest; it is what every sum is divided by.
    All bfloat16 or all float16, D and D_v multiples of 8 up to 256; the result is (T, H, D_v) in q's dtype: products and sums are
    float32, rounded once, but for the weights, which are rounded to q's dtype between the two products (in float16, weights beyond
    65504 are infinite). scale defaults to 1 / sqrt(D). Gradients flow to q, k and v, in sums of one fixed order.

    The first contextual_seq_len rows of each sequence are its context and share place 0; its last num_targets[b] rows (int32, one
    for each sequence, 0 to its length) are its targets and share the place behind the last of the others; the rows between have
    places of their own. A row sees itself; rows at earlier places (without causal: at other places), and with max_attn_len > 0 none
    further away than that; a row of the context also sees all that is no target. So targets see none of each other. Where context
    and targets leave no place between them (a context longer than the rest of the sequence, or all rows targets), each row sees
    itself alone. That is what AITER's and generative-recommenders' masks are.

    On a CPU cu_seqlens and num_targets are checked; on a GPU that would wait for the device, so there they are taken as they are.
    Raises TypeError or ValueError, before anything is launched, for a dtype, shape, device or option without a kernel.
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
    """Of q, k and v, from that of the result of hstu_attention, without computing the result. options: its other arguments, all of
    them."""
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
    """What operators take behind their tensors. Raises for arguments no kernel takes."""
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
    """Which row (first dimension) of a sequence sees which."""
    row = torch.arange(length, device=device)
    behind = length - targets - max(contextual_seq_len - 1, 0)  # the place of targets
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
    """The same in PyTorch, sequence by sequence and rounded where the kernels round: in float32, or in float64 where q is."""
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
