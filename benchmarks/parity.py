#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Accuracy of our kernels beside PyTorch's own, both against float64, over many shapes, layouts and dtypes.

    python benchmarks/parity.py --against pytorch --op matmul [--target gfx950] [--json]

--op also takes what benchmarks/parity_rows.py holds: layer_norm, rms_norm, rotary.

Every case runs with the simulator's checks on: results and registers hold NaN until they are written. Exit code 1 when
a case misses the bar of hipkittens/_accuracy.py or an integer-valued case is not bit-exact.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import hipkittens
from hipkittens._accuracy import BAR, compare

TARGETS = ("gfx942", "gfx950")
LAYOUTS = ("nn", "nt", "tn", "tt")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

# m, n, k: single rows and columns, primes, multiples of a tile and one off them, long and short k
SHAPES = (
    (1, 1, 1), (1, 1, 4099), (1, 128, 64), (128, 1, 64), (2, 3, 5), (7, 13, 17), (16, 16, 16), (31, 33, 63),
    (32, 32, 32), (63, 65, 31), (64, 64, 64), (64, 64, 72), (65, 63, 129), (96, 160, 40), (127, 129, 65), (128, 128, 128),
    (129, 127, 130), (1, 512, 512), (5, 300, 1000), (256, 256, 64), (255, 257, 100), (256, 128, 520), (17, 1024, 96),
    (192, 320, 256), (40, 40, 2048), (300, 200, 7), (257, 130, 1), (384, 96, 333),
)  # fmt: skip
BATCHED = (
    ((3,), (3,), 33, 40, 24),
    ((2, 3), (3,), 16, 48, 65),
    ((4,), (1,), 64, 64, 64),
    ((2, 2), (2, 2), 9, 70, 31),
)


@dataclass(frozen=True)
class Case:
    target: str
    m: int
    n: int
    k: int
    layout: str = "nn"
    dtype: str = "bf16"
    out: str = "bf16"
    bias: bool = False
    values: str = "normal"  # integers: every product and sum is exact in float32
    batch_a: tuple[int, ...] = ()
    batch_b: tuple[int, ...] = ()
    gap: int = 0  # elements between the end of a row and the next, and before the first
    gradient: bool = False

    def __str__(self) -> str:
        parts = [f"{self.m}x{self.n}x{self.k}", self.layout, f"{self.dtype}->{self.out}"]
        parts += (
            ["bias"] * self.bias + ["integers"] * (self.values == "integers") + ["gradient"] * self.gradient
        )
        if self.batch_a or self.batch_b:
            parts.append(f"batch{list(self.batch_a)}x{list(self.batch_b)}".replace(" ", ""))
        if self.gap:
            parts.append(f"gap{self.gap}")
        return "_".join(parts)


