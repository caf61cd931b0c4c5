# SPDX-License-Identifier: MIT
"""Elementwise multiplication and addition, rounded once."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_dtype_and_device, check_tensor, number
from ._call import call

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@_backend.interruptible
def mul_add(
    x: torch.Tensor,
    a: float | torch.Tensor,
    b: float | torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Elementwise multiply-add, a * x + b, in float32 with one rounding to x's dtype.

    `x` is float32, bfloat16 or float16 of any shape. `a` and `b` are each a number; or a tensor of one element, in x's dtype or float32; or
    a tensor of x's shape and dtype. `out`, dense and of x's shape and dtype, is written and returned; it may be x, a or b itself, and then
    nothing may require a gradient. The gradient of a one-element tensor is summed in float32. Raises TypeError, ValueError or RuntimeError,
    before anything is launched, for arguments that no kernel supports.
    """
    where = "hipkittens.mul_add"
    check_tensor(where, "x", x)
    check_dtype_and_device(where, "x", x, DTYPES, "x", x)
    tensors, numbers = [], []
    for name, value in (("a", a), ("b", b)):
        if not isinstance(value, torch.Tensor):
            tensors.append(None)
            numbers.append(number(where, name, value))
            continue
        check_tensor(where, name, value)
        if value.shape != x.shape and value.numel() != 1:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)} and x {tuple(x.shape)}; it needs one element or x's shape"
            )
        allowed = (x.dtype,) if value.numel() != 1 or x.dtype == torch.float32 else (x.dtype, torch.float32)
        check_dtype_and_device(where, name, value, allowed, "x", x)
        tensors.append(value)
        numbers.append(0.0)
    if out is not None:
        check_tensor(where, "out", out)
        check_dtype_and_device(where, "out", out, (x.dtype,), "x", x)
        if out.shape != x.shape or not out.is_contiguous():
            raise ValueError(
                f"{where}: out has shape {tuple(out.shape)} and strides {out.stride()}, and x has shape {tuple(x.shape)}; "
                "out needs that shape, dense"
            )
        given = (x, *tensors, out)
        if torch.is_grad_enabled() and any(value is not None and value.requires_grad for value in given):
            raise RuntimeError(
                f"{where}: out takes no part in derivatives, and an argument requires a gradient; leave out away, or use "
                "torch.no_grad"
            )
    _backend.check_device(where, "x", x)
    if _backend.uses_torch():
        factor, summand = (
            value if tensor is None else tensor.float()
            for tensor, value in zip(tensors, numbers, strict=True)
        )
        result = (factor * x.float() + summand).to(x.dtype).reshape(x.shape)
        return result if out is None else out.copy_(result)
    if out is None:
        return call("mul_add", x, *tensors, *numbers)
    call("mul_add_into", x, *tensors, *numbers, out)
    return out
