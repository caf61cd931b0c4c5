# SPDX-License-Identifier: MIT
"""Writes csrc/kernels/gemm/costs.def, the cost of each GEMM variant, from which the plan chooses: measured on a GPU, or modelled.

    python benchmarks/gemm_plan.py [--target gfx942|gfx950] [--tile 128x128x64] [--model] [--output FILE]

With a GPU, the costs of its target are measured on it (gemm_clocks.py) and those of the other target are kept as in the
output file. Without one, and with --model, they come from the cycle model, in which MI355X stands for gfx950 and MI325X for
gfx942. The file states for each target which it was. `hipkittens bench gemm --fit` runs this.

For each tile, and each number of its workgroups that a compute unit holds at a time, five products (nt) that
fill the device evenly are timed: in a square grid with two K, whose difference is the cost of a K tile where workgroups share their
operands; in a single row of tiles with two K, where nearly all data comes from memory; and with twice as many workgroups, for
the cost of another round in addition to its K tiles. Two products of a single K tile, with four and eight rounds, give the
minimum cost of another round: the results of the previous one go to memory, however short K is. The cost of the reduction of a
split K is a straight line through four sizes.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
from gemm_clocks import Measured, Modelled
from gemm_model import Tile, tiles

from hipkittens import _backend
from hipkittens._output_file import require_writable

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("gfx942", "gfx950")
COLUMN = {"gfx942": 19, "gfx950": 16}  # tiles along m of the square grid
K_TILES = (8, 24)  # of 64 columns of 16 bits, or 128 of fewer
HEADER = """\
// kernels/gemm/costs.def: what each variant costs, in clocks; the plan chooses by it.
// SPDX-License-Identifier: MIT
// Written by `python benchmarks/gemm_plan.py`, which says how.
{sources}
// GEMM_COST(target, a, b, scales, tile_m, tile_n, tile_k, row_start, buffers, concurrent, k_tile, k_tile_streamed, launch, round, least)
//   buffers          K tiles in LDS, as the row says
//   concurrent       workgroups of it that a compute unit runs side by side
//   k_tile           of each K tile in a grid of many rows and columns; _streamed: in a single row of tiles
//   launch, round    beside K tiles: once, and for each round of `concurrent` workgroups on every compute unit
//   least            of every round but the first, however few its K tiles
// GEMM_REDUCE_COST(target, launch, element, partial)
//   launch, element, partial   once; for each element of the product and each partial sum of a compute unit's share
"""


def tile_rows(source: Modelled | Measured, tile: Tile) -> list[str]:
    target, units, down = source.target, source.units, COLUMN[source.target]
    unaligned = tile.name.endswith("unaligned")
    odd = 1 if unaligned else 0  # rows of an odd number of elements
    columns_each = 64 if tile.has_16_bits else 128
    short, long = (count * columns_each + odd for count in K_TILES)
    k_tiles = (K_TILES[1] - K_TILES[0]) * columns_each / tile.k

    def clocks(rows: int, columns: int, k: int) -> float:
        return sum(source.clocks(tile.name, rows * tile.m, columns * tile.n, k))

    held = source.held(tile.name, down * tile.m, units // down * tile.n, short)
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
            f"GEMM_COST({target}, {tile.a}, {tile.b}, {tile.scales}, {tile.m}, {tile.n}, {tile.k}, {start}, {tile.buffers}, {concurrent}, {k_tile:.0f}, {streamed:.0f}, "
            f"{beside - again:.0f}, {again:.0f}, {least:.0f})"
        )
        print(rows[-1], flush=True)
    return rows


def reduce_row(source: Modelled | Measured) -> str:
    equations, answers = [], []
    for m, n, splits in ((64, 1024, 2), (64, 1024, 8), (512, 4096, 2), (256, 4096, 8)):
        reduction = source.clocks("64x64x64", m, n, 64 * 4 * splits, splits=splits)[1]
        elements = m * n / source.units
        equations.append((1.0, elements, elements * splits))
        answers.append(reduction)
    # Fits relative errors, since otherwise the largest size alone would decide.
    weights = 1 / np.array(answers)
    launch, element, partial = np.linalg.lstsq(
        np.array(equations) * weights[:, None], np.array(answers) * weights, rcond=None
    )[0]
    row = f"GEMM_REDUCE_COST({source.target}, {launch:.0f}, {element:.3f}, {partial:.3f})"
    print(row, flush=True)
    return row


def kept(path: Path, target: str) -> tuple[str, list[str]]:
    """The source and the rows of a target's costs in a file. Raises ValueError if it has none."""
    text = path.read_text() if path.exists() else ""
    source = re.search(rf"^// {target}: (.*)$", text, re.MULTILINE)
    rows = re.findall(rf"^GEMM_(?:REDUCE_)?COST\({target}, .*\)$", text, re.MULTILINE)
    if source is None or not rows:
        raise ValueError(f"{path} has no costs of {target} to keep; write the whole table first: --model")
    return source[1], rows


def sources(target: str | None, model: bool) -> list[Modelled | Measured]:
    """The requested sources: the GPU, or the cycle model of one target or both. Raises ValueError for a GPU of another target."""
    if model or not _backend.hip_device_count():
        return [Modelled(each) for each in ((target,) if target else TARGETS)]
    gpu = Measured()
    if target not in (None, gpu.target):
        raise ValueError(f"this GPU is a {gpu.target}; for {target} add --model")
    return [gpu]


def fit(asked: list[Modelled | Measured], output: Path) -> None:
    """Writes the costs of the requested sources; those of other targets are kept as in the file."""
    others = {
        target: kept(output, target) for target in TARGETS if target not in {each.target for each in asked}
    }
    costs = others | {
        each.target: (
            each.source,
            [*(row for tile in tiles(each.target) for row in tile_rows(each, tile)), reduce_row(each)],
        )
        for each in asked
    }
    said = "\n".join(f"// {target}: {costs[target][0]}" for target in TARGETS)
    rows = [row for target in TARGETS for row in costs[target][1]]
    output.write_text(HEADER.format(sources=said) + "\n".join(rows) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS, help="only this one; the other's costs are kept")
    parser.add_argument("--tile", help="only this one (prints, writes nothing)")
    parser.add_argument("--model", action="store_true", help="take the cycle model although there is a GPU")
    parser.add_argument("--output", type=Path, default=ROOT / "csrc/kernels/gemm/costs.def")
    options = parser.parse_args()
    try:
        asked = sources(options.target, options.model)
        if options.tile is None:
            require_writable("--output", str(options.output))
            fit(asked, options.output)
            return
    except ValueError as error:
        raise SystemExit(f"gemm_plan.py: {error}") from None
    chosen = [(each, tile) for each in asked for tile in tiles(each.target) if tile.name == options.tile]
    if not chosen:
        allowed = dict.fromkeys(tile.name for each in asked for tile in tiles(each.target))
        raise SystemExit(f"gemm_plan.py: --tile is {options.tile}; allowed: {', '.join(allowed)}")
    for each, tile in chosen:
        tile_rows(each, tile)


if __name__ == "__main__":
    main()
