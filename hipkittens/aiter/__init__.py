# SPDX-License-Identifier: MIT
"""AITER's names over hipkittens' kernels: `from hipkittens import aiter` in place of `import aiter`.

Names, argument orders and defaults are those of amd-aiter 0.1.7.post2; of what that version has not, such as the causal convolutions,
those of its main branch of August 2026. Arguments may be given by position or by name, and results go where AITER puts them: into the
tensors that a caller passes as out, scales, topk_ids and the like. docs/aiter.md has the table of kernels.

Values are hipkittens' own: everything is float32 until it is rounded once, and ties are the lower number's. Where AITER leaves
results open or wrong, the docstrings say what comes here. What is not implemented raises NotImplementedError by name; no argument is
ignored but those of which a docstring says that they only choose among AITER's own kernels.
"""

from __future__ import annotations

from ._activation import (
    act_mul_and_fp8_group_quant,
    act_mul_and_mxfp4_quant,
    gelu_and_mul,
    gelu_tanh_and_mul,
    scaled_silu_and_mul,
    silu_and_mul,
)
from ._attention import mla_decode_fwd, unified_attention, unified_attention_sparse_mla
from ._cache import (
    concat_and_cache_mla,
    cp_gather_indexer_k_quant_cache,
    indexer_k_quant_and_cache,
    reshape_and_cache,
    reshape_and_cache_flash,
    reshape_and_cache_with_pertoken_quant,
)
from ._convolution import (
    causal_conv1d_fn,
    causal_conv1d_fn_split_qkv,
    causal_conv1d_update,
    causal_conv1d_update_split_qkv,
)
from ._extend_attention import extend_attention_fwd
from ._feed_forward import (
    ff_a16w16_fused_gated,
    ff_a16w16_fused_ungated,
    ff_a16w16_gated,
    ff_a16w16_nogate,
    gemm_a16w16_gated,
)
from ._flash_attention import flash_attn_func, flash_attn_varlen_func
from ._fused_moe import (
    ActivationType,
    QuantType,
    asm_moe,
    asm_moe_tkw1,
    fused_moe,
    moe_sorting,
    moe_sum,
)
from ._gemm import (
    gemm_a8w8,
    gemm_a8w8_ASM,
    gemm_a8w8_bpreshuffle,
    gemm_a8w8_CK,
    gemm_a8w8_per_token_scale,
)
from ._gemm_16 import (
    batched_gemm_bf16,
    batched_gemm_bf16_CK,
    gemm_a16w16,
    gemm_a16w16_atomic,
)
from ._gemm_batched import (
    batched_gemm_a8w8,
    batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant,
    batched_gemm_a8w8_CK,
    batched_gemm_a16wfp4,
    batched_gemm_afp4wfp4,
    batched_gemm_afp4wfp4_pre_quant,
)
from ._gemm_blockscale import (
    flatmm_a8w8_blockscale_ASM,
    gemm_a8w8_blockscale,
    gemm_a8w8_blockscale_bpreshuffle,
    gemm_a16w8_blockscale,
)
from ._gemm_fp4 import (
    gemm_a4w4,
    gemm_a16wfp4,
    gemm_a16wfp4_preshuffle,
    gemm_afp4wfp4,
    gemm_afp4wfp4_pre_quant,
    gemm_afp4wfp4_preshuffle,
    gemm_afp4wfp4_preshuffled_scales,
    gemm_afp4wfp4_preshuffled_weight_scales,
)
from ._gemm_fused import (
    fused_gemm_a8w8_blockscale_a16w16,
    fused_gemm_a8w8_blockscale_mul_add,
    fused_gemm_afp4wfp4_a16w16,
    fused_gemm_afp4wfp4_mul_add,
    fused_gemm_afp4wfp4_preshuffle_add_mul,
)
from ._gemm_split_cat import (
    fused_gemm_a8w8_blockscale_preshuffle_split_cat,
    fused_gemm_a8w8_blockscale_split_cat,
    fused_gemm_afp4wfp4_preshuffle_split_cat,
    fused_gemm_afp4wfp4_split_cat,
)
from ._gmm import (
    deepgemm,
    gmm,
    nptgmm,
    ptgmm,
)
from ._heads import fused_qk_cat, fused_qkv_split_qk_rope, split_qkv
from ._logits import deepgemm_fp8_paged_mqa_logits, fp8_mqa_logits
from ._moe import (
    biased_grouped_topk,
    biased_grouped_topk_hip,
    fused_topk,
    grouped_topk,
    moe_align_block_size,
    moe_align_block_size_triton,
    moe_fused_gate,
    moe_sorting_fwd,
    routing_sigmoid_top1,
    topk,
    topk_sigmoid,
    topk_softmax,
    topk_softmax_asm,
)
from ._mul_add import fused_mul_add
from ._norm import (
    fused_add_rms_norm_cu,
    fused_add_rmsnorm_pad,
    layer_norm,
    layernorm2d_fwd,
    layernorm2d_fwd_with_add,
    rms_norm,
    rms_norm_cu,
    rmsnorm2d_fwd,
    rmsnorm2d_fwd_with_add,
)
from ._norm_quant import (
    fused_rms_fp8_group_quant,
    fused_rms_fp8_per_tensor_static_quant,
    fused_rms_mxfp4_quant,
    layernorm2d_fwd_with_add_dynamicquant,
    layernorm2d_fwd_with_add_smoothquant,
    layernorm2d_fwd_with_dynamicquant,
    layernorm2d_fwd_with_smoothquant,
    rmsnorm2d_fwd_with_add_dynamicquant,
    rmsnorm2d_fwd_with_add_smoothquant,
    rmsnorm2d_fwd_with_dynamicquant,
    rmsnorm2d_fwd_with_smoothquant,
)
from ._quant import (
    dynamic_per_group_scaled_quant_fp4,
    dynamic_per_tensor_quant,
    dynamic_per_token_scaled_quant,
    moe_smoothquant_fwd,
    per_1x32_f4_quant_hip,
    per_group_quant_hip,
    per_tensor_quant_hip,
    per_token_quant_hip,
    smooth_per_token_scaled_quant,
    smoothquant_fwd,
    static_per_tensor_quant,
)
from ._rope import ROPE, rope_2d_bwd, rope_2d_fwd, rope_2d_fwd_inplace, rotary_embedding_fwd
from ._rope_cache import (
    fused_fp4_bmm_rope_cat_and_cache_mla,
    fused_fp8_bmm_rope_cat_and_cache_mla,
    fused_qk_rope_cat,
    fused_qk_rope_cat_and_cache_mla,
    fused_qk_rope_concat_and_cache_mla,
    fused_qk_rope_reshape_and_cache,
)
from ._sample import (
    exponential,
    greedy_sample,
    mixed_sample,
    mixed_sample_outer_exponential,
    random_sample,
    random_sample_outer_exponential,
)
from ._softmax import softmax

