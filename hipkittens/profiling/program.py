# SPDX-License-Identifier: MIT
"""The launches of a program in the cycle model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence

from .. import _timing
from .._program import run_program


def modelled_program(
    program: Sequence[str], device: str, output_to_stderr: bool, timeline: int = 0
) -> tuple[int, list[_timing.ModelledLaunch]]:
    """Exit status and modelled launches of a program that imports hipkittens; `timeline` as in `hipkittens.timing`.

    `output_to_stderr` keeps the program's output out of JSON. ValueError if it cannot be started.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "launches.json")
        environment = os.environ | {
            "HIPKITTENS_TIMING": device,
            "HIPKITTENS_TIMING_FILE": path,
            "HIPKITTENS_TIMING_TIMELINE": str(timeline),
            "HIPKITTENS_ARCH": _timing.DEVICES[device],
        }
        status = run_program(program, environment, output_to_stderr)
        if not os.path.exists(path):
            return status, []
        with open(path) as file:
            return status, _timing.launches_of(file.read())
