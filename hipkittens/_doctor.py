# SPDX-License-Identifier: MIT
"""`hipkittens doctor`: what works in this installation and on this machine, what does not, and what to do about it."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import __version__, _backend, _environment, _installation, _library, _simulator
from ._doctor_kernels import run_device
from ._pack import PackError

# The cost of a simulated kernel at each level of host code, for readers who wonder about its speed.
LEVELS = {
    "amx": "AMX tiles for bf16 matrix products, AVX-512 for all else: the fastest",
    "avx512_bf16": "AVX-512 with its bf16 dot products: fast",
    "avx512": "AVX-512: fast",
    "avx2": "AVX2: a 64-lane operation takes twice the instructions of AVX-512",
    "portable": "no AVX2 on this CPU: the simulator works, and is slow",
}
FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "amx_bf16")


@dataclass
class Finding:
    """status is "good", "note" (nothing is broken, but it may be unexpected) or "problem"; remedy states what to do."""

    subject: str
    status: str
    text: str
    remedy: str = ""


@dataclass
class Examination:
    """The facts by section, their meaning, the kernels' rows, and the verdict."""

    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)

    def say(self, subject: str, status: str, text: str, remedy: str = "") -> None:
        self.findings.append(Finding(subject, status, text, remedy))

    @property
    def verdict(self) -> str:
        """ "works", "simulator only" or "broken"."""
        if any(finding.status == "problem" for finding in self.findings):
            return "broken"
        return "works" if any(row["device"].startswith("cuda") for row in self.kernels) else "simulator only"

    @property
    def verdict_text(self) -> str:
        problems = [finding for finding in self.findings if finding.status == "problem"]
        if problems:
            return f"BROKEN: {'; '.join(finding.subject for finding in problems)}"
        devices = sorted({row["device"] for row in self.kernels if row["device"].startswith("cuda")})
        if devices:
            return f"GOOD: hipkittens works on {', '.join(devices)}, and in the simulator"
        return "GOOD, IN THE SIMULATOR ONLY: no AMD GPU is used here; CPU tensors run on a simulated one"

    @property
    def exit_code(self) -> int:
        return int(self.verdict == "broken")

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "text": self.verdict_text,
            "facts": self.facts,
            "findings": [asdict(finding) for finding in self.findings],
            "kernels": self.kernels,
        }


def mapped_hip_runtimes(maps: Iterable[str]) -> list[str]:
    """The distinct libamdhip64 files among the lines of /proc/<pid>/maps; two names of one file count once."""
    found: dict[tuple[str, str], str] = {}
    for line in maps:
        columns = line.split(maxsplit=5)
        if len(columns) == 6 and os.path.basename(columns[5].strip()).startswith("libamdhip64.so"):
            found.setdefault((columns[3], columns[4]), columns[5].strip())
    return list(found.values())


def _hip_version(number: int | None) -> str | None:
    """HIP encodes 6.3.42134 as 60342134."""
    return None if number is None else f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _stable_abi_version() -> str | None:
    """The version of torch's stable C ABI: 2.13.0 is 0x020d0000 00000000."""
    library = ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so"))
    try:
        function = library.aoti_torch_abi_version
    except AttributeError:
        return None
    function.restype = ctypes.c_uint64
    return ".".join(str(byte) for byte in function().to_bytes(8, "big")[:3])


def _torch_build() -> str:
    if torch.version.hip:
        return f"ROCm {torch.version.hip}"
    return f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU"


