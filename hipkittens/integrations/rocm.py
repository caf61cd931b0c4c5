# SPDX-License-Identifier: MIT
"""Makes PyTorch for CPUs behave like PyTorch for ROCm, so that programs for AMD GPUs take the same code paths.

    from hipkittens.integrations import rocm

    with rocm.active(), hipkittens.simulate("gfx950", checks="all") as run:
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction      # not changed

        x = torch.randn(64, 4096, device="cuda")
        y = LigerRMSNormFunction.apply(x, weight.cuda(), 1e-6)

`torch.version.hip`, `torch.cuda` and `device="cuda"` are those of the simulated GPU, whose memory is the CPU's: such a tensor reports being
on cuda:0, and PyTorch's own operators compute it on the CPU. Triton's kernels run in the simulator (hipkittens.integrations.triton), if
Triton is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

import torch
from torch.utils import _device

from .. import _backend
from ._rocm_device import SimulatedGPU
from ._rocm_tensors import SimulatedPlacement, replaced

_active = False


@contextlib.contextmanager
def active() -> Iterator[None]:
    """Context manager in which torch reports being a ROCm build with one GPU, the one that hipkittens simulates.

    The answers of torch.cuda hold for the process, `device="cuda"` for this thread. Inside another such context it has no effect.
    Everything is restored when it ends; tensors that were on "cuda" are then CPU tensors.

    Raises RuntimeError if torch has a GPU of its own, or is a build for ROCm.
    """
    global _active
    if _active:
        yield
        return
    if torch.version.hip is not None or torch.cuda.is_available():
        raise RuntimeError(
            "hipkittens.integrations.rocm: this torch "
            + ("is a build for ROCm" if torch.version.hip is not None else "has a GPU")
            + "; allowed: a torch without one. Simulate kernels on its CPU tensors with hipkittens.simulate"
        )
    # Cached permanently by their first call, which must not happen inside the context.
    _backend.hip_device_count()
    _device._device_constructors()
    placement = SimulatedPlacement()
    with contextlib.ExitStack() as stack:
        if importlib.util.find_spec("triton") is not None:
            from . import triton

            stack.enter_context(triton.active())
        for functions in (SimulatedGPU().functions(), placement.functions()):
            for owner, name, value in list(functions):
                stack.enter_context(replaced(owner, name, value))
        stack.enter_context(placement)
        _active = True
        try:
            yield
        finally:
            _active = False
