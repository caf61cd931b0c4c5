#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes a repository of kernels for Hugging Face's `kernels`: python tools/hub_kernels.py FOLDER

    FOLDER/README.md                                       the card
    FOLDER/build/torch-stable-abi210-rocm71-x86_64-linux/  a build variant: __init__.py, metadata.json, hipkittens/
    ...

One variant for each version of ROCm, since `kernels` requires it to equal torch's, and one for the CPU, whose tensors run in the
simulator. They differ in their metadata and in torch.ops.<namespace>, which is unique to each build: `kernels` may load several
versions into one process, also next to an installed hipkittens. A variant is self-contained: the modules that its layers and
functions need, the kernels of both targets, and both libraries; the only other package it imports is torch. The same checkout gives
the same bytes.

docs/hub_kernels.md says how to use it, and what has not been tried.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hipkittens"
NAME = "hipkittens"
OPERATORS = Path("lib") / "_ops.so"
SIMULATOR = Path("lib") / "libhipkittens_simulator.so"
# For torch 2.10 and later, as kernel-builder lists them.
ROCM_VERSIONS = ("7.0", "7.1", "7.2")
KERNELS = "0.17.2"  # the first version of `kernels` that was used to load this layout
NAMESPACE_BYTES = 64  # csrc/torch/registration.cpp

ROOTS = ("", "fla", "flash_attn", "layers", "nn")
# What these import lazily belongs to checks, tables and `hipkittens.patch`.
LAZY_IMPORTS_STAY_OUT = ("operations", "patch", "_supported")

ENTRY = '''# SPDX-License-Identifier: MIT
"""hipkittens as a kernel of the Hugging Face hub: its functions, flash-attn's names, and layers."""

from .hipkittens import *
from .hipkittens import __version__, layers
from .hipkittens.flash_attn import *

del patch, patched, unpatch  # theirs are other libraries' models, for which an installed hipkittens is
'''


class HubError(Exception):
    """Why the repository cannot be written, and what to do."""


def _path(module: str) -> Path | None:
    """The file of a module of the package, by its dotted name relative to the package; "" is the package itself."""
    folder = PACKAGE.joinpath(*module.split(".")) if module else PACKAGE
    if (folder / "__init__.py").exists():
        return folder / "__init__.py"
    file = folder.with_suffix(".py")
    return file if module and file.exists() else None


