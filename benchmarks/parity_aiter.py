# SPDX-License-Identifier: MIT
"""Our results beside those of AITER's own code objects, run in the same simulator on the same inputs.

    python benchmarks/parity.py --against aiter [--target gfx950] [--json]

Every row has both errors against float64 (root mean square, over that of the reference) and both counts of wave
instructions. AITER's objects come from its installed wheel; see tests/oracles/aiter.

The bar is 1.1 times AITER's error. Both round the same numbers to the same formats once, so the errors are samples of
one distribution: over the 10^4 and more elements of a result their root mean squares agree within a few per cent. One
more rounding of a result, or of what it is summed from, costs 40 per cent and would show. Products stay in float32 on
both sides: there the order of the sums is all that differs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import hipkittens

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests import simulated_device
from tests.oracles.aiter import attention_backward, attention_forward, gemm
from tests.oracles.aiter.launch import relative_error

BAR = 1.1
TARGETS = ("gfx942", "gfx950")


@dataclasses.dataclass(frozen=True)
class Case:
    op: str
    target: str
    name: str
    run: Callable[[Case], list[dict[str, Any]]]
    shape: tuple[int, ...]
    causal: bool = False
    slow: bool = False

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) + "_causal" * self.causal


def _counted(action: Callable[[], Any]) -> tuple[Any, int]:
    library = simulated_device.library()
    before = library.hipkittens_instructions_so_far()
    return action(), library.hipkittens_instructions_so_far() - before


def _row(case: Case, op: str, ours, theirs, reference, instructions: tuple[int, int]):
    errors = relative_error(ours, reference), relative_error(theirs, reference)
    return {
        "op": op,
        "target": case.target,
        "case": str(case),
        "object": case.name,
        "our_error": errors[0],
        "aiter_error": errors[1],
        "ratio": errors[0] / errors[1],
        "our_instructions": instructions[0],
        "aiter_instructions": instructions[1],
    }


def _normal(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def run_gemm(case: Case) -> list[dict[str, Any]]:
    m, n, k, splits = case.shape
    a, b = _normal(m, k, seed=1), _normal(n, k, seed=2)
    with hipkittens.simulate(case.target):
        ours, count = _counted(lambda: hipkittens.matmul(a, b.mT, out_dtype=torch.float32))
    theirs = gemm.bf16(case.name, m, n, k, splits, values=(a, b))
    counts = count, theirs.run.report.instructions
    return [_row(case, "gemm", ours, theirs.out, a.double() @ b.double().mT, counts)]


def _attention_inputs(case: Case):
    batch, queries, keys, heads, kv_heads = case.shape
    shapes = (queries, heads), (keys, kv_heads), (keys, kv_heads), (queries, heads)
    return [_normal(batch, length, count, 128, seed=seed) for seed, (length, count) in enumerate(shapes)]


def run_forward(case: Case) -> list[dict[str, Any]]:
    *inputs, _ = _attention_inputs(case)
    with hipkittens.simulate(case.target):
        ours, count = _counted(lambda: hipkittens.attention(*inputs, causal=case.causal))
    theirs = attention_forward.run_batch(case.name, *case.shape, values=inputs)
    seen = attention_forward.visible(*case.shape[1:3], "causal_br" if case.causal else "none")
    reference, _ = attention_forward.forward_reference(*inputs, 1 / math.sqrt(128), seen)
    counts = count, theirs.run.report.instructions
    return [_row(case, "attention forward", ours, theirs.out, reference, counts)]


def run_backward(case: Case) -> list[dict[str, Any]]:
    """AITER gets the logarithms and row sums that its other kernels make from float64; the sums over a group of query
    heads, which its host does in PyTorch, and the rounding of dQ are done here, once, in PyTorch."""
    *inputs, d_out = _attention_inputs(case)
    leaves = [value.detach().requires_grad_() for value in inputs]
    with hipkittens.simulate(case.target):
        out = hipkittens.attention(*leaves, causal=case.causal)
        ours, count = _counted(lambda: torch.autograd.grad(out, leaves, d_out))
    theirs = attention_backward.run_batch(case.name, *case.shape, values=(*inputs, d_out))
    counts = count, sum(run.report.instructions for run in theirs.runs)
    kv_heads = case.shape[-1]

    def grouped(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.unflatten(2, (kv_heads, -1)).sum(3)

    seen = attention_forward.visible(*case.shape[1:3], "causal_br" if case.causal else "none")
    _, _, dq, dk, dv = attention_backward.backward_reference(*inputs, d_out, 1 / math.sqrt(128), seen)
    rows = []
    for index, (name, reference) in enumerate({"dq": dq, "dk": grouped(dk), "dv": grouped(dv)}.items()):
        other = theirs.gradients[name].float()
        other = (other if name == "dq" else grouped(other)).bfloat16()
        rows.append(_row(case, f"attention backward {name}", ours[index], other, reference, counts))
    return rows


def cases(targets: tuple[str, ...] = TARGETS) -> Iterator[Case]:
    for target in targets:
        for tile, *shape in (
            (32, 100, 192, 256, 1),
            (64, 256, 256, 512, 1),
            (96, 192, 320, 1024, 1),
            (48, 96, 128, 2048, 4),
        ):
            name = f"{target}/bf16gemm/bf16gemm_outf32_tn_{tile}x64_pf3.co"
            yield Case("gemm", target, name, run_gemm, tuple(shape))
        shapes = (1, 256, 256, 2, 2), (1, 300, 450, 4, 2), (2, 200, 333, 4, 1), (1, 1024, 1024, 2, 1)
        for causal in (False, True):
            mask = "_causal" * causal
            where = "gfx942/fmha_v3_fwd/MI300/" if target == "gfx942" else "gfx950/fmha_v3_fwd/"
            forward = f"{where}fwd_hd128_bf16{mask}{'_rtne' if target == 'gfx942' else ''}.co"
            mask = "_causal_br" * causal
            backward = f"{target}/fmha_v3_bwd/bwd_hd128_bf16{mask}_a32{'_rtne' if target == 'gfx942' else ''}_psskddv.co"
            for shape in shapes:
                slow = shape[1] == 1024
                yield Case("attention forward", target, forward, run_forward, shape, causal, slow)
                yield Case("attention backward", target, backward, run_backward, shape, causal, slow)


def main(arguments) -> int:
    """What parity.py --against aiter does, with its parsed arguments."""
    rows = []
    for case in cases((arguments.target,) if arguments.target else TARGETS):
        rows += case.run(case)
    worst = max(row["ratio"] for row in rows)
    if arguments.json:
        json.dump({"rows": rows, "worst": worst, "bar": BAR}, sys.stdout, indent=1)
        print()
    else:
        print(table(rows))
        print(f"{len(rows)} results; worst ratio of our error to AITER's: {worst:.2f} (bar {BAR})")
    return int(not worst <= BAR)


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| op | target | case | our error | AITER's error | ratio | our instructions | AITER's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['op']} | {row['target']} | {row['case']} | {row['our_error']:.3g} | {row['aiter_error']:.3g} "
        f"| {row['ratio']:.2f} | {row['our_instructions']} | {row['aiter_instructions']} |"
        for row in rows
    ]
    return "\n".join(lines)
