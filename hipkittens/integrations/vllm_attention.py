# SPDX-License-Identifier: MIT
"""vLLM's attention backend CUSTOM on hipkittens.attention_paged, which `vllm.register` registers:

    VLLM_PLUGINS=hipkittens vllm serve MODEL --attention-backend CUSTOM

Decoding, chunked prefill and mixed batches are one call per layer, preceded by `cache_write`. The caches are vLLM's, in each of its layouts
(KVCacheLayout), with blocks of a multiple of 8 tokens: of 16 bits, of 8-bit floats with a scale of the layer ("fp8", "fp8_e4m3", in the
target's encoding), and of 8-bit floats or integers with a scale for each token and head ("fp8_per_token_head", "int8_per_token_head").
Windows, softcaps, ALiBi, sinks, attention that is not causal and encoders (`attention_varlen`) are supported. Anything else, such as
cross-attention, is refused when a layer is built, or by `validate_configuration`, which vLLM calls first.

Written against vLLM 0.33.0, whose own classes run it in the simulator (tests/oracles/test_vllm_attention.py). **It has never run in a
vLLM server on a GPU.** Importing requires vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    MultipleOf,
)

from ..attention import attention_varlen
from ..batch_invariance import is_batch_invariant
from ..cache import cache_write
from ..paged_attention import HEAD_SIZES, attention_paged
from ._vllm_targets import is_of_targets

_WHERE = "hipkittens.integrations.vllm_attention"
# vLLM's names of caches: 16 bits, 8-bit values with a scale of the layer, and with a scale for each token and head.
_PLAIN = {"auto": None, "float16": torch.float16, "bfloat16": torch.bfloat16}
_SCALED = {"fp8": torch.uint8, "fp8_e4m3": torch.uint8}
_SCALED_BY_TOKEN = {"fp8_per_token_head": torch.uint8, "int8_per_token_head": torch.int8}
_SCALE_BYTES = 4  # a float32 after the quantized key, and after the value
_ENCODERS = (AttentionType.ENCODER, AttentionType.ENCODER_ONLY)
_KINDS = (AttentionType.DECODER, *_ENCODERS)
_BLOCK_TOKENS = 8  # pages are looked up for this many keys at once


@dataclass
class HipKittensAttentionMetadata(AttentionMetadata):
    """What the layers of a step share: fields of vLLM's CommonAttentionMetadata, with its block table and slots of one group of caches.

    query_start_loc  int32 (requests + 1,); seq_lens int32 (requests,): the number of keys, including those of the new tokens
    block_table      int32 (requests, blocks per request); slot_mapping int64 (tokens,), -1 where nothing is to be written
    causal           False: tokens see all keys of their request
    """

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    causal: bool


class HipKittensAttentionMetadataBuilder(AttentionMetadataBuilder[HipKittensAttentionMetadata]):
    """No length is read on the host and nothing is computed: launches are sized by the shapes and by max_query_len."""

    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH
    supports_update_block_table: bool = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False
    ) -> HipKittensAttentionMetadata:
        """Raises NotImplementedError for batches that `validate_configuration` would have refused: causal requests mixed with others,
        images whose tokens see each other, windows that exempt a prefix.
        """
        common = common_attn_metadata
        refused = {
            "causal is a tensor, a choice for each request": isinstance(common.causal, torch.Tensor),
            "mm_req_doc_ranges is given": getattr(common, "mm_req_doc_ranges", None) is not None,
            "rswa_prefix_lens is given": getattr(common, "rswa_prefix_lens", None) is not None,
        }
        for text, found in refused.items():
            if found:
                raise NotImplementedError(
                    f"{_WHERE}: {text}; no kernel has it, use another attention backend"
                )
        return HipKittensAttentionMetadata(
            common.num_actual_tokens,
            common.max_query_len,
            common.query_start_loc,
            common.seq_lens,
            common.block_table_tensor,
            common.slot_mapping,
            bool(common.causal),
        )

    def update_block_table(
        self, metadata: HipKittensAttentionMetadata, blk_table: torch.Tensor, slot_mapping: torch.Tensor
    ) -> HipKittensAttentionMetadata:
        """The same step for another group of caches."""
        return replace(metadata, block_table=blk_table, slot_mapping=slot_mapping)


class HipKittensAttentionBackend(AttentionBackend):
    """What vLLM queries before it builds layers. Caches of 0.33 are (blocks, key heads, block_size, content) in any memory order."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = [*_PLAIN, *_SCALED, *_SCALED_BY_TOKEN]
    forward_includes_kv_cache_update: bool = False

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # a name of AttentionBackendEnum, as which vLLM looks it up

    @staticmethod
    def get_impl_cls() -> type[HipKittensAttentionImpl]:
        return HipKittensAttentionImpl

    @staticmethod
    def get_builder_cls() -> type[HipKittensAttentionMetadataBuilder]:
        return HipKittensAttentionMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(_BLOCK_TOKENS)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return list(HEAD_SIZES)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """A key's content with a scale for each token and head: its quantized values, their float32 scale, and the same for the value."""
        if spec.state_content_bytes is not None or not spec.kv_quant_mode.is_per_token_head:
            return spec
        return replace(spec, state_content_bytes=spec.head_size + spec.head_size_v + 2 * _SCALE_BYTES)

    @classmethod
    def supports_attn_type(cls, attn_type: str) -> bool:
        return attn_type in _KINDS

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def supports_non_causal(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        """True while `hipkittens.set_batch_invariant` is on, as `vllm.register` sets it under VLLM_BATCH_INVARIANT."""
        return is_batch_invariant()

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return is_of_targets(capability)

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: str | None, *others: Any, **more: Any
    ) -> str | None:
        cache = _PLAIN.get(kv_cache_dtype or "auto")
        if cache is not None and cache != dtype:
            return f"a cache of {cache} beside a model of {dtype}"
        return None