def cases(targets: tuple[str, ...] = TARGETS) -> Iterator[Case]:
    """Every layout for every shape, with the other properties rotating through, so that all pairs of them occur."""
    for target in targets:
        for number, (m, n, k) in enumerate(SHAPES):
            for turn, layout in enumerate(LAYOUTS):
                for dtype in ("bf16", "f16"):
                    step = number + turn + (dtype == "f16")
                    out = (dtype, "f32", dtype, "f16" if dtype == "bf16" else "bf16")[step % 4]
                    yield Case(
                        target,
                        m,
                        n,
                        k,
                        layout,
                        dtype,
                        out,
                        bias=step % 3 == 0,
                        gap=(0, 0, 3, 8)[(step // 2) % 4],
                    )
            yield Case(
                target, m, n, k, LAYOUTS[number % 4], ("bf16", "f16")[number % 2], "f32", values="integers"
            )
        for turn, (batch_a, batch_b, m, n, k) in enumerate(BATCHED):
            for layout in LAYOUTS:
                dtype = ("bf16", "f16")[turn % 2]
                yield Case(
                    target, m, n, k, layout, dtype, dtype, turn % 2 == 0, batch_a=batch_a, batch_b=batch_b
                )
        for number, (m, n, k) in enumerate(SHAPES[4:20:3]):
            dtype = ("bf16", "f16")[number % 2]
            yield Case(target, m, n, k, LAYOUTS[number % 4], dtype, dtype, bias=True, gradient=True)


def matrix(
    generator: torch.Generator, case: Case, batch: tuple[int, ...], rows: int, columns: int, transposed: bool
):
    """rows x columns values, stored transposed or not, inside a larger buffer when the case has a gap."""
    shape = (*batch, columns, rows) if transposed else (*batch, rows, columns)
    if case.values == "integers":
        values = torch.randint(-4, 5, shape, generator=generator).to(DTYPES[case.dtype])
    else:
        values = torch.randn(shape, generator=generator).to(DTYPES[case.dtype])
    if case.gap:
        buffer = torch.full((*shape[:-1], shape[-1] + case.gap), float("nan"), dtype=values.dtype).flatten()
        buffer = torch.cat([torch.full((case.gap,), float("nan"), dtype=values.dtype), buffer])
        wide = buffer[case.gap :].view(*shape[:-1], shape[-1] + case.gap)
        wide[..., : shape[-1]] = values
        values = wide[..., : shape[-1]]
    return values.mT if transposed else values


def run(case: Case) -> list[dict]:
    """One row per result compared: the product, and in a gradient case the three gradients."""
    generator = torch.Generator().manual_seed(1234)
    a = matrix(generator, case, case.batch_a, case.m, case.k, case.layout[0] == "t")
    b = matrix(generator, case, case.batch_b, case.k, case.n, case.layout[1] == "t")
    out = DTYPES[case.out]
    bias = torch.randn(case.n, generator=generator).to(a.dtype) if case.bias else None
    if case.gradient:
        return gradient_rows(case, generator, a, b, bias)
    with hipkittens.simulate(case.target, checks=True):
        ours = hipkittens.matmul(a, b, bias=bias, out_dtype=out)
    reference = a.double() @ b.double()
    # PyTorch gets dense copies: with an odd k its own bf16 product reads past the rows' ends into the gaps, NaN and all.
    a, b = a.contiguous(), b.contiguous()
    # In the same dtypes: it multiplies 16-bit inputs into their own dtype, or float32 ones into float32.
    theirs = torch.matmul(a, b) if out == a.dtype and bias is None else torch.matmul(a.float(), b.float())
    if bias is not None:
        reference = reference + bias.double()
        theirs = (
            torch.addmm(bias, a, b) if out == a.dtype and a.dim() == b.dim() == 2 else theirs + bias.float()
        )
    magnitude = (a.double().abs() @ b.double().abs()).max().item()
    if case.values == "integers":
        exact = torch.equal(ours.double(), reference)
        ratio = 0.0 if exact else float("inf")
        return [
            {"op": "matmul", "target": case.target, "case": str(case), "ratio_max": ratio, "ratio_rms": ratio}
        ]
    return [row("matmul", case, ours, theirs.to(out), reference, magnitude)]


def gradient_rows(case: Case, generator: torch.Generator, a, b, bias) -> list[dict]:
    weight = torch.randn(case.m, case.n, generator=generator).to(a.dtype)

    def gradients(product, dtype):
        leaves = [value.detach().to(dtype).requires_grad_() for value in (a, b, bias)]
        return torch.autograd.grad(product(*leaves), leaves, weight.to(dtype))

    with hipkittens.simulate(case.target, checks=True):
        ours = gradients(lambda a, b, bias: hipkittens.matmul(a, b, bias=bias), a.dtype)
    theirs = gradients(lambda a, b, bias: torch.addmm(bias, a, b), a.dtype)
    reference = gradients(lambda a, b, bias: torch.addmm(bias, a, b), torch.float64)
    magnitudes = (
        weight.double().abs() @ b.double().abs().mT,
        a.double().abs().mT @ weight.double().abs(),
        weight.double().abs().sum(0),
    )
    return [
        row(f"matmul.grad_{name}", case, mine, other, exact, magnitude.max().item())
        for name, mine, other, exact, magnitude in zip(
            ("a", "b", "bias"), ours, theirs, reference, magnitudes, strict=True
        )
    ]


def row(op: str, case: Case, ours, theirs, reference, magnitude: float) -> dict:
    result = compare(ours, theirs, reference, magnitude)
    return {
        "op": op,
        "target": case.target,
        "case": str(case),
        "ratio_max": result.ratio_max,
        "ratio_rms": result.ratio_rms,
    }


def worst_of(rows: list[dict]) -> float:
    return max(max(row["ratio_max"], row["ratio_rms"]) for row in rows)


def main() -> int:
    import parity_rows  # beside this file

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", choices=["pytorch"], default="pytorch")
    parser.add_argument("--op", choices=["matmul", *parity_rows.OPERATIONS], default="matmul")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    targets = (arguments.target,) if arguments.target else TARGETS
    if arguments.op == "matmul":
        chosen, run_case = list(cases(targets)), run
    else:
        chosen, run_case = list(parity_rows.cases(arguments.op, targets)), parity_rows.run
    rows: list[dict] = []
    for number, case in enumerate(chosen):
        rows += run_case(case)
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{len(chosen)}", end="", file=sys.stderr, flush=True)
    worst = worst_of(rows)
    if arguments.json:
        json.dump({"cases": len(chosen), "worst": worst, "rows": rows}, sys.stdout, indent=1)
        print()
    else:
        for entry in sorted(rows, key=lambda entry: -max(entry["ratio_max"], entry["ratio_rms"]))[:20]:
            print(
                f"{entry['op']:<18} {entry['target']}  max {entry['ratio_max']:5.2f}  rms {entry['ratio_rms']:5.2f}  {entry['case']}"
            )
        print(
            f"{len(chosen)} cases, {len(rows)} results; worst ratio of our error to PyTorch's: {worst:.2f} (bar {BAR})"
        )
    return int(worst > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
