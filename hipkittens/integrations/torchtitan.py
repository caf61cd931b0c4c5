# SPDX-License-Identifier: MIT
"""TorchTitan's RMSNorm on hipkittens.rms_norm, as an override for the command line:

    --override.imports hipkittens.integrations.torchtitan.rms_norm

TorchTitan 0.3.0's Qwen3 and DeepSeek-V3 debug models with experts have been run with it, forward, backward and in training under
TorchTitan's FSDP, on the CPU with the simulator (tests/oracles/test_torchtitan.py). **Not run: its trainer and command line, and anything
on a GPU.** Importing requires TorchTitan.

Nothing else needs an override. Attention is `varlen_attn`, which `varlen.activate()` redirects to us, in models created with
attn_backend="varlen"; its default, flex_attention, calls no operator that we provide. The experts' GEMMs are `torch._grouped_mm`, which
`grouped_mm.activate()` redirects to us; their tokens are sorted and added by PyTorch, within dispatchers that also exchange them among
ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtitan.config import derive, override
from torchtitan.models.common import RMSNorm

from .. import nn
from . import dtensor


class HipKittensRMSNorm(RMSNorm):
    """TorchTitan's module with only its computation replaced. DTensors are passed as they are."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def __init__(self, config: Config):
        super().__init__(config)
        dtensor.register()

    forward = nn.RMSNorm.forward


# Subclasses of RMSNorm compute something else, such as (1 + weight).
@override(target=RMSNorm.Config, exact=True, description="RMSNorm on prebuilt AMD kernels")
def rms_norm(config: RMSNorm.Config) -> HipKittensRMSNorm.Config:
    return derive(config, HipKittensRMSNorm.Config)
