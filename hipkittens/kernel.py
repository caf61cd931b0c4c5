# SPDX-License-Identifier: MIT
"""User-written kernels in C++ with the tile primitives: compiled once, stored in a file, launched on tensors.

    softmax = hipkittens.kernel.compile("softmax.cpp")              # needs `pip install ziglang==0.17.0`
    softmax(x, out, rows, cols, grid=(rows // 64,), block=(256,))   # CPU tensors: the simulator; GPU tensors: the GPU
    softmax.save("softmax.hkkernel")                                # both targets in one file

    softmax = hipkittens.kernel.load("softmax.hkkernel")            # needs no compiler

The source is freestanding HIP C++20 (no HIP headers); `#include "tiles/tiles.h"` provides the primitives. A launch may access only the
tensors that it is passed. In the simulator, any other access ends it and reports the kernel's source line and the nearest tensor;
hipkittens.simulate(checks="all") enables further checks. docs/kernel_authors.md builds a kernel from start to end.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import os
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import _backend, _code_object, _disassembly, _installation, _kernel_parameters, _library
from ._arguments import check_tensor
from ._device_compiler import CompileError, DeviceCompiler

__all__ = ["CompileError", "Kernel", "KernelFileError", "compile", "include_directory", "load"]

_FORMAT = 1


class KernelFileError(RuntimeError):
    """A kernel file is missing, truncated, modified, or of another version."""


class _Region(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_int),
    )


@functools.cache
def _runtime() -> ctypes.CDLL:
    library = _library.operators()
    library.hipkittens_runtime_open_kernel.restype = ctypes.c_void_p
    library.hipkittens_runtime_open_kernel.argtypes = [
        ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p,
    ]  # fmt: skip
    library.hipkittens_runtime_launch_kernel.argtypes = [
        ctypes.c_void_p, ctypes.c_uint32 * 3, ctypes.c_uint32 * 3, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_char_p,
        ctypes.c_uint64, ctypes.POINTER(_Region), ctypes.c_uint64,
    ]  # fmt: skip
    library.hipkittens_runtime_close_kernel.argtypes = [ctypes.c_void_p]
    library.hipkittens_runtime_close_kernel.restype = None
    return library


def include_directory() -> Path:
    """The include directory for a compiler's -I, which contains "tiles/tiles.h"."""
    package = Path(__file__).resolve().parent
    installed = package / "include"
    return installed if installed.is_dir() else package.parent / "csrc"


def _triple(where: str, name: str, value: Sequence[int] | int) -> Any:
    sizes = (value,) if not isinstance(value, Sequence) else tuple(value)
    if not 1 <= len(sizes) <= 3 or not all(isinstance(size, int) and 1 <= size < 2**31 for size in sizes):
        raise ValueError(f"{where}: {name} is {value!r}; it must be one to three positive integers")
    return (ctypes.c_uint32 * 3)(*sizes, *(1,) * (3 - len(sizes)))


