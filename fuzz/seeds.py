# SPDX-License-Identifier: MIT
"""Writes the seed inputs of a fuzz target, which it starts from in addition to its corpus: python fuzz/seeds.py TARGET FOLDER

The seeds are small kernels of every instruction family, assembled here, and the smallest kernels of the packs; each kind only if the
assembler (the ziglang wheel) or the packs are available.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "fuzz")]

import pack_reader  # noqa: E402

TARGETS = ("gfx942", "gfx950")
PACKED_KERNELS = 3  # of each target, the smallest ones
CHUNK = 96  # bytes of code in an input of the decoder

KERNEL = """
.amdgcn_target "amdgcn-amd-amdhsa--{target}"
.text
.globl kernel
.p2align 8
.type kernel,@function
kernel:
  s_load_dwordx4 s[4:7], s[0:1], 0
  s_load_dwordx2 s[8:9], s[0:1], 16
  s_load_dword s10, s[0:1], 24
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, 0
  s_waitcnt lgkmcnt(0)
  s_mov_b32 s12, s6
  s_mov_b32 s13, s7
  s_mov_b32 s14, 0x4000
  s_mov_b32 s15, 0x20000
{body}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_endpgm
.size kernel, . - kernel
.section .rodata,"a",@progbits
.p2align 6
.amdhsa_kernel kernel
  .amdhsa_next_free_vgpr 96
  .amdhsa_accum_offset 64
  .amdhsa_next_free_sgpr 64
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_group_segment_fixed_size 2048
  .amdhsa_private_segment_fixed_size 64
  .amdhsa_enable_private_segment 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: kernel
    .symbol: kernel.kd
    .kernarg_segment_size: 32
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 2048
    .private_segment_fixed_size: 64
    .wavefront_size: 64
    .sgpr_count: 64
    .vgpr_count: 96
    .agpr_count: 32
    .max_flat_workgroup_size: 256
    .args:
      - {{ .size: 8, .offset: 0, .value_kind: global_buffer, .address_space: global }}
      - {{ .size: 8, .offset: 8, .value_kind: global_buffer, .address_space: global }}
      - {{ .size: 8, .offset: 16, .value_kind: global_buffer, .address_space: global }}
      - {{ .size: 4, .offset: 24, .value_kind: by_value }}
.end_amdgpu_metadata
"""

BODIES = {
    "scalar": """
  s_mov_b32 s20, 3
again:
  s_add_u32 s21, s10, s20
  s_addc_u32 s22, s21, 0
  s_mul_i32 s23, s22, s21
  s_bfe_u32 s24, s23, 0x80004
  s_ff1_i32_b32 s25, s24
  s_and_saveexec_b64 s[26:27], vcc
  s_mov_b64 exec, s[26:27]
  s_movk_i32 s28, 0x7f
  s_getreg_b32 s29, hwreg(HW_REG_MODE)
  s_setreg_b32 hwreg(HW_REG_MODE, 0, 8), s29
  s_sub_u32 s20, s20, 1
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 again
  s_load_dwordx8 s[32:39], s[4:5], 64
  s_waitcnt lgkmcnt(0)
  s_store_dword s32, s[8:9], 16
""",
    "vector": """
  v_add_f32_e32 v3, v0, v1
  v_fma_f32 v4, -v3, |v1|, s10 clamp
  v_cmp_lt_f32_e32 vcc, v3, v4
  v_cndmask_b32_e32 v5, v3, v4, vcc
  v_add_co_u32_e32 v6, vcc, v1, v0
  v_mul_f32_dpp v7, v3, v4 row_shl:1 row_mask:0xf bank_mask:0xf
  v_add_f16_sdwa v8, v3, v4 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0
  v_pk_add_f16 v9, v3, v4 op_sel:[0,1] op_sel_hi:[1,0]
  v_pk_fma_f32 v[10:11], v[4:5], v[6:7], v[8:9]
  v_readlane_b32 s20, v3, s10
  v_writelane_b32 v3, s20, 5
  v_rcp_f32_e32 v12, v4
  v_div_scale_f32 v13, vcc, v4, v5, v4
  v_fma_f64 v[14:15], v[4:5], v[6:7], v[8:9]
  v_cvt_pk_fp8_f32 v16, v4, v5
  v_perm_b32 v17, v4, v5, s10
  v_mad_u64_u32 v[18:19], s[20:21], v4, v5, v[6:7]
  v_mov_b32_dpp v20, v4 row_bcast:15 row_mask:0xa bank_mask:0xf
  global_store_dwordx4 v1, v[4:7], s[8:9]
""",
    "memory": """
  global_load_dwordx4 v[4:7], v1, s[4:5] offset:16
  buffer_load_dwordx2 v[8:9], v1, s[12:15], 0 offen offset:8
  buffer_load_ubyte v10, v1, s[12:15], 0 offen
  s_waitcnt vmcnt(0)
  global_atomic_add_f32 v11, v1, v4, s[8:9] sc0
  global_atomic_cmpswap v1, v[4:5], s[8:9]
  buffer_store_short v8, v1, s[12:15], 0 offen sc1 nt
  v_mov_b32_e32 v12, s8
  v_mov_b32_e32 v13, s9
  flat_load_dword v14, v[12:13]
  flat_store_dword v[12:13], v1 offset:4
  scratch_store_dword off, v1, off offset:8
  scratch_load_dword v15, off, off offset:8
  tbuffer_load_format_xy v[16:17], v1, s[12:15], 0 format:[BUF_DATA_FORMAT_16_16,BUF_NUM_FORMAT_UNORM] offen
  s_mov_b32 m0, 0
  buffer_load_dword v1, s[12:15], 0 offen lds
  global_load_lds_dword v1, s[4:5]
  buffer_inv sc1
