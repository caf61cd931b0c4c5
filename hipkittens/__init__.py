# SPDX-License-Identifier: MIT
"""Prebuilt AMD GPU kernels for PyTorch. CPU tensors run in the simulated GPU, GPU tensors on the GPU.

Importing registers the operators under torch.ops.hipkittens. It starts no device, writes no file, and opens no network.
"""

from __future__ import annotations

from . import _prerequisites as _prerequisites  # isort: skip

import importlib
from typing import TYPE_CHECKING, Any

from . import _backend, _log, _timing
from . import _ops as _ops
from ._backend import simulate
from ._load import load
from ._supported import Support, supported
from ._timing import timing
from .activation import activation, gated_activation
from .attention import attention, attention_varlen
from .batch_invariance import batch_invariant, is_batch_invariant, set_batch_invariant
from .cache import cache_write, indexer_cache_write, mla_cache_write
from .convolution import causal_conv1d, causal_conv1d_update
from .delta_rule import gated_delta_rule, gated_delta_step
from .experts import expert_combine, expert_gather, moe
from .feed_forward import feed_forward, gated_linear
from .float8 import float8_linear
from .gemm import addmm_, linear, matmul
from .grouped import grouped_matmul
from .heads import concat_heads, split_heads
from .hstu import hstu_attention
from .indexer_logits import mqa_logits, mqa_logits_paged
from .kimi_delta import kimi_delta_attention, kimi_delta_step
from .latent_attention import attention_mla
from .latent_rotary import mla_rotary, rotary_cache_write
from .loss import cross_entropy, linear_cross_entropy
from .merged_attention import attention_merge
from .mul_add import mul_add
from .norm import layer_norm, rms_norm
from .norm_quantization import QuantizedNorm, norm_quantize
from .paged_attention import attention_paged, attention_paged_plan
from .preshuffle import preshuffle, unshuffle
from .qkv import qkv_rotary
from .quantization import QuantSpec, dequantize, gated_activation_quantize, quantize
from .quantized_attention import attention_of_codes, attention_quantized
from .rotary import rotary, rotary_qk, rotary_tables
from .routing import expert_sort, router, router_top1
from .sampling import sample
from .scaled_gemm import scaled_matmul
from .scaled_gemm_fused import scaled_matmul_concat_heads, scaled_matmul_multiply_add
from .selection import topk
from .softmax import softmax
from .sparse_latent_attention import attention_mla_sparse

from . import flash_attn as flash_attn, nn as nn  # isort: skip
from .patch import patch, patched, unpatch  # isort: skip

if TYPE_CHECKING:
    from . import kernel as kernel

_log.configure()
_backend.apply_environment()
_timing.apply_environment()

__version__ = "0.1.0"
__all__ = [
    "QuantSpec",
    "QuantizedNorm",
    "Support",
    "activation",
    "addmm_",
    "attention",
    "attention_merge",
    "attention_mla",
    "attention_mla_sparse",
    "attention_of_codes",
    "attention_paged",
    "attention_paged_plan",
    "attention_quantized",
    "attention_varlen",
    "batch_invariant",
    "cache_write",
    "causal_conv1d",
    "causal_conv1d_update",
    "concat_heads",
    "cross_entropy",
    "dequantize",
    "expert_combine",
    "expert_gather",
    "expert_sort",
    "feed_forward",
    "float8_linear",
    "gated_activation",
    "gated_activation_quantize",
    "gated_delta_rule",
    "gated_delta_step",
    "gated_linear",
    "grouped_matmul",
    "hstu_attention",
    "indexer_cache_write",
    "info",
    "is_batch_invariant",
    "kimi_delta_attention",
    "kimi_delta_step",
    "layer_norm",
    "linear",
    "linear_cross_entropy",
    "load",
    "matmul",
    "mla_cache_write",
    "mla_rotary",
    "moe",
    "mqa_logits",
    "mqa_logits_paged",
    "mul_add",
    "norm_quantize",
    "patch",
    "patched",
    "preshuffle",
    "qkv_rotary",
    "quantize",
    "rms_norm",
    "rotary",
    "rotary_cache_write",
    "rotary_qk",
    "rotary_tables",
    "router",
    "router_top1",
    "sample",
    "scaled_matmul",
    "scaled_matmul_concat_heads",
    "scaled_matmul_multiply_add",
    "set_batch_invariant",
    "simulate",
    "softmax",
    "split_heads",
    "supported",
    "timing",
    "topk",
    "unpatch",
    "unshuffle",
]


def info() -> dict[str, object]:
    """Return what is installed and where calls would run, as printed by `hipkittens info --json`."""
    from ._info import collect

    return collect()


def __getattr__(name: str) -> Any:
    """Imports rarely used modules on first access."""
    if name in ("fla", "kernel", "layers"):
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
