# SPDX-License-Identifier: MIT
"""Replaces the classes of one family of models for models created later, until it is undone."""

from __future__ import annotations

import copy
import importlib
import logging
from typing import Any

import torch

from .. import _patch_norms, _patch_rotary
from .._function_globals import global_of
from .._patch_classes import replacement_class

try:
    from transformers.monkey_patching import (
        get_patch_mapping,
        register_patch_mapping,
        unregister_patch_mapping,
    )
except ImportError:  # Transformers 4
    register_patch_mapping = None

log = logging.getLogger("hipkittens")
_MODULES = {"gemma3_text": "gemma3"}


class ClassPatch:
    """What apply_to_llama and similar functions did without a model. remove(), or the end of a with block, undoes it.

    classes  the names of the replaced classes

    Transformers 5 keeps the list itself (register_patch_mapping), and reads it in from_pretrained and from_config; a model created by
    calling its class is not changed. For Transformers 4 the names in the family's module are replaced, so every new model is changed. In
    both cases existing models and other families are unaffected, and models created in between keep the kernels until hipkittens.unpatch.
    """

    def __init__(self, function: str, families: tuple[str, ...], *, norm: bool, rotary: bool) -> None:
        self._modules = [
            importlib.import_module(f"transformers.models.{name}.modeling_{name}")
            for name in (_MODULES.get(family, family) for family in families)
        ]
        self._classes: dict[tuple[Any, str], tuple[type, type]] = {}
        for module in self._modules:
            for name, kind in vars(module).items():
                rule = _rule(module, kind, norm, rotary)
                if rule is not None:
                    self._classes[module, name] = (kind, replacement_class(kind, rule))
        self.classes = sorted(name for _, name in self._classes)
        self._active = False
        self._recorders: dict[type, Any] = {}
        self._apply(function)
        log.info("%s: later models of %s use %s", function, ", ".join(families), ", ".join(self.classes))

    def _apply(self, function: str) -> None:
        if register_patch_mapping is None:
            taken = [
                name
                for module in self._modules
                for name, kind in vars(module).items()
                if isinstance(kind, type) and "_hipkittens_rule" in vars(kind)
            ]
        else:
            taken = [name for name in self.classes if _pattern(name) in get_patch_mapping()]
        if taken:
            raise RuntimeError(
                f"hipkittens.integrations.transformers.{function}: {', '.join(taken)} is replaced already; remove() that first"
            )
        if register_patch_mapping is None:
            for (module, name), (_, ours) in self._classes.items():
                setattr(module, name, ours)
        else:
            # Transformers writes our classes into this table of a model's class, and would not remove them.
            for module in self._modules:
                for kind in vars(module).values():
                    table = vars(kind).get("_can_record_outputs") if isinstance(kind, type) else None
                    if isinstance(table, dict):
                        self._recorders[kind] = copy.deepcopy(table)
            register_patch_mapping({_pattern(name): ours for (_, name), (_, ours) in self._classes.items()})
        self._active = True

    def remove(self) -> None:
        """Models created from now on are the original ones again. A second call does nothing."""
        if not self._active:
            return
        self._active = False
        if register_patch_mapping is None:
            for (module, name), (theirs, _) in self._classes.items():
                setattr(module, name, theirs)
            return
        unregister_patch_mapping([_pattern(name) for name in self.classes])
        for kind, table in self._recorders.items():
            kind._can_record_outputs = table

    def __enter__(self) -> ClassPatch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.remove()


def _pattern(name: str) -> str:
    """Transformers treats names as patterns, which would also match MobileBertX for BertX."""
    return f"^{name}$"


def _rule(module: Any, kind: Any, norm: bool, rotary: bool) -> tuple | None:
    if (
        not isinstance(kind, type)
        or not issubclass(kind, torch.nn.Module)
        or kind.__module__ != module.__name__
    ):
        return None
    found: Any = None
    if norm and kind.__name__.endswith("RMSNorm"):
        instance = kind(8)
        found = _patch_norms.understand(instance) if _patch_norms.looks_like_a_norm(instance) else None
    if rotary and global_of(kind.forward, _patch_rotary.NAME) is not None:
        found = _patch_rotary.understand(kind)
    return found if isinstance(found, tuple) else None
