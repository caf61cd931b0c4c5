# SPDX-License-Identifier: MIT
"""The record of scaled matrix products with what follows them; the functions are in hipkittens/scaled_gemm_fused.py."""

from __future__ import annotations

import torch

from ..quantization import dtype_of
from ..scaled_gemm_fused import scaled_matmul_concat_heads, scaled_matmul_multiply_add
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import replicated
from .scaled_gemm import codes_in, rows_of_b


def _fake_multiply_add(a, b, scale_a, scale_b, bias, factor, addend, *options):
    _check(a, b, options[3])
    return a.new_empty((a.shape[0], rows_of_b(b.shape)[0]), dtype=options[-1])


def _fake_concat_heads(a, b, scale_a, scale_b, bias, joined, first, second, *options):
    _check(a, b, options[0])
    rows, heads, features = joined.shape
    return tuple(
        a.new_empty((rows, heads, columns), dtype=options[-1]) for columns in (first + features, second)
    )


def _check(a, b, format: int) -> None:
    """These formats have equally many codes in a byte of both operands."""
    torch._check(
        a.shape[1] == rows_of_b(b.shape)[1],
        lambda: f"hipkittens::scaled_gemm: {tuple(a.shape)} x {tuple(b.shape)}",
    )


def _flops_of(format_at: int):
    def flops(a_shape, b_shape, *arguments, out_shape=None, **_kwargs) -> int:
        return 2 * a_shape[0] * codes_in(arguments[format_at], a_shape[1]) * rows_of_b(b_shape)[0]

    return flops


def _checks() -> Checks:
    from ._scaled_gemm_fused_checks import CHECKS

    return CHECKS


def _operands(tensor):
    """e4m3 of the target, with scales of rows."""
    rows, columns = tensor(32, 1, dtype=torch.float32), tensor(1, 96, dtype=torch.float32)
    fp8 = dtype_of("fp8", rows.device)
    return tensor(32, 64, dtype=fp8), tensor(96, 64, dtype=fp8).t(), rows, columns


OPERATION = Operation(
    name="scaled_gemm_fused",
    folder="gemm",
    kinds=("fused",),
    functions=(
        Function(
            scaled_matmul_multiply_add,
            lambda tensor, dtype: (*_operands(tensor), 1.0, tensor(32, 96, dtype=dtype)),
        ),
        Function(
            scaled_matmul_concat_heads,
            lambda tensor, dtype: (*_operands(tensor), tensor(32, 2, 16, dtype=dtype), 32),
        ),
    ),
    operators=(
        Operator(
            "scaled_gemm_multiply_add",
            _fake_multiply_add,
            no_derivative("scaled_matmul_multiply_add", "matmul of what was quantised"),
            flops=_flops_of(8),
            sharding=lambda *arguments: [replicated(arguments, 1)],
            first_option=7,
        ),
        Operator(
            "scaled_gemm_concat_heads",
            _fake_concat_heads,
            no_derivative("scaled_matmul_concat_heads", "matmul of what was quantised"),
            flops=_flops_of(6),
            sharding=lambda *arguments: [replicated(arguments, 2)],
            first_option=6,
        ),
    ),
    checks=_checks,
    order=1,
)
