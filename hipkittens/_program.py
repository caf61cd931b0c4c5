# SPDX-License-Identifier: MIT
"""Running the program that a command is given."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence


def run_program(program: Sequence[str], environment: Mapping[str, str], output_to_stderr: bool) -> int:
    """Its exit status. `output_to_stderr` keeps what it prints out of JSON. ValueError if it cannot be started."""
    try:
        done = subprocess.run(program, env=environment, stdout=sys.stderr if output_to_stderr else None)
    except OSError as error:
        raise ValueError(
            f"cannot run {program[0]!r}: {error.strerror}; allowed: a program on the PATH, or a path"
        ) from None
    return done.returncode
