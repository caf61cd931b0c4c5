"""Finding a HIP library, loading kernels and launching them, with a HIP library that only logs its calls."""

import json
import os
import shutil
import subprocess

import pytest

from tests.device_compiler import compile_hip
from tests.host_build import build, sources_of
from tests.simulated_device import library_path
from tests.worker_files import made_once

SCALE = 'extern "C" __global__ void scale(float* out, const float* in, int n) {'
SCALE += "int i = workgroup_id() * 256 + thread_id(); if (i < n) out[i] = 2 * in[i]; }"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The probe, and two fake HIP libraries."""

    def make(folder):
        probe = [*sources_of("runtime"), *sources_of("code_object"), "tests/runtime/runtime_probe.cpp"]
        build(folder / "probe", probe, "-O0")
        fake = "tests/runtime/fake_amdhip64.cpp"
        hidden = ("-shared", "-fvisibility=hidden")
        build(folder / "libfake.so", [fake], *hidden, "-Wl,-soname,libamdhip64.so.6")
        build(folder / "libold.so", [fake], *hidden, "-DFAKE_HIP_OLD")

    return made_once(tmp_path_factory, "runtime", make)


class Machine:
    """A folder with the probe in it, and an environment with no HIP library except those that a test puts there."""

    def __init__(self, built, folder):
        self.built, self.folder, self.log = built, folder, folder / "calls.txt"
        self.environment = {"PATH": os.environ["PATH"], "FAKE_HIP_LOG": str(self.log)}
        self.probe = shutil.copy(built / "probe", folder / "probe")

    def install(self, place, which="libfake.so"):
        path = self.folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.built / which, path)
        return str(path)

    def install_simulator(self):
        os.symlink(library_path(), self.folder / "libhipkittens_simulator.so")

    def code_object(self, target, source=SCALE):
        path = self.folder / f"{target}.co"
        path.write_bytes(compile_hip(source, target))
        return str(path)

    def run(self, *words, **environment):
        self.log.write_text("")
        done = subprocess.run(
            [self.probe, *words],
            capture_output=True,
            text=True,
            env=self.environment | environment,
            timeout=120,
        )
        assert done.returncode in (0, 1), (done.returncode, done.stdout, done.stderr)
        assert not done.stderr, done.stderr
        return done.stdout.strip()

    def calls(self):
        return self.log.read_text().splitlines()


@pytest.fixture
def machine(built, tmp_path):
    return Machine(built, tmp_path)


def has_system_hip():
    ldconfig = shutil.which("ldconfig") or shutil.which("ldconfig", path="/usr/sbin:/sbin")
    paths = subprocess.run([ldconfig, "-p"], capture_output=True, text=True).stdout if ldconfig else ""
    return "libamdhip64" in paths or os.path.exists("/opt/rocm/lib")


no_system_hip = pytest.mark.skipif(has_system_hip(), reason="this machine has a HIP library of its own")


# --- finding ------------------------------------------------------------------------------------------------


@no_system_hip
def test_without_a_library_the_message_names_the_places(machine):
    status = json.loads(machine.run("status"))
    assert (status["path"], status["device_count"], status["candidates"]) == (None, 0, [])
    for place in (
        "torch/lib",
        "_rocm_sdk_core/lib",
        "HIP_PATH",
        "ROCM_PATH",
        "/opt/rocm/lib",
        "HIPKITTENS_LIBHIP_PATH",
    ):
        assert place in status["message"]
    assert machine.run("device", "0") == "error: " + status["message"]


def test_a_library_without_a_device_is_named(machine):
    path = machine.install("rocm/lib/libamdhip64.so")
    status = json.loads(machine.run("status", ROCM_PATH=str(machine.folder / "rocm"), FAKE_HIP_DEVICES="0"))
    assert (status["path"], status["device_count"]) == (path, 0)
    assert path in status["message"] and "no device (hipErrorNoDevice)" in status["message"]
    assert "/dev/kfd" in status["message"]


def test_order_of_the_search(machine):
    """Every location has a library; the one found is removed, and then the next location is found."""
    override = machine.install("override/libamdhip64.so")
    mapped = machine.install("mapped/libamdhip64.so.6")
    package = machine.install("_rocm_sdk_core/lib/libamdhip64.so.7")
    hip_path = machine.install("hip/lib/libamdhip64.so")
    rocm_path = machine.install("rocm/lib/libamdhip64.so.6.4.1")
    listed = machine.install("listed/libamdhip64.so")
    (machine.folder / "hipkittens").mkdir()
    machine.probe = shutil.move(machine.probe, machine.folder / "hipkittens" / "probe")
    environment = {
        "HIPKITTENS_LIBHIP_PATH": override,
        "HIP_PATH": str(machine.folder / "hip"),
        "ROCM_PATH": str(machine.folder / "rocm"),
        "LD_LIBRARY_PATH": f":/nowhere:{machine.folder / 'listed'}",
    }
    assert json.loads(machine.run("map", mapped, **environment))["path"] == override
    del environment["HIPKITTENS_LIBHIP_PATH"]
    assert json.loads(machine.run("map", mapped, **environment))["path"] == mapped
    found = json.loads(machine.run("status", **environment))
    assert found["candidates"][1:5] == [package, hip_path, rocm_path, listed]
    for path in (package, hip_path, rocm_path, listed):
        assert json.loads(machine.run("status", **environment))["path"] == path
        os.remove(path)


def test_torch_lib_is_searched_before_rocm(machine):
    torch = machine.install("site/torch/lib/libtorch.so", "libold.so")
    ours = machine.install("site/torch/lib/libamdhip64.so")
    machine.install("rocm/lib/libamdhip64.so")
    status = json.loads(machine.run("map", torch, ROCM_PATH=str(machine.folder / "rocm")))
    assert status["path"] == ours


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("libamdhip64.so", "not an absolute path"),
        ("/nowhere/libamdhip64.so", "is no file"),
        ("text", "cannot open"),
    ],
)
def test_a_bad_override_is_an_error_and_no_other_library_is_taken(machine, value, message):
    machine.install("rocm/lib/libamdhip64.so")
    if value == "text":
        value = str(machine.folder / "libamdhip64.so")
        (machine.folder / "libamdhip64.so").write_text("this is no library")
    status = json.loads(
        machine.run("status", HIPKITTENS_LIBHIP_PATH=value, ROCM_PATH=str(machine.folder / "rocm"))
    )
    assert status["path"] is None and message in status["message"] and value in status["message"]


def test_an_override_that_anybody_may_write_is_refused(machine):
    path = machine.install("libamdhip64.so")
    os.chmod(path, 0o757)
    status = json.loads(machine.run("status", HIPKITTENS_LIBHIP_PATH=path))
    assert "every user may write" in status["message"]


def test_a_missing_function_is_named_with_its_library(machine):
    path = machine.install("libamdhip64.so", "libold.so")
    status = json.loads(machine.run("status", HIPKITTENS_LIBHIP_PATH=path))
    assert status["path"] is None
    assert f"{path} has no hipGetDevicePropertiesR0600; hipkittens needs ROCm 6.0" in status["message"]


# --- devices ------------------------------------------------------------------------------------------------


def test_device(machine):
    path = machine.install("libamdhip64.so")
    environment = {"HIPKITTENS_LIBHIP_PATH": path, "FAKE_HIP_DEVICES": "2", "FAKE_HIP_ARCH": "gfx942,gfx950",
                   "FAKE_HIP_XCDS": "8"}  # fmt: skip
    text = "Fake Instinct | 304 CUs | 8 XCDs | 65536 bytes of LDS | hip"
    assert machine.run("device", "0", **environment) == f"gfx942 | {text}"
    assert machine.run("device", "1", **environment) == f"gfx950 | {text}"
    assert machine.run("device", "2", **environment) == f"error: HIP device 2 does not exist; {path} has 2"
    other = machine.run("device", "0", **environment | {"FAKE_HIP_ARCH": "gfx1100"})
    assert other.startswith(
        "error: HIP device 0 (Fake Instinct) is a gfx1100; hipkittens has kernels for gfx942"
    )


def processors(machine, arch, units, **environment):
    path = machine.install("libamdhip64.so")
    said = machine.run(
        "device",
        "0",
        HIPKITTENS_LIBHIP_PATH=path,
        FAKE_HIP_ARCH=arch,
        FAKE_HIP_UNITS=str(units),
        **environment,
    )
    return int(said.split(" | ")[3].removesuffix(" XCDs"))


@pytest.mark.parametrize("xcds", [1, 2, 4, 6, 8])
def test_xcds_are_what_the_device_says(machine, xcds):
    assert processors(machine, "gfx942", 304, FAKE_HIP_XCDS=str(xcds)) == xcds
    assert "hipGetLastError" not in machine.calls()


@pytest.mark.parametrize(
    ("arch", "units", "xcds"),
    [
        *(("gfx942", 38 * xcds, xcds) for xcds in (1, 2, 4, 6, 8)),  # MI300X whole and in parts, MI300A
        *(("gfx942", 20 * xcds, xcds) for xcds in (1, 2, 4)),  # MI308X
        *(("gfx950", 32 * xcds, xcds) for xcds in (1, 2, 4, 8)),
    ],
)
def test_xcds_that_rocm_6_does_not_say_follow_from_the_compute_units(machine, arch, units, xcds):
    assert processors(machine, arch, units) == xcds
    assert "hipGetLastError" in machine.calls()  # its error is not left for PyTorch to find
    assert processors(machine, arch, units, FAKE_HIP_XCDS="0") == xcds


# --- launching on HIP ---------------------------------------------------------------------------------------


def test_calls_of_a_launch_and_their_order(machine):
    environment = {"HIPKITTENS_LIBHIP_PATH": machine.install("libamdhip64.so")}
    out = machine.run("launch", "hip:0", machine.code_object("gfx942"), "scale", "once", **environment)
    assert out.splitlines() == ["source asked for gfx942 scale", "launched"]
    launch = (
        "hipModuleLaunchKernel 0x2000 grid 3 2 1 block 64 2 1 shared 256 stream 0x77 "
        "arguments 0102030405060708090a0b0c0d0e0f10 device 0"
    )
    assert machine.calls() == [
        "hipGetDeviceCount",
        "hipGetDevicePropertiesR0600 0",
        "hipDeviceGetAttribute 63 0",
        "hipDeviceGetAttribute 10018 0",
        "hipGetLastError",
        "hipDeviceGetAttribute 74 0",
        "hipGetDevice",
        "hipStreamIsCapturing 0x77",
        "hipGetDevice",
        "hipModuleLoadData 7fELF device 0",
        "hipModuleGetFunction 0x1000 scale",
        "hipGetDevice",
        launch,
        "hipGetDevice",
        launch,
    ]


def test_the_current_device_is_changed_and_restored(machine):
    environment = {
        "HIPKITTENS_LIBHIP_PATH": machine.install("libamdhip64.so"),
        "FAKE_HIP_DEVICES": "2",
        "FAKE_HIP_ARCH": "gfx942,gfx950",
    }
    machine.run("launch", "hip:1", machine.code_object("gfx950"), "scale", "once", **environment)
    calls = [call for call in machine.calls() if call.startswith(("hipSetDevice", "hipModuleL"))]
    assert calls[:3] == ["hipSetDevice 1", "hipModuleLoadData 7fELF device 1", "hipSetDevice 0"]
    assert calls[3] == "hipSetDevice 1" and calls[4].endswith("device 1") and calls[5] == "hipSetDevice 0"


def test_a_kernel_is_not_loaded_while_its_stream_is_captured(machine):
    environment = {"HIPKITTENS_LIBHIP_PATH": machine.install("libamdhip64.so"), "FAKE_HIP_CAPTURES": "1"}
    out = machine.run("launch", "hip:0", machine.code_object("gfx942"), "scale", "once", **environment)
    assert out.startswith("error: kernel scale is not loaded on Fake Instinct (gfx942) yet")
    assert "run the call once before the capture, or hipkittens.load()" in out
    assert not [call for call in machine.calls() if call.startswith("hipModule")]


@pytest.mark.parametrize("function", ["hipModuleLoadData", "hipModuleGetFunction", "hipModuleLaunchKernel"])
def test_a_failing_call_names_kernel_error_and_library(machine, function):
    path = machine.install("libamdhip64.so")
    environment = {"HIPKITTENS_LIBHIP_PATH": path, "FAKE_HIP_FAIL": function}
    out = machine.run("launch", "hip:0", machine.code_object("gfx942"), "scale", "once", **environment)
    verb = "launching" if function == "hipModuleLaunchKernel" else "loading"
    where = "kernel scale on Fake Instinct (gfx942)"
    expected = f"error: {verb} {where} failed: hipErrorUnknown (999, unknown error), from {path}"
    assert out.splitlines()[-1] == expected
    assert "hipGetLastError" in machine.calls()
    assert ("hipModuleUnload 0x1000" in machine.calls()) == (function == "hipModuleGetFunction")


def test_success_without_a_function_is_an_error(machine):
    environment = {"HIPKITTENS_LIBHIP_PATH": machine.install("libamdhip64.so"), "FAKE_HIP_NO_FUNCTION": "1"}
    out = machine.run("launch", "hip:0", machine.code_object("gfx942"), "scale", "once", **environment)
    assert "returned success but no function" in out


# --- the kernel library -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "reason"), [("-", "this test has no pack"), ("+", "said it added one but did not")]
)
def test_a_kernel_that_nobody_has(machine, file, reason):
    environment = {"HIPKITTENS_LIBHIP_PATH": machine.install("libamdhip64.so")}
    out = machine.run("launch", "hip:0", file, "scale", "once", **environment)
    assert "error: there is no code object for kernel scale for gfx942: " in out and reason in out


def test_code_objects_are_checked_when_they_are_added(machine):
    file = machine.code_object("gfx942")
    assert machine.run("add", "gfx942", "scale", file) == "added"
    which = "error: the code object for kernel"
    assert machine.run("add", "gfx950", "scale", file) == f"{which} scale for gfx950 is for gfx942"
    assert (
        machine.run("add", "gfx942", "skale", file) == f"{which} skale for gfx942 does not hold that kernel"
    )
    with open(file, "r+b") as stream:
        stream.truncate(900)
    assert "scale for gfx942 is damaged: code object: " in machine.run("add", "gfx942", "scale", file)


# --- the simulator as the provider --------------------------------------------------------------------------


def test_without_the_simulator_the_message_says_so(machine):
    out = machine.run("launch", "gfx942", "-", "scale", "once")
    assert out.startswith("error: libhipkittens_simulator.so is not beside")


def test_a_library_that_is_no_simulator_is_refused(machine):
    machine.install("libhipkittens_simulator.so")
    out = machine.run("launch", "gfx942", "-", "scale", "once")
    assert out.endswith("is no hipkittens simulator; install hipkittens again")


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_launches_from_many_threads_on_the_simulator(machine, target):
    machine.install_simulator()
    out = machine.run("launch", target, machine.code_object(target), "scale", "threads").splitlines()
    assert [line for line in out if not line.startswith("source")] == ["right"] * 8
    assert f"source asked for {target} scale" in out


def test_an_access_outside_is_reported_and_the_next_launch_works(machine):
    machine.install_simulator()
    out = machine.run("launch", "gfx950", machine.code_object("gfx950"), "scale", "short")
    assert (
        "launching kernel scale on AMD Instinct MI355X (simulated) (gfx950) failed: hipErrorLaunchFailure"
        in out
    )
    assert "kernel scale, workgroup (3, 0, 0)" in out and "'out'" in out and "store_dword" in out
    assert out.splitlines()[-1] == "right"


def test_the_hip_path_reaches_the_simulator_as_a_system_library(machine):
    """The table of functions is the same: the simulator can replace libamdhip64."""
    environment = {"HIPKITTENS_LIBHIP_PATH": os.path.realpath(library_path())}
    assert machine.run("device", "1", **environment).startswith(
        "gfx950 | AMD Instinct MI355X (simulated) | 256 CUs | 8 XCDs | 163840"
    )
    out = machine.run("launch", "hip:0", machine.code_object("gfx942"), "scale", "threads", **environment)
    assert out.splitlines()[-8:] == ["right"] * 8
