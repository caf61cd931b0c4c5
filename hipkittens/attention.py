# SPDX-License-Identifier: MIT
"""Attention: softmax(scale Q K^T) V, with flash-attention's conventions for shapes, masks and windows."""

from __future__ import annotations

import itertools
import math
from typing import Literal, overload

import torch

from . import _backend
from ._arguments import check_flag, check_probability, check_tensor, number
from ._autocast import to_autocast_dtype
from ._call import call
from ._hidden_keys import distances, hidden_keys
from ._score_terms import check_score_terms, log_sum_with_sinks, with_terms

DTYPES = (torch.bfloat16, torch.float16)
LAYOUTS = ("bnhd", "bhnd")
LARGEST_HEAD = 256


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    layout: str = "bnhd",
    deterministic: bool | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    layout: str = "bnhd",
    deterministic: bool | None = None,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    layout: str = "bnhd",
    deterministic: bool | None = None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    layout: str = "bnhd",
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention, softmax(scale q k^T) v, with causal and windowed masks, dropout, sinks, soft-capping and ALiBi.

    The result is (B, N, H, D_v) in q's dtype. Products and sums are float32 and rounded once.

    - `q`, `k`, `v`: (B, N, H, D), (B, N_k, H_k, D) and (B, N_k, H_k, D_v), all bfloat16 or all float16. H is a multiple of H_k, and query
      head h reads key head h // (H / H_k). D and D_v are multiples of 8 up to 256; N and N_k are arbitrary.
    - `causal`: query i is aligned with key i + N_k - N, and the keys after that position are masked.
    - `window_size`: (left, right); keys more than `left` before or `right` after the query's position are masked. A negative number is
      no limit. A query for which every key is masked gives 0.
    - `scale`: 1 / sqrt(D) by default.
    - `softcap`: if > 0, each scaled score becomes softcap * tanh(score / softcap).
    - `alibi_slopes`: float32 (H,) or (B, H). After soft-capping, slope times the distance between the query's position and the key is
      subtracted from each score. Gets no gradient.
    - `sinks`: (H,), float32, bfloat16 or float16: for each head the score of one additional key without a value. It is part of every
      query's softmax denominator, but not of the LSE.
    - `dropout_p`: each weight is dropped with this probability, rounded to a multiple of 2^-16, and the others are divided by the
      probability of being kept. The LSE is that of all weights. May be combined with sinks, not with softcap or alibi_slopes.
    - `layout`: "bnhd", or "bhnd", which accepts and returns (B, H, N, D).
    - `return_lse`: also return the natural logarithm of each query's sum of exp(scale q k): float32 (B, H, N), -inf where every key is
      masked.
    - `deterministic`: accepted for compatibility. Gradients flow through both results and are always accumulated in one fixed order.

    Each call with dropout_p > 0 draws a seed from torch's generator of q's device, so torch.manual_seed makes it reproducible. Which
    weights are dropped depends only on that seed and on the batch, head, query and key indices, not on lengths, masks, strides, dtype or
    target; the backward pass regenerates the same mask.

    Strided tensors are not copied as long as the last dimension has unit stride, the other strides are even and rows are aligned to 4
    bytes.

    Raises TypeError or ValueError, before anything is launched, for a dtype, shape, device or option that no kernel supports.
    """
    where = "hipkittens.attention"
    check_layout(where, layout)
    q, k, v = to_autocast_dtype(q, k, v)
    scale, left, right = checked_operands(
        where, q, k, v, layout, scale, causal, window_size, dropout_p, deterministic
    )
    _check_score_terms(where, q, layout.index("h"), q.shape[0], sinks, softcap, alibi_slopes, dropout_p)
    if layout == "bhnd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if _backend.uses_torch():
        out, lse = _in_torch(
            q, k, v, scale, bool(causal), left, right, dropout_p, sinks, softcap, alibi_slopes
        )
    else:
        seed, sinks = _draw_seed(dropout_p, q.device), _as_kernels_read(sinks)
        out, lse = call(
            "attention_forward", q, k, v, scale, bool(causal), left, right, dropout_p, seed, sinks, float(softcap),
            _as_kernels_read(alibi_slopes),
        )  # fmt: skip
    if layout == "bhnd":
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


@overload
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool | None = None,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...


@overload
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool | None = None,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...


@overload
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool | None = None,
    return_lse: bool,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]: ...


@_backend.interruptible
def attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention over packed sequences of different lengths: q (T, H, D), k (T_k, H_k, D), v (T_k, H_k, D_v).

    - `cu_seqlens_q`, `cu_seqlens_k`: int32 on q's device, non-decreasing, from 0 to T and T_k. Sequence b consists of rows
      cu_seqlens_q[b] .. cu_seqlens_q[b + 1] - 1 of q and cu_seqlens_k[b] .. cu_seqlens_k[b + 1] - 1 of k and v; it may be empty.
    - `max_seqlen_q`, `max_seqlen_k`: at least the longest sequence; they determine the size of the launch.
    - `return_lse`: also return the LSE, float32 (H, T).

    causal, scale, window_size, dropout_p (with b as the batch index), sinks, softcap, alibi_slopes, deterministic, dtypes and errors are
    those of `attention`.

    The values of cu_seqlens_q and cu_seqlens_k are validated on a CPU. On a GPU that would require a synchronization, so they are trusted.
    """
    where = "hipkittens.attention_varlen"
    q, k, v = to_autocast_dtype(q, k, v)
    scale, left, right = checked_operands(
        where, q, k, v, "thd", scale, causal, window_size, dropout_p, deterministic
    )
    check_sequences(where, "_q", cu_seqlens_q, max_seqlen_q, "q", q)
    check_sequences(where, "_k", cu_seqlens_k, max_seqlen_k, "k", k)
    if cu_seqlens_q.shape != cu_seqlens_k.shape:
        raise ValueError(
            f"{where}: cu_seqlens_q has {cu_seqlens_q.shape[0]} entries and cu_seqlens_k {cu_seqlens_k.shape[0]}; "
            "they must be equal"
        )
    sequences = cu_seqlens_q.shape[0] - 1
    _check_score_terms(where, q, 1, sequences, sinks, softcap, alibi_slopes, dropout_p)
    if _backend.uses_torch():
        out, lse = _packed_in_torch(
            q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, scale, bool(causal), left, right, dropout_p, sinks, softcap
        )  # fmt: skip
    else:
        seed, sinks = _draw_seed(dropout_p, q.device), _as_kernels_read(sinks)
        out, lse = call(
            "attention_varlen_forward", q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale, bool(causal), left, right,
            dropout_p, seed, sinks, float(softcap), _as_kernels_read(alibi_slopes),
        )  # fmt: skip
    return (out, lse) if return_lse else out


