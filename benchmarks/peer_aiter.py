# SPDX-License-Identifier: MIT
"""AITER's side of `hipkittens bench --compare aiter`: the code objects of its wheel, launched as tests/oracles/aiter does."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import calibration_launch
from calibration_rows import CannotRun, Row

from hipkittens.profiling.peers import Candidate, Unavailable
from hipkittens.profiling.problems import Problem
from tests.oracles.aiter import gemm, wheel
from tests.oracles.aiter.attention_backward import launch_batch
from tests.oracles.aiter.launch import Buffer, kernel, output

_GEMM_TILES = (32, 48, 64, 80, 96)
_FORWARD_ROWS = 256  # of a workgroup's tile
# How P is rounded to bf16 on gfx942: to nearest with ties away from zero, which is the default of AITER's Python package and so the
# one that counts; with ties to even; towards zero. gfx950 has an instruction for it and one kernel.
_FORWARD_ROUNDINGS = ("_rtna", "_rtne", "_rtz")


# What the names of AITER's objects that do a whole layer of experts contain, by operation.
_EXPERTS = {"moe_fp8": "_pertokenFp8_g1u1_vs_silu_", "moe_fp8_blocks": "_blockscaleFp8_g1u1_vs_silu_"}
_ANY_CHIP = {"gfx942": "MI300X", "gfx950": "MI355X"}


class AiterPeer:
    def modelled(self, problem: Problem, target: str) -> Iterator[Candidate]:
        if not wheel.objects():
            raise Unavailable(
                f"needs AITER's code objects: pip install --no-deps {wheel.DISTRIBUTION}=={wheel.VERSION}"
            )
        candidates = _CANDIDATES.get(problem.operation)
        if candidates is None:
            raise Unavailable(f"no code object of {problem.operation} is launched here")
        yield from candidates(problem, target)

    def measured(self, problem: Problem) -> Callable[[], object]:
        raise Unavailable("AITER is modelled only: its own Python package measures it on a GPU")


def _gemm(problem: Problem, target: str) -> Iterator[Candidate]:
    """bf16gemm: the wheel's are for few rows, with float32 results."""
    m, n, k = problem["M"], problem["N"], problem["K"]
    a, b = Buffer(problem.tensor("cpu", m, k)), Buffer(problem.tensor("cpu", n, k))
    out = output((m, n), torch.float32)
    names = [f"{target}/bf16gemm/bf16gemm_outf32_tn_{tile}x64_pf3.co" for tile in _GEMM_TILES]
    names = [name for name in names if name in wheel.objects()]
    if n % 64 or k % 64 or not names:
        raise Unavailable("AITER's bf16gemm wants N and K to be multiples of 64")
    arguments = {
        "D": out, "A": a, "B": b, "alpha": 1.0, "beta": 0.0, "strideC0": n * 4, "strideA0": k * 2, "strideB0": k * 2,
        "Mdim": m, "Ndim": n, "Kdim": k, "splitk": 1,
    }  # fmt: skip
    for name in names:
        tile = int(name.split("_tn_")[1].split("x")[0])

        def call(name: str = name, tile: int = tile) -> None:
            kernel(name).launch((n // 64, -(-m // tile), 1), arguments)

        yield Candidate(name, call)


def _zeros(dtype: torch.dtype, *shape: int) -> Buffer:
    """An operand: no kernel here takes longer or shorter for what it reads."""
    return Buffer(torch.zeros(shape, dtype=dtype))


def _scaled_matmul_blocks(problem: Problem, target: str) -> Iterator[Candidate]:
    """f8_block_scale of gfx950, with tiles of 32 to 128 rows; flatmm of gfx942, whose results are f16. Weights in their order."""
    m, n, k = problem["M"], problem["N"], problem["K"]
    if n % 256 or k % 128:
        raise Unavailable("AITER's objects with scales of blocks want N in multiples of 256 and K of 128")
    a, b = (_zeros(torch.uint8, rows, k) for rows in (m, n))
    if target == "gfx942":
        names = ["gfx942/flatmm_uk_gfx9_f16f8_128x256x128_1x4x1_16x16x32.co"]
        launch, scale_b, out = (
            gemm.launch_block_scaled_gfx942,
            (k // 128, n // 128),
            output((m, n), torch.float16),
        )
    else:
        names = [f"gfx950/f8_block_scale_mi350_x{rows}.co" for rows in (32, 64, 96, 128)]
        launch, scale_b, out = (
            gemm.launch_block_scaled_gfx950,
            (n // 128, k // 128),
            output((m, n), torch.bfloat16),
        )
    operands = a, b, _zeros(torch.float32, k // 128, m), _zeros(torch.float32, *scale_b), out
    for name in names:
        yield Candidate(name, lambda name=name: launch(name, *operands))


def _scaled_matmul_int8(problem: Problem, target: str) -> Iterator[Candidate]:
    """i8gemm and the older a8w8, with a scale for each row and column and a bias; weights in their order, K in one part."""
    m, n, k = problem["M"], problem["N"], problem["K"]
    names = [name for name in wheel.objects() if name.startswith(f"{target}/i8gemm/")]
    names += [name for name in wheel.objects() if name == f"{target}/gemm_a8w8_m128_noSplitK.co"]
    if n % 128 or k % 128 or not names:
        raise Unavailable("AITER's int8 products are of gfx942, with N and K in multiples of 128")
    operands = (
        *(_zeros(torch.int8, rows, k) for rows in (m, n)),
        *(_zeros(torch.float32, *shape) for shape in ((m, 1), (1, n), (1, n))),
        output((m, n), torch.bfloat16),
    )
    for name in sorted(names):
        yield Candidate(name, lambda name=name: gemm.launch_int8(name, *operands))


def _scaled_matmul_mxfp4(problem: Problem, target: str) -> Iterator[Candidate]:
    """f4gemm: of few rows every tile that has room for all of them and no more than it must, K in one part and in four, without the
    zeros that parts are added to; of more rows the tiles of 128 and more by 128 and more."""
    m, n, k = problem["M"], problem["N"], problem["K"]
    tiles = {
        gemm.float4_tile(name): name
        for name in wheel.objects()
        if name.startswith(f"{target}/f4gemm/") and gemm.is_ordered(name)
    }
    if n % 256 or k % 256 or not tiles:
        raise Unavailable("AITER's f4gemm is of gfx950 and wants N and K in multiples of 256")
    enough = min((rows for rows, _ in tiles if rows >= m), default=0)
    chosen = [tile for tile in tiles if (tile[0] == enough if enough else min(tile) >= 128)]
    a, b = (_zeros(torch.uint8, rows, k // 2) for rows in (m, n))
    scales = [_zeros(torch.uint8, -(-rows // 256) * 256, k // 32) for rows in (m, n)]
    for tile in sorted(chosen):
        for log2_splits in (0, 2) if enough else (0,):
            name = tiles[tile]
            out = gemm.float4_output(name, m, n, log2_splits)
            yield Candidate(
                f"{name}{f', K in {1 << log2_splits} parts' * bool(log2_splits)}",
                lambda name=name, out=out, splits=log2_splits: gemm.launch_float4(
                    name, a, b, *scales, out, splits
                ),
            )


def _moe_fp8(problem: Problem, target: str) -> Iterator[Candidate]:
    """fmoe: both products and the gate in one launch that adds to the result by atomics, of tokens that are quantised and sorted by
    expert before; the result's zeros, the sort and the quantisation are kernels of their own, which are not counted."""
    e = problem.extents
    shape = {
        "token": e["tokens"], "model_dim": e["features"], "inter_dim": e["inner"], "expert": e["experts"],
        "topk": e["k"], "block_m": 32, "run_1stage": 1,
    }  # fmt: skip
    names = [
        name
        for name in wheel.objects()
        if name.startswith(f"{target}/fmoe/silu/") and _EXPERTS[problem.operation] in name
    ]
    found = False
    for name in sorted(names):
        chip = _ANY_CHIP[target]
        row = Row(name, kernel(name).metadata.name, target, chip, 1.0, tuple(shape.items()), "silu")
        if e["inner"] % int(name.removesuffix(".co").rpartition("x")[2]):
            continue
        try:
            launch = calibration_launch.prepare(row)
        except CannotRun:
            continue
        found = True
        memory = calibration_launch.allocated(launch.arguments)
        yield Candidate(
            f"{name}, without sort, quantisation and zeros",
            lambda launch=launch, memory=memory: calibration_launch.start(
                launch.name, launch.grid, launch.arguments, memory
            ),
        )
    if not found:
        raise Unavailable(
            "AITER's wheel has no fmoe object for this inner size, which its tiles have to divide"
        )


def _attention(problem: Problem, target: str) -> Iterator[Candidate]:
    e = problem.extents
    if e["D"] != 128:
        raise Unavailable(f"AITER's wheel has attention forward for heads of 128, not {e['D']}")
    folder, roundings = ("MI300/", _FORWARD_ROUNDINGS) if target == "gfx942" else ("", ("",))
    stem = f"{target}/fmha_v3_fwd/{folder}fwd_hd128_bf16{'_causal' * problem.causal}"
    queries = Buffer(problem.tensor("cpu", e["B"], e["N"], e["H"], 128))
    keys, values = (Buffer(problem.tensor("cpu", e["B"], e["L"], e["K"], 128)) for _ in range(2))
    out = output((e["B"], e["N"], e["H"], 128), torch.bfloat16)
    lse = output((e["B"], e["H"], e["N"]), torch.float32)
    strides = {
        f"{letter}_{stride}": buffer.stride(dimension)
        for letter, buffer in {"k": keys, "v": values, "r": out}.items()
        for stride, dimension in {"Seqs": 1, "Hs": 2, "Bs": 0}.items()
    }
    arguments = strides | {
        "R": out, "Q": queries, "K": keys, "V": values, "LSE": lse, "scalar": 1 / math.sqrt(128), "seq_len": e["N"],
        "Seqs": queries.stride(1), "Ts": _FORWARD_ROWS * queries.stride(1), "Hs": queries.stride(2),
        "Bs": queries.stride(0), "gqa": e["H"] // e["K"], "msk_opt": 3 if problem.causal and e["H"] % 8 else 5, "lse": 1,
        "kv_seq_len": e["L"], "qk_head_dim": 128, "v_head_dim": 128, "q_head_num": e["H"], "lse_Hs": 4 * e["N"],
    }  # fmt: skip
    tiles = -(-e["N"] // _FORWARD_ROWS)
    grid = -(-tiles // 2) if problem.causal else tiles, e["H"], e["B"]
    for rounding in roundings:
        name = f"{stem}{rounding}.co"
        yield Candidate(
            name,
            lambda name=name: kernel(name).launch(grid, arguments),
            counts=rounding == roundings[0],
        )


def _attention_backward(problem: Problem, target: str) -> Iterator[Candidate]:
    """The main kernel, and dq_shuffle where dQ is added up in 16 bits. Row sums of dO * O, the conversion of a 32-bit dQ, and
    the sum of dK and dV over the query heads of a group are kernels that the wheel does not have."""
    e = problem.extents
    if e["N"] != e["L"]:
        raise Unavailable("AITER's attention backward is launched here with as many keys as queries")
    if e["D"] != e["V"]:
        raise Unavailable("AITER's attention backward is launched here with heads of one size")
    stem = f"{target}/fmha_v3_bwd/bwd_hd{e['D']}_bf16{'_causal' * problem.causal}"
    suffixes = ("_psskddv", "_pssk", "") if e["N"] % 64 == 0 else ("_psskddv", "_pssk")
    names = []
    for sums in ("a16", "a32"):
        variants = [
            f"{stem}_{sums}{rounding}{suffix}.co" for suffix in suffixes for rounding in ("", "_rtne")
        ]
        names += [name for name in variants if name in wheel.objects()][:1]
    if not names:
        raise Unavailable(f"AITER's wheel has no attention backward for heads of {e['D']}")
    q, d_out = (Buffer(problem.tensor("cpu", e["B"], e["N"], e["H"], e["D"])) for _ in range(2))
    k, v = (Buffer(problem.tensor("cpu", e["B"], e["L"], e["K"], e["D"])) for _ in range(2))
    lse, sums_of_rows = (Buffer(torch.zeros(e["B"], e["H"], e["N"])) for _ in range(2))
    for name in names:
        yield Candidate(
            f"{name}, without row sums and conversions",
            lambda name=name: launch_batch(name, q, k, v, d_out, lse, sums_of_rows),
        )


_moe_fp8_blocks = _moe_fp8
_CANDIDATES = {
    "attention": _attention,
    "attention_backward": _attention_backward,
    "gemm": _gemm,
    "moe_fp8": _moe_fp8,
    "moe_fp8_blocks": _moe_fp8_blocks,
    "scaled_matmul_blocks": _scaled_matmul_blocks,
    "scaled_matmul_int8": _scaled_matmul_int8,
    "scaled_matmul_mxfp4": _scaled_matmul_mxfp4,
}


def peer() -> AiterPeer:
    return AiterPeer()
