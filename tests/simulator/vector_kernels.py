"""Kernels around single vector instructions: operands in, one instruction, registers and masks out.

Every kernel starts with, per lane: v[16:17], v[18:19], v[20:21] the sources, v[32:33] the old destination; for the whole
wave: s[36:37] a mask (also in vcc), s[38:39], s[40:41], s[42:43] scalar sources, EXEC the mask of the launch. Its outputs are
v[32:33], v[16:17], vcc, s[44:45] and EXEC. A launch runs many waves, each with its own values.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from tests.device_compiler import assemble
from tests.simulated_device import HOST_LEVELS as LEVEL_NUMBERS
from tests.simulated_device import Module, library

ALL = (1 << 64) - 1
SPARSE = 0x00FF_F0F0_1234_8001
HOST_LEVELS = [
    name
    for name in ("portable", "avx2", "avx512")  # vector instructions do not differ on higher levels
    if LEVEL_NUMBERS[name] <= library().hipkittens_best_host_level()
]
IN_ROWS, OUT_ROWS = 8, 12

PROLOGUE = """
  s_load_dwordx8 s[4:11], s[0:1], 0
  s_waitcnt lgkmcnt(0)
  s_lshl_b32 s12, s2, 6
  s_add_u32 s8, s8, s12
  s_addc_u32 s9, s9, 0
  s_load_dwordx8 s[36:43], s[8:9], 0
  v_lshl_or_b32 v1, s2, 6, v0
  v_lshlrev_b32_e32 v1, 2, v1
  s_mul_i32 s13, s3, 0
""" + "".join(
    f"  v_mov_b32_e32 v2, s{{rows}}\n  v_mul_lo_u32 v2, v2, {row}\n  v_add_u32_e32 v2, v2, v1\n"
    f"  global_load_dword v{16 + row if row < 6 else 26 + row}, v2, s[4:5]\n"
    for row in range(IN_ROWS)
)  # fmt: skip
PROLOGUE = (
    PROLOGUE.replace("  s_mul_i32 s13, s3, 0\n", "").replace("s{rows}", "s10")
    + """
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_mov_b64 s[44:45], 0
  s_mov_b64 vcc, s[36:37]
  s_load_dwordx2 s[46:47], s[0:1], 32
  s_waitcnt lgkmcnt(0)
  s_mov_b64 exec, s[46:47]
  s_nop 4
"""
)
EPILOGUE = """
  s_nop 4
  s_mov_b64 s[48:49], exec
  s_mov_b64 exec, -1
""" + "".join(
    f"  v_mov_b32_e32 v{40 + i}, {register}\n"
    for i, register in enumerate(("v32", "v33", "v16", "v17", "vcc_lo", "vcc_hi", "s44", "s45", "s48", "s49", "v34", "v35"))
) + "".join(
    f"  v_mov_b32_e32 v2, s10\n  v_mul_lo_u32 v2, v2, {row}\n  v_add_u32_e32 v2, v2, v1\n"
    f"  global_store_dword v2, v{40 + row}, s[6:7]\n"
    for row in range(OUT_ROWS)
)  # fmt: skip

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
  .amdhsa_float_denorm_mode_32 {denormals}
  .amdhsa_ieee_mode {ieee}
.end_amdhsa_kernel
.text
"""
METADATA = """
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: 40
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: 128
    .agpr_count: 64
    .max_flat_workgroup_size: 64
    .args:
      - {{ .size: 40, .offset: 0, .value_kind: by_value }}
"""


@functools.cache
def _load(bodies: tuple[tuple[str, str], ...], target: str, denormals: int, ieee: int) -> Module:
    text = f'.amdgcn_target "amdgcn-amd-amdhsa--{target}"\n.text\n'
    metadata = ".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.kernels:"
    for name, body in bodies:
        text += KERNEL.format(name=name, body=PROLOGUE + body + EPILOGUE, denormals=denormals, ieee=ieee)
        metadata += METADATA.format(name=name)
    return Module(assemble(text + metadata + ".end_amdgpu_metadata\n", target), target)


class Modules:
    """Kernels in several code objects: the first launch of a kernel translates the whole code object that contains it."""

    kernels_in_one = 24

    def __init__(self, bodies: Mapping[str, str], target: str, denormals: int, ieee: int):
        names = sorted(bodies)
        self._modules = {}
        for start in range(0, len(names), self.kernels_in_one):
            some = names[start : start + self.kernels_in_one]
            module = _load(tuple((name, bodies[name]) for name in some), target, denormals, ieee)
            self._modules |= dict.fromkeys(some, module)

    def kernel(self, name: str):
        return self._modules[name].kernel(name)


def load(bodies: Mapping[str, str], target: str = "gfx950", *, denormals: int = 3, ieee: int = 1) -> Modules:
    """A kernel around each of the instruction texts. denormals: bit 0 keeps f32 denormals in inputs, bit 1 in results."""
    return Modules(bodies, target, denormals, ieee)


@dataclasses.dataclass
class Outcome:
    """The outputs of a launch, waves x lanes; masks as one 64-bit value per wave."""

    destination: np.ndarray  # 64 bits: v[32:33]
    first_source: np.ndarray  # 64 bits: v[16:17]
    upper: np.ndarray  # 64 bits: v[34:35]
    vcc: np.ndarray
    mask: np.ndarray  # s[44:45]
    exec: np.ndarray


def run(
    module: Modules, name: str, sources, *, old=0, mask=0, scalars=(0, 0, 0), exec_mask: int = ALL, **settings
) -> Outcome:
    """`sources`: up to three arrays (waves x 64) of 64-bit values; `old` the same for v[32:33]."""
    sources = [np.ascontiguousarray(source, np.uint64) for source in sources]
    waves = sources[0].shape[0]
    given = np.zeros((IN_ROWS, waves, 64), np.uint32)
    for i, source in enumerate([*sources, *([0] * (3 - len(sources))), old]):
        pair = np.broadcast_to(np.asarray(source, np.uint64), (waves, 64))
        given[2 * i], given[2 * i + 1] = pair & np.uint64(0xFFFFFFFF), pair >> np.uint64(32)
    uniform = np.zeros((waves, 8), np.uint64)
    for i, value in enumerate([mask, *scalars]):
        uniform[:, i] = value
    out = np.zeros((OUT_ROWS, waves, 64), np.uint32)
    arguments = np.array(
        [given.ctypes.data, out.ctypes.data, uniform.ctypes.data, 4 * 64 * waves, exec_mask], np.uint64
    )
    module.kernel(name).launch(
        arguments.tobytes(),
        {"in": given, "out": out, "uniform": uniform},
        grid=[waves],
        block=[64],
        threads=1,
        **settings,
    )

    def pair(row):
        return out[row].astype(np.uint64) | out[row + 1].astype(np.uint64) << np.uint64(32)

    return Outcome(pair(0), pair(2), pair(10), pair(4)[:, 0], pair(6)[:, 0], pair(8)[:, 0])


def bits_of(mask) -> np.ndarray:
    """Lanes (last axis) of 64-bit masks as bools."""
    lanes = (np.asarray(mask, np.uint64)[..., None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    return lanes.astype(bool)
