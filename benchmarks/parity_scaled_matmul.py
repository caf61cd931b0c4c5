# SPDX-License-Identifier: MIT
"""The cases of scaled_matmul, compared with torch._scaled_mm where the CPU has it, else with the dequantized product in float32."""

from __future__ import annotations

import torch
from parity_operation import DTYPES, Operation, Result, simulated

import hipkittens
from hipkittens.quantization import dtype_of, e8m0_in_float, six_bits_in_float

SHAPES = (
    (1, 1, 16), (1, 17, 2880), (17, 1, 160), (17, 128, 128), (128, 257, 160), (257, 128, 16), (128, 17, 2880),
    (257, 257, 128), (1, 128, 4096), (64, 64, 4096), (33, 65, 515), (5, 300, 1), (2, 3, 17),
)  # fmt: skip
FORMATS = ("fp8_fp8", "bf8_fp8", "fp8_bf8", "int8_int8")
OWN = "torch._scaled_mm on the CPU"
WRITTEN_OUT = "PyTorch's float32 product of the quantized values, scaled, rounded once"


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
        if out_dtype == torch.float16:  # the largest float16 value is 65504
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
        for first in range(0, k, 32):  # like matrix cores, a few k at a time
            sums = sums + a[:, first : first + 32].float() @ w[:, first : first + 32].float().t()
        theirs, name = finished(sums, torch.float32).to(out_dtype), WRITTEN_OUT
    return [Result("", ours, theirs, exact, magnitude, name)]


def _run_in_codes(target: str, case: dict, seed: int) -> list[Result]:
    """Results in 8-bit floats, whose rounding is most of any error."""
    generator = torch.Generator().manual_seed(seed)
    m, n, k = case["shape"]
    rows = case["scales"] == "row"
    with simulated(target):
        a, w = (_codes(generator, count, k, "fp8") for count in (m, n))
        scale_a = _scale(generator, (m, 1) if rows else (), "near one")
        scale_b = _scale(generator, (1, n) if rows else (), "near one")
        factor = torch.tensor({"one": 1.0, "small": 2.0**-9, "large": 11.0}[case["scale_result"]])
        bias = torch.randn(n, generator=generator) if case["bias"] else None
        ours = hipkittens.scaled_matmul(
            a, w.t(), scale_a, scale_b, bias=bias, activation=case["activation"] or None, out_dtype=a.dtype, scale_result=factor
        )  # fmt: skip
    largest = torch.finfo(a.dtype).max

    def finished(product: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        product = product * scale_a.to(dtype) * scale_b.to(dtype)
        if bias is not None:
            product = product + bias.to(dtype)
        if case["activation"]:
            product = torch.nn.functional.silu(product)
        return (product * factor.to(dtype)).clamp(-largest, largest)

    exact = finished(a.double() @ w.double().t(), torch.float64)
    sums = torch.zeros(m, n)
    for first in range(0, k, 32):
        sums = sums + a[:, first : first + 32].float() @ w[:, first : first + 32].float().t()
    theirs = finished(sums, torch.float32).to(a.dtype)
    return [
        Result("", ours.float(), theirs.float(), exact, exact.abs().max().item(), f"{WRITTEN_OUT} to a code")
    ]


# Operands of which some have 6 or 4 bits: K is a multiple of 32. gfx942 supports only the last pair.
FEW_BITS_SHAPES = (
    (1, 1, 32),
    (1, 17, 2880),
    (17, 1, 160),
    (128, 257, 160),
    (257, 128, 32),
    (64, 64, 4096),
    (255, 130, 288),
)
FEW_BITS = ("fp8_fp4", "bf8_fp4", "fp4_fp4", "fp6_fp6", "bf6_bf6", "bf16_fp4")


def few_bits(generator: torch.Generator, rows: int, k: int, format: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantized values, as stored, and the numbers they stand for."""
    if format in ("fp6", "bf6"):
        codes = torch.randint(0, 256, (rows, k // 4 * 3), generator=generator).to(torch.uint8)
        return codes, six_bits_in_float(codes, format)
    if format == "fp4":
        codes = torch.randint(0, 256, (rows, k // 2), generator=generator).to(torch.uint8)
        ones = torch.full((rows, k // 32), 127, dtype=torch.uint8)
        return codes, hipkittens.dequantize(codes, ones, hipkittens.QuantSpec("mxfp4"), torch.float32)
    values = torch.randn(rows, k, generator=generator)
    codes = values.bfloat16() if format == "bf16" else _codes(generator, rows, k, format)
    return codes, codes.float()


def _run_few_bits(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    m, n, k = case["shape"]
    k = -(-k // 32) * 32
    formats = case["formats"].split("_") if target == "gfx950" else ("bf16", "fp4")
    of_b = formats[0] == "bf16" or (formats[1] == "fp4" and formats[0] != "fp4" and case["scales"] == "of b")
    with simulated(target, "exact" if case["out"] == "f32" else None):
        (a, left), (w, right) = (
            few_bits(generator, rows, k, format) for rows, format in zip((m, n), formats, strict=True)
        )
        reach = 20 if case["values"] == "wide" and case["out"] != "f16" else 1
        bytes_a, bytes_w = (
            torch.randint(127 - reach, 128 + reach, (rows, k // 32), generator=generator).to(torch.uint8)
            for rows in (m, n)
        )
        scale_a = torch.rand((m, 1), generator=generator) + 0.5 if of_b else bytes_a
        out_dtype = DTYPES[case["out"]]
        if out_dtype == torch.float16:
            bytes_w -= 6  # sums of 4096 products below 65504
        ours = hipkittens.scaled_matmul(
            a, w.t(), scale_a, bytes_w.t(), recipe=("row", "1x32") if of_b else "1x32", out_dtype=out_dtype,
            formats=formats[0] if formats[0] in ("fp6", "bf6") else None,
        )  # fmt: skip
    factors_a, factors_w = (
        e8m0_in_float(each).repeat_interleave(32, 1).double() for each in (bytes_a, bytes_w)
    )
    left = left.double() * (scale_a.double() if of_b else factors_a)
    right = right.double() * factors_w
    sums = torch.zeros(m, n)
    for first in range(0, k, 4):  # the simulated instruction rounds after each product of K
        part = slice(first, first + 4)
        sums = sums + left[:, part].float() @ right[:, part].float().t()
    magnitude = (left.abs() @ right.abs().t()).max().item()
    return [Result("", ours, sums.to(out_dtype), left @ right.t(), magnitude, WRITTEN_OUT)]


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
SCALED_MATMUL_FEW_BITS = Operation(
    "scaled_matmul_few_bits",
    {
        "shape": FEW_BITS_SHAPES,
        "formats": FEW_BITS,
        "scales": ("of both", "of b"),
        "values": ("near one", "wide"),
        "out": ("bf16", "f16", "f32"),
    },
    _run_few_bits,
    {"shape": _draw_shape},
)
SCALED_MATMUL_IN_CODES = Operation(
    "scaled_matmul_in_codes",
    {
        "shape": SHAPES,
        "scales": ("row", "tensor"),
        "scale_result": ("one", "small", "large"),
        "activation": ("", "silu"),
        "bias": (False, True),
    },
    _run_in_codes,
)
