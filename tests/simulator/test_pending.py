"""Memory operations complete at the wait that covers them, and no earlier: registers, LDS and memory keep their old bytes."""

import dataclasses

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.simulator.memory_kernels import (
    LOAD_ARGUMENTS,
    OLD,
    STORE_ROWS,
    Body,
    aligned,
    around,
    descriptor_of,
    load,
    run,
)

POISON = 0x7FA5A5A5
rng = np.random.default_rng(5)

# Two waves: v0 is the lane, s20 the wave; LDS dwords 0..127 start as zero. Wave 1 stores what v32 holds.
TWO_WAVES = (
    LOAD_ARGUMENTS
    + """
  v_readfirstlane_b32 s20, v0
  s_lshr_b32 s20, s20, 6
  v_mov_b32_e32 v3, 0
  ds_write_b32 v1, v3
  s_waitcnt lgkmcnt(0)
  v_and_b32_e32 v0, 63, v0
  v_lshlrev_b32_e32 v1, 2, v0
  s_barrier
  s_cmp_eq_u32 s20, 0
  s_cbranch_scc0 .Lsecond_{name}
{first}
  s_endpgm
.Lsecond_{name}:
{second}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  global_store_dword v1, v32, s[6:7]
"""
)


def two_waves(name, first, second):
    return Body(TWO_WAVES.format(name=name, first=first, second=second), 1024)


def repeated(pattern, count):
    return "\n".join(pattern.format(i=i, r=32 + i, offset=4 * i) for i in range(count))


ISSUE_LDS_WRITE = "v_mov_b32_e32 v33, 77\nds_write_b32 v1, v33"
ISSUE_DIRECT = "s_mov_b32 m0, 0\nglobal_load_lds_dword v1, s[8:9]"
ISSUE_BUFFER = "s_mov_b32 m0, 0\nbuffer_load_dword v1, s[12:15], 0 offen lds"
READ_LDS = "s_barrier\nds_read_b32 v32, v1"
READ_MEMORY = "s_barrier\nglobal_load_dword v32, v1, s[8:9]"

