#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/row_operations.md: our row operations and AITER's Triton kernels at shapes with published measurements, modelled.

    python benchmarks/row_operations.py                       # all rows, about 20 minutes on two cores
    python benchmarks/row_operations.py --only softmax,topk --json

The shapes are those of the comparison that m8than/amd-kernels publishes for MI325X. Its times are listed next to the modelled ones
and never divided by them. AITER's Triton kernels run here, from its wheel; for its HIP and CK kernels there is only the published time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import hipkittens
from hipkittens._progress import progress_bar
from hipkittens.integrations import triton as simulated
from hipkittens.profiling import bench
from hipkittens.profiling.limits import MEMORY_BANDWIDTH
from tests.oracles.aiter import triton as aiter_triton

DEVICE, COMPUTE_UNITS = "MI325X", 304
PAGE = Path(__file__).resolve().parent.parent / "docs" / "row_operations.md"
BF16 = torch.bfloat16
Call = Callable[[], object]


@dataclass(frozen=True)
class Published:
    """Microseconds on a MI325X, ROCm 7.2, from the table of m8than/amd-kernels."""

    pytorch: float
    kernels: float
    aiter: float


@dataclass(frozen=True)
class Row:
    """bytes     minimum traffic: every operand and result once
    peer      AITER's Triton kernel, or None if the published time is of a HIP or CK kernel
    """

    operation: str
    shape: str
    bytes: int
    published: Published
    ours: Callable[[], Call]
    peer: Callable[[], Call] | None = None


@dataclass(frozen=True)
class Result:
    """Modelled microseconds, without launch overhead; share_of_bandwidth is relative to the data sheet's bandwidth."""

    operation: str
    shape: str
    microseconds: float
    triton_microseconds: float | None
    share_of_bandwidth: float
    published: Published

    @property
    def is_disputed(self) -> bool:
        """Whether the modelled time of AITER's kernel is far above the published one: a different kernel was measured or the model
        is wrong, so the row is not evidence."""
        known = self.published.aiter
        return self.triton_microseconds is not None and self.triton_microseconds > 1.5 * known

    @property
    def ratio(self) -> float | None:
        return self.triton_microseconds and self.microseconds / self.triton_microseconds


def empty(*shape: int) -> torch.Tensor:
    """An uninitialized tensor: the times of these kernels do not depend on values, which the model does not compute."""
    return torch.zeros(shape, dtype=BF16)


def _norm(name: str, rows: int, published: Published) -> Row:
    columns = 128

    def ours() -> Call:
        x, weight, residual = empty(rows, columns), empty(columns), empty(rows, columns)
        if name == "layer_norm":
            return lambda: hipkittens.layer_norm(x, weight, weight)
        if name == "rms_norm":
            return lambda: hipkittens.rms_norm(x, weight)
        return lambda: hipkittens.rms_norm(x, weight, residual=residual, return_residual=True)

    def peer() -> Call:
        kernels = aiter_triton.module("rmsnorm")
        kernels.get_num_sms = lambda: COMPUTE_UNITS  # which it queries from torch.cuda
        x, out, weight = empty(rows, columns), empty(rows, columns), empty(columns)
        residual, residual_out = empty(rows, columns), empty(rows, columns)
        if name == "rms_norm":
            return lambda: kernels.rms_norm(x, weight, 1e-6)
        return lambda: kernels.rmsnorm2d_fwd_with_add(out, x, residual, residual_out, weight, 1e-6)

    tensors = 4 if name == "rms_norm, residual" else 2
    return Row(
        name, f"{rows}x{columns}", tensors * rows * columns * 2, published, ours, None if name == "layer_norm" else peer
    )  # fmt: skip


def _gate(kind: str, rows: int, width: int, published: Published) -> Row:
    def ours() -> Call:
        x = empty(rows, width)
        return lambda: hipkittens.gated_activation(x, kind)

    return Row(f"gated_activation, {kind}", f"{rows}x{width}", rows * width * 3, published, ours)


def _softmax(rows: int, published: Published) -> Row:
    columns = 128

    def ours() -> Call:
        x = empty(rows, columns)
        return lambda: hipkittens.softmax(x)

    def peer() -> Call:
        x, kernels = empty(rows, columns), aiter_triton.module("softmax")
        return lambda: kernels.softmax(x)

    return Row("softmax", f"{rows}x{columns}", 4 * rows * columns, published, ours, peer)


