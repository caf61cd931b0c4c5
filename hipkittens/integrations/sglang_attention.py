# SPDX-License-Identifier: MIT
"""SGLang's attention on hipkittens.attention_paged, as an attention backend of SGLang named hipkittens, which `sglang.register` adds:

    SGLANG_PLUGINS=hipkittens python -m sglang.launch_server --model-path MODEL --attention-backend hipkittens

The cache is read through SGLang's own table, where it lies: its slots are pages of one token, whatever --page-size, so nothing is gathered
in a step, except for sliding layers with a cache of their own (gpt-oss, Gemma 3), whose slots within the window are looked up once for all
of them. Supported are decoding, prefill and both mixed, with or without a cached prefix; sliding windows, logit caps and sinks; 16-bit
caches and those of the target's 8-bit floats (--kv-cache-dtype fp8_e4m3); encoders. Refused, with the reason, when the backend or a batch
is built: caches in another order, those of hybrid linear attention, cross-attention, speculative decoding.
Models with multi-head latent attention have `sglang_mla`'s.

Written against SGLang 0.5.23, whose own layers, caches and batches run it in the simulator (tests/oracles/test_sglang.py). **It has never
run in an SGLang server on a GPU.** Importing requires SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from ..paged_attention import attention_paged

WHERE = "hipkittens' attention backend for SGLang"


def refuse(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of a layer's call that are not None."""
    if given := [name for name, value in options.items() if value is not None]:
        raise ValueError(f"{WHERE}: {', '.join(given)} not supported")


@dataclass(frozen=True)
class Batch:
    """A batch's sequences, as `attention_paged` takes them. cu_seqlens_q: None where each has one new token. For sliding layers with a cache
    of their own: slots_apart, where new tokens are written, and windows, the table of slots and the number of keys of each sequence, by the
    size of the window.
    """

    table_starts: torch.Tensor
    seqused_k: torch.Tensor
    cu_seqlens_q: torch.Tensor | None
    max_seqlen_q: int
    slots_apart: torch.Tensor | None
    windows: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)


