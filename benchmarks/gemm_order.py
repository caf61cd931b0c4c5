# SPDX-License-Identifier: MIT
"""The effect of the order of workgroups on a GEMM: hit rates of L2 and MALL, and time, in the cycle model, as Markdown.

    python benchmarks/gemm_order.py [--device MI355X] [--sizes 9216,14592] [--k 2048]

bf16 products (nt) in 256x256 tiles, M = N. L2 hit rates depend on which tiles run at the same time, and a short K shows it; whether
MALL holds the shared data depends on the size of A and B, and so on K. 14592 is 57 tiles, the worst case of round robin
over eight XCDs, as 57 has no factor in common with 8.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from gemm_model import DEVICES, microseconds, modelled


def orders(rows: int) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """(tiles that an XCD takes in a row, rows of tiles in a window), by name; None is the plan's own."""
    yield "row-major", (1, 1)
    yield "windows of 8 rows, no chunks", (1, 8)
    yield "L2 only: windows of 8 rows, an XCD keeps its share", (rows * rows // 8, 8)
    yield "windows of 4 rows, chunks of 32", (32, 4)
    yield "the plan's: windows of 8 rows, chunks of 64", None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(DEVICES), default="MI355X")
    parser.add_argument("--sizes", default="9216,14592")
    parser.add_argument("--k", type=int, default=2048)
    options = parser.parse_args()
    print(f"| {options.device}, M = N | K | order | L2 | MALL | from HBM, GB | us | TFLOP/s |")
    print("|---:|---:|---|---:|---:|---:|---:|---:|")
    for size in map(int, options.sizes.split(",")):
        for name, order in orders(-(-size // 256)):
            launches = modelled(options.device, "256x256x64", size, size, options.k, order=order)
            caches, us = launches[0].caches, microseconds(launches)
            print(
                f"| {size:,} | {options.k:,} | {name} | {caches['l2_hit_rate']:.0%} | {caches['mall_hit_rate']:.0%} | "
                f"{caches['hbm_bytes_read'] / 1e9:.2f} | {us:,.0f} | "
                f"{2 * size * size * options.k / us / 1e6:,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
