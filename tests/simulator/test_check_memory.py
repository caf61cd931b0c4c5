"""memcheck, racecheck and initcheck on global memory, and the performance notes."""

import ctypes
import dataclasses

import numpy as np
import pytest

from tests.simulated_device import CHECKERS, TARGETS, SimulatorError, library, take_findings
from tests.simulator.checked_kernels import findings_of, only
from tests.simulator.memory_kernels import LOAD_ARGUMENTS, Body, aligned, around, descriptor_of, load, run

# s2 is the workgroup, v1 the work-item's dword of the workgroup, v2 that of the launch.
PLACES = (
    LOAD_ARGUMENTS
    + """
  s_lshl_b32 s21, s2, 8
  v_add_u32_e32 v2, s21, v1
  v_mov_b32_e32 v3, 1
"""
)
DRAIN = "\n  s_waitcnt vmcnt(0)"
BODIES = {
    "own_dwords": Body(PLACES + "global_store_dword v2, v3, s[8:9]" + DRAIN),
    "same_dwords": Body(PLACES + "global_store_dword v1, v3, s[8:9]" + DRAIN),
    "neighbours_bytes": Body(
        PLACES + "v_lshlrev_b32_e32 v4, 1, v0\nv_add_u32_e32 v4, s2, v4\nglobal_store_byte v4, v3, s[8:9]" + DRAIN),
    "reads_what_others_write": Body(
        PLACES + "global_store_dword v2, v3, s[8:9]\nglobal_load_dword v4, v1, s[8:9]" + DRAIN),
    "atomics": Body(PLACES + "global_atomic_add v1, v3, s[8:9]" + DRAIN),
    "lock": Body(PLACES + "global_atomic_add v4, v1, v3, s[8:9] sc0\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v3, s[8:9]" + DRAIN),
    "waves": Body(PLACES + "v_and_b32_e32 v4, 0xfc, v1\nglobal_store_dword v4, v3, s[8:9]" + DRAIN),
    "waves_in_turn": Body(
        PLACES + "v_xor_b32_e32 v4, 0x100, v1\nglobal_store_dword v1, v3, s[8:9]\ns_waitcnt vmcnt(0)\ns_barrier\n"
        "global_load_dword v5, v4, s[8:9]" + DRAIN),
    "waves_without_wait": Body(
        PLACES + "v_xor_b32_e32 v4, 0x100, v1\nglobal_store_dword v1, v3, s[8:9]\ns_barrier\n"
        "global_load_dword v5, v4, s[8:9]" + DRAIN),
    "load": around("global_load_dword v32, v1, s[8:9]"),
    "far_load": around("v_add_u32_e32 v19, 0x4000, v1\ns_nop 0\nglobal_load_dword v32, v19, s[8:9]"),
    "store": around("global_store_dword v1, v18, s[8:9]"),
    "buffer_load": around("buffer_load_dword v32, v1, s[12:15], 0 offen"),
    "buffer_load_x4": around("v_lshlrev_b32_e32 v19, 4, v0\nbuffer_load_dwordx4 v[32:35], v19, s[12:15], 0 offen"),
    "buffer_load_byte": around("buffer_load_ubyte v32, v1, s[12:15], 0 offen"),
    "buffer_load_format": around("buffer_load_format_x v32, v0, s[12:15], 0 idxen"),
    "buffer_load_to_lds": around("buffer_load_dword v1, s[12:15], 0 offen lds", lds=True),
    "scalar_buffer_load": around(
        "s_buffer_load_dwordx4 s[20:23], s[12:15], 0\ns_waitcnt lgkmcnt(0)\n"
        + "".join(f"v_mov_b32_e32 v{32 + i}, s{20 + i}\n" for i in range(4))),
    "buffer_store": around("buffer_store_dword v18, v1, s[12:15], 0 offen"),
    "buffer_atomic": around("buffer_atomic_add v18, v1, s[12:15], 0 offen"),
    "lds_beyond": around("v_add_u32_e32 v19, 0x2000, v1\nds_read_b32 v32, v19", lds=True),
    "odd_atomic": around("v_add_u32_e32 v19, 2, v1\ns_nop 0\nglobal_atomic_add v19, v18, s[8:9]"),
    "strided": around("v_lshlrev_b32_e32 v19, 4, v1\ns_nop 0\nglobal_load_dword v32, v19, s[8:9]"),
    "partial": around("v_lshlrev_b32_e32 v19, 1, v1\ns_nop 0\nglobal_store_dword v19, v18, s[8:9]"),
    "conflicts": around("v_lshlrev_b32_e32 v19, 4, v1\nds_read_b32 v32, v19", lds=True),
    "no_conflicts": around("ds_read_b32 v32, v1", lds=True),
    "useful_wait": around("\n".join(f"global_load_dword v{32 + i}, v1, s[8:9]" for i in range(4)) + "\ns_waitcnt vmcnt(3)"),
    "idle_wait": around("global_load_dword v32, v1, s[8:9]\ns_waitcnt vmcnt(0)\ns_waitcnt vmcnt(3)"),
}  # fmt: skip


