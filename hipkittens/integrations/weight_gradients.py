# SPDX-License-Identifier: MIT
"""Gradients of weights summed in float32 as APEX's extension fused_weight_gradient_mlp_cuda does, on hipkittens.addmm_.

Megatron Core's gradient_accumulation_fusion imports that extension, which is compiled for CUDA. Before Megatron is imported:

    from hipkittens.integrations import weight_gradients

    weight_gradients.install()

Linear layers of Megatron Core 0.16.1 have run with it, on the CPU with the simulator (tests/oracles/test_megatron.py); nothing has on a
GPU. wgrad_gemm_accum_fp16, for gradients that are summed in 16 bits, is not there.
"""

from __future__ import annotations

import importlib.util
import sys
import types

import torch

from ..gemm import addmm_

MODULE = "fused_weight_gradient_mlp_cuda"


def install() -> None:
    """Puts a module named MODULE where `import` finds it. ImportError where another one is imported or installed."""
    present = sys.modules.get(MODULE)
    if present is not None and getattr(present, "wgrad_gemm_accum_fp32", None) is wgrad_gemm_accum_fp32:
        return
    if present is not None or importlib.util.find_spec(MODULE) is not None:
        raise ImportError(
            f"hipkittens.integrations.weight_gradients: this Python has a {MODULE} of its own; uninstall it, or do not call install()"
        )
    module = types.ModuleType(MODULE, __doc__)
    module.wgrad_gemm_accum_fp32 = wgrad_gemm_accum_fp32
    sys.modules[MODULE] = module


def uninstall() -> None:
    """Takes it away again; nothing where `install` put none."""
    if getattr(sys.modules.get(MODULE), "wgrad_gemm_accum_fp32", None) is wgrad_gemm_accum_fp32:
        del sys.modules[MODULE]


def wgrad_gemm_accum_fp32(input: torch.Tensor, d_output: torch.Tensor, d_weight: torch.Tensor) -> None:
    """d_weight += d_output.T @ input for input (..., in) and d_output (..., out) in bfloat16 or float16, and d_weight (out, in) in float32."""
    with torch.no_grad():
        addmm_(d_weight, d_output.flatten(0, -2).t(), input.flatten(0, -2))
