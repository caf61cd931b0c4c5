# SPDX-License-Identifier: MIT
"""Writes files atomically: whenever the process is killed, a file is either complete or absent. Data goes to a temporary file,
which is flushed to disk and then renamed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

NAME = re.compile(r"step-(\d{8})\.pt")
UNFINISHED = ".unfinished"


def write_atomically(path: Path, content: bytes | Callable[[BinaryIO], Any]) -> None:
    """Write content to path atomically; it is on disk when this returns. content may be a function that writes to the open file."""
    unfinished = path.with_name(path.name + UNFINISHED)
    with open(unfinished, "wb") as file:
        if callable(content):
            content(file)
        else:
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too
    finally:
        os.close(folder)


def save(folder: Path, step: int, state: dict, keep: int) -> Path:
    """Save state as the checkpoint of a step; only the last `keep` checkpoints in the folder are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    write_atomically(path, lambda file: torch.save(state, file))
    for older in _all(folder)[:-keep]:
        older.unlink()
    for unfinished in folder.glob("*" + UNFINISHED):  # of a process that was killed
        unfinished.unlink()
    return path


def latest(folder: Path) -> Path | None:
    """The checkpoint of the highest step; incompletely written ones are ignored."""
    found = _all(folder)
    return found[-1] if found else None


def load(path: Path) -> dict:
    """The state passed to `save`, on the CPU."""
    return torch.load(path, map_location="cpu", weights_only=True)


def _all(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step-*.pt") if NAME.fullmatch(path.name))
