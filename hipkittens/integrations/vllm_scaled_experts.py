# SPDX-License-Identifier: MIT
"""vLLM's experts with 8- and 4-bit weights on hipkittens.moe, which `vllm.register` offers where they are enabled:

    VLLM_PLUGINS=hipkittens vllm serve MODEL \\
        --compilation-config '{"custom_ops": ["+fp8_fused_moe", "+int8_fused_moe", "+mxfp4_fused_moe"]}'

fp8_fused_moe    FP8 checkpoints: scales of 128x128 blocks (DeepSeek-V3, Qwen3-FP8), of channels and of tensors, with activations that are
                 quantized dynamically, per row or per tensor
int8_fused_moe   int8 checkpoints: scales of channels, with activations that are quantized per row
mxfp4_fused_moe  MXFP4 checkpoints: activations stay bfloat16 (gpt-oss), or on gfx950 become MXFP4 or MXFP8 (AMD Quark's)

vLLM chooses its kernels in `select_fp8_moe_backend`, `select_int8_moe_backend` and `select_mxfp4_moe_backend`; ours take precedence there
if its moe_backend is auto or names the backend whose weights stay as they are loaded: triton for FP8 and int8, emulation for MXFP4. What is not supported, such as fixed scales
of activations, LoRA, data parallelism and blocks that are not 128x128, remains with vLLM.

Written against vLLM 0.33.0, whose modular kernel runs it in the simulator (tests/oracles/test_vllm_experts.py). **It has never run in a
vLLM server on a GPU.** Importing requires vLLM.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.modular_kernel import FusedMoEActivationFormat
from vllm.model_executor.layers.fused_moe.oracle import fp8, int8, mxfp4
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
    kInt8DynamicTokenSym,
    kInt8StaticChannelSym,
    kMxfp4Dynamic,
    kMxfp4Static,
    kMxfp8Dynamic,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from .._panels import panels_of_rows
from ..activation import SWIGLU_ALPHA, SWIGLU_LIMIT
from ..preshuffle import preshuffle
from ..scaled_gemm import shuffled
from ._vllm_switches import is_enabled
from ._vllm_targets import has_scaled_instructions
from .vllm_experts import HipKittensExperts

_FP8 = (
    (kFp8Static128BlockSym, kFp8Dynamic128Sym),
    (kFp8StaticChannelSym, kFp8DynamicTokenSym),
    (kFp8StaticTensorSym, kFp8DynamicTokenSym),
    (kFp8StaticTensorSym, kFp8DynamicTensorSym),
)
# Parameters of gated_activation's "swiglu", by vLLM's names.
_SWIGLU = {"gemm1_alpha": SWIGLU_ALPHA, "gemm1_beta": 1.0, "gemm1_clamp_limit": SWIGLU_LIMIT}


class _ScaledExperts(HipKittensExperts):
    switch: ClassVar[str]  # in custom_ops

    def __init__(self, moe_config: Any, quant_config: Any, *others: Any, **more: Any):
        super().__init__(moe_config, quant_config, *others, **more)
        of_swiglu = moe_config.activation == MoEActivation.SWIGLUOAI
        for name, value in _SWIGLU.items():
            given = getattr(quant_config, name)
            if given is not None and not (of_swiglu and given == value):
                allowed = f"None and {value}" if of_swiglu else "None"
                raise ValueError(
                    f"hipkittens' experts for vLLM: {name} of {moe_config.activation} is {given}; allowed: {allowed}; "
                    f"custom_ops without +{self.switch} leave the layer to vLLM"
                )

    @property
    def expects_unquantized_inputs(self) -> bool:
        """`moe` quantizes each token once, for all its experts."""
        return True


class HipKittensFp8Experts(_ScaledExperts):
    """Weights in the device's 8-bit floats, with scales as vLLM loads them."""

    switch = "fp8_fused_moe"

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return (weight_key, activation_key) in _FP8

    def _of_weights(self, w1: torch.Tensor) -> dict[str, Any]:
        scales = {"scale_w1": self.w1_scale, "scale_w2": self.w2_scale}
        if self.block_shape is not None:
            return scales | {"recipe": ("1x128", "128x128")}
        of_rows = "row" if self.per_act_token_quant else "tensor"
        return scales | {"recipe": (of_rows, "tensor" if self.w1_scale.numel() == w1.shape[0] else "row")}


class HipKittensInt8Experts(_ScaledExperts):
    """int8 weights with scales of channels; activations are quantized per row."""

    switch = "int8_fused_moe"

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return (weight_key, activation_key) == (kInt8StaticChannelSym, kInt8DynamicTokenSym)

    def _of_weights(self, w1: torch.Tensor) -> dict[str, Any]:
        return {"scale_w1": self.w1_scale, "scale_w2": self.w2_scale, "recipe": ("row", "row")}


