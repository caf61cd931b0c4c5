# SPDX-License-Identifier: MIT
"""Failures inside a launch are contained: exhausted memory, faults in the middle of a grid, excessive resource requests."""

import ctypes
import re
import subprocess
import sys

import numpy as np
import pytest

import hipkittens
from hipkittens import _library
from tests.device_compiler import compile_hip
from tests.simulated_device import TARGETS, Module, SimulatorError, library, pointers

OUT_OF_MEMORY, LAUNCH_FAILURE, OUT_OF_RESOURCES = 2, 719, 701

SOURCE = r"""
__shared__ uint shared[1024];

// Leaves its mark in LDS and registers; workgroup `bad` then stores where nothing is.
extern "C" __global__ void mark_and_store(uint* out, uint bad) {
    for (uint i = thread_id(); i < 1024; i += 64) shared[i] = 0xdeadbeef;
    __builtin_amdgcn_s_barrier();
    asm volatile("v_mov_b32 v60, %0\n v_mov_b32 v61, %0" :: "s"(0xdeadbeef) : "v60", "v61");
    uint place = workgroup_id() == bad ? 1u << 24 : workgroup_id() * 64 + thread_id();
    out[place] = shared[thread_id()] - 0xdeadbeef + workgroup_id() + 1;
}

extern "C" __global__ void look_around(uint* out) {
    uint seen = 0, first, second;
    for (uint i = thread_id(); i < 1024; i += 64) seen |= ((volatile uint*)shared)[i];
    asm volatile("v_mov_b32 %0, v60\n v_mov_b32 %1, v61" : "=v"(first), "=v"(second) :: "v60", "v61");
    out[thread_id()] = seen | first | second;
}

extern "C" __global__ void wait_for_ever(volatile uint* flag) { while (flag[0] == 0); }

extern "C" __global__ void large_frame(uint* out, uint index) {
    volatile uint frame[1 << 14];
    frame[index] = thread_id();
    out[thread_id()] = frame[index];
}
"""


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return Module(compile_hip(SOURCE, request.param), request.param)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("order", [{}, {"wave_turn": 4, "workgroups_side_by_side": 3}, {"checks": 31}],
                         ids=["index", "side by side", "checked"])  # fmt: skip
def test_a_fault_in_the_middle_of_a_grid(module, threads, order):
    kernel, looker = module.kernel("mark_and_store"), module.kernel("look_around")
    out = np.zeros(64 * 8, np.uint32)
    with pytest.raises(SimulatorError) as caught:
        kernel.launch(pointers(out, 3), {"out": out}, grid=[8], threads=threads, **order)
    text = str(caught.value)
    assert (
        f"hip error {LAUNCH_FAILURE}: hipkittens_launch_bounded: kernel mark_and_store, workgroup (3, 0, 0), wave 0"
        in text
    )
    assert "global_store_dword" in text and "store outside the memory of this launch; lane 0" in text
    assert "; nearest allocation '" in text
    groups = out.reshape(8, 64)
    assert (groups[3] == 0).all()
    for number in set(range(8)) - {3}:  # complete or not begun
        assert (groups[number] == number + 1).all() or (groups[number] == 0).all()
    # HIP reports a fault as an error of the call that waits for it; here that is the launch, and no later call reports it again.
    lib = library()
    assert lib.hipGetLastError() == LAUNCH_FAILURE and lib.hipGetLastError() == 0
    assert lib.hipDeviceSynchronize() == 0
    seen = np.ones(64, np.uint32)
    looker.launch(pointers(seen), {"seen": seen}, threads=threads)
    assert (seen == 0).all(), "LDS or registers of the launch before"
    kernel.launch(pointers(out, 99), {"out": out}, grid=[8], threads=threads, **order)
    assert (groups == np.arange(1, 9, dtype=np.uint32)[:, None]).all()


@pytest.mark.parametrize("size", [(1 << 47) + 1, 2**63, 2**64 - 1, 2**64 - 4096, 1 << 46])
def test_an_absurd_allocation_is_out_of_memory(size):
    lib = library()
    pointer = ctypes.c_void_p(1)
    assert lib.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == OUT_OF_MEMORY
    assert re.search(rf"hipMalloc: .*{size} bytes", lib.hipkittens_last_error().decode())
    assert pointer.value == 1  # as it was
    assert lib.hipGetLastError() == OUT_OF_MEMORY and lib.hipGetLastError() == 0
    assert lib.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0 and lib.hipFree(pointer) == 0


def test_more_lds_than_there_is(module):
    out = np.zeros(64, np.uint32)
    with pytest.raises(
        SimulatorError,
        match=rf"hip error {OUT_OF_RESOURCES}: .*4096 bytes of static and 200000 of dynamic LDS",
    ):
        module.kernel("look_around").launch(pointers(out), {"out": out}, shared_bytes=200000)


def test_a_large_frame_runs(module):
    out = np.zeros(64, np.uint32)
    module.kernel("large_frame").launch(pointers(out, 12345), {"out": out})
    assert (out == np.arange(64)).all()


LIMITED = """
import resource, torch, hipkittens
torch.set_num_threads(1)
eye = torch.eye(32, dtype=torch.bfloat16)
big = torch.ones(1, 1, dtype=torch.bfloat16).expand(1 << 15, 1 << 15)
assert torch.equal(hipkittens.matmul(eye, eye), eye)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
try:
    hipkittens.matmul(big, big)      # 2 GiB of results
except RuntimeError as error:
    print(str(error).splitlines()[0])
with hipkittens.simulate(threads=200):  # stacks for fewer: the threads there are do the work
    rows = torch.ones(64 * 256, 64, dtype=torch.bfloat16)
    assert torch.equal(hipkittens.matmul(rows[:, :32], eye), rows[:, :32])
assert torch.equal(hipkittens.matmul(eye, eye), eye)
"""


def test_without_memory_torch_says_so_and_the_next_call_works():
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == "hipkittens: torch has no 2147483648 bytes for a result; free memory, or make the call smaller\n"
    )


def test_a_limit_of_instructions_holds_in_its_context(module):
    kernel, flag = module.kernel("wait_for_ever"), np.zeros(64, np.uint32)
    with (
        hipkittens.simulate(instruction_limit=1000),
        pytest.raises(SimulatorError, match=r"(?s)stopped by the watchdog after .*wave 0, at entry\+"),
    ):
        kernel.launch(pointers(flag), {"flag": flag})
    assert _library.simulator_settings()["instruction_limit"] == 0


@pytest.mark.parametrize("value", [-1, 2**64, 1.5, "many"])
def test_limits_are_checked(value):
    with pytest.raises(ValueError, match=r"hipkittens\.simulate: instruction_limit is"):
        hipkittens.simulate(instruction_limit=value)
