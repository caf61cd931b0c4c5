# SPDX-License-Identifier: MIT
"""One result of attention from those to some of the keys and to the others."""

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
    """Attention to the keys of two parts, from the results of each: (out, lse) with out = (exp(lse_a) out_a + exp(lse_b) out_b) / exp(lse)
    and lse = ln(exp(lse_a) + exp(lse_b)). In float32, out rounded once. Neither part may have counted a sink.

    out_a, out_b  (T, H, D), one dtype of bfloat16, float16 and float32, D a multiple of 8; the dtype of the result
    lse_a, lse_b  float32 (H, T), natural logarithms, as attention_paged and attention_varlen return them. -inf, or as flash-attn has
                  it +inf: that part has no keys, and its row is not used, NaN neither. Of neither part: 0 and -inf

    No gradient: raises ValueError where one would be recorded. Raises TypeError or ValueError, before anything is launched, for what
    has no kernel.
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
    """The same in PyTorch: in float32, or in float64 where out_a is."""
    wide = torch.promote_types(out_a.dtype, torch.float32)
    sums = [lse.to(wide).masked_fill(lse == torch.inf, -torch.inf) for lse in (lse_a, lse_b)]
    lse = torch.logaddexp(*sums)
    base = lse.masked_fill(lse == -torch.inf, 0)
    out = torch.zeros_like(out_a, dtype=wide)
    for part, each in ((out_a, sums[0]), (out_b, sums[1])):
        weight = (each - base).exp().T[..., None]
        out += weight * part.to(wide).masked_fill(weight == 0, 0)
    return out.to(out_a.dtype), lse
