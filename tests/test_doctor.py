# SPDX-License-Identifier: MIT
"""hipkittens doctor: working machines, and each kind of broken installation with the advice printed for it."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import hipkittens
from hipkittens import _doctor, _doctor_kernels, _doctor_report, _installation, _simulator, cli
from hipkittens._pack import Pack
from tests.host_build import build

ROOT = Path(__file__).resolve().parent.parent
# An editable installation finds the checkout's packages before PYTHONPATH is looked at.
COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith('_editable')]; "
    "import hipkittens_command; sys.exit(hipkittens_command.main())",
]


@pytest.fixture(scope="module")
def healthy():
    """The examination of this machine, which the tests share."""
    return _doctor.examine()


@pytest.fixture
def quick(monkeypatch):
    """An examination that runs no kernel, for tests of everything else it reports."""
    monkeypatch.setattr(_doctor, "run_device", lambda device: [])
    monkeypatch.setattr(_doctor, "_run_kernels", lambda found, devices: None)


def run(*arguments, path=(), **environment):
    """Run the command in a separate process, which searches the folders `path` first."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPKITTENS_")}
    folders = [*map(str, path), str(ROOT)]
    return subprocess.run(
        [*COMMAND, *arguments],
        env={**clean, "PYTHONPATH": os.pathsep.join(folders), **environment},
        cwd=os.sep,  # python -c looks in the current folder first
        capture_output=True,
        text=True,
    )


def subjects(found, status):
    return [finding.subject for finding in found.findings if finding.status == status]


# --- good ---------------------------------------------------------------------------------------------------------


def test_this_machine_works(healthy):
    assert healthy.exit_code == 0 and not subjects(healthy, "problem")
    expected = {(device, family) for device in _installation.TARGETS for family in _doctor_kernels.families()}
    assert {(row["device"], row["family"]) for row in healthy.kernels} >= expected
    assert all(row["ok"] and 0 <= row["ratio"] <= 2 for row in healthy.kernels)
    assert set(healthy.facts) == {"versions", "environment", "cpu", "kernels", "driver", "hip"}
    if not healthy.facts["hip"]["device_count"]:
        assert healthy.verdict == "simulator only" and "SIMULATOR ONLY" in healthy.verdict_text


