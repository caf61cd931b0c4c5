# SPDX-License-Identifier: MIT
"""Stateless layers for Hugging Face's `kernels`, which replaces a model's `forward` methods with theirs (docs/hub_kernels.md).

    kernels.LayerRepository(repo_id, layer_name="RMSNorm", version=1)              # from the hub
    hipkittens.integrations.kernels.kernelize(model)                               # from this installation

Each class declares the attributes of the module that it replaces as annotations, and has its forward's signature; it may contain nothing
else. The names are those by which Transformers 5 and `kernels` look layers up. Dtypes, limits and errors are those of the functions that
are called.
"""

from __future__ import annotations

from typing import Any

import torch

from . import fla
from ._patch_norms import EPS_NAMES
from ._patch_rotary import apply_rotary_pos_emb
from .activation import gated_activation
from .attention import attention
from .convolution import causal_conv1d as _causal_conv1d
from .convolution import causal_conv1d_update as _causal_conv1d_update
from .loss import cross_entropy
from .norm import rms_norm

__all__ = [
    "CrossEntropyLoss",
    "GeGLUMLP",
    "GeluAndMul",
    "GeluTanhAndMul",
    "RMSNorm",
    "RMSNormGated",
    "RMSNormZeroCentered",
    "ScaledDotProductAttention",
    "SiluAndMul",
    "SwiGLUMLP",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "chunk_gated_delta_rule",
    "fused_recurrent_gated_delta_rule",
    "rotary_pos_emb",
]


def _eps(module: torch.nn.Module) -> float:
    for name in EPS_NAMES:
        value = getattr(module, name, None)
        if value is not None:
            return value
    raise AttributeError(
        f"hipkittens.layers: {type(module).__name__} has no eps; a module served by a norm has one of {', '.join(EPS_NAMES)}"
    )


def _refuse(layer: str, named: dict[str, Any], why: str) -> None:
    """Raises NotImplementedError for the first argument that is passed."""
    for name, value in named.items():
        if value is not None:
            raise NotImplementedError(f"hipkittens.layers.{layer}: {name} is given; {why}")


class RMSNorm(torch.nn.Module):
    """weight * x / sqrt(mean(x ** 2) + eps), in the common dtype of x and weight; for Llama and its descendants."""

    can_torch_compile = True
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.to(torch.promote_types(hidden_states.dtype, self.weight.dtype))
        return rms_norm(x, self.weight, _eps(self))


class RMSNormZeroCentered(torch.nn.Module):
    """(1 + weight) * x / sqrt(mean(x ** 2) + eps), in x's dtype; for Gemma, Qwen3-Next and Qwen3.5."""

    can_torch_compile = True
    weight: torch.Tensor
    eps: float

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, 1.0 + self.weight.float(), _eps(self))


class RMSNormGated(torch.nn.Module):
    """weight * x / sqrt(mean(x ** 2) + eps) * silu(gate), in x's dtype; for gated delta nets."""

    can_torch_compile = True
    weight: torch.Tensor
    variance_epsilon: float

    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return rms_norm(hidden_states, self.weight, _eps(self), gate=gate.to(hidden_states.dtype))


class SiluAndMul(torch.nn.Module):
    """silu(x[..., :d]) * x[..., d:] for rows of 2 d elements."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gated_activation(x, "silu")


class GeluAndMul(torch.nn.Module):
    """gelu(x[..., :d]) * x[..., d:]."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gated_activation(x, "gelu")


class GeluTanhAndMul(torch.nn.Module):
    """gelu(x[..., :d]) * x[..., d:], with gelu approximated by tanh."""

    can_torch_compile = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return gated_activation(x, "gelu_tanh")


class SwiGLUMLP(torch.nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x)), with the module's own projections."""

    can_torch_compile = True
    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(gated_activation(self.gate_proj(x), "silu", other=self.up_proj(x)))


class GeGLUMLP(torch.nn.Module):
    """down_proj(gelu(gate_proj(x)) * up_proj(x)), with gelu approximated by tanh and the module's own projections."""

    can_torch_compile = True
    gate_proj: torch.nn.Module
    up_proj: torch.nn.Module
    down_proj: torch.nn.Module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(gated_activation(self.gate_proj(x), "gelu_tanh", other=self.up_proj(x)))


