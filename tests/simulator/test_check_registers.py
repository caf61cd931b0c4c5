"""synccheck and initcheck on registers: registers in flight, registers never written, and EXEC = 0."""

import pytest

from tests.simulated_device import TARGETS
from tests.simulator.checked_kernels import findings_of, only
from tests.simulator.memory_kernels import Body, around, load

LOAD = "global_load_dword v32, v1, s[8:9]"
BODIES = {
    "read": around(f"{LOAD}\nv_add_u32_e32 v33, v32, v1\ns_waitcnt vmcnt(0)"),
    "read_after_wait": around(f"{LOAD}\ns_waitcnt vmcnt(0)\nv_add_u32_e32 v33, v32, v1"),
    "read_of_two": around(f"{LOAD}\nglobal_load_dword v33, v1, s[8:9] offset:256\ns_waitcnt vmcnt(2)\nv_mov_b32_e32 v34, v32"),
    "read_second": around(f"{LOAD}\nglobal_load_dword v33, v1, s[8:9] offset:256\ns_waitcnt vmcnt(1)\nv_mov_b32_e32 v34, v32"),
    "read_from_lds": around(
        "ds_write_b32 v1, v1\nds_read_b32 v32, v1\ns_waitcnt lgkmcnt(0)\nv_add_u32_e32 v33, v32, v1\nv_mov_b32_e32 v32, 0", lds=True),
    "overwritten": around(f"{LOAD}\nv_mov_b32_e32 v32, 9\ns_waitcnt vmcnt(0)"),
    "other_lanes": around(
        f"s_mov_b64 exec, 0xff\n{LOAD}\ns_mov_b64 exec, 0xff00\nv_mov_b32_e32 v32, 9\ns_waitcnt vmcnt(0)"),
    "loaded_twice": around(f"{LOAD}\n{LOAD}\ns_waitcnt vmcnt(0)"),
    "loaded_by_both": around(f"{LOAD}\nds_read_b32 v32, v1\ns_waitcnt vmcnt(0) lgkmcnt(0)", lds=True),
    "halves": around(
        "global_load_short_d16 v32, v1, s[8:9]\nglobal_load_short_d16_hi v32, v1, s[8:9] offset:2\ns_waitcnt vmcnt(0)"),
    "address": around("ds_read_b32 v32, v1\nglobal_load_dword v33, v32, s[8:9]\ns_waitcnt vmcnt(0) lgkmcnt(0)", lds=True),
    "scalar": around("s_load_dword s20, s[8:9], 0\ns_add_u32 s21, s20, 1\ns_waitcnt lgkmcnt(0)"),
    "scalar_with_lds": around(
        "s_load_dword s20, s[8:9], 0\nds_read_b32 v33, v1\ns_waitcnt lgkmcnt(1)\ns_add_u32 s21, s20, 1\ns_waitcnt lgkmcnt(0)", lds=True),
    "store_source": around("global_store_dword v1, v18, s[8:9]\nv_mov_b32_e32 v18, 0\ns_waitcnt vmcnt(0)"),
    "never_written": around("v_add_u32_e32 v33, v50, v1"),
    "never_written_lanes": around("s_mov_b64 exec, 0xff\nv_mov_b32_e32 v50, 1\ns_mov_b64 exec, 0x1ff\nv_add_u32_e32 v33, v50, v1"),
    "written_lanes": around("s_mov_b64 exec, 0xff\nv_mov_b32_e32 v50, 1\nv_add_u32_e32 v33, v50, v1"),
    "never_written_scalar": around("s_add_u32 s40, s41, 1"),
    "moved": around("v_mov_b32_e32 v51, v50\nv_accvgpr_write_b32 a1, v51\nv_mov_b32_e32 v51, 3"),
    "moved_and_used": around("v_mov_b32_e32 v51, v50\nv_add_u32_e32 v33, v51, v1"),
    "stored": around("global_store_dword v1, v50, s[8:9]"),
    "half_of_a_pair_saved": around(
        "v_mov_b32_e32 v50, 5\nscratch_store_dwordx2 off, v[50:51], off offset:8\ns_waitcnt vmcnt(0)\n"
        "scratch_load_dwordx2 v[52:53], off, off offset:8\ns_waitcnt vmcnt(0)\nv_add_u32_e32 v33, v52, v1", private_bytes=64),
    "half_of_a_pair_restored_and_used": around(
        "v_mov_b32_e32 v50, 5\nscratch_store_dwordx2 off, v[50:51], off offset:8\ns_waitcnt vmcnt(0)\n"
        "scratch_load_dwordx2 v[52:53], off, off offset:8\ns_waitcnt vmcnt(0)\nv_add_u32_e32 v33, v53, v1", private_bytes=64),
    "half_of_the_lanes_restored_and_used": around(
        "s_mov_b64 exec, 0xff\nv_mov_b32_e32 v50, 5\ns_mov_b64 exec, -1\nscratch_store_dword off, v50, off offset:8\n"
        "s_waitcnt vmcnt(0)\nscratch_load_dword v52, off, off offset:8\ns_waitcnt vmcnt(0)\nv_add_u32_e32 v33, v52, v1", private_bytes=64),
    "saved_again": around(
        "scratch_store_dword off, v50, off offset:8\ns_waitcnt vmcnt(0)\nv_mov_b32_e32 v50, 5\n"
        "scratch_store_dword off, v50, off offset:8\ns_waitcnt vmcnt(0)\nscratch_load_dword v52, off, off offset:8\n"
        "s_waitcnt vmcnt(0)\nv_add_u32_e32 v33, v52, v1", private_bytes=64),
    "part_of_a_register_saved": around("scratch_store_short off, v50, off offset:8\ns_waitcnt vmcnt(0)", private_bytes=64),
    "no_lanes": around("s_mov_b64 exec, 0\nv_readfirstlane_b32 s20, v1"),
    "some_lanes": around("s_mov_b64 exec, 16\nv_readfirstlane_b32 s20, v1"),
    "missing_wave": Body("v_readfirstlane_b32 s20, v0\ns_cmp_eq_u32 s20, 0\ns_cbranch_scc1 .Lend\ns_barrier\n.Lend:"),
    "all_waves": Body("v_readfirstlane_b32 s20, v0\ns_barrier"),
}  # fmt: skip


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


