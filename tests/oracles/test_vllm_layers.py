# SPDX-License-Identifier: MIT
"""RMSNorm and RotaryEmbedding of vLLM 0.33.0, replaced through its plugin, compared with its own, and enabled by the same names."""

import pytest

from tests.oracles import vllm_layers, vllm_packages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(vllm_packages.missing()), reason=vllm_packages.missing()),
]


@pytest.fixture(scope="module")
def process():
    with vllm_packages.process() as found:
        yield found


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_norms_and_rotary_embeddings(process, target):
    found = process.submit(vllm_layers.run, target).result()
    assert found["types"] == {"HipKittensRMSNorm", "HipKittensRotaryEmbedding"}
    assert found["methods"] == {"forward_cuda"} and found["findings"] == []
    assert found["worst"] <= 2  # both round to bfloat16, vLLM's rotary embedding also its products