class rotary_pos_emb(torch.nn.Module):
    """Transformers' apply_rotary_pos_emb of queries and keys, in one launch: x cos + rotate_half(x) sin.

    Both halves of cos and sin (batch, tokens, features) are equal. Where they are not, as in models that rotate adjacent features, a check
    on the device fails.
    """

    can_torch_compile = True

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim)


class ScaledDotProductAttention(torch.nn.Module):
    """torch.nn.functional.scaled_dot_product_attention of (batch, heads, tokens, features), without elementwise masks.

    enable_gqa is needed if there are fewer key heads, as in PyTorch. is_causal with different numbers of queries and keys is refused:
    PyTorch aligns the two at their first tokens, `hipkittens.attention` at their last ones.
    """

    can_torch_compile = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        _refuse(
            "ScaledDotProductAttention",
            {"attn_mask": attn_mask},
            "it has no kernel here; hipkittens.integrations.sdpa reads masks",
        )
        if is_causal and query.shape[-2] != key.shape[-2]:
            raise NotImplementedError(
                f"hipkittens.layers.ScaledDotProductAttention: is_causal with {query.shape[-2]} queries and {key.shape[-2]} keys; "
                "pass equal numbers, or call hipkittens.attention, whose causal mask ends at the last key"
            )
        if not enable_gqa and query.shape[1] != key.shape[1]:
            raise ValueError(
                f"hipkittens.layers.ScaledDotProductAttention: {query.shape[1]} query heads and {key.shape[1]} key heads; "
                "pass enable_gqa=True, or equal numbers"
            )
        return attention(query, key, value, causal=is_causal, scale=scale, dropout_p=dropout_p, layout="bhnd")


class CrossEntropyLoss(torch.nn.Module):
    """torch.nn.CrossEntropyLoss of class indices, in float32 for any dtype of logits. A module with class weights is refused."""

    can_torch_compile = True
    weight: torch.Tensor | None
    ignore_index: int
    reduction: str
    label_smoothing: float

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _refuse("CrossEntropyLoss", {"weight": self.weight}, "weights of classes have no kernel; pass None")
        return cross_entropy(
            input.movedim(1, -1) if input.dim() > 2 else input,
            target,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )


class causal_conv1d_fn(torch.nn.Module):
    """`hipkittens.causal_conv1d` of hidden_states (batch, channels, times), weight (channels, width) and bias (channels)."""

    can_torch_compile = True

    def forward(
        self,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        _refuse("causal_conv1d_fn", kwargs, "it has no kernel; pass one sequence a row")
        return _causal_conv1d(hidden_states, weight, bias, activation=activation)


class causal_conv1d_update(torch.nn.Module):
    """`hipkittens.causal_conv1d_update`: conv_state (batch, channels, columns) is updated in place with hidden_states. For decoding."""

    can_torch_compile = True
    has_backward = False

    def forward(
        self,
        hidden_states: torch.Tensor,
        conv_state: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        activation: str | None = None,
    ) -> torch.Tensor:
        return _causal_conv1d_update(hidden_states, conv_state, weight, bias, activation)


class chunk_gated_delta_rule(torch.nn.Module):
    """`hipkittens.fla.chunk_gated_delta_rule`, with states (batch, heads, K, V) and Transformers' argument names."""

    can_torch_compile = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        chunk_size: int = 64,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return fla.chunk_gated_delta_rule(
            query, key, value, g, beta, chunk_size=chunk_size, initial_state=initial_state,
            output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **kwargs,
        )  # fmt: skip


class fused_recurrent_gated_delta_rule(torch.nn.Module):
    """`hipkittens.fla.fused_recurrent_gated_delta_rule`, with states (batch, heads, K, V) and Transformers' argument names."""

    can_torch_compile = True

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        initial_state: torch.Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return fla.fused_recurrent_gated_delta_rule(
            query, key, value, g, beta=beta, initial_state=initial_state,
            output_final_state=output_final_state, use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, **kwargs,
        )  # fmt: skip
