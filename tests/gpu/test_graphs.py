# SPDX-License-Identifier: MIT
"""Steps captured into graphs and replayed."""

import os
import subprocess
import sys

import torch

import hipkittens
from tests.gpu.conftest import drawn
from tests.gpu.test_gpu_operations import Block, step


def warmed(function):
    """Run a few times on a side stream before a capture, as PyTorch's documentation recommends."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)


def test_a_forward_and_a_backward_are_captured():
    torch.manual_seed(0)
    block, given = Block(), drawn(2, 48, 128)
    hipkittens.load("rms_norm", "linear", "attention")
    warmed(lambda: step(block, given))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step(block, given)
    for seed in (3, 4, 5):
        x = drawn(2, 48, 128, seed=seed)
        given.copy_(x)
        graph.replay()
        torch.cuda.synchronize()
        for found, expected in zip(captured, step(block, x), strict=True):
            assert torch.equal(found, expected)


def test_graphed_callables():
    torch.manual_seed(0)
    block = Block()
    expected = [step(block, drawn(2, 48, 128, seed=seed)) for seed in (3, 4)]
    graphed = torch.cuda.make_graphed_callables(block, (drawn(2, 48, 128).requires_grad_(),))
    for seed, results in zip((3, 4), expected, strict=True):
        for found, right in zip(step(graphed, drawn(2, 48, 128, seed=seed)), results, strict=True):
            assert torch.equal(found, right)


def test_compiled_graphs():
    torch.manual_seed(0)
    block = Block()
    compiled = torch.compile(block, mode="reduce-overhead")
    for seed in range(4):
        x = drawn(2, 64, 128, seed=seed)
        torch.compiler.cudagraph_mark_step_begin()
        found = [each.clone() for each in step(compiled, x)]
        for value, expected in zip(found, step(block, x), strict=True):
            assert (
                value.float() - expected.float()
            ).abs().max() <= 2**-6 * expected.float().abs().max().clamp(min=1e-3)


CAPTURES_AT_ONCE = """
import torch, hipkittens
from tests.gpu import connection
connection.connect_as_parent()
x = torch.ones(4, 64, dtype=torch.bfloat16, device="cuda")
torch.cuda.synchronize()
with torch.cuda.graph(torch.cuda.CUDAGraph()):
    hipkittens.softmax(x)
"""


def test_a_capture_that_would_have_to_load_says_so():
    done = subprocess.run(
        [sys.executable, "-c", CAPTURES_AT_ONCE], capture_output=True, text=True, timeout=120
    )
    assert done.returncode != 0
    assert "is not loaded on" in done.stderr and "hipkittens.load()" in done.stderr


PLAIN = """
import torch, hipkittens
hipkittens.softmax(torch.ones(4, 64, device="cuda"))
"""


def test_without_this_library_a_cuda_tensor_is_refused():
    environment = {name: value for name, value in os.environ.items() if name != "HIPKITTENS_LIBHIP_PATH"}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode != 0
    assert "hipkittens.softmax: x is on cuda:0, a GPU of NVIDIA's" in done.stderr and ".cpu()" in done.stderr
