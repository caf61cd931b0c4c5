# SPDX-License-Identifier: MIT
"""Runs the program that a command is given."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from . import _environment, _installation

# Programs open the HIP and HSA libraries by one of these names, or list one as needed: the last one if they were linked with
# the simulator itself.
_LIBRARIES = (
    "libamdhip64.so",
    "libamdhip64.so.6",
    "libamdhip64.so.7",
    "libhsa-runtime64.so",
    "libhsa-runtime64.so.1",
    _installation.SIMULATOR.name,
)
_MOST_DEVICES = 128


@contextlib.contextmanager
def simulated_hip(target: str | None = None, devices: int = 1) -> Iterator[dict[str, str]]:
    """An environment in which the dynamic linker finds the simulator when a program loads libamdhip64, of version 6 or 7, or
    libhsa-runtime64.

    `target` is the kind of all of its `devices`, None one of each kind. ValueError for an invalid number.
    """
    if not 1 <= devices <= _MOST_DEVICES:
        raise ValueError(f"--devices is {devices}; allowed: 1 to {_MOST_DEVICES}")
    with tempfile.TemporaryDirectory(prefix="hipkittens") as folder:
        for name in _LIBRARIES:
            (Path(folder) / name).symlink_to(_installation.SIMULATOR)
        before = os.environ.get("LD_LIBRARY_PATH")
        environment = os.environ | {"LD_LIBRARY_PATH": f"{folder}:{before}" if before else folder}
        if target:
            environment |= {
                _environment.SIMULATED_DEVICES.variable: ",".join([target] * devices),
                _environment.ARCH.variable: target,
            }
        yield environment


def run_program(program: Sequence[str], environment: Mapping[str, str], output_to_stderr: bool) -> int:
    """Runs the program and returns its exit status. `output_to_stderr` keeps its output out of JSON. ValueError if it cannot be started."""
    try:
        done = subprocess.run(program, env=environment, stdout=sys.stderr if output_to_stderr else None)
    except OSError as error:
        raise cannot_run(program, error) from None
    return done.returncode


def cannot_run(program: Sequence[str], error: OSError) -> ValueError:
    """The exception for a program whose start raised `error`."""
    return ValueError(
        f"cannot run {program[0]!r}: {error.strerror}; allowed: a program on the PATH, or a path"
    )
