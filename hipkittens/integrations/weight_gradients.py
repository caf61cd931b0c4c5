# SPDX-License-Identifier: MIT
"""Weight gradients accumulated in float32, like APEX's extension fused_weight_gradient_mlp_cuda, on hipkittens.addmm_.

Megatron Core's gradient_accumulation_fusion imports that extension, which is compiled for CUDA. Before Megatron is imported:

    from hipkittens.integrations import weight_gradients

    weight_gradients.install()

Linear layers of Megatron Core 0.16.1 have been run with it, on the CPU with the simulator (tests/oracles/test_megatron.py); nothing has
been run on a GPU. wgrad_gemm_accum_fp16, for gradients accumulated in 16 bits, is not provided.
"""

from __future__ import annotations

import sys
import types

import torch

from ..gemm import addmm_
from ._stand_in_modules import put

MODULE = "fused_weight_gradient_mlp_cuda"


def install() -> None:
    """Makes `import` find a module named MODULE. Raises ImportError if another one is imported or installed."""
    module = types.ModuleType(MODULE, __doc__)
    module.wgrad_gemm_accum_fp32 = wgrad_gemm_accum_fp32
    put("hipkittens.integrations.weight_gradients", {MODULE: module}, _is_ours())


def uninstall() -> None:
    """Removes it again; does nothing if `install` was not called."""
    if _is_ours():
        del sys.modules[MODULE]


def _is_ours() -> bool:
    return getattr(sys.modules.get(MODULE), "wgrad_gemm_accum_fp32", None) is wgrad_gemm_accum_fp32


def wgrad_gemm_accum_fp32(input: torch.Tensor, d_output: torch.Tensor, d_weight: torch.Tensor) -> None:
    """d_weight += d_output.T @ input for input (..., in) and d_output (..., out) in bfloat16 or float16, and d_weight (out, in) in float32."""
    with torch.no_grad():
        addmm_(d_weight, d_output.flatten(0, -2).t(), input.flatten(0, -2))
