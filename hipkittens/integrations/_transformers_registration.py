# SPDX-License-Identifier: MIT
"""The name under which Transformers finds the kernels: its attention function together with its masks."""

from __future__ import annotations

from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface

from ._transformers_attention import attention_forward
from ._transformers_masks import key_mask

NAME = "hipkittens"


def register() -> None:
    """Registers attn_implementation="hipkittens" with Transformers; importing hipkittens.integrations.transformers does it."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, key_mask)