__all__ = [
    "ActivationType",
    "QuantType",
    "act_mul_and_fp8_group_quant",
    "act_mul_and_mxfp4_quant",
    "asm_moe",
    "asm_moe_tkw1",
    "batched_gemm_a8w8",
    "batched_gemm_a8w8_CK",
    "batched_gemm_a8w8_a_per_token_group_prequant_w_per_batched_tensor_quant",
    "batched_gemm_a16wfp4",
    "batched_gemm_afp4wfp4",
    "batched_gemm_afp4wfp4_pre_quant",
    "batched_gemm_bf16",
    "batched_gemm_bf16_CK",
    "biased_grouped_topk",
    "biased_grouped_topk_hip",
    "causal_conv1d_fn",
    "causal_conv1d_fn_split_qkv",
    "causal_conv1d_update",
    "causal_conv1d_update_split_qkv",
    "concat_and_cache_mla",
    "cp_gather_indexer_k_quant_cache",
    "deepgemm",
    "deepgemm_fp8_paged_mqa_logits",
    "dynamic_per_group_scaled_quant_fp4",
    "dynamic_per_tensor_quant",
    "dynamic_per_token_scaled_quant",
    "exponential",
    "extend_attention_fwd",
    "ff_a16w16_fused_gated",
    "ff_a16w16_fused_ungated",
    "ff_a16w16_gated",
    "ff_a16w16_nogate",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flatmm_a8w8_blockscale_ASM",
    "fp8_mqa_logits",
    "fused_add_rms_norm_cu",
    "fused_add_rmsnorm_pad",
    "fused_fp4_bmm_rope_cat_and_cache_mla",
    "fused_fp8_bmm_rope_cat_and_cache_mla",
    "fused_gemm_a8w8_blockscale_a16w16",
    "fused_gemm_a8w8_blockscale_mul_add",
    "fused_gemm_a8w8_blockscale_preshuffle_split_cat",
    "fused_gemm_a8w8_blockscale_split_cat",
    "fused_gemm_afp4wfp4_a16w16",
    "fused_gemm_afp4wfp4_mul_add",
    "fused_gemm_afp4wfp4_preshuffle_add_mul",
    "fused_gemm_afp4wfp4_preshuffle_split_cat",
    "fused_gemm_afp4wfp4_split_cat",
    "fused_moe",
    "fused_mul_add",
    "fused_qk_cat",
    "fused_qk_rope_cat",
    "fused_qk_rope_cat_and_cache_mla",
    "fused_qk_rope_concat_and_cache_mla",
    "fused_qk_rope_reshape_and_cache",
    "fused_qkv_split_qk_rope",
    "fused_rms_fp8_group_quant",
    "fused_rms_fp8_per_tensor_static_quant",
    "fused_rms_mxfp4_quant",
    "fused_topk",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "gemm_a4w4",
    "gemm_a8w8",
    "gemm_a8w8_ASM",
    "gemm_a8w8_CK",
    "gemm_a8w8_blockscale",
    "gemm_a8w8_blockscale_bpreshuffle",
    "gemm_a8w8_bpreshuffle",
    "gemm_a8w8_per_token_scale",
    "gemm_a16w8_blockscale",
    "gemm_a16w16",
    "gemm_a16w16_atomic",
    "gemm_a16w16_gated",
    "gemm_a16wfp4",
    "gemm_a16wfp4_preshuffle",
    "gemm_afp4wfp4",
    "gemm_afp4wfp4_pre_quant",
    "gemm_afp4wfp4_preshuffle",
    "gemm_afp4wfp4_preshuffled_scales",
    "gemm_afp4wfp4_preshuffled_weight_scales",
    "gmm",
    "greedy_sample",
    "grouped_topk",
    "indexer_k_quant_and_cache",
    "layer_norm",
    "layernorm2d_fwd",
    "layernorm2d_fwd_with_add",
    "layernorm2d_fwd_with_add_dynamicquant",
    "layernorm2d_fwd_with_add_smoothquant",
    "layernorm2d_fwd_with_dynamicquant",
    "layernorm2d_fwd_with_smoothquant",
    "mixed_sample",
    "mixed_sample_outer_exponential",
    "mla_decode_fwd",
    "moe_align_block_size",
    "moe_align_block_size_triton",
    "moe_fused_gate",
    "moe_smoothquant_fwd",
    "moe_sorting",
    "moe_sorting_fwd",
    "moe_sum",
    "nptgmm",
    "per_1x32_f4_quant_hip",
    "per_group_quant_hip",
    "per_tensor_quant_hip",
    "per_token_quant_hip",
    "ptgmm",
    "random_sample",
    "random_sample_outer_exponential",
    "reshape_and_cache",
    "reshape_and_cache_flash",
    "reshape_and_cache_with_pertoken_quant",
    "rms_norm",
    "rms_norm_cu",
    "rmsnorm2d_fwd",
    "rmsnorm2d_fwd_with_add",
    "rmsnorm2d_fwd_with_add_dynamicquant",
    "rmsnorm2d_fwd_with_add_smoothquant",
    "rmsnorm2d_fwd_with_dynamicquant",
    "rmsnorm2d_fwd_with_smoothquant",
    "rope_2d_bwd",
    "rope_2d_fwd",
    "rope_2d_fwd_inplace",
    "rotary_embedding_fwd",
    "routing_sigmoid_top1",
    "scaled_silu_and_mul",
    "silu_and_mul",
    "smooth_per_token_scaled_quant",
    "smoothquant_fwd",
    "softmax",
    "split_qkv",
    "static_per_tensor_quant",
    "topk",
    "topk_sigmoid",
    "topk_softmax",
    "topk_softmax_asm",
    "unified_attention",
    "unified_attention_sparse_mla",
]

# rope_fwd, rope_cached_2c_fwd_inplace and their kind.
globals().update(ROPE)
__all__.extend(ROPE)
