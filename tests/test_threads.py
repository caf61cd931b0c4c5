# SPDX-License-Identifier: MIT
"""Several Python threads that launch at once: right results, settings as documented, errors confined to their thread."""

import ctypes

import numpy as np
import pytest
import torch

import hipkittens
from tests.device_compiler import compile_hip
from tests.python_threads import at_once
from tests.simulated_device import TARGETS, Module, SimulatorError, library, pointers

SOURCE = r"""
extern "C" __global__ void fill(uint* out, uint value) { out[workgroup_id() * 64 + thread_id()] = value; }
"""


@pytest.mark.parametrize("checks", [False, "all"])
@pytest.mark.parametrize("target", TARGETS)
def test_operators_in_four_threads(target, checks):
    """`simulate` applies to the process: each thread's calls run under it, forward and backward."""
    inputs = [torch.randn(2, 40, 64).bfloat16() for _ in range(4)]

    def forward_and_backward(number):
        a, b = (tensor.clone().requires_grad_() for tensor in inputs[number])
        out = hipkittens.matmul(a, b.mT)
        norm = hipkittens.rms_norm(out, torch.ones(40, dtype=torch.bfloat16))
        norm.float().square().sum().backward()
        return out.detach(), norm.detach(), a.grad, b.grad

    with hipkittens.simulate(target, checks=checks) as run:
        right = [forward_and_backward(number) for number in range(4)]

        def work(number):
            for _ in range(5):
                assert all(map(torch.equal, forward_and_backward(number), right[number]))

        at_once(4, work)
    assert run.findings == []


def test_targets_streams_settings_and_errors_belong_to_their_thread():
    """Through HIP's ABI: two devices, a stream each, and every second thread's launches fail."""
    codes = {target: compile_hip(SOURCE, target) for target in TARGETS}

    def work(number):
        lib, target = library(), TARGETS[number % 2]
        kernel = Module(codes[target], target).kernel("fill")
        stream = ctypes.c_void_p()
        assert lib.hipStreamCreate(ctypes.byref(stream)) == 0
        data = np.zeros(64 * (2 + number), np.uint32)
        for turn in range(30):
            fails = number >= 2 and turn % 2
            groups = len(data) // 64 + bool(fails)
            launch = (pointers(data, 100 * number + turn), {f"of thread {number}": data})
            if fails:
                with pytest.raises(SimulatorError, match=f"'of thread {number}'"):
                    kernel.launch(*launch, grid=[groups], checks=[0, 31][turn % 2], wave_order_seed=number)
            else:
                report = kernel.launch(*launch, grid=[groups], wave_order_seed=number)
                assert report.workgroups == groups
            assert (data == 100 * number + turn).all()
            device = ctypes.c_int()
            assert lib.hipGetDevice(ctypes.byref(device)) == 0 and TARGETS[device.value] == target
        assert lib.hipStreamSynchronize(stream) == 0 and lib.hipStreamDestroy(stream) == 0

    at_once(4, work)


def test_events_follow_the_order_of_a_stream():
    """Work is done when its call returns: an event recorded after a launch has happened, and later ones come later."""
    lib = library()
    kernel = Module(compile_hip(SOURCE, "gfx942"), "gfx942").kernel("fill")
    stream, data = ctypes.c_void_p(), np.zeros(64 * 64, np.uint32)
    assert lib.hipStreamCreate(ctypes.byref(stream)) == 0
    events = [ctypes.c_void_p() for _ in range(3)]
    for number, event in enumerate(events):
        assert lib.hipEventCreate(ctypes.byref(event)) == 0
        kernel.launch(pointers(data, number), {"data": data}, grid=[64])
        assert lib.hipEventRecord(event, stream) == 0
        assert lib.hipEventQuery(event) == 0 and (data == number).all()
    elapsed = ctypes.c_float()
    for first, second, sign in ((0, 1, 1), (1, 2, 1), (2, 0, -1)):
        assert lib.hipEventElapsedTime(ctypes.byref(elapsed), events[first], events[second]) == 0
        assert elapsed.value * sign > 0
    for event in events:
        assert lib.hipEventDestroy(event) == 0
    assert lib.hipStreamDestroy(stream) == 0
