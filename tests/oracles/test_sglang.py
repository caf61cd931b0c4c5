# SPDX-License-Identifier: MIT
"""SGLang 0.5.23's attention layer, caches and batches with our attention backend, its runner of experts, its FP8 linear layers
and its RMSNorm, through our plugin, with every checker on.

Relative to float64 with the same cache, the largest error is at most twice that of PyTorch's operations in the same dtype.
"""

import pytest
import torch

from tests.oracles import sglang_batches, sglang_experts, sglang_packages
from tests.oracles.sglang_batches import Case
from tests.oracles.sglang_experts import RunnerCase

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(sglang_packages.missing()), reason=sglang_packages.missing()),
]
# Prefill, a second part of it, decoding.
STEPS = ((1, 17, 255), (3, 1, 40), (1, 1, 1), (1, 1, 1))
CASES = {
    "decoder": {},
    "heads of 64, float16": {"head_size": 64, "heads": 6, "key_heads": 6, "dtype": torch.float16},
    "heads of 256": {"head_size": 256, "heads": 4, "key_heads": 1},
    "gpt-oss": {"head_size": 64, "window": 20, "sinks": True},
    "Gemma 2": {"head_size": 256, "heads": 4, "key_heads": 2, "window": 64, "logit_cap": 30.0},
    "gpt-oss, sliding layers apart": {"head_size": 64, "window": 20, "sinks": True, "apart": True},
    "sliding layers apart, 8-bit cache": {"window": 128, "apart": True, "cache": "fp8"},
    "8-bit cache": {"cache": "fp8"},
    "encoder": {"steps": ((5, 33, 128),), "encoder": True},
    "a request among decoding ones": {"steps": ((20, 7), (1, 65))},
}


@pytest.fixture(scope="module")
def process():
    with sglang_packages.process() as found:
        yield found


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", CASES)
def test_attention(process, target, name):
    found = process.submit(sglang_batches.run, Case(target, **({"steps": STEPS} | CASES[name]))).result()
    assert found["findings"] == [] and found["finite"]
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert ours <= 2 * theirs


def test_what_is_refused(process):
    said = process.submit(sglang_batches.refused).result()
    reasons = {
        "hybrid": "the cache is a SimpleNamespace; use another",
        "layout": "vectorized_5d; allowed: nhd",
        "slots": "more than 2^31 slots; lower --max-running-requests",
        "verify": "speculative decoding",
        "encoder": "got encoder_lens",
        "cross": "cross-attention is not supported",
        "values": "heads of 128 with values of 64",
        "capping": "logit_capping_method is sigmoid",
        "rope": "q_rope not supported",
        "sparse": "topk_indices not supported",
        "latent window": "logit caps and windows",
        "prefix": "heads of 192 with values of 128 are only for new tokens without a prefix",
    }
    assert said.keys() == reasons.keys()
    assert all(reason in said[name] for name, reason in reasons.items())


def test_the_server_knows_the_backend(process):
    assert process.submit(sglang_batches.choices).result().count("hipkittens") == 1


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("cache", [None, "fp8"])
def test_latent_attention(process, target, heads, cache):
    dtype = torch.bfloat16 if heads == 128 else torch.float16
    # Prefill without a prefix, and behind one; decoding.
    steps = ((1, 17, 130), (3, 1, 20), (1, 1, 1))
    case = Case(target, steps, heads=heads, dtype=dtype, cache=cache)
    found = process.submit(sglang_batches.run_latent, case).result()
    assert found["findings"] == []
    for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
        assert ours <= 2 * theirs


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize(
    ("dtype", "quantised"), [(torch.bfloat16, False), (torch.float16, False), (torch.bfloat16, True)]
)
def test_linear(process, target, tokens, dtype, quantised):
    found = process.submit(sglang_batches.linear, target, tokens, dtype, quantised).result()
    assert found["findings"] == [] and found["dtype"] == dtype
    assert found["error"] <= 2 * found["allowed"]


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize(
    ("of_weight", "of_rows"), [("row", "row"), ("row", "fixed"), ("tensor", "row"), ("tensor", "tensor")]
)
def test_scaled_linear(process, target, tokens, of_weight, of_rows):
    found = process.submit(sglang_batches.scaled_linear, target, tokens, of_weight, of_rows).result()
    assert found["findings"] == [] and found["error"] <= 2 * found["allowed"]


LARGE = {"hidden": 256, "intermediate": 128}
EXPERTS = {
    "16 bits": {"weights": "16 bits"},
    "float16, a token": {"weights": "16 bits", "dtype": torch.float16, "tokens": 1},
    "in place, multiplied": {"weights": "16 bits", "inplace": True, "factor": 2.5},
    "gelu": {"weights": "16 bits", "activation": "gelu"},
    "gpt-oss": {"weights": "16 bits", "activation": "swigluoai", "bias": True, "choices": 4},
    "other devices' experts": {"weights": "16 bits", "here": 3},
    "weights on the input": {"weights": "16 bits", "weights_on_input": True, "choices": 1},
    "blocks": LARGE | {"weights": "blocks"},
    "blocks, other devices' experts": LARGE
    | {"weights": "blocks", "here": 3, "factor": 2.5, "inplace": True},
    "channels": LARGE | {"weights": "channel"},
    "tensors": LARGE | {"weights": "tensor", "rows": "tensor"},
    "int8": LARGE | {"weights": "int8"},
}


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", EXPERTS)
def test_experts(process, target, name):
    case = RunnerCase(target, **({"tokens": 33} | EXPERTS[name]))
    found = process.submit(sglang_experts.run, case).result()
    assert found["findings"] == [] and found["overwritten"] == case.inplace
    for error, allowed in zip(found["errors"], found["allowed"], strict=True):
        assert error <= 2 * allowed


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_norms(process, target):
    found = process.submit(sglang_batches.norms, target).result()
    assert found["findings"] == [] and found["calls"] == 2 and found["worst"] <= 2
