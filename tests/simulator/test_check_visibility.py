# SPDX-License-Identifier: MIT
"""Loads that may find a stale copy in a cache: BUFFER_WBL2 or BUFFER_INV left out between workgroups, one row for each way.

test_memory_order.py contains clang's code for releases and acquires, in which nothing may be found.
"""

import numpy as np
import pytest

from tests.device_compiler import compile_hip
from tests.simulated_device import ALL_CHECKS, CHECKERS, TARGETS, Module, take_findings

CHECKS = ALL_CHECKS - CHECKERS["notes"]
NO_WRITE_BACK, NO_INVALIDATE = "stale_without_write_back", "stale_without_invalidate"
PLAIN_STORE = "data[lane] = lane + 7;"
AGENT_STORE = "__hip_atomic_store(data + lane, lane + 7, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"
FLAG = "__hip_atomic_store(flag, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"
COUNT = "if (!lane) __hip_atomic_fetch_add(flag, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"
POLL = "while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));"
PLAIN_LOAD = 'asm volatile("" ::: "memory"); out[lane] = data[63 - lane];'
AGENT_LOAD = "out[lane] = __hip_atomic_load(data + 63 - lane, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);"


def asm(text):
    return f'asm volatile("{text}" ::: "memory");'


WAIT = asm("s_waitcnt vmcnt(0)")
WRITE_BACK, WRITE_BACK_SYSTEM = asm("buffer_wbl2 sc1"), asm("buffer_wbl2 sc0 sc1")
INVALIDATE, INVALIDATE_SYSTEM = asm("buffer_inv sc1"), asm("buffer_inv sc0 sc1")
# What one workgroup does, what the other does, and what is wrong with it.
MESSAGES = {
    "right": (PLAIN_STORE + WRITE_BACK + WAIT + FLAG, POLL + INVALIDATE + PLAIN_LOAD, None),
    "right_system": (
        PLAIN_STORE + WRITE_BACK_SYSTEM + WAIT + FLAG,
        POLL + INVALIDATE_SYSTEM + PLAIN_LOAD,
        None,
    ),
    "right_counter": (PLAIN_STORE + WRITE_BACK + WAIT + COUNT, POLL + INVALIDATE + PLAIN_LOAD, None),
    "stores_past_the_l2": (AGENT_STORE + WAIT + FLAG, POLL + INVALIDATE + PLAIN_LOAD, None),
    "loads_past_the_caches": (PLAIN_STORE + WRITE_BACK + WAIT + FLAG, POLL + AGENT_LOAD, None),
    "no_write_back": (PLAIN_STORE + WAIT + FLAG, POLL + INVALIDATE + PLAIN_LOAD, NO_WRITE_BACK),
    "no_write_back_of_the_workgroup": (
        PLAIN_STORE + asm("buffer_wbl2 sc0") + WAIT + FLAG,
        POLL + INVALIDATE + PLAIN_LOAD,
        NO_WRITE_BACK,
    ),
    "write_back_not_waited_for": (
        PLAIN_STORE + WAIT + WRITE_BACK + FLAG,
        POLL + INVALIDATE + PLAIN_LOAD,
        NO_WRITE_BACK,
    ),
    "write_back_too_early": (
        WRITE_BACK + WAIT + PLAIN_STORE + WAIT + FLAG,
        POLL + INVALIDATE + PLAIN_LOAD,
        NO_WRITE_BACK,
    ),
    "no_invalidate": (PLAIN_STORE + WRITE_BACK + WAIT + FLAG, POLL + PLAIN_LOAD, NO_INVALIDATE),
    "no_invalidate_after_stores_past_the_l2": (AGENT_STORE + WAIT + FLAG, POLL + PLAIN_LOAD, NO_INVALIDATE),
    "invalidate_of_the_workgroup": (
        PLAIN_STORE + WRITE_BACK + WAIT + FLAG,
        POLL + asm("buffer_inv sc0") + PLAIN_LOAD,
        NO_INVALIDATE,
    ),
    "invalidate_too_early": (
        PLAIN_STORE + WRITE_BACK + WAIT + FLAG,
        INVALIDATE + POLL + PLAIN_LOAD,
        NO_INVALIDATE,
    ),
    "neither": (PLAIN_STORE + WAIT + FLAG, POLL + PLAIN_LOAD, NO_WRITE_BACK),
}
# Between waves of one workgroup, which share a compute unit unless the code is for tgsplit: errors in the tgsplit case only.
SYNC = WAIT + "__builtin_amdgcn_s_barrier();"
WITHIN = {
    "right": (SYNC + asm("buffer_inv sc0"), None),
    "right_agent": (SYNC + INVALIDATE, None),
    "no_invalidate": (SYNC, NO_INVALIDATE),
    "invalidate_too_early": (asm("buffer_inv sc0") + SYNC, NO_INVALIDATE),
}
MESSAGE = """
extern "C" __global__ void {name}(uint* data, uint* flag, uint* out) {{
    const uint lane = thread_id() & 63;
    if (workgroup_id() == 0) {{ {producer} }} else {{ {consumer} }}
}}
"""
HANDOVER = """
extern "C" __global__ void within_{name}(uint* data, uint* flag, uint* out) {{
    const uint t = thread_id();
    data[t] = t + 7;
    {sync}
    asm volatile("" ::: "memory");
    out[t] = data[(t + 64) & 255];
    __hip_atomic_fetch_add(flag, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}}
"""
OTHERS = """
#define SYNC() __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); \\
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
// All waves of workgroup 0 write, its first releases for them; in workgroup 1 the first acquires for all.
extern "C" __global__ void for_the_whole_workgroup(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    if (workgroup_id() == 0) {
        data[t] = t + 7;
        SYNC();
        if (t == 0) {
            __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
            __hip_atomic_store(flag, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
        }
    } else {
        if (t < 64) {
            while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT));
            __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
        }
        SYNC();
        out[t] = data[255 - t];
    }
}
// The last of the workgroups adds up what all have left, as splits of K do.
template <bool release, bool acquire>
__device__ void sum_by_the_last(uint* data, uint* flag, uint* out) {
    const uint lane = thread_id(), id = workgroup_id();
    __shared__ uint arrived;
    data[id * 64 + lane] = id + lane;
    if (release) __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
    else asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
    if (lane == 0) arrived = __hip_atomic_fetch_add(flag, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    SYNC();
    if (arrived != 7) return;
    if (acquire) __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    asm volatile("" ::: "memory");
    uint sum = 0;
    for (uint i = 0; i < 8; ++i) sum += data[i * 64 + lane];
    out[lane] = sum;
}
extern "C" __global__ void sum_right(uint* data, uint* flag, uint* out) { sum_by_the_last<true, true>(data, flag, out); }
extern "C" __global__ void sum_no_release(uint* data, uint* flag, uint* out) { sum_by_the_last<false, true>(data, flag, out); }
extern "C" __global__ void sum_no_acquire(uint* data, uint* flag, uint* out) { sum_by_the_last<true, false>(data, flag, out); }
// Workgroup 1 hands on what it has seen of workgroup 0, and workgroup 2 reads what 0 wrote.
extern "C" __global__ void handed_on(uint* data, uint* flag, uint* out) {
    const uint lane = thread_id(), id = workgroup_id();
    if (id == 0) {
        data[lane] = lane + 7;
    } else {
        while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) != id);
        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
    }
    if (id == 2) {
        out[lane] = data[63 - lane];
    } else {
        __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
        __hip_atomic_store(flag, id + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    }
}
"""


