# SPDX-License-Identifier: MIT
"""Megatron Core's core attention on hipkittens.attention: use CoreAttention in a layer spec.

    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from hipkittens.integrations.megatron import CoreAttention

    spec = get_gpt_layer_local_spec()
    spec.submodules.self_attention.submodules.core_attention = CoreAttention

GPT models of Megatron Core 0.16.1 have been run with it, on the CPU with the simulator and one process (tests/oracles/test_megatron.py).
**Not run: several ranks, its inference, and anything on a GPU.**

Importing requires Megatron Core. What no kernel supports raises NotImplementedError with its name: context parallelism, padding and
arbitrary masks, attention biases, softmax offsets, sequences that are padded inside a pack.
"""

from __future__ import annotations

import contextlib

import torch
from megatron.core import tensor_parallel
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.utils import is_layer_window_attention

from ..attention import attention, attention_varlen

WHERE = "hipkittens.integrations.megatron.CoreAttention"


class CoreAttention(MegatronModule):
    """megatron.core.transformer.dot_product_attention.DotProductAttention with its arguments.

    apply_query_key_layer_scaling divides the scores by the layer's number and multiplies them again in float32; here they are float32
    throughout, so it has no effect.
    """

    def __init__(
        self,
        config,
        layer_number,
        attn_mask_type,
        attention_type,
        attention_dropout=None,
        softmax_scale=None,
        cp_comm_type=None,
        pg_collection=None,
    ):
        super().__init__(config=config)
        _refuse("context_parallel_size", config.context_parallel_size, config.context_parallel_size == 1)
        softmax_type = getattr(config, "softmax_type", "vanilla")
        _refuse("softmax_type", softmax_type, softmax_type == "vanilla")
        self.config = config
        self.attn_mask_type = attn_mask_type
        self.softmax_scale = softmax_scale
        self.dropout_p = config.attention_dropout if attention_dropout is None else attention_dropout
        self.window_size = (-1, -1)
        if is_layer_window_attention(
            config.window_size, getattr(config, "window_attn_skip_freq", None), max(1, layer_number)
        ):
            self.window_size = tuple(config.window_size)

    def forward(
        self,
        query,
        key,
        value,
        attention_mask,
        attn_mask_type=None,
        attention_bias=None,
        packed_seq_params=None,
    ):
        """Returns (length, batch, heads * head size) for query (length, batch, heads, head size), key and value likewise.

        With packed_seq_params, (tokens, heads * head size) for (tokens, heads, head size). A causal query is aligned with the end of the
        keys, as with a cache.
        """
        kind = (self.attn_mask_type if attn_mask_type is None else attn_mask_type).name
        packed = packed_seq_params is not None
        # A pack has no padding to mask: its sequences end at cu_seqlens.
        allowed = ("causal", "no_mask", *(("padding", "padding_causal") if packed else ()))
        _refuse("attn_mask_type", kind, kind in allowed)
        _refuse("attention_bias", "given", attention_bias is None)
        if kind == "no_mask":
            _refuse("attention_mask", "given with attn_mask_type no_mask", attention_mask is None)
        options = {
            "causal": kind.endswith("causal"),
            "scale": self.softmax_scale,
            "window_size": self.window_size,
            "dropout_p": self.dropout_p if self.training else 0.0,
        }
        with self._generator(options["dropout_p"]):
            if packed:
                return self._packed(query, key, value, packed_seq_params, options)
            q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
            return attention(q, k, v, **options).transpose(0, 1).flatten(-2)

    def _generator(self, dropout_p: float):
        """Tensor-parallel ranks hold different heads, and draw from separate generators."""
        if dropout_p == 0.0 or self.config.sequence_parallel:
            return contextlib.nullcontext()
        return tensor_parallel.get_cuda_rng_tracker().fork()

    @staticmethod
    def _packed(query, key, value, pack, options) -> torch.Tensor:
        _refuse("packed_seq_params.qkv_format", pack.qkv_format, pack.qkv_format == "thd")
        for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
            _refuse(f"packed_seq_params.{name}", "given", getattr(pack, name, None) is None)
        return attention_varlen(
            query,
            key,
            value,
            pack.cu_seqlens_q,
            pack.cu_seqlens_kv,
            int(pack.max_seqlen_q),
            int(pack.max_seqlen_kv),
            **options,
        ).flatten(-2)


def _refuse(name: str, value: object, allowed: bool) -> None:
    if not allowed:
        raise NotImplementedError(
            f"{WHERE}: {name} is {value}; no kernel has it, use another core_attention for this layer"
        )
