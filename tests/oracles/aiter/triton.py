# SPDX-License-Identifier: MIT
"""The unmodified Triton kernels of AITER's wheel, as modules. The imports in its packages need ROCm and are not run: empty packages with
the wheel's paths replace them."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import types
from pathlib import Path

from tests.oracles.aiter.wheel import DISTRIBUTION, VERSION

_EMPTY = ("aiter", "aiter.ops", "aiter.ops.triton")


def module(name: str) -> types.ModuleType:
    """The module `name` below aiter.ops.triton, such as "topk". ImportError without the wheel of the known version."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"needs {DISTRIBUTION}=={VERSION}", name=DISTRIBUTION) from None
    if distribution.version != VERSION:
        raise ImportError(f"{DISTRIBUTION} is {distribution.version}, not {VERSION}", name=DISTRIBUTION)
    added = [package for package in _EMPTY if package not in sys.modules]
    for package in added:
        stand_in = types.ModuleType(package)
        stand_in.__path__ = [str(Path(str(distribution.locate_file(package.replace(".", "/")))))]
        sys.modules[package] = stand_in
    try:
        return importlib.import_module(f"aiter.ops.triton.{name}")
    finally:
        for package in added:  # others check whether AITER can be imported
            del sys.modules[package]