def source():
    text = OTHERS
    for name, (producer, consumer, _) in MESSAGES.items():
        text += MESSAGE.format(name=name, producer=producer, consumer=consumer)
    for name, (sync, _) in WITHIN.items():
        text += HANDOVER.format(name=name, sync=sync)
    return text


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return Module(compile_hip(source(), request.param), request.param)


@pytest.fixture(scope="module", params=TARGETS)
def split_module(request):
    return Module(compile_hip(source(), request.param, ("-mtgsplit",)), request.param)


def launch(module, name, *, workgroups=2, threads=64, **settings):
    data = np.zeros(64 * 8, np.uint32)
    arrays = {"data": data, "flag": np.zeros(1, np.uint32), "out": np.zeros(256, np.uint32)}
    pointers = np.array([array.ctypes.data for array in arrays.values()], np.uint64).tobytes()
    take_findings()
    settings = {"checks": CHECKS, **settings}
    module.kernel(name).launch(pointers, arrays, block=(threads, 1, 1), grid=(workgroups, 1, 1), **settings)
    return arrays["out"], take_findings()


def kinds(findings):
    return {finding["kind"] for finding in findings}


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_between_workgroups(module, name, seed):
    out, findings = launch(module, name, wave_order_seed=seed)
    np.testing.assert_array_equal(out[:64], np.arange(63, -1, -1) + 7)
    expected = MESSAGES[name][2]
    # Without any cache instruction nothing marks the flag as a flag.
    also = {"workgroups_read_after_write"} if name == "neither" else set()
    assert kinds(findings) == ({expected} if expected else set()) | also
    for finding in (finding for finding in findings if finding["kind"] == expected):
        assert finding["checker"] == "racecheck" and "store" in finding["first"]["text"]
        assert finding["second"]["text"].startswith("global_load_dword") and "'data'" in finding["place"]
        assert ("buffer_wbl2" if expected == NO_WRITE_BACK else "buffer_inv") in finding["fix"]


@pytest.mark.parametrize("name", WITHIN)
def test_waves_of_a_workgroup_need_an_invalidation_if_they_may_be_split(module, split_module, name):
    expected = (np.arange(256) + 64 & 255) + 7
    out, findings = launch(module, f"within_{name}", workgroups=1, threads=256)
    np.testing.assert_array_equal(out, expected)
    assert findings == []
    out, findings = launch(split_module, f"within_{name}", workgroups=1, threads=256)
    np.testing.assert_array_equal(out, expected)
    assert kinds(findings) == ({WITHIN[name][1]} if WITHIN[name][1] else set())


@pytest.mark.parametrize("checks", [0, CHECKS])
def test_one_wave_releases_and_acquires_for_its_workgroup(module, checks):
    """The other waves' stores are not waited for before the barrier, and yet are ordered before the flag."""
    out, findings = launch(module, "for_the_whole_workgroup", threads=256, checks=checks)
    np.testing.assert_array_equal(out, np.arange(255, -1, -1) + 7)
    assert findings == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sum_right", set()), ("sum_no_release", {NO_WRITE_BACK}), ("sum_no_acquire", {NO_INVALIDATE})],
)
def test_the_last_workgroup_adds_up_what_all_have_left(module, name, expected):
    out, findings = launch(module, name, workgroups=8)
    np.testing.assert_array_equal(out[:64], 8 * np.arange(64) + 28)
    assert kinds(findings) == expected


def test_what_was_acquired_is_handed_on(module):
    out, findings = launch(module, "handed_on", workgroups=3)
    np.testing.assert_array_equal(out[:64], np.arange(63, -1, -1) + 7)
    assert findings == []
