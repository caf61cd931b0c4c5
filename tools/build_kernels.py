#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles one variant of one kernel for one target into a code object, and reports its cost.

Next to FILE.co it writes FILE.s (the listing), FILE.json (the variant's entry for the pack's index)
and the depfile. None of their contents depends on where or when they were built.

Without a variant it precompiles the operation's headers, which --headers passes to each of its variants: reading them is a
third of the work of compiling a small kernel. The code object has the same bytes with and without them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernel_variants
from package_module import package_module

device_compiler = package_module("_device_compiler")
FLAGS, DeviceCompiler = device_compiler.FLAGS, device_compiler.DeviceCompiler
ROOT = kernel_variants.ROOT
KERNELS = ROOT / "csrc" / "kernels"
# The first scalar arguments of a kernel are preloaded into scalar registers when a wave starts, so that no load has to fetch them
# (LLVM AMDGPUUsage, preloaded kernel arguments): as many as fit next to the segment's address. Structs are never preloaded.
PRELOAD = ["-mllvm", "-amdgpu-kernarg-preload-count=14"]


def as_frontend(*words: str) -> list[str]:
    """Arguments for the compiler frontend: the driver writes no dependencies when it compiles for the device only."""
    return [part for word in words for part in ("-Xclang", word)]


def options_of(operation: str) -> list[str]:
    """The options, besides FLAGS, with which headers and kernels of an operation are compiled; they must be the same for both."""
    # -ffile-prefix-map and the relative source keep the checkout's path out of the object.
    return [f"-ffile-prefix-map={ROOT}=.", "-fdebug-compilation-dir=.", f"-I{KERNELS / operation}", *PRELOAD]


def sources_in(rule: Path) -> list[Path]:
    """Removes a depfile written by clang and returns the files it lists; they are absolute because the source path is."""
    words = rule.read_text().replace("\\\n", " ").split()
    rule.unlink()
    return sorted({Path(word) for word in words[1:]})


def precompile_headers(compiler: DeviceCompiler, target: str, operation: str, output: Path) -> list[Path]:
    """Writes a precompiled csrc/kernels/OPERATION/kernels.h to output. Returns the sources it was made from."""
    output.parent.mkdir(parents=True, exist_ok=True)
    rule = output.with_suffix(".d.raw")
    warnings = compiler.front_end(
        target, KERNELS / operation / "kernels.h", *options_of(operation), "-fsyntax-only", "-fpch-instantiate-templates",
        *as_frontend("-emit-pch", "-o", str(output), "-dependency-file", str(rule), "-MT", "headers"),
    ).stderr  # fmt: skip
    sys.stderr.write(warnings)
    return sources_in(rule)


def compile_kernel(
    compiler: DeviceCompiler,
    target: str,
    operation: str,
    row: dict[str, str],
    output: Path,
    headers: Path | None = None,
) -> list[Path]:
    """Writes output (.co) and the listing (.s). headers: the output of precompile_headers, if there is one. Returns the sources."""
    defines = {"OPERATION": operation, "KIND": row["kind"], "ROW": row["name"]}
    output.parent.mkdir(parents=True, exist_ok=True)
    rule = output.with_suffix(".d.raw")
    warnings = compiler.compile(
        target, KERNELS / "device.cpp", output, *options_of(operation),
        *(f"-DHIPKITTENS_{name}={value}" for name, value in defines.items()),
        *(as_frontend("-include-pch", str(headers)) if headers else []),
        *as_frontend("-dependency-file", str(rule), "-MT", "kernel"),
    )  # fmt: skip
    sys.stderr.write(warnings)
    return sources_in(rule)


def describe(
    compiler: DeviceCompiler, target: str, operation: str, row: dict[str, str], sources: list[Path]
) -> dict:
    digest = hashlib.sha256()
    names = []
    for path in sorted(path.resolve() for path in sources):
        if path.is_relative_to(ROOT):  # the compiler's own headers are covered by its version
            names.append(path.relative_to(ROOT).as_posix())
            digest.update(names[-1].encode() + b"\0" + path.read_bytes())
    return {
        "name": f"{operation}.{row['name']}",
        "operation": operation,
        "variant": row["name"],
        "target": target,
        "configuration": row,
        "compiler": compiler.version(),
        "flags": FLAGS + PRELOAD,
        "sources": names,
        "source_sha256": digest.hexdigest(),
    }


def row_named(variants: Path, name: str) -> dict[str, str]:
    for row in kernel_variants.read(variants):
        if row["name"] == name:
            return row
    raise SystemExit(f"{variants} has no row {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", required=True, choices=kernel_variants.TARGETS)
    parser.add_argument("--operation", required=True)
    parser.add_argument("--variant", help="without it: precompile the operation's headers")
    parser.add_argument("--headers", type=Path, help="the operation's precompiled headers")
    parser.add_argument("--output", required=True, type=Path)
    parser.add_argument("--depfile", type=Path)
    arguments = parser.parse_args()

    target, operation, output = arguments.target, arguments.operation, arguments.output
    started = time.monotonic()
    try:
        compiler = DeviceCompiler()
        if arguments.variant is None:
            name = f"headers of {operation}"
            sources = precompile_headers(compiler, target, operation, output)
        else:
            row = row_named(KERNELS / operation / "variants.def", arguments.variant)
            sources = compile_kernel(compiler, target, operation, row, output, arguments.headers)
            description = describe(compiler, target, operation, row, sources)
            output.with_suffix(".json").write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
            name = description["name"]
    except device_compiler.CompileError as error:
        raise SystemExit(str(error)) from None
    if arguments.depfile:
        escaped = " ".join(str(path).replace(" ", "\\ ") for path in sources)
        arguments.depfile.write_text(f"{output}: {escaped}\n")
    print(f"{target} {name}: {time.monotonic() - started:.1f} s, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
