# SPDX-License-Identifier: MIT
"""Every kernel that ships runs with every checker on, in a process of its own that has loaded none before."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_every_kernel_runs_without_a_finding(target):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    script = ROOT / "benchmarks" / "parity_kernels.py"
    done = subprocess.run(
        [sys.executable, script, "--target", target, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["kernels"] >= 100
    assert not row["never_launched"] and not row["not_finite"] and not row["findings"], row
    assert done.returncode == 0
