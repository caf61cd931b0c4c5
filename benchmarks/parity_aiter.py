# SPDX-License-Identifier: MIT
"""Compares our results with those of AITER's own code objects, run in the same simulator on the same inputs.

    python benchmarks/parity.py --against aiter [--target gfx950] [--json | --markdown]

Every row has both errors against float64 (root mean square, over that of the reference) and both counts of wave
instructions. AITER's objects come from its installed wheel; see tests/oracles/aiter.

The bar is 1.1 times AITER's error. Both round the same numbers to the same formats once, so the errors are samples of
one distribution: over the 10^4 and more elements of a result their root mean squares agree within a few per cent. One
additional rounding of a result, or of the terms of its sum, costs 40 per cent and would be visible. Products stay in float32 on
both sides, where only the order of the sums differs.
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
from tests.oracles.aiter import attention_backward, attention_forward, decode, gemm, wheel
from tests.oracles.aiter.launch import relative_error

BAR = 1.1
# Kernels whose results do not match their inputs, and why (tests/oracles/test_aiter_doubtful.py): not used as a reference.
WRONG = ("mla_a8w8_qh16_qseqlen2_gqaratio16", "gfx950/mla/mla_a8w8_qh16_qseqlen4_gqaratio16")
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


def _beside(case: Case, ours: Callable[[], torch.Tensor], theirs: gemm.Result | decode.Result, out=None):
    """The row of one result, compared with AITER's. out: theirs, if it is not what the object has stored."""
    with hipkittens.simulate(case.target):
        own, count = _counted(ours)
    counts = count, theirs.run.report.instructions
    return [_row(case, case.op, own, theirs.out if out is None else out, theirs.reference, counts)]


def run_gemm(case: Case) -> list[dict[str, Any]]:
    m, n, k, splits = case.shape
    a, b = _normal(m, k, seed=1), _normal(n, k, seed=2)
    theirs = gemm.bf16(case.name, m, n, k, splits, values=(a, b))
    return _beside(case, lambda: hipkittens.matmul(a, b.mT, out_dtype=torch.float32), theirs)


def run_int8(case: Case) -> list[dict[str, Any]]:
    m, n, k, splits = case.shape
    a, b, scale_a, scale_b, bias = gemm.int8_operands(m, n, k)
    theirs = gemm.int8(case.name, m, n, k, splits)
    return _beside(case, lambda: hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b, bias=bias[0]), theirs)


def run_float4(case: Case) -> list[dict[str, Any]]:
    a, b, scale_a, scale_b = gemm.float4_operands(*case.shape)
    theirs = gemm.float4(case.name, *case.shape)
    return _beside(
        case, lambda: hipkittens.scaled_matmul(a, b.t(), scale_a, scale_b.t(), recipe="1x32"), theirs
    )


def run_block_scaled(case: Case) -> list[dict[str, Any]]:
    """The objects of gfx950 return bfloat16, those of gfx942 float16."""
    a, b, scale_a, scale_b, _ = gemm.block_scaled_operands(case.target, *case.shape)
    function = gemm.block_scaled_gfx942 if case.target == "gfx942" else gemm.block_scaled_gfx950
    theirs = function(case.name, *case.shape)
    recipe, dtype = ("1x128", "128x128"), theirs.out.dtype
    return _beside(
        case,
        lambda: hipkittens.scaled_matmul(a, b.t(), scale_a.T, scale_b.T, recipe=recipe, out_dtype=dtype),
        theirs,
    )


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
    """AITER's kernel is passed the logarithms and row sums that its other kernels compute, here from float64. The sums over a group
    of query heads, which its host code does in PyTorch, and the rounding of dQ are done here, once, in PyTorch."""
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


def run_paged(case: Case) -> list[dict[str, Any]]:
    """shape: key heads, query heads per key head, new tokens of each sequence (0: one), block size, then the sequences' numbers of keys."""
    kv_heads, group, tokens, block, *contexts = case.shape
    arguments = contexts, kv_heads, group, tokens, block
    problem = decode.paged_problem(case.name, *arguments)
    scales = dict(zip(("k_scale", "v_scale"), problem.scales, strict=False))

    def ours():
        return hipkittens.attention_paged(
            problem.q, *problem.caches, problem.table, torch.tensor(contexts, dtype=torch.int32),
            max_seqlen_q=problem.tokens, causal=problem.masked, cache_layout="asm", **scales,
        )  # fmt: skip

    return _beside(case, ours, decode.paged(case.name, *arguments))


def run_latent(case: Case) -> list[dict[str, Any]]:
    """shape: heads, new tokens of each sequence, splits, then the sequences' numbers of keys. 8-bit queries are exact in bfloat16, and
    their factor is part of the scale."""
    heads, tokens, splits, *lengths = case.shape
    problem = decode.latent_problem(case.name, lengths, heads, tokens)

    def ours():
        return hipkittens.attention_mla(
            problem.q.bfloat16(), problem.kv, problem.table, torch.tensor(lengths, dtype=torch.int32),
            max_seqlen_q=tokens, scale=problem.q_scale / math.sqrt(decode.LATENT), table_starts=problem.starts[:-1],
            kv_scale=None if problem.kv.itemsize == 2 else problem.kv_scale,
        )  # fmt: skip

    theirs = decode.latent(case.name, lengths, heads, tokens, splits)
    return _beside(case, ours, theirs, theirs.out.bfloat16())


