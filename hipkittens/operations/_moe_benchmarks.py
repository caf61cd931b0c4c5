# SPDX-License-Identifier: MIT
"""How fast the experts of a layer are: weights of 16, 8 and 4 bits."""

from __future__ import annotations

import functools
from functools import partial

import torch

from .. import _backend
from ..experts import moe
from ..preshuffle import preshuffle
from ..quantization import dtype_of
from ._expert_sort_checks import drawn_experts
from ._record import Benchmark, Table
from ._router_checks import refuse_experts


def _call(problem, device, spec=None, integers=False, panels=False):
    tokens, experts, k, features, inner = (
        problem[name] for name in ("tokens", "experts", "k", "features", "inner")
    )
    x = problem.tensor(device, tokens, features)
    weights = [
        problem.tensor(device, experts, *sizes) for sizes in ((2 * inner, features), (features, inner))
    ]
    ids, topk = drawn_experts(tokens, experts, k, device), torch.ones(tokens, k, device=device)
    if spec is None:
        return lambda: moe(x, *weights, topk, ids)

    @functools.cache
    def codes(target: str) -> list[torch.Tensor]:
        # The target is known when the call is made: the model simulates one for each device.
        dtype = torch.int8 if integers else dtype_of("fp8", torch.device(device))
        if integers and device != "cpu":
            return [(weight * 40).clamp(-127, 127).to(dtype) for weight in weights]
        rows = [problem.in_codes(weight, dtype) for weight in weights]
        return [preshuffle(each) for each in rows] if panels else rows

    def blocks(length: int) -> int:
        return -(-length // 128)

    scales = {
        f"scale_w{number}": torch.ones(
            (experts, rows, 1) if spec == "row" else (experts, blocks(rows), blocks(columns)), device=device
        )
        for number, (_, rows, columns) in enumerate((weight.shape for weight in weights), 1)
    }
    return lambda: moe(x, *codes(_backend.arch_of(torch.device(device))), topk, ids, **scales)


def _call_of_mx(problem, device, rows: str | None, panels: bool = False):
    """Weights of MXFP4, in panels or in rows, with their scales in the order of the kernels, and rows of tokens by this word of a
    recipe."""
    tokens, experts, k, features, inner = (
        problem[name] for name in ("tokens", "experts", "k", "features", "inner")
    )
    x = problem.tensor(device, tokens, features)
    sizes = (2 * inner, features), (features, inner)
    weights = [
        problem.in_codes(problem.tensor(device, experts, n, columns // 2), torch.uint8)
        for n, columns in sizes
    ]
    if panels:
        weights = [preshuffle(each) for each in weights]
    scales = {
        f"scale_w{number}": torch.full(
            (experts, -(-n // 32) * 32, -(-columns // 256) * 8), 127, dtype=torch.uint8, device=device
        )
        for number, (n, columns) in enumerate(sizes, 1)
    }
    ids, topk = drawn_experts(tokens, experts, k, device), torch.ones(tokens, k, device=device)
    return lambda: moe(x, *weights, topk, ids, **scales, recipe=(rows, "1x32"), swizzle="shuffled")


def _bytes(problem, of_weights=2.0):
    """Weights of every expert that a token can reach, x, and the result."""
    reached = min(problem["experts"], problem["tokens"] * problem["k"])
    weights = 3.0 * reached * problem["features"] * problem["inner"]
    return of_weights * weights + 4.0 * problem["tokens"] * problem["features"]


_TABLE_SIZES = {"MI300X": (1, 64, 1024), "MI355X": (1, 64, 1024)}
_TABLE_PEERS = {"aiter": {"MI300X": 1024, "MI355X": 1024}}


def _benchmark(
    name: str,
    heading: str,
    shapes: str,
    tables: tuple[Table, ...] = (),
    *,
    weight_bits: float = 8,
    bits: int = 0,
    **options,
) -> Benchmark:
    """bits: those of the matrix instructions, where weights have fewer; scales of 32 count with their weights."""
    return Benchmark(
        name,
        example="64x128x8x2048x768",
        extents=("tokens", "experts", "k", "features", "inner"),
        shapes=shapes,
        heading=heading,
        bytes=partial(_bytes, of_weights=weight_bits / 8),
        flops=lambda problem: 6.0 * problem["tokens"] * problem["k"] * problem["features"] * problem["inner"],
        call=partial(_call_of_mx if "rows" in options else _call, **options),
        refuse=refuse_experts,
        chained=True,
        tables=tables,
        bits=bits or weight_bits,
    )


BENCHMARKS = (
    _benchmark(
        "moe",
        "Mixture-of-experts layer",
        "1x128x8x2048x768,64x128x8x2048x768,1024x8x2x4096x14336",
        weight_bits=16,
    ),
    _benchmark(
        "moe_fp8",
        "Mixture-of-experts layer, fp8 with row scales",
        "64x128x8x2048x768",
        (
            Table(
                "N tokens to 8 of 128 experts, hidden size 2048, intermediate size 768 (Qwen3-30B-A3B)",
                "{N}x128x8x2048x768",
                _TABLE_SIZES,
                _TABLE_PEERS,
            ),
        ),
        spec="row",
    ),
    _benchmark(
        "moe_fp8_panels",
        "Mixture-of-experts layer, fp8 with row scales, preshuffled weights",
        "64x128x8x2048x768",
        spec="row",
        panels=True,
    ),
    _benchmark(
        "moe_fp8_blocks_panels",
        "Mixture-of-experts layer, fp8 with block scales, preshuffled weights",
        "64x256x8x7168x256",
        spec="blocks",
        panels=True,
    ),
    _benchmark(
        "moe_int8",
        "Mixture-of-experts layer, int8 with row scales",
        "64x128x8x2048x768",
        spec="row",
        integers=True,
    ),
    _benchmark(
        "moe_fp8_blocks",
        "Mixture-of-experts layer, fp8 with block scales",
        "64x128x8x2048x768",
        (
            Table(
                "N tokens to 8 of 256 experts, hidden size 7168, intermediate size 256 (DeepSeek-V3 on 8 GPUs)",
                "{N}x256x8x7168x256",
                _TABLE_SIZES,
                _TABLE_PEERS,
            ),
        ),
        spec="blocks",
    ),
    *(
        _benchmark(
            name,
            heading,
            "1x128x4x2880x2880,64x128x4x2880x2880",
            (
                Table(
                    "N tokens to 4 of 128 experts, hidden size 2880, intermediate size 2880 (gpt-oss-120b)",
                    "{N}x128x4x2880x2880",
                    {device: (1, 64, 1024) for device in devices},
                ),
            ),
            weight_bits=4.25,
            bits=bits,
            rows=rows,
        )
        for name, heading, rows, bits, devices in (
            (
                "moe_bf16_mxfp4",
                "Mixture-of-experts layer, MXFP4 weights and bf16 activations",
                None,
                16,
                ("MI300X", "MI355X"),
            ),
            ("moe_mxfp4", "Mixture-of-experts layer, MXFP4 weights and activations", "1x32", 4, ("MI355X",)),
        )
    ),
    _benchmark(
        "moe_mxfp8_mxfp4",
        "Mixture-of-experts layer, MXFP4 weights and MXFP8 activations",
        "64x128x4x2880x2880",
        weight_bits=4.25,
        bits=8,
        rows="mxfp8",
    ),
    *(
        _benchmark(
            f"moe_{name}_panels",
            f"Mixture-of-experts layer, preshuffled MXFP4 weights and {of_rows} activations",
            "64x128x4x2880x2880",
            weight_bits=4.25,
            bits=bits,
            rows=rows,
            panels=True,
        )
        for name, of_rows, rows, bits in (
            ("bf16_mxfp4", "bf16", None, 16),
            ("mxfp8_mxfp4", "MXFP8", "mxfp8", 8),
            ("mxfp4", "MXFP4", "1x32", 4),
        )
    ),
)
