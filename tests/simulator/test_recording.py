"""Recorded launches: the effect of every instruction, and which bytes of which tensor were moved."""

import pytest

from hipkittens import _simulator
from tests.simulated_device import TARGETS
from tests.simulator.memory_kernels import LOAD_ARGUMENTS, Body, aligned, load, run

# Three iterations around five iterations. All lanes load the same dword; each stores its own. The LDS address is 64 bytes
# times the lane, two banks of 32 or four of 64.
BODY = Body(
    LOAD_ARGUMENTS
    + """
  v_mov_b32_e32 v2, 0
  v_and_b32_e32 v4, 63, v0
  v_lshlrev_b32_e32 v4, 6, v4
  global_load_dword v3, v2, s[8:9]
  s_waitcnt vmcnt(0)
  s_mov_b32 s20, 3
outer:
  s_mov_b32 s21, 5
inner:
  ds_write_b32 v4, v3
  s_sub_u32 s21, s21, 1
  s_cmp_lg_u32 s21, 0
  s_cbranch_scc1 inner
  s_sub_u32 s20, s20, 1
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 outer
  s_mov_b64 exec, 0xff
  global_store_dword v1, v3, s[8:9] offset:256
  global_store_dwordx4 v2, v[4:7], s[8:9] offset:1024
""",
    lds_bytes=4096,
)


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    return request.param


@pytest.fixture
def launch(target):
    module = load({"loops": BODY}, target)
    _simulator.record_launches(True)
    run(module, "loops", memory=aligned(1024), count_lds_conflicts=1, waves=2)
    _simulator.record_launches(False)
    run(module, "loops", memory=aligned(1024), waves=2)
    (launch,) = _simulator.recorded_launches()
    return launch


def test_a_record_agrees_with_the_report(launch, target):
    assert (launch["kernel"], launch["target"]) == ("loops", target)
    report, instructions = launch["report"], launch["instructions"]
    assert report["waves"] == 2
    assert sum(executions for _, _, executions, _, _ in instructions) == report["instructions"]
    assert sum(cycles for *_, cycles in instructions) == report["lds_conflict_cycles"] > 0
    lds = [entry for entry in instructions if entry[1] == "lds"]
    assert [executions for _, _, executions, _, _ in lds] == [2 * 15]
    assert sum(cycles for *_, cycles in lds) == report["lds_conflict_cycles"]


def test_bytes_are_counted_by_tensor_and_once_more_if_distinct(launch):
    regions = {name: sums for name, *sums in launch["regions"]}
    # Eight lanes of each wave store 4 bytes of their own and 16 bytes common to all.
    assert regions["memory"] == [2 * 64 * 4, 2 * (8 * 4 + 8 * 16), 4, 2 * 8 * 4 + 16]
    assert regions["in"] == regions["out"] == [0, 0, 0, 0]
    assert sum(moved for *_, moved, _ in launch["instructions"]) == sum(regions["memory"][:2])


def digests_of(target, memory, value):
    """Digests of two waves that add a constant, and then 1, to what they load."""
    body = """
  v_mov_b32_e32 v2, 0
  global_load_dword v3, v2, s[8:9]
  s_waitcnt vmcnt(0)
  v_add_u32_e32 v3, {value}, v3
  v_add_u32_e32 v3, 1, v3
"""
    module = load({"adds": Body(LOAD_ARGUMENTS + body.format(value=value))}, target)
    _simulator.record_launches(True, digests=True)
    run(module, "adds", memory=memory, waves=2)
    _simulator.record_launches(False)
    (launch,) = _simulator.recorded_launches()
    return launch["digests"]


def test_digests_tell_what_waves_find_in_registers(target):
    memory = aligned(1024)
    one, again, other = (digests_of(target, memory, value) for value in (1, 1, 2))
    assert len(one) == 2 * 8 and one == again
    assert all(one[wave : wave + 8] != other[wave : wave + 8] for wave in (0, 8))
