# SPDX-License-Identifier: MIT
"""The cases of grouped_matmul with scales beside PyTorch, whose CPUs have no such product: each group's dequantised one in float32."""

from __future__ import annotations

import torch
from parity_operation import DTYPES, Operation, Result, simulated

import hipkittens
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.quantization import dtype_of

BASELINE = "PyTorch's float32 products of the codes, 32 of K at a time, scaled, rounded once"


def _expanded(scale: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """Of rows and blocks, as often as they have elements; one factor stays one."""
    if not scale.dim():
        return scale
    for axis in (-2, -1):
        if scale.shape[axis] not in (1, sizes[axis]):
            scale = scale.repeat_interleave(128, axis).narrow(axis, 0, sizes[axis])
    return scale


def _run(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    m, n, k = case["shape"]
    ends = torch.tensor(case["shares"]).cumsum(0) * m
    offs, groups = ends.round().clamp(max=m).to(torch.int32), len(ends)
    blocks, column_blocks = -(-k // 128), -(-n // 128)

    def factors(*shape: int) -> torch.Tensor:
        if case["values"] == "wide":
            return torch.ldexp(torch.ones(shape), torch.randint(-20, 21, shape, generator=generator))
        return torch.rand(shape, generator=generator) + 0.5

    with simulated(target, "exact" if case["out"] == "f32" else None):
        fp8 = dtype_of("fp8", torch.device("cpu"))
        a = torch.randn(m, k, generator=generator).to(fp8)
        b = torch.randn(groups, n, k, generator=generator).to(fp8).mT
        scale_a, scale_b = {
            "tensor": lambda: (factors(), factors(groups, 1, 1)),
            "row": lambda: (factors(m, 1), factors(groups, 1, n)),
            "blocks": lambda: (factors(m, blocks), factors(groups, blocks, column_blocks)),
        }[case["scales"]]()
        bias = torch.randn(groups, n, generator=generator) if case["bias"] else None
        ours = hipkittens.grouped_matmul(
            a,
            b,
            offs,
            scale_a=scale_a,
            scale_b=scale_b,
            recipe=("1x128", "128x128") if case["scales"] == "blocks" else case["scales"],
            bias=bias,
            out_dtype=DTYPES[case["out"]],
        )

    def dequantized(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        return a.to(dtype) * _expanded(scale_a.to(dtype), a.shape), b.to(dtype) * _expanded(
            scale_b.to(dtype), b.shape
        )

    def product(dtype: torch.dtype, step: int) -> torch.Tensor:
        left, right = dequantized(dtype)
        sums = torch.zeros(m, n, dtype=dtype)
        for first in range(0, k, step):  # as matrix cores sum, a few k at a time
            sums = sums + in_groups(left[:, first : first + step], right[:, first : first + step], offs)
        if bias is None:
            return sums
        added, begin = torch.zeros(m, n, dtype=dtype), 0
        for end, row in zip(offs.tolist(), bias.to(dtype), strict=True):
            added[begin:end], begin = row, end
        return sums + added

    exact = product(torch.float64, k)
    magnitude = in_groups(*(each.abs() for each in dequantized(torch.float64)), offs).max().item()
    magnitude += 0.0 if bias is None else bias.abs().max().item()
    theirs = product(torch.float32, 32).to(DTYPES[case["out"]])
    return [Result("", ours, theirs, exact, magnitude, BASELINE)]


SCALED_GROUPED_MATMUL = Operation(
    "scaled_grouped_matmul",
    {
        "shape": ((96, 72, 160), (67, 257, 17), (300, 136, 264), (1, 8, 40), (40, 1, 515), (24, 130, 2880)),
        "shares": ((0.3, 0.0, 0.4), (1.0,), (0.0, 1.0, 0.0), (0.1, 0.2, 0.1, 0.3, 0.3)),
        "scales": ("tensor", "row", "blocks"),
        "values": ("near one", "wide"),
        "out": ("bf16", "f32"),
        "bias": (False, True),
    },
    _run,
)
