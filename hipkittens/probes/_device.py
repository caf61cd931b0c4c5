# SPDX-License-Identifier: MIT
"""A GPU, or a simulated one, on which probe kernels are launched like user kernels of hipkittens.kernel."""

from __future__ import annotations

import functools
from typing import Any

import torch

from .. import _backend, _installation, _library
from .._packed_kernel import PackedKernel

UNTOUCHED = -0x5A5A5A5B  # 0xa5a5a5a5: results and LDS hold it until they are written
THREADS = {
    "conversion": 256,
    "placement": 512,
    "chain": 256,
    "lds_access": 512,
}  # of a workgroup; otherwise a wave


@functools.cache
def _kernel(target: str, row: str) -> PackedKernel:
    return PackedKernel(target, f"{_installation.PROBES}.{row}", ("input", "output"), constant=("input",))


class Device:
    """What a fact's `find` queries.

    target     gfx942 or gfx950
    name       of the product; of a simulated device "simulated gfx942"
    simulated  whether it is simulated
    """

    def __init__(self, target: str, gpu: int | None = None) -> None:
        self.target, self.simulated = target, gpu is None
        self.notes: dict[str, Any] = {}
        self.torch_device = torch.device("cpu" if gpu is None else f"cuda:{gpu}")
        if gpu is None:
            self.name, self.facts = f"simulated {target}", {}
        else:
            properties = torch.cuda.get_device_properties(gpu)
            self.name = properties.name
            self.facts = {
                "gcn_arch": properties.gcnArchName,
                "compute_units": properties.multi_processor_count,
                "memory_bytes": properties.total_memory,
            }

    @property
    def compute_units(self) -> int:
        return 1 if self.simulated else self.facts["compute_units"]

    def note(self, name: str, value: Any) -> None:
        """Additional information for readers of the report."""
        self.notes[name] = value

    def launch(
        self,
        row: str,
        input: torch.Tensor | None,
        outputs: int | torch.Tensor,
        *,
        workgroups: int = 1,
        **arguments: Any,
    ) -> torch.Tensor:
        """Runs a row of csrc/kernels/probe/variants.def and returns its results, 32 bits each.

        outputs    how many there are, or their initial contents
        arguments  fields of the row's arguments, by name; 0 if omitted, input_bytes and output_bytes the whole size
        """
        if isinstance(outputs, int):
            outputs = torch.full((outputs,), UNTOUCHED, dtype=torch.int32)
        # Not zero_-initialized memory of the kernel's own launch: a copy, which has ended when the kernel starts.
        output = outputs.to(self.torch_device, copy=True)
        if input is not None:
            input = input.to(self.torch_device)
        kernel = _kernel(self.target, row)
        given: dict[str, Any] = {"output": output}
        if input is not None:
            given |= {"input": input, "input_bytes": input.numel() * input.element_size()}
        if row != "preloaded":  # it has other arguments
            given["output_bytes"] = output.numel() * output.element_size()
        kernel(given | arguments, grid=workgroups, block=THREADS.get(row, 64))
        return output.cpu()

    def conflict_cycles(self, row: str, input: torch.Tensor, outputs: int, **arguments: Any) -> int:
        """The same on a simulated device; returns its counter of cycles lost to LDS bank conflicts."""
        assert self.simulated
        with _backend.simulate(self.target, checks=True):
            self.launch(row, input, outputs, **arguments)
            return _library.last_report()["lds_conflict_cycles"]