def _examine_versions(found: Examination) -> None:
    found.facts["versions"] = {
        "hipkittens": __version__,
        "location": str(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_build": _torch_build(),
        "torch_location": torch.__path__[0],
        "stable_abi": _stable_abi_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "glibc": platform.libc_ver()[1],
    }
    found.say("torch", "good", f"{torch.__version__} ({_torch_build()} build), and the operators load")


def _examine_packs(found: Examination) -> None:
    found.facts["kernels"] = packs = {}
    for target in _installation.TARGETS:
        try:
            count = _installation.pack(target).verify()
        except PackError as error:
            packs[target] = None
            found.say(f"{target} kernels", "problem", str(error), "pip install --force-reinstall hipkittens")
        else:
            packs[target] = count
            found.say(f"{target} kernels", "good", f"{count} code objects, every sha256 as built")


def _examine_cpu(found: Examination, cpuinfo: str) -> None:
    def value(name: str) -> str:
        match = re.search(rf"^{name}\s*:\s*(.*)$", cpuinfo, re.M)
        return match[1] if match else ""

    level = _simulator.best_host_level()
    found.facts["cpu"] = {
        "model": value("model name"),
        "cores": os.cpu_count(),
        "features": [name for name in FEATURES if name in value("flags").split()],
        "host_level": level,
    }
    status = "note" if level == "portable" else "good"
    found.say(
        "simulator", status, f"{level} host code: {LEVELS[level]}",
        "run it on a CPU with AVX2, better AVX-512, if its speed matters" if status == "note" else "",
    )  # fmt: skip


def _examine_driver(found: Examination) -> None:
    version = Path("/sys/module/amdgpu/version")
    found.facts["driver"] = driver = {
        "amdgpu": "loaded" if version.parent.exists() else None,
        "version": version.read_text().strip() if version.exists() else None,
        "kfd": os.path.exists("/dev/kfd"),
        "kfd_open": os.access("/dev/kfd", os.R_OK | os.W_OK),
    }
    if driver["kfd"] and not driver["kfd_open"]:
        found.say(
            "driver", "problem", "/dev/kfd is there, and this user may not open it",
            "add the user to the groups render and video, and log in again",
        )  # fmt: skip


def _examine_hip(found: Examination) -> list[str]:
    """Reports what HIP offers; returns the devices, in torch's naming, for which there are kernels."""
    status = _library.hip_status()
    with open("/proc/self/maps") as maps:
        runtimes = mapped_hip_runtimes(maps)
    found.facts["hip"] = status | {
        "driver_version": _hip_version(status["driver_version"]),
        "runtime_version": _hip_version(status["runtime_version"]),
        "mapped": runtimes,
    }
    if len(runtimes) > 1:
        found.say(
            "two HIP runtimes", "problem",
            f"this process holds {' and '.join(runtimes)}: streams and tensors of one mean nothing to the other",
            "keep one ROCm: unset LD_LIBRARY_PATH and HIPKITTENS_LIBHIP_PATH, or remove the ROCm that torch does not bring",
        )  # fmt: skip
    if not status["device_count"]:
        # A requested path, or a GPU that torch can see, means more than a machine without one.
        wanted = bool(_environment.LIBHIP_PATH.read()) or _backend.hip_device_count() > 0
        found.say("HIP", "problem" if wanted else "note", status["message"])
        return []
    found.say("HIP", "good", f"{status['path']}, from {status['found_by']}")
    usable = []
    for device in status["devices"]:
        subject = f"GPU {device['ordinal']}"
        if device["error"]:
            found.say(subject, "note", device["error"], "use another GPU, or the simulator")
        elif not _backend.has_amd_gpus():
            found.say(
                subject, "note", f"{device['name']}, {device['arch']}: torch {torch.__version__} is a {_torch_build()} build "
                "and cannot put tensors on it", "install a ROCm build of torch",
            )  # fmt: skip
        else:
            found.say(
                subject,
                "good",
                f"{device['name']}, {device['arch']}, {device['compute_units']} compute units in {device['xcds']} XCDs",
            )
            usable.append(f"cuda:{device['ordinal']}")
    if _backend.has_amd_gpus() and _backend.hip_device_count() != status["device_count"]:
        found.say(
            "GPUs", "problem",
            f"torch sees {_backend.hip_device_count()}, {status['path']} has {status['device_count']}",
            "make both the same ROCm, and look at HIP_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES",
        )  # fmt: skip
    return usable


def _examine_environment(found: Examination) -> None:
    names = {
        row.variable: os.environ[row.variable] for row in _environment.VARIABLES if row.variable in os.environ
    }
    found.facts["environment"] = names
    for name, nearest in _environment.unknown(os.environ).items():
        found.say(
            "environment", "note", f"nothing reads {name}", f"set {nearest}" if nearest else f"unset {name}"
        )


def _run_kernels(found: Examination, devices: Iterable[str]) -> None:
    for device in devices:
        rows = run_device(device)
        found.kernels += rows
        place = f"simulated {device}" if device in _installation.TARGETS else device
        wrong = [row for row in rows if not row["ok"]]
        for row in wrong:
            text = row["error"] or f"its error is {row['ratio']:.3g} times PyTorch's, 2 is the bar"
            found.say(
                f"{row['family']} on {place}", "problem", text,
                "report it with the output of `hipkittens doctor --report -`",
            )  # fmt: skip
        if not wrong:
            ratio = max(row["ratio"] for row in rows)
            found.say(
                f"kernels on {place}", "good",
                f"{', '.join(row['family'] for row in rows)}: results and gradients within {ratio:.2f} times PyTorch's error",
            )  # fmt: skip


def examine() -> Examination:
    """Examines everything, and runs a kernel of each family on every device."""
    found = Examination()
    _examine_versions(found)
    _examine_environment(found)
    _examine_cpu(found, Path("/proc/cpuinfo").read_text())
    _examine_packs(found)
    _examine_driver(found)
    devices = _examine_hip(found)
    simulated = [target for target, count in found.facts["kernels"].items() if count]
    _run_kernels(found, [*simulated, *devices])
    return found
