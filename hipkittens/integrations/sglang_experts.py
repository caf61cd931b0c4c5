# SPDX-License-Identifier: MIT
"""SGLang's experts on hipkittens.moe, where `sglang.register` hooks the function with which SGLang's Triton runner computes them:

    SGLANG_PLUGINS=hipkittens python -m sglang.launch_server --model-path MODEL --moe-runner-backend triton

That is the runner whose weights stay as they are loaded, and SGLang's choice on ROCm without SGLANG_USE_AITER. Supported are bfloat16 and
float16 weights; FP8 ones with scales of 128x128 blocks (DeepSeek-V3, Qwen3-FP8), channels and tensors, and int8 ones with scales of
channels, where activations are quantized dynamically; biases, silu, gelu and gpt-oss's gate; expert parallelism. Everything else, such as
fixed scales of activations, weights of 4 bits and limits of silu, is left to SGLang, call by call.

Written against SGLang 0.5.23, whose own runner calls it in the simulator (tests/oracles/test_sglang.py). **It has never run in an SGLang
server on a GPU.**
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..activation import SWIGLU_ALPHA, SWIGLU_LIMIT
from ..experts import moe

TARGET = "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe.fused_experts"
_BLOCK = [128, 128]
_DTYPES = (torch.bfloat16, torch.float16)


def _gate(config: Any) -> dict[str, Any] | None:
    """Arguments of `moe` for the gate of a MoeRunnerConfig; None if it has none."""
    if not config.is_gated or config.swiglu_limit is not None:
        return None
    alpha, limit = config.gemm1_alpha, config.gemm1_clamp_limit
    if alpha is None and limit is None and config.activation in ("silu", "gelu"):
        return {"activation": config.activation}
    if config.activation == "silu" and (alpha, limit) == (SWIGLU_ALPHA, SWIGLU_LIMIT):
        return {"activation": "swiglu", "interleaved": config.gate_up_interleaved}
    return None


def _of_weights(
    x: torch.Tensor,
    w1: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    of_fp8: bool,
    of_int8: bool,
    of_channels: bool,
    block_shape: Sequence[int] | None,
) -> dict[str, Any] | None:
    """Arguments of `moe` for the scales of quantized weights; None if it does not have such weights."""
    if not of_fp8 and not of_int8:
        return {} if w1.dtype == x.dtype else None
    if block_shape is not None:
        if list(block_shape) != _BLOCK or of_int8:
            return None
        return {"scale_w1": scales[0], "scale_w2": scales[1], "recipe": ("1x128", "128x128")}
    of_each = "row" if of_channels else "tensor"
    # SGLang has one scale for each expert without further dimensions.
    first, second = (each if of_channels or each is None else each.reshape(-1, 1, 1) for each in scales)
    return {"scale_w1": first, "scale_w2": second, "recipe": (of_each, of_each)}


def experts(
    theirs: Callable[..., Any],
    hidden_states: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    topk_output: Any,
    moe_runner_config: Any,
    b1: torch.Tensor | None = None,
    b2: torch.Tensor | None = None,
    use_fp8_w8a8: bool = False,
    use_int8_w8a8: bool = False,
    use_int8_w8a16: bool = False,
    use_int4_w4a16: bool = False,
    per_channel_quant: bool = False,
    w1_scale: torch.Tensor | None = None,
    w2_scale: torch.Tensor | None = None,
    w1_zp: torch.Tensor | None = None,
    w2_zp: torch.Tensor | None = None,
    a1_scale: torch.Tensor | None = None,
    a2_scale: torch.Tensor | None = None,
    block_shape: Sequence[int] | None = None,
    **others: Any,
) -> Any:
    """hidden_states (tokens, H) of experts w1 (E, 2 I, H) and w2 (E, H, I); written back to hidden_states if the configuration says so.
    `theirs`, SGLang's function, computes what ours does not support.
    """
    config = moe_runner_config
    gate = _gate(config)
    of_weights = _of_weights(
        hidden_states, w1, (w1_scale, w2_scale), use_fp8_w8a8, use_int8_w8a8, per_channel_quant, block_shape
    )
    not_ours = (
        use_int8_w8a16, use_int4_w4a16, w1_zp is not None, w2_zp is not None, a1_scale is not None, a2_scale is not None, config.no_combine,
        *others.values(),
    )  # fmt: skip
    if (
        gate is None
        or of_weights is None
        or any(each is not None and each is not False for each in not_ours)
        or hidden_states.dtype not in _DTYPES
        # SGLANG_MOE_PADDING pads the rows of w1.
        or w1.shape[-1] != hidden_states.shape[-1]
    ):
        return theirs(
            hidden_states, w1, w2, topk_output, config, b1, b2, use_fp8_w8a8, use_int8_w8a8, use_int8_w8a16, use_int4_w4a16,
            per_channel_quant, w1_scale, w2_scale, w1_zp, w2_zp, a1_scale, a2_scale, block_shape, **others,
        )  # fmt: skip
    weights, ids, _ = topk_output
    out = moe(
        hidden_states, w1, w2, weights, ids, bias1=b1, bias2=b2, weight_input=config.apply_router_weight_on_input, **gate, **of_weights
    )  # fmt: skip
    if config.routed_scaling_factor not in (None, 1.0):
        out = out * config.routed_scaling_factor
    return hidden_states.copy_(out) if config.inplace else out
