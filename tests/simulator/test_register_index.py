"""Relative registers (s_set_gpr_idx_*, s_movrel*) and s_setvskip."""

import numpy as np
import pytest

from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

ROWS = 8
# Four iterations of a loop, each with the index one higher: indexing is resolved while the kernel runs.
LOOP = """
  s_mov_b32 s20, 0
{name}_again:
{body}
  s_add_u32 s20, s20, 1
  s_cmp_lg_u32 s20, 4
  s_cbranch_scc1 {name}_again
"""
ZERO = "".join(f"  v_mov_b32_e32 v{64 + row}, 0\n" for row in range(ROWS))


def looped(name, body):
    return RegisterKernel(ZERO + LOOP.format(name=name, body=body), inputs=ROWS, outputs=ROWS)


def straight(text):
    return RegisterKernel(ZERO + text, inputs=ROWS, outputs=ROWS)


KERNELS = {
    "source": looped("source", """
  s_set_gpr_idx_on s20, gpr_idx(SRC0)
  v_add_u32_e32 v3, v17, v16
  s_set_gpr_idx_off
  s_set_gpr_idx_on s20, gpr_idx(DST)
  v_mov_b32_e32 v64, v3
  s_set_gpr_idx_off"""),
    "second": looped("second", """
  s_set_gpr_idx_on s20, gpr_idx(SRC1,DST)
  v_sub_u32_e32 v64, v17, v18
  s_set_gpr_idx_off"""),
    "third": looped("third", """
  s_set_gpr_idx_on s20, gpr_idx(SRC2,DST)
  v_lshl_or_b32 v64, v16, 16, v18
  s_set_gpr_idx_off"""),
    "operands": straight("""
  s_set_gpr_idx_on 2, gpr_idx(SRC0)
  v_mov_b32_e32 v64, v16
  s_set_gpr_idx_mode gpr_idx(SRC0,DST)
  v_mov_b32_e32 v64, v16
  s_set_gpr_idx_idx 3
  v_mov_b32_e32 v64, v16
  s_set_gpr_idx_off
  v_mov_b32_e32 v65, v16
  v_mov_b32_e32 v68, m0"""),
    "wide": straight("""
  s_set_gpr_idx_on 2, gpr_idx(SRC0,DST)
  v_lshlrev_b64 v[64:65], 4, v[16:17]
  v_mov_b64 v[68:69], v[16:17]
  s_set_gpr_idx_off"""),
    "writelane": looped("writelane", """
  v_readlane_b32 s21, v16, s20
  s_set_gpr_idx_on s20, gpr_idx(DST)
  v_writelane_b32 v64, s21, 5
  s_set_gpr_idx_off"""),
    "accumulation": looped("accumulation", "".join(
        f"  v_accvgpr_write_b32 a{row}, v{16 + row}\n" for row in range(ROWS)) + """
  s_set_gpr_idx_on s20, gpr_idx(SRC0)
  v_accvgpr_read_b32 v3, a2
  s_set_gpr_idx_off
  s_set_gpr_idx_on s20, gpr_idx(DST)
  v_accvgpr_write_b32 a16, v3
  s_set_gpr_idx_off
  v_accvgpr_read_b32 v64, a16
  v_accvgpr_read_b32 v65, a17
  v_accvgpr_read_b32 v66, a18
  v_accvgpr_read_b32 v67, a19"""),
    "dpp": straight("""
  s_set_gpr_idx_on 3, gpr_idx(SRC0)
  v_mov_b32_dpp v64, v16 row_ror:1 row_mask:0xf bank_mask:0xf
  v_mov_b32_sdwa v65, v16 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1
  s_set_gpr_idx_off"""),
    "beyond": straight("""
  s_set_gpr_idx_on 150, gpr_idx(SRC0)
  v_mov_b32_e32 v64, v16
  s_set_gpr_idx_off"""),
    "skip": straight("""
  s_mov_b32 s20, 8
  s_setvskip s20, 3
  v_mov_b32_e32 v64, v16
  s_mov_b32 s21, 77
  v_mov_b32_e32 v65, v16
  v_readfirstlane_b32 s21, v16
  global_load_dword v66, v1, s[4:5]
  ds_write_b32 v1, v1
  s_setvskip s20, 2
  v_mov_b32_e32 v67, v16
  v_mov_b32_e32 v68, s21
  s_setvskip -1, s20
  s_branch skip_over
  v_mov_b32_e32 v69, 1
skip_over:
  v_mov_b32_e32 v70, 1
  s_setvskip 0, 0
  v_mov_b32_e32 v71, v17
  s_waitcnt vmcnt(0)"""),
    "relative_scalar": straight("""
  s_mov_b64 s[24:25], 0x11
  s_mov_b64 s[26:27], 0x22
  s_mov_b32 m0, 2
  s_movrels_b32 s30, s24
  s_movrels_b64 s[32:33], s[24:25]
  s_movreld_b32 s34, 5
  s_movreld_b64 s[38:39], s[24:25]
  v_mov_b32_e32 v64, s30
  v_mov_b32_e32 v65, s32
  v_mov_b32_e32 v66, s36
  v_mov_b32_e32 v67, s40
  v_mov_b32_e32 v68, s41"""),
    "relative_beyond": straight("""
  s_mov_b32 m0, 90
  s_movrels_b32 s30, s24"""),
}  # fmt: skip


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request):
    return RegisterKernels(KERNELS, request.param)


