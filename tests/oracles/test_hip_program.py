# SPDX-License-Identifier: MIT
"""A HIP host program, compiled against HIP's own headers, runs unchanged with the simulator as its libamdhip64."""

import importlib.util
import os
import pathlib
import subprocess

import pytest

from hipkittens._installation import SIMULATOR
from tests.device_compiler import compile_hip

HERE = pathlib.Path(__file__).parent
SCALE = """
extern "C" __attribute__((global)) void scale(float* data, float factor, int n) {
    const int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (i < n) data[i] *= factor;
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    found = importlib.util.find_spec("triton")
    if found is None:
        pytest.skip(
            "the triton wheel, which carries HIP's headers, is not installed (./run test installs it)"
        )
    headers = pathlib.Path(found.origin).parent / "backends/amd/include"
    folder = tmp_path_factory.mktemp("hip")
    (folder / "libamdhip64.so").symlink_to(SIMULATOR)
    subprocess.run(
        ["g++", "-std=c++17", "-w", f"-I{headers}", str(HERE / "hip_program.cpp"), f"-L{folder}", "-lamdhip64",
         "-o", str(folder / "program")], check=True)  # fmt: skip
    return folder / "program"


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
def test_runs_unchanged(program, target, tmp_path):
    (tmp_path / "scale.co").write_bytes(compile_hip(SCALE, target))
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{program.parent}:{SIMULATOR.parent}"}
    result = subprocess.run(
        [str(program), target, str(tmp_path / "scale.co")], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{target}") and "right" in result.stdout
