# SPDX-License-Identifier: MIT
"""What `hipkittens info` reports."""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from . import __version__, _backend, _environment, _installation, _library


def collect() -> dict[str, Any]:
    from . import _simulator

    packs = {}
    for target in _installation.TARGETS:
        index = _installation.pack(target).index
        packs[target] = {
            "code_objects": len(index["objects"]),
            "bytes": index["stream_bytes"],
            "packed_bytes": _installation.pack(target).path.stat().st_size,
            "compiler": sorted({entry["compiler"] for entry in index["objects"]}),
            "run_on_silicon": False,
        }
    return {
        "hipkittens": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_hip": torch.version.hip,
        "hip": _library.hip_status(),
        "gpus": [_backend.arch_of(torch.device("cuda", i)) for i in range(_backend.hip_device_count())],
        "backend": _backend.backend(),
        "arch": _backend.arch(),
        "simulator": {
            "library": str(_installation.SIMULATOR),
            "host_level": _simulator.best_host_level(),
            "cores": os.cpu_count(),
        },
        "kernels": packs,
        "environment": {row.variable: os.environ.get(row.variable) for row in _environment.read_by_package()},
    }
