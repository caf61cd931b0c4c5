#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs every kernel of the packs at least once with all of the simulator's checkers on.

    python benchmarks/parity_kernels.py [--target gfx950] [--json]

Exit code 1 when a kernel was never launched, a result is not finite (nothing that was not written stays what it was: it
is NaN), or a checker finds something. What the results should be is benchmarks/parity.py's matter.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch

import hipkittens
from hipkittens import _installation, _representative
from hipkittens._pack import Pack

TARGETS = ("gfx942", "gfx950")
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
# batch, m, n, k and whether rows begin anywhere: one for each tile size, and a long k that is split
PRODUCTS = (
    (256, 256, 256, 64, False), (256, 128, 128, 64, False), (1, 64, 64, 64, False), (256, 32, 128, 64, False),
    (1, 60, 60, 61, True), (1, 64, 64, 8192, False),
)  # fmt: skip


def loads(seen: set[tuple[str, str]]) -> None:
    """Adds (target, name) to `seen` whenever the runtime asks for a code object, which is before its first launch."""
    right = Pack.image

    def image(self: Pack, entry: dict[str, Any]) -> bytes:
        seen.add((self.path.stem, entry["name"]))
        return right(self, entry)

    Pack.image = image


def calls() -> Iterator[tuple[str, Any]]:
    """Functions that launch, and return tensors."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, dtype, leaf=False):
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_(leaf)

    def product(batch, m, n, k, anywhere, layout, dtype):
        rows_a, rows_b = ((k, m) if layout[0] == "t" else (m, k)), ((n, k) if layout[1] == "t" else (k, n))
        a, b = (draw(batch, rows, columns + anywhere, dtype=dtype) for rows, columns in (rows_a, rows_b))
        a, b = a[..., : rows_a[1]], b[..., : rows_b[1]]
        return [hipkittens.matmul(a.mT if layout[0] == "t" else a, b.mT if layout[1] == "t" else b)]

    def attention(batch, n, heads, backward, size, dtype, dropout):
        key_heads = 1 if backward else heads  # few: a group's gradients are split
        q, k, v = (
            draw(batch, n, count, size, dtype=dtype, leaf=True) for count in (heads, key_heads, key_heads)
        )
        out = hipkittens.attention(q, k, v, causal=True, dropout_p=dropout)
        if not backward:
            return [out]
        return [out, *torch.autograd.grad(out, (q, k, v), draw(*out.shape, dtype=dtype))]

    def norm(columns, dtype):
        x, weight, bias = (
            draw(*shape, dtype=dtype, leaf=True) for shape in ((2, columns), (columns,), (columns,))
        )
        y = hipkittens.layer_norm(x, weight, bias)
        with torch.no_grad():
            others = [hipkittens.rms_norm(x, weight), hipkittens.layer_norm(x, None)]
        return [*others, y, *torch.autograd.grad(y, (x, weight, bias), draw(2, columns, dtype=dtype))]

    def rotary(dtype):
        angles = torch.arange(8.0)[:, None] * torch.arange(16.0)
        q, k = (draw(1, 8, heads, 32, dtype=dtype) for heads in (2, 1))
        return [
            turned
            for table in (torch.float32, dtype)
            for interleaved in (False, True)
            for turned in hipkittens.rotary_qk(
                q, k, angles.cos().to(table), angles.sin().to(table), interleaved=interleaved
            )
        ]

    for name, dtype in DTYPES.items():
        for columns in (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536):
            yield f"layer_norm {columns} {name}", lambda c=columns, d=dtype: norm(c, d)
        yield f"rotary {name}", lambda d=dtype: rotary(d)
        if name == "f32":
            continue
        for size in (64, 128, 256):
            for dropout in (0.0, 0.2):
                # One tile; keys enough to be split; and, for the large tiles, one for every compute unit.
                for batch, n, heads, backward in ((1, 70, 2, True), (1, 600, 1, False), (40, 130, 8, False)):
                    yield (
                        f"attention {batch}x{n}x{heads}x{size} {name} dropout {dropout}",
                        lambda *i, a=(batch, n, heads, backward, size, dtype, dropout): attention(*a),
                    )
        for layout in ("nn", "nt", "tn", "tt"):
            large = [(1, *shape, False) for shape in _representative.gemm_shapes(layout)]
            for shape in (*PRODUCTS, *large):
                yield f"matmul {shape} {layout} {name}", lambda *i, a=(*shape, layout, dtype): product(*a)


def run(target: str) -> dict[str, Any]:
    seen: set[tuple[str, str]] = set()
    loads(seen)
    broken = []
    with hipkittens.simulate(target, checks="all") as simulation:
        for name, call in calls():
            if not all(tensor.isfinite().all() for tensor in call()):
                broken.append(name)
    listed = {entry["name"] for entry in _installation.pack(target).entries}
    ran = {name for of, name in seen if of == target}
    return {
        "target": target,
        "kernels": len(listed),
        "never_launched": sorted(listed - ran),
        "not_finite": broken,
        "findings": [str(finding) for finding in simulation.findings],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, help="default: both")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = [run(target) for target in ((arguments.target,) if arguments.target else TARGETS)]
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    else:
        for row in rows:
            print(f"{row['target']}: {row['kernels']} kernels, {len(row['never_launched'])} never launched, "
                  f"{len(row['not_finite'])} results not finite, {len(row['findings'])} findings")  # fmt: skip
            for text in (*row["never_launched"], *row["not_finite"], *row["findings"]):
                print("  " + text)
    return int(any(row[key] for row in rows for key in ("never_launched", "not_finite", "findings")))


if __name__ == "__main__":
    raise SystemExit(main())
