# SPDX-License-Identifier: MIT
"""vLLM's RMSNorm and RotaryEmbedding as its plugin replaces them, in a process of `vllm_packages`."""

from __future__ import annotations

import torch

import hipkittens


def run(target: str) -> dict[str, object]:
    """For layers that vLLM builds with its custom operators enabled: the names of the methods that it chose, the largest differences
    from its own forward_native, in units of its results' spacing, and findings."""
    from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    enabled = CompilationConfig(custom_ops=["none", "+rms_norm", "+rotary_embedding"])
    config = VllmConfig(device_config=DeviceConfig("cpu"), compilation_config=enabled)
    dtype = torch.bfloat16
    with set_current_vllm_config(config):
        norm, partly = RMSNorm(256, dtype=dtype), RMSNorm(256, var_hidden_size=64, dtype=dtype)
        ropes = [
            get_rope(64, 512, neox, {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": part}, dtype)
            for neox in (True, False) for part in (1.0, 0.5)
        ]  # fmt: skip
    random = torch.Generator().manual_seed(0)
    x, residual, query, key = (torch.randn(7, n, generator=random).to(dtype) for n in (256, 256, 256, 64))
    norm.weight.data.copy_(torch.randn(256, generator=random))
    positions = torch.tensor([3, 0, 511, 5, 5, 2, 100])
    calls = [(norm, (x,)), (norm, (x, residual)), (partly, (x,))]
    for rope in ropes:
        calls += [(rope, (positions, query, key)), (rope, (positions, query))]
    worst = 0.0
    with torch.inference_mode(), hipkittens.simulate(target, checks="all") as launches:
        for layer, given in calls:
            ours, theirs = (
                method(*(each.clone() for each in given)) for method in (layer, layer.forward_native)
            )
            for one, other in zip(ours, theirs, strict=True):
                if one is not None:
                    spacing = torch.finfo(dtype).eps * other.float().abs().clamp(min=1)
                    worst = max(worst, float(((one.float() - other.float()).abs() / spacing).max()))
    return {
        "types": {type(layer).__name__ for layer, _ in calls},
        "methods": {layer._forward_method.__qualname__.split(".")[-1] for layer, _ in calls},
        "worst": worst,
        "findings": [str(each) for each in launches.findings],
    }
