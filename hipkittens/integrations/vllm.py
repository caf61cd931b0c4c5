# SPDX-License-Identifier: MIT
"""vLLM's RMSNorm and RotaryEmbedding on hipkittens, as a general plugin of vLLM's named hipkittens:

    VLLM_PLUGINS=hipkittens vllm serve MODEL --compilation-config '{"custom_ops": ["+rms_norm", "+rotary_embedding"]}'

vLLM runs every general plugin that is installed unless VLLM_PLUGINS lists some. This one does nothing unless it is listed there: to have
the package installed changes no vLLM. Programs may call `register` themselves instead. vLLM calls custom operators only where they are
enabled, as above.

There is **no attention backend** (AttentionBackendEnum.CUSTOM) yet: `hipkittens.attention_paged` reads vLLM's caches, and the classes
around it that vLLM asks for are not written. What its Qwen3-Next decodes with is in `vllm_delta_rule`.

Written against vllm/model_executor/custom_op.py, layers/layernorm.py and layers/rotary_embedding/base.py
(github.com/vllm-project/vllm, of 2026), and tested against stubs of them. **It has not run with vLLM itself.**
"""

from __future__ import annotations

import os

from .._log import log
from ..norm import rms_norm
from ..rotary import rotary, rotary_qk

_registered = False


def plugin() -> None:
    """What vLLM calls in each of its processes: `register`, if VLLM_PLUGINS names hipkittens."""
    if "hipkittens" in [name.strip() for name in os.environ.get("VLLM_PLUGINS", "").split(",")]:
        log.info("vLLM's RMSNorm and RotaryEmbedding are hipkittens', which has not run with vLLM itself")
        register()


def register() -> None:
    """Replaces both classes for every model built from now on in this process. Repeated calls do nothing more."""
    global _registered
    if _registered:
        return
    from vllm.model_executor.custom_op import CustomOp
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

    @CustomOp.register_oot(name="RMSNorm")
    class HipKittensRMSNorm(RMSNorm):
        """RMSNorm with the residual added in the same pass."""

        def forward_cuda(self, x, residual=None):
            if (
                self.variance_size_override is not None
            ):  # the mean of squares of some columns: vLLM's own, as always
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

    _registered = True
