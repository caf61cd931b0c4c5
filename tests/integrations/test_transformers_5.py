# SPDX-License-Identifier: MIT
"""Gated delta nets of Transformers 5, in a separate process, since this process has Transformers 4. `./run test` installs Transformers 5
for tests/test_hub_kernels.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(sys.prefix) / "hub_packages"
FILE = Path(__file__).with_name("test_transformers_delta_rule.py")
pytestmark = pytest.mark.skipif(
    not (PACKAGES / "transformers").is_dir(), reason="Transformers 5 is not in .venv/hub_packages"
)


def run(*arguments: str) -> str:
    path = os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "-rA", str(FILE), *arguments],
        env=os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
        cwd=FILE.parents[2], capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def test_qwen3_5():
    passed = run("-k", "gfx950 and (Qwen3_5TextConfig or packed)")
    for test in ("logits_and_gradients", "generation_is_eager_ones"):
        assert f"test_{test}[Qwen3_5TextConfig-gfx950]" in passed
    assert "3 passed" in passed


@pytest.mark.slow
@pytest.mark.parametrize(("which", "passed"), [("not slow", 18), ("slow", 6)])
def test_all_models_and_both_targets(which, passed):
    assert f"{passed} passed" in run("-m", which)
