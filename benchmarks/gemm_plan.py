# SPDX-License-Identifier: MIT
"""What each GEMM variant costs in the cycle model, as csrc/kernels/gemm/costs.def, from which the plan chooses.

    python benchmarks/gemm_plan.py [--target gfx942|gfx950] [--tile 128x128x64] [--output FILE]

For each tile, and each number of its workgroups that a compute unit holds at a time, five products of bf16 (nt) that
fill the device evenly: in a square grid with two K, whose difference is what a K tile costs where workgroups share what
they read; in a single row of tiles with two K, where nearly all comes from memory; and twice as many workgroups, for
what another round costs beside its K tiles. Two products of a single K tile, with four and eight rounds, say what another
round costs at least: the results of the one before go to memory, however short K is. The reduction of a split K costs a straight line through four sizes.
MI355X stands for gfx950, MI325X for gfx942.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from gemm_model import Tile, cycles, modelled, tiles

ROOT = Path(__file__).resolve().parent.parent
DEVICE = {"gfx942": "MI325X", "gfx950": "MI355X"}
UNITS = {"gfx942": 304, "gfx950": 256}
COLUMN = {"gfx942": 19, "gfx950": 16}  # tiles along m of the square grid
K_TILES = (8, 24)  # of 64 columns
HEADER = """\
// kernels/gemm/costs.def: what each variant costs in the cycle model, in clocks; the plan chooses by it.
// SPDX-License-Identifier: MIT
// Written by `python benchmarks/gemm_plan.py`, which says how: modelled, never measured.
// GEMM_COST(target, tile_m, tile_n, tile_k, row_start, concurrent, k_tile, k_tile_streamed, launch, round, least)
//   concurrent       workgroups of it that a compute unit runs side by side
//   k_tile           of each K tile in a grid of many rows and columns; _streamed: in a single row of tiles
//   launch, round    beside K tiles: once, and for each round of `concurrent` workgroups on every compute unit
//   least            of every round but the first, however few its K tiles
// GEMM_REDUCE_COST(target, launch, element, partial)
//   launch, element, partial   once; for each element of the product and each partial sum of a compute unit's share
"""


def tile_rows(target: str, tile: Tile) -> list[str]:
    device, units, down = DEVICE[target], UNITS[target], COLUMN[target]
    unaligned = tile.name.endswith("unaligned")
    odd = 1 if unaligned else 0  # rows of an odd number of elements
    short, long = (count * 64 + odd for count in K_TILES)
    k_tiles = (K_TILES[1] - K_TILES[0]) * 64 / tile.k

    def clocks(rows: int, columns: int, k: int) -> float:
        return cycles(modelled(device, tile.name, rows * tile.m, columns * tile.n, k))

    first = modelled(device, tile.name, down * tile.m, units // down * tile.n, short)[0]
    held = int(first.report["workgroups_per_compute_unit"])
    rows = []
    for concurrent in range(1, held + 1):
        across = units * concurrent // down
        square = clocks(down, across, short)
        k_tile = (clocks(down, across, long) - square) / k_tiles
        streamed = (clocks(1, units * concurrent, long) - clocks(1, units * concurrent, short)) / k_tiles
        beside = square - short / tile.k * k_tile
        # Rounds after the first: as many workgroups again, on top of those a unit holds.
        if concurrent == held:
            again = clocks(2 * down, across, short) - square - short / tile.k * k_tile
        else:
            again = beside
        again = min(max(again, 0.0), beside)
        least = again + k_tile
        if concurrent == held:
            single = tile.k - odd
            more = clocks(8 * down, across, single) - clocks(4 * down, across, single)
            least = max(least, more / 4)
        start = "element" if unaligned else "vector"
        rows.append(
            f"GEMM_COST({target}, {tile.m}, {tile.n}, {tile.k}, {start}, {concurrent}, {k_tile:.0f}, {streamed:.0f}, "
            f"{beside - again:.0f}, {again:.0f}, {least:.0f})"
        )
        print(rows[-1], flush=True)
    return rows


def reduce_row(target: str) -> str:
    device, units = DEVICE[target], UNITS[target]
    equations, answers = [], []
    for m, n, splits in ((64, 1024, 2), (64, 1024, 8), (512, 4096, 2), (256, 4096, 8)):
        reduction = modelled(device, "64x64x64", m, n, 64 * 4 * splits, splits=splits)[1]
        elements = m * n / units
        equations.append((1.0, elements, elements * splits))
        answers.append(reduction.cycles)
    # Relative errors count, or the largest size alone would decide.
    weights = 1 / np.array(answers)
    launch, element, partial = np.linalg.lstsq(
        np.array(equations) * weights[:, None], np.array(answers) * weights, rcond=None
    )[0]
    row = f"GEMM_REDUCE_COST({target}, {launch:.0f}, {element:.3f}, {partial:.3f})"
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=tuple(DEVICE), help="only this one (prints, writes nothing)")
    parser.add_argument("--tile", help="only this one (prints, writes nothing)")
    parser.add_argument("--output", type=Path, default=ROOT / "csrc/kernels/gemm/costs.def")
    options = parser.parse_args()
    rows = []
    for target in [options.target] if options.target else DEVICE:
        for tile in tiles(target):
            if options.tile in (None, tile.name):
                rows += tile_rows(target, tile)
        if options.tile is None:
            rows.append(reduce_row(target))
    if options.target is None and options.tile is None:
        options.output.write_text(HEADER + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
