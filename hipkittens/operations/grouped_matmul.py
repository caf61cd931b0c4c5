# SPDX-License-Identifier: MIT
"""The record of grouped matrix products; the function is in hipkittens/grouped.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..grouped import grouped_matmul
from ..scaled_gemm import FORMATS, SCALINGS
from ._kept_sums import gradient_of_gates
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, replicated


def _length_and_columns(b_shape) -> tuple[int, int]:
    """The length along K and the columns of the result, for matrices or panels (hipkittens/preshuffle.py)."""
    if len(b_shape) == 5:
        return b_shape[2] * b_shape[4], b_shape[1] * b_shape[3]
    return b_shape[-2], b_shape[-1]


def _fake(a, b, offs, bias, out_dtype):
    length, columns = _length_and_columns(b.shape)
    torch._check(
        a.shape[-1] == length,
        lambda: f"hipkittens::grouped_gemm: {tuple(a.shape)} @ {tuple(b.shape)}",
    )
    sizes = a.shape[-2], columns
    if a.dim() == b.dim():
        sizes = a.shape[0] if offs is None else offs.shape[0], *sizes
    return a.new_empty(sizes, dtype=out_dtype)


def _setup(ctx, inputs, output) -> None:
    a, b, offs, bias, _ = inputs
    ctx.save_for_backward(a, b, offs)
    ctx.bias = None if bias is None else (bias.dtype, bias.dim())


def _setup_gated(ctx, inputs, output) -> None:
    a, b, offs, bias, entries, _, *ctx.options = inputs
    ctx.save_for_backward(a, b, offs, output[1])
    ctx.gathered = entries is not None
    ctx.mark_non_differentiable(output[1])
    ctx.bias = None if bias is None else (bias.dtype, bias.dim())


@_backend.interruptible
def _backward_gated(ctx, grad, _of_sums):
    if ctx.gathered:
        raise NotImplementedError("hipkittens: gathered rows have no gradient; use expert_gather")
    *operands, sums = ctx.saved_tensors
    of_sums = gradient_of_gates(grad, sums, *ctx.options[:4])
    return *_of_product(ctx, *operands, of_sums), *[None] * 8


@_backend.interruptible
def _backward(ctx, grad):
    return *_of_product(ctx, *ctx.saved_tensors, grad), None


def _of_product(ctx, a, b, offs, grad):
    """Gradients of a, b, offs and bias."""
    # Built from the operators themselves, so that it is differentiable again; transposed views are orientations of the
    # kernel and not copies.
    grad_a = grad_b = grad_bias = None
    rounded = grad.to(a.dtype)

    def grouped(first, second, dtype):
        return call("grouped_gemm", first, second, offs, None, dtype)

    if ctx.needs_input_grad[0]:
        if offs is None:
            grad_a = call("gemm", rounded, b.mT, None, a.dtype, False)
        elif b.dim() == 3:
            grad_a = grouped(rounded, b.mT, a.dtype)
        else:
            grad_a = grouped(b, rounded.mT, a.dtype).mT
    if ctx.needs_input_grad[1]:
        if offs is None:
            grad_b = call("gemm", a.mT, rounded, None, b.dtype, False)
        elif (
            b.dim() == 3 and b.stride(-2) == 1
        ):  # laid out as b is: a gradient of other strides would be copied
            grad_b = grouped(rounded.mT, a, b.dtype).mT
        else:
            grad_b = grouped(a.mT, rounded, b.dtype)
    if ctx.needs_input_grad[3]:
        dtype, dimensions = ctx.bias
        if a.dim() == b.dim():
            grad_bias = grad.sum(1, dtype=torch.float32)
        else:
            # Sums of the rows of groups: products with ones, eight rows of which fill 16 bytes.
            ones = a.new_ones(a.shape[0], 8).mT
            grad_bias = grouped(ones, rounded, torch.float32)[:, 0]
            if grad.dtype != a.dtype:
                grad_bias = grad_bias + grouped(ones, (grad - rounded).to(a.dtype), torch.float32)[:, 0]
        grad_bias = (grad_bias if dimensions == 2 else grad_bias.sum(0)).to(dtype)
    return grad_a, grad_b, None, grad_bias


def _flops(a_shape, b_shape, *_args, out_shape=None, **_kwargs) -> int:
    """For all rows: only the device knows how many are in groups."""
    flops = 2 * _length_and_columns(b_shape)[1]
    for size in a_shape:
        flops *= size
    return flops


def _flops_of_gates(a_shape, b_shape, offs, bias, entries_shape=None, *_args, **_kwargs) -> int:
    rows = a_shape[0] if entries_shape is None else entries_shape[0]
    return 2 * rows * a_shape[1] * _length_and_columns(b_shape)[1]


def _sharding(a, b, offs, bias, out_dtype):
    from torch.distributed.tensor import Replicate, Shard

    arguments = (a, b, offs, bias, out_dtype)
    if len(b.shape) == 5:
        return [replicated(arguments, 1)]
    columns, out_columns = len(b.shape) - 1, 1 if len(a.shape) < len(b.shape) else 2
    of_bias = Shard(len(bias.shape) - 1) if bias is not None else None
    return [
        replicated(arguments, 1),
        (
            [Shard(out_columns)],
            [Replicate(), Shard(columns), given(offs, Replicate()), given(bias, of_bias), None],
        ),
    ]


def _fake_gated(
    a, b, offs, bias, entries, choices, activation, interleaved, alpha, limit, keep_sums, out_dtype
):
    length, columns = _length_and_columns(b.shape)
    torch._check(
        a.shape[1] == length,
        lambda: f"hipkittens::grouped_gated: {tuple(a.shape)} @ {tuple(b.shape)}",
    )
    rows = a.shape[0] if entries is None else entries.shape[0]
    sums = a.new_empty((rows, columns) if keep_sums else (0,))
    return a.new_empty((rows, columns // 2), dtype=out_dtype), sums


# Codes in a byte, by numbers of formats (scaled_gemm.FORMATS).
_FP4, _BF16 = FORMATS["fp4"], FORMATS["bf16"]


def _codes_along(length: int, format: int) -> int:
    """The number of codes in this many bytes."""
    return 2 * length if format == _FP4 else length // 2 if format == _BF16 else length


def _fake_scaled(
    a, b, offs, scale_a, scale_b, bias, entries, choices, format_a, format_b, scaling_a, scaling_b, out_dtype
):
    length, columns = _length_and_columns(b.shape)
    torch._check(
        _codes_along(a.shape[1], format_a) == _codes_along(length, format_b),
        lambda: f"hipkittens::scaled_grouped_gemm: {tuple(a.shape)} @ {tuple(b.shape)}",
    )
    rows = a.shape[0] if entries is None else entries.shape[0]
    return a.new_empty((rows, columns), dtype=out_dtype)


def _scaled_flops(
    a_shape, b_shape, _offs, _a, _b, _bias, entries_shape, _choices, format_a, *_args, **_kwargs
) -> int:
    """For all rows, as without scales."""
    rows = a_shape[0] if entries_shape is None else entries_shape[0]
    return 2 * rows * _length_and_columns(b_shape)[1] * _codes_along(a_shape[1], format_a)


def _scaled_sharding(*arguments):
    from torch.distributed.tensor import Replicate, Shard

    _, b, _, scale_a, _, bias, entries, *_, scaling_b, _ = arguments
    placements = [replicated(arguments, 1)]
    # A shard of the columns need not begin with a block of rows, and one of panels is not one of columns.
    if len(b.shape) == 3 and scaling_b == SCALINGS["row"]:
        of_bias = Shard(len(bias.shape) - 1) if bias is not None else None
        tensors = [
            Replicate(),
            Shard(2),
            Replicate(),
            given(scale_a, Replicate()),
            Shard(1),
            given(bias, of_bias),
            given(entries, Replicate()),
        ]
        placements.append(([Shard(1)], [*tensors, *[None] * (len(arguments) - len(tensors))]))
    return placements


def _checks() -> Checks:
    from ._grouped_checks import CHECKS

    return CHECKS


def _arguments(tensor, dtype):
    ends = tensor(2, dtype=torch.int32).new_tensor([20, 32])
    return tensor(32, 32, dtype=dtype), tensor(2, 32, 32, dtype=dtype), ends


OPERATION = Operation(
    name="grouped_matmul",
    folder="gemm",
    kinds=("grouped", "scaled_grouped", "gated_grouped"),
    functions=(Function(grouped_matmul, _arguments),),
    operators=(
        Operator("grouped_gemm", _fake, _backward, _setup, _flops, sharding=_sharding, first_option=4),
        Operator(
            "grouped_gated",
            _fake_gated,
            _backward_gated,
            _setup_gated,
            _flops_of_gates,
            sharding=lambda *arguments: [replicated(arguments, 2)],
            first_option=5,
        ),
        Operator(
            "scaled_grouped_gemm",
            _fake_scaled,
            no_derivative("grouped_matmul with scales", "grouped_matmul of what was quantised"),
            flops=_scaled_flops,
            sharding=_scaled_sharding,
            first_option=7,
        ),
    ),
    checks=_checks,
    order=0,
)
