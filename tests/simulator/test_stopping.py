# SPDX-License-Identifier: MIT
"""Launches that do not terminate: the watchdog's report, and signals that stop them."""

import os
import re
import signal
import threading
import time

import numpy as np
import pytest

import hipkittens
from hipkittens import _library
from tests.device_compiler import compile_hip
from tests.simulated_device import TARGETS, Module, SimulatorError, pointers

SOURCE = r"""
extern "C" __global__ void barriers_for_ever(volatile uint* flag) {
    while (flag[0] == 0) __builtin_amdgcn_s_barrier();
}

// Wave 1 waits for a flag that nobody writes, the others wait for it at a barrier.
extern "C" __global__ void missing_at_barrier(volatile uint* flag) {
    if (__builtin_amdgcn_readfirstlane(thread_id() / 64) == 1) while (flag[0] == 0);
    __builtin_amdgcn_s_barrier();
}

// Workgroup 0 waits for a flag that workgroup 1 would write if it were launched.
extern "C" __global__ void wait_for_workgroup(volatile uint* flag) {
    if (workgroup_id() == 1) flag[0] = 1;
    while (flag[0] == 0);
}

// Workgroup 0 waits for what nobody writes; the others end.
extern "C" __global__ void first_waits(volatile uint* flag) {
    if (workgroup_id() == 0) while (flag[0] == 0);
}

extern "C" __global__ void some_turns(uint* out, uint turns) {
    uint sum = 0;
    for (uint i = 0; i < turns; ++i) { sum += i ^ thread_id(); asm volatile("" : "+v"(sum)); }
    out[workgroup_id() * 64 + lane_id()] = sum;
}
"""


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return Module(compile_hip(SOURCE, request.param), request.param)


def stopped(module, name, data, arguments=None, **launch):
    with pytest.raises(SimulatorError) as caught:
        module.kernel(name).launch(arguments or pointers(data), {"flag": data}, **launch)
    return str(caught.value)


def right_afterwards(module):
    out = np.zeros(64, np.uint32)
    module.kernel("some_turns").launch(pointers(out, 3), {"out": out})
    lanes = np.arange(64, dtype=np.uint32)
    assert (out == sum((i ^ lanes) for i in range(3))).all()


ORDERS = [{}, {"wave_order_seed": 7}, {"wave_turn": 4}, {"wave_turn": 4, "workgroups_side_by_side": 2}]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(order) or "index")
@pytest.mark.parametrize("name", ["barriers_for_ever", "missing_at_barrier", "wait_for_workgroup"])
def test_the_watchdog_says_who_waits_where(module, name, order):
    flag = np.zeros(64, np.uint32)
    text = stopped(module, name, flag, block=[192], instruction_limit=100000, threads=1, **order)
    assert "stopped by the watchdog after" in text and "raise instruction_limit" in text
    places = re.findall(
        rf"kernel {name}, workgroup \(0, 0, 0\), wave (\d), at entry\+0x[0-9a-f]+: `([^`]+)`(.*)", text
    )
    assert [int(wave) for wave, _, _ in places] == [0, 1, 2]
    waiting = ["waits at a barrier" in rest for _, _, rest in places]
    if name == "missing_at_barrier":
        assert waiting == [True, False, True]
    if name == "wait_for_workgroup":
        assert not any(waiting)
    right_afterwards(module)


def test_a_workgroup_that_another_one_releases_ends(module):
    flag = np.zeros(64, np.uint32)
    module.kernel("wait_for_workgroup").launch(pointers(flag), {"flag": flag}, grid=[2], threads=1)
    assert flag[0] == 1


class Signalled(Exception):
    pass


@pytest.fixture
def signalled_soon():
    def handler(_number, _frame):
        raise Signalled

    before = signal.signal(signal.SIGUSR1, handler)
    timers = []

    def start(after=0.2):
        timers.append(threading.Timer(after, os.kill, (os.getpid(), signal.SIGUSR1)))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("order", [*ORDERS, {"checks": 31}], ids=lambda order: "-".join(order) or "index")
@pytest.mark.parametrize("name", ["barriers_for_ever", "missing_at_barrier"])
def test_a_signal_stops_a_launch(module, name, order, signalled_soon):
    hipkittens.simulate.report()  # opens the controls
    flag, started = np.zeros(64, np.uint32), time.monotonic()
    signalled_soon()
    text = stopped(module, name, flag, block=[192], grid=[3], threads=2, **order)
    assert time.monotonic() - started < 5
    assert f"kernel {name}: interrupted by a signal before workgroup" in text
    assert _library.interruption(RuntimeError("another error")) is None
    error = RuntimeError(text)
    assert isinstance(_library.interruption(error), Signalled) and _library.interruption(error) is None
    right_afterwards(module)


@pytest.mark.parametrize("way", ["signal", "limit"])
def test_a_modelled_launch_stops(module, way, signalled_soon):
    """Even while a worker waits until the cycle model has room for its next workgroup, which comes after the first."""
    flag, limit = np.zeros(64, np.uint32), {"instruction_limit": 10**6} if way == "limit" else {}
    if way == "signal":
        signalled_soon(0.5)
    with hipkittens.timing(("MI300X", "MI355X")[module.device]) as run:
        text = stopped(module, "first_waits", flag, grid=[4000], threads=2, **limit)
    assert ("interrupted by a signal" if way == "signal" else "stopped by the watchdog") in text
    assert run.launches == []
    right_afterwards(module)


def test_a_signal_whose_handler_returns_stops_nothing(module, signalled_soon):
    hipkittens.simulate.report()
    handled, turns = [], 64 * 300_000
    signalled_soon(0.1)
    signal.signal(signal.SIGUSR1, lambda *_: handled.append(time.monotonic()))
    out = np.zeros(64, np.uint32)
    module.kernel("some_turns").launch(pointers(out, turns + 3), {"out": out}, threads=1)
    assert handled and handled[0] < time.monotonic()
    lanes = np.arange(64, dtype=np.uint64)
    rest = sum((turns + i) ^ lanes for i in range(3))
    assert (out == (turns * (turns - 1) // 2 + rest) % 2**32).all()
