# SPDX-License-Identifier: MIT
"""The record of scaled matrix products of quantized operands; the function is in hipkittens/scaled_gemm.py."""

from __future__ import annotations

import torch

from ..scaled_gemm import OUTPUT_DTYPES, scaled_matmul
from ._record import Checks, Function, Operation, Operator, no_derivative
from ._sharding import given, replicated


def codes_in(format: int, length: int) -> int:
    """The number of codes in rows of this many bytes."""
    return length * 8 // {3: 4, 4: 6, 5: 6, 6: 16}.get(format, 8)


def rows_of_b(shape) -> tuple[int, int]:
    """The number of rows and of their bytes, also for panels."""
    return tuple(shape) if len(shape) == 2 else (shape[0] * shape[2], shape[1] * shape[3])


def _fake(a, b, scale_a, scale_b, bias, *options):
    rows, width = rows_of_b(b.shape)
    torch._check(
        codes_in(options[0], a.shape[1]) == codes_in(options[1], width),
        lambda: f"hipkittens::scaled_gemm: {tuple(a.shape)} x {tuple(b.shape)}",
    )
    return a.new_empty((a.shape[0], rows), dtype=options[-1])


def _flops(a_shape, b_shape, scale_a, scale_b, bias, format_a, *_args, out_shape=None, **_kwargs) -> int:
    return 2 * a_shape[0] * codes_in(format_a, a_shape[1]) * rows_of_b(b_shape)[0]


def _sharding(a, b, scale_a, scale_b, bias, *options):
    from torch.distributed.tensor import Replicate, Shard

    rest = [None] * len(options)
    arguments = (a, b, scale_a, scale_b, bias, *options)

    def of(scale, placement):
        """Scales of rows are sharded with them, that of a tensor is replicated."""
        shared = scale is not None and scale.shape[0] == 1
        return given(scale, Replicate() if shared else placement)

    def in_blocks(scale, scaling):
        """Several scales of 128 rows each: a shard of the rows need not begin with a block."""
        return scale is not None and scaling == 5 and scale.shape[0] > 1

    rows, columns, all_of_it = Shard(0), Shard(1), Replicate()
    placements = [replicated(arguments, 1)]
    if len(b.shape) == 4:  # a shard of panels is not one of rows
        return placements
    if not in_blocks(scale_a, options[2]):
        placements.append(
            (
                [rows],
                [rows, all_of_it, of(scale_a, rows), of(scale_b, all_of_it), given(bias, all_of_it), *rest],
            )
        )
    if not in_blocks(scale_b, options[3]):
        placements.append(
            (
                [columns],
                [all_of_it, rows, of(scale_a, all_of_it), of(scale_b, rows), given(bias, rows), *rest],
            )
        )
    return placements


def _fake_codes(a, b, scale_a, scale_b, bias, scale_result, scaling_a, scaling_b, activation):
    rows, width = rows_of_b(b.shape)
    torch._check(
        a.shape[1] == width,
        lambda: f"hipkittens::scaled_gemm_codes: {tuple(a.shape)} x {tuple(b.shape)}",
    )
    return a.new_empty((a.shape[0], rows), dtype=torch.uint8)


def _flops_of_codes(a_shape, b_shape, *_args, out_shape=None, **_kwargs) -> int:
    return 2 * a_shape[0] * a_shape[1] * rows_of_b(b_shape)[0]


def _checks() -> Checks:
    from ._scaled_gemm_checks import CHECKS

    return CHECKS


def _int8(tensor, dtype):
    # The dtypes of 8-bit floats depend on the target, those of integers do not. A dtype that no result has, no scale has either.
    a, b = tensor(32, 64, dtype=torch.int8), tensor(64, 48, dtype=torch.int8)
    scales = torch.float32 if dtype in OUTPUT_DTYPES else dtype
    return a, b, tensor(32, 1, dtype=scales), tensor(1, 48, dtype=scales)


OPERATION = Operation(
    name="scaled_gemm",
    folder="gemm",
    kinds=("scaled", "scaled_reduce", "codes"),
    functions=(Function(scaled_matmul, _int8),),
    operators=(
        Operator(
            "scaled_gemm",
            _fake,
            no_derivative("scaled_matmul", "matmul of what was quantised"),
            flops=_flops,
            sharding=_sharding,
            first_option=5,
        ),
        Operator(
            "scaled_gemm_codes",
            _fake_codes,
            no_derivative("scaled_matmul", "matmul of what was quantised"),
            flops=_flops_of_codes,
            sharding=lambda *arguments: [replicated(arguments, 1)],
            first_option=6,
        ),
    ),
    checks=_checks,
    order=1,
)