""",
    "lds": """
  ds_write_b32 v1, v0
  ds_write2_b32 v1, v0, v1 offset0:4 offset1:8
  s_waitcnt lgkmcnt(0)
  s_barrier
  ds_read_b128 v[4:7], v2 offset:16
  ds_read2st64_b64 v[8:11], v2 offset0:0 offset1:1
  ds_add_rtn_u32 v12, v1, v0
  ds_add_f32 v1, v0
  ds_cmpst_rtn_b32 v13, v1, v0, v1
  ds_bpermute_b32 v14, v1, v0
  ds_swizzle_b32 v15, v0 offset:swizzle(SWAP,16)
  ds_read_u16_d16_hi v16, v1 offset:2
  s_waitcnt lgkmcnt(0)
  s_barrier
  global_store_dwordx4 v1, v[4:7], s[8:9]
""",
    "matrix": """
  global_load_dwordx4 v[4:7], v1, s[4:5]
  global_load_dwordx4 v[8:11], v1, s[6:7]
  v_accvgpr_write_b32 a0, v0
  s_waitcnt vmcnt(0)
  v_mfma_f32_16x16x16_f16 a[0:3], v[4:5], v[8:9], a[0:3]
  v_mfma_f32_32x32x8_bf16 v[16:31], v[4:5], v[8:9], 0
  v_mfma_i32_16x16x32_i8 v[12:15], v[4:5], v[8:9], v[12:15]
  v_mfma_f32_16x16x32_fp8_bf8 a[4:7], v[4:5], v[8:9], 0
  v_mfma_f64_4x4x4_4b_f64 v[32:33], v[4:5], v[8:9], 0
  v_smfmac_f32_16x16x32_f16 v[36:39], v[4:5], v[8:11], v2
  s_nop 15
  s_nop 7
  v_accvgpr_read_b32 v40, a1
  global_store_dword v1, v40, s[8:9]
""",
}
ON_GFX950 = """
  v_mfma_f32_16x16x32_bf16 v[16:19], v[4:7], v[8:11], 0
  v_mfma_scale_f32_16x16x128_f8f6f4 v[20:23], v[4:11], v[8:15], 0, v0, v1
  v_permlane32_swap_b32 v4, v5
  v_bitop3_b32 v6, v4, v5, v0 bitop3:0x6a
  ds_read_b64_tr_b16 v[24:25], v2
  v_cvt_scalef32_pk_fp8_f32 v26, v4, v5, v6
"""


def code_objects() -> dict[str, bytes]:
    """The ELF files by name."""
    result = {}
    if importlib.util.find_spec("ziglang"):
        from tests.device_compiler import assemble

        bodies = [(target, name, body) for target in TARGETS for name, body in BODIES.items()]
        for target, name, body in [*bodies, ("gfx950", "only", ON_GFX950)]:
            result[f"{target}_{name}"] = assemble(KERNEL.format(target=target, body=body), target)
    for target in TARGETS:
        path = ROOT / "hipkittens" / "_kernels" / f"{target}.hkpack"
        if path.exists():
            pack = pack_reader.load_pack_module().Pack(path)
            for entry in sorted(pack.entries, key=lambda entry: entry["bytes"])[:PACKED_KERNELS]:
                result[f"{target}_{entry['name']}"] = pack.image(entry)
    return result


def launch_header(
    checks: int = 0, flags: int = 0, seed: int = 0, turn: int = 0, items: int = 64, grid: int = 0
) -> bytes:
    """struct LaunchHeader of fuzz/launch_header.h."""
    return bytes([checks, flags, 0, seed, turn, items - 1, grid, 0]) + bytes(range(1, 9))


def chunks(image: bytes, target: str) -> list[bytes]:
    from hipkittens._disassembly import code

    return [
        bytes([TARGETS.index(target)]) + section[at : at + CHUNK]
        for _, section in code(image)
        for at in range(0, len(section), CHUNK)
    ]


def inputs(target: str) -> dict[str, bytes]:
    if target == "pack_reader":
        return pack_reader.seeds()
    objects = code_objects()
    if target == "code_object_reader":
        return objects
    if target == "simulated_launch":
        result = {}
        for name, image in objects.items():
            result[name] = launch_header() + image
            result[f"{name}_checked"] = launch_header(checks=31, flags=1 | 2 | 8, items=128) + image
        for name, image in objects.items():
            if name.endswith(("_lds", "_memory")):
                result[f"{name}_turns"] = launch_header(flags=4, turn=8, items=200, grid=17) + image
                result[f"{name}_seed"] = launch_header(checks=31, seed=5, items=200, grid=17) + image
        return result
    if target == "instruction_decoder":
        return {
            f"{name}_{number}": chunk
            for name, image in objects.items()
            for number, chunk in enumerate(chunks(image, name.split("_")[0]))
        }
    raise SystemExit(f"{target} has no seeds")


def main() -> None:
    target, folder = sys.argv[1], Path(sys.argv[2])
    for name, data in inputs(target).items():
        (folder / f"seed_{name}").write_bytes(data)


if __name__ == "__main__":
    main()