BODIES = {
    "no_wait": around("global_load_dword v32, v1, s[8:9]\nv_mov_b32_e32 v33, v32\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v34, v32"),
    "first_of_two": around(
        "global_load_dword v32, v1, s[8:9]\nglobal_load_dword v33, v1, s[8:9] offset:256\ns_waitcnt vmcnt(1)\n"
        "v_mov_b32_e32 v34, v32\nv_mov_b32_e32 v35, v33"),
    "lds_order": around(
        "ds_read_b32 v32, v1\nds_read_b32 v33, v1 offset:256\nds_read_b32 v34, v1 offset:512\ns_waitcnt lgkmcnt(2)\n"
        "v_mov_b32_e32 v35, v33\nv_mov_b32_e32 v34, v32", lds=True),
    "lds_with_scalar": around(
        "s_mov_b32 s20, 5\ns_load_dword s20, s[8:9], 0\nds_read_b32 v36, v1\nds_read_b32 v33, v1 offset:256\ns_waitcnt lgkmcnt(1)\n"
        "v_mov_b32_e32 v32, v36\nv_mov_b32_e32 v34, v33\nv_mov_b32_e32 v35, s20", lds=True),
    "write_then_read": around(
        "ds_write_b32 v1, v18\nds_read_b32 v32, v1\nglobal_store_dword v1, v18, s[8:9]\nglobal_load_dword v33, v1, s[8:9]\n"
        "v_mov_b32_e32 v18, 0\ns_waitcnt vmcnt(0) lgkmcnt(0)", lds=True),
    "load_over_move": around("global_load_dword v32, v1, s[8:9]\nv_mov_b32_e32 v32, 9\ns_waitcnt vmcnt(0)"),
    "atomic": around("global_atomic_add v32, v1, v18, s[8:9] sc0\nv_mov_b32_e32 v33, v32\ns_waitcnt vmcnt(0)"),
    "lds_atomic": around("ds_add_rtn_u32 v32, v1, v18\nv_mov_b32_e32 v33, v32\ns_waitcnt lgkmcnt(0)", lds=True),
    "bpermute": around("ds_bpermute_b32 v32, v1, v18\nv_mov_b32_e32 v33, v32\ns_waitcnt lgkmcnt(0)"),
    "wide": around("global_load_dwordx4 v[32:35], v1, s[8:9]\nv_mov_b32_e32 v36, v35\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v35, v36"),
    # 70 loads: 63 may be in flight, so the first seven are there when the last has been issued.
    "full_vmcnt": around(
        repeated("v_mov_b32_e32 v{r}, 1", 32) + "\ns_mov_b32 s20, 0\n" + repeated("global_load_dword v{r}, v1, s[8:9]", 8)
        + "\n" + repeated("global_load_dword v60, v1, s[8:9] offset:4", 62)
        + "\nv_add_u32_e32 v32, v38, v32\nv_mov_b32_e32 v34, v39\ns_waitcnt vmcnt(62)\nv_mov_b32_e32 v35, v39"),
    "full_lgkmcnt": around(
        repeated("v_mov_b32_e32 v{r}, 1", 20) + "\n" + repeated("ds_read_b32 v{r}, v1", 20)
        + "\nv_mov_b32_e32 v52, v36\nv_mov_b32_e32 v53, v37\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v32, v52\nv_mov_b32_e32 v33, v53",
        lds=True),
    # Loads of two dwords count twice: seven of them fill 14 of 15.
    "full_scalar": around(
        repeated("s_mov_b32 s{r}, 1", 16) + "\n" + "\n".join(f"s_load_dwordx2 s[{32 + 2 * i}:{33 + 2 * i}], s[8:9], 0" for i in range(8))
        + "\nv_mov_b32_e32 v32, s32\nv_mov_b32_e32 v33, s34"),
    "flat_vmcnt": around("flat_load_dword v32, v[26:27]\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v33, v32\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v34, v32"),
    "flat_lgkmcnt": around("flat_load_dword v32, v[26:27]\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v33, v32\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v34, v32"),
    # The flat load may be the one that has returned: vmcnt(1) promises nothing about the global load.
    "flat_between": around(
        "global_load_dword v32, v1, s[8:9]\nflat_load_dword v33, v[26:27]\ns_waitcnt vmcnt(1) lgkmcnt(0)\nv_mov_b32_e32 v34, v32\n"
        "global_load_dword v36, v1, s[8:9]\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v35, v32"),
    "flat_store_then_load": around("flat_store_dword v[26:27], v18\nglobal_load_dword v32, v1, s[8:9]\ns_waitcnt vmcnt(0)"),
    "flat_many": around(
        repeated("flat_load_dword v{r}, v[26:27]", 20) + "\nv_mov_b32_e32 v52, v36\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v53, v36\n"
        "v_mov_b32_e32 v54, v37\ns_waitcnt vmcnt(0) lgkmcnt(0)\nv_mov_b32_e32 v33, v53\nv_mov_b32_e32 v34, v54\nv_mov_b32_e32 v35, v51"),
    "lds_write_waited": two_waves("a", ISSUE_LDS_WRITE + "\ns_waitcnt lgkmcnt(0)\ns_barrier", READ_LDS),
    "lds_write_not_waited": two_waves("b", ISSUE_LDS_WRITE + "\ns_barrier\ns_barrier", READ_LDS + "\ns_waitcnt lgkmcnt(0)\ns_barrier"),
    "direct_waited": two_waves("c", ISSUE_DIRECT + "\ns_waitcnt vmcnt(0)\ns_barrier", READ_LDS),
    "direct_not_waited": two_waves("d", ISSUE_DIRECT + "\ns_barrier\ns_barrier\ns_waitcnt vmcnt(0)", READ_LDS + "\ns_waitcnt lgkmcnt(0)\ns_barrier"),
    "direct_waits_for_the_other": two_waves("e", ISSUE_BUFFER + "\nglobal_load_dword v40, v1, s[8:9]\ns_waitcnt lgkmcnt(0)\ns_barrier\ns_barrier",
                                            READ_LDS + "\ns_waitcnt lgkmcnt(0)\ns_barrier"),
    "direct_counted": two_waves("f", ISSUE_BUFFER + "\nglobal_load_dword v40, v1, s[8:9]\ns_waitcnt vmcnt(1)\ns_barrier", READ_LDS),
    "store_waited": two_waves("g", "v_mov_b32_e32 v33, 77\nglobal_store_dword v1, v33, s[8:9]\ns_waitcnt vmcnt(0)\ns_barrier", READ_MEMORY),
    "store_not_waited": two_waves("h", "v_mov_b32_e32 v33, 77\nglobal_store_dword v1, v33, s[8:9]\ns_barrier\ns_barrier",
                                  READ_MEMORY + "\ns_waitcnt vmcnt(0)\ns_barrier"),
    "store_split": dataclasses.replace(two_waves("i", "v_mov_b32_e32 v33, 77\nglobal_store_dword v1, v33, s[8:9]\ns_barrier\ns_barrier",
                                  READ_MEMORY + "\ns_waitcnt vmcnt(0)\ns_barrier"), tg_split=True),
}  # fmt: skip
assert STORE_ROWS in BODIES["no_wait"].text


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


