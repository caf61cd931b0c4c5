"""LLVM's memory model for gfx942 and gfx950 (AMDGPUUsage, "Memory Model gfx942"), row by row, as clang lowers it.

Message passing: one side writes data and releases a flag, the other acquires the flag and reads the data. Every way to release is combined
with every way to acquire, at each scope, in code objects with and without tgsplit. Where clang omits instructions because the hardware's
ordering suffices, the simulated machine has to provide that ordering.
"""

import itertools

import numpy as np
import pytest

from tests.device_compiler import compile_hip
from tests.simulated_device import ALL_CHECKS, CHECKERS, TARGETS, Module, take_findings

SCOPES = {"workgroup": "__HIP_MEMORY_SCOPE_WORKGROUP", "agent": "__HIP_MEMORY_SCOPE_AGENT", "system": "__HIP_MEMORY_SCOPE_SYSTEM"}  # fmt: skip
FENCES = {"workgroup": "workgroup", "agent": "agent", "system": ""}
RELEASES = {
    "store_release": "__hip_atomic_store(flag, 1, __ATOMIC_RELEASE, {scope});",
    "rmw_release": "__hip_atomic_fetch_add(flag, 1, __ATOMIC_RELEASE, {scope});",
    "rmw_acq_rel": "__hip_atomic_exchange(flag, 1, __ATOMIC_ACQ_REL, {scope});",
    "store_seq_cst": "__hip_atomic_store(flag, 1, __ATOMIC_SEQ_CST, {scope});",
    "fence_release": '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "{fence}"); '
    "__hip_atomic_store(flag, 1, __ATOMIC_RELAXED, {scope});",
    "fence_acq_rel": '__builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "{fence}"); '
    "__hip_atomic_fetch_add(flag, 1, __ATOMIC_RELAXED, {scope});",
}
ACQUIRES = {
    "load_acquire": "while (!__hip_atomic_load(flag, __ATOMIC_ACQUIRE, {scope}));",
    "rmw_acquire": "while (!__hip_atomic_fetch_add(flag, 0, __ATOMIC_ACQUIRE, {scope}));",
    "load_seq_cst": "while (!__hip_atomic_load(flag, __ATOMIC_SEQ_CST, {scope}));",
    "fence_acquire": "while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, {scope})); "
    '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "{fence}");',
    "fence_seq_cst": "while (!__hip_atomic_load(flag, __ATOMIC_RELAXED, {scope})); "
    '__builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "{fence}");',
}
# Waves of one workgroup, or workgroups: 64 lanes on each side. Initially, the consumer's data is zero.
MESSAGE = """
extern "C" __global__ void {name}(uint* data, uint* flag, uint* out) {{
    const uint side = {side}, lane = thread_id() & 63;
    if (side == 0) {{
        data[lane] = lane + 7;
        {release}
    }} else {{
        {acquire}
        out[lane] = data[63 - lane];
    }}
}}
"""
SIDES = {
    "workgroup": "__builtin_amdgcn_readfirstlane(thread_id() / 64)",
    "agent": "workgroup_id()",
    "system": "workgroup_id()",
}
# Waves 0 to 3 hand what they wrote to each other at a barrier, as __syncthreads does.
BARRIER = """
#define SYNC() __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); \\
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
extern "C" __global__ void read_after_write(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    data[t] = t + 7;
    SYNC();
    out[t] = data[(t + 64) & 255];
}
extern "C" __global__ void write_after_read(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    const uint value = data[(t + 64) & 255];
    SYNC();
    data[t] = 1;
    out[t] = value;
}
extern "C" __global__ void write_after_write(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    data[t] = 1;
    SYNC();
    data[(t + 64) & 255] = t;
    SYNC();
    out[t] = data[t];
}
extern "C" __global__ void atomic_after_write(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    data[t] = t;
    SYNC();
    out[t] = __hip_atomic_fetch_add(data + ((t + 64) & 255), 1000, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    SYNC();
    data[t] += 5;
}
extern "C" __global__ void read_after_atomic(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    __hip_atomic_fetch_add(data + t, t + 3, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
    SYNC();
    out[t] = data[(t + 64) & 255];
}
extern "C" __global__ void bytes_of_a_dword(unsigned char* data, uint* flag, uint* out) {
    const uint t = thread_id();
    data[t] = t;
    SYNC();
    out[t] = ((uint*)data)[((t + 64) & 255) / 4];
}
extern "C" __global__ void in_turn(uint* data, uint* flag, uint* out) {
    const uint t = thread_id();
    uint value = t;
    for (int i = 0; i < 6; ++i) {
        data[t] = value;
        SYNC();
        value = data[(t + 64) & 255] + 1;
        SYNC();
    }
    out[t] = value;
}
"""
CHECKS = ALL_CHECKS - CHECKERS["notes"]
T = np.arange(256, dtype=np.uint32)
NEXT = (T + 64) & 255
# out, and data afterwards where it differs from out; data holds 500 + its index before.
AT_A_BARRIER = {
    "read_after_write": (NEXT + 7, T + 7),
    "write_after_read": (NEXT + 500, np.ones_like(T)),
    "write_after_write": ((T - 64) & 255, (T - 64) & 255),
    "atomic_after_write": (NEXT, T + 1005),
    "read_after_atomic": (500 + 2 * NEXT + 3, 500 + 2 * T + 3),
    "bytes_of_a_dword": ((NEXT // 4 * 4) * 0x01010101 + 0x03020100, None),
    "in_turn": (((T + 6 * 64) & 255) + 6, None),
}
CASES = list(itertools.product(SCOPES, RELEASES, ACQUIRES))


def name_of(scope, release, acquire):
    return f"{scope}_{release}_{acquire}"


def source():
    text = BARRIER
    for scope, release, acquire in CASES:
        words = {"scope": SCOPES[scope], "fence": FENCES[scope]}
        text += MESSAGE.format(
            name=name_of(scope, release, acquire), side=SIDES[scope],
            release=RELEASES[release].format(**words), acquire=ACQUIRES[acquire].format(**words),
        )  # fmt: skip
    return text


@pytest.fixture(scope="module", params=itertools.product(TARGETS, [False, True]), ids=str)
def module(request):
    target, tgsplit = request.param
    return Module(compile_hip(source(), target, ("-mtgsplit",) if tgsplit else ()), target)


def launch(module, name, *, data, threads, grid=1, **settings):
    arrays = {"data": data, "flag": np.zeros(1, np.uint32), "out": np.zeros(threads * grid, np.uint32)}
    pointers = np.array([array.ctypes.data for array in arrays.values()], np.uint64)
    take_findings()
    module.kernel(name).launch(
        pointers.tobytes(), arrays, block=(threads, 1, 1), grid=(grid, 1, 1), **settings
    )
    return arrays["out"], take_findings()


@pytest.mark.parametrize("checks", [0, CHECKS], ids=["plain", "checks"])
@pytest.mark.parametrize("seed", [0, 5])
@pytest.mark.parametrize("name", AT_A_BARRIER)
def test_a_barrier_orders_memory_within_a_workgroup(module, name, seed, checks):
    out, after = AT_A_BARRIER[name]
    data = T + 500 if name != "bytes_of_a_dword" else np.zeros(64, np.uint32)
    result, findings = launch(module, name, data=data, threads=256, wave_order_seed=seed, checks=checks)
    np.testing.assert_array_equal(result, out)
    if after is not None:
        np.testing.assert_array_equal(data, after)
    assert findings == []


@pytest.mark.parametrize(("scope", "release", "acquire"), CASES)
def test_a_message_arrives(module, scope, release, acquire):
    data = np.zeros(64, np.uint32)
    size = {"threads": 128} if scope == "workgroup" else {"threads": 64, "grid": 2}
    result, findings = launch(module, name_of(scope, release, acquire), data=data, checks=CHECKS, **size)
    np.testing.assert_array_equal(result[:64], np.arange(63, -1, -1) + 7)
    assert findings == []