@pytest.fixture
def rows():
    return np.random.default_rng(5).integers(0, 2**32, (ROWS, 64), dtype=np.uint32)


def expect(kernels, name, rows, wanted, **settings):
    wanted = np.array([np.broadcast_to(wanted.get(row, 0), 64) for row in range(ROWS)], np.uint32)
    np.testing.assert_array_equal(kernels.run(name, rows, **settings), wanted)


@pytest.mark.parametrize("level", LEVELS)
def test_sources_and_destinations_move(kernels, rows, level):
    expect(
        kernels, "source", rows, {i: rows[1 + i] + rows[0] for i in range(4)}, host_level=level
    )  # wraps at 2^32
    expect(kernels, "second", rows, {i: rows[1] - rows[2 + i] for i in range(4)}, host_level=level)
    expect(
        kernels,
        "third",
        rows,
        {i: rows[0] << np.uint32(16) | rows[2 + i] for i in range(4)},
        host_level=level,
    )


def test_index_and_operands_can_be_set_apart(kernels, rows):
    # M0 keeps index 3 and the operands SRC0 and DST (bits 12 and 15).
    expect(kernels, "operands", rows, {0: rows[2], 2: rows[2], 3: rows[3], 1: rows[0], 4: 3 | 0x9000})


def test_pairs_move_as_pairs(kernels, rows):
    # The shifted pair is source 1, which stays.
    pair = rows[0].astype(np.uint64) | rows[1].astype(np.uint64) << np.uint64(32)
    shifted = pair << np.uint64(4)
    low, high = (
        (shifted & np.uint64(0xFFFFFFFF)).astype(np.uint32),
        (shifted >> np.uint64(32)).astype(np.uint32),
    )
    expect(kernels, "wide", rows, {2: low, 3: high, 6: rows[2], 7: rows[3]})


def test_lane_writes_move(kernels, rows):
    wanted = {}
    for i in range(4):
        wanted[i] = np.zeros(64, np.uint32)
        wanted[i][5] = rows[0][i]
    expect(kernels, "writelane", rows, wanted)


def test_accumulation_registers_move_among_themselves(kernels, rows):
    expect(kernels, "accumulation", rows, {i: rows[2 + i] for i in range(4)})


def test_dpp_and_sdwa_take_the_moved_register(kernels, rows):
    rotated = np.roll(rows[3].reshape(4, 16), 1, axis=1).reshape(64)
    expect(kernels, "dpp", rows, {0: rotated, 1: rows[3] >> np.uint32(8) & np.uint32(0xFF)})


def test_an_index_beyond_the_registers_is_named(kernels, rows):
    with pytest.raises(SimulatorError, match="beyond the wave's registers"):
        kernels.run("beyond", rows)
    with pytest.raises(SimulatorError, match=r"s_movrels reads beyond s101"):
        kernels.run("relative_beyond", rows)


@pytest.mark.parametrize("level", LEVELS)
def test_vector_instructions_are_skipped(kernels, rows, level):
    # The kernel has no LDS: the ds_write would fault if it ran.
    expect(kernels, "skip", rows, {3: rows[0], 4: 77, 7: rows[1]}, host_level=level)


def test_scalar_registers_are_addressed_by_m0(kernels, rows):
    expect(kernels, "relative_scalar", rows, {0: 0x22, 1: 0x22, 2: 5, 3: 0x11})
