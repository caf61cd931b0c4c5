# SPDX-License-Identifier: MIT
"""Matrix products of bfloat16 or float16 operands, accumulated in float32 and rounded once."""

from __future__ import annotations

import torch

from . import _backend
from ._arguments import check_gets_no_gradient, check_tensor
from ._autocast import to_autocast_dtype
from ._call import call
from .activation import ACTIVATIONS, in_torch

INPUT_DTYPES = (torch.bfloat16, torch.float16)
OUTPUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# Activations fused into a GEMM, in the order of csrc/kernels/activation_kind.h.
ACTIVATIONS_OF_SUMS = ACTIVATIONS[:4]


@_backend.interruptible
def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Matrix product a @ b + bias, with float32 accumulation and one rounding.

    a is (..., M, K) and b (..., K, N); leading dimensions broadcast as in torch.matmul. a and b are bfloat16 or float16, both the same.
    `out_dtype` is bfloat16, float16 or float32 (default: the inputs' dtype). `bias` has N elements and is added before the rounding.

    Transposed views, row strides and expanded leading dimensions are not copied. Copied first are a matrix in which neither rows nor
    columns are contiguous, and an `a` with leading dimensions against a 2-D `b` unless all its rows are one stride apart.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    a, b, bias = to_autocast_dtype(a, b, bias)
    out_dtype = _check("hipkittens.matmul", a, b, bias, out_dtype)
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"hipkittens.matmul: a has {a.shape[-1]} columns and b has {b.shape[-2]} rows (a: {tuple(a.shape)}, "
            f"b: {tuple(b.shape)}); they must be equal"
        )
    if _backend.uses_torch():
        return _in_torch(a, b, bias, out_dtype)
    if b.dim() == 2 and a.dim() > 2:  # one product with more rows
        rows = a.flatten(0, -2)
        return _product(rows, b, bias, out_dtype).reshape(*a.shape[:-1], b.shape[-1])
    if a.shape[:-2] != b.shape[:-2]:
        try:
            batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        except RuntimeError:
            raise ValueError(
                f"hipkittens.matmul: leading dimensions {tuple(a.shape[:-2])} of a and {tuple(b.shape[:-2])} of b "
                "do not broadcast"
            ) from None
        a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    return _product(a, b, bias, out_dtype)


@_backend.interruptible
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Linear layer with an optional fused activation: activation(x @ weight.T + bias).

    Shapes are those of torch.nn.functional.linear: `x` (..., K), `weight` (N, K), `bias` (N). All are bfloat16 or float16, all the same.
    The product is accumulated in float32 and rounded once, to x's dtype or to `out_dtype` (bfloat16, float16 or float32).

    `activation` is None, "silu", "gelu", "gelu_tanh" or "relu" (hipkittens.activation). It is applied to the unrounded result in the same
    launch; where a gradient is recorded, this launch also stores the pre-activation value, rounded. For gates see hipkittens.gated_linear.

    Raises TypeError or ValueError as `matmul` does.
    """
    x, weight, bias = to_autocast_dtype(x, weight, bias)
    where = "hipkittens.linear"
    if activation is not None and activation not in ACTIVATIONS_OF_SUMS:
        allowed = ", ".join(map(repr, ACTIVATIONS_OF_SUMS))
        raise ValueError(f"{where}: activation is {activation!r}; allowed: None, {allowed}")
    out_dtype = check_linear(where, x, weight, bias, out_dtype)
    if x.dim() == 1:
        return linear(x.unsqueeze(0), weight, bias, activation=activation, out_dtype=out_dtype).squeeze(0)
    if _backend.uses_torch():
        sums = _in_torch(x, weight.t(), bias, out_dtype if activation is None else torch.float32)
        return sums if activation is None else in_torch(sums, activation).to(out_dtype)
    rows = x if x.dim() == 2 else x.flatten(0, -2)
    if activation is None:
        result = _product(rows, weight.t(), bias, out_dtype)
    else:
        result = _activated(rows, weight, bias, activation, out_dtype)
    return result if x.dim() == 2 else result.reshape(*x.shape[:-1], weight.shape[0])


@_backend.interruptible
def addmm_(sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Add a matrix product to a float32 tensor in place, sums += a @ b, in one launch; returns sums.

    `sums` (..., M, N) is float32, `a` (..., M, K) and `b` (..., K, N) are bfloat16 or float16, both the same. The product is accumulated in
    float32 and then added, with one rounding for each element. This is how float32 weight gradients are accumulated over micro-batches or
    parts of a batch, with `output_gradient.mT` as a and `input` as b. Leading dimensions of a and b broadcast to those of sums; its rows
    are contiguous and do not overlap. Operands are as in `matmul`, but a `b` with contiguous columns is copied first.

    Not differentiable; sums + matmul(a, b, out_dtype=torch.float32) is. Raises TypeError or ValueError, before anything is launched, for
    dtypes, shapes, strides or devices that do not match, and for arguments that require a gradient where autograd is recording.
    """
    where = "hipkittens.addmm_"
    a, b = to_autocast_dtype(a, b)
    _check(where, a, b, None, torch.float32)
    _check_sums(where, sums, a, b)
    batch = sums.shape[:-2]
    a, b = (value.expand(*batch, *value.shape[-2:]) for value in (a, b))
    if _backend.uses_torch():
        return sums.add_(_in_torch(a, b, None, torch.float32))
    call("addmm_", sums, a, b)
    return sums


