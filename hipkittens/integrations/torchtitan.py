# SPDX-License-Identifier: MIT
"""TorchTitan's RMSNorm on hipkittens.rms_norm, as an override that the command line names:

    --override.imports hipkittens.integrations.torchtitan.rms_norm

Written against torchtitan/overrides/README.md and torchtitan/models/common/rmsnorm.py (github.com/pytorch/torchtitan, of
2026), and tested against stubs of them. **It has not run with TorchTitan itself.** Importing needs TorchTitan.

Attention needs no override: TorchTitan calls F.scaled_dot_product_attention or varlen_attn, which `sdpa.activate()` and
`varlen.activate()` send to us.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtitan.config import derive, override
from torchtitan.models.common.rmsnorm import RMSNorm

from .. import nn
from . import dtensor


class HipKittensRMSNorm(RMSNorm):
    """TorchTitan's module; only what it computes with is ours. DTensors go in as they are."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def __init__(self, config: Config):
        super().__init__(config)
        dtensor.register()

    forward = nn.RMSNorm.forward


# Subclasses of RMSNorm compute something else, (1 + weight) for one.
@override(target=RMSNorm.Config, exact=True, description="RMSNorm on prebuilt AMD kernels")
def rms_norm(config: RMSNorm.Config) -> HipKittensRMSNorm.Config:
    return derive(config, HipKittensRMSNorm.Config)
