# SPDX-License-Identifier: MIT
"""The cases of scaled_matmul_multiply_add and scaled_matmul_concat_heads, compared with PyTorch's float32 product of the quantized values."""

from __future__ import annotations

import torch
from parity_operation import DTYPES, Operation, Result, simulated
from parity_scaled_matmul import few_bits

import hipkittens
from hipkittens.quantization import e8m0_in_float

BASELINE = "PyTorch's float32 product of the quantized values, scaled, and what follows, rounded once"
SHAPES = (
    (1, 64, 128), (2, 192, 160), (17, 320, 2880), (128, 256, 512), (255, 64, 32), (257, 576, 288), (33, 128, 4096),
)  # fmt: skip
RECIPES = {"outer": None, "blocks": ("1x128", "128x128"), "1x32": "1x32"}


class _Operands:
    """Quantized values with scales, as the functions take them, and what they stand for in float64 (rows, K)."""

    def __init__(self, target: str, case: dict, generator: torch.Generator) -> None:
        m, n, k = case["shape"]
        # gfx942 has no instruction for the last kind.
        kind = "blocks" if case["scales"] == "1x32" and target == "gfx942" else case["scales"]
        self.options = {"recipe": RECIPES[kind], "out_dtype": DTYPES[case["out"]]}
        (a, left), (w, right) = (
            few_bits(generator, rows, k, "fp4" if kind == "1x32" else "fp8") for rows in (m, n)
        )

        def drawn(*shape):
            return torch.rand(*shape, generator=generator) + 0.5

        if kind == "1x32":
            of_a, of_w = (
                torch.randint(126, 129, (rows, k // 32), generator=generator).to(torch.uint8)
                for rows in (m, n)
            )
            wide = [e8m0_in_float(each).repeat_interleave(32, 1) for each in (of_a, of_w)]
        elif kind == "blocks":
            of_a, of_w = drawn(m, -(-k // 128)), drawn(-(-n // 128), -(-k // 128))
            wide = [of_a.repeat_interleave(128, 1)[:, :k]]
            wide.append(of_w.repeat_interleave(128, 1).repeat_interleave(128, 0)[:n, :k])
        else:
            of_a, of_w = drawn(m, 1), drawn(n, 1)
            wide = [of_a, of_w]
        self.given = a, w.t(), of_a, of_w.t()
        self.rows = [
            values.double() * scales.double() for values, scales in zip((left, right), wide, strict=True)
        ]
        # With few products this keeps results below the largest float16.
        if case["out"] == "f16" and kind == "1x32":
            self.options["out_dtype"] = torch.bfloat16

    def products(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """In float64, in float32 as matrix cores sum, and of absolute values."""
        left, right = self.rows
        sums = torch.zeros(left.shape[0], right.shape[0])
        for first in range(0, left.shape[1], 32):
            sums = sums + left[:, first : first + 32].float() @ right[:, first : first + 32].float().t()
        return left @ right.t(), sums, left.abs() @ right.abs().t()


def _run_multiply_add(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    m, n, _ = case["shape"]
    shapes = {"all": (m, n), "rows": (m, 1), "columns": (n,), "one": (1,)}

    def term(kind: str, dtype: str):
        if kind == "number":
            return 0.75
        value = torch.randn(shapes[kind], generator=generator).to(DTYPES[dtype])
        if case["gaps"] and kind == "all":
            wide = torch.randn(m, n + 3, generator=generator).to(DTYPES[dtype])
            wide[:, 1 : n + 1] = value
            return wide[:, 1 : n + 1]
        return value

    def wide(value, dtype):
        return value if isinstance(value, float) else value.to(dtype)

    with simulated(target, "exact" if case["out"] == "f32" else None):
        operands = _Operands(target, case, generator)
        factor, addend = term(case["factor"], case["dtype"]), term(case["addend"], case["dtype"])
        ours = hipkittens.scaled_matmul_multiply_add(*operands.given, factor, addend, **operands.options)
    exact, single, sizes = operands.products()
    exact = wide(factor, torch.float64) * exact + wide(addend, torch.float64)
    theirs = (wide(factor, torch.float32) * single + wide(addend, torch.float32)).to(ours.dtype)
    largest = [abs(each) if isinstance(each, float) else each.abs().max().item() for each in (factor, addend)]
    return [Result("", ours, theirs, exact, sizes.max().item() * largest[0] + largest[1], BASELINE)]


def _run_concat_heads(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    m, n, _ = case["shape"]
    features = {"64": 64, "32": 32, "odd": n // 64 if n // 64 % 2 else 1}[case["head"]]
    heads = n // features
    first = {"half": features // 2, "none": 0, "all": features, "some": min(24, features)}[case["first"]]
    with simulated(target, "exact" if case["out"] == "f32" else None):
        operands = _Operands(target, case, generator)
        joined = torch.randn(m, 1 if case["shared"] else heads, case["joined"], generator=generator)
        joined = joined.to(operands.options["out_dtype"]).expand(-1, heads, -1)
        ours = hipkittens.scaled_matmul_concat_heads(
            *operands.given, joined, first, recipe=operands.options["recipe"]
        )

    def split(product: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        of_heads = product.view(m, heads, features)
        return torch.cat((of_heads[..., :first], joined.to(product.dtype)), -1), of_heads[..., first:]

    exact, single, sizes = operands.products()
    magnitude = max(sizes.max().item(), joined.double().abs().max().item() if joined.numel() else 0.0)
    theirs = split(single.to(operands.options["out_dtype"]))
    return [
        Result(name, mine, their, reference, magnitude, BASELINE)
        for name, mine, their, reference in zip(("first", "second"), ours, theirs, split(exact), strict=True)
        if mine.numel()
    ]


MULTIPLY_ADD = Operation(
    "scaled_matmul_multiply_add",
    {
        "shape": SHAPES,
        "scales": ("outer", "blocks", "1x32"),
        "factor": ("number", "all", "rows", "columns", "one"),
        "addend": ("all", "number", "columns", "rows"),
        "dtype": ("bf16", "f16", "f32"),
        "gaps": (False, True),
        "out": ("bf16", "f16", "f32"),
    },
    _run_multiply_add,
)
CONCAT_HEADS = Operation(
    "scaled_matmul_concat_heads",
    {
        "shape": SHAPES,
        "scales": ("blocks", "outer", "1x32"),
        "head": ("64", "32", "odd"),
        "first": ("half", "some", "none", "all"),
        "joined": (16, 0, 64, 5),
        "shared": (True, False),
        "out": ("bf16", "f16", "f32"),
    },
    _run_concat_heads,
)
