# SPDX-License-Identifier: MIT
"""hipkittens.load, as graph capture requires it: a call of loaded kernels does nothing but launch."""

import subprocess
import sys

import pytest
import torch

import hipkittens
from hipkittens import _installation, _simulator, operations
from tests.host_build import ROOT, build

# A GPU that records what is requested of it, with the CPU's memory: FAKE_HIP_CAPTURES is read again at every call.
PROGRAM = """
import os, sys
import torch, hipkittens
from hipkittens import _library

_library.operators().hipkittens_torch_set_gpu_of_cpu_tensors(0)
q, k, v = (torch.randn(1, 64, 2, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
w = torch.randn(128, dtype=torch.bfloat16, requires_grad=True)

def step():
    out = hipkittens.rms_norm(hipkittens.attention(q, k, v, causal=True).flatten(2), w)
    return torch.autograd.grad(hipkittens.linear(out, out[0].detach()).float().sum(), [q, k, v, w])

def capture():
    os.environ["FAKE_HIP_CAPTURES"] = "1"
    open(os.environ["FAKE_HIP_LOG"], "w").close()
    try:
        step()
    except RuntimeError as error:
        print(error)
    del os.environ["FAKE_HIP_CAPTURES"]

if sys.argv[1] == "load":
    library = _library.operators()
    for entry in hipkittens._installation.pack("gfx942").entries:
        for kernel in entry["kernels"]:
            assert library.hipkittens_runtime_load_kernel(0, b"", kernel["symbol"].encode()) == 0
elif sys.argv[1] == "warm":
    step()
capture()
"""


@pytest.fixture(scope="module")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("fake") / "libamdhip64.so"
    return build(path, ["tests/runtime/fake_amdhip64.cpp"], "-shared", "-fvisibility=hidden")


def run(fake, folder, way):
    log = folder / "calls.txt"
    environment = {"HIPKITTENS_LIBHIP_PATH": str(fake), "FAKE_HIP_LOG": str(log), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, way],
        env=environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, [line.split()[0] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("way", ["warm", "load"])
def test_a_captured_step_only_launches(fake, tmp_path, way):
    said, calls = run(fake, tmp_path, way)
    assert not said
    assert set(calls) == {"hipGetDevice", "hipModuleLaunchKernel"}
    assert calls.count("hipModuleLaunchKernel") > 6  # forward and backward


def test_a_capture_that_would_load_says_what_to_do(fake, tmp_path):
    said, calls = run(fake, tmp_path, "cold")
    assert "is not loaded on Fake Instinct (gfx942) yet" in said
    assert "run the call once before the capture, or hipkittens.load()" in said
    assert not [call for call in calls if call.startswith("hipModule")]


def test_kernels_of_a_function_and_of_all():
    counts = [hipkittens.load(name) for name in ("topk", "rotary")]
    assert hipkittens.load("topk", "rotary", device="cpu") == sum(counts)
    assert hipkittens.load("matmul") == hipkittens.load("linear", "matmul")  # the same kernels
    with hipkittens.simulate("gfx950"):
        every = hipkittens.load()
    folders = {operation.folder for operation in operations.every()}
    assert every == sum(
        len(entry["kernels"])
        for entry in _installation.pack("gfx950").entries
        if entry["operation"] in folders
    )


def test_functions_made_of_others_load_what_they_launch():
    """Whole operations: moe is a sort, row moves, products, gates and, with 8-bit weights, casts, in five folders."""
    parts = ("expert_sort", "expert_gather", "grouped_matmul", "gated_activation", "quantize")
    assert hipkittens.load("moe") == hipkittens.load(*parts) == sum(map(hipkittens.load, parts))
    assert hipkittens.load("router_top1") == hipkittens.load("matmul") + hipkittens.load("router")
    assert hipkittens.load("float8_linear") == hipkittens.load("quantize", "scaled_matmul")
    assert hipkittens.load("linear_cross_entropy") == hipkittens.load("cross_entropy", "matmul")


@pytest.mark.parametrize(
    "function",
    [each for operation in operations.every() for each in operation.functions],
    ids=lambda f: f.name,
)
def test_a_function_launches_kernels_of_its_folders_alone(function):
    """Those of its usual call and, where it has one, of its gradient."""
    (operation,) = (each for each in operations.every() if function in each.functions)
    home = {
        kernel["symbol"]: entry["operation"]
        for entry in _installation.pack("gfx950").entries
        for kernel in entry["kernels"]
    }

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.zeros(shape, dtype=dtype)

    with hipkittens.simulate("gfx950"):
        arguments = function.arguments(tensor, torch.bfloat16)
        _simulator.record_launches(True)
        try:
            function.function(*arguments, **function.options)
            try:
                leaf = arguments[0].clone().requires_grad_()
                result = function.function(leaf, *arguments[1:], **function.options)
                (result[0] if isinstance(result, tuple) else result).sum().backward()
            except (NotImplementedError, RuntimeError, ValueError):
                pass  # it has no derivative
            launched = {home[launch["kernel"]] for launch in _simulator.recorded_launches()}
        finally:
            _simulator.record_launches(False)
    assert launched and launched <= operations.folders(operation)


@pytest.mark.parametrize(
    ("names", "device", "error"),
    [
        (("atention",), None, "there is no function 'atention'; allowed: activation, "),
        ((), "meta", "device is meta; allowed: 'cpu' (simulated), or an AMD GPU"),
        ((), "cuda:1", "device is cuda:1; allowed: 'cpu' (simulated), or an AMD GPU"),
    ],
)
def test_what_is_refused(names, device, error):
    if torch.version.hip and torch.cuda.device_count() > 1 and device == "cuda:1":
        pytest.skip("there is such a GPU")
    with pytest.raises(ValueError) as refused:
        hipkittens.load(*names, device=device)
    assert str(refused.value).startswith(f"hipkittens.load: {error}")
