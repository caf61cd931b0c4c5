# SPDX-License-Identifier: MIT
"""The modular kernel of experts of vLLM 0.33.0 with ours, every checker on, and the method of its layers, which takes them.

Beside float64 with the same rounded operands, errors are at most twice those of PyTorch's operations in the same dtype. Two things of vLLM
are replaced, in `vllm_moe_kernels`: the workspaces of a worker, and what it chooses without us, since it knows nothing for a platform
without a name."""

import pytest
import torch

from tests.oracles import vllm_moe_kernels, vllm_packages
from tests.oracles.vllm_moe_kernels import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(vllm_packages.missing()), reason=vllm_packages.missing()),
]
CASES = {
    "a token": {"tokens": 1},
    "many": {"tokens": 130, "experts": 16, "choices": 4, "hidden": 256, "intermediate": 96},
    "float16": {"tokens": 17, "dtype": torch.float16},
    "gelu": {"tokens": 9, "activation": "gelu"},
    "gelu_tanh": {"tokens": 9, "activation": "gelu_tanh"},
    "gpt-oss": {"tokens": 33, "activation": "swigluoai", "bias": True, "choices": 4},
    "biases": {"tokens": 12, "bias": True},
    "other devices' experts": {"tokens": 40, "here": 3},
    "weights on the input": {"tokens": 20, "choices": 1, "weights_on_input": True},
}


@pytest.fixture(scope="module")
def process():
    with vllm_packages.process() as found:
        yield found


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", CASES)
def test_experts(process, target, name):
    found = process.submit(vllm_moe_kernels.run, Case(target, **CASES[name])).result()
    assert found["findings"] == []
    for error, allowed in zip(found["errors"], found["allowed"], strict=True):
        assert error <= 2 * allowed


def test_layers_take_them_where_they_are_enabled(process):
    found = process.submit(vllm_moe_kernels.methods).result()
    assert found.pop("enabled") == "HipKittensExperts"
    assert found == dict.fromkeys(("not enabled", "lora", "float32", "limit"), "object")
