# SPDX-License-Identifier: MIT
"""Imports one of our modules as soon as another library's module is imported, so that unused integrations cost nothing."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader(importlib.abc.Loader):
    """The loader found for the awaited module, followed by the import of ours."""

    def __init__(self, loader: Any, ours: str) -> None:
        self._loader, self._ours = loader, ours

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        importlib.import_module(self._ours)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, awaited: str, ours: str) -> None:
        self._awaited, self._ours = awaited, ours

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != self._awaited:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._ours)
        return spec


def after_import(awaited: str, ours: str) -> None:
    """Imports the module `ours` right after `awaited` is imported, or immediately if it has been imported already."""
    if awaited in sys.modules:
        importlib.import_module(ours)
    else:
        sys.meta_path.insert(0, _Finder(awaited, ours))
