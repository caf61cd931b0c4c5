# SPDX-License-Identifier: MIT
"""Modules with torch.nn's constructor arguments and state_dict keys, on this package's kernels."""

from __future__ import annotations

from typing import Any, overload

import torch

from ._multihead_attention import MultiheadAttention
from .activation import gated_activation
from .float8 import Recipe, check_recipe, float8_linear
from .gemm import linear
from .norm import layer_norm, rms_norm
from .rotary import rotary, rotary_qk

__all__ = [
    "Float8Linear",
    "GeGLU",
    "LayerNorm",
    "Linear",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
]


def _over_rows(normalize, module, x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.Tensor:
    """normalize with the dimensions of module.normalized_shape as one."""
    shape = tuple(module.normalized_shape)
    if tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"hipkittens.nn.{type(module).__name__}: x has shape {tuple(x.shape)}; its last dimensions must be {shape}"
        )
    if len(shape) == 1:
        return normalize(x, *parameters)
    flat = (value if value is None else value.flatten() for value in parameters)
    return normalize(x.flatten(-len(shape)), *flat).view(x.shape)


class Linear(torch.nn.Linear):
    """torch.nn.Linear through hipkittens.linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class Float8Linear(torch.nn.Linear):
    """torch.nn.Linear through hipkittens.float8_linear: weights stay what they are, and are cast to 8 bits in every call.

    recipe    as `float8_linear` takes it; the other arguments are torch.nn.Linear's
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        recipe: Recipe = "rowwise",
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)
        check_recipe("hipkittens.nn.Float8Linear", recipe)
        self.recipe = recipe

    @classmethod
    def from_float(cls, module: torch.nn.Linear, recipe: Recipe = "rowwise") -> Float8Linear:
        """A layer with the very parameters of this one, which may be used further."""
        if not isinstance(module, torch.nn.Linear):
            raise TypeError(
                f"hipkittens.nn.Float8Linear.from_float: module is {type(module).__name__}; it must be a torch.nn.Linear"
            )
        made = cls(module.in_features, module.out_features, bias=False, device="meta", recipe=recipe)
        made.weight, made.bias = module.weight, module.bias
        return made.train(module.training)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return float8_linear(x, self.weight, self.bias, self.recipe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, recipe={self.recipe}"


class _GatedMLP(torch.nn.Module):
    """down_proj(act(gate) * up), with gate and up the halves of gate_up_proj."""

    _kind: str

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        bias: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.gate_up_proj = Linear(hidden_size, 2 * intermediate_size, bias=bias, device=device, dtype=dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias=bias, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(gated_activation(self.gate_up_proj(x), self._kind))


class SwiGLU(_GatedMLP):
    """The feed-forward block of Llama, Mistral and Qwen: down_proj(silu(gate) * up), gate and up the halves of gate_up_proj
    (Phi-3's names). x (..., hidden_size), bfloat16 or float16."""

    _kind = "silu"


class GeGLU(_GatedMLP):
    """The same with gelu(gate), approximated by tanh as Gemma's."""

    _kind = "gelu_tanh"


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm through hipkittens.layer_norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _over_rows(
            lambda rows, weight, bias: layer_norm(rows, weight, bias, self.eps),
            self,
            x,
            self.weight,
            self.bias,
        )


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm through hipkittens.rms_norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As torch.nn.RMSNorm: without an eps, the smallest step of x's dtype.
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return _over_rows(lambda rows, weight: rms_norm(rows, weight, eps), self, x, self.weight)


class RotaryEmbedding(torch.nn.Module):
    """Tables of cosines and sines in float32, and hipkittens.rotary or rotary_qk with them.

    dim              features that are turned, an even number
    max_positions    rows of the tables
    base             angle i of position p is p * base ** (-2 i / dim)
    """

    def __init__(
        self,
        dim: int,
        max_positions: int = 4096,
        base: float = 10000.0,
        interleaved: bool = False,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        if dim < 2 or dim % 2:
            raise ValueError(f"hipkittens.nn.RotaryEmbedding: dim is {dim}; it must be even and at least 2")
        self.interleaved = interleaved
        frequencies = base ** (-torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim)
        angles = torch.outer(torch.arange(max_positions, dtype=torch.float64, device=device), frequencies)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    @overload
    def forward(self, q: torch.Tensor, k: None = None, **options: Any) -> torch.Tensor: ...

    @overload
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(
        self, q: torch.Tensor, k: torch.Tensor | None = None, **options: Any
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """rotary of q, or of q and k; options as hipkittens.rotary takes them."""
        if k is None:
            return rotary(q, self.cos, self.sin, interleaved=self.interleaved, **options)
        return rotary_qk(q, k, self.cos, self.sin, interleaved=self.interleaved, **options)