class HipKittensMxfp4Experts(_ScaledExperts):
    """Weights of e2m1 with e8m0 scales of 32; activations are not quantized."""

    switch = "mxfp4_fused_moe"
    activation_key: ClassVar[Any] = None
    rows: ClassVar[str | None] = None  # of moe's recipe
    _is_prepared = False

    @classmethod
    def _supports_quant_scheme(cls, weight_key: Any, activation_key: Any) -> bool:
        return weight_key == kMxfp4Static and activation_key == cls.activation_key

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Reorders weights and scales once: interleaved rows of the gate are moved ahead of those that it multiplies, and scales are put
        into the kernels' order, since otherwise each call would copy results and scales; weights are preshuffled (panel layout), from
        which rows of 2,880 values are read faster. vLLM still sees the shapes of rows.
        """
        if self._is_prepared:
            return
        of_w1, of_w2 = self.quant_config._w1, self.quant_config._w2
        if self.moe_config.activation == MoEActivation.SWIGLUOAI:
            for name in ("w13_weight", "w13_weight_scale", "w13_bias"):
                if getattr(layer, name, None) is not None:
                    replace_parameter(layer, name, _apart(getattr(layer, name).data))
            of_w1.bias = getattr(layer, "w13_bias", None)
        for name in ("w13_weight", "w2_weight"):
            weights = getattr(layer, name).data
            replace_parameter(layer, name, preshuffle(weights).view(weights.shape))
        for name in ("w13_weight_scale", "w2_weight_scale"):
            replace_parameter(layer, name, shuffled(getattr(layer, name).data))
        of_w1.scale, of_w2.scale = layer.w13_weight_scale, layer.w2_weight_scale
        self._is_prepared = True

    def _as_stored(self, weights: torch.Tensor) -> torch.Tensor:
        return panels_of_rows(weights) if self._is_prepared else weights

    def _of_weights(self, w1: torch.Tensor) -> dict[str, Any]:
        given = {"scale_w1": self.w1_scale, "scale_w2": self.w2_scale, "recipe": (self.rows, "1x32")}
        return given | ({"interleaved": False, "swizzle": "shuffled"} if self._is_prepared else {})


class HipKittensMxfp4RowsExperts(HipKittensMxfp4Experts):
    """Activations are quantized to MXFP4, on gfx950."""

    activation_key, rows = kMxfp4Dynamic, "1x32"

    @staticmethod
    def _supports_current_device() -> bool:
        return has_scaled_instructions(current_platform.get_device_capability())


class HipKittensMxfp8RowsExperts(HipKittensMxfp4RowsExperts):
    """Activations are quantized to MXFP8, on gfx950."""

    activation_key, rows = kMxfp8Dynamic, "mxfp8"


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """Rows 0, 2, .. before rows 1, 3, .."""
    return torch.cat((tensor[:, ::2], tensor[:, 1::2]), 1)


def _takes(kind: type[HipKittensExperts], config: Any, weight_key: Any, activation_key: Any) -> bool:
    if config.moe_parallel_config.use_batched_activation_format:
        return False
    taken, _ = kind.is_supported_config(
        kind, config, weight_key, activation_key, FusedMoEActivationFormat.Standard
    )
    return taken


def _select_8_bits(
    kind: type[_ScaledExperts], backend: Any, weights: Any = None, rows: Any = None
) -> Callable[..., Callable[..., Any]]:
    """For a selection with a backend whose weights stay as they are loaded. weights, rows: its default scales."""

    def around(theirs: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(theirs)
        def select(
            config: Any, weight_key: Any = weights, activation_key: Any = rows, *others: Any, **more: Any
        ) -> Any:
            if (
                config.moe_backend in ("auto", "triton")
                and is_enabled(kind.switch)
                and _takes(kind, config, weight_key, activation_key)
            ):
                return backend, kind
            return theirs(config, weight_key, activation_key, *others, **more)

        return select

    return around


def _select_mxfp4(theirs: Callable[..., Any]) -> Callable[..., Any]:
    kinds = HipKittensMxfp4Experts, HipKittensMxfp4RowsExperts, HipKittensMxfp8RowsExperts

    @functools.wraps(theirs)
    def select(config: Any, activation_key: Any = None) -> Any:
        if config.moe_backend in ("auto", "emulation") and is_enabled(HipKittensMxfp4Experts.switch):
            # The user's may differ from the checkpoint's.
            wanted = mxfp4._resolve_activation_key(activation_key)
            for kind in kinds:
                if _takes(kind, config, kMxfp4Static, wanted):
                    return mxfp4.Mxfp4MoeBackend.EMULATION, kind
        return theirs(config, activation_key)

    return select


def register() -> None:
    """Once per process: methods of layers that vLLM builds from now on try ours first."""
    of_int8 = _select_8_bits(
        HipKittensInt8Experts, int8.Int8MoeBackend.TRITON, kInt8StaticChannelSym, kInt8DynamicTokenSym
    )
    for module, name, around in (
        (fp8, "select_fp8_moe_backend", _select_8_bits(HipKittensFp8Experts, fp8.Fp8MoeBackend.TRITON)),
        (int8, "select_int8_moe_backend", of_int8),
        (mxfp4, "select_mxfp4_moe_backend", _select_mxfp4),
    ):
        theirs = getattr(module, name)
        ours = around(theirs)
        # Methods import the function by name, and some of their modules have done so already.
        for known in list(sys.modules.values()):
            if getattr(known, "__name__", "").startswith("vllm.") and vars(known).get(name) is theirs:
                setattr(known, name, ours)