def _rotary(batch: int, heads: int, tokens: int, published: Published) -> Row:
    size = 128

    def ours() -> Call:
        x, angles = empty(batch, tokens, heads, size), empty(tokens, size // 2)
        return lambda: hipkittens.rotary(x, angles, angles)

    def peer() -> Call:
        kernels = aiter_triton.module("rope")
        x, angles = empty(tokens, batch, heads, size), empty(tokens, 1, 1, size // 2)
        return lambda: kernels.rope_cached_fwd(x, angles, angles, 0, True, False)

    moved = 4 * batch * heads * tokens * size
    return Row("rotary", f"B{batch}H{heads}N{tokens}D{size}", moved, published, ours, peer)


def _topk(rows: int, columns: int, k: int, published: Published) -> Row:
    def ours() -> Call:
        x = empty(rows, columns)
        return lambda: hipkittens.topk(x, k)

    def peer() -> Call:
        x, kernels = empty(rows, columns), aiter_triton.module("topk")
        return lambda: kernels.topk(x, k)

    return Row("topk", f"{rows}x{columns}, k {k}", rows * (2 * columns + 10 * k), published, ours, peer)


def rows() -> Iterator[Row]:
    rms = {
        128: (35.9, 9.2, 24.3),
        4096: (36.5, 8.3, 27.6),
        16384: (54.9, 11.5, 20.5),
        65536: (101.1, 23.6, 21.8),
    }
    added = {4096: (67.6, 10.2, 31.9), 16384: (78.8, 14.6, 61.6), 65536: (160.5, 29.2, 180.0)}
    layer = {4096: (22.7, 9.6, 6.7), 16384: (36.4, 14.8, 10.2), 65536: (96.5, 32.3, 25.6)}
    for name, table in (("rms_norm", rms), ("rms_norm, residual", added), ("layer_norm", layer)):
        yield from (_norm(name, count, Published(*times)) for count, times in table.items())
    for count, width, times in (
        (4096, 256, (20.1, 6.0, 6.4)), (16384, 256, (37.1, 8.4, 13.0)), (65536, 256, (81.1, 21.9, 37.0)),
        (131072, 256, (149.0, 38.6, 68.6)), (4096, 8192, (149.7, 37.9, 27.6)), (4096, 16384, (287.6, 73.4, 50.2)),
    ):  # fmt: skip
        yield _gate("silu", count, width, Published(*times))
    yield _gate("gelu", 16384, 256, Published(39.9, 8.4, 13.0))
    yield _gate("gelu", 131072, 256, Published(147.4, 38.6, 68.9))
    for count, times in (
        (4096, (13.5, 8.7, 27.9)),
        (16384, (26.1, 21.9, 89.3)),
        (65536, (47.2, 70.7, 313.6)),
    ):
        yield _softmax(count, Published(*times))
    for batch, tokens, times in (
        (4, 1024, (202.9, 23.3, 34.2)), (8, 2048, (716.0, 67.5, 76.4)), (16, 4096, (2894.4, 329.9, 302.7)),
    ):  # fmt: skip
        yield _rotary(batch, 32, tokens, Published(*times))
    for count, columns, k, times in (
        (1024, 256, 10, (29.9, 31.4, 24.5)), (4096, 256, 10, (66.9, 72.4, 39.1)), (4096, 1024, 32, (108.8, 1630.7, 106.2)),
    ):  # fmt: skip
        yield _topk(count, columns, k, Published(*times))


def modelled(make: Callable[[], Call]) -> float:
    with simulated.active():  # AITER's modules query the GPU when they are imported
        call = make()

    def on_the_simulator() -> None:
        with simulated.active(), torch.no_grad():
            call()

    return sum(launch.microseconds for launch in bench.modelled_launches(DEVICE, on_the_simulator))


def result(row: Row) -> Result:
    ours = modelled(row.ours)
    peer = None if row.peer is None else modelled(row.peer)
    share = row.bytes / (MEMORY_BANDWIDTH[DEVICE] * ours * 1e-6)
    return Result(row.operation, row.shape, ours, peer, share, row.published)


def page(results: list[Result]) -> str:
    with_peer = [each for each in results if each.ratio is not None]
    compared = [each for each in with_peer if not each.is_disputed]
    shorter = sum(each.ratio <= 1.0 for each in compared)
    lines = [
        "# Row operations compared with AITER's Triton kernels",
        "",
        f"`python benchmarks/row_operations.py` writes this page. Device: {DEVICE}, bfloat16. *Modelled* columns are from the [cycle",
        "model](timing_model.md), without launch overhead; *published* ones were measured by",
        "[m8than/amd-kernels](https://github.com/m8than/amd-kernels) on a MI325X with ROCm 7.2, including launch overhead, which is about",
        "7 us of the time of small shapes. Modelled times are never divided by published ones. None of our kernels has run on a GPU.",
        "",
        f"The table has all {len(results)} rows published for these operations; 36 comparisons are counted there. In {len(with_peer)} rows AITER's kernel is",
        f"a Triton kernel, which runs in the same model. {len(with_peer) - len(compared)} of these rows, marked *, are not evidence: the modelled time of AITER's kernel is over one",
        "and a half times the published one, so either a different AITER kernel was measured or the model is wrong. In",
        f"{shorter} of the remaining {len(compared)} our kernel takes no longer. In {len(results) - len(with_peer)} rows AITER's kernel is written in HIP or CK, which is not compiled here.",
        "",
        "*Share* is the time that the required bytes take at the data sheet's bandwidth, divided by our time. Above 100 %, bytes come from",
        "the last-level cache, which holds 256 MB.",
        "",
        "| operation | shape | ours, modelled us | AITER's Triton, modelled us | ours / Triton's | share of bandwidth | "
        "published: PyTorch us | amd-kernels us | AITER us |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        peer = "" if each.triton_microseconds is None else f"{each.triton_microseconds:.1f}"
        ratio = "" if each.ratio is None else f"{each.ratio:.2f}" + "*" * each.is_disputed
        known = each.published
        lines.append(
            f"| {each.operation} | {each.shape} | {each.microseconds:.1f} | {peer} | {ratio} | {each.share_of_bandwidth:.0%} | "
            f"{known.pytorch} | {known.kernels} | {known.aiter} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="comma-separated operations; the page is not written")
    parser.add_argument("--json", action="store_true", help="print the rows instead of writing the page")
    arguments = parser.parse_args()
    wanted = list(rows())
    if arguments.only:
        names = arguments.only.split(",")
        wanted = [row for row in wanted if row.operation.partition(",")[0] in names]
        if not wanted:
            parser.error(f"--only {arguments.only}: no such operation")
    with progress_bar() as progress:
        results = [result(row) for row in progress.track(wanted, description="rows")]
    if arguments.json or arguments.only:
        print(json.dumps([asdict(each) for each in results], indent=1))
    else:
        PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
