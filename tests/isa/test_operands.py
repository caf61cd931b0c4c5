"""What an instruction reads, writes and occupies: operands, wait counters, units, matrix passes."""

from __future__ import annotations

import ctypes

import pytest

from tests.host_build import build, sources_of
from tests.isa.assembler import assemble
from tests.isa.disassembler import disassemble
from tests.isa.row_writer import read_rows

UNITS = "salu smem valu transcendental matrix lds vector_memory flat branch message internal".split()  # noqa: SIM905
VCC, EXEC, M0, LITERAL = 106, 126, 124, 255


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    output = tmp_path_factory.mktemp("isa") / "describe.so"
    return ctypes.CDLL(
        str(build(output, ["tests/isa/describe_instruction.cpp", *sources_of("isa")], "-shared", "-O0"))
    )


@pytest.fixture
def describe(library):
    def of(text: str, target: str = "gfx950") -> tuple[list[str], dict]:
        (answer,) = assemble([text], target)
        assert not isinstance(answer, str), answer
        data, room_for = answer[1], ctypes.create_string_buffer(512)
        library.describe(int(target[3:]), data, ctypes.c_size_t(len(data)), room_for, ctypes.c_size_t(512))
        assert room_for.value, text
        operands, _, effects = room_for.value.decode().partition("|")
        unit, vmcnt, lgkmcnt, reads_exec, passes = map(int, effects.split())
        return operands.split(), {
            "unit": UNITS[unit],
            "counters": ("vm" if vmcnt else "") + ("lgkm" if lgkmcnt else ""),
            "reads_exec": bool(reads_exec),
            "passes": passes,
        }

    return of