def image():
    memory = aligned(1024)
    memory[:] = rng.integers(1 << 10, 2**30, 1024, dtype=np.uint32)
    return memory


def rows_with(data, memory=None):
    rows = np.zeros((12, 64), np.uint32)
    rows[2] = data
    if memory is not None:
        address = memory.ctypes.data + 4 * np.arange(64, dtype=np.uint64)
        rows[10], rows[11] = address & np.uint64(0xFFFFFFFF), address >> np.uint64(32)
    return rows


@pytest.mark.parametrize("poison", [0, 1])
def test_register_keeps_its_old_value_until_the_wait(module, poison):
    memory = image()
    old = np.full(64, POISON) if poison else np.full(64, OLD)
    out = run(module, "no_wait", memory=memory, poison=poison)
    for row, expected in zip(out, (memory[:64], old, memory[:64]), strict=False):
        np.testing.assert_array_equal(row, expected)
    before = memory[:64].copy()
    out = run(module, "atomic", rows_with(3), memory, poison=poison)
    np.testing.assert_array_equal(out[:2], [before, old])
    np.testing.assert_array_equal(memory[:64], before + 3)
    out = run(module, "lds_atomic", rows_with(3), memory, poison=poison)
    np.testing.assert_array_equal(out[:2], [before + 3, old])
    out = run(module, "bpermute", rows_with(np.arange(64)), poison=poison)
    np.testing.assert_array_equal(out[:2], [np.arange(64), old])
    out = run(module, "wide", memory=memory, poison=poison)
    np.testing.assert_array_equal(out[3], np.full(64, POISON) if poison else np.full(64, OLD + 3))


@pytest.mark.parametrize("poison", [0, 1])
def test_counts_leave_the_youngest_in_flight(module, poison):
    memory = image()
    out = run(module, "first_of_two", memory=memory, poison=poison)
    np.testing.assert_array_equal(out[2], memory[:64])
    np.testing.assert_array_equal(out[3], np.full(64, POISON if poison else OLD + 1))
    out = run(module, "lds_order", memory=memory, poison=poison)
    np.testing.assert_array_equal(out[3], np.full(64, POISON if poison else OLD + 1))
    np.testing.assert_array_equal(out[:3], memory[:192].reshape(3, 64))  # v34's read completed over the move


