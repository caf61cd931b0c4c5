# SPDX-License-Identifier: MIT
"""The files of this installation: two shared libraries and a pack of code objects for each target."""

from __future__ import annotations

import functools
import os
import struct
from pathlib import Path
from typing import Any

from ._pack import Pack

TARGETS = ("gfx942", "gfx950")
PROBES = "probe"  # the folder below csrc/kernels that belongs to no operation: hipkittens/probes
_HERE = Path(__file__).absolute().parent  # links are kept: a file cache may link each file here
OPERATORS = _HERE / "lib" / "_ops.so"
SIMULATOR = _HERE / "lib" / "libhipkittens_simulator.so"


_PACKS = _HERE / "_kernels"


@functools.cache
def pack(target: str) -> Pack:
    whole = _PACKS / f"{target}.hkpack"
    part = _part(target)
    return Pack(part if part.exists() and not whole.exists() else whole)


def _part(target: str) -> Path:
    """What a checkout has instead of a pack until all of its kernels are compiled: those of `hipkittens demo` (./run demo)."""
    return _PACKS / "demo" / f"{target}.hkpack"


def why_no_kernel(target: str, kernel: str) -> str:
    """The message for a kernel that is missing from the pack."""
    reason = f"the pack of {target} has no kernel {kernel}"
    if pack(target).path == _part(target):
        reason += (
            ": so far this checkout has those of `hipkittens demo` alone; ./run build compiles the others"
        )
    return reason


def kernels_of_operations(target: str) -> list[dict[str, Any]]:
    """The entries of the pack that operators launch: all but those of probes."""
    return [entry for entry in pack(target).entries if entry["operation"] != PROBES]


def require_whole(library: Path) -> None:
    """OSError if the file ends before its section table: the dynamic linker would map it, and the process would die of SIGBUS."""
    with library.open("rb") as file:
        header = file.read(64)
        size = os.fstat(file.fileno()).st_size
    if len(header) < 64 or not header.startswith(b"\x7fELF"):
        return  # the dynamic linker will refuse it
    (table,) = struct.unpack_from("<Q", header, 0x28)
    entry_bytes, entries = struct.unpack_from("<HH", header, 0x3A)
    if size < table + entry_bytes * entries:
        raise OSError(f"{library.name} has {size} bytes of {table + entry_bytes * entries}")


def why_not_loaded(error: OSError) -> str:
    """The cause of the dynamic linker's error for _ops.so, and what to do."""
    text = str(error.__cause__ or error)  # torch wraps it
    if not OPERATORS.exists():
        cause = "the file is not there; reinstall hipkittens (in a checkout: ./run build)"
    elif "GLIBC" in text:
        cause = "the wheel was built for a newer system; it needs glibc 2.34 and GCC 11's libstdc++, or later"
    elif "undefined symbol" in text:
        cause = "torch lacks a function of its stable ABI 2.10; upgrade torch, or repair its installation"
    elif "cannot open shared object file" in text:
        cause = "a library that it needs is missing; reinstall torch"
    else:
        cause = "the file is damaged, or not for this machine; reinstall hipkittens"
    return f"hipkittens: {OPERATORS} cannot be loaded: {cause} ({text})"
