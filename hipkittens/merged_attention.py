# SPDX-License-Identifier: MIT
"""Combines attention results over two disjoint sets of keys into one."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_gets_no_gradient, check_tensor
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@_backend.interruptible
def attention_merge(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Combine two attention results over disjoint sets of keys into the result over all of them, by their log-sum-exps.

    Returns (out, lse) with out = (exp(lse_a) out_a + exp(lse_b) out_b) / exp(lse) and lse = ln(exp(lse_a) + exp(lse_b)), in float32 with
    out rounded once. Neither part may have included a sink.

    - `out_a`, `out_b`: (T, H, D), both bfloat16, float16 or float32; D a multiple of 8. out has their dtype.
    - `lse_a`, `lse_b`: float32 (H, T), natural logarithms, as returned by attention_paged and attention_varlen. -inf, or +inf as in
      flash-attn, means that the part has no keys; its row is then not used, even if it is NaN. If neither part has keys, the result is 0
      and -inf.

    Not differentiable: raises ValueError where autograd would record the call. Raises TypeError or ValueError, before anything is
    launched, for arguments that no kernel supports.
    """
    where = "hipkittens.attention_merge"
    _check(where, out_a, lse_a, out_b, lse_b)
    for name, value in (("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b)):
        check_gets_no_gradient(where, name, value)
    if _backend.uses_torch():
        return merged_in_torch(out_a, lse_a, out_b, lse_b)
    out, lse = call("attention_merge", out_a, lse_a.contiguous(), out_b, lse_b.contiguous())
    return out, lse


@_backend.checked_once(1, 2, 3, 4)
def _check(
    where: str, out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> None:
    for name, out in (("out_a", out_a), ("out_b", out_b)):
        check_tensor(where, name, out)
        check_dtype_and_device(where, name, out, DTYPES, "out_a", out_a)
        if out.dtype != out_a.dtype:
            raise TypeError(
                f"{where}: out_a is {out_a.dtype} and out_b is {out.dtype}; convert one to the other"
            )
        if out.dim() != 3 or out.shape[2] % 8 or out.shape[2] == 0 or out.shape[1] == 0:
            raise ValueError(
                f"{where}: {name} has shape {tuple(out.shape)}; it must be (tokens, heads, D) with 1 head or more and D a "
                "multiple of 8"
            )
    if out_a.shape != out_b.shape:
        raise ValueError(
            f"{where}: out_a has shape {tuple(out_a.shape)} and out_b {tuple(out_b.shape)}; both have the same"
        )
    tokens, heads, _ = out_a.shape
    for name, lse in (("lse_a", lse_a), ("lse_b", lse_b)):
        check_tensor(where, name, lse)
        check_dtype_and_device(where, name, lse, (torch.float32,), "out_a", out_a)
        if tuple(lse.shape) != (heads, tokens):
            raise ValueError(f"{where}: {name} has shape {tuple(lse.shape)}; it must be ({heads}, {tokens})")
    _backend.check_device(where, "out_a", out_a)


def merged_in_torch(
    out_a: torch.Tensor, lse_a: torch.Tensor, out_b: torch.Tensor, lse_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference in PyTorch: in float32, or in float64 if out_a is."""
    wide = torch.promote_types(out_a.dtype, torch.float32)
    sums = [lse.to(wide).masked_fill(lse == torch.inf, -torch.inf) for lse in (lse_a, lse_b)]
    lse = torch.logaddexp(*sums)
    base = lse.masked_fill(lse == -torch.inf, 0)
    out = torch.zeros_like(out_a, dtype=wide)
    for part, each in ((out_a, sums[0]), (out_b, sums[1])):
        weight = (each - base).exp().T[..., None]
        out += weight * part.to(wide).masked_fill(weight == 0, 0)
    return out.to(out_a.dtype), lse
