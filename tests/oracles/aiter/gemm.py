# SPDX-License-Identifier: MIT
"""AITER's GEMMs: bf16, int8, MXFP4 and fp8 with block scales. All multiply A by the transpose of B."""

from __future__ import annotations

import dataclasses

import torch

from tests.oracles.aiter.formats import float4_values, float8, tiled, tiled_scales
from tests.oracles.aiter.launch import Buffer, Run, kernel, output, relative_error


@dataclasses.dataclass
class Result:
    run: Run
    out: torch.Tensor
    reference: torch.Tensor  # in float64
    error: float


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _finish(run: Run, out: torch.Tensor, reference: torch.Tensor) -> Result:
    return Result(run, out, reference, relative_error(out, reference))


def bf16(name: str, m: int, n: int, k: int, splits: int = 1, values=None) -> Result:
    """bf16gemm: f32 out; splits accumulate atomically."""
    tile = int(name.split("_tn_")[1].split("x")[0])
    generator = _generator()
    if values is None:
        values = (torch.randn(rows, k, generator=generator).bfloat16() for rows in (m, n))
    a, b = (Buffer(value) for value in values)
    out = output((m, n), torch.float32, zero=splits > 1)
    arguments = {
        "D": out, "A": a, "B": b, "alpha": 1.0, "beta": 0.0, "strideC0": n * 4, "strideA0": k * 2, "strideB0": k * 2,
        "Mdim": m, "Ndim": n, "Kdim": k, "splitk": splits,
    }  # fmt: skip
    run = kernel(name).launch((-(-n // 64), -(-m // tile), splits), arguments)
    return _finish(run, out.tensor, a.tensor.double() @ b.tensor.double().T)


def launch_int8(
    name: str,
    a: Buffer,
    b: Buffer,
    scale_a: Buffer,
    scale_b: Buffer,
    bias: Buffer,
    out: Buffer,
    splits: int = 1,
) -> Run:
    """i8gemm, with B in tiles of 32 x 16. The workgroups of a split first zero, then add: they run concurrently."""
    (m, k), n = a.tensor.shape, out.tensor.shape[1]
    tile = 128 if "m128" in name else int(name.split("_")[-1].split("x")[0])
    arguments = {
        "C": out, "A": a, "B": b, "SA": scale_a, "SB": scale_b,
        "BIAS": bias, "M": m, "N": n, "K": k, "PA": k, "PB": k, "PC": n * 2, "KS": splits,
    }  # fmt: skip
    together = {"threads": 1, "workgroups_side_by_side": 64} if splits > 1 else {}
    return kernel(name).launch((n // 128 * splits, -(-m // tile), 1), arguments, **together)


def int8_operands(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """a (M, K), b (N, K), row scales of both, (M, 1) and (1, N), and a bias (1, N)."""
    generator = _generator()
    a, b = (torch.randint(-127, 128, (rows, k), generator=generator).to(torch.int8) for rows in (m, n))
    scales = torch.rand(m, 1, generator=generator) * 0.01, torch.rand(1, n, generator=generator) * 0.01
    return a, b, *scales, torch.rand(1, n, generator=generator) * 10


def int8_product(a, b, scale_a, scale_b, bias) -> torch.Tensor:
    return (a.double() @ b.double().T) * scale_a.double() * scale_b.double() + bias.double()


def int8(name: str, m: int, n: int, k: int, splits: int = 1) -> Result:
    """i8gemm on `int8_operands`; bf16 out."""
    a, b, *others = drawn = int8_operands(m, n, k)
    out = output((m, n), torch.bfloat16)
    operands = (Buffer(each) for each in (a, tiled(b, 32, 16), *others))
    return _finish(launch_int8(name, *operands, out, splits), out.tensor, int8_product(*drawn))


def is_ordered(name: str) -> bool:
    """Whether an f4gemm expects B in tiles of 16 x 16 bytes."""
    return "noBpreShuffle" not in name


def float4_tile(name: str) -> tuple[int, int]:
    """Rows and columns of an f4gemm's tile."""
    rows, columns = name.split("_")[-1].removesuffix(".co").split("x")
    return int(rows), int(columns)


def float4_output(name: str, m: int, n: int, log2_splits: int = 0) -> Buffer:
    """The tiled variants store whole blocks of 32 rows, the other one whole tiles; splits add to the output."""
    block = 32 if is_ordered(name) else 256
    return output((-(-m // block) * block, n), torch.bfloat16, zero=log2_splits > 0)


def launch_float4(
    name: str, a: Buffer, b: Buffer, scale_a: Buffer, scale_b: Buffer, out: Buffer, log2_splits: int = 0
) -> Run:
    """f4gemm, with scales in the order of its instruction."""
    (m, half), n = a.tensor.shape, out.tensor.shape[1]
    k, (tile_m, tile_n), depths = 2 * half, float4_tile(name), 1
    arguments = {
        "D": out, "A": a, "B": b, "alpha": 1.0, "beta": 0.0, "strideC0": n,
        "strideA0": k, "strideB0": k, "Mdim": m, "Ndim": n, "Kdim": k, "ScaleA": scale_a, "ScaleB": scale_b,
        "strideScaleA0": scale_a.tensor.shape[1], "strideScaleB0": scale_b.tensor.shape[1],
    }  # fmt: skip
    if is_ordered(name):
        arguments["log2_k_split"] = log2_splits
    if log2_splits:
        depths = -(-k // (-(-(k >> log2_splits) // 256) * 256))
    return kernel(name).launch((-(-n // tile_n), -(-m // tile_m), depths), arguments)


def float4_operands(m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """Quantized a (M, K / 2) and b (N, K / 2), and their e8m0 scales for each 32 values."""
    generator = _generator()

    def bytes_(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator).to(torch.uint8)

    codes = bytes_(0, 256, m, k // 2), bytes_(0, 256, n, k // 2)
    return *codes, bytes_(120, 130, m, k // 32), bytes_(120, 130, n, k // 32)


def float4_product(a, b, scale_a, scale_b) -> torch.Tensor:
    return float4_values(a, scale_a) @ float4_values(b, scale_b).T


def float4(name: str, m: int, n: int, k: int, log2_splits: int = 0) -> Result:
    """f4gemm on `float4_operands`; bf16 out."""
    a, b, *scales = drawn = float4_operands(m, n, k)
    out = float4_output(name, m, n, log2_splits)
    ordered = tiled(b) if is_ordered(name) else b
    factors = (Buffer(tiled_scales(scale)) for scale in scales)
    run = launch_float4(name, Buffer(a), Buffer(ordered), *factors, out, log2_splits)
    return _finish(run, out.tensor[:m], float4_product(*drawn))


def block_scaled_operands(target: str, m: int, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """a (M, K), b (N, K) in fp8, scales of A for 1 x 128, (K / 128, M), and of B for 128 x 128, (N / 128, K / 128); their product."""
    generator = _generator()
    a, b = ((torch.randn(rows, k, generator=generator) * 0.3).to(float8(target)) for rows in (m, n))
    scale_a, scale_b = (
        torch.rand(k // 128, m, generator=generator),
        torch.rand(n // 128, k // 128, generator=generator),
    )
    left = a.double() * scale_a.double().T.repeat_interleave(128, 1)
    right = b.double() * scale_b.double().repeat_interleave(128, 0).repeat_interleave(128, 1)
    return a, b, scale_a, scale_b, left @ right.T


def launch_block_scaled_gfx950(
    name: str, a: Buffer, b: Buffer, scale_a: Buffer, scale_b: Buffer, out: Buffer
) -> Run:
    """f8_block_scale_mi350, with B in tiles of 16 x 16."""
    (m, k), n = a.tensor.shape, out.tensor.shape[1]
    tile = int(name.removesuffix(".co").split("_x")[-1])
    arguments = {
        "O": out, "X": a, "G": b, "XQ": scale_a, "GQ": scale_b, "dim": k,
        "hdim": n, "batch": m, "eprt": 1, "Xs": k, "GUs": k, "Os": n * 2,
    }  # fmt: skip
    return kernel(name).launch((-(-n // 256), -(-m // tile), 1), arguments)


def block_scaled_gfx950(name: str, m: int, n: int, k: int) -> Result:
    """f8_block_scale_mi350: scales of A for 1 x 128 (transposed), of B for 128 x 128; bf16 out."""
    a, b, scale_a, scale_b, reference = block_scaled_operands("gfx950", m, n, k)
    out = output((m, n), torch.bfloat16)
    operands = (Buffer(each) for each in (a, tiled(b), scale_a, scale_b))
    return _finish(launch_block_scaled_gfx950(name, *operands, out), out.tensor, reference)


def launch_block_scaled_gfx942(
    name: str, a: Buffer, b: Buffer, scale_a: Buffer, scale_b: Buffer, out: Buffer
) -> Run:
    """flatmm, with B in tiles of 16 x 64."""
    (m, k), n = a.tensor.shape, out.tensor.shape[1]
    arguments = {
        "a_ptr": a, "b_ptr": b, "sa_ptr": scale_a, "sb_ptr": scale_b,
        "d_f16_ptr": out, "hidden_size": k, "intermediate_size": n, "num_tokens": m,
    }  # fmt: skip
    return kernel(name).launch((-(-n // 256), -(-m // 128), 1), arguments)


def block_scaled_gfx942(name: str, m: int, n: int, k: int) -> Result:
    """flatmm: the same with the scales of B transposed too, tiles of 16 x 64, f16 out."""
    a, b, scale_a, scale_b, reference = block_scaled_operands("gfx942", m, n, k)
    flat = b.view(torch.uint8).reshape(n // 16, 16, k // 64, 4, 16).permute(0, 2, 3, 1, 4).reshape(n, k)
    out = output((m, n), torch.float16)
    operands = (Buffer(each) for each in (a, flat, scale_a, scale_b.T))
    return _finish(launch_block_scaled_gfx942(name, *operands, out), out.tensor, reference)
