"""Kernels around single memory instructions: registers in, one instruction, registers and memory out.

Every kernel starts with: v0 lane, v16.. the rows it was passed, v[32:35] destination rows with known old values, s[8:9] memory,
s[12:15] a buffer descriptor, s16 an offset, EXEC the mask of the launch, M0 as passed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tests.device_compiler import assemble
from tests.simulated_device import HOST_LEVELS as LEVEL_NUMBERS
from tests.simulated_device import Module, library

INPUT_ROWS, OLD = 12, np.uint32(0x11110000)
ALL = (1 << 64) - 1
MASKS = (ALL, 0x00FF_F0F0_1234_8001, 1 << 37, 0)
# The levels that differ in how memory is read and written, if this machine has them.
HOST_LEVELS = [
    name
    for name in ("portable", "avx2", "avx512")
    if LEVEL_NUMBERS[name] <= library().hipkittens_best_host_level()
]

HEADER = """
.amdgcn_target "amdgcn-amd-amdhsa--{target}"
.text
"""
KERNEL = """
.globl {name}
.p2align 8
.type {name},@function
{name}:
{body}
  s_endpgm
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_next_free_vgpr 128
  .amdhsa_accum_offset 64
  .amdhsa_next_free_sgpr 96
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_group_segment_fixed_size {lds_bytes}
  .amdhsa_private_segment_fixed_size {private_bytes}
  .amdhsa_uses_dynamic_stack 0
  .amdhsa_tg_split {tg_split}
  .amdhsa_enable_private_segment {uses_private}
.end_amdhsa_kernel
.text
"""
METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 64
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds_bytes}
    .private_segment_fixed_size: {private_bytes}
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: 128
    .agpr_count: 64
    .max_flat_workgroup_size: 1024
    .args:
      - {{ .size: 64, .offset: 0, .value_kind: by_value }}
"""

LOAD_ARGUMENTS = """
  s_load_dwordx4 s[4:7], s[0:1], 0
  s_load_dwordx4 s[8:11], s[0:1], 16
  s_load_dwordx4 s[12:15], s[0:1], 32
  s_load_dwordx2 s[16:17], s[0:1], 48
  s_waitcnt lgkmcnt(0)
  s_mov_b32 m0, s17
  v_lshlrev_b32_e32 v1, 2, v0
"""
LOAD_ROWS = "".join(
    f"  global_load_dword v{16 + row}, v1, s[4:5] offset:{256 * row}\n" for row in range(INPUT_ROWS)
) + ("  s_waitcnt vmcnt(0)\n" + "".join(f"  v_mov_b32_e32 v{32 + row}, {OLD + row:#x}\n" for row in range(4)))
STORE_ROWS = "".join(f"  global_store_dword v1, v{32 + row}, s[6:7] offset:{256 * row}\n" for row in range(4))
LDS_IN = "".join(
    f"  global_load_dword v40, v1, s[8:9] offset:{256 * i}\n  s_waitcnt vmcnt(0)\n  ds_write_b32 v1, v40 offset:{256 * i}\n"
    for i in range(16)
)
LDS_OUT = "".join(
    f"  ds_read_b32 v40, v1 offset:{256 * i}\n  s_waitcnt lgkmcnt(0)\n  global_store_dword v1, v40, s[8:9] offset:{256 * i}\n"
    for i in range(16)
)


@dataclasses.dataclass(frozen=True)
class Body:
    """A kernel of a test module."""

    text: str
    lds_bytes: int = 0
    private_bytes: int = 0
    tg_split: bool = False


def around(text: str, *, lds: bool = False, private_bytes: int = 0) -> Body:
    """A kernel that runs `text` under the launch's EXEC. With `lds`, memory is copied to LDS before and back after."""
    return Body(
        LOAD_ARGUMENTS + LOAD_ROWS + (LDS_IN if lds else "") + "  s_waitcnt lgkmcnt(0)\n  s_mov_b64 exec, s[10:11]\n"
        + text + "\n  s_waitcnt vmcnt(0) lgkmcnt(0)\n  s_mov_b64 exec, -1\n" + STORE_ROWS + (LDS_OUT if lds else ""),
        4096 if lds else 0, private_bytes,
    )  # fmt: skip


class Kernels:
    """Kernels by name, distributed over a few code objects, since a launch translates all of its object."""

    per_object = 32

    def __init__(self, bodies: Mapping[str, Body], target: str):
        self.bodies, self.target = dict(bodies), target
        self._modules: dict[int, Module] = {}
        self._place = {name: index // self.per_object for index, name in enumerate(self.bodies)}

    def _assemble(self, place: int) -> Module:
        text = HEADER.format(target=self.target)
        metadata = ".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:"
        for name, body in self.bodies.items():
            if self._place[name] != place:
                continue
            sizes = {
                "lds_bytes": body.lds_bytes,
                "private_bytes": body.private_bytes,
                "tg_split": int(body.tg_split),
                "uses_private": int(body.private_bytes > 0),
            }
            text += KERNEL.format(name=name, body=body.text, **sizes)
            metadata += METADATA.format(name=name, **sizes)
        return Module(assemble(text + metadata + ".end_amdgpu_metadata\n", self.target), self.target)

    @functools.cache  # noqa: B019  (lives as long as the test module)
    def kernel(self, name: str):
        place = self._place[name]
        if place not in self._modules:
            self._modules[place] = self._assemble(place)
        return self._modules[place].kernel(name)


def load(bodies: Mapping[str, Body], target: str) -> Kernels:
    return Kernels(bodies, target)


def old_rows() -> np.ndarray:
    return np.repeat(OLD + np.arange(4, dtype=np.uint32)[:, None], 64, axis=1)


def aligned(shape, dtype=np.uint32) -> np.ndarray:
    """Zeroed memory that starts on a 64-byte boundary."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count].view(dtype).reshape(shape)


def run(module, name, rows=(), memory=None, *, mask=ALL, descriptor=(0, 0, 0, 0), offset=0, m0=0, waves=1, regions=None,
        **settings):  # fmt: skip
    """Launch one wave (or more); return the four destination rows. `rows` go to v16 and up, memory is changed in place."""
    given = np.zeros((INPUT_ROWS, 64), np.uint32)
    for index, row in enumerate(rows):
        given[index] = row
    out = np.zeros((4, 64 * waves), np.uint32)
    memory = aligned(1024) if memory is None else memory
    arguments = np.array([given.ctypes.data, out.ctypes.data, memory.ctypes.data, mask], np.uint64).tobytes()
    arguments += np.array([*descriptor, offset, m0, 0, 0], np.uint32).tobytes()
    settings.setdefault("host_level", HOST_LEVELS[-1])
    regions = {"in": given, "out": out, "memory": memory} | (regions or {})
    module.kernel(name).launch(arguments, regions, block=[64 * waves], threads=1, **settings)
    return out


def lanes_of(mask: int) -> np.ndarray:
    return np.array([mask >> lane & 1 for lane in range(64)], bool)


def descriptor_of(
    memory: np.ndarray, records: int, stride: int = 0, base_offset: int = 0, word3: int = 0x00020000
):
    base = memory.ctypes.data + base_offset
    return base & 0xFFFFFFFF, (base >> 32) | stride << 16, records, word3
