# SPDX-License-Identifier: MIT
"""Where the files are that a line table names."""

from __future__ import annotations

import functools
from pathlib import Path


class Sources:
    """Looks for a file as it is named, then below each folder: the working directory, the checkout, and those that are added."""

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
        """Its text; none if it is not here."""
        path = self.path(file)
        return _lines(path) if path else []


@functools.cache
def _lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()
