# SPDX-License-Identifier: MIT
"""Attention: softmax(scale Q K^T) V with the meaning that flash-attention gives to shapes, masks and windows."""

from __future__ import annotations

import torch

from . import _backend
from ._autocast import to_autocast_dtype

DTYPES = (torch.bfloat16, torch.float16)
LAYOUTS = ("bnhd", "bhnd")
LARGEST_HEAD = 256


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    dropout_p: float = 0.0,
    layout: str = "bnhd",
    deterministic: bool | None = None,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale q k^T) v; q (B, N, H, D), k and v (B, N_k, H_k, D) with H a multiple of H_k.

    Query head h reads key head h // (H / H_k). Query i stands at key i + N_k - N. causal hides the keys after that
    place; window_size = (left, right) hides those more than `left` before or `right` after it (negative: no limit). A
    query that sees no key gives 0. scale defaults to 1 / sqrt(D). layout "bhnd" takes and returns (B, H, N, D).
    return_lse adds the natural logarithm of each query's sum of exp(scale q k): float32 (B, H, N), -inf where no key
    is seen. Gradients flow through both results; they are sums in one fixed order, whatever `deterministic` says.

    Any strides do without a copy as long as D has unit stride, the other strides are even and rows begin on 4 bytes.
    """
    where = "hipkittens.attention"
    if layout not in LAYOUTS:
        raise ValueError(f"{where}: layout is {layout!r}; allowed: {', '.join(LAYOUTS)}")
    q, k, v = to_autocast_dtype(q, k, v)
    _check(where, q, k, v, layout)
    left, right = _window(where, window_size)
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"{where}: dropout_p is {dropout_p}; it must be in [0, 1)")
    if dropout_p > 0.0:
        raise NotImplementedError(f"{where}: dropout_p = {dropout_p}; no kernel drops weights yet, pass 0.0")
    if deterministic not in (None, False, True):
        raise TypeError(f"{where}: deterministic is {deterministic!r}; allowed: None, False, True")
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if layout == "bhnd":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if _backend.uses_torch():
        out, lse = _in_torch(q, k, v, scale, bool(causal), left, right)
    else:
        # The forward sums in one order whatever is asked for.
        out, lse = torch.ops.hipkittens.attention_forward(q, k, v, scale, bool(causal), left, right)
    if layout == "bhnd":
        out = out.transpose(1, 2)
    return (out, lse) if return_lse else out


def _window(where: str, window_size: tuple[int, int]) -> tuple[int, int]:
    try:
        left, right = (int(side) for side in window_size)
    except (TypeError, ValueError):
        raise TypeError(
            f"{where}: window_size is {window_size!r}; it must be two integers (left, right)"
        ) from None
    return max(left, -1), max(right, -1)


def _check(where: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, layout: str) -> None:
    """Raises for arguments no kernel takes."""
    tensors = {"q": q, "k": k, "v": v}
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{where}: {name} is {type(value).__name__}; it must be a torch.Tensor")
        if value.layout != torch.strided:
            raise TypeError(f"{where}: {name} is sparse ({value.layout}); call .to_dense() first")
        if value.dim() != 4:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs 4 dimensions ({layout})"
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
    heads = 2 if layout == "bnhd" else 1
    if k.shape != v.shape:
        raise ValueError(
            f"{where}: k and v have different shapes ({shapes}); a head size of its own for v is not supported"
        )
    if q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{where}: q has batch {q.shape[0]} and k {k.shape[0]} ({shapes}); they must be equal"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(
            f"{where}: q has head size {q.shape[3]} and k {k.shape[3]} ({shapes}); they must be equal"
        )
    if k.shape[heads] == 0 or q.shape[heads] % k.shape[heads]:
        raise ValueError(
            f"{where}: {q.shape[heads]} heads of q are not a multiple of {k.shape[heads]} heads of k ({shapes}; {layout})"
        )
    if not 8 <= q.shape[3] <= LARGEST_HEAD or q.shape[3] % 8:
        raise ValueError(
            f"{where}: the head size is {q.shape[3]}; allowed: multiples of 8 up to {LARGEST_HEAD}"
        )
    _backend.check_device(where, "q", q)


def _in_torch(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, left: int, right: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same in float32 PyTorch, for HIPKITTENS_BACKEND=torch."""
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, dim=2).float().transpose(1, 2) for tensor in (k, v))
    scores = scale * q.float().transpose(1, 2) @ k.mT
    place = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[2] - q.shape[1]
    key = torch.arange(k.shape[2], device=q.device)[None, :]
    right = min(right, 0) if causal and right >= 0 else 0 if causal else right
    hidden = torch.zeros(q.shape[1], k.shape[2], dtype=torch.bool, device=q.device)
    if left >= 0:
        hidden |= key < place - left
    if right >= 0:
        hidden |= key > place + right
    lse = scores.masked_fill(hidden, float("-inf")).logsumexp(-1)
    weights = (
        (scores - lse.unsqueeze(-1).masked_fill(lse.isinf().unsqueeze(-1), 0)).exp().masked_fill(hidden, 0)
    )
    return (weights @ v).transpose(1, 2).to(q.dtype).contiguous(), lse
