#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks whether the packs in hipkittens/_kernels can be used in place of a device compiler: they contain every variant, are
intact, and were made from the device sources of this tree. An sdist contains them. Exit code 1 and the reason if they cannot be used.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel_variants
from package_module import package_module

_pack = package_module("_pack")


def source_digest(root: Path, names: list[str]) -> str:
    """The digest that tools/build_kernels.py writes into the pack's index."""
    digest = hashlib.sha256()
    for name in names:
        digest.update(name.encode() + b"\0" + (root / name).read_bytes())
    return digest.hexdigest()


def why_not(root: Path = kernel_variants.ROOT) -> str | None:
    """Why the packs cannot be used; None if they can."""
    wanted = {
        (target, f"{operation}.{row['name']}")
        for target, operation, row in kernel_variants.all_variants(root)
    }
    for target in kernel_variants.TARGETS:
        pack = _pack.Pack(root / "hipkittens" / "_kernels" / f"{target}.hkpack")
        try:
            pack.verify()
        except _pack.PackError as error:
            return str(error)
        names = {entry["name"] for entry in pack.entries}
        if missing := sorted(name for where, name in wanted if where == target and name not in names):
            return f"{pack.path} has no {missing[0]}" + (
                f" and {len(missing) - 1} more" if missing[1:] else ""
            )
        for entry in pack.entries:
            try:
                digest = source_digest(root, entry["sources"])
            except OSError as error:
                return f"{pack.path}: a source of {entry['name']} is gone: {error.filename}"
            if digest != entry["source_sha256"]:
                return f"{pack.path}: {entry['name']} was made from other sources than those here"
    return None


if __name__ == "__main__":
    reason = why_not()
    if reason:
        raise SystemExit(reason)