# text: operands as register x dwords : r(ead) w(ritten) i(mplicit)
OPERANDS = {
    "s_add_u32 s1, s2, 0x12345678": ["1x1:w", "2x1:r", f"{LITERAL}x1:r"],
    "s_and_saveexec_b64 s[2:3], vcc": ["2x2:w", f"{VCC}x2:r", f"{EXEC}x2:ri", f"{EXEC}x2:wi"],
    "s_cbranch_vccz -3": ["#-3x0:r", f"{VCC}x2:ri"],
    "s_load_dwordx4 s[4:7], s[2:3], 0x10": ["4x4:w", "2x2:r", "offx1:"],
    "s_load_dword s4, s[2:3], s9": ["4x1:w", "2x2:r", "9x1:r"],
    "v_fmac_f32 v1, s2, v3": ["v1x1:rw", "2x1:r", "v3x1:r"],
    # The short form has vcc where the long form has its SGPR pair.
    "v_addc_co_u32_e32 v0, vcc, v1, v2, vcc": ["v0x1:w", f"{VCC}x2:wi", "v1x1:r", "v2x1:r", f"{VCC}x2:ri"],
    "v_addc_co_u32_e64 v0, s[2:3], v1, v2, s[4:5]": ["v0x1:w", "2x2:w", "v1x1:r", "v2x1:r", "4x2:r"],
    "v_cmp_lt_f32_e32 vcc, v0, v1": [f"{VCC}x2:wi", "v0x1:r", "v1x1:r"],
    "v_cmpx_lt_f32_e64 s[2:3], v0, v1": ["2x2:w", "v0x1:r", "v1x1:r", f"{EXEC}x2:wi"],
    "v_div_fmas_f32 v0, v1, v2, v3": ["v0x1:w", "v1x1:r", "v2x1:r", "v3x1:r", f"{VCC}x2:ri"],
    "v_readlane_b32 s1, v2, m0": ["1x1:w", "v2x1:r", f"{M0}x1:r"],
    "v_swap_b32 v1, v2": ["v1x1:rw", "v2x1:rw"],
    "v_mov_b32_sdwa v1, v2 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD": ["v1x1:rw", "v2x1:r"],
    "v_fmaak_f32 v0, v1, v2, 0x41": ["v0x1:w", "v1x1:r", "v2x1:r", f"{LITERAL}x1:r"],
    "v_pk_mul_f32 v[0:1], v[2:3], s[4:5]": ["v0x2:w", "v2x2:r", "4x2:r"],
    "v_mfma_f32_16x16x32_bf16 a[0:3], v[4:7], a[8:11], 0": ["a0x4:w", "v4x4:r", "a8x4:r", "128x4:r"],
    "v_smfmac_f32_16x16x32_f16 v[0:3], v[4:5], v[6:9], v10": ["v0x4:rw", "v4x2:r", "v6x4:r", "v10x1:r"],
    "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:13], a[16:19], v[4:7], v1, v2 cbsz:2 blgp:4":
        ["v0x4:w", "v8x6:r", "a16x4:r", "v4x4:r", "v1x1:r", "v2x1:r"],
    "v_accvgpr_write_b32 a1, s2": ["a1x1:w", "2x1:r"],
    "ds_write2_b64 v0, a[2:3], a[4:5] offset0:1": ["v0x1:r", "a2x2:r", "a4x2:r"],
    "ds_read_b64_tr_b16 v[2:3], v0": ["v2x2:w", "v0x1:r"],
    "ds_append v1": ["v1x1:w", f"{M0}x1:ri"],
    "buffer_load_dwordx4 v[0:3], off, s[4:7], 0": ["v0x4:w", "offx0:", "4x4:r", "128x1:r"],
    "buffer_store_dword v0, v[2:3], s[4:7], s8 idxen offen": ["v0x1:r", "v2x2:r", "4x4:r", "8x1:r"],
    "buffer_atomic_add v0, v1, s[4:7], 0 offen": ["v0x1:r", "v1x1:r", "4x4:r", "128x1:r"],
    "buffer_atomic_cmpswap v[0:1], v2, s[4:7], 0 offen sc0": ["v0x2:rw", "v2x1:r", "4x4:r", "128x1:r"],
    "buffer_load_dwordx4 v1, s[4:7], s8 offen lds": ["v1x1:r", "4x4:r", "8x1:r", f"{M0}x1:ri"],
    "global_load_dword v0, v1, s[2:3]": ["v0x1:w", "v1x1:r", "2x2:r"],
    "global_store_dwordx2 v[0:1], a[2:3], off": ["v0x2:r", "a2x2:r", "offx2:"],
    "global_atomic_add v[0:1], v2, off": ["v0x2:r", "v2x1:r", "offx2:"],
    "global_atomic_add v3, v[0:1], v2, off sc0": ["v3x1:w", "v0x2:r", "v2x1:r", "offx2:"],
    "global_load_lds_dwordx4 v[0:1], off": ["v0x2:r", "offx2:", f"{M0}x1:ri"],
    "flat_atomic_cmpswap_x2 v[0:1], v[2:3], v[4:7] sc0": ["v0x2:w", "v2x2:r", "v4x4:r"],
    "scratch_load_dword v0, off, off": ["v0x1:w", "offx1:", "offx1:"],
    "scratch_store_dword v1, v0, s2": ["v1x1:r", "v0x1:r", "2x1:r"],
}  # fmt: skip


@pytest.mark.parametrize("text", OPERANDS)
def test_operands(describe, text: str) -> None:
    assert describe(text)[0] == OPERANDS[text]


@pytest.mark.parametrize(
    ("text", "unit", "counters", "reads_exec"),
    [
        ("s_add_u32 s0, s1, s2", "salu", "", False),
        ("s_mov_b64 s[0:1], exec", "salu", "", True),
        ("s_and_saveexec_b64 s[0:1], vcc", "salu", "", True),
        ("s_setpc_b64 s[0:1]", "branch", "", False),
        ("s_cbranch_execz 4", "branch", "", True),
        ("s_waitcnt vmcnt(0)", "internal", "", False),
        ("s_barrier", "internal", "", False),
        ("s_sendmsg sendmsg(MSG_INTERRUPT)", "message", "lgkm", False),
        ("s_load_dword s0, s[2:3], 0x0", "smem", "lgkm", False),
        ("s_memtime s[0:1]", "smem", "lgkm", False),
        ("v_add_f32 v0, v1, v2", "valu", "", True),
        ("v_readfirstlane_b32 s0, v1", "valu", "", True),
        ("v_readlane_b32 s0, v1, s2", "valu", "", False),
        ("v_exp_f32 v0, v1", "transcendental", "", True),
        ("v_rcp_f16 v0, v1", "transcendental", "", True),
        ("ds_read_b128 v[0:3], v4", "lds", "lgkm", True),
        ("ds_nop", "lds", "", False),
        ("global_load_dword v0, v[2:3], off", "vector_memory", "vm", True),
        ("global_load_lds_dword v[2:3], off", "vector_memory", "vm", True),
        ("buffer_store_dword v0, off, s[0:3], 0", "vector_memory", "vm", True),
        ("buffer_inv sc1", "vector_memory", "vm", False),
        ("scratch_load_dword v0, off, s1", "vector_memory", "vm", True),
        ("flat_load_dword v0, v[2:3]", "flat", "vmlgkm", True),
        ("v_accvgpr_read_b32 v0, a1", "valu", "", True),
    ],
)
def test_effects(describe, text: str, unit: str, counters: str, reads_exec: bool) -> None:
    effects = describe(text)[1]
    assert (effects["unit"], effects["counters"], effects["reads_exec"]) == (unit, counters, reads_exec)
    assert effects["passes"] == 0


