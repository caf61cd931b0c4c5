"""Device code for tests: compiles HIP C++ or assembly text to a code object with the pinned device compiler."""

from __future__ import annotations

import functools
import pathlib
import subprocess
import sys
import tempfile

PREAMBLE = """
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
typedef unsigned int uint;
typedef unsigned long ulong;
#define lane_id() (__builtin_amdgcn_workitem_id_x() & 63)
#define thread_id() __builtin_amdgcn_workitem_id_x()
#define workgroup_id() __builtin_amdgcn_workgroup_id_x()
"""


class CompileError(Exception):
    """The device compiler rejected its input; the text is the compiler's output."""


def _zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise CompileError(done.stderr)


def _link(directory: pathlib.Path, assembly: pathlib.Path, target: str) -> bytes:
    objects, linked = directory / "kernel.o", directory / "kernel.co"
    _zig("clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", str(assembly), "-o", str(objects))
    _zig("ld.lld", "-shared", "-o", str(linked), str(objects))
    return linked.read_bytes()


def _to_assembly(directory: pathlib.Path, source: str, target: str, options: tuple[str, ...]) -> pathlib.Path:
    (directory / "kernel.cpp").write_text(PREAMBLE + source)
    _zig("clang", "-x", "hip", f"--offload-arch={target}", "--cuda-device-only", "-nogpulib", "-nogpuinc", "-std=c++20",
         "-O3", *options, "-S", "-o", str(directory / "kernel.s"), str(directory / "kernel.cpp"))  # fmt: skip
    return directory / "kernel.s"


@functools.cache
def compile_hip(source: str, target: str, options: tuple[str, ...] = ()) -> bytes:
    """Compile HIP C++ `source` to a code object (without HIP's headers; PREAMBLE is prepended)."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        return _link(directory, _to_assembly(directory, source, target, options), target)


@functools.cache
def assembly_of(source: str, target: str, options: tuple[str, ...] = ()) -> str:
    """The assembly text that compile_hip assembles."""
    with tempfile.TemporaryDirectory() as name:
        return _to_assembly(pathlib.Path(name), source, target, options).read_text()


@functools.cache
def assemble(text: str, target: str) -> bytes:
    """Assemble a complete assembly file (with its .amdhsa_kernel and .amdgpu_metadata) to a code object."""
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        (directory / "kernel.s").write_text(text)
        return _link(directory, directory / "kernel.s", target)
