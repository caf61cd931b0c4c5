# SPDX-License-Identifier: MIT
"""The cases of scaled_matmul beside PyTorch: torch._scaled_mm where the CPU has it, else the dequantised product in float32."""

from __future__ import annotations

import torch
from parity_operation import DTYPES, Operation, Result, simulated

import hipkittens
from hipkittens.quantization import dtype_of

SHAPES = (
    (1, 1, 16), (1, 17, 2880), (17, 1, 160), (17, 128, 128), (128, 257, 160), (257, 128, 16), (128, 17, 2880),
    (257, 257, 128), (1, 128, 4096), (64, 64, 4096), (33, 65, 515), (5, 300, 1), (2, 3, 17),
)  # fmt: skip
FORMATS = ("fp8_fp8", "bf8_fp8", "fp8_bf8", "int8_int8")
OWN = "torch._scaled_mm on the CPU"
WRITTEN_OUT = "PyTorch's float32 product of the codes, scaled, rounded once"


def _codes(generator: torch.Generator, rows: int, columns: int, format: str) -> torch.Tensor:
    if format == "int8":
        return torch.randint(-128, 128, (rows, columns), generator=generator).to(torch.int8)
    return torch.randn(rows, columns, generator=generator).to(dtype_of(format, torch.device("cpu")))


def _scale(generator: torch.Generator, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    if kind == "wide":
        return torch.ldexp(torch.ones(shape), torch.randint(-20, 21, shape, generator=generator))
    return torch.rand(shape, generator=generator) + 0.5


def _run(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    (m, n, k), (format_a, format_b) = case["shape"], case["formats"].split("_")
    rows = case["scales"] == "row"
    with simulated(target, "exact" if case["out"] == "f32" else None):
        a, w = _codes(generator, m, k, format_a), _codes(generator, n, k, format_b)
        scale_a = _scale(generator, (m, 1) if rows else (), case["values"])
        scale_b = _scale(generator, (1, n) if rows else (), case["values"])
        bias = torch.randn(n, generator=generator) if case["bias"] else None
        out_dtype = DTYPES[case["out"]]
        if out_dtype == torch.float16:  # whose largest value is 65504
            largest = ((a.double() @ w.double().t()) * scale_a.double() * scale_b.double()).abs().max()
            scale_a = torch.ldexp(scale_a, -torch.frexp(largest / 2**14).exponent.clamp(min=0))
        ours = hipkittens.scaled_matmul(
            a, w.t(), scale_a, scale_b, bias=bias, activation=case["activation"] or None, out_dtype=out_dtype
        )

    def finished(product: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        product = product * scale_a.to(dtype) * scale_b.to(dtype)
        if bias is not None:
            product = product + bias.to(dtype)
        return {
            "": lambda x: x,
            "relu": torch.relu,
            "silu": torch.nn.functional.silu,
            "gelu": torch.nn.functional.gelu,
            "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        }[case["activation"]](product)

    exact = finished(a.double() @ w.double().t(), torch.float64)
    sizes = (a.double().abs() * scale_a.double()) @ (w.double() * scale_b.double().reshape(-1, 1)).abs().t()
    magnitude = sizes.max().item() + (0.0 if bias is None else bias.abs().max().item())
    plain = not case["bias"] and not case["activation"]
    if plain and not rows and a.dtype == torch.float8_e4m3fn and w.dtype == a.dtype and k % 16 == n % 16 == 0:
        theirs, name = torch._scaled_mm(a, w.t(), scale_a, scale_b, out_dtype=out_dtype), OWN
    else:
        sums = torch.zeros(m, n)
        for first in range(0, k, 32):  # as matrix cores sum, a few k at a time
            sums = sums + a[:, first : first + 32].float() @ w[:, first : first + 32].float().t()
        theirs, name = finished(sums, torch.float32).to(out_dtype), WRITTEN_OUT
    return [Result("", ours, theirs, exact, magnitude, name)]


def _draw_shape(choose):
    return tuple(int(2 ** choose.uniform(0, 9)) for _ in range(3))


SCALED_MATMUL = Operation(
    "scaled_matmul",
    {
        "shape": SHAPES,
        "formats": FORMATS,
        "scales": ("tensor", "row"),
        "values": ("near one", "wide"),
        "out": ("bf16", "f16", "f32"),
        "bias": (False, True),
        "activation": ("", "relu", "silu", "gelu", "gelu_tanh"),
    },
    _run,
    {"shape": _draw_shape},
)
