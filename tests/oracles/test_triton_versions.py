# SPDX-License-Identifier: MIT
"""The tests of Triton kernels with releases of Triton later than the installed one, each in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = ("tests/oracles/test_triton.py", "tests/oracles/test_triton_benchmark.py")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.8.0", "3.9.0"])
def test_all_pass_with_another_release(version):
    packages = Path(sys.prefix) / f"triton_{version}_packages"
    if not packages.is_dir():
        pytest.skip(f"no {packages}: pip install --no-deps --target {packages} triton=={version}")

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(packages)}
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
        )

    assert run("-c", "import triton; print(triton.__version__)").stdout.strip() == version
    done = run("-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider", *FILES)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and "skipped" not in done.stdout, done.stdout[-2000:]
