"""Files shared by the worker processes of a test run, each created once by the first worker that needs it."""

from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
from collections.abc import Callable


def made_once(tmp_path_factory, name: str, make: Callable[[pathlib.Path], object]) -> pathlib.Path:
    """The folder `name` of the run, filled by `make` in one worker while the others wait. If that fails, the next worker tries again."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, made = shared / name, shared / f"{name}.made"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
