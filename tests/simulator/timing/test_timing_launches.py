# SPDX-License-Identifier: MIT
"""Whole launches in the cycle model: determinism, sampling, omitted values, refused arguments."""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hipkittens
from hipkittens import _timing
from tests.simulated_device import SimulatorError, library, pointers
from tests.simulator.timing import timed_kernels
from tests.simulator.timing.test_timing_units import copy
from tests.simulator.timing.timed_kernels import Kernel, parameters

torch = pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]


def matmul(device, m, n, k, **options):
    a = torch.randn(m, k, dtype=torch.bfloat16)
    b = torch.randn(n, k, dtype=torch.bfloat16).T
    with hipkittens.simulate(arch=_timing.DEVICES[device]), hipkittens.timing(device, **options) as run:
        result = hipkittens.matmul(a, b)
    return run.launches, result, a, b


def times(launch):
    return launch.cycles, launch.microseconds, launch.report["at_clocks"], launch.instructions


def test_the_same_launch_takes_the_same_cycles():
    first, result, a, b = matmul("MI355X", 256, 256, 256)
    assert len(first) >= 1
    with hipkittens.simulate(arch="gfx950"), hipkittens.timing("MI355X") as run:
        again = hipkittens.matmul(a, b)
    assert [times(launch) for launch in run.launches] == [times(launch) for launch in first]
    assert torch.equal(again, result)
    torch.testing.assert_close(result.float(), a.float() @ b.float(), rtol=2e-2, atol=0.5)


def test_times_do_not_depend_on_host_threads():
    a = torch.randn(256, 256, dtype=torch.bfloat16)
    runs = []
    for threads in (1, 3):
        with hipkittens.simulate(arch="gfx950", threads=threads), hipkittens.timing("MI355X") as run:
            hipkittens.matmul(a, a)
        runs.append([times(launch) for launch in run.launches])
    assert runs[0] == runs[1]


def test_times_do_not_depend_on_where_tensors_lie():
    """Operands in any order of addresses, and a result between or after them."""
    memory = torch.zeros(8, 256, 512, dtype=torch.bfloat16)
    found = []
    for first, second in ((0, 6), (6, 0), (3, 2), (2, 5)):
        with hipkittens.simulate(arch="gfx950"), hipkittens.timing("MI355X", values=False) as run:
            hipkittens.matmul(memory[first], memory[second].T)
        found.append([times(launch) for launch in run.launches])
    assert found[1:] == found[:-1]


PLACED = """
import json, sys
import numpy as np
from tests.simulator.timing.test_timing_units import COPY
from tests.simulator.timing.timed_kernels import Kernel
memory = np.zeros((9, 1 << 18), np.uint32)
source, target = (memory[int(row)] for row in sys.argv[1:])
report = Kernel(COPY, "MI355X").time(source, target, workgroups=64, waves=4)
print(json.dumps(report))"""


def test_times_are_those_of_another_process():
    reports = [
        json.loads(subprocess.check_output([sys.executable, "-c", PLACED, *rows], text=True, cwd=ROOT))
        for rows in ("17", "72")
    ]
    assert reports[0] == reports[1]
    assert reports[0]["caches"]["l2_writes"] == 64 * 4 * 4 * 8


def test_private_segments_lie_where_the_hardware_puts_them():
    """For each wave the same dword of all lanes is contiguous: 16 bytes of 64 lanes are four pairs of lines."""
    body = """
  scratch_store_dwordx4 off, v[4:7], off offset:16
  s_waitcnt vmcnt(0)
  scratch_load_dwordx2 v[8:9], off, off offset:16
  s_waitcnt vmcnt(0)"""
    report = Kernel(body, "MI355X", private_bytes=64).time(workgroups=2, waves=2, full=True)
    assert report["caches"]["l2_writes"] == 2 * 2 * 8
    assert report["caches"]["vector_l1_lines"] == 2 * 2 * 4
    assert report["caches"]["l2_hit_rate"] > 0.5  # the lines written; no instruction lines


