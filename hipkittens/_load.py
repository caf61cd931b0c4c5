# SPDX-License-Identifier: MIT
"""Loading kernels ahead of the calls that launch them."""

from __future__ import annotations

import ctypes

import torch

from . import _backend, _installation, _library, operations


def load(*functions: str, device: torch.device | str | int | None = None) -> int:
    """Load the kernels of functions of this package on a device, ahead of their first call; returns how many.

    With no `functions`, those of all functions are loaded. A kernel is otherwise loaded by the first call that launches it, which is not
    possible while a stream is being captured into a graph: call this, or run the step once, before `torch.cuda.graph`. `device` is a GPU,
    by default torch's current one; on a machine without an AMD GPU, or for device="cpu", it is the simulated one.

    Raises ValueError for a name that is not a function, or a device that no kernel supports, and RuntimeError if HIP refuses a kernel.
    """
    where = "hipkittens.load"
    owner = {function.name: operation for operation in operations.every() for function in operation.functions}
    for name in functions:
        if name not in owner:
            raise ValueError(f"{where}: there is no function {name!r}; allowed: {', '.join(sorted(owner))}")
    place = _place(where, device)
    ordinal = -1 if place.type == "cpu" else place.index
    arch = _backend.arch_of(place)
    if arch not in _installation.TARGETS:
        raise ValueError(
            f"{where}: {place} is a {arch}; hipkittens has kernels for {', '.join(_installation.TARGETS)}"
        )
    folders = set().union(*(operations.folders(owner[name]) for name in functions or owner))
    library = _library.operators()
    symbols = [
        kernel["symbol"]
        for entry in _installation.pack(arch).entries
        if entry["operation"] in folders
        for kernel in entry["kernels"]
    ]
    for symbol in symbols:
        if library.hipkittens_runtime_load_kernel(ctypes.c_int(ordinal), arch.encode(), symbol.encode()):
            raise RuntimeError(f"{where}: {library.hipkittens_runtime_last_error().decode()}")
    return len(symbols)


def _place(where: str, device: torch.device | str | int | None) -> torch.device:
    has_gpu = _backend.hip_device_count() > 0
    if device is None:
        return torch.device("cuda", torch.cuda.current_device()) if has_gpu else torch.device("cpu")
    place = torch.device(device)
    if place.type == "cpu":
        return place
    if place.type != "cuda" or not has_gpu:
        raise ValueError(f"{where}: device is {place}; allowed: 'cpu' (simulated), or an AMD GPU")
    return torch.device("cuda", torch.cuda.current_device()) if place.index is None else place