class HipKittensAttentionImpl(AttentionImpl[HipKittensAttentionMetadata]):
    """A layer's attention. Arguments are vLLM's; raises NotImplementedError for those that no kernel supports.

    num_heads, num_kv_heads  of this rank; the first a multiple of the second
    head_size       64, 128 or 256
    alibi_slopes    one for each head; distances are flash-attn's
    sliding_window  keys a token sees, including itself; to both sides if attention is not causal
    sinks           (num_heads,)
    """

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **others: Any,
    ) -> None:
        key_heads = num_heads if num_kv_heads is None else num_kv_heads
        caches = (*_PLAIN, *_SCALED, *_SCALED_BY_TOKEN)
        refused = {
            f"head_size {head_size}; 64, 128 and 256 are": head_size not in HEAD_SIZES,
            f"kv_cache_dtype {kv_cache_dtype!r}; {', '.join(caches)} are": kv_cache_dtype not in caches,
            f"attn_type {attn_type!r}; {', '.join(_KINDS)} are": attn_type not in _KINDS,
            f"{', '.join(sorted(others))}; sinks alone is": bool(others),
        }
        for text, found in refused.items():
            if found:
                raise NotImplementedError(f"{_WHERE}: {text} allowed; use another attention backend")
        if num_heads % key_heads:
            raise ValueError(
                f"{_WHERE}: num_heads {num_heads} is no multiple of num_kv_heads {key_heads}; it has to be"
            )
        if sinks is not None and sinks.shape != (num_heads,):
            raise ValueError(f"{_WHERE}: sinks has shape {tuple(sinks.shape)}; ({num_heads},) is allowed")
        self.num_heads, self.num_kv_heads, self.head_size = num_heads, key_heads, head_size
        self.scale = float(scale)
        self.kv_cache_dtype = kv_cache_dtype
        self.attn_type = attn_type
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        # On the default device, which is the model's while vLLM builds it.
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sliding_window = (-1, 0) if sliding_window is None else (sliding_window - 1, 0)
        self.logits_soft_cap = float(logits_soft_cap or 0.0)
        self.sinks = sinks

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: HipKittensAttentionMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes output, (tokens, num_heads, head_size) as query, and returns it. The tokens' keys are in the cache already; rows that
        belong to no request are unchanged. Without metadata, when vLLM measures memory, output is zeros.
        """
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError(
                f"{_WHERE}: output_scale or output_block_scale is given; outputs of 16 bits are allowed, turn the fusion of "
                "attention with quantisation off"
            )
        if attn_metadata is None:
            return output.fill_(0)
        encoder = self.attn_type in _ENCODERS  # it has no cache, and sees all of its keys
        causal = attn_metadata.causal and not encoder
        terms: dict[str, Any] = {
            "causal": causal,
            "scale": self.scale,
            "window_size": self.sliding_window if causal else (self.sliding_window[0],) * 2,
            "softcap": self.logits_soft_cap,
            "alibi_slopes": self.alibi_slopes,
            "sinks": self.sinks,
        }
        starts, longest = attn_metadata.query_start_loc, attn_metadata.max_query_len
        if encoder:
            tokens = attn_metadata.num_actual_tokens
            q, k, v = query[:tokens], key[:tokens], value[:tokens]
            output[:tokens] = attention_varlen(q, k, v, starts, starts, longest, longest, **terms)
            return output
        keys, values, key_scales, value_scales = self._caches(kv_cache)
        if self.kv_cache_dtype in _SCALED:
            key_scales, value_scales = layer._k_scale, layer._v_scale
        return attention_paged(
            query, keys, values, attn_metadata.block_table, attn_metadata.seq_lens, starts, longest, k_scale=key_scales,
            v_scale=value_scales, cache_layout="hnd", out=output, **terms,
        )  # fmt: skip

    def do_kv_cache_update(
        self,
        layer: Any,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Writes keys and values, (tokens, num_kv_heads, head_size), into their slots; does nothing for an encoder."""
        if self.attn_type in _ENCODERS or kv_cache.numel() == 0:
            return
        keys, values, key_scales, value_scales = self._caches(kv_cache)
        scales: dict[str, torch.Tensor] = {}
        if key_scales is not None and value_scales is not None:
            scales = {
                "key_scales": key_scales.transpose(1, 2),
                "value_scales": value_scales.transpose(1, 2),
            }
        elif self.kv_cache_dtype in _SCALED:
            scales = {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
        tokens = slot_mapping.shape[0]  # rows past them are padding of the batch
        cache_write(key[:tokens], value[:tokens], keys, values, slot_mapping, layout="hnd", **scales)

    def _caches(
        self, kv_cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """Views of vLLM's cache: keys and values, (blocks, num_kv_heads, block_size, head_size), and with per-key scales those as well,
        (blocks, num_kv_heads, block_size).
        """
        size, name = self.head_size, self.kv_cache_dtype
        by_token = _SCALED_BY_TOKEN.get(name)
        content = 2 * size if by_token is None else 2 * (size + _SCALE_BYTES)
        if kv_cache.dim() != 4 or kv_cache.shape[1] != self.num_kv_heads or kv_cache.shape[3] != content:
            raise ValueError(
                f"{_WHERE}: kv_cache has shape {tuple(kv_cache.shape)}; (blocks, {self.num_kv_heads}, block_size, {content}) is allowed, "
                "as vLLM 0.33 makes it of this backend's customize_spec"
            )
        if by_token is None:
            codes = kv_cache.view(_SCALED[name]) if name in _SCALED else kv_cache
            return codes[..., :size], codes[..., size:], None, None
        codes, half = kv_cache.view(by_token), size + _SCALE_BYTES
        scales = kv_cache.view(torch.float32)
        at = size // _SCALE_BYTES
        return codes[..., :size], codes[..., half : half + size], scales[..., at], scales[..., 2 * at + 1]
