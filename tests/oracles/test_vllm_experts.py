# SPDX-License-Identifier: MIT
"""vLLM 0.33.0's modular kernel of experts with our experts, and the method of its layers, which selects them, with every checker on.

Relative to float64 with the same rounded operands, errors are at most twice those of PyTorch's operations in the same dtype. Two things of
vLLM are replaced, in `vllm_moe_kernels`: the workspaces of a worker, and what it chooses without us, since it has no choice for a platform
without a name.
"""

import pytest
import torch

from tests.oracles import vllm_moe_kernels, vllm_packages, vllm_scaled_moe
from tests.oracles.vllm_moe_kernels import Case
from tests.oracles.vllm_scaled_moe import ScaledCase

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


LARGE = {"hidden": 256, "intermediate": 128}
SCALED = {
    "blocks": LARGE,
    "blocks, a token": LARGE | {"tokens": 1},
    "blocks, many": {"hidden": 384, "intermediate": 256, "tokens": 70, "experts": 16, "choices": 4},
    "blocks, other devices' experts": LARGE | {"here": 3},
    "blocks, weights on the input": LARGE | {"choices": 1, "weights_on_input": True},
    "tensors": LARGE | {"weights": "tensor", "rows": "tensor"},
    "tensors, rows of tokens": LARGE | {"weights": "tensor"},
    "channels": {"hidden": 192, "intermediate": 96, "weights": "channel", "dtype": torch.float16},
    "gpt-oss": {"hidden": 288, "intermediate": 160, "weights": "mxfp4", "rows": None, "activation": "swigluoai", "bias": True},
    "gpt-oss, a token": LARGE
    | {"weights": "mxfp4", "rows": None, "activation": "swigluoai", "bias": True, "tokens": 1},
    "compressed-tensors' blocks": LARGE | {"checkpoint": "compressed-tensors"},
    "compressed-tensors' channels": LARGE | {"checkpoint": "compressed-tensors", "weights": "channel"},
    "compressed-tensors' int8": {"checkpoint": "compressed-tensors", "weights": "int8", "hidden": 96, "intermediate": 80},
    "compressed-tensors' int8, a token": LARGE | {"checkpoint": "compressed-tensors", "weights": "int8", "tokens": 1, "dtype": torch.float16},
    "Quark's channels": LARGE | {"checkpoint": "quark", "weights": "channel"},
    "Quark's mxfp4": LARGE | {"checkpoint": "quark", "weights": "mxfp4", "rows": None},
    "Quark's mxfp4 rows": LARGE | {"checkpoint": "quark", "weights": "mxfp4", "rows": "mxfp4"},
    "mxfp4 rows": LARGE | {"weights": "mxfp4", "rows": "mxfp4"},
    "mxfp8 rows": LARGE | {"weights": "mxfp4", "rows": "mxfp8"},
}  # fmt: skip
ONLY_GFX950 = {"mxfp4 rows", "mxfp8 rows", "Quark's mxfp4 rows"}


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_experts(process, target, name):
    if target == "gfx942" and name in ONLY_GFX950:
        pytest.skip("the matrix cores of gfx942 take no scales of 32")
    found = process.submit(
        vllm_scaled_moe.run, ScaledCase(target, **({"tokens": 33} | SCALED[name]))
    ).result()
    assert found["findings"] == [] and found["experts"].startswith("HipKittens")
    for error, allowed in zip(found["errors"], found["allowed"], strict=True):
        assert error <= 2 * allowed


def test_selections_give_scaled_experts_where_they_are_enabled(process):
    assert process.submit(vllm_scaled_moe.selected).result() == {
        "blocks": "HipKittensFp8Experts",
        "not enabled": "vLLM's",
        "fixed scales": "vLLM's",
        "lora": "vLLM's",
        "bfloat16 rows": "HipKittensMxfp4Experts",
        "mxfp4 rows": "HipKittensMxfp4RowsExperts",
        "mxfp8 rows": "HipKittensMxfp8RowsExperts",
    }
