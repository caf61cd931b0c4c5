# SPDX-License-Identifier: MIT
"""TorchTitan where `./run test --slow` installs it, in a folder of its own with what its models import, and processes that import it from
there. Its trainer and what that imports (data sets, TensorBoard, checkpoints) are not there. Nothing of TorchTitan is stubbed or changed."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles.packages_apart import versions

PACKAGES = Path(sys.prefix) / "torchtitan_packages"
VERSION = "0.3.0"


def missing() -> str:
    """What has to be installed, or ""."""
    if versions(PACKAGES).get("torchtitan") != VERSION:
        return f"torchtitan {VERSION} is not in {PACKAGES}: ./run test --slow installs it and what its models import"
    return ""


def prepare() -> None:
    """In a process of its own: TorchTitan can be imported."""
    sys.path.insert(0, str(PACKAGES))


def process() -> ProcessPoolExecutor:
    """One that is prepared."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare)