BODIES["waves_of_split_workgroup"] = dataclasses.replace(BODIES["waves_without_wait"], tg_split=True)


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


def launched(module, name, groups, checks=2, waves=1):
    """Findings for several workgroups that share `memory`."""
    memory, unused = aligned(1024), aligned(64)
    arguments = np.array(
        [unused.ctypes.data, unused.ctypes.data, memory.ctypes.data, 2**64 - 1], np.uint64
    ).tobytes()
    arguments += np.zeros(8, np.uint32).tobytes()
    take_findings()
    module.kernel(name).launch(
        arguments,
        {"unused": unused, "memory": memory},
        grid=[groups],
        block=[64 * waves],
        threads=1,
        checks=checks,
    )
    return take_findings()


@pytest.mark.parametrize("name", ["own_dwords", "atomics", "lock", "neighbours_bytes"])
def test_workgroups_that_keep_apart(module, name):
    assert launched(module, name, 2) == []


def test_workgroups_that_write_the_same_bytes(module):
    finding = only(launched(module, "same_dwords", 3))
    assert (finding["checker"], finding["kind"]) == ("racecheck", "workgroups_write_after_write")
    assert finding["first"]["text"] == finding["second"]["text"] == "global_store_dword v1, v3, s[8:9]"
    assert finding["place"] == "bytes 0x0 to 0x3 of 'memory'"
    assert finding["workgroup"] == [1, 0, 0]
    assert (
        "wave 0 of workgroup 1 writes" in finding["message"]
        and "wave 0 of workgroup 0 writes" in finding["message"]
    )


def test_a_workgroup_that_reads_what_another_writes(module):
    kinds = {finding["kind"] for finding in launched(module, "reads_what_others_write", 2)}
    assert kinds and kinds <= {"workgroups_read_after_write", "workgroups_write_after_read"}


def test_waves_of_a_workgroup(module):
    assert launched(module, "waves_in_turn", 1, waves=2) == []
    assert launched(module, "waves_without_wait", 1, waves=2) == []  # one vector L1 receives both in order
    for name, fix in (
        ("waves", "s_barrier"),
        ("waves_of_split_workgroup", "s_waitcnt vmcnt, then s_barrier,"),
    ):
        finding = launched(module, name, 1, waves=2)[0]
        assert {finding["first"]["wave"], finding["second"]["wave"]} == {0, 1}
        assert finding["fix"] == f"{fix} between the two"


def test_reads_of_memory_that_still_holds_the_pattern_of_the_unwritten(module):
    memory = aligned(1024)
    memory[:] = unwritten = 0x7FF57FF5
    launch = {"memory": memory}
    assert findings_of(module, "load", **launch) == ([], None)  # unwritten contents are unspecified
    memory[:40] = 5
    arguments = np.array([memory.ctypes.data] * 3 + [2**64 - 1] + [0] * 4, np.uint64).tobytes()
    take_findings()
    module.kernel("load").launch(
        arguments,
        {"memory": memory},
        unwritten={"memory": unwritten},
        threads=1,
        checks=CHECKERS["initcheck"],
    )
    findings = take_findings()
    finding = next(row for row in findings if row["second"]["text"] == "global_load_dword v32, v1, s[8:9]")
    assert (finding["kind"], finding["place"]) == ("uninitialised_memory", "bytes 0xa0 to 0xa3 of 'memory'")
    assert int(finding["lanes"], 16) == 1 << 40


@pytest.mark.parametrize(
    ("name", "kind", "text", "options"),
    [
        ("far_load", "out_of_bounds", "global_load_dword v32, v19, s[8:9]", {}),
        ("buffer_load", "descriptor_overread", "buffer_load_dword v32, v1, s[12:15], 0 offen", {}),
        ("lds_beyond", "out_of_bounds_lds", "ds_read_b32 v32, v19", {}),
        ("odd_atomic", "misaligned", "global_atomic_add v19, v18, s[8:9]", {}),
    ],
)
def test_what_ends_a_launch_is_a_finding(module, name, kind, text, options):
    memory = aligned(1024)
    if name == "buffer_load":
        options = {"descriptor": descriptor_of(memory, 8192, base_offset=4000)}
    findings, error = findings_of(module, name, checks="memcheck", memory=memory, **options)
    finding = only(findings)
    assert (finding["checker"], finding["kind"], finding["second"]["text"]) == ("memcheck", kind, text)
    assert error and finding["place"] in error
    assert findings_of(module, name, checks="racecheck", memory=memory, **options)[0] == []


def test_a_descriptor_that_ends_with_the_allocation(module):
    memory = aligned(1024)
    assert findings_of(module, "buffer_load", memory=memory, descriptor=descriptor_of(memory, 4096)) == (
        [],
        None,
    )


