# SPDX-License-Identifier: MIT
"""AITER's names over hipkittens' kernels: `from hipkittens import aiter` in place of `import aiter`.

Names, argument orders and defaults are those of amd-aiter 0.1.7.post2; of the causal convolutions, which that version has not, those
of its main branch of August 2026. Arguments may be given by position or by name, and results go where AITER puts them: into the
tensors that a caller passes as out, scales, topk_ids and the like. docs/aiter.md has the table of kernels.

Values are hipkittens' own: everything is float32 until it is rounded once, and ties are the lower number's. Where AITER leaves
results open or wrong, the docstrings say what comes here. What is not implemented raises NotImplementedError by name; no argument is
ignored but those of which a docstring says that they only choose among AITER's own kernels.
"""

from __future__ import annotations

from ._activation import gelu_and_mul, gelu_tanh_and_mul, scaled_silu_and_mul, silu_and_mul
from ._convolution import causal_conv1d_fn, causal_conv1d_update
from ._moe import (
    biased_grouped_topk,
    biased_grouped_topk_hip,
    grouped_topk,
    moe_align_block_size,
    moe_align_block_size_triton,
    moe_fused_gate,
    moe_sorting_fwd,
    topk,
    topk_sigmoid,
    topk_softmax,
)
from ._norm import (
    fused_add_rms_norm_cu,
    layer_norm,
    layernorm2d_fwd,
    layernorm2d_fwd_with_add,
    rms_norm,
    rms_norm_cu,
    rmsnorm2d_fwd,
    rmsnorm2d_fwd_with_add,
)
from ._quant import (
    dynamic_per_group_scaled_quant_fp4,
    dynamic_per_tensor_quant,
    dynamic_per_token_scaled_quant,
    per_1x32_f4_quant_hip,
    per_group_quant_hip,
    per_tensor_quant_hip,
    per_token_quant_hip,
    smoothquant_fwd,
    static_per_tensor_quant,
)
from ._rope import ROPE, rotary_embedding_fwd
from ._sample import (
    exponential,
    greedy_sample,
    mixed_sample,
    mixed_sample_outer_exponential,
    random_sample,
    random_sample_outer_exponential,
)

__all__ = [
    "biased_grouped_topk",
    "biased_grouped_topk_hip",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "dynamic_per_group_scaled_quant_fp4",
    "dynamic_per_tensor_quant",
    "dynamic_per_token_scaled_quant",
    "exponential",
    "fused_add_rms_norm_cu",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "greedy_sample",
    "grouped_topk",
    "layer_norm",
    "layernorm2d_fwd",
    "layernorm2d_fwd_with_add",
    "mixed_sample",
    "mixed_sample_outer_exponential",
    "moe_align_block_size",
    "moe_align_block_size_triton",
    "moe_fused_gate",
    "moe_sorting_fwd",
    "per_1x32_f4_quant_hip",
    "per_group_quant_hip",
    "per_tensor_quant_hip",
    "per_token_quant_hip",
    "random_sample",
    "random_sample_outer_exponential",
    "rms_norm",
    "rms_norm_cu",
    "rmsnorm2d_fwd",
    "rmsnorm2d_fwd_with_add",
    "rotary_embedding_fwd",
    "scaled_silu_and_mul",
    "silu_and_mul",
    "smoothquant_fwd",
    "static_per_tensor_quant",
    "topk",
    "topk_sigmoid",
    "topk_softmax",
]

# rope_fwd, rope_cached_2c_fwd_inplace and their kind.
globals().update(ROPE)
__all__.extend(ROPE)