VSKIP = """
  s_load_dwordx2 s[4:5], s[0:1], 0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mov_b32_e32 v2, v1
  s_waitcnt lgkmcnt(0)
  s_setvskip {skip}, 0
  global_load_dword v3, v1, s[4:5]
  v_add_u32_e32 v2, 0x1000, v1
  ds_read_b32 v4, v1
  s_nop 0
  global_load_dword v5, v1, s[4:5] offset:256
  s_setvskip 0, 0
  global_load_dword v6, v2, s[4:5] offset:512
  ds_read_b32 v7, v1 offset:4
  s_waitcnt vmcnt(0) lgkmcnt(0)"""


@pytest.mark.parametrize("values", [True, False])
def test_skipped_vector_instructions_are_not_replayed(values):
    """The registers they would have written keep their values, also where values are omitted: the address of the last load."""
    memory = np.arange(4096, dtype=np.uint32)
    runs = {
        skip: Kernel(VSKIP.format(skip=int(skip)), "MI355X", lds_bytes=1024).time(
            memory, workgroups=9, values=values
        )
        for skip in (True, False)
    }
    texts = {skip: [i["text"] for i in run["instructions"]] for skip, run in runs.items()}
    left_out = set(texts[False]) - set(texts[True])
    assert {text.split()[0] for text in left_out} - {"s_setvskip"} == {
        "global_load_dword", "v_add_u32_e32", "ds_read_b32"
    }  # fmt: skip
    assert len(texts[False]) - len(texts[True]) == 4
    assert runs[True]["caches"]["vector_l1_lines"] == 2 * 2
    assert runs[False]["caches"]["vector_l1_lines"] == 2 * 6


def test_without_values_the_cycles_stay():
    """Control flow and addresses do not depend on the results of a matrix multiplication."""
    with_values, _, a, b = matmul("MI355X", 256, 256, 512)
    with hipkittens.simulate(arch="gfx950"), hipkittens.timing("MI355X", values=False) as run:
        hipkittens.matmul(a, b)
    for one, other in zip(with_values, run.launches, strict=True):
        assert one.cycles == pytest.approx(other.cycles, rel=0.02)
        assert [i["issues"] for i in one.instructions] == [i["issues"] for i in other.instructions]


MASKED_ADDRESS = """
  s_load_dwordx2 s[4:5], s[0:1], 0
  v_lshlrev_b32_e32 v1, 2, v0
  v_mul_u32_u24_e32 v2, 0x100, v0
  s_mov_b64 s[8:9], exec
  s_movk_i32 exec_lo, 0xff
  s_mov_b32 exec_hi, 0
  v_mov_b32_e32 v1, v2
  s_mov_b64 exec, s[8:9]
  s_waitcnt lgkmcnt(0)
  global_load_dword v3, v1, s[4:5]
  s_waitcnt vmcnt(0)
  v_and_b32_e32 v3, 0xfc, v3
  v_add_f32_e32 v4, v3, v3
  global_load_dword v5, v3, s[4:5]
  s_waitcnt vmcnt(0)
  v_add_f32_e32 v5, v5, v4
  global_store_dword v1, v5, s[4:5]"""


def test_addresses_are_computed_also_without_values():
    """For some lanes before EXEC changes and for the others after; and from loaded values. The result is not written."""
    memory = np.arange(4096, dtype=np.uint32)
    kernel = Kernel(MASKED_ADDRESS, "MI355X")
    full = kernel.time(memory.copy())
    before = memory.copy()
    sliced = kernel.time(memory, values=False)
    np.testing.assert_array_equal(memory, before)
    assert sliced["instructions"] == full["instructions"]
    assert sliced["caches"] == full["caches"]
    # Lanes 0-7 each in its own line, 8-63 in two lines, one of which lane 0 shares; the values loaded from there point into
    # two lines.
    assert full["caches"]["vector_l1_lines"] == 8 + 2 - 1 + 2


@pytest.mark.parametrize("device", ["MI300X", "MI355X"])
def test_echoes_stand_for_the_other_xcds(device):
    """Sampling is validated by simulating all XCDs in detail: a copy, which is purely memory-bound."""
    sampled, full = (copy(device, 16, values=False, full=full) for full in (False, True))
    assert sampled["execution_cycles"] == pytest.approx(full["execution_cycles"], rel=0.1)
    assert sampled["caches"]["hbm_bytes_read"] == pytest.approx(full["caches"]["hbm_bytes_read"], rel=0.01)