def _imports(node: ast.AST, lazy: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements of a syntax tree; those in functions only if lazy, those under TYPE_CHECKING never."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not lazy:
            continue
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        yield from _imports(child, lazy)


def _needed_by(module: str) -> set[str]:
    """Modules of the package that the given module imports."""
    path = _path(module)
    assert path is not None, module
    folder = module.split(".") if module else []
    if path.name != "__init__.py":
        folder = folder[:-1]
    lazy = module.split(".")[0] not in LAZY_IMPORTS_STAY_OUT
    text = path.read_text()
    found = set(re.findall(r'f"\{__package__\}\.(\w+)"', text))  # names passed to hipkittens/_after_import.py
    for statement in _imports(ast.parse(text), lazy):
        if isinstance(statement, ast.ImportFrom) and statement.level:
            base = ".".join([*folder[: len(folder) - statement.level + 1], *filter(None, [statement.module])])
            below = [f"{base}.{alias.name}".lstrip(".") for alias in statement.names]
            found |= {name for name in (base, *below) if _path(name)}
    return found


def modules() -> list[Path]:
    """Files of the package that a variant contains, relative to it: everything that layers and functions reach from ROOTS."""
    every_operation = [f"operations.{path.stem}" for path in (PACKAGE / "operations").glob("[a-z]*.py")]
    found: set[str] = set()
    waiting = [*ROOTS, *every_operation]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += [*_needed_by(module), *([module.rpartition(".")[0]] if module else [])]
    return sorted(path.relative_to(PACKAGE) for path in map(_path, found) if path)


def _constant(module: str, name: str) -> Any:
    """The literal that a module of the package assigns to a name, read without importing the module and, with it, torch."""
    for node in ast.parse((PACKAGE / f"{module}.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise KeyError(name)


def targets() -> tuple[str, ...]:
    return _constant("_installation", "TARGETS")


def data_files() -> list[Path]:
    return [OPERATORS, SIMULATOR, *(Path("_kernels") / f"{target}.hkpack" for target in targets())]


def variant_name(backend: str) -> str:
    major, minor = _constant("_prerequisites", "OLDEST_TORCH")
    return f"torch-stable-abi{major}{minor}-{backend}-{platform.machine()}-linux"


def _renamed(library: bytes, namespace: str) -> bytes:
    """The operators' library with another torch.ops namespace stored in its hipkittens_torch_namespace."""
    was, now = (name.encode().ljust(NAMESPACE_BYTES, b"\0") for name in (NAME, namespace))
    if len(now) != NAMESPACE_BYTES or library.count(was) != 1:
        raise HubError(f"{PACKAGE / OPERATORS}: its namespace is not found once; rebuild it with ./run build")
    return library.replace(was, now)


def _digest(variant: Path) -> dict[str, object]:
    """The digest that `kernels verify-signature` compares: the SHA-256 of every file but the metadata."""
    files = {
        path.relative_to(variant).as_posix(): base64.b64encode(
            hashlib.sha256(path.read_bytes()).digest()
        ).decode()
        for path in sorted(variant.rglob("*"))
        if path.is_file() and path.name != "metadata.json"
    }
    return {"algorithm": "sha256", "files": files}


def _metadata(identity: str, backend: str, version: int, variant: Path) -> dict[str, object]:
    kind = {"type": "cpu"} if backend == "cpu" else {"type": "rocm", "archs": list(targets())}
    return {
        "id": identity,
        "name": NAME,
        "version": version,
        "kernels-minver": KERNELS,
        "license": "MIT",
        "python-depends": [],
        "kernel-depends": [],
        "backend": kind,
        "digest": _digest(variant),
    }


def _card(variants: list[str], version: int) -> str:
    layers = _constant("layers", "__all__")
    rows = "\n".join(f"* `{name}`" for name in layers)
    builds = "\n".join(f"* `{name}`" for name in variants)
    return f"""---
library_name: kernels
license: mit
tags:
- kernels
- rocm
---

# hipkittens

Prebuilt kernels for AMD GPUs of gfx942 (MI300X, MI325X) and gfx950 (MI350X, MI355X).

**No AMD GPU has run these kernels yet.** They run in a simulator of both GPUs, which the CPU variant uses for CPU tensors: to try
models, not to serve them.

```python
from kernels import LayerRepository, Mode, kernelize, use_kernel_mapping

mapping = {{"RMSNorm": {{"rocm": LayerRepository("OWNER/{NAME}", layer_name="RMSNorm", version={version})}}}}
with use_kernel_mapping(mapping):
    model = kernelize(model, mode=Mode.TRAINING)
```

`get_kernel("OWNER/{NAME}", version={version})` has the functions of the Python package, and flash-attn's.

## Layers

{rows}

## Builds

{builds}

They need glibc 2.34 and GCC 11's libstdc++, or later.
"""


def build(
    folder: Path, rocm: tuple[str, ...] = ROCM_VERSIONS, cpu: bool = True, version: int = 1
) -> list[str]:
    """Writes the repository and returns its variants. Raises HubError, and writes nothing, if the folder is in use or the package has no
    libraries."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HubError(f"{folder}: it is there already and not empty; name a new folder")
    for number in rocm:
        if not all(part.isdigit() for part in number.split(".")) or number.count(".") != 1:
            raise HubError(f"ROCm version {number!r}; write it as torch.version.hip begins: 7.1")
    if not rocm and not cpu:
        raise HubError("no variants are left to build: give a ROCm version, or leave --no-cpu out")
    if version < 1:
        raise HubError(f"version {version}; it must be at least 1")
    missing = [str(PACKAGE / path) for path in data_files() if not (PACKAGE / path).is_file()]
    if missing:
        raise HubError(f"{', '.join(missing)}: not there; build the package first (./run build)")

    contents = {path: (PACKAGE / path).read_bytes() for path in (*modules(), *data_files())}
    summary = hashlib.sha256(ENTRY.encode())
    for path, data in contents.items():
        summary.update(f"{path.as_posix()}\0{len(data)}\0".encode() + data)
    backends = [f"rocm{number.replace('.', '')}" for number in rocm] + ["cpu"] * cpu
    for backend in backends:
        identity = f"_{NAME}_{backend[:4].rstrip('0123456789')}_{summary.hexdigest()[:12]}"
        variant = folder / "build" / variant_name(backend)
        for path, data in contents.items():
            target = variant / NAME / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(_renamed(data, identity) if path == OPERATORS else data)
        (variant / "__init__.py").write_text(ENTRY)
        metadata = _metadata(identity, backend, version, variant)
        (variant / "metadata.json").write_text(json.dumps(metadata, indent=2) + "\n")
    names = [variant_name(backend) for backend in backends]
    (folder / "README.md").write_text(_card(names, version))
    shutil.copyfile(ROOT / "LICENSE", folder / "LICENSE")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder", type=Path, help="where to write the repository; it must not be there yet, or be empty"
    )
    parser.add_argument(
        "--rocm",
        nargs="*",
        default=ROCM_VERSIONS,
        metavar="X.Y",
        help="versions of ROCm to make variants for",
    )
    parser.add_argument("--no-cpu", action="store_true", help="without the variant that simulates")
    parser.add_argument(
        "--version", type=int, default=1, help="the kernel's version on the hub, a whole number"
    )
    arguments = parser.parse_args()
    try:
        names = build(arguments.folder, tuple(arguments.rocm), not arguments.no_cpu, arguments.version)
    except HubError as error:
        print(f"hub_kernels: {error}", file=sys.stderr)
        return 1
    for name in names:
        print(arguments.folder / "build" / name)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