def test_a_scalar_load_in_flight_does_not_help_an_lds_wait(module):
    memory = image()
    out = run(module, "lds_with_scalar", memory=memory)
    np.testing.assert_array_equal(out[0], memory[:64])
    np.testing.assert_array_equal(out[2], np.full(64, OLD + 1))
    np.testing.assert_array_equal(out[3], np.full(64, 5))


def test_one_wave_sees_its_own_accesses_in_order_and_stores_keep_the_data_of_their_issue(module):
    memory, data = image(), np.arange(64) + 100
    out = run(module, "write_then_read", rows_with(data), memory)
    np.testing.assert_array_equal(out[:2], [data, data])
    out = run(module, "load_over_move", memory=memory)
    np.testing.assert_array_equal(out[0], memory[:64])


def test_full_counters_complete_the_oldest(module):
    memory = image()
    out = run(module, "full_vmcnt", memory=memory)
    np.testing.assert_array_equal(out[0], 2 * memory[:64])  # the first and the seventh have completed
    np.testing.assert_array_equal(out[2], np.full(64, 1))  # the eighth has not
    np.testing.assert_array_equal(out[3], memory[:64])  # one count less completes it
    out = run(module, "full_lgkmcnt", memory=memory)
    np.testing.assert_array_equal(out[0], memory[:64])  # the fifth of twenty
    np.testing.assert_array_equal(out[1], np.full(64, 1))
    out = run(module, "full_scalar", memory=memory)
    assert (out[0] == memory[0]).all() and (out[1] == 1).all()


def test_flat_waits_for_both_counters(module):
    memory = image()
    for name in ("flat_vmcnt", "flat_lgkmcnt"):
        out = run(module, name, rows_with(0, memory), memory)
        np.testing.assert_array_equal(out[1], np.full(64, OLD))
        np.testing.assert_array_equal(out[2], memory[:64])
    out = run(module, "flat_between", rows_with(0, memory), memory)
    np.testing.assert_array_equal(out[2], np.full(64, OLD))
    np.testing.assert_array_equal(out[3], memory[:64])
    np.testing.assert_array_equal(out[1], memory[:64])


def test_flat_stores_keep_their_place_among_the_others(module):
    memory, data = image(), np.arange(64) + 5
    out = run(module, "flat_store_then_load", rows_with(data, memory), memory)
    np.testing.assert_array_equal(out[0], data)
    np.testing.assert_array_equal(memory[:64], data)


def test_twenty_flat_loads(module):
    """lgkmcnt is full after fifteen; the oldest five have passed it, and vmcnt(0) then completes those and no others."""
    memory = image()
    out = run(module, "flat_many", rows_with(0, memory), memory, poison=1)
    np.testing.assert_array_equal(out[1], memory[:64])
    np.testing.assert_array_equal(out[2], np.full(64, POISON))
    np.testing.assert_array_equal(out[3], memory[:64])


@pytest.mark.parametrize("name", ["lds_write_waited", "direct_waited", "direct_counted", "store_waited", "lds_write_not_waited",
                                  "direct_not_waited", "direct_waits_for_the_other", "store_not_waited", "store_split"])  # fmt: skip
@pytest.mark.parametrize("poison", [0, 1])
def test_a_barrier_lands_nothing(module, name, poison):
    """Another wave's data seen after the barrier is new only if the writer waited before it, or if both share a vector L1."""
    memory = image()
    before = memory[:64].copy()
    out = run(module, name, memory=memory, waves=2, descriptor=descriptor_of(memory, 4096), poison=poison)
    seen = out.reshape(-1)[:64]
    written = np.full(64, 77) if name.startswith(("lds", "store")) else before
    if name in ("lds_write_waited", "direct_waited", "direct_counted", "store_waited", "store_not_waited"):
        np.testing.assert_array_equal(seen, written)
    elif name.startswith("store"):
        np.testing.assert_array_equal(seen, before)
    else:
        np.testing.assert_array_equal(
            seen, np.full(64, POISON if poison and name.startswith("direct") else 0)
        )
    if name.startswith("store"):
        np.testing.assert_array_equal(memory[:64], written)
