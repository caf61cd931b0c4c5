# SPDX-License-Identifier: MIT
"""SGLang's FP8 linear layers on hipkittens.scaled_matmul, where `sglang.register` hooks the functions with which SGLang computes them:

    SGLANG_PLUGINS=hipkittens python -m sglang.launch_server --model-path MODEL --fp8-gemm-backend triton

Scales of 128x128 blocks (DeepSeek-V3, Qwen3-FP8): its function in Triton, the backend whose weights stay as they are loaded, and SGLang's
choice on ROCm without SGLANG_USE_AITER. Activations are quantized here, per 128 columns, or arrive quantized.

Scales of channels and tensors (fp8, w8a8_fp8, compressed-tensors, Quark, ModelOpt): `apply_fp8_linear`, unless SGLANG_USE_AITER is set, with
which SGLang shuffles weights for AITER. Activations are quantized here, per token or per tensor as SGLang does on ROCm, or with a fixed
scale, or arrive quantized.

What else there is, such as other blocks and activations that are to have scales of powers of two, is left to SGLang, call by call.

Written against SGLang 0.5.23, whose own layer and method run it in the simulator (tests/oracles/test_sglang.py). **It has never run in an
SGLang server on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..quantization import QuantSpec, quantize
from ..scaled_gemm import scaled_matmul

_MODULE = "sglang.srt.layers.quantization.fp8_utils"
BLOCK_TARGET, TARGET = f"{_MODULE}.triton_w8a8_block_fp8_linear", f"{_MODULE}.apply_fp8_linear"
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


def _of_rows(
    rows: torch.Tensor, scale: torch.Tensor | None, per_token: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantized activations and their scales: of the whole tensor, () or with one element, or of rows, (M, 1)."""
    if rows.dtype.itemsize > 1:
        granularity: Any = "row" if per_token and scale is None else "tensor"
        return quantize(rows, QuantSpec("fp8", granularity), None if scale is None else scale.reshape(()))
    if scale is None:
        raise ValueError("hipkittens' linear layers for SGLang: quantized activations have no input_scale")
    return rows, scale


def scaled_linear(
    theirs: Callable[..., Any],
    input: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    input_scale_ub: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    cutlass_fp8_supported: bool | None = None,
    use_per_token_if_dynamic: bool = False,
    pad_output: bool | None = None,
    compressed_tensor_quant: bool = False,
    pre_quant_output_dtype: torch.dtype | None = None,
) -> Any:
    """input (..., K) of weight (K, N) to (..., N), with the bias in the same launch; `theirs`, SGLang's function, if ours does not support the
    call. A quantized input with input_scale, one element or (M, 1), gives pre_quant_output_dtype, by default bfloat16.
    """
    rows, columns = input.reshape(-1, input.shape[-1]), weight.shape[1]
    one_of_weights, quantized = weight_scale.numel() == 1, input.dtype.itemsize == 1
    counts = (1, len(rows)) if quantized else (1,)
    if (
        not input.numel()
        or weight_scale.numel() not in (1, columns)
        or input_scale_ub is not None
        or (input_scale is not None and input_scale.numel() not in counts)
    ):
        # SGLang's own default depends on the device.
        given = {} if cutlass_fp8_supported is None else {"cutlass_fp8_supported": cutlass_fp8_supported}
        return theirs(
            input, weight, weight_scale, input_scale, input_scale_ub, bias, use_per_token_if_dynamic=use_per_token_if_dynamic,
            pad_output=pad_output, compressed_tensor_quant=compressed_tensor_quant, pre_quant_output_dtype=pre_quant_output_dtype, **given,
        )  # fmt: skip
    per_token = use_per_token_if_dynamic or not (compressed_tensor_quant or one_of_weights)
    codes, scale = _of_rows(rows, input_scale, per_token)
    out_dtype = (pre_quant_output_dtype or torch.bfloat16) if quantized else input.dtype
    # One element each is the scale of a tensor.
    of_rows, of_columns = scale.reshape(-1, 1), weight_scale.reshape(1, -1)
    out = scaled_matmul(codes, weight, of_rows, of_columns, bias=bias, out_dtype=out_dtype)
    return out.view(*input.shape[:-1], columns)
