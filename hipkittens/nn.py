# SPDX-License-Identifier: MIT
"""Modules with the constructor arguments and state_dict keys of torch.nn, using this package's kernels."""

from __future__ import annotations

from typing import Any, overload

import torch
from torch.nn.modules import module as torch_module
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._arguments import check_flag, check_whole_number
from ._multihead_attention import MultiheadAttention
from .activation import GATES, gated_activation
from .experts import moe
from .feed_forward import gated_linear
from .float8 import Recipe, check_recipe, float8_linear
from .gemm import linear, matmul
from .norm import layer_norm, rms_norm
from .rotary import rotary, rotary_qk
from .routing import SCORES, router

__all__ = [
    "Float8Linear",
    "GeGLU",
    "LayerNorm",
    "Linear",
    "MoE",
    "MultiheadAttention",
    "RMSNorm",
    "RotaryEmbedding",
    "SwiGLU",
]


def _over_rows(normalize, module, x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.Tensor:
    """normalize with the dimensions of module.normalized_shape flattened into one."""
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
    """torch.nn.Linear using hipkittens.linear."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)


class Float8Linear(torch.nn.Linear):
    """torch.nn.Linear using hipkittens.float8_linear: weights keep their dtype and are cast to 8 bits in every call.

    `recipe` is as in `float8_linear`; the other arguments are those of torch.nn.Linear.
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
        """A layer that shares the parameters of this one, which remains usable."""
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


def project_and_gate(
    projection: torch.nn.Module, x: torch.Tensor, kind: str, limit: float | None = None
) -> torch.Tensor:
    """gated_activation(projection(x), kind, limit=limit), in one launch if the projection is only `hipkittens.linear`.

    Everything else that calling a projection involves is honored: hooks, a custom forward (adapters, quantized weights) and weights that
    are tensor subclasses lead to two launches.
    """
    if _is_linear_alone(projection):
        return gated_linear(x, projection.weight, projection.bias, kind, limit=limit)
    return gated_activation(projection(x), kind, limit=limit)


def _is_linear_alone(module: torch.nn.Module) -> bool:
    return (
        type(module).forward is Linear.forward
        and "forward" not in vars(module)
        and not (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or torch_module._has_any_global_hook()
        )
        and not is_traceable_wrapper_subclass(module.weight)
    )


class _GatedMLP(torch.nn.Module):
    """down_proj(act(gate) * up), with gate and up the halves of gate_up_proj: the two launches of `hipkittens.feed_forward`."""

    _kind: str
    _limit: float | None = None

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
        return self.down_proj(project_and_gate(self.gate_up_proj, x, self._kind, self._limit))


class SwiGLU(_GatedMLP):
    """The feed-forward block of Llama, Mistral and Qwen: down_proj(silu(gate) * up), with gate and up the halves of gate_up_proj
    (Phi-3's names). x is (..., hidden_size), bfloat16 or float16.
    """

    _kind = "silu"


class GeGLU(_GatedMLP):
    """Like SwiGLU with gelu(gate), approximated by tanh as in Gemma."""

    _kind = "gelu_tanh"


class _SharedExperts(_GatedMLP):
    """The shared experts of MoE, which sets their gate."""


class MoE(torch.nn.Module):
    """A mixture-of-experts layer: a linear layer for the scores, `hipkittens.router`, `hipkittens.moe`, and shared experts.

    - `hidden_size`, `intermediate_size`: features of tokens, and of each expert.
    - `num_experts`, `top_k`: the number of experts, and of experts for each token.
    - `activation`, `interleaved`, `swiglu_limit`, `weight_input`: as in `moe`.
    - `score`, `renormalize`, `groups`, `topk_groups`, `scale`: as in `router`.
    - `router_bias`: a bias of the linear layer (gpt-oss).
    - `score_bias`: a buffer added to the scores for the selection of experts, never to weights (DeepSeek-V3).
    - `bias`: biases of both projections of each expert (gpt-oss).
    - `shared_intermediate_size`: features of the experts that process every token, all together, or None.
    - `shared_gate`: their result is multiplied by the sigmoid of a linear layer with one output feature (Qwen2-MoE).

    state_dict: router_weight (E, H), router_bias (E,), score_bias (E,) float32, w1 (E, 2 I, H), bias1 (E, 2 I), w2 (E, H, I),
    bias2 (E, H), shared.gate_up_proj.weight (2 S, H), shared.down_proj.weight (H, S), shared_gate.weight (1, H); entries of options that
    are off are absent. x (..., hidden_size) and the parameters are bfloat16 or float16, or anything under torch.autocast. Scores are
    float32 from the matrix product on. Differentiable in x and all parameters; an expert without tokens has zero gradients.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        num_experts: int,
        top_k: int,
        *,
        activation: str = "silu",
        score: str = "softmax",
        renormalize: bool = True,
        groups: int = 1,
        topk_groups: int = 1,
        scale: float = 1.0,
        router_bias: bool = False,
        score_bias: bool = False,
        bias: bool = False,
        interleaved: bool = False,
        swiglu_limit: float | None = None,
        weight_input: bool = False,
        shared_intermediate_size: int | None = None,
        shared_gate: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        where = "hipkittens.nn.MoE"
        sizes = {
            "hidden_size": hidden_size,
            "intermediate_size": intermediate_size,
            "num_experts": num_experts,
            "top_k": top_k,
        }
        if shared_intermediate_size is not None:
            sizes["shared_intermediate_size"] = shared_intermediate_size
        for name, value in sizes.items():
            check_whole_number(where, name, value)
            if value < 1:
                raise ValueError(f"{where}: {name} is {value}; it must be at least 1")
        if top_k > num_experts:
            raise ValueError(f"{where}: top_k is {top_k}; allowed: 1 to num_experts, {num_experts}")
        for name, kind, allowed in (("activation", activation, GATES), ("score", score, SCORES)):
            if kind not in allowed:
                raise ValueError(f"{where}: {name} is {kind!r}; allowed: {', '.join(map(repr, allowed))}")
        flags = {
            "router_bias": router_bias,
            "score_bias": score_bias,
            "bias": bias,
            "shared_gate": shared_gate,
        }
        for name, value in {**flags, "interleaved": interleaved, "weight_input": weight_input}.items():
            check_flag(where, name, value)
        if shared_gate and shared_intermediate_size is None:
            raise ValueError(f"{where}: shared_gate is True and shared_intermediate_size None; give a size")
        self.hidden_size, self.top_k = hidden_size, top_k
        self._routing = {
            "score": score,
            "renormalize": renormalize,
            "groups": groups,
            "topk_groups": topk_groups,
            "scale": scale,
        }
        self._layer = {
            "activation": activation,
            "interleaved": interleaved,
            "swiglu_limit": swiglu_limit,
            "weight_input": weight_input,
        }
        factory = {"device": device, "dtype": dtype}

        def parameter(there: bool, *shape: int) -> torch.nn.Parameter | None:
            return torch.nn.Parameter(torch.empty(shape, **factory)) if there else None

        self.router_weight = parameter(True, num_experts, hidden_size)
        self.register_parameter("router_bias", parameter(router_bias, num_experts))
        correction = torch.zeros(num_experts, device=device, dtype=torch.float32) if score_bias else None
        self.register_buffer("score_bias", correction)
        self.w1 = parameter(True, num_experts, 2 * intermediate_size, hidden_size)
        self.w2 = parameter(True, num_experts, hidden_size, intermediate_size)
        self.register_parameter("bias1", parameter(bias, num_experts, 2 * intermediate_size))
        self.register_parameter("bias2", parameter(bias, num_experts, hidden_size))
        self.shared = self.shared_gate = None
        if shared_intermediate_size is not None:
            self.shared = _SharedExperts(hidden_size, shared_intermediate_size, **factory)
            self.shared._kind, self.shared._limit = activation, swiglu_limit
        if shared_gate:
            self.shared_gate = Linear(hidden_size, 1, bias=False, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initializes each expert like torch.nn.Linear: uniformly within the number of inputs ** -0.5."""
        for weight, bias in (
            (self.router_weight, self.router_bias),
            (self.w1, self.bias1),
            (self.w2, self.bias2),
        ):
            bound = weight.shape[-1] ** -0.5
            torch.nn.init.uniform_(weight, -bound, bound)
            if bias is not None:
                torch.nn.init.uniform_(bias, -bound, bound)
        for module in (self.shared, self.shared_gate):
            for part in () if module is None else module.modules():
                if isinstance(part, Linear):
                    part.reset_parameters()

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """The router's logits (..., num_experts) float32, from which load-balancing losses are computed; `forward` accepts them."""
        if x.dim() == 0 or x.shape[-1] != self.hidden_size:
            raise ValueError(
                f"hipkittens.nn.MoE: x has shape {tuple(x.shape)}; its last dimension must be {self.hidden_size}"
            )
        rows = x.reshape(-1, self.hidden_size)
        found = matmul(rows, self.router_weight.mT, bias=self.router_bias, out_dtype=torch.float32)
        return found.reshape(*x.shape[:-1], found.shape[-1])

    def forward(self, x: torch.Tensor, logits: torch.Tensor | None = None) -> torch.Tensor:
        """logits: those of this x, if the caller has computed them already."""
        if logits is None:
            logits = self.logits(x)
        rows = x.reshape(-1, self.hidden_size)
        scores = logits.reshape(rows.shape[0], self.w1.shape[0])
        weights, ids = router(scores, self.top_k, bias=self.score_bias, **self._routing)
        out = moe(rows, self.w1, self.w2, weights, ids, bias1=self.bias1, bias2=self.bias2, **self._layer)
        out = out.reshape(x.shape)
        if self.shared is None:
            return out
        shared = self.shared(x)
        if self.shared_gate is not None:
            shared = torch.sigmoid(self.shared_gate(x)) * shared
        return out + shared

    def extra_repr(self) -> str:
        experts, inner = self.w1.shape[0], self.w2.shape[-1]
        options = {**self._routing, **self._layer}
        return f"{self.hidden_size}, {inner}, {experts}, {self.top_k}, " + ", ".join(
            f"{name}={value!r}" for name, value in options.items()
        )


class LayerNorm(torch.nn.LayerNorm):
    """torch.nn.LayerNorm using hipkittens.layer_norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _over_rows(
            lambda rows, weight, bias: layer_norm(rows, weight, bias, self.eps),
            self,
            x,
            self.weight,
            self.bias,
        )


class RMSNorm(torch.nn.RMSNorm):
    """torch.nn.RMSNorm using hipkittens.rms_norm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # As in torch.nn.RMSNorm: without an eps, the machine epsilon of x's dtype.
        eps = torch.finfo(x.dtype).eps if self.eps is None else self.eps
        return _over_rows(lambda rows, weight: rms_norm(rows, weight, eps), self, x, self.weight)


class RotaryEmbedding(torch.nn.Module):
    """Rotary position embeddings: float32 tables of cosines and sines, applied by hipkittens.rotary or rotary_qk.

    dim              the number of rotated features, even
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
        """rotary of q, or of q and k; options as in hipkittens.rotary."""
        if k is None:
            return rotary(q, self.cos, self.sin, interleaved=self.interleaved, **options)
        return rotary_qk(q, k, self.cos, self.sin, interleaved=self.interleaved, **options)
