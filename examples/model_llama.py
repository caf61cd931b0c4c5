# SPDX-License-Identifier: MIT
"""Llama: RMSNorm before each half of a layer, rotary positions, grouped-query attention, SwiGLU.

Parameters are float32; they are rounded to bfloat16 where they are multiplied, and everything between layers is bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from operators import Operators
from torch import Tensor, nn


@dataclass(frozen=True)
class LlamaConfig:
    vocabulary: int
    length: int  # tokens a sequence may have
    width: int
    layers: int
    heads: int
    key_heads: int  # heads of keys and values; heads is a multiple of it
    head_size: int
    inner: int  # width between the halves of SwiGLU
    rotary_base: float = 10000.0
    eps: float = 1e-5


SIZES = {
    "tiny": LlamaConfig(
        vocabulary=384, length=64, width=64, layers=2, heads=4, key_heads=2, head_size=16, inner=128
    ),
    "small": LlamaConfig(
        vocabulary=1024, length=128, width=128, layers=3, heads=4, key_heads=2, head_size=64, inner=352
    ),
    # 1.1 billion parameters; heads of 128 and a context of 2048, as in the HipKittens paper's training.
    "1b": LlamaConfig(
        vocabulary=32000, length=2048, width=2048, layers=22, heads=16, key_heads=4, head_size=128, inner=5632
    ),
}


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, ops: Operators) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.linear(x, self.weight.to(x.dtype), None)


class RMSNorm(nn.Module):
    """(x, residual) -> (norm of their sum, the sum)."""

    def __init__(self, width: int, eps: float, ops: Operators) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.ops = eps, ops

    def forward(self, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        return self.ops.rms_norm(x, self.weight, self.eps, residual)


class Attention(nn.Module):
    def __init__(self, config: LlamaConfig, ops: Operators) -> None:
        super().__init__()
        self.split = (config.heads, config.key_heads, config.key_heads)
        self.head_size, self.ops = config.head_size, ops
        self.qkv = Linear(config.width, sum(self.split) * self.head_size, ops)
        self.out = Linear(config.heads * self.head_size, config.width, ops)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.head_size)).split(self.split, -2)
        q, k = self.ops.rotary(q, k, cos, sin)
        return self.out(self.ops.attention(q, k, v).flatten(-2))


class SwiGLU(nn.Module):
    def __init__(self, config: LlamaConfig, ops: Operators) -> None:
        super().__init__()
        self.gate_and_up = Linear(config.width, 2 * config.inner, ops)
        self.down = Linear(config.inner, config.width, ops)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_and_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Layer(nn.Module):
    """A decoder layer. x is the previous layer's contribution to the residual; the norms perform that addition."""

    def __init__(self, config: LlamaConfig, ops: Operators) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.width, config.eps, ops)
        self.attention = Attention(config, ops)
        self.feed_forward_norm = RMSNorm(config.width, config.eps, ops)
        self.feed_forward = SwiGLU(config, ops)

    def forward(self, x: Tensor, residual: Tensor | None, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        normed, residual = self.attention_norm(x, residual)
        normed, residual = self.feed_forward_norm(self.attention(normed, cos, sin), residual)
        return self.feed_forward(normed), residual


class Llama(nn.Module):
    def __init__(self, config: LlamaConfig, ops: Operators) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(Layer(config, ops) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.eps, ops)
        self.head = Linear(config.width, config.vocabulary, ops)
        half = torch.arange(0, config.head_size, 2, dtype=torch.float64) / config.head_size
        angles = torch.outer(torch.arange(config.length, dtype=torch.float64), config.rotary_base**-half)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)
        self._initialise()

    def _initialise(self) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                # The more layers add to the residual, the smaller each contribution is initialized.
                ends_a_half = name.endswith(("attention.out.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * self.config.layers) ** (0.5 * ends_a_half))

    def logits(self, tokens: Tensor) -> Tensor:
        """(batch, length) token ids -> (batch, length, vocabulary) in bfloat16."""
        x, residual = self.embedding(tokens).bfloat16(), None
        for layer in self.layers:
            x, residual = layer(x, residual, self.cos, self.sin)
        return self.head(self.norm(x, residual)[0])

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The sum over all tokens of -log p(target), in float32; without targets the logits of the last token."""
        logits = self.logits(tokens)
        if targets is None:
            return logits[:, -1].float()
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="sum")
