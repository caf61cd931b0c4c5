# SPDX-License-Identifier: MIT
"""`hipkittens profile`: what each instruction of the launched kernels costs, and what limits them."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from .._whole_table import print_whole
from . import options, roofline
from .bench import modelled_launches
from .listing import Line, Listing, listing
from .main_loop import MainLoop
from .model_error import error_of
from .program import modelled_program
from .timeline import CLASS_NAMES

_LEGEND = (
    "Modelled: by the cycle model, never on a GPU (docs/timing_model.md). issues: waves that issued "
    "the instruction; clocks: total waiting time of waves before it, and its main cause; both for the XCD that is simulated in detail."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_or_program(parser, "profile")
    parser.add_argument("--top", type=int, metavar="N", help="only the N most expensive instructions")
    parser.add_argument(
        "--roofline",
        metavar="FILE",
        help="also write a roofline plot of an operation to FILE",
    )


def main(arguments: argparse.Namespace) -> int:
    if arguments.top is not None and arguments.top < 1:
        raise ValueError(f"--top is {arguments.top}; allowed: a positive number")
    status = 0
    device = options.device(arguments)
    if options.names_operation(arguments):
        problem = options.problem(arguments)
        if arguments.roofline:
            roofline.require(arguments.roofline, problem)
        error = error_of(problem, device)
        # The timeline of one compute unit shows how busy its matrix cores are in the main loop.
        listings = [
            listing(launch, error) for launch in modelled_launches(device, problem.call(), 1, problem.chained)
        ]
        if arguments.roofline:
            time = sum(one.microseconds for one in listings)
            roofline.draw(arguments.roofline, problem, device, time, error.text)
    elif arguments.roofline:
        raise ValueError("--roofline belongs to an operation: nobody counts what a program computes")
    else:
        status, launches = modelled_program(arguments.operation, device, arguments.json)
        listings = [listing(launch) for launch in launches]
    if arguments.json:
        rows = [one.to_dict() for one in listings]
        json.dump({"exit_status": status, "modelled": True, "launches": rows}, sys.stdout, indent=1)
        print()
    else:
        _print(listings, arguments.top)
    return status


def _print(listings: list[Listing], top: int | None) -> None:
    console = Console()
    if not listings:
        console.print("No kernel was launched.")
        return
    for one in listings:
        table = Table(box=None, pad_edge=False)
        for heading in ("address", "issues", "clocks"):
            table.add_column(heading, justify="right", no_wrap=True)
        for heading in ("waiting for", "unit", "instruction", "source"):
            table.add_column(heading, no_wrap=True)
        for line in _chosen(one.lines, top):
            table.add_row(
                f"{line.address:x}",
                f"{line.issues:,}",
                f"{line.clocks:,.0f}" if line.clocks >= 0.5 else "",
                line.reason if line.clocks >= 0.5 else "",
                line.unit,
                line.text,
                line.called_from or line.source,
            )
        print_whole(table)
        busy = ", ".join(f"{name.replace('_', ' ')} {100 * share:.1f} %" for name, share in one.busy.items())
        waits = sum(one.stalls.values())
        stalls = ", ".join(f"{name} {100 * clocks / waits:.0f} %" for name, clocks in one.stalls.items())
        issues = ", ".join(
            f"{CLASS_NAMES[name]} {100 * share:.0f} %" for name, share in one.issue_share.items() if share
        )
        for text in (
            f"{one.kernel} on {one.device}, modelled: {one.cycles:,.0f} cycles, {one.microseconds:,.2f} us, "
            f"{one.error.text}",
            f"occupancy: {one.occupancy}",
            f"issue slots: {issues}",
            f"main loop: {_loop(one.main_loop)}",
            f"busy: {busy}",
            f"waits: {stalls}",
            f"bottleneck: {one.bottleneck}",
            "",
        ):
            console.print(text, soft_wrap=True, highlight=False, markup=False)
    if len(listings) > 1:
        _print_sums(listings)
    console.print(_LEGEND, soft_wrap=True, highlight=False)


def _print_sums(listings: list[Listing]) -> None:
    """The total time of all launches of each kernel, the longest first."""
    of_kernel: dict[str, list[Listing]] = {}
    for one in listings:
        of_kernel.setdefault(one.kernel, []).append(one)
    total = sum(one.microseconds for one in listings)
    table = Table(title=f"{len(listings)} launches, modelled: {total:,.2f} us", box=None, pad_edge=False)
    table.add_column("kernel", no_wrap=True)
    for heading in ("launches", "us", "share", "error"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel, launches in sorted(
        of_kernel.items(), key=lambda item: -sum(one.microseconds for one in item[1])
    ):
        time = sum(one.microseconds for one in launches)
        error = launches[0].error.short
        table.add_row(kernel, f"{len(launches):,}", f"{time:,.2f}", f"{100 * time / total:.1f} %", error)
    print_whole(table)
    print()


def _loop(loop: MainLoop | None) -> str:
    if loop is None:
        return "none"
    said = f"{loop.first:#x} to {loop.last:#x}, {loop.instructions} instructions, {100 * loop.issue_share:.0f} % of all issues"
    if loop.clocks_share is not None:
        said += f", {100 * loop.clocks_share:.0f} % of the time"
    if loop.mfma_instructions and loop.mfma_busy is not None:
        said += f"; {loop.mfma_instructions} are MFMA, matrix cores busy {100 * loop.mfma_busy:.1f} % of it"
    return said


def _chosen(lines: tuple[Line, ...], top: int | None) -> list[Line]:
    if top is None:
        return list(lines)
    return sorted(sorted(lines, key=lambda line: -line.clocks)[:top], key=lambda line: line.address)
