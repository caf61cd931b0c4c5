# SPDX-License-Identifier: MIT
"""vLLM 0.33.0's layer of multi-head latent attention with our backends for decoding and prefill, through its plugin, with every checker on.

Relative to float64 with the same rounded inputs and cache, errors are at most twice those of PyTorch's operations in the same dtype.
"""

import pytest
import torch

from tests.oracles import vllm_mla_layers, vllm_packages
from tests.oracles.vllm_mla_layers import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(vllm_packages.missing()), reason=vllm_packages.missing()),
]
CASES = {
    "decoding": {"decodes": (1, 16, 17, 300)},
    "128 heads": {"decodes": (40, 129), "heads": 128},
    "several tokens": {"decodes": (3, 70), "each": 3},
    "float16, blocks of 1": {"decodes": (33, 5), "dtype": torch.float16, "block": 1},
    "8-bit cache": {"decodes": (31, 200), "cache": "fp8"},
    "prefill": {"prefills": (1, 65, 200)},
    "both": {"decodes": (20, 90), "prefills": (17, 64)},
    "both, 8-bit cache": {"decodes": (20, 90), "prefills": (17, 64), "cache": "fp8_e4m3", "block": 64},
}


@pytest.fixture(scope="module")
def process():
    with vllm_packages.process() as found:
        yield found


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", CASES)
def test_layer(process, target, name):
    found = process.submit(vllm_mla_layers.run, Case(target, **CASES[name])).result()
    assert found["findings"] == [] and found["written"]
    for error, allowed in zip(found["errors"], found["allowed"], strict=True):
        assert error <= 2 * allowed


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_context(process, target):
    found = process.submit(vllm_mla_layers.context, target).result()
    ours, theirs, lse = found["errors"]
    assert found["findings"] == [] and ours <= 2 * theirs and lse <= 1e-5


def test_what_is_refused(process):
    said = process.submit(vllm_mla_layers.refusals).result()
    assert said.pop("devices") == [False, True, True]
    assert said.pop("sizes") == [True, True, False, False]
    reasons = {
        "sliding_window": "sliding_window is not supported",
        "kv_cache_dtype": "kv_cache_dtype fp8_ds_mla",
        "attn_type": "attn_type encoder",
        "kv_lora_rank": "latents of 256 and rotary keys of 64",
    }
    assert said.keys() == reasons.keys() and all(reasons[name] in said[name] for name in reasons)