@pytest.mark.parametrize(
    ("text", "target", "passes"),
    [
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]", "gfx942", 8),
        ("v_mfma_f32_16x16x16_bf16 v[0:3], v[16:17], v[18:19], v[0:3]", "gfx942", 4),
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[16:19], v[20:23], v[0:3]", "gfx950", 4),
        ("v_mfma_f32_32x32x16_bf16 v[0:15], v[16:19], v[20:23], v[0:15]", "gfx950", 8),
        ("v_mfma_f32_32x32x2_f32 v[0:15], v16, v17, v[0:15]", "gfx942", 16),
        ("v_mfma_f32_4x4x4_16b_f16 v[0:3], v[16:17], v[18:19], v[0:3]", "gfx942", 2),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[16:17], v[18:19], v[0:7]", "gfx942", 8),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[16:17], v[18:19], v[0:7]", "gfx950", 16),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3]", "gfx950", 8),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:13], v[16:19], v[0:3] cbsz:2 blgp:4", "gfx950", 4),
        ("v_smfmac_f32_32x32x16_f16 v[0:15], v[16:17], v[18:21], v22", "gfx942", 8),
    ],
)
def test_matrix_passes(describe, text: str, target: str, passes: int) -> None:
    effects = describe(text, target)[1]
    assert effects == {"unit": "matrix", "counters": "", "reads_exec": False, "passes": passes}


def test_every_matrix_row_has_passes() -> None:
    rows = [
        row for row in read_rows() if row.encoding in ("mai", "mfma_scale") and "accvgpr" not in row.mnemonic
    ]
    assert len(rows) > 60
    for row in rows:
        assert sum(modifier.startswith("passes_") for modifier in row.modifiers) == 1, row.mnemonic


def test_opcodes_follow_the_rows(library) -> None:
    count = len(read_rows())
    assert all(library.row_is_consistent(index) for index in range(count))


@pytest.mark.parametrize("vmcnt", [0, 1, 15, 16, 47, 63])
@pytest.mark.parametrize("lgkmcnt", [0, 9, 15])
@pytest.mark.parametrize("expcnt", [0, 5, 7])
def test_wait_counts_are_those_of_the_assembler(library, vmcnt: int, expcnt: int, lgkmcnt: int) -> None:
    (answer,) = assemble([f"s_waitcnt vmcnt({vmcnt}) expcnt({expcnt}) lgkmcnt({lgkmcnt})"], "gfx942")
    simm16 = int.from_bytes(answer[1][:2], "little")
    assert library.wait_counts(simm16) == vmcnt << 16 | expcnt << 8 | lgkmcnt


@pytest.mark.parametrize("unused", [0x0000, 0x2000, 0x4000, 0x6000])
def test_scale_prefix_ignores_modifiers_of_an_operand_it_lacks(unused):
    """op_sel and op_sel_hi bits 2: LLVM writes zeros, AITER's MXFP4 kernels contain every combination."""
    text = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], a[4:11], v[4:11], v[0:3], v12, v13 op_sel_hi:[0,0,0]"
    ((_, data),) = assemble([text], "gfx950")
    changed = (int.from_bytes(data, "little") | unused).to_bytes(16, "little")
    assert disassemble(changed, "gfx950") == (16, text)
