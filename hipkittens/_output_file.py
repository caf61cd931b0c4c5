# SPDX-License-Identifier: MIT
"""Files that a command is told to write."""

from __future__ import annotations

import os
from pathlib import Path


def require_writable(option: str, path: str) -> None:
    """ValueError for a file that could not be written, before what shall be written there has taken its time."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {str(folder)!r}; make it first")
    if Path(path).is_dir():
        raise ValueError(f"{option}: {path!r} is a folder; name a file")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"{option}: {path!r} cannot be written; name a file that can")