class HipKittensAttentionBackend(AttentionBackend):
    """One for each model. Raises ValueError for a model or a cache that it does not support."""

    def __init__(self, model_runner: Any):
        super().__init__()
        self.req_to_token_pool, self.token_to_kv_pool = (
            model_runner.req_to_token_pool,
            model_runner.token_to_kv_pool,
        )
        pool = self.token_to_kv_pool
        # Whether each layer slides, where sliding layers have a cache of their own.
        self._slides = {layer: apart for layer, (_, apart) in getattr(pool, "layers_mapping", {}).items()}
        if hasattr(pool, "full_kv_pool") and not self._slides:
            raise ValueError(f"{WHERE}: the cache is a {type(pool).__name__}; use another attention backend")
        for part in (pool.full_kv_pool, pool.swa_kv_pool) if self._slides else (pool,):
            if (layout := getattr(part, "kv_cache_layout", "nhd")) != "nhd":
                raise ValueError(f"{WHERE}: the cache's layout is {layout}; allowed: nhd")
        table = self.req_to_token_pool.req_to_token
        if table.numel() > torch.iinfo(torch.int32).max:
            raise ValueError(
                f"{WHERE}: {len(table)} requests of {table.shape[1]} tokens are more than 2^31 slots; "
                "lower --max-running-requests or --context-length"
            )

    def init_forward_metadata_in_graph(self, forward_batch: Any) -> None:
        """Describes the batch once for all layers, without reading from the device."""
        mode = forward_batch.forward_mode
        if mode.is_target_verify() or mode.is_draft_extend_v2():
            raise ValueError(f"{WHERE}: speculative decoding is not supported; got {mode.name}")
        if forward_batch.encoder_lens is not None:
            raise ValueError(f"{WHERE}: cross-attention is not supported; got encoder_lens")
        cu_seqlens_q, most = None, 1
        if not mode.is_decode_or_idle():
            lengths = forward_batch.extend_seq_lens
            cu_seqlens_q = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
            most = max(forward_batch.extend_seq_lens_cpu, default=1)
        width, apart = self.req_to_token_pool.req_to_token.shape[1], None
        if self._slides and forward_batch.out_cache_loc is not None:
            apart = self.token_to_kv_pool.translate_loc_from_full_to_swa(forward_batch.out_cache_loc)
        self.forward_metadata = Batch(
            (forward_batch.req_pool_indices * width).to(torch.int32),
            forward_batch.seq_lens.to(torch.int32),
            cu_seqlens_q,
            most,
            apart,
        )

    def _within(self, left: int, forward_batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The slots of the keys that new tokens see through a window, in the cache of sliding layers, int32 (requests, left + new tokens),
        and how many they are. Those before them may have been freed, and are not looked up.
        """
        of_batch = self.forward_metadata
        if left not in of_batch.windows:
            new = 1 if of_batch.cu_seqlens_q is None else forward_batch.extend_seq_lens
            seen = torch.minimum(of_batch.seqused_k, new + torch.full_like(of_batch.seqused_k, left))
            width = left + of_batch.max_seqlen_q
            at = (of_batch.seqused_k - seen)[:, None] + torch.arange(width, device=seen.device)
            at = torch.minimum(at, of_batch.seqused_k[:, None] - 1).clamp(min=0)
            slots = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[:, None], at]
            table = self.token_to_kv_pool.translate_loc_from_full_to_swa(slots.to(torch.int64))
            of_batch.windows[left] = table.to(torch.int32), seen.to(torch.int32)
        return of_batch.windows[left]

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Nothing: graphs record `init_forward_metadata_in_graph`."""

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> torch.Tensor:
        """q (T, H D) to (T, H D); k and v (T, H_k, D) are written to the cache first."""
        refuse(others)
        if layer.is_cross_attention or layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL:
            kind = "cross-attention" if layer.is_cross_attention else layer.attn_type.value
            raise ValueError(f"{WHERE}: {kind} is not supported")
        if layer.v_head_dim != layer.qk_head_dim:
            raise ValueError(
                f"{WHERE}: heads of {layer.qk_head_dim} with values of {layer.v_head_dim} are not supported; allowed: equal sizes"
            )
        if layer.logit_cap and layer.logit_capping_method != "tanh":
            raise ValueError(f"{WHERE}: logit_capping_method is {layer.logit_capping_method}; allowed: tanh")
        causal = layer.attn_type == AttentionType.DECODER
        left = layer.sliding_window_size if causal else -1
        slides = self._slides.get(layer.layer_id, False)
        if slides and left < 0:
            raise ValueError(f"{WHERE}: layer {layer.layer_id} has a cache of sliding layers, and no window")
        pool = self.token_to_kv_pool
        # Checkpoints may have scales for a cache that is not of 8 bits, which has none.
        scales = (layer.k_scale, layer.v_scale) if pool.dtype.itemsize == 1 else ()
        if save_kv_cache and k is not None:
            loc = KVWriteLoc(forward_batch.out_cache_loc, self.forward_metadata.slots_apart)
            pool.set_kv_buffer(layer, loc, k, v, *scales)
        k_cache, v_cache = pool.get_kv_buffer(layer.layer_id)
        k_scale, v_scale = scales or (None, None)
        of_batch = self.forward_metadata
        if slides:
            (table, lengths), starts = self._within(left, forward_batch), None
        else:
            table, lengths = self.req_to_token_pool.req_to_token.view(-1), of_batch.seqused_k
            starts = of_batch.table_starts
        out = attention_paged(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim), k_cache.unsqueeze(1), v_cache.unsqueeze(1), table, lengths,
            of_batch.cu_seqlens_q, of_batch.max_seqlen_q, causal=causal, scale=layer.scaling,
            window_size=(left, 0 if left >= 0 else -1), softcap=layer.logit_cap, sinks=sinks, k_scale=k_scale,
            v_scale=v_scale, table_starts=starts,
        )  # fmt: skip
        return out.view(q.shape)

    forward_extend = forward_decode
