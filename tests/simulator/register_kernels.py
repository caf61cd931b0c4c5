"""Kernels around a few instructions: vector registers in from memory, the instructions, vector registers out.

v0 and v1 hold the lane and four times the lane, s[4:5] and s[6:7] point to the input and output rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tests.device_compiler import assemble
from tests.simulated_device import HOST_LEVELS, Module, library, pointers

LEVELS = [
    name
    for name in ("portable", "avx2", "avx512", "avx512_bf16")
    if HOST_LEVELS[name] <= library().hipkittens_best_host_level()
]
VGPRS, AGPRS = 160, 96

_KERNEL = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
  s_load_dwordx4 s[4:7], s[0:1], 0
  v_lshlrev_b32_e32 v1, 2, v0
  s_waitcnt lgkmcnt(0)
{text}
  s_endpgm
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr {all_vgprs}
  .amdhsa_accum_offset {vgprs}
  .amdhsa_next_free_sgpr 96
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
{directives}
.end_amdhsa_kernel
.text
"""
_METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: {all_vgprs}
    .agpr_count: {agprs}
    .max_flat_workgroup_size: 64
    .args:
      - {{ .size: 16, .offset: 0, .value_kind: by_value }}
"""


@dataclasses.dataclass(frozen=True)
class RegisterKernel:
    """`text` between loads of `inputs` rows to v[first_input..] and stores of `outputs` rows from v[first_output..]."""

    text: str
    first_input: int = 16
    inputs: int = 0
    first_output: int = 64
    outputs: int = 0

    def assembly(self) -> str:
        return (
            _move_rows("load", self.first_input, self.inputs)
            + self.text
            + "\n"
            + _move_rows("store", self.first_output, self.outputs)
        )


def _move_rows(what: str, first: int, count: int) -> str:
    pair = (4, 5) if what == "load" else (6, 7)
    lines = []
    for row in range(count):
        if row and row % 15 == 0:
            lines += [
                f"s_add_u32 s{pair[0]}, s{pair[0]}, {15 * 256}",
                f"s_addc_u32 s{pair[1]}, s{pair[1]}, 0",
            ]
        place = f"s[{pair[0]}:{pair[1]}] offset:{row % 15 * 256}"
        lines.append(
            f"global_load_dword v{first + row}, v1, {place}"
            if what == "load"
            else f"global_store_dword v1, v{first + row}, {place}"
        )
    return "".join(f"  {line}\n" for line in lines) + ("  s_waitcnt vmcnt(0)\n" if count else "")


class RegisterKernels:
    """A code object with kernels by name, loaded once."""

    def __init__(self, kernels: Mapping[str, RegisterKernel], target: str, *, directives: str = ""):
        self.kernels, self.target, self.directives = dict(kernels), target, directives

    @functools.cached_property
    def code(self) -> bytes:
        numbers = {"directives": self.directives, "all_vgprs": VGPRS + AGPRS, "vgprs": VGPRS, "agprs": AGPRS}
        text = f'.amdgcn_target "amdgcn-amd-amdhsa--{self.target}"\n.text\n'
        text += "".join(
            _KERNEL.format(name=name, text=kernel.assembly(), **numbers)
            for name, kernel in self.kernels.items()
        )
        text += ".amdgpu_metadata\n---\namdhsa.version: [1, 2]\namdhsa.kernels:"
        text += (
            "".join(_METADATA.format(name=name, **numbers) for name in self.kernels)
            + "...\n.end_amdgpu_metadata\n"
        )
        return assemble(text, self.target)

    @functools.cached_property
    def module(self) -> Module:
        return Module(self.code, self.target)

    def run(self, name: str, rows: np.ndarray, **settings) -> np.ndarray:
        """Rows uint32[inputs][64] to rows uint32[outputs][64]."""
        kernel = self.kernels[name]
        given = np.ascontiguousarray(rows, np.uint32)
        assert given.shape == (kernel.inputs, 64)
        result = np.zeros((kernel.outputs, 64), np.uint32)
        self.module.kernel(name).launch(
            pointers(given, result), {"in": given, "out": result}, block=(64, 1, 1), threads=1, **settings
        )
        return result

    def run_table(self, name: str, table: np.ndarray, **settings) -> np.ndarray:
        """For kernels that traverse a table themselves: uint32[cases][...] in, a table of that shape out."""
        given = np.ascontiguousarray(table, np.uint32)
        result = np.zeros_like(given)
        self.module.kernel(name).launch(
            pointers(given, result), {"in": given, "out": result}, block=(64, 1, 1), threads=1, **settings
        )
        return result
