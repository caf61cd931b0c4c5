# SPDX-License-Identifier: MIT
"""TorchTitan as `./run test --slow` installs it, in a separate folder together with what its models import, and processes that import it
from there. Its trainer and the trainer's imports (data sets, TensorBoard, checkpoints) are absent. Nothing of TorchTitan is stubbed or
changed."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles import packages_apart

PACKAGES = Path(sys.prefix) / "torchtitan_packages"
VERSION = "0.3.0"


def missing() -> str:
    """What has to be installed, or ""."""
    return packages_apart.missing(PACKAGES, "torchtitan", VERSION, " and what its models import")


def prepare() -> None:
    """Prepare a separate process: TorchTitan can be imported."""
    sys.path.insert(0, str(PACKAGES))


def process() -> ProcessPoolExecutor:
    """A prepared process."""
    return packages_apart.process(prepare)
