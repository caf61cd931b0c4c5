# SPDX-License-Identifier: MIT
"""The cases of grouped_matmul with scales. PyTorch has no such product on CPUs: each group is dequantized and multiplied in float32."""

from __future__ import annotations

import torch
from parity_operation import DTYPES, Operation, Result, simulated
from parity_scaled_matmul import WRITTEN_OUT, few_bits

import hipkittens
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.quantization import dtype_of, e8m0_in_float

# Formats of a and b: gfx942 supports only the last pair.
FEW_BITS = ("fp4_fp4", "fp8_fp8", "fp8_fp4", "bf16_fp4")
BASELINE = "PyTorch's float32 products of the quantized values, 32 of K at a time, scaled, rounded once"


def _expanded(scale: torch.Tensor, sizes: torch.Size) -> torch.Tensor:
    """Scales of rows and blocks, repeated for each of their elements; a single factor stays one."""
    if not scale.dim():
        return scale
    for axis in (-2, -1):
        if scale.shape[axis] not in (1, sizes[axis]):
            scale = scale.repeat_interleave(128, axis).narrow(axis, 0, sizes[axis])
    return scale


def _ends(case: dict) -> torch.Tensor:
    m = case["shape"][0]
    return (torch.tensor(case["shares"]).cumsum(0) * m).round().clamp(max=m).to(torch.int32)


def _adapt(case: dict) -> dict:
    return {**case, "scales": "row"} if case["format"] == "int8" and case["scales"] == "blocks" else case


def _run(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    m, n, k = case["shape"]
    offs = _ends(case)
    groups = len(offs)
    blocks, column_blocks = -(-k // 128), -(-n // 128)

    def factors(*shape: int) -> torch.Tensor:
        if case["values"] == "wide":
            return torch.ldexp(torch.ones(shape), torch.randint(-20, 21, shape, generator=generator))
        return torch.rand(shape, generator=generator) + 0.5

    with simulated(target, "exact" if case["out"] == "f32" else None):

        def codes(*shape: int) -> torch.Tensor:
            if case["format"] == "int8":
                return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
            return torch.randn(shape, generator=generator).to(dtype_of("fp8", torch.device("cpu")))

        a, b = codes(m, k), codes(groups, n, k).mT
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
        for first in range(0, k, step):  # like matrix cores, a few k at a time
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


def _run_few_bits(target: str, case: dict, seed: int) -> list[Result]:
    """e8m0 scales of both operands, or of b alone."""
    generator = torch.Generator().manual_seed(seed)
    m, n, k = case["shape"]
    k, offs = -(-k // 32) * 32, _ends(case)
    groups = len(offs)
    formats = case["formats"].split("_") if target == "gfx950" else ("bf16", "fp4")
    of_b = formats[0] == "bf16" or (formats == ["fp8", "fp4"] and case["scales"] == "of b")
    reach = 20 if case["values"] == "wide" else 1
    with simulated(target, "exact" if case["out"] == "f32" else None):
        (a, left), (w, right) = (
            few_bits(generator, rows, k, format)
            for rows, format in zip((m, groups * n), formats, strict=True)
        )
        bytes_a, bytes_w = (
            torch.randint(127 - reach, 128 + reach, (rows, k // 32), generator=generator).to(torch.uint8)
            for rows in (m, groups * n)
        )
        scale_a = torch.rand((m, 1), generator=generator) + 0.5 if of_b else bytes_a
        ours = hipkittens.grouped_matmul(
            a,
            w.view(groups, n, w.shape[1]).mT,
            offs,
            scale_a=scale_a,
            scale_b=bytes_w.view(groups, n, k // 32).mT,
            recipe=("row", "1x32") if of_b else "1x32",
            out_dtype=DTYPES[case["out"]],
        )
    factors_a, factors_w = (
        e8m0_in_float(each).repeat_interleave(32, 1).double() for each in (bytes_a, bytes_w)
    )
    left = left.double() * (scale_a.double() if of_b else factors_a)
    right = (right.double() * factors_w).view(groups, n, k).mT
    sums = torch.zeros(m, n)
    for first in range(0, k, 4):  # the simulated instruction rounds after each product of K
        part = slice(first, first + 4)
        sums = sums + in_groups(left[:, part].float(), right[:, part].float(), offs)
    magnitude = in_groups(left.abs(), right.abs(), offs).max().item()
    theirs = sums.to(DTYPES[case["out"]])
    return [Result("", ours, theirs, in_groups(left, right, offs), magnitude, WRITTEN_OUT)]


_SHARES = ((0.3, 0.0, 0.4), (1.0,), (0.0, 1.0, 0.0), (0.1, 0.2, 0.1, 0.3, 0.3))
SCALED_GROUPED_MATMUL_FEW_BITS = Operation(
    "scaled_grouped_matmul_few_bits",
    {
        "shape": ((96, 72, 160), (67, 257, 32), (300, 136, 288), (1, 8, 64), (40, 1, 512), (24, 130, 2880)),
        "shares": _SHARES,
        "formats": FEW_BITS,
        "scales": ("of both", "of b"),
        "values": ("near one", "wide"),
        "out": ("bf16", "f32"),
    },
    _run_few_bits,
)
SCALED_GROUPED_MATMUL = Operation(
    "scaled_grouped_matmul",
    {
        "shape": ((96, 72, 160), (67, 257, 17), (300, 136, 264), (1, 8, 40), (40, 1, 515), (24, 130, 2880)),
        "shares": _SHARES,
        "scales": ("tensor", "row", "blocks"),
        "values": ("near one", "wide"),
        "out": ("bf16", "f32"),
        "bias": (False, True),
        "format": ("fp8", "int8"),  # which has row scales in place of block scales
    },
    _run,
    adapt=_adapt,
)
