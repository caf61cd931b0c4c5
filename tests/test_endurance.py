# SPDX-License-Identifier: MIT
"""Many launches, modules, contexts and findings: no memory, file descriptor or thread leaks."""

import gc
import os

import numpy as np
import pytest
import torch

import hipkittens
from hipkittens import _library
from tests.device_compiler import compile_hip
from tests.simulated_device import TARGETS, Module, SimulatorError, pointers, take_findings

SOURCE = r"""
extern "C" __global__ void add_one(uint* data) { data[workgroup_id() * 64 + thread_id()] += 1; }
extern "C" __global__ void same_dwords(uint* data) { data[thread_id()] = 1; }
"""
MEGABYTE = 1 << 20


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def assert_nothing_grows(action, turns, growth=3 * MEGABYTE):
    """The first tenth of the iterations fills caches that persist between calls."""
    for turn in range(turns // 10):
        action(turn)
    gc.collect()
    files, threads, memory = os.listdir("/proc/self/fd"), os.listdir("/proc/self/task"), resident_bytes()
    for turn in range(turns):
        action(turn)
    gc.collect()
    # Fewer are no error: something left by an earlier test of this process may end meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= len(files)
    assert len(os.listdir("/proc/self/task")) <= len(threads)
    assert resident_bytes() - memory < growth


TURNS = [2000, pytest.param(10000, marks=pytest.mark.slow)]


@pytest.mark.parametrize("turns", TURNS)
def test_calls_of_an_operator(turns):
    a = torch.eye(32, dtype=torch.bfloat16)

    def action(_turn):
        assert torch.equal(hipkittens.matmul(a, a), a)

    with hipkittens.simulate(threads=2):
        assert_nothing_grows(action, turns)


@pytest.mark.parametrize("turns", TURNS)
def test_launches_through_the_hip_abi(turns):
    module = Module(compile_hip(SOURCE, "gfx950"), "gfx950")
    kernel, data = module.kernel("add_one"), np.zeros(128, np.uint32)
    arguments = pointers(data)

    def action(turn):
        kernel.launch(arguments, {"data": data}, grid=[2], threads=1 + turn % 2)

    assert_nothing_grows(action, turns)
    assert (data == turns + turns // 10).all()


def test_modules_that_come_and_go():
    codes = [compile_hip(SOURCE, target) for target in TARGETS]

    def action(turn):
        module, data = Module(codes[turn % 2], TARGETS[turn % 2]), np.zeros(64, np.uint32)
        module.kernel("add_one").launch(pointers(data), {"data": data}, threads=1)
        assert data.all()

    assert_nothing_grows(action, 300)


def test_launches_that_fail():
    kernel = Module(compile_hip(SOURCE, "gfx942"), "gfx942").kernel("add_one")
    data = np.zeros(64, np.uint32)

    def action(_turn):
        with pytest.raises(SimulatorError, match=r"workgroup \(1, 0, 0\)"):
            kernel.launch(pointers(data), {"data": data}, grid=[2], threads=2, checks=31)
        take_findings()

    assert_nothing_grows(action, 500)


def test_contexts_findings_and_recordings():
    control = _library._simulator_control()
    kernel = Module(compile_hip(SOURCE, "gfx942"), "gfx942").kernel("same_dwords")
    a, data = torch.eye(32, dtype=torch.bfloat16), np.zeros(64, np.uint32)

    def action(turn):
        with hipkittens.simulate(TARGETS[turn % 2], checks="all", threads=1) as run:
            hipkittens.matmul(a, a)
            kernel.launch(pointers(data), {"data": data}, grid=[3], checks=2, threads=1)
        assert [finding.kind for finding in run.findings] == ["workgroups_write_after_write"]
        control.record_launches(True, trace=True)
        hipkittens.matmul(a, a)
        assert len(control.recorded_launches()) == 1
        control.record_launches(False)

    try:
        assert_nothing_grows(action, 100)
    finally:
        control.record_launches(True)
        control.record_launches(False)
