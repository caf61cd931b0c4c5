# SPDX-License-Identifier: MIT
"""Small problems that together run every prebuilt kernel, and the statistics of a recorded launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from . import _backend, _disassembly, _installation, operations
from ._hot_loop import Executed, hot_loop
from .operations._record import Checks, Kernel, Trial


def kernels(target: str) -> list[Kernel]:
    """Every prebuilt kernel of a target."""
    return [
        Kernel(
            symbol=kernel["symbol"],
            target=target,
            folder=entry["operation"],
            kind=entry["configuration"]["kind"],
            row=entry["configuration"],
            arguments=entry["arguments"],
        )
        for entry in _installation.kernels_of_operations(target)
        for kernel in entry["kernels"]
    ]


def trial(kernel: Kernel) -> Trial:
    """A small problem that runs it. LookupError if no operation has one."""
    for operation in operations.every():
        known = operations.checks(operation).trial
        if operation.owns(kernel.folder, kernel.kind) and known is not None:
            return known(kernel)
    raise LookupError(f"no operation has a problem that runs {kernel.symbol}: `trial` of its checks")


def problems(folder: str | None = None) -> Iterator[Trial]:
    """Problems of typical sizes, where the operations have some; only for the kernels in that folder of csrc/kernels if one is given."""
    yield from _of_every_operation(lambda checks: checks.representative, folder)


def problems_of_every_kernel(folder: str | None = None) -> Iterator[Trial]:
    """Small problems, only for the kernels in that folder of csrc/kernels if one is given."""
    yield from _of_every_operation(lambda checks: checks.every_kernel, folder)


def _of_every_operation(
    chosen: Callable[[Checks], Callable[[], Iterable[Trial]] | None], folder: str | None = None
) -> Iterator[Trial]:
    """Each operation's own problems, or else one for each of its kernels."""
    for operation in operations.every():
        if folder not in (None, operation.folder):
            continue
        checks = operations.checks(operation)
        if own := chosen(checks):
            yield from own()
        elif checks.trial is not None:
            of_kernels = (
                checks.trial(kernel)
                for target in _installation.TARGETS
                for kernel in kernels(target)
                if operation.owns(kernel.folder, kernel.kind)
            )
            yield from {each.title: each for each in of_kernels}.values()


def is_finite(results: Iterable[torch.Tensor]) -> bool:
    """With checks enabled, whatever a problem did not write is NaN."""
    return all(result.float().isfinite().all().item() for result in results)


def run(target: str, problem: Trial) -> dict[str, dict[str, Any]]:
    """What each kernel that the problem ran did, by symbol; the longest of several launches. With every checker on."""
    from . import _simulator

    with _backend.simulate(target, checks="all") as simulation:
        _simulator.record_launches(True)
        try:
            results = problem.run()
        finally:
            _simulator.record_launches(False)
        findings = simulation.findings
    wrong = {
        "findings": [str(finding) for finding in findings],
        "not_finite": [] if is_finite(results) else [problem.title],
    }
    found: dict[str, dict[str, Any]] = {}
    for launch in _simulator.recorded_launches():
        known = found.get(launch["kernel"])
        if known is None or known["report"]["instructions"] < launch["report"]["instructions"]:
            found[launch["kernel"]] = launch
    _simulator.record_launches(True)  # releases the records
    _simulator.record_launches(False)
    return {symbol: {**_describe(problem, launch), **wrong} for symbol, launch in found.items()}


def _describe(problem: Trial, launch: dict[str, Any]) -> dict[str, Any]:
    executed = _executed(launch)
    tensors = [
        {
            "name": name,
            "bytes_loaded": loaded,
            "bytes_stored": stored,
            "distinct_bytes_loaded": distinct_loaded,
            "distinct_bytes_stored": distinct_stored,
        }
        for name, loaded, stored, distinct_loaded, distinct_stored in launch["regions"]
        if loaded or stored
    ]
    moved = sum(tensor["bytes_loaded"] + tensor["bytes_stored"] for tensor in tensors)
    useful = sum(tensor["distinct_bytes_loaded"] + tensor["distinct_bytes_stored"] for tensor in tensors)
    wide = sum(instruction.bytes for instruction in executed if "dwordx4" in instruction.mnemonic)
    report = launch["report"]
    return {
        "problem": problem.title,
        "waves": report["waves"],
        "instructions": report["instructions"],
        "hot_loop": hot_loop(executed, report["waves"]),
        "lds_conflict_cycles": report["lds_conflict_cycles"],
        "bytes_moved": moved,
        "useful_bytes": useful,
        "bytes_per_useful_byte": moved / useful,
        "sixteen_byte_share": wide / moved,
        "tensors": tensors,
    }


def _executed(launch: dict[str, Any]) -> list[Executed]:
    from . import _simulator

    target = launch["target"]
    pack = _installation.pack(target)
    ((_, text),) = _disassembly.code(pack.image(pack.entry(launch["kernel"])))
    result = []
    for address, unit, *sums in launch["instructions"]:
        size, line = _simulator.disassemble(int(target[3:]), text[address : address + 16])
        result.append(Executed(address, size, line, unit, *sums))
    return result
