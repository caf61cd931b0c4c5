# SPDX-License-Identifier: MIT
"""The Triton kernels of `hipkittens bench --compare triton`: plain kernels (tests/oracles/triton_kernels.py), compiled by Triton for
the target with a few tiles each, of which the fastest counts; kernels of AITER's wheel, with the tiles that it selects; and
flash-linear-attention's, which are in peer_fla.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import peer_fla

from hipkittens.integrations import triton as simulated
from hipkittens.operations._expert_sort_checks import EXPERT_BLOCK, drawn_experts
from hipkittens.profiling.peers import Candidate, Unavailable
from hipkittens.profiling.problems import Problem
from hipkittens.quantization import dtype_of
from tests.oracles import triton_kernels as kernels
from tests.oracles.aiter import triton as aiter_triton

# BLOCK_M, BLOCK_N, BLOCK_K, warps
_GEMM = ((64, 64, 64, 4), (128, 128, 64, 4), (256, 256, 64, 8))
# BLOCK_M, BLOCK_N, warps
_ATTENTION = ((128, 64, 4), (256, 64, 8))
_MOST_COLUMNS = 16384


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


class TritonPeer:
    def modelled(self, problem: Problem, target: str) -> Iterator[Candidate]:
        if problem.operation in peer_fla.OPERATIONS:
            yield from peer_fla.modelled(problem, target)
            return
        for candidate in _candidates(problem, "cpu"):

            def on_the_simulator(call: Callable[[], object] = candidate.call) -> None:
                with simulated.active():
                    call()

            yield Candidate(candidate.name, on_the_simulator)

    def measured(self, problem: Problem) -> Callable[[], object]:
        if problem.operation in peer_fla.OPERATIONS:
            return peer_fla.measured(problem)
        from triton.testing import do_bench

        return min(_candidates(problem, "cuda"), key=lambda candidate: do_bench(candidate.call)).call


def _candidates(problem: Problem, device: str) -> list[Candidate]:
    e = problem.extents
    if problem.operation == "gemm":
        return _gemm(problem, device, e["M"], e["N"], e["K"])
    if problem.operation in ("scaled_matmul_rows", "scaled_matmul_int8"):
        return _scaled_matmul_rows(problem, device, e["M"], e["N"], e["K"])
    if problem.operation == "scaled_matmul_blocks":
        return _scaled_matmul_blocks(device, e["M"], e["N"], e["K"])
    if problem.operation == "scaled_matmul_mxfp4":
        return _scaled_matmul_mxfp4(device, e["M"], e["N"], e["K"])
    if problem.operation == "attention":
        if e["H"] != e["K"] or e["N"] != e["L"] or e["D"] & (e["D"] - 1):
            raise Unavailable(
                "the Triton kernel here has one key head for each query head, and as many keys as queries"
            )
        return _attention(problem, device, e["B"] * e["H"], e["N"], e["D"])
    if problem.operation == "layer_norm":
        return _layer_norm(problem, device, e["rows"], e["columns"])
    if problem.operation == "rms_norm":
        return _rms_norm(problem, device, e["rows"], e["columns"])
    if problem.operation == "layer_norm_backward":
        return _layer_norm_backward(problem, device, e["rows"], e["columns"])
    if problem.operation == "rotary":
        return _rotary(problem, device, e["B"], e["N"], e["H"], e["D"])
    if problem.operation == "topk":
        return _topk(device, e["rows"], e["columns"], e["k"])
    if problem.operation == "softmax":
        return _softmax(problem, device, e["rows"], e["columns"])
    if problem.operation == "router":
        return _router(device, e["tokens"], e["experts"], e["k"])
    if problem.operation == "router_top1":
        return _router_top1(problem, device, e["tokens"], e["features"], e["experts"])
    if problem.operation == "expert_sort":
        return _expert_sort(device, e["tokens"], e["experts"], e["k"])
    raise Unavailable(f"there is no Triton kernel of {problem.operation} here")


def _gemm(problem: Problem, device: str, m: int, n: int, k: int) -> list[Candidate]:
    a, b = problem.tensor(device, m, k), problem.tensor(device, k, n)
    out = torch.empty(m, n, dtype=torch.bfloat16, device=device)

    def candidate(block_m: int, block_n: int, block_k: int, warps: int) -> Candidate:
        def call() -> None:
            kernels.matmul[_blocks(m, block_m), _blocks(n, block_n)](
                a,
                b,
                out,
                m,
                n,
                k,
                k,
                n,
                n,
                BLOCK_M=block_m,
                BLOCK_N=block_n,
                BLOCK_K=block_k,
                num_warps=warps,
            )

        return Candidate(f"{block_m}x{block_n}x{block_k}, {warps} warps", call)

    return [candidate(*tile) for tile in _GEMM]


def _codes(device: str, *shape: int) -> torch.Tensor:
    """Of e4m3 of the target that the simulator is on: nothing here takes longer or shorter for what it reads."""
    return torch.zeros(shape, device=device).to(dtype_of("fp8", torch.device(device)))


def _scaled_matmul_rows(problem: Problem, device: str, m: int, n: int, k: int) -> list[Candidate]:
    """AITER's gemm_a8w8."""
    product = aiter_triton.module("gemm_a8w8").gemm_a8w8
    scale_a, scale_b = torch.ones(m, 1, device=device), torch.ones(1, n, device=device)

    def call() -> None:
        if problem.operation == "scaled_matmul_int8":
            a, b = (torch.zeros(rows, k, dtype=torch.int8, device=device) for rows in (m, n))
        else:
            a, b = (_codes(device, rows, k) for rows in (m, n))
        product(a, b, scale_a, scale_b)

    return [Candidate("AITER's gemm_a8w8", call)]