@pytest.mark.parametrize(
    ("name", "kind", "first", "second", "place", "fix"),
    [
        ("read", "read_in_flight", LOAD, "v_add_u32_e32 v33, v32, v1", "v32", "s_waitcnt vmcnt(0) before the second"),
        ("read_of_two", "read_in_flight", LOAD, "v_mov_b32_e32 v34, v32", "v32", "s_waitcnt vmcnt(1) before the second"),
        ("overwritten", "overwritten_in_flight", LOAD, "v_mov_b32_e32 v32, 9", "v32",
         "s_waitcnt vmcnt(0) before the second"),
        ("loaded_by_both", "overwritten_in_flight", LOAD, "ds_read_b32 v32, v1", "v32",
         "s_waitcnt vmcnt(0) before the second"),
        ("address", "read_in_flight", "ds_read_b32 v32, v1", "global_load_dword v33, v32, s[8:9]", "v32",
         "s_waitcnt lgkmcnt(0) before the second"),
        ("scalar", "read_in_flight", "s_load_dword s20, s[8:9], 0x0", "s_add_u32 s21, s20, 1", "s20",
         "s_waitcnt lgkmcnt(0) before the second"),
        ("scalar_with_lds", "read_in_flight", "s_load_dword s20, s[8:9], 0x0", "s_add_u32 s21, s20, 1", "s20",
         "s_waitcnt lgkmcnt(0) before the second"),
    ],
)  # fmt: skip
def test_a_register_in_flight_is_left_alone(module, name, kind, first, second, place, fix):
    finding = only(findings_of(module, name, checks="synccheck")[0])
    assert (finding["checker"], finding["kind"]) == ("synccheck", kind)
    assert (finding["first"]["text"], finding["second"]["text"]) == (first, second)
    assert (finding["place"], finding["fix"], finding["count"]) == (place, fix, 1)
    assert finding["first"]["offset"] < finding["second"]["offset"]
    assert f"`{second}` at entry+{finding['second']['offset']:#x}" in finding["message"]


@pytest.mark.parametrize(
    "name",
    ["read_after_wait", "read_second", "read_from_lds", "other_lanes", "loaded_twice", "halves", "store_source", "written_lanes", "moved",
     "half_of_a_pair_saved", "saved_again", "some_lanes", "all_waves"],
)  # fmt: skip
@pytest.mark.parametrize("wave_turn", (0, 1, 3))
def test_no_finding(module, name, wave_turn):
    assert findings_of(module, name, wave_turn=wave_turn) == ([], None)


@pytest.mark.parametrize(
    ("name", "second", "place", "lanes"),
    [
        ("never_written", "v_add_u32_e32 v33, v50, v1", "v50", 2**64 - 1),
        ("never_written_lanes", "v_add_u32_e32 v33, v50, v1", "v50", 1 << 8),
        ("never_written_scalar", "s_add_u32 s40, s41, 1", "s41", 0),
        ("moved_and_used", "v_add_u32_e32 v33, v51, v1", "v51", 2**64 - 1),
        ("stored", "global_store_dword v1, v50, s[8:9]", "v50", 2**64 - 1),
        ("half_of_a_pair_restored_and_used", "v_add_u32_e32 v33, v53, v1", "v53", 2**64 - 1),
        ("half_of_the_lanes_restored_and_used", "v_add_u32_e32 v33, v52, v1", "v52", 2**64 - 256),
        ("part_of_a_register_saved", "scratch_store_short off, v50, off offset:8", "v50", 2**64 - 1),
    ],
)
def test_a_register_is_written_before_it_is_used(module, name, second, place, lanes):
    finding = only(findings_of(module, name)[0])
    assert (finding["checker"], finding["kind"]) == ("initcheck", "uninitialised_register")
    assert finding["first"] is None
    assert (finding["second"]["text"], finding["place"], int(finding["lanes"], 16)) == (second, place, lanes)


def test_checkers_that_were_not_asked_for_stay_silent(module):
    assert findings_of(module, "never_written", checks="synccheck,racecheck") == ([], None)
    assert findings_of(module, "read", checks="initcheck,racecheck") == ([], None)


def test_readfirstlane_needs_a_lane(module):
    finding = only(findings_of(module, "no_lanes")[0])
    assert (finding["kind"], finding["second"]["text"]) == ("no_active_lane", "v_readfirstlane_b32 s20, v1")


def test_a_wave_that_never_comes_to_the_barrier(module):
    finding = only(findings_of(module, "missing_wave", waves=2)[0])
    assert (finding["kind"], finding["second"]["text"]) == ("barrier_divergence", "s_barrier")
    assert (finding["first"], finding["second"]["wave"]) == (None, 1)
    assert "wave 0 has ended" in finding["message"]
