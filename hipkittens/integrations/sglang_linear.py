# SPDX-License-Identifier: MIT
"""SGLang's linear layers of FP8 blocks on hipkittens.scaled_matmul, where `sglang.register` hooks the function with which SGLang computes
them in Triton:

    SGLANG_PLUGINS=hipkittens python -m sglang.launch_server --model-path MODEL --fp8-gemm-backend triton

That is the backend whose weights stay as they are loaded, and SGLang's choice on ROCm without SGLANG_USE_AITER. Scales of 128x128 blocks
(DeepSeek-V3, Qwen3-FP8) are supported, with activations that are quantized here, per 128 columns, or arrive quantized; other blocks, and
activations that are to have scales of powers of two, are left to SGLang, call by call.

Written against SGLang 0.5.23, whose own layer and method run it in the simulator (tests/oracles/test_sglang.py). **It has never run in an
SGLang server on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..quantization import QuantSpec, quantize
from ..scaled_gemm import scaled_matmul

TARGET = "sglang.srt.layers.quantization.fp8_utils.triton_w8a8_block_fp8_linear"
_BLOCK = 128
# SGLang's lower bound of the largest magnitude of a group.
_ROWS = QuantSpec("fp8", _BLOCK, floor=1e-10)


def block_linear(
    theirs: Callable[..., Any],
    input: torch.Tensor,
    weight: torch.Tensor,
    block_size: Sequence[int],
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    act_scale_ue8m0: bool = False,
    **others: Any,
) -> Any:
    """input (..., K) of weight (N, K) to (..., N), with the bias in the same launch; `theirs`, SGLang's function, if ours does not support the
    call. An input with input_scale (M, ceil(K / 128)) is quantized, and gives bfloat16.
    """
    if list(block_size) != [_BLOCK, _BLOCK] or act_scale_ue8m0 or not input.numel():
        return theirs(
            input, weight, block_size, weight_scale, input_scale, bias, act_scale_ue8m0=act_scale_ue8m0, **others
        )  # fmt: skip
    rows = input.reshape(-1, input.shape[-1])
    codes, scale = quantize(rows, _ROWS) if input_scale is None else (rows, input_scale)
    out_dtype = input.dtype if input_scale is None else torch.bfloat16
    out = scaled_matmul(
        codes,
        weight.t(),
        scale,
        weight_scale.t(),
        recipe=("1x128", "128x128"),
        bias=bias,
        out_dtype=out_dtype,
    )
    return out.view(*input.shape[:-1], len(weight))