def run_prefill(case: Case) -> list[dict[str, Any]]:
    """shape: heads, then the sequences' numbers of tokens."""
    heads, *lengths = case.shape
    problem = decode.prefill_problem(lengths, heads)

    def ours():
        return hipkittens.attention_mla(
            problem.q, problem.kv, problem.table, torch.tensor(lengths, dtype=torch.int32), problem.starts,
            max(lengths), scale=1 / math.sqrt(decode.LATENT), table_starts=problem.starts[:-1],
        )  # fmt: skip

    return _beside(case, ours, decode.latent_prefill(case.name, lengths, heads))


def decoding_cases(target: str) -> Iterator[Case]:
    """Every object of pa and of mla that the simulator's wheel tests run, except persistent ones (_ps), whose work lists another kernel
    makes, and those in WRONG. By default the first of each kind of cache."""
    seen = set()
    prefixes = f"{target}/pa/", f"{target}/mla/"
    for name in sorted(each for each in wheel.objects() if each.startswith(prefixes)):
        if "_ps" in name or any(each in name for each in WRONG):
            continue
        sizes: tuple[int, ...]
        if "/pa/" in name:
            contexts, *others = decode.paged_arguments(name)
            sizes, run, op = (*others, *contexts), run_paged, "paged attention"
        elif "_pfl_" in name:
            lengths, heads = decode.prefill_arguments(name)
            sizes, run, op = (heads, *lengths), run_prefill, "latent attention, prefill"
        else:
            sizes, run, op = (decode.heads_of(name), decode.tokens_of(name)[0], 2, 300, 333), run_latent, "latent attention"  # fmt: skip
        kind = op, "fp16" in name, _stored(name)
        yield Case(op, target, name, run, sizes, slow=kind in seen)
        seen.add(kind)


def _shape_of_float4(name: str) -> tuple[int, int, int]:
    rows, columns = gemm.float4_tile(name)
    return max(rows, 100), columns, 1024


def quantised_product_cases(target: str) -> Iterator[Case]:
    """Every object of an 8-bit or 4-bit product; by default the first of each family."""
    families = {
        "i8gemm": ("product", run_int8, lambda name: (200, 256, 512, 1)),
        "f4gemm": ("product", run_float4, _shape_of_float4),
        "f8_block_scale_mi350": ("product", run_block_scaled, lambda name: (200, 512, 768)),
        "flatmm_uk": ("product", run_block_scaled, lambda name: (200, 512, 768)),
    }  # fmt: skip
    for family, (op, run, shape) in families.items():
        names = sorted(
            name for name in wheel.objects() if name.startswith(f"{target}/") and f"/{family}" in name
        )
        for place, name in enumerate(names):
            yield Case(op, target, name, run, shape(name), slow=place > 0)


def cases(targets: tuple[str, ...] = TARGETS) -> Iterator[Case]:
    for target in targets:
        yield from quantised_product_cases(target)
        yield from decoding_cases(target)
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
    """Implements parity.py --against aiter, with its parsed arguments."""
    rows = []
    for case in cases((arguments.target,) if arguments.target else TARGETS):
        rows += case.run(case)
    worst = max(row["ratio"] for row in rows)
    if arguments.json:
        json.dump({"rows": rows, "worst": worst, "bar": BAR}, sys.stdout, indent=1)
        print()
    elif arguments.markdown:
        print(summary(rows))
    else:
        print(table(rows))
        print(f"{len(rows)} results; worst ratio of our error to AITER's: {worst:.2f} (bar {BAR})")
    return int(not worst <= BAR)


# Storage of operands or caches, by parts of objects' names; others have 16 bits.
_STORED = {
    "perTokenI8": "int8, scales of rows",
    "gemm_a8w8": "int8, scales of rows",
    "per1x32Fp4": "MXFP4",
    "f8_block_scale": "fp8, scales of blocks",
    "flatmm": "fp8, scales of blocks",
    "pertokenFp8": "fp8, a scale for each key",
    "pertokenInt8": "int8, a scale for each key",
    "a8w8": "fp8, one scale",
}


def _stored(name: str) -> str:
    return next((kind for part, kind in _STORED.items() if part in name), "16 bits")


def summary(rows: list[dict[str, Any]]) -> str:
    """By operation, storage and target: objects, cases, and the worst ratio of our error to AITER's."""
    lines = [
        "| operation | operands or caches | target | objects | cases | our errors | AITER's | worst ratio |",
        "| --- | --- | --- | ---: | ---: | --- | --- | ---: |",
    ]
    together: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        together.setdefault((row["op"], _stored(row["object"]), row["target"]), []).append(row)
    for (op, stored, target), of in sorted(together.items()):

        def span(name: str, of=of) -> str:
            low, high = (end(row[name] for row in of) for end in (min, max))
            return f"{low:.2g} to {high:.2g}"

        objects, worst = len({row["object"] for row in of}), max(row["ratio"] for row in of)
        lines.append(
            f"| {op} | {stored} | {target} | {objects} | {len(of)} | {span('our_error')} | {span('aiter_error')} | {worst:.2f} |"
        )
    return "\n".join(lines)


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