# Buffers that begin 16 dwords before the end of `memory`, and promise 256.
OVERREADS = {
    "buffer_load": lambda words: [np.append(words, np.zeros(48, np.uint32))],
    "buffer_load_x4": lambda words: [np.append(words[row::4], np.zeros(60, np.uint32)) for row in range(4)],
    "buffer_load_byte": lambda words: [np.append(words & 0xFF, np.zeros(48, np.uint32))],
    "buffer_load_format": lambda words: [np.append(words, np.zeros(48, np.uint32))],
}


def beyond(name, memory):
    word3 = 0x00020000 | (0x27004 if name == "buffer_load_format" else 0)  # one 32-bit channel, unconverted
    stride = 4 if name == "buffer_load_format" else 0
    records = 256 if stride else 1024
    return descriptor_of(memory, records, stride, base_offset=4 * (len(memory) - 16), word3=word3)


@pytest.mark.parametrize("name", list(OVERREADS))
def test_tolerated_overreads_read_zero_and_are_found(module, name):
    memory = aligned(1024)
    memory[:] = np.random.default_rng(3).integers(1, 2**32, 1024, np.uint32)
    launch = {"memory": memory, "descriptor": beyond(name, memory)}
    with pytest.raises(SimulatorError, match="load outside the memory of this launch"):
        run(module, name, **launch)
    take_findings()
    results = run(module, name, tolerate_overreads=1, **launch)
    assert take_findings() == []  # no finding was requested
    for row, right in zip(results, OVERREADS[name](memory[-16:]), strict=False):
        assert (row == right).all()
    findings, error = findings_of(module, name, checks="memcheck", tolerate_overreads=1, **launch)
    finding = only(findings)
    assert error is None and finding["kind"] == "descriptor_overread"
    assert finding["second"]["text"].startswith(name.replace("_x4", "_dwordx4").split("_byte")[0][:11])
    assert "tolerated: it reads 0; lane" in finding["message"] and "past its end" in finding["place"]


def test_tolerated_overreads_of_scalars_and_into_lds(module):
    memory = aligned(1024)
    memory[:] = np.arange(1, 1025)
    inside = descriptor_of(memory, 1024, base_offset=4 * 1022)
    results = run(module, "scalar_buffer_load", memory=memory, descriptor=inside, tolerate_overreads=1)
    assert [int(row[0]) for row in results] == [1023, 1024, 0, 0]
    run(module, "buffer_load_to_lds", memory=memory, descriptor=beyond("", memory), tolerate_overreads=1)
    assert (memory[:64] == np.append(np.arange(1009, 1025), np.zeros(48))).all()


@pytest.mark.parametrize("name", ["buffer_store", "buffer_atomic", "far_load"])
def test_nothing_else_is_tolerated(module, name):
    memory = aligned(1024)
    with pytest.raises(SimulatorError, match="outside the memory of this launch"):
        run(module, name, memory=memory, descriptor=beyond("", memory), tolerate_overreads=1)


@pytest.mark.parametrize("target", TARGETS)
def test_use_after_free(target):
    lib = library()
    module = load({"own_dwords": BODIES["own_dwords"]}, target)
    kernel = module.kernel("own_dwords")
    freed = ctypes.c_void_p()
    assert lib.hipMalloc(ctypes.byref(freed), ctypes.c_size_t(4096)) == 0
    assert lib.hipFree(freed) == 0
    arguments = np.array([freed.value] * 3 + [2**64 - 1] + [0] * 4, np.uint64).tobytes()
    take_findings()
    with pytest.raises(Exception, match="which was freed"):
        kernel.launch(arguments, {}, threads=1, checks=CHECKERS["memcheck"])
    finding = only(take_findings())
    assert finding["kind"] == "use_after_free"
    assert "hipMalloc #" in finding["place"] and "of 4096 bytes, which was freed" in finding["place"]


@pytest.mark.parametrize(
    ("kind", "name", "text", "twin", "twin_text"),
    [
        ("uncoalesced", "strided", "global_load_dword v32, v19, s[8:9]", "load", "global_load_dword v32, v1, s[8:9]"),
        ("partial_lines", "partial", "global_store_dword v19, v18, s[8:9]", "store", "global_store_dword v1, v18, s[8:9]"),
        ("lds_bank_conflicts", "conflicts", "ds_read_b32 v32, v19", "no_conflicts", "ds_read_b32 v32, v1"),
        ("redundant_wait", "idle_wait", "s_waitcnt vmcnt(3)", "useful_wait", "s_waitcnt vmcnt(3)"),
    ],
)  # fmt: skip
def test_notes(module, kind, name, text, twin, twin_text):
    memory = aligned(1 << 14)

    def notes(kernel):
        found, _ = findings_of(module, kernel, checks="notes", memory=memory)
        assert all(row["checker"] == "notes" for row in found)
        return [row for row in found if row["kind"] == kind]

    assert len([row for row in notes(name) if row["second"]["text"] == text]) == 1
    assert not [row for row in notes(twin) if row["second"]["text"] == twin_text]
