# SPDX-License-Identifier: MIT
"""A mixture-of-experts model from Transformers, whose parts hipkittens.patch moves onto the kernels.

Parameters are float32 and torch.autocast rounds them to bfloat16 where they are multiplied. Experts are not balanced: there is no
auxiliary loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import operators
import torch
import torch.nn.functional as F
from next_token import Program
from torch import Tensor, nn
from training import Defaults, TrainingError

import hipkittens


@dataclass(frozen=True)
class Size:
    """A model size.

    vocabulary, length   as in Llama's configuration
    configuration        the name of a configuration class of Transformers
    options              its arguments
    """

    vocabulary: int
    length: int
    configuration: str
    options: Mapping[str, Any]


class Mixture(nn.Module):
    def __init__(self, size: Size, ops: operators.Operators) -> None:
        super().__init__()
        import transformers

        config = getattr(transformers, size.configuration)(
            **size.options,
            vocab_size=size.vocabulary,
            max_position_embeddings=size.length,
            use_cache=False,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
        )
        written_out = ops.attention not in (operators.TORCH.attention, operators.HIPKITTENS.attention)
        self.model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager" if written_out else "sdpa"
        )
        ours = {
            "attention": ops.attention is operators.HIPKITTENS.attention,
            "linear_attention": ops.attention is operators.HIPKITTENS.attention,
            "norm": ops.rms_norm is operators.HIPKITTENS.rms_norm,
            "rotary": ops.rotary is operators.HIPKITTENS.rotary,
            "linear": ops.linear is operators.HIPKITTENS.linear,
            "moe": ops.experts == "hipkittens",
        }
        self.report = hipkittens.patch(
            self.model, **ours, mlp=False, loss=False, join_experts=True, dtype=torch.bfloat16
        )
        if ours["moe"] and not any(row.part == "moe" for row in self.report.replaced):
            raise TrainingError(
                f"no experts of {size.configuration} were replaced: hipkittens.patch knows those of Transformers 4, and this is "
                f"{transformers.__version__}; use --experts torch"
            )
        if ops.linear not in (F.linear, operators.HIPKITTENS.linear):
            for module in self.model.modules():
                if type(module) is nn.Linear:
                    module.forward = partial(_linear, module, ops)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The sum over all tokens of -log p(target), in float32; without targets the logits of the last token."""
        with torch.autocast(tokens.device.type, torch.bfloat16):
            logits = self.model(tokens).logits
        if targets is None:
            return logits[:, -1].float()
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")


def _linear(module: nn.Linear, ops: operators.Operators, x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        bias = None if module.bias is None else module.bias.bfloat16()
        return ops.linear(x.bfloat16(), module.weight.bfloat16(), bias)


def program(name: str, title: str, about: str, sizes: dict[str, Size]) -> Program:
    """A training program for such a model; the arguments are those of `Program`."""
    defaults = Defaults(steps=30, batch=8, micro_batch=8, learning_rate=3e-3, warmup=5)
    return Program(
        name=name,
        title=title,
        about=about,
        sizes=sizes,
        defaults=dict.fromkeys(sizes, defaults),
        operations=("attention", "norm", "rotary", "linear", "experts"),
        build=Mixture,
        shards=False,
    )