def check_layout(where: str, layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")


def scale_or_default(where: str, scale: float | None, q: torch.Tensor) -> float:
    if scale is None:
        return q.shape[-1] ** -0.5
    scale = number(where, "scale", scale)
    if not math.isfinite(scale):
        raise ValueError(f"{where}: scale is {scale}; it must be finite")
    return scale


def _draw_seed(dropout_p: float, device: torch.device) -> torch.Tensor | None:
    """A seed from torch's generator of the device, so that torch.manual_seed makes the dropout mask reproducible."""
    if dropout_p == 0.0:
        return None
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def _as_kernels_read(values: torch.Tensor | None) -> torch.Tensor | None:
    """The values as contiguous float32, one for each head."""
    return None if values is None else values.float().contiguous()


def _check_score_terms(
    where: str,
    q: torch.Tensor,
    heads_axis: int,
    sequences: int,
    sinks: torch.Tensor | None,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
    dropout_p: float,
) -> None:
    if sinks is None and alibi_slopes is None and type(softcap) is float and softcap == 0.0:
        return
    check_score_terms(where, q, q.shape[heads_axis], sequences, sinks, softcap, alibi_slopes)
    if dropout_p > 0 and (softcap > 0 or alibi_slopes is not None):
        name = "softcap" if softcap > 0 else "alibi_slopes"
        raise ValueError(
            f"{where}: dropout_p is {dropout_p} with {name}; no kernel has both, pass dropout_p=0.0 or no {name}"
        )


def _check_options(where: str, causal: bool, dropout_p: float, deterministic: bool | None) -> None:
    check_flag(where, "causal", causal)
    check_probability(where, "dropout_p", dropout_p)
    if deterministic not in (None, False, True):
        raise TypeError(f"{where}: deterministic is {deterministic!r}; allowed: None, False, True")


def check_sequences(
    where: str, suffix: str, cu_seqlens: torch.Tensor, longest: int, side: str, rows: torch.Tensor
) -> None:
    """Raises if cu_seqlens<suffix> and max_seqlen<suffix> do not describe sequences of `rows`, the argument named `side`."""
    name = f"cu_seqlens{suffix}"
    if not isinstance(cu_seqlens, torch.Tensor):
        raise TypeError(f"{where}: {name} is {type(cu_seqlens).__name__}; it must be a torch.Tensor")
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(
            f"{where}: {name} is {cu_seqlens.dtype} of shape {tuple(cu_seqlens.shape)}; it must be torch.int32 with one "
            "dimension: 0, then the end of each sequence"
        )
    if not cu_seqlens.is_contiguous():
        raise ValueError(f"{where}: {name} is not contiguous; call .contiguous()")
    if cu_seqlens.device != rows.device:
        raise ValueError(f"{where}: {name} is on {cu_seqlens.device} and {side} on {rows.device}; move one")
    if isinstance(longest, bool) or not isinstance(longest, (int, torch.SymInt)):
        raise TypeError(f"{where}: max_seqlen{suffix} is {type(longest).__name__}; it must be an int")
    if (
        torch.compiler.is_compiling()
        or type(cu_seqlens) is not torch.Tensor
        or cu_seqlens.device.type != "cpu"
    ):
        return
    ends = cu_seqlens.tolist()
    lengths = [after - before for before, after in itertools.pairwise(ends)]
    if ends[0] != 0 or ends[-1] != rows.shape[0] or min(lengths) < 0:
        raise ValueError(
            f"{where}: {name} is {shortened(ends)}; it must rise from 0 to the {rows.shape[0]} rows of {side}"
        )
    if max(lengths) > longest:
        raise ValueError(
            f"{where}: max_seqlen{suffix} is {longest} and the longest sequence of {name} has {max(lengths)} rows; "
            f"pass {max(lengths)} or more"
        )


def shortened(values: list[int]) -> str:
    return str(values) if len(values) <= 8 else f"[{', '.join(map(str, values[:7]))}, ..., {values[-1]}]"


def window_sides(where: str, window_size: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = (int(side) for side in window_size)
        if (left, right) != tuple(window_size):
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: window_size is {window_size!r}; it must be two integers (left, right)"
        ) from None
    return max(left, -1), max(right, -1)


@_backend.checked_once(1, 2, 3)
def checked_operands(
    where: str,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: str,
    scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    dropout_p: float,
    deterministic: bool | None,
) -> tuple[float, int, int]:
    """Checks the arguments and returns the scale and both sides of the window. Raises for arguments that no kernel supports."""
    tensors = {"q": q, "k": k, "v": v}
    for name, value in tensors.items():
        check_tensor(where, name, value)
        if value.dim() != len(layout):
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs {len(layout)} dimensions ({layout})"
            )
        if value.dtype not in DTYPES:
            raise TypeError(
                f"{where}: {name} is {value.dtype}; allowed: torch.bfloat16, torch.float16 "
                "(convert it, or run under torch.autocast)"
            )
        if value.dtype != q.dtype:
            raise TypeError(f"{where}: q is {q.dtype} and {name} is {value.dtype}; convert one to the other")
        if value.device != q.device:
            raise ValueError(
                f"{where}: q is on {q.device} and {name} on {value.device}; move one to the other"
            )
    shapes = f"q: {tuple(q.shape)}, k: {tuple(k.shape)}, v: {tuple(v.shape)}"
    heads = layout.index("h")
    if k.shape[:-1] != v.shape[:-1]:
        raise ValueError(f"{where}: k and v differ in more than the head size ({shapes})")
    if layout != "thd" and q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{where}: q has batch {q.shape[0]} and k {k.shape[0]} ({shapes}); they must be equal"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"{where}: q has head size {q.shape[-1]} and k {k.shape[-1]} ({shapes}); they must be equal"
        )
    for name, value in tensors.items():
        if value.shape[heads] == 0:
            raise ValueError(f"{where}: {name} has 0 heads ({shapes}; {layout}); allowed: 1 or more")
    if q.shape[heads] % k.shape[heads]:
        raise ValueError(
            f"{where}: {q.shape[heads]} heads of q are not a multiple of {k.shape[heads]} heads of k ({shapes}; {layout})"
        )
    for value, of in ((q, ""), (v, " of v")):
        if not 8 <= value.shape[-1] <= LARGEST_HEAD or value.shape[-1] % 8:
            raise ValueError(
                f"{where}: the head size{of} is {value.shape[-1]}; allowed: multiples of 8 up to {LARGEST_HEAD}"
            )
    _backend.check_device(where, "q", q)
    left, right = window_sides(where, window_size)
    _check_options(where, causal, dropout_p, deterministic)
    return scale_or_default(where, scale, q), left, right


