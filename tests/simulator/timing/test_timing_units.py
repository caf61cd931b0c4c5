# SPDX-License-Identifier: MIT
"""Microkernels against the rates and latencies stated by the model's own parameters or by published measurements."""

import numpy as np
import pytest

from tests.simulator.timing.timed_kernels import Kernel, clocks_each, parameters

DEVICES = ("MI300X", "MI355X")


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


def test_vector_operations_take_four_clocks(device):
    """SQ trace of gfx950: a dependent v_add_f32 chain takes 4 clk each, and so do independent ones."""
    assert clocks_each("v_add_f32_e32 v2, v2, v2", device) == 4
    assert clocks_each(lambda i: f"v_add_f32_e32 v{2 + i % 32}, v40, v41", device) == 4


def test_two_waves_of_a_simd_share_its_vector_unit(device):
    assert clocks_each("v_add_f32_e32 v2, v2, v2", device, waves=8) == 8
    assert clocks_each("v_add_f32_e32 v2, v2, v2", device, waves=4) == 4


def test_transcendentals_take_quarter_or_half_rate(device):
    """LLVM's quarter rate; the CDNA4 white paper doubles it."""
    expected = {"MI300X": 16, "MI355X": 8}[device]
    assert clocks_each("v_exp_f32_e32 v2, v2", device) == expected
    assert clocks_each("v_exp_f32_e32 v2, v2", device, waves=8) == 2 * expected


ACCUMULATORS = {"vgprs": 192, "accum_offset": 128}
MATRIX = {
    # (device, instruction): clocks, dense FLOP per clock and CU (AMD's data sheets)
    ("MI300X", "v_mfma_f32_16x16x16_bf16"): (16, 2048),
    ("MI300X", "v_mfma_f32_32x32x8_f16"): (32, 2048),
    ("MI300X", "v_mfma_f32_32x32x16_fp8_fp8"): (32, 4096),
    ("MI300X", "v_mfma_f32_32x32x2_f32"): (64, 256),
    ("MI355X", "v_mfma_f32_16x16x32_bf16"): (16, 4096),
    ("MI355X", "v_mfma_f32_32x32x16_f16"): (32, 4096),
    ("MI355X", "v_mfma_f32_32x32x8_f16"): (32, 2048),
}


def matrix_text(name: str, accumulator: int) -> str:
    shape = name.split("_")[3]
    rows = 16 if shape.startswith("32x32") else 4
    first = 16 * accumulator
    inputs = (
        1 if name.endswith("_f32") else 4 if shape in ("16x16x32", "32x32x16") and "fp8" not in name else 2
    )
    operands = [f"v[{low}:{low + inputs - 1}]" if inputs > 1 else f"v{low}" for low in (4, 12)]
    return f"{name} a[{first}:{first + rows - 1}], {', '.join(operands)}, a[{first}:{first + rows - 1}]"


@pytest.mark.parametrize(("device", "name"), MATRIX)
def test_matrix_instructions_reach_the_peak_rate(device, name):
    """Independent ones, and those that reuse the same accumulators: the next may issue after its passes."""
    clocks, flops = MATRIX[device, name]
    launch = {**ACCUMULATORS, "waves": 4, "values": False, "few": 16, "many": 80}
    assert clocks_each(lambda i: matrix_text(name, i % 4), device, **launch) == clocks
    assert clocks_each(lambda i: matrix_text(name, 0), device, **launch) == clocks
    body = "\n".join(matrix_text(name, i % 4) for i in range(64))
    report = Kernel(body, device, **ACCUMULATORS).time(waves=4, values=False)
    m, n, k = (int(part) for part in name.split("_")[3].split("x"))
    assert report["matrix_flops"] == 64 * 4 * 2 * m * n * k
    assert 4 * 2 * m * n * k / clocks == flops


def test_vector_work_hides_behind_a_matrix_instruction(device):
    """AMD's calculator: VALU instructions can issue in all but the first four clocks."""
    name = "v_mfma_f32_32x32x8_f16"

    def adds(i, count):
        return "\n".join(
            [matrix_text(name, i % 4), *(f"v_add_f32_e32 v{20 + j}, v40, v41" for j in range(count))]
        )

    launch = {**ACCUMULATORS, "values": False, "few": 8, "many": 40}
    assert clocks_each(lambda i: adds(i, 7), device, **launch) == 32
    assert clocks_each(lambda i: adds(i, 11), device, **launch) == 48


@pytest.mark.parametrize(("device", "states"), [("MI300X", 11), ("MI355X", 12)])
def test_a_matrix_result_is_there_after_its_wait_states(device, states):
    """CDNA3 ISA, table 37, and CDNA4's: VALU reads the result of 8 passes after 11 or 12 wait states; no s_nop here."""
    name = "v_mfma_f32_32x32x8_f16"

    def text(i):
        return matrix_text(name, i % 4) + f"\nv_accvgpr_read_b32 v30, a{16 * (i % 4)}"

    clocks = clocks_each(text, device, **ACCUMULATORS, values=False, few=8, many=40)
    assert clocks == 4 * (states + 1) + 4


