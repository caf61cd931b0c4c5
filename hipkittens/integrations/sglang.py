# SPDX-License-Identifier: MIT
"""SGLang's attention, experts, FP8 linear layers and RMSNorm on hipkittens, as a general plugin of SGLang named hipkittens:

    SGLANG_PLUGINS=hipkittens python -m sglang.launch_server --model-path MODEL \\
        --attention-backend hipkittens --fp8-gemm-backend triton --moe-runner-backend triton

SGLang runs every installed general plugin unless SGLANG_PLUGINS lists some. This one does nothing unless it is listed there: installing the
package does not change SGLang. Features of the norm that ours does not have fall back to SGLang's own method, call by call: statistics of
some columns, a rounding before the weight, a residual kept in float32, results of another dtype, a second summand, no rows.

Attention is that of `sglang_attention` and `sglang_mla`, where SGLang is told to use it; linear layers are those of `sglang_linear`,
experts those of `sglang_experts`.

Written against SGLang 0.5.23, whose own classes run with it in the simulator (tests/oracles/test_sglang.py). **It has never run in an
SGLang server on a GPU.**
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from .._log import log
from ..norm import rms_norm
from . import sglang_experts as of_experts
from . import sglang_linear as linear

# The methods to which a ROCm build dispatches RMSNorm: the second with SGLANG_USE_AITER, otherwise the first.
METHODS = ("forward_hip", "forward_aiter")
_registered = False


def plugin() -> None:
    """Entry point that SGLang calls in each of its processes: `register`, if SGLANG_PLUGINS lists hipkittens."""
    if "hipkittens" in [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]:
        log.info(
            "SGLang's RMSNorm, experts and FP8 linear layers are hipkittens', which have not run in an SGLang server"
        )
        register()


def register() -> None:
    """Hooks the norm's methods and the functions of linear layers and experts, and adds the attention backend; SGLang installs hooks once
    its plugins have run. Repeated calls have no effect.
    """
    global _registered
    if _registered:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for method in METHODS:
        HookRegistry.register(f"sglang.srt.layers.layernorm.RMSNorm.{method}", norm, HookType.AROUND)
    HookRegistry.register(linear.BLOCK_TARGET, linear.block_linear, HookType.AROUND)
    if os.environ.get("SGLANG_USE_AITER", "").lower() not in ("1", "true", "yes", "y"):
        HookRegistry.register(linear.TARGET, linear.scaled_linear, HookType.AROUND)
    HookRegistry.register(of_experts.TARGET, of_experts.experts, HookType.AROUND)
    _register_attention()
    _registered = True


def _register_attention() -> None:
    """Adds the backend and its name to those that SGLang knows."""
    from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    from .sglang_attention import HipKittensAttentionBackend
    from .sglang_mla import HipKittensLatentAttentionBackend

    @register_attention_backend("hipkittens")
    def of_model(model_runner: Any) -> HipKittensAttentionBackend:
        """The backend of a model, by its kind of attention."""
        latent = model_runner.use_mla_backend
        kind = HipKittensLatentAttentionBackend if latent else HipKittensAttentionBackend
        return kind(model_runner)

    ATTENTION_BACKEND_CHOICES.append("hipkittens")


def norm(
    theirs: Callable[..., Any],
    layer: Any,
    x: torch.Tensor,
    residual: torch.Tensor | None = None,
    *others: Any,
    **options: Any,
) -> Any:
    """RMSNorm with the residual added in the same pass, or `theirs`, SGLang's method, if ours does not support the call."""
    given = [value for value in (*others, *options.values()) if value is not None]
    has_more = any(
        getattr(layer, name, None)
        for name in (
            "variance_size_override",
            "cast_x_before_out_mul",
            "fp32_residual",
            "override_orig_dtype",
        )
    )
    if given or has_more or not x.numel():
        return theirs(layer, x, residual, *others, **options)
    weight = layer.weight.data if getattr(layer, "has_weight", True) else None
    return rms_norm(
        x, weight, layer.variance_epsilon, residual=residual, return_residual=residual is not None
    )
