# SPDX-License-Identifier: MIT
"""APEX's fused_weight_gradient_mlp_cuda as Megatron's linear layers call it."""

import sys
import types

import pytest
import torch

import hipkittens
from hipkittens.integrations import weight_gradients


@pytest.fixture
def installed():
    weight_gradients.install()
    yield
    weight_gradients.uninstall()
    assert weight_gradients.MODULE not in sys.modules


@pytest.mark.parametrize("shape", [(40,), (5, 8)])
@pytest.mark.usefixtures("installed")
def test_two_micro_batches(shape):
    import fused_weight_gradient_mlp_cuda

    weight_gradients.install()  # once more does nothing
    generator = torch.Generator().manual_seed(0)
    main_grad = torch.nn.Parameter(torch.zeros(24, 32))
    expected = torch.zeros(24, 32)
    for _ in range(2):
        total_input, grad_output = (
            torch.randint(-4, 5, (*shape, size), generator=generator).bfloat16() for size in (32, 24)
        )
        with hipkittens.simulate("gfx942", checks=True):
            fused_weight_gradient_mlp_cuda.wgrad_gemm_accum_fp32(total_input, grad_output, main_grad)
        expected += grad_output.flatten(0, -2).float().t() @ total_input.flatten(0, -2).float()
    assert torch.equal(main_grad, expected)


def test_another_extension_stays(monkeypatch):
    theirs = types.ModuleType(weight_gradients.MODULE)
    monkeypatch.setitem(sys.modules, weight_gradients.MODULE, theirs)
    with pytest.raises(ImportError, match="of its own; uninstall it"):
        weight_gradients.install()
    weight_gradients.uninstall()
    assert sys.modules[weight_gradients.MODULE] is theirs
