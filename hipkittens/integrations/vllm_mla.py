# SPDX-License-Identifier: MIT
"""vLLM's multi-head latent attention (DeepSeek V2 and V3, Kimi K2) on hipkittens.attention_mla and attention_varlen, as two backends that
`vllm.register` adds to vLLM's, for decoding and for prefill:

    VLLM_PLUGINS=hipkittens vllm serve MODEL --attention-backend HIPKITTENS_MLA \\
        --attention-config '{"mla_prefill_backend": "HIPKITTENS"}'

Decoding reads the cache of latents with absorbed projections: one or several tokens of each request, 16-bit caches and 8-bit ones with a
scale of the layer ("fp8", "fp8_e4m3", in the target's encoding), blocks of any size; latents of 512 and rotary keys of 64 features.
`mla_cache_write` writes the cache. Prefill has separate sizes of keys and values (192 and 128), and vLLM merges the parts of a cached
context. Sparse attention and decode context parallelism are refused when a layer is built.

Written against vLLM 0.33.0, whose own layer runs it in the simulator (tests/oracles/test_vllm_mla.py). **It has never run in a vLLM server
on a GPU.** Importing requires vLLM.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadata,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport, AttentionType, MultipleOf
from vllm.v1.attention.backends.mla.prefill.base import MLAPrefillBackend

from ..attention import attention_varlen
from ..batch_invariance import is_batch_invariant
from ..cache import mla_cache_write
from ..latent_attention import attention_mla
from ._vllm_targets import is_of_targets

NAME, PREFILL_NAME = "HIPKITTENS_MLA", "HIPKITTENS"
_WHERE = "hipkittens.integrations.vllm_mla"
_LATENT, _ROTARY = 512, 64
_LARGEST_HEAD = 256
_CACHES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3")


class HipKittensMLAMetadataBuilder(MLACommonMetadataBuilder[MLACommonMetadata]):
    """vLLM's own, for requests that all have the same number of new tokens while they decode."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    query_len_support: ClassVar[QueryLenSupport] = QueryLenSupport.UNIFORM


class HipKittensMLABackend(MLACommonBackend):
    """What vLLM queries before it builds layers."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = list(_CACHES)

    @staticmethod
    def get_name() -> str:
        return NAME

    @staticmethod
    def get_impl_cls() -> type[HipKittensMLAImpl]:
        return HipKittensMLAImpl

    @staticmethod
    def get_builder_cls() -> type[HipKittensMLAMetadataBuilder]:
        return HipKittensMLAMetadataBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [_LATENT + _ROTARY]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(1)]

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return is_of_targets(capability)

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return is_batch_invariant()


class HipKittensMLAImpl(MLACommonImpl[MLACommonMetadata]):
    """One for each layer. Raises NotImplementedError for a layer that no kernel has."""

    can_return_lse_for_decode: bool = False

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int,
        alibi_slopes: list[float] | None,
        sliding_window: int | None,
        kv_cache_dtype: str,
        logits_soft_cap: float | None,
        attn_type: str,
        kv_sharing_target_layer_name: str | None,
        **mla_args: Any,
    ):
        super().__init__(
            num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype, logits_soft_cap, attn_type,
            kv_sharing_target_layer_name, **mla_args,
        )  # fmt: skip
        sizes = mla_args["kv_lora_rank"], mla_args["qk_rope_head_dim"]
        refused = {
            "alibi_slopes": alibi_slopes,
            "sliding_window": sliding_window,
            "logits_soft_cap": logits_soft_cap,
            f"attn_type {attn_type}": attn_type != AttentionType.DECODER,
            f"kv_cache_dtype {kv_cache_dtype}": kv_cache_dtype not in _CACHES,
            f"latents of {sizes[0]} and rotary keys of {sizes[1]}": sizes != (_LATENT, _ROTARY),
            "decode context parallelism": self.dcp_world_size > 1,
        }
        for name, found in refused.items():
            if found:
                raise NotImplementedError(f"{_WHERE}: {name} is not supported; use another attention backend")
        self.supports_quant_query_input = False  # which vLLM has set

    def do_kv_cache_update(
        self,
        kv_c_normed: torch.Tensor,
        k_pe: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        kv_cache_dtype: str,
        k_scale: torch.Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Writes latents (tokens, 512) and rotary keys to their slots; tokens past slot_mapping, which pad a batch, have none."""
        if not kv_cache.numel():
            return
        slots = slot_mapping.flatten()
        scale = k_scale if kv_cache_dtype.startswith("fp8") else None
        mla_cache_write(kv_c_normed[: len(slots)], k_pe[: len(slots)], kv_cache, slots, scale=scale)

    def forward_mqa(
        self,
        q: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        kv_c_and_k_pe_cache: torch.Tensor,
        attn_metadata: MLACommonMetadata,
        layer: Any,
    ) -> tuple[torch.Tensor, None]:
        """q (tokens, H, 576), or its latent and rotary parts, to (tokens, H, 512)."""
        rows = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        decode: Any = attn_metadata.decode
        each = len(rows) // max(len(decode.seq_lens), 1)
        out = attention_mla(
            rows, kv_c_and_k_pe_cache, decode.block_table, decode.seq_lens, None, each, scale=self.scale, causal=attn_metadata.causal,
            kv_scale=layer._k_scale if self.kv_cache_dtype.startswith("fp8") else None,
        )  # fmt: skip
        return out, None


class HipKittensMLAPrefillBackend(MLAPrefillBackend):
    """Attention of new tokens to themselves and to parts of their context, with keys and values in full."""

    @staticmethod
    def get_name() -> str:
        return PREFILL_NAME

    @classmethod
    def supports_compute_capability(cls, device_capability: Any) -> bool:
        return is_of_targets(device_capability)

    @classmethod
    def supports_mla_dimensions(cls, mla_dimensions: Any) -> bool:
        keys = mla_dimensions.qk_nope_head_dim + mla_dimensions.qk_rope_head_dim
        return all(size <= _LARGEST_HEAD and size % 8 == 0 for size in (keys, mla_dimensions.v_head_dim))

    def run_prefill_new_tokens(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        return_softmax_lse: bool,
        out: torch.Tensor | None = None,
        output_scale: torch.Tensor | None = None,
    ) -> Any:
        """q and k (tokens, H, 192), v (tokens, H, 128) to (tokens, H, 128), with the LSE (H, tokens) if it is asked for."""
        if out is not None or output_scale is not None:
            raise NotImplementedError(
                f"{_WHERE}: out and output_scale are not supported, as supports_out says"
            )
        of = self._prefill_metadata
        starts, most = of.query_start_loc, of.max_query_len
        return attention_varlen(
            q, k, v, starts, starts, most, most, causal=True, scale=self.scale, return_lse=return_softmax_lse
        )

    def run_prefill_context_chunk(
        self, chunk: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The same for a part of the context, which all new tokens see."""
        if out is not None:
            raise NotImplementedError(f"{_WHERE}: out is not supported, as supports_out says")
        of_part: Any = attention_varlen(
            q, k, v, chunk.query_start_loc, chunk.cu_seq_lens, chunk.max_query_len, chunk.max_seq_len, scale=self.scale, return_lse=True
        )  # fmt: skip
        return of_part


def register() -> None:
    """Adds both backends under their names. Repeated calls have no effect."""
    from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    for names, name, kind in (
        (AttentionBackendEnum, NAME, HipKittensMLABackend),
        (MLAPrefillBackendEnum, PREFILL_NAME, HipKittensMLAPrefillBackend),
    ):
        if name not in names.__members__:
            names.register(name, f"{kind.__module__}.{kind.__qualname__}")
