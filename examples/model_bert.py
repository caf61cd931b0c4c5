# SPDX-License-Identifier: MIT
"""BERT for masked language modelling: learned positions, norms after each half of a layer, GELU.

A batch is the packed tokens of all its sequences, without padding in any operation. Parameters are float32; they are rounded to
bfloat16 where they are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from operators import Operators
from torch import Tensor, nn


@dataclass(frozen=True)
class BertConfig:
    vocabulary: int
    length: int  # tokens a sequence may have
    width: int
    layers: int
    heads: int
    inner: int
    dropout: float = 0.0
    initial_std: float = 0.02
    eps: float = 1e-12


SIZES = {
    "tiny": BertConfig(vocabulary=384, length=64, width=64, layers=2, heads=4, inner=128, initial_std=0.1),
    "small": BertConfig(
        vocabulary=320, length=64, width=128, layers=2, heads=2, inner=256, initial_std=0.088
    ),
    "110m": BertConfig(vocabulary=30522, length=512, width=768, layers=12, heads=12, inner=3072, dropout=0.1),
}


class Linear(nn.Module):
    def __init__(self, inputs: int, outputs: int, ops: Operators) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.ops = ops

    def forward(self, x: Tensor) -> Tensor:
        return self.ops.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


class LayerNorm(nn.Module):
    """The norm of dropout(x) + residual."""

    def __init__(self, config: BertConfig, ops: Operators) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(config.width))
        self.bias = nn.Parameter(torch.zeros(config.width))
        self.eps, self.dropout, self.ops = config.eps, config.dropout, ops

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        dropout_p = self.dropout if self.training and residual is not None else 0.0
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps, residual, dropout_p)


class Attention(nn.Module):
    def __init__(self, config: BertConfig, ops: Operators) -> None:
        super().__init__()
        self.heads, self.dropout, self.ops = config.heads, config.dropout, ops
        self.qkv = Linear(config.width, 3 * config.width, ops)
        self.out = Linear(config.width, config.width, ops)

    def forward(self, x: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        dropout_p = self.dropout if self.training else 0.0
        return self.out(self.ops.attention_varlen(q, k, v, cu_seqlens, longest, dropout_p).flatten(-2))


class Layer(nn.Module):
    def __init__(self, config: BertConfig, ops: Operators) -> None:
        super().__init__()
        self.attention = Attention(config, ops)
        self.attention_norm = LayerNorm(config, ops)
        self.up = Linear(config.width, config.inner, ops)
        self.down = Linear(config.inner, config.width, ops)
        self.feed_forward_norm = LayerNorm(config, ops)

    def forward(self, x: Tensor, cu_seqlens: Tensor, longest: int) -> Tensor:
        x = self.attention_norm(self.attention(x, cu_seqlens, longest), x)
        return self.feed_forward_norm(self.down(F.gelu(self.up(x))), x)


class Bert(nn.Module):
    def __init__(self, config: BertConfig, ops: Operators) -> None:
        super().__init__()
        self.config, self.ops = config, ops
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Embedding(config.length, config.width)
        self.embedding_norm = LayerNorm(config, ops)
        self.layers = nn.ModuleList(Layer(config, ops) for _ in range(config.layers))
        self.transform = Linear(config.width, config.width, ops)
        self.transform_norm = LayerNorm(config, ops)
        self.head_bias = nn.Parameter(torch.zeros(config.vocabulary))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=config.initial_std)

    def logits(
        self, tokens: Tensor, positions: Tensor, cu_seqlens: Tensor, longest: int, masked: Tensor
    ) -> Tensor:
        """Logits of the tokens at the positions `masked`: (positions, vocabulary) in bfloat16."""
        x = self.embedding_norm((self.embedding(tokens) + self.position(positions)).bfloat16())
        x = F.dropout(x, self.config.dropout, self.training)
        for layer in self.layers:
            x = layer(x, cu_seqlens, longest)
        x = self.transform_norm(F.gelu(self.transform(x[masked])))
        # The embedding matrix is also the output projection.
        return self.ops.linear(x, self.embedding.weight.to(x.dtype), self.head_bias.to(x.dtype))

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cu_seqlens: Tensor,
        longest: int,
        masked: Tensor,
        targets: Tensor,
    ) -> Tensor:
        """The sum over the masked tokens of -log p(target), in float32.

        tokens, positions  (tokens,) of all sequences, packed; positions restart at 0 in each sequence
        cu_seqlens         (sequences + 1,) int32: the start of each sequence, and the number of tokens; longest: the longest length
        masked, targets    (masked tokens,): which tokens to predict, and their original ids
        """
        logits = self.logits(tokens, positions, cu_seqlens, longest, masked)
        return F.cross_entropy(logits.float(), targets, reduction="sum")