def test_nothing_but_time(device):
    assert clocks_each("s_nop 7", device) == 32
    assert clocks_each("s_sleep 2", device, few=4, many=12) == 4 + 2 * parameters(device)["sleep_unit"]
    assert clocks_each("s_add_u32 s20, s20, s21", device) == 4


def test_branches(device):
    """SQ trace of gfx950: 24 clk from issue to issue when taken, 4 when not."""

    def taken(i):
        return f"s_branch after{i}\ns_nop 15\nafter{i}:"

    assert clocks_each(taken, device) == 24
    assert (
        clocks_each(lambda i: f"s_cbranch_scc1 after{i}\nafter{i}:", device, before="s_cmp_eq_u32 0, 1") == 4
    )


def test_a_barrier_costs_its_waves_as_published(device):
    """TensileLite: two quad-cycles, for waves that all arrive at once (here: within one rotation over the four SIMDs)."""
    clocks = clocks_each("s_barrier", device, waves=4)
    expected = parameters(device)["barrier"]
    assert expected <= clocks <= expected + 8


LDS = {
    # (device, instruction): bytes per clock of four SIMDs that do nothing else (CDNA3 and CDNA4: 128 and 256 for reads;
    # rocprofiler-compute: 64 x 16 bytes take 20 clk to write, 64 x 4 bytes 8 clk, on each of two ports)
    ("MI300X", "ds_read_b128 v[4:7], v1"): 128,
    ("MI300X", "ds_read_b64 v[4:5], v1"): 128,
    ("MI355X", "ds_read_b128 v[4:7], v1"): 256,
    ("MI300X", "ds_write_b128 v1, v[4:7]"): 2 * 1024 / 20,
    ("MI355X", "ds_write_b128 v1, v[4:7]"): 2 * 1024 / 20,
    ("MI300X", "ds_write_b32 v1, v4"): 2 * 256 / 8,
}


@pytest.mark.parametrize(("device", "text"), LDS)
def test_lds_bandwidth(device, text):
    size = int(text.split("_b")[1].split()[0]) // 8
    before = f"v_and_b32_e32 v1, 63, v0\nv_mul_u32_u24_e32 v1, {size}, v1"
    clocks = clocks_each(text, device, waves=4, before=before, lds_bytes=4096)
    assert 4 * 64 * size / clocks == pytest.approx(LDS[device, text], rel=0.02)


