# SPDX-License-Identifier: MIT
"""Small GPT models of Megatron Core 0.16.1 with our CoreAttention, its grouped experts on our grouped_gemm, and its
gradient_accumulation_fusion on our fused_weight_gradient_mlp_cuda, all checkers on.

Relative to float64, errors are at most twice those of Megatron's own DotProductAttention and SequentialMLP in bfloat16.
`megatron_packages` describes what is added to Megatron.
"""

import pytest

from hipkittens._accuracy import BAR
from tests.oracles import megatron_models, megatron_packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(megatron_packages.missing()), reason=megatron_packages.missing()),
]
LAYERS = 2


@pytest.fixture(scope="module")
def process():
    with megatron_packages.process() as found:
        yield found


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    return request.param


def count(found, text):
    return sum(number for kernel, number in found["launches"].items() if text in kernel)


def check(found, experts):
    """Attention of each layer and every product of its experts ran on our kernels, and is within its error bound of float64."""
    assert found["findings"] == []
    times = len(megatron_models.SEEDS)
    assert count(found, "attention_forward") == count(found, "attention_backward_delta") == times * LAYERS
    # For each of two products: itself, and the gradients of both of its operands.
    products = [count(found, f"gemm_grouped_{kind}_") for kind in ("nn", "nt", "tn")]
    assert products == [2 * times * LAYERS * experts] * 3
    worst = max(found["ratios"].items(), key=lambda each: max(each[1]))
    assert max(worst[1]) <= BAR, worst


def test_core_attention(process, target):
    found = process.submit(megatron_models.gradients, target).result()
    assert "CoreAttention" in found["modules"] and "DotProductAttention" not in found["modules"]
    check(found, experts=0)


def test_sliding_windows(process, target):
    found = process.submit(megatron_models.gradients, target, window_size=(5, 0)).result()
    check(found, experts=0)


@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
def test_experts(process, target, dispatcher):
    found = process.submit(
        megatron_models.gradients, target, experts=True, moe_token_dispatcher_type=dispatcher
    ).result()
    assert found["same_experts"]
    assert "GroupedMLP" in found["modules"] and "SequentialMLP" not in found["modules"]
    check(found, experts=1)


@pytest.mark.parametrize("experts", [False, True])
def test_gradients_summed_by_the_product(process, target, experts):
    """Two micro-batches in Megatron's DistributedDataParallel. Every linear layer is fused; GroupedMLP does not support that."""
    found = process.submit(megatron_models.fused_accumulation, target, experts=experts).result()
    check(found, experts)
    assert count(found, "gemm_adding_tn") == len(megatron_models.SEEDS) * ((2 if experts else 4) * LAYERS + 1)


def test_packed_sequences(process, target):
    found = process.submit(megatron_models.packed, target).result()
    assert found["findings"] == [] and count(found, "attention_forward") == 3 * LAYERS
    assert found["worst"] <= 2


def test_dropout(process, target):
    found = process.submit(megatron_models.dropout, target).result()
    assert found["findings"] == []
    assert found["differ"] and found["repeated"] and found["ends"]