def _in_torch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    left: int,
    right: int,
    dropout_p: float,
    sinks: torch.Tensor | None,
    softcap: float,
    alibi_slopes: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The float32 reference in PyTorch, used with HIPKITTENS_BACKEND=torch."""
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, dim=2).float().transpose(1, 2) for tensor in (k, v))
    scores = scale * q.float().transpose(1, 2) @ k.mT
    distance = distances(q.shape[1], k.shape[2], q.device)
    scores = with_terms(scores, distance, softcap, alibi_slopes)
    hidden = hidden_keys(distance, causal, left, right)
    lse = scores.masked_fill(hidden, float("-inf")).logsumexp(-1)
    of_all = log_sum_with_sinks(lse, sinks)
    weights = (
        (scores - of_all.unsqueeze(-1).masked_fill(lse.isinf().unsqueeze(-1), 0)).exp().masked_fill(hidden, 0)
    )
    weights = torch.nn.functional.dropout(weights, dropout_p)
    return (weights @ v).transpose(1, 2).to(q.dtype).contiguous(), lse


def _packed_in_torch(
    q, k, v, cu_seqlens_q, cu_seqlens_k, alibi_slopes, *options
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference for packed sequences, one sequence at a time."""
    sizes_q, sizes_k = cu_seqlens_q.diff().tolist(), cu_seqlens_k.diff().tolist()
    slopes = (
        alibi_slopes.unbind()
        if alibi_slopes is not None and alibi_slopes.dim() == 2
        else [alibi_slopes] * len(sizes_q)
    )
    parts = [
        _in_torch(*(tensor.unsqueeze(0) for tensor in tensors), *options, of_sequence)
        for *tensors, of_sequence in zip(
            q.split(sizes_q), k.split(sizes_k), v.split(sizes_k), slopes, strict=True
        )
    ]
    return torch.cat([out[0] for out, _ in parts]), torch.cat([lse[0] for _, lse in parts], dim=-1)