def _check_sums(where: str, sums: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    check_tensor(where, "sums", sums)
    if sums.dtype != torch.float32:
        raise TypeError(f"{where}: sums is {sums.dtype}; allowed: torch.float32")
    if sums.device != a.device:
        raise ValueError(f"{where}: sums is on {sums.device} and a on {a.device}; move one to the other")
    shape = (a.shape[-2], b.shape[-1])
    if a.shape[-1] != b.shape[-2] or sums.dim() < 2 or sums.shape[-2:] != shape:
        raise ValueError(
            f"{where}: a is {tuple(a.shape)}, b is {tuple(b.shape)} and sums {tuple(sums.shape)}; they must be (..., M, K), "
            "(..., K, N) and (..., M, N)"
        )
    for name, value in (("a", a), ("b", b)):
        try:
            fits = torch.broadcast_shapes(value.shape[:-2], sums.shape[:-2]) == sums.shape[:-2]
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{where}: leading dimensions {tuple(value.shape[:-2])} of {name} do not broadcast to "
                f"{tuple(sums.shape[:-2])} of sums"
            )
    *batches, rows, columns = (
        stride if size > 1 else sums.shape[-1] for size, stride in zip(sums.shape, sums.stride(), strict=True)
    )
    if (sums.shape[-1] > 1 and columns != 1) or rows < sums.shape[-1] or 0 in batches:
        raise ValueError(
            f"{where}: sums has strides {tuple(sums.stride())}; its rows must be contiguous and must not overlap"
        )
    for name, value in (("sums", sums), ("a", a), ("b", b)):
        check_gets_no_gradient(where, name, value)


def _activated(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activation: str,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    number = ACTIVATIONS_OF_SUMS.index(activation)
    if 0 in (*rows.shape, *weight.shape):
        sums = _product(rows, weight.t(), bias, torch.float32)
        return call("activation", sums, number).to(out_dtype)
    bias = None if bias is None else bias.contiguous()
    keep = records(rows, weight, bias)
    return call("linear_activated", rows, weight, bias, number, keep, out_dtype)[0]


def number_of_activation(activation: str | None) -> int:
    """The operators' number of an activation of sums."""
    return -1 if activation is None else ACTIVATIONS_OF_SUMS.index(activation)


def records(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd records a call with these arguments, or may: a torch.func transform hides from them that it does."""
    if not torch.is_grad_enabled():
        return False
    if any(each is not None and each.requires_grad for each in tensors):
        return True
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def check_linear(
    where: str,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.dtype:
    """Raises for arguments that no kernel of a linear layer supports; returns the result's dtype."""
    if isinstance(weight, torch.Tensor) and weight.dim() != 2:
        raise ValueError(f"{where}: weight has shape {tuple(weight.shape)}; it must be (out, in)")
    if isinstance(x, torch.Tensor) and x.dim() == 0:
        raise ValueError(f"{where}: x has shape (); it needs at least 1 dimension")
    rows = x.unsqueeze(0) if isinstance(x, torch.Tensor) and x.dim() == 1 else x
    out_dtype = _check(where, rows, weight, bias, out_dtype)
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(
            f"{where}: x has {x.shape[-1]} features and weight takes {weight.shape[1]} (x: {tuple(x.shape)}, "
            f"weight: {tuple(weight.shape)}); they must be equal"
        )
    return out_dtype


def _product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    return call("gemm", a, b, bias, out_dtype, torch.are_deterministic_algorithms_enabled())


def _in_torch(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    product = torch.matmul(a.float(), b.float())
    return (product if bias is None else product + bias.float()).to(out_dtype)


@_backend.checked_once(1, 2, 3)
def _check(
    where: str,
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
) -> torch.dtype:
    """Raises for arguments that no kernel supports; returns the result's dtype."""
    is_product = where in ("hipkittens.matmul", "hipkittens.addmm_")
    first, second, columns_axis = ("a", "b", -1) if is_product else ("x", "weight", 0)
    for name, value in ((first, a), (second, b), *([("bias", bias)] if bias is not None else [])):
        check_tensor(where, name, value)
    for name, value in ((first, a), (second, b)):
        if value.dim() < 2:
            raise ValueError(
                f"{where}: {name} has shape {tuple(value.shape)}; it needs at least 2 dimensions "
                "(unsqueeze a vector into a matrix)"
            )
        if value.dtype not in INPUT_DTYPES:
            raise TypeError(
                f"{where}: {name} is {value.dtype}; allowed: torch.bfloat16, torch.float16 "
                "(convert it, or run under torch.autocast)"
            )
    if a.dtype != b.dtype:
        raise TypeError(f"{where}: {first} is {a.dtype} and {second} is {b.dtype}; convert one to the other")
    if a.device != b.device:
        raise ValueError(
            f"{where}: {first} is on {a.device} and {second} on {b.device}; move one to the other"
        )
    if bias is not None:
        columns = b.shape[columns_axis]
        if bias.dim() != 1 or bias.shape[0] != columns:
            raise ValueError(f"{where}: bias has shape {tuple(bias.shape)}; it must be ({columns},)")
        if bias.dtype not in (a.dtype, torch.float32):
            raise TypeError(f"{where}: bias is {bias.dtype}; allowed: {a.dtype}, torch.float32")
        if bias.device != a.device:
            raise ValueError(
                f"{where}: bias is on {bias.device} and {first} on {a.device}; move one to the other"
            )
    if out_dtype is None:
        out_dtype = a.dtype
    elif out_dtype not in OUTPUT_DTYPES:
        raise TypeError(
            f"{where}: out_dtype is {out_dtype}; allowed: torch.bfloat16, torch.float16, torch.float32"
        )
    _backend.check_device(where, first, a)
    return out_dtype
