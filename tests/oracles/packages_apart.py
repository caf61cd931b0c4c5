# SPDX-License-Identifier: MIT
"""Python packages in a separate folder, hidden from other tests."""

from __future__ import annotations

import contextlib
import importlib.metadata
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


def versions(folder: Path) -> dict[str, str]:
    """Versions of the distributions in the folder, by name."""
    return {
        each.metadata["Name"]: each.version for each in importlib.metadata.distributions(path=[str(folder)])
    }


def missing(folder: Path, name: str, version: str, others: str = "") -> str:
    """What has to be installed, or "". others: what else the folder contains."""
    if versions(folder).get(name) == version:
        return ""
    return f"{name} {version} is not in {folder}: ./run test --slow installs it{others}"


def process(prepare: Callable[[], None]) -> ProcessPoolExecutor:
    """A separate process that can import packages which this one must not have. prepare: what it does first."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare)


@contextlib.contextmanager
def importable_from(folder: Path, *packages: str) -> Iterator[None]:
    """Context in which the contents of the folder can be imported; modules of these packages are dropped afterwards, together with what
    they recorded about the GPU."""
    sys.path.insert(0, str(folder))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in packages:
                del sys.modules[name]
