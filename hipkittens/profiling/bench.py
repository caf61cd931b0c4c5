# SPDX-License-Identifier: MIT
"""Rows of `hipkittens bench`: each library at each shape, modelled without a GPU, measured with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .. import _backend, _timing
from .limits import limit
from .measure import measure
from .model_error import error_of
from .peers import Candidate, Peer, Unavailable, peer
from .problems import Problem
from .published import figure

OURS = "hipkittens"


@dataclass(frozen=True)
class Row:
    """One library at one shape.

    kind            "modelled" (the cycle model), "measured" (a GPU), "published" (not run, only known from others), or "none";
                    `note` gives the reason why it was not run
    cycles          modelled: core clocks of all launches together
    microseconds    modelled or measured (median); modelled times do not include launch overhead
    error_percent, error_of  modelled: mean error on measured kernels of the same operation and device, and which these are; no
                    error_percent if there are too few: not calibrated
    low, high       measured: 10th and 90th percentile
    tflops, gbps    useful operations and bytes over that time; tflops only if operations are the measure
    share_of_limit  the minimum time by the data sheet over this time
    limited_by      what determines that minimum time: "matrix" or "memory"
    published_microseconds, published_tflops, published_gbps, published_source  figures published for this library at this shape and
                    device
    speedup         of ours over this library, both as run here
    speedup_over_published  of ours, as run here, over the published figure of this library
    """

    operation: str
    shape: str
    size: int
    device: str
    library: str
    kind: str
    kernels: tuple[str, ...] = ()
    cycles: float | None = None
    clock_mhz: float | None = None
    microseconds: float | None = None
    error_percent: float | None = None
    error_of: str = ""
    low: float | None = None
    high: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    share_of_limit: float | None = None
    limited_by: str = ""
    published_microseconds: float | None = None
    published_tflops: float | None = None
    published_gbps: float | None = None
    published_source: str | None = None
    speedup: float | None = None
    speedup_over_published: float | None = None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"kernels": list(self.kernels)}


def modelled_launches(
    device: str, call: Callable[[], object], timeline: int = 0, values: bool = False
) -> list[_timing.ModelledLaunch]:
    """The launches of `call` in the cycle model. Their results are not computed, unless `values`."""
    with (
        _backend.simulate(_timing.DEVICES[device]),
        _timing.timing(device, values=values, timeline=timeline) as run,
    ):
        call()
    return run.launches


def _row(problem: Problem, device: str, library: str, kind: str) -> Row:
    row = Row(problem.operation, problem.shape, problem.size, device, library, kind)
    known = figure(problem, device, library)
    if known is None:
        return row
    return replace(
        row,
        published_microseconds=known.microseconds,
        published_tflops=problem.flops and problem.flops / known.microseconds * 1e-6,
        published_gbps=problem.bytes / known.microseconds * 1e-3,
        published_source=known.source,
    )


def _timed(row: Row, problem: Problem, microseconds: float) -> Row:
    least = limit(problem, row.device)
    return replace(
        row,
        microseconds=microseconds,
        tflops=problem.flops and problem.flops / microseconds * 1e-6,
        gbps=problem.bytes / microseconds * 1e-3,
        share_of_limit=least.microseconds / microseconds,
        limited_by=least.unit,
    )


def modelled_row(
    problem: Problem, device: str, library: str, candidates: Iterable[Candidate], timeline: int = 0
) -> tuple[Row, list[_timing.ModelledLaunch]]:
    """The fastest of the candidates that count, and its launches; the row's note names the others. Raises Unavailable if there is
    nothing to launch.
    """
    best, name, beside = None, "", []
    for candidate in candidates:
        if candidate.prepare is not None:
            modelled_launches(device, candidate.prepare, values=problem.chained)
        launches = modelled_launches(device, candidate.call, timeline, problem.chained)
        if not launches:
            raise Unavailable(f"{library} launched no kernel: there is nothing to do at this shape")
        microseconds = sum(launch.microseconds for launch in launches)
        if not candidate.counts:
            beside.append(f"{candidate.name} {microseconds:.1f} us")
        elif best is None or microseconds < sum(launch.microseconds for launch in best):
            best, name = launches, candidate.name
    assert best is not None
    if beside:
        name = f"{name}; beside it, not counted: {', '.join(beside)}"
    microseconds = sum(launch.microseconds for launch in best)
    error = error_of(problem, device)
    row = replace(
        _row(problem, device, library, "modelled"),
        error_percent=error.percent,
        error_of=error.text,
        kernels=tuple(launch.kernel for launch in best),
        cycles=sum(launch.cycles for launch in best),
        clock_mhz=round(sum(launch.cycles for launch in best) / microseconds, 3),
        note=name,
    )
    return _timed(row, problem, microseconds), best


def _measured(problem: Problem, device: str, library: str, call: Callable[[], object]) -> Row:
    result = measure(call)
    row = replace(_row(problem, device, library, "measured"), low=result.low, high=result.high)
    return _timed(row, problem, result.median)


def published_row(problem: Problem, device: str, library: str, note: str = "") -> Row:
    """The published figures of a library, without running anything; a row of kind "none" if there are none."""
    row = _row(problem, device, library, "none")
    return replace(row, kind="none" if row.published_microseconds is None else "published", note=note)


def row_of(problem: Problem, device: str, library: str, on_gpu: bool) -> Row:
    """One library at one shape, run; its published row if it cannot be run."""
    try:
        if library == OURS:
            call = problem.call("cuda" if on_gpu else "cpu")
            return (
                _measured(problem, device, library, call)
                if on_gpu
                else modelled_row(problem, device, library, [Candidate("", call)])[0]
            )
        other: Peer = peer(library)
        if on_gpu:
            return _measured(problem, device, library, other.measured(problem))
        return modelled_row(problem, device, library, other.modelled(problem, _timing.DEVICES[device]))[0]
    except Unavailable as reason:
        return published_row(problem, device, library, str(reason))


def beside_ours(rows: Sequence[Row]) -> list[Row]:
    """The rows with their speedups, where ours was run at the same shape on the same device."""
    ours = {
        (row.operation, row.shape, row.device): row.microseconds
        for row in rows
        if row.library == OURS and row.microseconds is not None
    }

    def compared(row: Row) -> Row:
        own = ours.get((row.operation, row.shape, row.device))
        if own is None:
            return row
        return replace(
            row,
            speedup=row.microseconds / own if row.microseconds and row.library != OURS else None,
            speedup_over_published=row.published_microseconds / own if row.published_microseconds else None,
        )

    return [compared(row) for row in rows]
