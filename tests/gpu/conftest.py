# SPDX-License-Identifier: MIT
"""Devices of type "cuda", and streams, graphs and ranks as PyTorch sees them, on real GPUs: NVIDIA GPUs, with the simulator running the
kernels.

    [HIPKITTENS_ARCH=gfx950] python -m pytest tests/gpu

in a process of its own, on a machine with an NVIDIA GPU, a CUDA build of PyTorch and nvcc; elsewhere all of it is skipped.
"""

import pytest
import torch

import hipkittens
from hipkittens import _environment
from tests.gpu import connection

TARGET = _environment.ARCH.read()


@pytest.fixture(scope="session", autouse=True)
def library(tmp_path_factory):
    if reason := connection.missing():
        pytest.skip(reason)
    built = connection.build(tmp_path_factory.mktemp("hip_on_cuda"))
    connection.connect(built, TARGET)
    return built


@pytest.fixture(autouse=True)
def every_kernel_ran(library):
    yield
    torch.cuda.synchronize()
    assert connection.failure() == ""


@pytest.fixture
def simulated():
    """A function's results for the same tensors on the CPU, to which the GPU's are bitwise equal."""

    def call(function, *tensors):
        with hipkittens.simulate(TARGET):
            return function(*(each.detach().cpu().requires_grad_(each.requires_grad) for each in tensors))

    return call


def drawn(*shape, seed=0, dtype=torch.bfloat16, device="cuda"):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(device)


def late(value):
    """A tensor with the value written a tenth of a second after the current stream reaches the write; until then it holds zeros."""
    written = torch.zeros_like(value)
    torch.cuda.current_stream().synchronize()
    torch.cuda._sleep(200_000_000)
    return written.copy_(value)
