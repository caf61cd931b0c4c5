# SPDX-License-Identifier: MIT
"""TorchTitan 0.3.0's debug models with experts, its code unchanged, with our RMSNorm (by its own overrides), varlen_attn and grouped
products.

Relative to float64, errors are at most twice those of TorchTitan on PyTorch's own operators, in bfloat16. `torchtitan_models` describes
what those two need on a CPU.
"""

import pytest

from hipkittens._accuracy import BAR
from tests.oracles import torchtitan_models, torchtitan_packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(torchtitan_packages.missing()), reason=torchtitan_packages.missing()),
]
# Numbers of layers with experts and with attention, and of norms.
COUNTS = {"qwen3": (2, 2, 9), "deepseek_v3": (1, 2, 7)}


@pytest.fixture(scope="module")
def process():
    with torchtitan_packages.process() as found:
        yield found


def check_launches(found, name, times=1):
    """Every product of experts, attention and norm is ours, forward and backward."""
    experts, layers, norms = (times * each for each in COUNTS[name])
    assert found["findings"] == [] and found["passed_on"] == []

    def of(text):
        return sum(number for kernel, number in found["launches"].items() if text in kernel)

    # For each of three products: itself, and the gradients of both of its operands.
    assert [of(f"gemm_grouped_{kind}_") for kind in ("nt", "nn", "tn")] == [3 * experts] * 3
    assert of("attention_forward") == of("attention_backward_delta") == layers
    assert of("norm_rms") == of("norm_backward") == norms


def check_ratios(found):
    worst = max(found["ratios"].items(), key=lambda each: max(each[1]))
    assert max(worst[1]) <= BAR, worst


def test_the_override_is_found_by_its_name(process):
    replaced = process.submit(torchtitan_models.replaced, "qwen3").result()
    assert len(replaced) == 1 + 3 * torchtitan_models.LAYERS  # those of queries and of keys are made from one
    assert all(
        torchtitan_models.OVERRIDE in line and line.endswith("HipKittensRMSNorm.Config") for line in replaced
    )


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", COUNTS)
def test_gradients(process, name, target):
    found = process.submit(torchtitan_models.gradients, name, target).result()
    assert found["same_experts"]
    assert (found["norms"], found["other_norms"]) == (COUNTS[name][2], 0)
    check_launches(found, name)
    check_ratios(found)


@pytest.mark.parametrize(("name", "target"), [("qwen3", "gfx950"), ("deepseek_v3", "gfx942")])
def test_training(process, name, target):
    """Three steps of TorchTitan's FSDP, which provides the parameters in bfloat16."""
    steps = 3
    found = process.submit(torchtitan_models.training, name, target, steps).result()
    check_launches(found, name, steps)
    check_ratios(found)
    exact, _, mine = found["losses"]
    assert mine[-1] < mine[0] - 0.1
    # One bfloat16 rounding of the loss: for a single number, twice eager's error would be a matter of chance.
    assert all(abs(one - other) <= 2.0**-8 * other for one, other in zip(mine, exact, strict=True))
