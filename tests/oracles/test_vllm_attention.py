# SPDX-License-Identifier: MIT
"""vLLM 0.33.0's own Python with our attention backend, every checker on: its plugins and registry, its layer `Attention`, configuration,
forward context, metadata and views of caches, with the batches of its tests/v1/attention/test_attention_backends.py.

Those tests take numbers of heads from models on the hub; only the numbers are used here. The reference is float64 attention to the same
rounded keys and values; for quantized caches, to their dequantized values. Errors are at most twice those of PyTorch's operations in
float32, rounded once. Every request's blocks are shuffled, and every byte of the caches that belongs to no key has all bits set before and
after.
"""

import dataclasses

import pytest
import torch

from tests.oracles import vllm_attention_batches as batches
from tests.oracles import vllm_packages
from tests.oracles.vllm_attention_batches import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(vllm_packages.missing()), reason=vllm_packages.missing()),
]
TARGETS = pytest.mark.parametrize("target", ["gfx942", "gfx950"])
# Under vLLM's names: keys of each request, and new tokens of each.
BATCHES = {
    "small_decode": ((32, 40), (1, 1)),
    "small_prefill": ((32, 40), (8, 8)),
    "mixed_small": ((32, 40, 48, 56), (1, 1, 5, 5)),
    "medium_decode": ((128, 256, 512, 1024) * 2, (1,) * 8),
    "medium_prefill": ((256, 512, 1024, 2048), (16,) * 4),
    "mixed_medium": ((512, 1024, 2048) * 2, (1, 1, 1, 7, 7, 7)),
    "large_decode": ((2048,) * 32, (1,) * 32),
    "large_prefill": ((4096,) * 8, (32,) * 8),
    "mixed_large": ((1024, 2048, 4096) * 2, (1, 1, 1, 32, 32, 32)),
    "single_decode": ((1024,), (1,)),
    "single_prefill": ((1024,), (64,)),
    "small_encoder_prefill": ((32, 64, 128, 256),) * 2,
    "medium_encoder_prefill": ((256, 512, 1024, 2048),) * 2,
}
CAUSAL = [name for name in BATCHES if "encoder" not in name and name != "mixed_large"]
WINDOWED = ["small_decode", "small_prefill", "mixed_medium", "large_decode", "large_prefill", "mixed_large"]
ENCODERS = ["small_encoder_prefill", "medium_encoder_prefill"]
HALF = {"dtype": torch.float16, "cache": "auto"}
# In addition to the cases of vLLM's tests.
SCORES = {
    "softcap": {"softcap": 20.0},
    "alibi": {"alibi": True},
    "sinks": {"sinks": True},
    "window": {"window": 20},
    "all": {"softcap": 5.0, "alibi": True, "sinks": True, "window": 30},
    "not causal": {"causal": False},
    "window to both sides": {"causal": False, "window": 20, "sinks": True},
    "64 features": {"head_size": 64, "heads": 8, "key_heads": 1},
    "256 features": {"head_size": 256, "heads": 8, "key_heads": 4, "softcap": 50.0},
    "float16": HALF,
    "a head of keys for each": {"heads": 4, "key_heads": 4},
    "64 heads on 8": {"heads": 64, "key_heads": 8, "head_size": 64, "sinks": True, "window": 128},
}
LAYOUTS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
CACHES = ["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_per_token_head", "int8_per_token_head"]


@pytest.fixture(scope="module")
def process():
    with vllm_packages.process() as found:
        yield found


def check(process, case):
    outcome = process.submit(batches.run, case).result()
    assert outcome.findings == [] and outcome.finite and outcome.written
    for error, allowed in zip(outcome.errors, outcome.allowed, strict=True):
        assert error <= 2 * allowed
    return outcome


@TARGETS
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("batch", CAUSAL)
def test_batches(process, target, batch, parts):
    """32 query heads and 8 key heads, as in Llama 3 8B, on 1, 2 and 4 GPUs."""
    check(process, Case(target, *BATCHES[batch], heads=32 // parts, key_heads=8 // parts))


@TARGETS
@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("batch", WINDOWED)
def test_batches_with_a_window(process, target, batch, parts):
    check(process, Case(target, *BATCHES[batch], heads=16 // parts, key_heads=4 // parts, window=2047))


@TARGETS
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("batch", ENCODERS)
def test_batches_of_encoders(process, target, batch, parts):
    """3 query heads and 1 key head, of 256 features, with a window to both sides."""
    case = Case(
        target, *BATCHES[batch], 3 // parts, 1, 256, window=257, causal=False, kind=batches.ENCODER_ONLY
    )
    check(process, case)


@TARGETS
@pytest.mark.parametrize("block", [8, 16, 64, 544])
@pytest.mark.parametrize("name", SCORES)
def test_scores_heads_and_blocks(process, target, name, block):
    """Including requests of one token, of one token more than a block, and of new tokens only."""
    lengths, queries = (1, block + 1, 40, 600, 33), (1, 1, 40, 17, 5)
    changes = {"heads": 8, "key_heads": 2} | SCORES[name]
    check(process, Case(target, lengths, queries, block=block, **changes))


@TARGETS
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("cache", CACHES)
def test_caches(process, target, cache, layout):
    dtype = torch.float16 if cache == "auto" else torch.bfloat16
    case = Case(target, *BATCHES["mixed_small"], 16, 4, dtype=dtype, cache=cache, layout=layout)
    check(process, case)
    check(process, dataclasses.replace(case, lengths=(700, 31), queries=(3, 31), head_size=64, window=100))


def test_the_bar_sees_a_key_that_is_missing(process):
    case = Case("gfx950", *BATCHES["mixed_small"], 8, 2)
    outcome = process.submit(batches.run, case, hidden=1).result()
    assert outcome.errors[0] > 10 * outcome.allowed[0] and outcome.errors[1] > 10 * outcome.allowed[1]


def test_what_is_refused(process):
    expected = [
        "head_size 80; 64, 128 and 256 are allowed",
        "kv_cache_dtype 'nvfp4'; auto, float16, bfloat16, fp8, fp8_e4m3, fp8_per_token_head, int8_per_token_head are allowed",
        "attn_type 'encoder_decoder'",
        "chunk_lookback; sinks alone is allowed",
        "num_heads 8 is no multiple of num_kv_heads 3",
        "sinks has shape (3,); (8,) is allowed",
        "head_size not supported",
        "dtype not supported",
        "kv_cache_dtype not supported",
        "a cache of torch.float16 beside a model of torch.bfloat16",
        "block_size not supported",
        "MLA not supported",
        "partial multimodal token full attention not supported",
        "per-head quant scales not supported",
        "compute capability not supported",
        "attention type encoder_decoder not supported",
        "batch invariance not supported",
        "DCP not supported",
    ]
    said = process.submit(batches.refusals).result()
    assert len(said) == len(expected)
    for text, part in zip(said, expected, strict=True):
        assert part in text
