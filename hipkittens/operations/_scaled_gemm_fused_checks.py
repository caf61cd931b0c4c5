# SPDX-License-Identifier: MIT
"""Checks of scaled matrix products with what follows them: a problem for each kernel, examples, calls, parity, benchmarks."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial

import torch

from .. import _backend, _installation
from ..quantization import dtype_of
from ..scaled_gemm_fused import scaled_matmul_concat_heads, scaled_matmul_multiply_add
from ._record import Benchmark, Checks, Kernel, Rows, Table, Trial
from ._scaled_gemm_checks import RECIPES, codes, looped_shape, scales_of
from ._tensors import draw


@_backend.partitioned("CPX")
def _run(format: str, scales: str, m: int, n: int, k: int) -> list[torch.Tensor]:
    """Both functions, with terms of each kind, whole vectors and single elements; nothing where instructions do not support the format."""
    if format == "fp4" and _backend.arch_of(torch.device("cpu")) != "gfx950":
        return []
    a, w = codes(m, k, format), codes(n, k, format)
    operands = a, w.t(), *scales_of(scales, m, n, k)
    recipe = {"recipe": RECIPES.get(scales)}
    bias = draw(n, dtype=torch.float32).detach()
    residual, column = draw(m, n, dtype=torch.bfloat16).detach(), draw(m, 1, dtype=torch.float32).detach()
    joined = draw(m, n // 64, 16, dtype=torch.bfloat16).detach()  # of heads of 64 columns
    return [
        scaled_matmul_multiply_add(*operands, 0.5, residual, bias=bias, activation="silu", **recipe),
        scaled_matmul_multiply_add(*operands, residual.half(), column, out_dtype=torch.float32, **recipe),
        *scaled_matmul_concat_heads(*operands, joined, 24, **recipe),
        *scaled_matmul_concat_heads(*operands, joined[..., 1:10], 39, **recipe),
    ]


@_backend.partitioned("CPX")
def _run_typical(format: str, scales: str, m: int, n: int, k: int) -> list[torch.Tensor]:
    """A residual alone, behind a main loop with more iterations than the loop that adds it."""
    if format == "fp4" and _backend.arch_of(torch.device("cpu")) != "gfx950":
        return []
    a, w = codes(m, k, format), codes(n, k, format)
    residual = draw(m, n, dtype=torch.bfloat16).detach()
    operands = a, w.t(), *scales_of(scales, m, n, k)
    return [scaled_matmul_multiply_add(*operands, 1.0, residual, recipe=RECIPES.get(scales))]


def _trial_of(kernel: Kernel, run, lengths: int = 1) -> Trial:
    row = kernel.row
    m, n, k = looped_shape(kernel)
    format, k = row["a"], lengths * k
    title = f"scaled_matmul {m}x{n}x{k} {format} {row['scales']} scales, and what follows"
    return Trial(title, partial(run, format, row["scales"], m, n, k), workgroups=3, skip=True)


def _representative() -> Iterable[Trial]:
    from .._representative import kernels

    trials = (
        # The loop of 16 rows dominates as it is, and with a longer K the plan takes other tiles.
        _trial_of(kernel, _run_typical, 1 if kernel.row["tile_m"] == "16" else 3)
        for target in _installation.TARGETS
        for kernel in kernels(target)
        if (kernel.folder, kernel.kind) == ("gemm", "fused")
    )
    return {each.title: each for each in trials}.values()


def _calls(tensor):
    fp8 = torch.float8_e4m3fn
    a, b = tensor(32, 64, dtype=fp8), tensor(96, 64, dtype=fp8).t()
    rows, columns = tensor(32, 1, dtype=torch.float32), tensor(1, 96, dtype=torch.float32)
    a4, b4 = tensor(32, 32, dtype=torch.uint8), tensor(96, 32, dtype=torch.uint8).t()
    rows4, columns4 = tensor(32, 2, dtype=torch.uint8), tensor(96, 2, dtype=torch.uint8).t()
    residual = tensor(32, 96)
    add, concat = "scaled_matmul_multiply_add", "scaled_matmul_concat_heads"
    return [
        ("e4m3, a residual", add, (a, b, rows, columns, 1.0, residual), {}),
        ("e2m1, a residual", add, (a4, b4, rows4, columns4, 1.0, residual), {}),
        ("int8", add, (tensor(32, 64, dtype=torch.int8), tensor(96, 64, dtype=torch.int8).t(), rows, columns, 1.0, 0.0), {}),
        ("e4m3, 2 heads of 48", concat, (a, b, rows, columns, tensor(32, 2, 16), 32), {}),
    ]  # fmt: skip


def _sizes(rows: Rows) -> str:
    return (
        "Scaled GEMM with a multiplication and addition, or with split and concatenated heads: any M, N and K; e4m3 with scales of tensors, "
        "rows or blocks of 128; on gfx950 also MXFP4. The dtypes in the table are those of the addend."
    )


def _operands(problem, device, format):
    """Of the target: e4m3 with scales of blocks, or e2m1 with shuffled scales of 32; and the options that go with them."""
    m, n, k = (problem[name] for name in "MNK")

    def factors(rows: int, columns: int) -> torch.Tensor:
        if format == "fp4":
            return torch.full((-(-rows // 32) * 32, -(-k // 256) * 8), 127, dtype=torch.uint8, device=device)
        return torch.ones(rows, columns, device=device)

    blocks = -(-k // 128)
    scales = factors(m, blocks), factors(blocks if format == "fp8" else n, -(-n // 128))
    values = [problem.tensor(device, rows, k if format == "fp8" else k // 2) for rows in (m, n)]

    @functools.cache
    def operands(target: str) -> tuple[torch.Tensor, ...]:
        # The target is known when the call is made: the model simulates one for each device.
        dtype = torch.uint8 if format == "fp4" else dtype_of("fp8", torch.device(device))
        a, w = (problem.in_codes(each, dtype) for each in values)
        return a, w.t(), *scales

    options = (
        {"recipe": "1x32", "swizzle": "shuffled"} if format == "fp4" else {"recipe": ("1x128", "128x128")}
    )
    return lambda: operands(_backend.arch_of(torch.device(device))), options


def _add_residual(problem, device, format):
    operands, options = _operands(problem, device, format)
    residual = problem.tensor(device, problem["M"], problem["N"])
    return lambda: scaled_matmul_multiply_add(*operands(), 1.0, residual, **options)


# The up-projection of DeepSeek's latent attention: heads of 128 + 128 features, keys get 64 rotary ones, which all heads share.
_HEAD, _JOINED = 256, 64


def _heads(columns: int) -> int:
    """Heads of 256 columns, or a single one of a product with others."""
    return columns // _HEAD if columns % _HEAD == 0 else 1


def _concat(problem, device, format):
    operands, options = _operands(problem, device, format)
    heads = _heads(problem["N"])
    joined = problem.tensor(device, problem["M"], 1, _JOINED).expand(-1, heads, -1)
    first = problem["N"] // heads // 2
    return lambda: scaled_matmul_concat_heads(*operands(), joined, first, **options)


def _bytes_of_operands(bits: int, problem) -> float:
    return bits / 8 * (problem["M"] + problem["N"]) * problem["K"]


def _benchmark(name: str, heading: str, call, format: str, **options) -> Benchmark:
    bits = 4 if format == "fp4" else 8
    joins = call is _concat

    def moved(problem) -> float:
        rows, columns = problem["M"], problem["N"]
        results = columns + _heads(columns) * _JOINED if joins else 2 * columns
        return _bytes_of_operands(bits, problem) + 2.0 * rows * results

    return Benchmark(
        name,
        example="4096x32768x512",
        shapes="4096x32768x512" if joins else "4096x7168x2048",
        extents=("M", "N", "K"),
        flops=lambda e: 2.0 * e["M"] * e["N"] * e["K"],
        bytes=moved,
        call=partial(call, format=format),
        heading=heading,
        bits=bits,
        **options,
    )


_MODELLED = {"MI300X": (256, 4096), "MI355X": (256, 4096)}
_OF_LATENTS = (
    "N tokens, 128 heads of 128 + 128 features and 64 rotary ones, K 512 (DeepSeek-V3)",
    "{N}x32768x512",
)
_OF_RESIDUALS = "N rows by 7168 columns, K 2048", "{N}x7168x2048"
_BENCHMARKS = (
    _benchmark(
        "scaled_matmul_residual",
        "fp8 GEMM with block scales, plus a residual",
        _add_residual,
        "fp8",
        tables=(Table(*_OF_RESIDUALS, _MODELLED),),
    ),
    _benchmark(
        "scaled_matmul_heads",
        "fp8 GEMM with block scales, heads split and concatenated",
        _concat,
        "fp8",
        tables=(Table(*_OF_LATENTS, _MODELLED),),
    ),
    _benchmark("scaled_matmul_residual_mxfp4", "MXFP4 GEMM, plus a residual", _add_residual, "fp4"),
    _benchmark("scaled_matmul_heads_mxfp4", "MXFP4 GEMM, heads split and concatenated", _concat, "fp4"),
)


def _exercise(draw):
    a, w = codes(20, 64, "fp8"), codes(48, 64, "fp8")
    operands = a, w.t(), *scales_of("outer", 20, 48, 64)
    return [
        scaled_matmul_multiply_add(*operands, 2.0, draw(20, 48).detach()),
        *scaled_matmul_concat_heads(*operands, draw(20, 2, 8).detach(), 16),
    ]


CHECKS = Checks(
    trial=lambda kernel: _trial_of(kernel, _run),
    representative=_representative,
    calls=_calls,
    sizes=_sizes,
    parity=("parity_scaled_matmul_fused:MULTIPLY_ADD", "parity_scaled_matmul_fused:CONCAT_HEADS"),
    benchmarks=_BENCHMARKS,
    exercise=_exercise,
)
