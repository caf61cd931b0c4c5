# SPDX-License-Identifier: MIT
"""Loads this installation's operators: torch.ops.hipkittens, or the name that tools/hub_kernels.py gave to a copy of it."""

from __future__ import annotations

import ctypes

import torch

from . import _installation

try:
    _installation.require_whole(_installation.OPERATORS)
    # Not torch.ops.load_library, which follows links, possibly into a folder without the simulator if a file cache stores each file separately.
    _LIBRARY = ctypes.CDLL(str(_installation.OPERATORS))
except OSError as error:
    raise ImportError(_installation.why_not_loaded(error)) from error


def _text(symbol: str, size: int) -> str:
    return (ctypes.c_char * size).in_dll(_LIBRARY, symbol).value.decode()


NAMESPACE = _text("hipkittens_torch_namespace", 64)
OPERATORS = getattr(torch.ops, NAMESPACE)
_OWNER = "_loaded_from"


def _claim() -> None:
    """ImportError if another copy has registered these operators already: both would answer for torch.ops.<NAMESPACE>."""
    path = str(_installation.OPERATORS)
    owner = vars(OPERATORS).get(_OWNER)
    wrong = _text("hipkittens_torch_registration_error", 256)
    if owner is not None or wrong:
        raise ImportError(
            f"hipkittens: torch.ops.{NAMESPACE} is registered already, by {owner or 'another library'}, so {path} cannot "
            f"register it{f' ({wrong})' if wrong else ''}; load one copy in a process, or copies that tools/hub_kernels.py made"
        )
    setattr(OPERATORS, _OWNER, path)
    torch.ops.loaded_libraries.add(path)


_claim()