def test_echoes_stand_for_the_other_xcds_in_a_matmul():
    sampled = matmul("MI355X", 1024, 512, 256, values=False)[0][0]
    full = matmul("MI355X", 1024, 512, 256, values=False, full=True)[0][0]
    assert sampled.cycles == pytest.approx(full.cycles, rel=0.05)
    assert sampled.caches["l2_hit_rate"] == pytest.approx(full.caches["l2_hit_rate"], abs=0.05)
    assert sum(i["issues"] for i in full.instructions) == 8 * sum(i["issues"] for i in sampled.instructions)


def test_more_bandwidth_and_less_latency_take_no_longer():
    base = copy("MI355X", 8, values=False)["cycles"]
    assert copy("MI355X", 8, values=False, hbm_bandwidth=3000)["cycles"] > base
    assert copy("MI355X", 8, values=False, hbm_latency=900)["cycles"] > base
    assert copy("MI355X", 8, values=False, hbm_bandwidth=60000, fabric_read=20000)["cycles"] <= base


def test_the_clock_falls_with_the_matrix_load():
    """AMD, measuring max-achievable FLOPS: 1207 MHz under full bf16 load on MI300X; its peak with no matrix work."""
    body = "\n".join(
        f"v_mfma_f32_32x32x8_bf16 a[{16 * (i % 4)}:{16 * (i % 4) + 15}], v[2:3], v[4:5], a[{16 * (i % 4)}:{16 * (i % 4) + 15}]"
        for i in range(64)
    )
    loop = f"s_movk_i32 s20, 100\nagain:\n{body}\ns_sub_u32 s20, s20, 1\ns_cmp_lg_u32 s20, 0\ns_cbranch_scc1 again"
    loaded = Kernel(loop, "MI300X", vgprs=192, accum_offset=128).time(workgroups=304, waves=4, values=False)
    assert loaded["busy"]["matrix"] > 0.94
    assert loaded["clock_mhz"] == pytest.approx(parameters("MI300X")["clock_matrix_bf16"], rel=0.001)
    idle = Kernel("s_sleep 100", "MI300X").time()
    assert idle["clock_mhz"] == parameters("MI300X")["clock_peak"]
    assert idle["microseconds"] == pytest.approx(idle["cycles"] / idle["clock_mhz"])


@pytest.mark.parametrize(
    "device, matrix_format, per_clock, teraflops",
    [("MI355X", "bf16", 4096, 1597), ("MI355X", "f8", 8192, 3378), ("MI355X", "f4", 16384, 5803), ("MI350X", "bf16", 4096, 1292)],
)  # fmt: skip
def test_a_full_matrix_load_reaches_the_published_rate(device, matrix_format, per_clock, teraflops):
    of = parameters(device)
    units = of["xcds"] * of["compute_units_per_xcd"]
    rate = of[f"clock_matrix_{matrix_format}"] * of["clock_full_load"] * units * per_clock
    assert rate == pytest.approx(teraflops * 1e6, rel=0.001)


@pytest.mark.parametrize("device, load, mhz", [("MI300X", 0.831, 1230), ("MI325X", 0.833, 1464)])
def test_the_clock_of_f8_products_is_the_measured_one_at_the_measured_load(device, load, mhz):
    of = parameters(device)
    share = (load - of["clock_idle_load"]) / (of["clock_full_load"] - of["clock_idle_load"])
    assert 1 / ((1 - share) / of["clock_peak"] + share / of["clock_matrix_f8"]) == pytest.approx(
        mhz, rel=0.002
    )


def test_stalls_say_what_a_wave_waited_for():
    report = copy("MI355X", 1)
    stalls = {}
    for instruction in report["instructions"]:
        for reason, clocks in instruction["stalls"].items():
            stalls[reason] = stalls.get(reason, 0) + clocks
    assert max(stalls, key=stalls.get) == "vmcnt"
    issues = sum(instruction["issues"] for instruction in report["instructions"])
    assert issues == 21 * 4 * 64 // 8  # instructions of COPY, waves, workgroups of XCD 0


