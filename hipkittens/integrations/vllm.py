# SPDX-License-Identifier: MIT
"""vLLM's attention, experts, linear layers, RMSNorm and RotaryEmbedding on hipkittens, as a general plugin of vLLM named hipkittens:

    VLLM_PLUGINS=hipkittens vllm serve MODEL --attention-backend CUSTOM \\
        --compilation-config '{"custom_ops": ["+rms_norm", "+rotary_embedding", "+unquantized_fused_moe", "+fp8_fused_moe",
                                               "+int8_fused_moe", "+mxfp4_fused_moe",
                                               "+fp8_linear", "+int8_linear", "+mxfp4_linear", "+mxfp8_linear"]}'

vLLM runs every installed general plugin unless VLLM_PLUGINS lists some. This one does nothing unless it is listed there: installing the
package does not change vLLM. Programs may call `register` themselves instead. vLLM calls custom operators only where they are enabled, as
above.

The attention backend, from `vllm_attention`, is registered as AttentionBackendEnum.CUSTOM unless another plugin has registered one, and is
used where vLLM is told to use CUSTOM; those of multi-head latent attention are in `vllm_mla`. Experts are those of `vllm_experts` and `vllm_scaled_experts`, linear layers those of `vllm_linear`:
those that are quantized. Under VLLM_BATCH_INVARIANT
`hipkittens.set_batch_invariant` is on. The functions with which vLLM's Qwen3-Next decodes are in `vllm_delta_rule`.

Written against vLLM 0.33.0, whose own classes run with it in the simulator (tests/oracles/test_vllm_layers.py). **It has never run in a
vLLM server on a GPU.**
"""

from __future__ import annotations

import os

from .._log import log
from ..batch_invariance import set_batch_invariant
from ..norm import rms_norm
from ..rotary import rotary, rotary_qk

_ATTENTION = "hipkittens.integrations.vllm_attention.HipKittensAttentionBackend"
_registered = False


def plugin() -> None:
    """Entry point that vLLM calls in each of its processes: `register`, if VLLM_PLUGINS lists hipkittens."""
    if "hipkittens" in [name.strip() for name in os.environ.get("VLLM_PLUGINS", "").split(",")]:
        log.info(
            "vLLM's CUSTOM attention, RMSNorm, RotaryEmbedding, experts and linear layers are hipkittens', which have not run in a vLLM server"
        )
        register()


def register() -> None:
    """Replaces the classes for every model built from now on in this process, and registers the attention backend. Repeated calls have no
    effect.
    """
    global _registered
    if _registered:
        return
    _register_attention()
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    @CustomOp.register_oot(name="RMSNorm")
    class HipKittensRMSNorm(RMSNorm):
        """RMSNorm with the residual added in the same pass."""

        def forward_cuda(self, x, residual=None):
            if (
                self.variance_size_override is not None
            ):  # the mean of squares of some columns: vLLM's own method
                return self.forward_native(x, residual)
            weight = self.weight.data if self.has_weight else None
            return rms_norm(
                x, weight, self.variance_epsilon, residual=residual, return_residual=residual is not None
            )

        # On a ROCm platform vLLM calls forward_hip, on a platform plugin's forward_oot.
        forward_hip = forward_cpu = forward_oot = forward_cuda

    @CustomOp.register_oot(name="RotaryEmbedding")
    class HipKittensRotaryEmbedding(RotaryEmbedding):
        """Rotary embedding of queries and keys in one launch."""

        def forward_cuda(self, positions, query, key=None):
            pairs = self.rotary_dim // 2
            options = {"interleaved": not self.is_neox_style, "positions": positions.flatten()}
            cos, sin = self.cos_sin_cache[:, :pairs], self.cos_sin_cache[:, pairs:]
            q = query.reshape(positions.numel(), -1, self.head_size)
            if key is None:
                return rotary(q, cos, sin, **options).reshape(query.shape), None
            k = key.reshape(positions.numel(), -1, self.head_size)
            q, k = rotary_qk(q, k, cos, sin, **options)
            return q.reshape(query.shape), k.reshape(key.shape)

        forward_hip = forward_cpu = forward_oot = forward_cuda

    # register_oot names operators by their classes; "+rms_norm" and "+rotary_embedding" are to enable ours, like vLLM's.
    HipKittensRMSNorm.name, HipKittensRotaryEmbedding.name = RMSNorm.name, RotaryEmbedding.name
    from .vllm_experts import register as register_experts
    from .vllm_linear import register as register_linear
    from .vllm_mla import register as register_mla
    from .vllm_scaled_experts import register as register_scaled_experts

    register_experts()
    register_scaled_experts()
    register_linear()
    register_mla()
    _registered = True


def _register_attention() -> None:
    """Registers it by its path, as vLLM expects: the module is imported when vLLM selects the backend."""
    from vllm import envs
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    backend = AttentionBackendEnum.CUSTOM
    if backend.is_overridden():
        log.warning("vLLM's CUSTOM attention backend is already %s, and stays it", backend.get_path())
    else:
        register_backend(backend, _ATTENTION)
    if envs.VLLM_BATCH_INVARIANT:
        set_batch_invariant(True)
