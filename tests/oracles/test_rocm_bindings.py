# SPDX-License-Identifier: MIT
"""AMD's own Python bindings of HIP, unchanged, under `hipkittens sim run` and `sim check`."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from hipkittens._installation import TARGETS
from tests.device_compiler import compile_hip
from tests.oracles.test_hip_program import SCALE

# ./run test --slow installs it there.
PACKAGES = pathlib.Path(sys.prefix) / "rocm_packages"
PROGRAM = pathlib.Path(__file__).with_name("rocm_bindings_program.py")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not PACKAGES.exists(), reason="rocm-bindings-hip is not installed (./run test --slow installs it)"
    ),
]


@pytest.mark.parametrize("how", ["run", "check"])
@pytest.mark.parametrize("target", TARGETS)
def test_a_program_runs_unchanged(target, how, tmp_path):
    (tmp_path / "scale.co").write_bytes(compile_hip(SCALE, target))
    of_target = ("--target", target) if how == "run" else ()
    done = subprocess.run(
        [sys.executable, "-m", "hipkittens", "sim", how, *of_target, "--",
         sys.executable, str(PROGRAM), target, str(tmp_path / "scale.co")],
        env=os.environ | {"PYTHONPATH": str(PACKAGES), "HIPKITTENS_SIMULATED_DEVICES": target}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert found["arch"] == target and found["devices"] == 1 and found["version"] >= 70000000
    assert found["wrong name"] == "500" and found["beyond"] == "1"  # hipErrorNotFound, hipErrorInvalidValue
    # The others are ends of ranges of numbers, and what HIP itself calls unused.
    assert found["attributes"] >= 108 and found["of attributes"] == 122