def _extent(tensor: torch.Tensor) -> int:
    """The number of bytes from the first element to the end of the last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


class Kernel:
    """A compiled kernel for one or more targets, created by `compile` or `load`.

    name        its symbol
    images      {"gfx942": code object, ...}
    parameters  name, C++ type, offset and size of each
    """

    def __init__(
        self, name: str, images: Mapping[str, bytes], parameters: Iterable[_kernel_parameters.Parameter]
    ) -> None:
        self.name = name
        self.images = dict(images)
        self.parameters = tuple(parameters)
        self._opened: dict[tuple[int, str], int] = {}
        self._opening = threading.Lock()
        self._closing = weakref.finalize(self, self._close, self._opened)
        self._closing.atexit = False  # the HIP library may be gone by then

    def __repr__(self) -> str:
        wanted = ", ".join(f"{each.type} {each.name}".replace("* ", "*") for each in self.parameters)
        return f"<hipkittens kernel {self.name}({wanted}) for {', '.join(self.images)}>"

    @_backend.interruptible
    def __call__(
        self,
        *arguments: Any,
        grid: Sequence[int] | int,
        block: Sequence[int] | int,
        shared_bytes: int = 0,
    ) -> None:
        """Launch the kernel on the current stream of its tensors' device.

        arguments     as declared in the source: a tensor (or None) for a pointer, with the pointer's dtype; int, float or bool for
                      numbers; bytes or a ctypes.Structure for a struct
        grid          number of workgroups, one to three dimensions
        block         work-items of a workgroup, one to three dimensions
        shared_bytes  dynamic LDS of a workgroup, in addition to what the kernel declares

        The tensor of a `const` pointer may only be read, any other may be written. Autograd does not record the launch: while gradients
        are enabled, tensors that require a gradient are refused (make the kernel a torch.library.custom_op). Raises TypeError or ValueError
        before anything is launched, RuntimeError with a report for a fault.
        """
        where = f"hipkittens.kernel: {self.name}"
        for parameter, value in zip(self.parameters, arguments, strict=False):
            if isinstance(value, torch.Tensor):
                check_tensor(where, parameter.name, value)
        segment = _kernel_parameters.pack(where, self.parameters, arguments)
        tensors = [
            (parameter, value)
            for parameter, value in zip(self.parameters, arguments, strict=True)
            if isinstance(value, torch.Tensor)
        ]
        if not tensors:
            raise ValueError(f"{where}: no argument is a tensor, so it is not clear where to run")
        device = tensors[0][1].device
        for parameter, tensor in tensors:
            if tensor.device != device:
                raise ValueError(
                    f"{where}: {parameter.name} is on {tensor.device} and {tensors[0][0].name} on {device}; move one to the other"
                )
            if tensor.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{where}: {parameter.name} requires grad, and a kernel has no derivative; wrap it in "
                    "torch.library.custom_op with register_autograd, or call it under torch.no_grad()"
                )
        if device.type == "meta":
            raise ValueError(f"{where}: {tensors[0][0].name} is on the meta device; there is nothing to run")
        _backend.check_device(where, tensors[0][0].name, tensors[0][1])
        if not isinstance(shared_bytes, int) or shared_bytes < 0:
            raise ValueError(f"{where}: shared_bytes is {shared_bytes!r}; it must be a number of bytes")
        shape = _triple(where, "grid", grid), _triple(where, "block", block)
        regions = (_Region * len(tensors))(
            *(
                (tensor.data_ptr(), _extent(tensor), parameter.name.encode(), not parameter.is_constant)
                for parameter, tensor in tensors
            )
        )
        if device.type == "cpu":
            ordinal, stream = -1, None
            handle = self._open(where, -1, _backend.arch())
            _library.apply_simulator_settings()
        else:
            ordinal = device.index
            stream = torch.cuda.current_stream(device).cuda_stream
            handle = self._open(where, ordinal, _backend.arch_of(device))
        if _runtime().hipkittens_runtime_launch_kernel(
            handle, *shape, shared_bytes, stream, segment, len(segment), regions, len(regions)
        ):
            raise RuntimeError(_runtime().hipkittens_runtime_last_error().decode())

    def _open(self, where: str, ordinal: int, arch: str) -> int:
        with self._opening:
            if handle := self._opened.get((ordinal, arch)):
                return handle
            if arch not in self.images:
                raise ValueError(
                    f"{where}: it was compiled for {', '.join(self.images)}, and this is a {arch}; compile it with targets=({arch!r},)"
                )
            image = self.images[arch]
            handle = _runtime().hipkittens_runtime_open_kernel(
                ordinal, arch.encode(), image, len(image), self.name.encode()
            )
            if not handle:
                raise RuntimeError(_runtime().hipkittens_runtime_last_error().decode())
            self._opened[ordinal, arch] = handle
            return handle

    @staticmethod
    def _close(opened: dict[tuple[int, str], int]) -> None:
        for handle in opened.values():
            _runtime().hipkittens_runtime_close_kernel(handle)

    def resources(self, target: str) -> dict[str, Any]:
        """VGPRs, AGPRs, SGPRs, spills, LDS and scratch bytes, from the compiler's metadata for `target`."""
        return next(
            entry
            for entry in _code_object.describe_kernels(self._image(target))
            if entry["symbol"] == self.name
        )

    def disassembly(self, target: str) -> str:
        """The instructions for `target`, one per line, with their addresses."""
        lines = []
        for offset, code in _disassembly.code(self._image(target)):
            lines += [
                f"{address:06x}  {text}"
                for address, _, text in _disassembly.disassembled(target, offset, code)
            ]
        return "\n".join(lines)

    def _image(self, target: str) -> bytes:
        if target not in self.images:
            raise ValueError(
                f"hipkittens.kernel: {self.name} was not compiled for {target!r} (have {', '.join(self.images)})"
            )
        return self.images[target]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one file with the code objects of all targets, each with its sha256. The same kernel gives the same bytes."""
        index = {
            "format": _FORMAT,
            "name": self.name,
            "parameters": _kernel_parameters.to_json(self.parameters),
            "sha256": {target: hashlib.sha256(image).hexdigest() for target, image in self.images.items()},
        }
        members = {"kernel.json": json.dumps(index, indent=1, sort_keys=True).encode()}
        members |= {f"{target}.co": image for target, image in sorted(self.images.items())}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


def load(path: str | os.PathLike[str]) -> Kernel:
    """Load a kernel written by `Kernel.save`. Raises KernelFileError for any other file, with the reason."""
    try:
        with zipfile.ZipFile(path) as archive:
            index = json.loads(archive.read("kernel.json"))
            if index["format"] != _FORMAT:
                raise KernelFileError(f"{path}: format {index['format']}, this version reads {_FORMAT}")
            images = {target: archive.read(f"{target}.co") for target in index["sha256"]}
        for target, image in images.items():
            if hashlib.sha256(image).hexdigest() != index["sha256"][target]:
                raise KernelFileError(
                    f"{path}: the code object for {target} does not have the sha256 it was saved with"
                )
        return Kernel(index["name"], images, _kernel_parameters.from_json(index["parameters"]))
    except OSError as error:
        raise KernelFileError(f"{path}: {error.strerror}") from None
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError) as error:
        raise KernelFileError(f"{path}: not a kernel that hipkittens.kernel saved ({error})") from None


def compile(
    source: str | os.PathLike[str],
    *,
    name: str | None = None,
    targets: Sequence[str] | str = _installation.TARGETS,
    defines: Mapping[str, str | int] | None = None,
    options: Sequence[str] = (),
) -> Kernel:
    """Compile device code: a file, or source text (any string that contains a line break).

    source    the file or text
    name      the symbol of the kernel, if the source contains more than one; it is extern "C"
    targets   "gfx942", "gfx950" or both (default)
    defines   preprocessor macros
    options   further options of clang

    Raises CompileError with the compiler's messages, or if the kernel is missing or ambiguous.
    """
    targets = (targets,) if isinstance(targets, str) else tuple(targets)
    unknown = [target for target in targets if target not in _installation.TARGETS]
    if unknown or not targets:
        raise ValueError(
            f"hipkittens.kernel.compile: targets is {targets!r}; allowed: {', '.join(_installation.TARGETS)}"
        )
    compiler = DeviceCompiler()
    with tempfile.TemporaryDirectory(prefix="hipkittens") as folder:
        if isinstance(source, str) and "\n" in source:
            file = Path(folder) / "source.cpp"
            file.write_text(source)
        else:
            file = Path(source)
            if not file.is_file():
                raise CompileError(f"hipkittens.kernel.compile: there is no file {file}")
        # Names of source lines that are the same wherever it is compiled.
        prefixes = (file.absolute().parent, include_directory(), folder)
        given = [f"-I{include_directory()}", "-fdebug-compilation-dir=."]
        given += [*(f"-ffile-prefix-map={prefix}/=" for prefix in prefixes), *options]
        given += [f"-D{key}={value}" for key, value in (defines or {}).items()]
        images = {}
        for target in targets:
            output = Path(folder) / f"{target}.co"
            compiler.compile(target, file, output, *given)
            images[target] = output.read_bytes()
        described = {entry["symbol"]: entry for entry in _code_object.describe_kernels(images[targets[0]])}
        if name is None:
            if len(described) != 1:
                raise CompileError(
                    f"hipkittens.kernel.compile: {file.name} has {len(described)} kernels"
                    + (f" ({', '.join(described)}); choose one with name=" if described else "")
                )
            (name,) = described
        elif name not in described:
            raise CompileError(
                f"hipkittens.kernel.compile: {file.name} has no kernel {name} (have {', '.join(described)})"
            )
        if name.startswith("_Z"):
            raise CompileError(
                f'hipkittens.kernel.compile: the kernel {name} of {file.name} has a C++ symbol; declare it extern "C" '
                "(a template: call what it does from such a kernel)"
            )
        tree = compiler.front_end(
            targets[0], file, *given, "-fsyntax-only", "-Xclang", "-ast-dump=json", "-Xclang",
            f"-ast-dump-filter={name}",
        ).stdout  # fmt: skip
    declared = _kernel_parameters.declared(tree, name)
    return Kernel(name, images, _kernel_parameters.placed(declared, described[name]["arguments"]))
