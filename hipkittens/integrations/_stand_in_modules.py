# SPDX-License-Identifier: MIT
"""Modules of ours under the names of CUDA extensions that other libraries import."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType


def put(where: str, modules: dict[str, ModuleType], is_ours: bool) -> None:
    """Makes `import` find these modules by their names, the first of which is the extension's. is_ours: whether the module imported under
    it is ours. Raises ImportError, from `where`, if another one is imported or installed.
    """
    name = next(iter(modules))
    if is_ours:
        return
    if sys.modules.get(name) is not None or importlib.util.find_spec(name) is not None:
        raise ImportError(
            f"{where}: this Python has a {name} of its own; uninstall it, or do not call install()"
        )
    sys.modules |= modules
