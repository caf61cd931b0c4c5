# SPDX-License-Identifier: MIT
"""SGLang's multi-head latent attention (DeepSeek V2 and V3, Kimi K2) on hipkittens.attention_mla and attention_varlen: what the attention
backend of `sglang_attention` is for such models.

SGLang gives backends that it does not know new tokens without a cached prefix as keys and values in full, 192 and 128 features, and others
with absorbed projections: decoding, and prefill behind a prefix. The latter read the cache of latents, of 512 and 64 features, in 16 bits or
the target's 8-bit floats. Sparse attention (DeepSeek V3.2) is refused, as is what `sglang_attention` refuses.

Written against SGLang 0.5.23, whose own layers, caches and batches run it in the simulator (tests/oracles/test_sglang.py). **It has never
run in an SGLang server on a GPU.** Importing requires SGLang.
"""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from ..attention import attention_varlen
from ..latent_attention import attention_mla
from .sglang_attention import WHERE, HipKittensAttentionBackend, refuse

_LATENT, _ROTARY = 512, 64


class HipKittensLatentAttentionBackend(HipKittensAttentionBackend):
    """One for each model. Raises ValueError for a model or a cache that it does not support."""

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **others: Any,
    ) -> torch.Tensor:
        """q (T, H D) to (T, H D_v): D is 576 and D_v 512 with absorbed projections; otherwise k (T, H, D) and v (T, H, D_v) are given."""
        refuse(others)
        if layer.logit_cap or layer.sliding_window_size >= 0:
            raise ValueError(f"{WHERE}: logit caps and windows of latent attention are not supported")
        rows = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        if (layer.qk_head_dim, layer.v_head_dim, layer.tp_k_head_num) == (_LATENT + _ROTARY, _LATENT, 1):
            scale = layer.k_scale if self.token_to_kv_pool.dtype.itemsize == 1 else None
            if save_kv_cache and k is not None:
                # SGLang's cache of latents does not divide by the scale.
                stored = (k if scale is None else k / scale).view(-1, 1, _LATENT + _ROTARY)
                loc = KVWriteLoc(forward_batch.out_cache_loc, None)
                self.token_to_kv_pool.set_kv_buffer(layer, loc, stored, v)
            out = self._absorbed(rows, layer, scale)
        else:
            out = self._in_full(rows, k, v, layer, forward_batch)
        return out.flatten(1)

    forward_extend = forward_decode

    def _absorbed(self, rows: torch.Tensor, layer: Any, scale: torch.Tensor | None) -> torch.Tensor:
        of_batch = self.forward_metadata
        out: Any = attention_mla(
            rows, self.token_to_kv_pool.get_key_buffer(layer.layer_id), self.req_to_token_pool.req_to_token.view(-1),
            of_batch.seqused_k, of_batch.cu_seqlens_q, of_batch.max_seqlen_q, scale=layer.scaling, table_starts=of_batch.table_starts,
            kv_scale=scale,
        )  # fmt: skip
        return out

    def _in_full(
        self,
        rows: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
    ) -> torch.Tensor:
        of_batch = self.forward_metadata
        if (
            k is None
            or v is None
            or of_batch.cu_seqlens_q is None
            or forward_batch.mha_return_lse
            or any(forward_batch.extend_prefix_lens_cpu)
        ):
            raise ValueError(
                f"{WHERE}: heads of {layer.qk_head_dim} with values of {layer.v_head_dim} are only for new tokens without a prefix"
            )
        starts, most = of_batch.cu_seqlens_q, of_batch.max_seqlen_q
        out: Any = attention_varlen(rows, k, v, starts, starts, most, most, causal=True, scale=layer.scaling)
        return out