def test_a_timeline_holds_what_was_issued():
    launches, *_ = matmul("MI355X", 128, 128, 128, timeline=32)
    for launch in launches:
        instructions = [event for event in launch.events if not event.is_wave]
        assert len(instructions) == sum(i["issues"] for i in launch.instructions)
        assert launch.report["timeline_is_full"] is False
        waves = [event for event in launch.events if event.is_wave]
        assert waves
        assert all(0 <= event.begin <= launch.report["execution_cycles"] for event in instructions)


def test_every_parameter_has_a_source():
    kinds = ("documented", "measured", "derived", "fitted", "assumed")
    for device in _timing.DEVICES:
        rows = _timing.parameters(device)
        assert len({row["name"] for row in rows}) == len(rows) > 50
        assert not [row["name"] for row in rows if not row["source"].startswith(kinds) or not row["unit"]]


@pytest.mark.parametrize(
    ("device", "options", "text"),
    [
        ("MI250X", {}, "device is 'MI250X'; allowed: MI300X, MI308X, MI325X, MI350X, MI355X"),
        ("MI300X", {"parameters": {"l3_hit": 3.0}}, "no parameter 'l3_hit'"),
        ("MI300X", {"parameters": {"hbm_bandwidth": 0.0}}, "'hbm_bandwidth'] is 0.0"),
        ("MI300X", {"clock_mhz": -5.0}, "clock_mhz is -5.0"),
        ("MI300X", {"timeline": -1}, "timeline is -1; allowed: 0 to 38 compute units"),
    ],
)
def test_wrong_requests_are_refused(device, options, text):
    with pytest.raises(ValueError, match=re.escape(text)), hipkittens.timing(device, **options):
        pass
    with hipkittens.timing("MI300X") as run:
        pass
    assert run.launches == []


def test_a_kernel_for_another_target_is_refused():
    kernel = Kernel("s_nop 0", "MI300X")
    assert timed_kernels.begin("MI355X") == 0
    try:
        with pytest.raises(
            SimulatorError, match=r"modelled for MI355X \(gfx950\), this kernel is for gfx942"
        ):
            kernel.module.kernel("kernel").launch(pointers().ljust(64, b"\0"))
    finally:
        timed_kernels.end()


def processors(device):
    """Compute units and XCDs of simulated device 0, a gfx942, or 1, a gfx950."""
    value, found = ctypes.c_int(), []
    for attribute in (63, 10018):
        assert library().hipDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0
        found.append(value.value)
    return tuple(found)


