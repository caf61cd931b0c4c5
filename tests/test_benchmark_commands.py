# SPDX-License-Identifier: MIT
"""Every program of benchmarks/ starts as its own text says: the documented command, with only those options added that make it short."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks"
# Options that make it short; exit codes that count as an answer; and a word of its output, on either stream.
SHORTEST = {
    "attention": (["--target=gfx950", "--length=130", "--heads=2", "--key-heads=1"], (0,), "forward"),
    "bandwidth": (["--only=mul_add", "--devices=MI300X"], (0,), "share"),
    "gemm_order": (["--sizes=512", "--k=256"], (0,), "TFLOP/s"),
    "gemm_plan": (["--target=gfx942", "--tile=32x64x64"], (0,), "32, 64, 64"),
    "launch": (["--repeat=1"], (0,), "operator_us"),
    "linear_cross_entropy": (
        ["--devices=MI355X", "--tokens=256", "--features=256", "--classes=512", "--json"],
        (0,),
        "gradient of weight",
    ),
    "mutation": (["--sample=1", "--target=gfx950", "--kernel", "softmax_*"], (0, 1), "all of these"),
    "parity": (["--op=gated_activation", "--target=gfx950"], (0,), "worst ratio"),
    "parity_kernels": (["--target=gfx942", "--folder=softmax"], (0,), "never launched"),
    "performance_tables": (["--check", "--only=softmax"], (0, 1), ""),
    "row_operations": (["--only=layer_norm"], (0,), "share_of_bandwidth"),
    "simulator": (["--quick", "--target=gfx950"], (0,), "GFLOP/s"),
    "startup": (["--repeat=1", "--only=softmax"], (0, 1), "import"),  # 1 on a machine that is busy
}
# Those that need files a checkout does not have, with the test that starts them on its own file.
ELSEWHERE = {"calibration": "tests/test_calibration.py"}


def programs():
    return {
        path.stem: path for path in BENCHMARKS.glob("*.py") if '__name__ == "__main__"' in path.read_text()
    }


def test_every_program_is_here():
    assert SHORTEST.keys() | ELSEWHERE.keys() == programs().keys()
    for name, test in ELSEWHERE.items():
        assert f"{name}.py" in (ROOT / test).read_text()


@pytest.mark.parametrize("name", SHORTEST)
def test_the_documented_command_starts(name):
    path = programs()[name]
    options, codes, word = SHORTEST[name]
    documented = re.findall(rf"^    python benchmarks/{name}\.py(.*)$", path.read_text(), re.MULTILINE)
    assert documented, f"{path} does not say how it is run"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    text = done.stdout + done.stderr
    assert done.returncode in codes and "Traceback" not in text, text[-2000:]
    assert word in text, text[-2000:]
