# SPDX-License-Identifier: MIT
"""Output files of commands."""

from __future__ import annotations

import os
from pathlib import Path


def require_writable(option: str, path: str) -> None:
    """ValueError for a file that cannot be written, before the work whose result it is to contain."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {str(folder)!r}; make it first")
    if Path(path).is_dir():
        raise ValueError(f"{option}: {path!r} is a folder; name a file")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"{option}: {path!r} cannot be written; name a file that can")