def test_table_json_and_report(healthy, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(_doctor_report, "examine", lambda: healthy)
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert text.rstrip().endswith(healthy.verdict_text) and "\x1b" not in text
    assert cli.main(["doctor", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verdict"] == healthy.verdict and len(printed["kernels"]) == len(healthy.kernels)
    assert cli.main(["doctor", "--report", str(tmp_path / "report.md")]) == 0
    report = (tmp_path / "report.md").read_text()
    assert healthy.verdict_text in report and report.count("| ok |") == len(healthy.kernels)


def test_report_keeps_private_things_out(healthy, monkeypatch):
    monkeypatch.setenv("HOME", str(ROOT))
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    monkeypatch.setitem(
        healthy.facts,
        "environment",
        {"HIPKITTENS_CHECKS_FILE": "/data/project x", "HIPKITTENS_ARCH": "gfx950"},
    )
    text = _doctor_report.report_text(healthy)
    assert str(ROOT) not in text and "~/hipkittens" in text
    assert "hunter2" not in text and "SECRET_TOKEN" not in text and "project x" not in text
    assert "gfx950" in text


def test_a_wrong_kernel_is_found(monkeypatch):
    family = _doctor_kernels.families()["gemm"]
    broken = dataclasses.replace(family, ours=lambda *inputs: family.ours(*inputs) * 1.1)
    monkeypatch.setattr(_doctor_kernels, "families", lambda: {"gemm": broken})
    found = _doctor.Examination()
    _doctor._run_kernels(found, ["gfx942"])
    assert found.exit_code == 1 and subjects(found, "problem") == ["gemm on simulated gfx942"]
    assert (
        "times PyTorch's, 2 is the bar" in found.findings[0].text and "--report" in found.findings[0].remedy
    )
    assert found.verdict_text == "BROKEN: gemm on simulated gfx942"


def test_a_gpu_that_ends_the_process_is_reported():
    """Each GPU is examined in a separate process; here there is none, or torch cannot use it."""
    (row,) = {(row["ok"], row["device"]) for row in _doctor_kernels.run_device("cuda:99")}
    assert row == (False, "cuda:99")


# --- before hipkittens can be imported ------------------------------------------------------------------------------


def torch_that(tmp_path, text):
    """A folder with a package `torch` whose import runs this text."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("torch", "message"),
    [
        ("raise ModuleNotFoundError('none', name='torch')", "needs PyTorch 2.10 or later, and there is none"),
        ("__version__ = '2.9.1+cpu'", "needs PyTorch 2.10 or later; this is 2.9.1+cpu, in "),
        ("raise ImportError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13"),
    ],
    ids=["no torch", "old torch", "broken torch"],
)
def test_wrong_torch(tmp_path, torch, message):
    folder = torch_that(tmp_path, torch)
    done = run("doctor", path=[folder])
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1].startswith("BROKEN: ") and message in done.stdout
    report = json.loads(run("doctor", "--json", path=[folder]).stdout)
    assert report["verdict"] == "broken" and message in report["text"]
    done = run("info", path=[folder])
    assert done.returncode == 1 and done.stderr.startswith("hipkittens: ") and message in done.stderr


def test_a_wrong_variable_is_told(tmp_path):
    done = run("doctor", HIPKITTENS_ARCH="gfx90a")
    assert done.returncode == 1
    assert (
        done.stdout.splitlines()[-1]
        == "BROKEN: hipkittens: HIPKITTENS_ARCH is 'gfx90a'; allowed: gfx942, gfx950"
    )


@pytest.fixture
def copied(tmp_path):
    """A copy of the package in its own folder, to be damaged."""
    ignore = shutil.ignore_patterns("__pycache__", "integrations", "libhipkittens_simulator.so")
    shutil.copytree(Path(hipkittens.__file__).parent, tmp_path / "hipkittens", ignore=ignore)
    return tmp_path


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "the file is not there; reinstall hipkittens"),
        ("cut", "reinstall hipkittens (_ops.so has 300000 bytes of "),
        pytest.param("text", "the file is damaged, or not for this machine", marks=pytest.mark.slow),
        ("undefined", "torch lacks a function of its stable ABI 2.10"),
        pytest.param("needs", "a library that it needs is missing", marks=pytest.mark.slow),
    ],
)
def test_operators_that_do_not_load(copied, damage, message):
    operators = copied / "hipkittens" / "lib" / "_ops.so"
    if damage == "missing":
        operators.unlink()
    elif damage == "cut":
        os.truncate(operators, 300000)
    elif damage == "text":
        operators.write_text("a page of a proxy server")
    else:
        source = copied / "other.cpp"
        source.write_text('extern "C" int aoti_torch_of_2099(); int (*f)() = aoti_torch_of_2099;\n')
        options = ["-shared"]
        if damage == "needs":
            source.write_text("int f;\n")
            needed = build(copied / "libneeded.so", [source], "-shared")
            options += [f"-L{copied}", "-Wl,--no-as-needed", "-lneeded"]
        build(operators, [source], *options)
        if damage == "needs":
            needed.unlink()
    done = run("doctor", path=[copied])
    assert done.returncode == 1, done.stdout
    assert message in done.stdout.splitlines()[-1] and "_ops.so" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("libstdc++.so.6: version `GLIBCXX_3.4.29' not found", "built for a newer system"),
        ("libc.so.6: version `GLIBC_2.34' not found", "built for a newer system"),
        ("undefined symbol: torch_library_impl", "upgrade torch"),
    ],
)
def test_the_linkers_complaints(text, cause):
    assert cause in _installation.why_not_loaded(OSError(text))


# --- what the doctor itself finds -------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
def test_packs(quick, monkeypatch, tmp_path, damage):
    path = tmp_path / "gfx950.hkpack"
    if damage == "corrupt":
        data = bytearray(_installation.pack("gfx950").path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
    packs = {"gfx942": _installation.pack("gfx942"), "gfx950": Pack(path)}
    monkeypatch.setattr(_installation, "pack", packs.get)
    found = _doctor.examine()
    assert found.exit_code == 1 and subjects(found, "problem") == ["gfx950 kernels"]
    assert found.facts["kernels"] == {"gfx942": len(packs["gfx942"].entries), "gfx950": None}


def test_a_cpu_without_avx2(quick, monkeypatch):
    monkeypatch.setattr(_simulator, "best_host_level", lambda: "portable")
    found = _doctor.Examination()
    _doctor._examine_cpu(found, "model name\t: Old CPU\nflags\t\t: fpu sse2 avx\n")
    (finding,) = found.findings
    assert finding.status == "note" and "is slow" in finding.text and "AVX2" in finding.remedy
    assert found.facts["cpu"]["model"] == "Old CPU" and found.facts["cpu"]["features"] == []
    assert set(_doctor.LEVELS) == set(_simulator.HOST_LEVELS)


def test_runtimes_in_the_memory_map():
    maps = (
        "7f00-7f01 r-xp 00000000 08:01 11 /opt/rocm/lib/libamdhip64.so.6.4\n"
        "7f01-7f02 r--p 00001000 08:01 11 /opt/rocm/lib/libamdhip64.so.6\n"
        "7f03-7f04 r-xp 00000000 08:01 12 /a b/torch/lib/libamdhip64.so\n"
        "7f05-7f06 r-xp 00000000 08:01 13 /usr/lib/libamdhip64extra/other.so\n"
        "7f07-7f08 rw-p 00000000 00:00 0 \n"
    ).splitlines()
    assert _doctor.mapped_hip_runtimes(maps) == [
        "/opt/rocm/lib/libamdhip64.so.6.4",
        "/a b/torch/lib/libamdhip64.so",
    ]


@pytest.fixture(scope="module")
def fake_hip(tmp_path_factory):
    """Two libraries that answer as HIP does, for devices that FAKE_HIP_ARCH names."""
    folder = tmp_path_factory.mktemp("hip")
    for name in ("one", "two"):
        (folder / name).mkdir()
        build(
            folder / name / "libamdhip64.so",
            ["tests/runtime/fake_amdhip64.cpp"],
            "-shared",
            "-fvisibility=hidden",
        )
    return folder


EXAMINE = """
import ctypes, json, sys
from hipkittens import _doctor
_doctor._run_kernels = lambda found, devices: found.facts.update(devices=list(devices))
handles = [ctypes.CDLL(path) for path in sys.argv[1:]]
json.dump(_doctor.examine().to_dict(), sys.stdout)
"""


def examine_with(*libraries, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPKITTENS_")}
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, *map(str, libraries)],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    return report, {finding["subject"]: finding for finding in report["findings"]}


def test_gpus_of_other_architectures(fake_hip):
    path = str(fake_hip / "one" / "libamdhip64.so")
    report, findings = examine_with(
        HIPKITTENS_LIBHIP_PATH=path, FAKE_HIP_DEVICES="3", FAKE_HIP_ARCH="gfx90a,gfx942,gfx1100"
    )
    assert report["verdict"] == "simulator only"
    assert path in findings["HIP"]["text"] and "HIPKITTENS_LIBHIP_PATH" in findings["HIP"]["text"]
    for subject, arch in (("GPU 0", "gfx90a"), ("GPU 2", "gfx1100")):
        assert f"is a {arch}" in findings[subject]["text"] and "gfx950 (MI350X" in findings[subject]["text"]
    # The tests' torch is no ROCm build: the one device that has kernels cannot be used either, and the report says so.
    assert "cannot put tensors on it" in findings["GPU 1"]["text"] and "ROCm" in findings["GPU 1"]["remedy"]
    hip = report["facts"]["hip"]
    assert [device["arch"] for device in hip["devices"]] == ["gfx90a", "gfx942", "gfx1100"]
    assert hip["runtime_version"] == hip["driver_version"] == "6.3.42134"


def test_two_hip_runtimes(fake_hip):
    libraries = [fake_hip / name / "libamdhip64.so" for name in ("one", "two")]
    report, findings = examine_with(*libraries)
    assert report["verdict"] == "broken" and "two HIP runtimes" in report["text"]
    text = findings["two HIP runtimes"]["text"]
    assert all(str(path) in text for path in libraries)
    assert findings["HIP"]["text"].endswith("loaded in this process already")
    # Two names of one file are one runtime.
    link = fake_hip / "two" / "libamdhip64.so.6"
    if not link.exists():
        link.hardlink_to(libraries[0])
    _, findings = examine_with(libraries[0], link)
    assert "two HIP runtimes" not in findings


def test_a_library_that_was_asked_for_must_work(fake_hip):
    report, findings = examine_with(
        HIPKITTENS_LIBHIP_PATH=str(fake_hip / "one" / "libamdhip64.so"), FAKE_HIP_DEVICES="0"
    )
    assert report["verdict"] == "broken" and "hipErrorNoDevice" in findings["HIP"]["text"]
    report, findings = examine_with(HIPKITTENS_LIBHIP_PATH="libamdhip64.so")
    assert report["verdict"] == "broken" and "not an absolute path" in findings["HIP"]["text"]


def test_the_stable_abi_version():
    assert torch.__version__.startswith(_doctor._stable_abi_version())
