# SPDX-License-Identifier: MIT
"""Programs compiled by Mojo run as they are under `hipkittens sim run`: a kernel of ours, and Modular's own matrix product."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

from hipkittens._installation import TARGETS

# ./run test --slow installs it there.
PACKAGES = pathlib.Path(sys.prefix) / "mojo_packages"
SOURCES = pathlib.Path(__file__).parent / "mojo"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PACKAGES.exists(), reason="Mojo is not installed (./run test --slow installs it)"),
]
# Relative to float64: one rounding of the result, and the order of float32's sums.
BARS = {torch.bfloat16: 4e-3, torch.float32: 5e-7}
NO_DOT = "Cannot select: intrinsic %llvm.amdgcn.fdot2.f32.bf16"


def compile_mojo(source, target, into, **numbers):
    defines = [word for name, value in numbers.items() for word in ("-D", f"{name}={value}")]
    return subprocess.run(
        [PACKAGES / "bin" / "mojo", "build", f"--target-accelerator={target}", *defines, SOURCES / source, "-o", into],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(PACKAGES)},
    )  # fmt: skip


def simulated(command, *arguments, target):
    done = subprocess.run(
        [sys.executable, "-m", "hipkittens", "sim", command, "--", *map(str, arguments)], capture_output=True, text=True,
        env=os.environ | {"HIPKITTENS_ARCH": target, "HIPKITTENS_SIMULATED_DEVICES": target},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel(target, tmp_path):
    done = compile_mojo("vector_add.mojo", target, tmp_path / "add")
    assert done.returncode == 0, done.stderr
    name = {"gfx942": "MI300X", "gfx950": "MI355X"}[target]
    said = f"AMD Instinct {name} (simulated) wrong 0\n"
    assert simulated("run", tmp_path / "add", target=target) == said
    checked = simulated("check", tmp_path / "add", target=target)
    assert said in checked and "0 findings" in checked


@pytest.mark.parametrize("dtype", BARS, ids=str)
@pytest.mark.parametrize("target", TARGETS)
def test_linalg_matmul(target, dtype, tmp_path, record_property):
    m, n, k = 96, 256, 512
    done = compile_mojo("matmul.mojo", target, tmp_path / "matmul", M=m, N=n, K=k, BYTES=dtype.itemsize)
    if target == "gfx942" and dtype == torch.bfloat16:
        assert NO_DOT in done.stderr
        record_property("client_fault", f"its compiler ends with *{NO_DOT}*: gfx942 has no such instruction")
        return
    assert done.returncode == 0, done.stderr
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, k, generator=generator).to(dtype) for rows in (m, n))
    for name, value in (("a", a), ("b", b)):
        (tmp_path / f"{name}.bin").write_bytes(bytes(value.view(torch.uint8).flatten().tolist()))
    for command in ("run", "check"):
        lines = simulated(command, tmp_path / "matmul", tmp_path, target=target).splitlines()
        c = torch.tensor([float(line) for line in lines[: m * n]], dtype=torch.float64).view(m, n)
        exact = a.double() @ b.double().T
        assert (c - exact).norm() / exact.norm() < BARS[dtype]
    assert " 0 findings" in lines[-1]
