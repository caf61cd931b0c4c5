# SPDX-License-Identifier: MIT
"""Every kernel that ships runs with every checker on, in a process of its own that has loaded none before.

By the default run those of LISTED in tests/test_resources.py, except for the problems that it has no row for.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_resources import LISTED, kernels_of

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "parity_kernels.py"


def run(target, *options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--target", target, "--json", *options],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["kernels"] >= 100
    assert not row["not_finite"] and not row["findings"], row
    return row


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_runs_without_a_finding(target):
    row = run(target, *(word for folder in LISTED for word in ("--without-listed", folder)))
    assert set(row["never_launched"]) <= kernels_of(target, LISTED), row


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_is_launched_by_its_own_problems(target):
    assert not run(target)["never_launched"]
