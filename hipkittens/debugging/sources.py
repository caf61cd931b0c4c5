# SPDX-License-Identifier: MIT
"""Finds the source files that a line table names."""

from __future__ import annotations

import functools
from pathlib import Path


class Sources:
    """Looks for a file under its recorded name, then below each folder: the working directory, the checkout, and added folders."""

    def __init__(self) -> None:
        self.folders = [Path.cwd(), Path(__file__).resolve().parents[2]]

    def add(self, folder: str) -> None:
        """ValueError if there is no such folder."""
        path = Path(folder).expanduser().resolve()
        if not path.is_dir():
            raise ValueError(f"{folder!r} is no folder")
        self.folders.append(path)

    def path(self, file: str) -> Path | None:
        for folder in self.folders:
            if (folder / file).is_file():
                return (folder / file).resolve()
        return None

    def lines(self, file: str) -> list[str]:
        """The lines of the file; none if it was not found."""
        path = self.path(file)
        return _lines(path) if path else []


@functools.cache
def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
