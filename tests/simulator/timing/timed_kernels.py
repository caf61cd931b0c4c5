# SPDX-License-Identifier: MIT
"""Microkernels in assembly, and their duration in the cycle model."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import json

import numpy as np

from hipkittens._simulator import Timing
from tests.device_compiler import assemble
from tests.simulated_device import Module, library, pointers

TARGET_OF = {
    "MI300X": "gfx942",
    "MI308X": "gfx942",
    "MI325X": "gfx942",
    "MI350X": "gfx950",
    "MI355X": "gfx950",
}

TEXT = """
.amdgcn_target "amdgcn-amd-amdhsa--{target}"
.text
.globl kernel
.p2align 8
.type kernel,@function
kernel:
{body}
  s_endpgm
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel kernel
  .amdhsa_next_free_vgpr {vgprs}
  .amdhsa_accum_offset {accum_offset}
  .amdhsa_next_free_sgpr 96
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {private_bytes}
.end_amdhsa_kernel
.amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: kernel
    .symbol: kernel.kd
    .kernarg_segment_size: 64
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds_bytes}
    .private_segment_fixed_size: {private_bytes}
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: {vgprs}
    .agpr_count: 0
    .max_flat_workgroup_size: 1024
    .args:
      - {{ .size: 64, .offset: 0, .value_kind: by_value }}
.end_amdgpu_metadata
"""


def _text(function, *arguments) -> str:
    function.restype = ctypes.c_size_t
    size = function(*arguments, None, ctypes.c_size_t(0)) + 1
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, buffer, ctypes.c_size_t(size))
    return buffer.value.decode()


@functools.cache
def parameters(device: str) -> dict[str, float]:
    """The model's own parameters, from which expected values are computed."""
    rows = json.loads(_text(library().hipkittens_timing_parameters, device.encode()))["parameters"]
    return {row["name"]: row["value"] for row in rows}


def begin(device: str, *, clock_mhz=0.0, full=False, timeline=0, values=True, **overrides) -> int:
    """The return value of hipkittens_time_launches."""
    names = (ctypes.c_char_p * len(overrides))(*(name.encode() for name in overrides))
    numbers = (ctypes.c_double * len(overrides))(*overrides.values())
    return library().hipkittens_time_launches(
        ctypes.byref(
            Timing(
                device.encode() if device is not None else None,
                clock_mhz,
                full,
                timeline,
                values,
                names,
                numbers,
                len(overrides),
            )
        )
    )


def end() -> list[dict]:
    launches = json.loads(_text(library().hipkittens_timed_launches))
    library().hipkittens_time_launches(None)
    return launches


@dataclasses.dataclass(frozen=True)
class Kernel:
    body: str
    device: str
    vgprs: int = 64
    accum_offset: int = 0  # 0: no accumulation registers
    lds_bytes: int = 0
    private_bytes: int = 0

    @functools.cached_property
    def module(self) -> Module:
        target = TARGET_OF[self.device]
        text = TEXT.format(
            target=target,
            body=self.body,
            vgprs=self.vgprs,
            accum_offset=self.accum_offset or min(256, self.vgprs),
            lds_bytes=self.lds_bytes,
            private_bytes=self.private_bytes,
        )
        return Module(assemble(text, target), target)

    def time(
        self, *arguments: np.ndarray | int, workgroups: int = 1, waves: int = 1, clock_mhz=0.0, full=False, values=True, **overrides
    ) -> dict:  # fmt: skip
        """The report of one launch. Overrides replace parameters of the model."""
        regions = {f"r{i}": array for i, array in enumerate(arguments) if isinstance(array, np.ndarray)}
        assert begin(self.device, clock_mhz=clock_mhz, full=full, values=values, **overrides) == 0
        try:
            self.module.kernel("kernel").launch(
                pointers(*arguments).ljust(64, b"\0"), regions, grid=[workgroups], block=[64 * waves]
            )
        finally:
            launches = end()
        (launch,) = launches
        return launch


def clocks_each(body, device: str, *arguments: np.ndarray, few=64, many=320, **launch) -> float:
    """Clocks that one repetition of `body` adds to a workgroup: the difference between many and few of them. `body` is text
    or a function of the repetition's number. Straight-line code, whose instructions are assumed to be cached."""
    kernel = {
        name: launch.pop(name)
        for name in ("vgprs", "accum_offset", "lds_bytes", "before", "after")
        if name in launch
    }
    before, after = kernel.pop("before", ""), kernel.pop("after", "")
    text = body if callable(body) else lambda _: body
    times = []
    for count in (few, many):
        code = "\n".join([before, *(text(i) for i in range(count)), after])
        report = Kernel(code, device, **kernel).time(*arguments, instruction_cache_starts_warm=1, **launch)
        times.append(report["median_workgroup_cycles"])
    return (times[1] - times[0]) / (many - few)
