# SPDX-License-Identifier: MIT
"""The main operations of a transformer, from hipkittens or from PyTorch, with one signature each.

A model calls them through an `Operators` object, so that its computation is the same for either provider. Operands are bfloat16;
weights of norms are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

import hipkittens

SOURCES = ("hipkittens", "torch")
OPERATIONS = ("attention", "norm", "rotary", "linear", "experts")


@dataclass(frozen=True)
class Operators:
    """The operations of a model.

    attention         (q, k, v) of (batch, tokens, heads, size), causal; k and v may have fewer heads than q (grouped-query attention)
    attention_varlen  (q, k, v, cu_seqlens, longest, dropout_p) of (tokens, heads, size): packed sequences
    rms_norm          (x, weight, eps, residual) -> (norm of x + residual, x + residual); residual may be None
    layer_norm        (x, weight, bias, eps, residual, dropout_p) -> norm of dropout(x) + residual
    rotary            (q, k, cos, sin) -> rotated q and k
    linear            (x, weight, bias or None)
    experts           which implementation of experts hipkittens.patch uses in a Transformers model, one of SOURCES
    """

    attention: Callable
    attention_varlen: Callable
    rms_norm: Callable
    layer_norm: Callable
    rotary: Callable
    linear: Callable
    experts: str = "torch"


def from_sources(attention: str, norm: str, rotary: str, linear: str, experts: str = "torch") -> Operators:
    """Build the operations, each from "hipkittens" or "torch"."""
    of = {"hipkittens": HIPKITTENS, "torch": TORCH}
    return Operators(
        attention=of[attention].attention,
        attention_varlen=of[attention].attention_varlen,
        rms_norm=of[norm].rms_norm,
        layer_norm=of[norm].layer_norm,
        rotary=of[rotary].rotary,
        linear=of[linear].linear,
        experts=experts,
    )


# hipkittens


def _packed_attention(q, k, v, cu_seqlens, longest, dropout_p):
    return hipkittens.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, longest, longest, dropout_p=dropout_p)


def _rms_norm(x, weight, eps, residual):
    return hipkittens.rms_norm(x, weight, eps, residual=residual, return_residual=True)


def _layer_norm(x, weight, bias, eps, residual, dropout_p):
    return hipkittens.layer_norm(x, weight, bias, eps, residual=residual, dropout_p=dropout_p)


HIPKITTENS = Operators(
    attention=partial(hipkittens.attention, causal=True),
    attention_varlen=_packed_attention,
    rms_norm=_rms_norm,
    layer_norm=_layer_norm,
    rotary=hipkittens.rotary_qk,
    linear=hipkittens.linear,
    experts="hipkittens",
)


# PyTorch


def _torch_attention(q, k, v):
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)


def padded(packed: Tensor, seen: Tensor) -> Tensor:
    """Rows of (tokens, ...) scattered to the True positions of seen (batch, longest), zeros elsewhere."""
    whole = packed.new_zeros(*seen.shape, *packed.shape[1:])
    return whole.masked_scatter(seen.view(*seen.shape, *(1,) * (packed.dim() - 1)), packed)


def places_seen(cu_seqlens: Tensor, longest: int) -> Tensor:
    """(batch, longest): True where the position is within the sequence."""
    return torch.arange(longest, device=cu_seqlens.device) < cu_seqlens.diff()[:, None]


def _torch_packed_attention(q, k, v, cu_seqlens, longest, dropout_p):
    seen = places_seen(cu_seqlens, longest)
    q, k, v = (padded(tensor, seen).transpose(1, 2) for tensor in (q, k, v))
    mask = seen[:, None, None, :]
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p).transpose(1, 2)[seen]


def _torch_rms_norm(x, weight, eps, residual):
    total = x if residual is None else x + residual
    return F.rms_norm(total.float(), total.shape[-1:], weight.float(), eps).to(x.dtype), total


def _torch_layer_norm(x, weight, bias, eps, residual, dropout_p):
    total = F.dropout(x, dropout_p)
    total = total if residual is None else total + residual
    return F.layer_norm(total.float(), total.shape[-1:], weight.float(), bias.float(), eps).to(x.dtype)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    cos, sin = cos[: x.shape[1], None], sin[: x.shape[1], None]
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


def _torch_rotary(q, k, cos, sin):
    return _turned(q, cos, sin), _turned(k, cos, sin)


TORCH = Operators(
    attention=_torch_attention,
    attention_varlen=_torch_packed_attention,
    rms_norm=_torch_rms_norm,
    layer_norm=_torch_layer_norm,
    rotary=_torch_rotary,
    linear=F.linear,
)
