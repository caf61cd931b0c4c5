# SPDX-License-Identifier: MIT
"""Python packages in a folder of their own, which other tests shall not find."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path


def versions(folder: Path) -> dict[str, str]:
    """Of the distributions in it, by their names."""
    return {
        each.metadata["Name"]: each.version for each in importlib.metadata.distributions(path=[str(folder)])
    }


@contextlib.contextmanager
def importable_from(folder: Path, *packages: str) -> Iterator[None]:
    """While open, what is in the folder can be imported; modules of these packages are forgotten afterwards, with what they made of the
    GPU that they saw."""
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in packages:
                del sys.modules[name]