@pytest.mark.parametrize("ways", [2, 4, 8])
def test_lds_conflicts_take_their_clocks(device, ways):
    """Lanes `ways` banks apart: every phase of ds_read_b32 occupies the banks that many times as long."""
    banks = {"MI300X": 32, "MI355X": 64}[device]
    before = f"v_and_b32_e32 v1, 63, v0\nv_mul_u32_u24_e32 v1, {4 * ways}, v1"

    def report(count):
        return Kernel("\n".join([before, *["ds_read_b32 v4, v1"] * count]), device, lds_bytes=4096).time(
            instruction_cache_starts_warm=1
        )

    conflicts = report(80)["lds_conflict_cycles"] / 80
    assert conflicts == {32: 2 * (ways - 1), 64: 2 * (max(ways // 2, 1) - 1)}[banks]
    assert report(80)["cycles"] >= report(16)["cycles"] + 64 * conflicts


# --- memory ------------------------------------------------------------------------------------------------------


def chase(device: str, stride: int, count: int, steps: int, **launch) -> float:
    """Clocks per load of `steps` dependent loads around a ring of `count` addresses `stride` bytes apart."""
    ring = np.zeros(stride // 8 * count, np.uint64)
    places = ring.ctypes.data + stride * np.arange(count, dtype=np.uint64)
    ring[:: stride // 8] = np.roll(places, -1)
    body = """
  s_load_dwordx2 s[4:5], s[0:1], 0
  s_load_dword s6, s[0:1], 8
  s_waitcnt lgkmcnt(0)
  v_mov_b32_e32 v2, s4
  v_mov_b32_e32 v3, s5
  s_mov_b64 exec, 1
again:
  global_load_dwordx2 v[2:3], v[2:3], off
  s_waitcnt vmcnt(0)
  s_sub_u32 s6, s6, 1
  s_cmp_lg_u32 s6, 0
  s_cbranch_scc1 again"""
    kernel = Kernel(body, device)
    clock = parameters(device)["latency_clock"]
    times = [
        kernel.time(ring, number, clock_mhz=clock, **launch)["execution_cycles"]
        for number in (steps, 2 * steps)
    ]
    # s_sub, s_cmp and a branch that is taken; s_waitcnt issues when the load has arrived
    return (times[1] - times[0]) / steps - (4 + 4 + 24) - 4


def test_a_pointer_chase_has_the_latency_of_its_level(device):
    """MT4G (vL1D 116, L2 287.5, HBM 876 clk on MI300X), Chips and Cheese (MALL 218 ns), HipKittens (300 and 500 ns)."""
    known = parameters(device)
    per_ns = known["latency_clock"] / 1000
    assert chase(device, 128, 64, 256) == pytest.approx(known["vector_cache_hit"], abs=8)
    assert chase(device, 128, 4096, 4096) == pytest.approx(known["l2_hit"], rel=0.05)
    # Lines that are read once each: from HBM, or from the MALL if they were there before.
    assert chase(device, 4096, 4096, 1024) == pytest.approx(known["hbm_latency"] * per_ns, rel=0.05)
    warm = chase(device, 4096, 4096, 1024, mall_starts_warm=1)
    assert warm == pytest.approx(known["mall_latency"] * per_ns, rel=0.05)


COPY = """
  s_load_dwordx4 s[4:7], s[0:1], 0
  s_waitcnt lgkmcnt(0)
  s_lshl_b32 s3, s2, 14
  v_lshlrev_b32_e32 v1, 4, v0
  v_add_u32_e32 v1, s3, v1
  global_load_dwordx4 v[4:7], v1, s[4:5]
  v_add_u32_e32 v2, 4096, v1
  global_load_dwordx4 v[8:11], v2, s[4:5]
  v_add_u32_e32 v3, 8192, v1
  global_load_dwordx4 v[12:15], v3, s[4:5]
  v_add_u32_e32 v20, 12288, v1
  global_load_dwordx4 v[16:19], v20, s[4:5]
  s_waitcnt vmcnt(3)
  global_store_dwordx4 v1, v[4:7], s[6:7]
  s_waitcnt vmcnt(3)
  global_store_dwordx4 v2, v[8:11], s[6:7]
  s_waitcnt vmcnt(3)
  global_store_dwordx4 v3, v[12:15], s[6:7]
  s_waitcnt vmcnt(3)
  global_store_dwordx4 v20, v[16:19], s[6:7]"""


def copy(device, megabytes, **launch):
    size = megabytes << 20
    source, target = np.ones(size // 4, np.uint32), np.zeros(size // 4, np.uint32)
    report = Kernel(COPY, device).time(source, target, workgroups=size >> 14, waves=4, **launch)
    if launch.get("values", True):
        np.testing.assert_array_equal(target, source)
    return report


@pytest.mark.parametrize("megabytes", [64, 128])
def test_a_large_copy_runs_at_the_achievable_rate_of_memory(device, megabytes):
    """Every byte read comes from HBM, and every byte written evicts another one from the MALL: at its achievable rate and no
    faster, also where the tensors would fit into the MALL."""
    report = copy(device, megabytes, values=False)
    size, known = megabytes * 2**20, parameters(device)
    rate = (
        size * (1 + known["hbm_write_cost"]) / (1000 * report["microseconds"])
    )  # reads' worth of bytes / ns
    assert report["caches"]["hbm_bytes_read"] == pytest.approx(size, rel=0.02)
    assert report["caches"]["hbm_bytes_written"] == pytest.approx(size, rel=0.001)
    assert 0.75 * known["hbm_bandwidth"] < rate <= known["hbm_bandwidth"]


def test_tensors_that_stay_in_the_mall_are_not_written_to_memory(device):
    report = copy(device, 16, values=False, mall_starts_warm=1)
    assert report["caches"]["hbm_bytes_read"] == report["caches"]["hbm_bytes_written"] == 0


@pytest.mark.parametrize(("device", "published"), [("MI300X", 51), ("MI355X", 69)])
def test_a_dependent_lds_read_takes_as_long_as_published(device, published):
    """MT4G on MI300X, TLX on gfx950; instructions issue every fourth clock."""
    clocks = clocks_each(
        "ds_read_b32 v1, v1\ns_waitcnt lgkmcnt(0)", device, before="v_mov_b32_e32 v1, 0", lds_bytes=1024
    )
    assert abs(clocks - published) <= 4


READ = """
  s_load_dwordx2 s[4:5], s[0:1], 0
  v_lshlrev_b32_e32 v1, 4, v0
  s_lshl_b32 s6, s2, 20
  v_add_u32_e32 v1, s6, v1
  s_movk_i32 s20, {turns}
  s_waitcnt lgkmcnt(0)
again:
  global_load_dwordx4 v[8:11], v1, s[4:5]
  v_add_u32_e32 v1, 0x4000, v1
  s_sub_u32 s20, s20, 1
  s_cmp_lg_u32 s20, 0
  s_cbranch_scc1 again
  s_waitcnt vmcnt(0)"""


def test_a_stream_on_few_compute_units_runs_at_the_published_rate(device):
    """Origami's microbenchmarks, bytes/ns of a CU while few others read: 1.5 % of 4000 on gfx942; on gfx950 for 8 CUs
    (-1.3e-5 n^2 + 0.00707 n + 0.0274) of 6000, and for 64."""

    def share(n):
        return 6000 * (-1.3e-5 * n * n + 0.00707 * n + 0.0274) / n

    published = {"MI300X": (60, 60), "MI355X": (share(64), share(8))}[device]
    memory = np.zeros(8 << 18, np.uint32)  # a MiB for each of eight workgroups of 16 waves, one on each XCD
    reports = [
        Kernel(READ.format(turns=turns), device).time(memory, workgroups=8, waves=16, values=False)
        for turns in (16, 64)
    ]
    clocks = reports[1]["execution_cycles"] - reports[0]["execution_cycles"]
    rate = 48 * 16384 / (1000 * clocks / reports[0]["clock_mhz"])
    assert 0.85 * published[0] < rate < 1.15 * published[1]


def test_a_wave_that_waits_for_many_lines_waits_for_the_slowest(device):
    """MT4G: half of the lines take longer than the median, and one in twenty longer than the 95th percentile."""
    known = parameters(device)
    memory = np.zeros(72 << 16, np.uint32)
    body = "global_load_dword v2, v1, s[4:5]\nv_add_u32_e32 v1, 0x40000, v1\ns_waitcnt vmcnt(0)"
    one, many = (
        clocks_each(
            body,
            device,
            memory,
            few=8,
            many=72,
            translation_miss=0,
            before=f"s_load_dwordx2 s[4:5], s[0:1], 0\nv_lshlrev_b32_e32 v1, {shift}, v0\ns_waitcnt lgkmcnt(0)",
        )
        for shift in (0, 12)
    )
    clocks_per_ns = known["latency_clock"] / 1000
    assert one == pytest.approx(known["hbm_latency"] * clocks_per_ns, rel=0.05)
    assert many == pytest.approx(known["hbm_latency_95"] * clocks_per_ns, rel=0.1)


def test_an_atomic_operation_fetches_its_line_and_a_store_does_not(device):
    """A page of each of four waves, twice: lines already in L2 are not fetched again."""
    body = """
  s_load_dwordx2 s[4:5], s[0:1], 0
  v_lshlrev_b32_e32 v1, 7, v0
  v_mov_b32_e32 v2, 0
  s_waitcnt lgkmcnt(0)
  {0} v1, v2, s[4:5]
  s_waitcnt vmcnt(0)
  {0} v1, v2, s[4:5]"""
    reports = {
        name: Kernel(body.format(name), device).time(
            np.zeros(1 << 14, np.uint32), waves=4, instruction_cache_starts_warm=1
        )
        for name in ("global_store_dword", "global_atomic_add_f32")
    }
    stored, added = (reports[name]["caches"] for name in ("global_store_dword", "global_atomic_add_f32"))
    assert stored["l2_writes"] == added["l2_writes"] == 2 * 4 * 64
    assert added["hbm_bytes_read"] - stored["hbm_bytes_read"] == 4 * 64 * 128


# --- dispatch ----------------------------------------------------------------------------------------------------


def test_workgroups_start_one_after_the_other(device):
    """SQ trace of gfx950: one every 4 clk on an XCD."""
    known = parameters(device)
    kernel = Kernel("s_sleep 127\ns_sleep 127", device)
    each = known["compute_units_per_xcd"] * known["xcds"]
    few, many = (
        kernel.time(workgroups=int(each * rounds), instruction_cache_starts_warm=1)["execution_cycles"]
        for rounds in (1, 4)
    )
    assert (many - few) / (3 * known["compute_units_per_xcd"]) == pytest.approx(
        known["dispatch_interval"], rel=0.1
    )


@pytest.mark.parametrize(
    ("kernel", "waves", "workgroups", "limit"),
    [
        ({}, 4, 8, "waves"),
        ({"vgprs": 128}, 4, 4, "registers"),
        ({"vgprs": 512}, 4, 1, "registers"),
        ({"vgprs": 256}, 8, 1, "registers"),
        ({"lds_bytes": 65536}, 4, {"MI300X": 1, "MI355X": 2}, "lds"),
        ({}, 1, 32, "waves"),
    ],
)
def test_occupancy(device, kernel, waves, workgroups, limit):
    report = Kernel("s_nop 0", device, **kernel).time(waves=waves)
    expected = workgroups[device] if isinstance(workgroups, dict) else workgroups
    assert (report["workgroups_per_compute_unit"], report["occupancy_limited_by"]) == (expected, limit)
