# SPDX-License-Identifier: MIT
"""Every shipped kernel runs with every checker on, in a separate process that has loaded no kernel before.

The default run leaves kernels of LISTED to tests/test_resources.py, which runs them with every checker on as well.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_resources import LISTED

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "benchmarks" / "parity_kernels.py"


def check(target, *options):
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
    assert not row["never_launched"] and not row["not_finite"] and not row["findings"], row
    assert done.returncode == 0


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_runs_without_a_finding(target):
    check(target, *(word for folder in LISTED for word in ("--without-listed", folder)))


@pytest.mark.slow
@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_is_launched_by_its_own_problems(target):
    check(target)
