# SPDX-License-Identifier: MIT
"""The compute unit resources of each prebuilt kernel, and its statistics in one simulated run."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

from . import _installation

# Per compute unit: bytes of LDS, and their allocation granularity. Everything else is the same on both
# targets. Sources: AMD CDNA3 and CDNA4 white papers (LDS, registers), LLVM's AMDGPU back end (granules, and
# GCNSubtarget::getOccupancyWithNumSGPRs), CDNA3 ISA manual section 3.6 (eight waves per SIMD).
_LDS = {"gfx942": (64 << 10, 512), "gfx950": (160 << 10, 1280)}
_SIMDS, _WAVES_PER_SIMD, _VGPRS, _VGPR_GRANULE = 4, 8, 512, 8
_SGPRS_OF_EIGHT_WAVES = 100  # beyond, seven waves share a SIMD's 800


def occupancy(target: str, kernel: dict[str, Any]) -> tuple[int, str]:
    """Waves per SIMD of a chip full of this kernel, and what limits them: waves, vgprs, sgprs or lds.

    A workgroup's waves are distributed round-robin over the SIMDs, and a workgroup starts only where all of it fits.
    """
    waves = -(-kernel["workgroup_size"] // 64)
    per_simd = -(-waves // _SIMDS)

    def rounded(waves_of_simd: int) -> int:
        if waves >= _SIMDS:
            return waves_of_simd // per_simd * per_simd
        return waves_of_simd

    vgprs = -(-max(kernel["vgprs"], 1) // _VGPR_GRANULE) * _VGPR_GRANULE
    limits = {
        "waves": _WAVES_PER_SIMD,
        "vgprs": _VGPRS // vgprs,
        "sgprs": 8 if kernel["sgprs"] <= _SGPRS_OF_EIGHT_WAVES else 7,
    }
    limits = {name: rounded(limit) for name, limit in limits.items()}
    if kernel["lds_bytes"]:
        capacity, granule = _LDS[target]
        workgroups = capacity // (-(-kernel["lds_bytes"] // granule) * granule)
        limits["lds"] = workgroups * waves // _SIMDS
    limit = min(limits, key=limits.get)  # the first of equal ones
    return limits[limit], limit


def code_bytes(image: bytes, symbol: str) -> int:
    """The size of the kernel's function, from the symbols of the ELF64 file."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    stride, count = struct.unpack_from("<HH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQII", image, table + number * stride) for number in range(count)]
    wanted = symbol.encode() + b"\0"
    for _, kind, _, _, offset, size, link, _ in sections:
        if kind not in (2, 11):  # SHT_SYMTAB, SHT_DYNSYM
            continue
        names = sections[link][4]
        for entry in range(offset, offset + size, 24):
            name, info, _, _, _, length = struct.unpack_from("<IBBHQQ", image, entry)
            if info & 15 == 2 and image.startswith(wanted, names + name):  # STT_FUNC
                return length
    raise ValueError(f"the code object of {symbol} has no function of this name")


def static_row(target: str, entry: dict[str, Any], kernel: dict[str, Any]) -> dict[str, Any]:
    """The compiler's figures for a kernel. VGPRs are those of the unified file, which includes AGPRs."""
    waves, limit = occupancy(target, kernel)
    names = ("vgprs", "agprs", "sgprs", "lds_bytes", "scratch_bytes", "vgpr_spills", "sgpr_spills")
    return {
        "target": target,
        "name": entry["name"],
        "symbol": kernel["symbol"],
        "workgroup_size": kernel["workgroup_size"],
        **{name: kernel[name] for name in names},
        "waves_per_simd": waves,
        "occupancy_limit": limit,
        "code_bytes": code_bytes(_installation.pack(target).image(entry), kernel["symbol"]),
    }


def _longest(known: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """The longer of two runs of a kernel, with the errors of both."""
    longest = known if known["instructions"] >= run["instructions"] else run
    return {**longest, **{wrong: [*known[wrong], *run[wrong]] for wrong in ("findings", "not_finite")}}


def collect(
    targets: tuple[str, ...],
    progress: Callable[[str, int], None] = lambda title, total: None,
    folders: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """One row for each kernel, only of those folders of csrc/kernels if any are given; "run" is None if none of the problems runs it.

    progress is called before each problem with its title and the total number.
    """
    from . import _representative

    problems = [problem for folder in folders or (None,) for problem in _representative.problems(folder)]
    runs: dict[str, dict[str, Any]] = {}
    for target in targets:
        for problem in problems:
            progress(f"{target} {problem.title}", len(targets) * len(problems))
            for symbol, run in _representative.run(target, problem).items():
                known = runs.get(symbol)
                runs[symbol] = run if known is None else _longest(known, run)
    return [
        {**static_row(target, entry, kernel), "run": runs.get(kernel["symbol"])}
        for target in targets
        for entry in _installation.kernels_of_operations(target)
        if not folders or entry["operation"] in folders
        for kernel in entry["kernels"]
    ]
