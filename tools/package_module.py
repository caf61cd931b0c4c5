# SPDX-License-Identifier: MIT
"""Modules of the package that the build needs before the package, or torch, can be imported."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PACKAGE = Path(__file__).resolve().parent.parent / "hipkittens"


def package_module(name: str) -> ModuleType:
    """hipkittens/NAME.py by itself, without importing hipkittens. It must use the standard library only."""
    spec = importlib.util.spec_from_file_location(name, PACKAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look the module up there
    spec.loader.exec_module(module)
    return module