@pytest.mark.parametrize(
    ("device", "parameters", "expected"),
    [
        ("MI300X", {}, (304, 8)),
        ("MI308X", {}, (80, 4)),
        ("MI325X", {}, (304, 8)),
        ("MI350X", {}, (256, 8)),
        ("MI355X", {}, (256, 8)),
        ("MI300X", {"xcds": 6.0}, (228, 6)),  # MI300A
        ("MI355X", {"xcds": 1.0}, (32, 1)),  # partition modes CPX, QPX, DPX
        ("MI300X", {"xcds": 2.0}, (76, 2)),
        ("MI355X", {"xcds": 4.0}, (128, 4)),
    ],
)
def test_a_plan_is_for_the_device_that_is_modelled(device, parameters, expected):
    """Each simulated device reports its own compute units and XCDs, and an operation chooses its tiles for them."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(700, 128, generator=generator).bfloat16() for _ in range(2))
    mine = 0 if _timing.DEVICES[device] == "gfx942" else 1
    with hipkittens.timing(device, parameters=parameters) as run:
        assert processors(mine) == expected
        assert processors(1 - mine) == ((256, 8) if mine == 0 else (304, 8))
        product = hipkittens.matmul(a, b.T)
    assert processors(mine) == ((304, 8) if mine == 0 else (256, 8))
    assert len(run.launches) == 1
    exact = a.double() @ b.double().T
    assert torch.allclose(product.double(), exact, rtol=2**-8, atol=1e-3)


def test_splits_are_for_the_device_that_is_modelled():
    a, b = torch.zeros(256, 8192).bfloat16(), torch.zeros(256, 8192).bfloat16()
    for device, units in (("MI308X", 80), ("MI300X", 304)):
        with hipkittens.timing(device, values=False) as run:
            hipkittens.matmul(a, b.T)
        assert units // 2 < run.launches[0].report["workgroups"] <= units


@pytest.mark.parametrize("xcds", [1, 6, 8])
def test_xcc_id_counts_the_xcds_of_the_device(xcds):
    body = """
      s_getreg_b32 s20, hwreg(HW_REG_XCC_ID)
      s_load_dwordx2 s[4:5], s[0:1], 0x0
      s_lshl_b32 s21, s2, 2
      v_mov_b32 v0, s21
      v_mov_b32 v1, s20
      s_waitcnt lgkmcnt(0)
      global_store_dword v0, v1, s[4:5]
    """
    found = np.zeros(20, np.uint32)
    Kernel(body, "MI300X").time(found, workgroups=20, xcds=float(xcds))
    assert np.array_equal(found, np.arange(20) % xcds)


def test_the_device_says_which_gpu_is_simulated():
    a = torch.zeros(64, 64, dtype=torch.bfloat16)
    before = hipkittens._backend.arch()
    for device, target in (("MI355X", "gfx950"), ("MI300X", "gfx942")):
        with hipkittens.timing(device, values=False) as run:
            hipkittens.matmul(a, a)
        (launch,) = run.launches
        assert launch.kernel.endswith(target) and hipkittens._backend.arch() == before
    for checks in ("all", "racecheck"):
        with (
            hipkittens.simulate("gfx950", checks=checks),
            pytest.raises(ValueError, match="checkers are on, and a launch is either modelled or checked"),
            hipkittens.timing("MI355X"),
        ):
            pass
    with (
        hipkittens.simulate("gfx942"),
        pytest.raises(ValueError, match=r"'MI355X', a gfx950, inside hipkittens.simulate\('gfx942'\)"),
        hipkittens.timing("MI355X"),
    ):
        pass
    assert not hipkittens._backend.is_simulating()


def test_a_clock_that_is_held_is_the_one_of_the_time():
    a, times = torch.zeros(256, 256, dtype=torch.bfloat16), []
    for clock in (2400.0, 1600.0, 800.0):
        with hipkittens.timing("MI355X", values=False, clock_mhz=clock) as run:
            hipkittens.matmul(a, a)
        (launch,) = run.launches
        assert launch.report["clock_mhz"] == clock
        assert launch.microseconds == pytest.approx(launch.cycles / clock)
        times.append(launch.microseconds)
    assert times == sorted(times)
    unused = hipkittens.timing("MI355X")
    assert unused.launches == []


def test_one_context_at_a_time():
    inner = hipkittens.timing("MI355X")
    with hipkittens.timing("MI300X"), pytest.raises(RuntimeError, match="MI300X already; close that context"):
        inner.__enter__()
    with hipkittens.timing("MI355X"):
        pass


def test_checks_and_timing_exclude_each_other():
    kernel = Kernel("s_nop 0", "MI300X")
    assert timed_kernels.begin("MI300X") == 0
    try:
        with pytest.raises(SimulatorError, match="either modelled"):
            kernel.module.kernel("kernel").launch(pointers().ljust(64, b"\0"), checks=1)
    finally:
        timed_kernels.end()


def test_a_launch_that_faults_leaves_no_report():
    kernel = Kernel(
        "v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\nglobal_load_dword v4, v[2:3], off\ns_waitcnt vmcnt(0)",
        "MI300X",
    )
    assert timed_kernels.begin("MI300X") == 0
    with pytest.raises(SimulatorError, match="load outside the memory of this launch"):
        kernel.module.kernel("kernel").launch(pointers().ljust(64, b"\0"), grid=[600])
    assert timed_kernels.end() == []
    assert Kernel("s_nop 0", "MI300X").time()["workgroups"] == 1
