# SPDX-License-Identifier: MIT
"""The device compiler: C++ to a code object. Standard library only: the build uses it too."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

# Line tables let a fault report its source line; they do not change the code. Code object version 5 is accepted by loaders before ROCm 6.3,
# which refuse clang's default, version 6 (docs/install.md); the code is the same.
FLAGS = [
    "-std=c++20", "-O3", "-Wall", "-Wextra", "-fno-exceptions", "-fno-rtti", "-fuse-cuid=none", "-ffp-contract=off",
    "-gline-tables-only", "-mcode-object-version=5",
]  # fmt: skip


class CompileError(RuntimeError):
    """There is no device compiler, or it refused its input; the text is its output."""


class DeviceCompiler:
    """The clang of the ziglang wheel, or the clang (or hipcc) given by HIPKITTENS_DEVICE_COMPILER.

    Raises CompileError if there is none.
    """

    def __init__(self) -> None:
        if named := os.environ.get("HIPKITTENS_DEVICE_COMPILER"):
            clang = Path(shutil.which(named) or named)
            if clang.name == "hipcc":  # a driver for the clang in ../llvm/bin
                clang = clang.resolve().parent.parent / "llvm" / "bin" / "clang"
            if not clang.exists():
                raise CompileError(f"HIPKITTENS_DEVICE_COMPILER: no clang at {clang}")
            self._compile, self._link = [str(clang)], [str(clang.parent / "ld.lld")]
        else:
            try:
                import ziglang
            except ImportError:
                raise CompileError(
                    "the device compiler is missing: pip install ziglang==0.17.0, "
                    "or name a clang with the amdgcn target in HIPKITTENS_DEVICE_COMPILER"
                ) from None
            zig = str(Path(ziglang.__file__).parent / "zig")
            self._compile, self._link = [zig, "clang"], [zig, "ld.lld"]

    def version(self) -> str:
        return self._run(*self._compile, "--version").stdout.splitlines()[0].split(" (")[0]

    def front_end(self, target: str, source: Path, *options: str) -> subprocess.CompletedProcess[str]:
        """Runs clang on device code for `target`. Raises CompileError with its output."""
        return self._run(
            *self._compile, "-x", "hip", f"--offload-arch={target}", "--cuda-device-only", "-nogpulib", "-nogpuinc",
            *FLAGS, *options, str(source),
        )  # fmt: skip

    def compile(self, target: str, source: Path, output: Path, *options: str) -> str:
        """Writes the code object to `output` and its listing next to it (.s); returns the compiler's warnings.

        Three steps, since the driver of the ziglang wheel cannot find its own linker: C++ to assembly, assembly to an object, object to a
        code object. Raises CompileError.
        """
        listing, relocatable = output.with_suffix(".s"), output.with_suffix(".o")
        warnings = self.front_end(target, source, *options, "-S", "-o", str(listing)).stderr
        self._run(
            *self._compile, "-target", "amdgcn-amd-amdhsa", f"-mcpu={target}", "-c", str(listing), "-o", str(relocatable)
        )  # fmt: skip
        self._run(*self._link, "-shared", "-o", str(output), str(relocatable))
        relocatable.unlink()
        return warnings

    @staticmethod
    def _run(*command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise CompileError(done.stderr.strip() or f"failed: {' '.join(command)}")
        return done
