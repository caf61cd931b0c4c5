# SPDX-License-Identifier: MIT
"""IREE's compiler and runtime, unchanged, under `hipkittens sim run`: kernels that are independent of this project."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from hipkittens._installation import TARGETS

# ./run test --slow installs it there: its wheels need nothing of this environment.
PACKAGES = pathlib.Path(sys.prefix) / "iree_packages"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PACKAGES.exists(), reason="IREE is not installed (./run test --slow installs it)"),
]

MATMUL = """
func.func @main(%a: tensor<130x96xf16>, %b: tensor<96x200xf16>) -> tensor<130x200xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<130x200xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<130x200xf32>) -> tensor<130x200xf32>
  %c = linalg.matmul ins(%a, %b : tensor<130x96xf16>, tensor<96x200xf16>) outs(%start : tensor<130x200xf32>)
      -> tensor<130x200xf32>
  return %c : tensor<130x200xf32>
}
"""
SOFTMAX = """
func.func @main(%x: tensor<37x1000xf32>) -> tensor<37x1000xf32> {
  %empty = tensor.empty() : tensor<37x1000xf32>
  %y = linalg.softmax dimension(1) ins(%x : tensor<37x1000xf32>) outs(%empty : tensor<37x1000xf32>)
      -> tensor<37x1000xf32>
  return %y : tensor<37x1000xf32>
}
"""


def matmul(a, b):
    return a @ b


def softmax(x):
    weights = np.exp(x - x.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


CASES = {
    "matmul": (MATMUL, matmul, [(130, 96), (96, 200)], np.float16),
    "softmax": (SOFTMAX, softmax, [(37, 1000)], np.float32),
}


def iree(program, *arguments, wrapper=()):
    environment = os.environ | {"PYTHONPATH": str(PACKAGES)}
    done = subprocess.run(
        [*wrapper, PACKAGES / "bin" / program, *map(str, arguments)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("streams", (True, False), ids=("streams", "graphs"))
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGETS)
def test_compiled_functions_are_right(target, name, streams, tmp_path):
    source, function, shapes, dtype = CASES[name]
    (tmp_path / "source.mlir").write_text(source)
    iree("iree-compile", "--iree-hal-target-device=hip", f"--iree-rocm-target={target}", tmp_path / "source.mlir",
         "-o", tmp_path / "compiled.vmfb")  # fmt: skip
    generator = np.random.default_rng(0)
    inputs = [(3 * generator.standard_normal(shape)).astype(dtype) for shape in shapes]
    for number, value in enumerate(inputs):
        np.save(tmp_path / f"{number}.npy", value)
    iree(
        "iree-run-module", "--device=hip", f"--module={tmp_path / 'compiled.vmfb'}", "--function=main",
        *(f"--input=@{tmp_path / str(number)}.npy" for number in range(len(inputs))), f"--output=@{tmp_path / 'out.npy'}",
        f"--hip_use_streams={str(streams).lower()}",
        wrapper=(sys.executable, "-m", "hipkittens", "sim", "run", "--target", target, "--"),
    )  # fmt: skip
    expected = function(*(value.astype(np.float64) for value in inputs))
    error = np.load(tmp_path / "out.npy") - expected
    assert np.sqrt((error**2).mean() / (expected**2).mean()) < 3e-6
