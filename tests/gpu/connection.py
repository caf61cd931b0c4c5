# SPDX-License-Identifier: MIT
"""Uses NVIDIA GPUs in place of AMD's: builds hip_on_cuda.cu, and makes hipkittens treat this process's "cuda" devices as its own."""

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess

import torch

from hipkittens import _backend, _installation, _library

HERE = pathlib.Path(__file__).resolve().parent


def missing() -> str | None:
    """Requirements of the tests that this machine does not meet."""
    if not (torch.version.cuda and torch.cuda.is_available()):
        return "no NVIDIA GPU, or a torch that knows none"
    return None if shutil.which("nvcc") else "no nvcc"


def build(folder: pathlib.Path) -> pathlib.Path:
    """Build against PyTorch's own CUDA runtime: a second runtime in the process would have its own current device."""
    library = folder / "libamdhip64.so"
    subprocess.run(
        ["nvcc", "--cudart=shared", "-std=c++20", "-O2", "-shared", "-Xcompiler", "-fPIC,-fvisibility=hidden", f"-I{HERE.parents[1] / 'csrc'}",
         "-o", library, HERE / "hip_on_cuda.cu"],
        check=True,
    )  # fmt: skip
    return library


def connect(library: pathlib.Path, target: str) -> None:
    """Connect before the process's first call. PyTorch remains a CUDA build and keeps behaving as one."""
    os.environ["HIPKITTENS_LIBHIP_PATH"] = str(library)
    os.environ["HIP_ON_CUDA_SIMULATOR"] = str(_installation.SIMULATOR)
    os.environ["HIP_ON_CUDA_TARGET"] = target
    simulated = _backend.arch_of
    _backend.has_amd_gpus = lambda: True
    _backend.arch_of = lambda device: target if device.type == "cuda" else simulated(device)
    found = _library.hip_status()
    assert found["path"] == str(library) and found["device_count"] == torch.cuda.device_count(), found


def connect_as_parent() -> None:
    """Connect in a process started by a connected process, from the environment it passed on."""
    connect(pathlib.Path(os.environ["HIPKITTENS_LIBHIP_PATH"]), os.environ["HIP_ON_CUDA_TARGET"])


@functools.cache
def _library_in_use() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["HIPKITTENS_LIBHIP_PATH"])
    library.hip_on_cuda_failure.restype = ctypes.c_char_p
    return library


def failure() -> str:
    """The error message of the first kernel that failed, or ""."""
    return _library_in_use().hip_on_cuda_failure().decode()