_scaled_matmul_int8 = _scaled_matmul_rows


def _scaled_matmul_blocks(device: str, m: int, n: int, k: int) -> list[Candidate]:
    """AITER's gemm_a8w8_blockscale."""
    product = aiter_triton.module("gemm_a8w8_blockscale").gemm_a8w8_blockscale
    k_blocks = _blocks(k, 128)
    scale_a, scale_b = (
        torch.ones(m, k_blocks, device=device),
        torch.ones(_blocks(n, 128), k_blocks, device=device),
    )
    return [
        Candidate(
            "AITER's gemm_a8w8_blockscale",
            lambda: product(_codes(device, m, k), _codes(device, n, k), scale_a, scale_b),
        )
    ]


def _scaled_matmul_mxfp4(device: str, m: int, n: int, k: int) -> list[Candidate]:
    """AITER's gemm_afp4wfp4."""
    product = aiter_triton.module("gemm_afp4wfp4").gemm_afp4wfp4
    codes = [torch.zeros(rows, k // 2, dtype=torch.uint8, device=device) for rows in (m, n)]
    scales = [torch.full((rows, k // 32), 127, dtype=torch.uint8, device=device) for rows in (m, n)]
    return [Candidate("AITER's gemm_afp4wfp4", lambda: product(*codes, *scales))]


def _attention(problem: Problem, device: str, heads: int, n: int, size: int) -> list[Candidate]:
    q, k, v, out = (problem.tensor(device, heads, n, size) for _ in range(4))

    def candidate(block_m: int, block_n: int, warps: int) -> Candidate:
        def call() -> None:
            kernels.attention[_blocks(n, block_m), heads](
                q, k, v, out, size**-0.5, n,
                HEAD=size, BLOCK_M=block_m, BLOCK_N=block_n, CAUSAL=problem.causal, num_warps=warps,
            )  # fmt: skip

        return Candidate(f"{block_m}x{block_n}, {warps} warps", call)

    return [candidate(*tile) for tile in _ATTENTION]


def _statistics(problem: Problem, names: str) -> str:
    """What the kernel writes beside y, as ours does at the same shape."""
    return f"{names} written" if problem.training else f"no {names} written"


def _layer_norm(problem: Problem, device: str, rows: int, columns: int) -> list[Candidate]:
    x, out = (problem.tensor(device, rows, columns) for _ in range(2))
    weight, bias = (problem.tensor(device, columns) for _ in range(2))
    mean, rstd = (torch.empty(rows, device=device) for _ in range(2))
    block = min(4096, 1 << (columns - 1).bit_length())

    def candidate(warps: int) -> Candidate:
        def call() -> None:
            kernels.layer_norm[(rows,)](
                x, weight, bias, out, mean, rstd, columns, 1e-5,
                BLOCK=block, STATISTICS=problem.training, num_warps=warps,
            )  # fmt: skip

        return Candidate(
            f"{block} columns, {warps} warps, {_statistics(problem, 'mean and 1/deviation')}", call
        )

    return [candidate(warps) for warps in (4, 8)]


def _rms_norm(problem: Problem, device: str, rows: int, columns: int) -> list[Candidate]:
    x, out, weight = (
        problem.tensor(device, *shape) for shape in ((rows, columns), (rows, columns), (columns,))
    )
    rstd = torch.empty(rows, device=device)
    block = 1 << (columns - 1).bit_length()
    if block > _MOST_COLUMNS:
        raise Unavailable(f"the Triton kernel here has a row in registers: up to {_MOST_COLUMNS} columns")

    def candidate(warps: int) -> Candidate:
        def call() -> None:
            kernels.rms_norm[(rows,)](
                x, weight, out, rstd, columns, 1e-5,
                BLOCK=block, STATISTICS=problem.training, num_warps=warps,
            )  # fmt: skip

        return Candidate(f"{block} columns, {warps} warps, {_statistics(problem, '1/rms')}", call)

    return [candidate(warps) for warps in (1, 4, 8)]


def _rotary(problem: Problem, device: str, batch: int, n: int, heads: int, size: int) -> list[Candidate]:
    if heads & (heads - 1) or size & (size - 1):
        raise Unavailable("the Triton kernel here wants heads and head size to be powers of two")
    x, out = (problem.tensor(device, batch, n, heads, size) for _ in range(2))
    cos, sin = (torch.zeros(n, size // 2, device=device) for _ in range(2))

    def candidate(warps: int) -> Candidate:
        def call() -> None:
            kernels.rotary[(batch * n,)](x, cos, sin, out, n, HEADS=heads, HALF=size // 2, num_warps=warps)

        return Candidate(f"a token, {warps} warps", call)

    rows = batch * n * heads

    def of_heads(block: int, warps: int) -> Candidate:
        def call() -> None:
            kernels.rotary_heads[(_blocks(rows, block),)](
                x, cos, sin, out, rows, n, heads, HALF=size // 2, BLOCK=block, num_warps=warps
            )

        return Candidate(f"{block} heads, {warps} warps", call)

    return [*(candidate(warps) for warps in (1, 4)), of_heads(16, 1), of_heads(32, 4)]


def _layer_norm_backward(problem: Problem, device: str, rows: int, columns: int) -> list[Candidate]:
    dy, x, dx = (problem.tensor(device, rows, columns) for _ in range(3))
    weight, dweight, dbias = (problem.tensor(device, columns) for _ in range(3))
    mean, rstd = (torch.empty(rows, device=device) for _ in range(2))
    block = 1 << (columns - 1).bit_length()
    if block > _MOST_COLUMNS:
        raise Unavailable(f"the Triton kernel here has a row in registers: up to {_MOST_COLUMNS} columns")

    def candidate(programs: int, warps: int) -> Candidate:
        partial = [torch.empty(programs, columns, device=device) for _ in range(2)]

        def call() -> None:
            kernels.layer_norm_backward[(programs,)](
                dy, x, weight, mean, rstd, dx, *partial, rows, columns, BLOCK=block, num_warps=warps
            )
            for sums, result in zip(partial, (dweight, dbias), strict=True):
                kernels.sum_rows[(_blocks(columns, 64),)](
                    sums, result, programs, columns, BLOCK_ROWS=32, BLOCK=64, num_warps=4
                )

        return Candidate(f"{programs} programs, {warps} warps", call)

    return [candidate(programs, 4) for programs in (512, 1024)]


def _topk(device: str, rows: int, columns: int, k: int) -> list[Candidate]:
    """AITER's, which chooses one pass or two by itself. Its time does not depend on the values."""
    kernels_of_aiter = aiter_triton.module("topk")
    x = torch.zeros(rows, columns, dtype=torch.bfloat16, device=device)
    block = kernels_of_aiter._pick_block(columns, k) if columns <= kernels_of_aiter.MAX_TINY_ROW else 1
    if block & (block - 1):
        raise Unavailable(f"AITER's kernel makes blocks of {block} for k {k}, and Triton wants powers of two")
    return [Candidate("AITER's topk", lambda: kernels_of_aiter.topk(x, k))]


def _softmax(problem: Problem, device: str, rows: int, columns: int) -> list[Candidate]:
    """AITER's."""
    x, softmax = problem.tensor(device, rows, columns), aiter_triton.module("softmax").softmax
    return [Candidate("AITER's softmax", lambda: softmax(x))]


def _router(device: str, tokens: int, experts: int, k: int) -> list[Candidate]:
    """AITER's, whose softmax is over the chosen experts, as ours is with `renormalize`. It also writes a bit for each expert."""
    if k & (k - 1):
        raise Unavailable(f"AITER's kernel wants k to be a power of two, not {k}")
    logits = torch.zeros(tokens, experts, dtype=torch.bfloat16, device=device)
    route = aiter_triton.module("moe_routing.topk").topk
    return [Candidate("AITER's moe_routing.topk", lambda: route(logits, k))]


def _router_top1(problem: Problem, device: str, tokens: int, features: int, experts: int) -> list[Candidate]:
    """AITER's, at the tiles that it has for these shapes. The one expert follows, as with shared=0 of ours."""
    if tokens % 32 or features % 256:
        raise Unavailable(
            "AITER's kernel reads and writes whole tiles: it wants multiples of 32 tokens and 256 features"
        )
    x, w = problem.tensor(device, tokens, features), problem.tensor(device, features, experts)
    route = aiter_triton.module("moe_routing_sigmoid_top1_fused").routing_sigmoid_top1
    return [Candidate("AITER's routing_sigmoid_top1", lambda: route(x, w, 1))]


def _expert_sort(device: str, tokens: int, experts: int, k: int) -> list[Candidate]:
    """AITER's, of ids alone, with the memory of its results allocated before."""
    if experts & (experts - 1):
        raise Unavailable(f"AITER's kernel wants the experts to be a power of two, not {experts}")
    ids = drawn_experts(tokens, experts, k, device)
    sort = aiter_triton.module("moe_align_block_size").moe_align_block_size_triton
    places = ids.numel() + experts * (EXPERT_BLOCK - 1)
    entries = torch.full((places,), ids.numel(), dtype=torch.int32, device=device)
    blocks = torch.zeros(_blocks(places, EXPERT_BLOCK), dtype=torch.int32, device=device)
    total = torch.zeros(1, dtype=torch.int32, device=device)
    return [
        Candidate(
            "AITER's moe_align_block_size", lambda: sort(ids, experts, EXPERT_BLOCK, entries, blocks, total)
        )
    ]


def peer() -> TritonPeer:
    return TritonPeer()
