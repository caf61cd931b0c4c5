# SPDX-License-Identifier: MIT
"""vLLM's quantized linear layers on hipkittens.scaled_matmul, which `vllm.register` adds to vLLM's kernels where they are enabled:

    VLLM_PLUGINS=hipkittens vllm serve MODEL \\
        --compilation-config '{"custom_ops": ["+fp8_linear", "+int8_linear", "+mxfp4_linear", "+mxfp8_linear"]}'

fp8_linear    FP8 weights with scales of tensors and channels, with activations quantized per tensor (fixed or dynamic scales) or per token,
              or with scales of 128x128 blocks (DeepSeek-V3, Qwen3-FP8) and activations quantized per 128 columns
int8_linear   int8 weights with scales of tensors and channels, and symmetric activations, quantized per token or with a fixed scale
mxfp4_linear  MXFP4 weights: activations stay bfloat16, or on gfx950 become MXFP4
mxfp8_linear  MXFP8 weights and activations, on gfx950

These are the kernels of every quantization method that asks vLLM for one by its scales: fp8, compressed-tensors, Quark, ModelOpt, FBGEMM
and online quantization. They come first for each layer that they support, unless --linear-backend names others; VLLM_DISABLED_KERNELS
excludes them by their classes. Other layers keep the kernels that vLLM selects.

FP8 activations are quantized by vLLM's own QuantFP8, which it fuses with what precedes it; int8 and MX ones by `hipkittens.quantize`.

Written against vLLM 0.33.0, whose layers' methods run it in the simulator (tests/oracles/test_vllm_linear.py). **It has never run in a
vLLM server on a GPU.** Importing requires vLLM.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import FP8ScaledMMLinearKernel, Int8ScaledMMLinearKernel
from vllm.model_executor.kernels.linear.mxfp4.base import MxFp4LinearKernel
from vllm.model_executor.kernels.linear.mxfp8.Mxfp8LinearKernel import Mxfp8LinearKernel
from vllm.model_executor.kernels.linear.scaled_mm.BlockScaledMMLinearKernel import (
    Fp8BlockScaledMMLinearKernel,
)
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8Dynamic128Sym,
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8Static128BlockSym,
    kFp8StaticChannelSym,
    kFp8StaticTensorSym,
    kMxfp4Dynamic,
    kMxfp4Static,
)
from vllm.model_executor.layers.quantization.utils.w8a8_utils import convert_to_channelwise
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from .._panels import CHUNK, PANEL_ROWS, as_b, panels_of_rows
from ..preshuffle import preshuffle
from ..quantization import QuantSpec, quantize
from ..scaled_gemm import scaled_matmul, shuffled
from ._vllm_switches import is_enabled
from ._vllm_targets import has_scaled_instructions, is_of_targets

_OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
Answer = tuple[bool, str | None]  # vLLM's: whether, and if not, why


class _OnTargets:
    """Kernels of both targets, or of gfx950 alone."""

    scaled_instructions: ClassVar[bool] = False

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> Answer:
        supports = has_scaled_instructions if cls.scaled_instructions else is_of_targets
        needed = "gfx950" if cls.scaled_instructions else "gfx942 or gfx950"
        is_supported = supports(current_platform.get_device_capability())
        return (True, None) if is_supported else (False, f"needs {needed}")


def _is_wanted(name: str) -> Answer:
    return (True, None) if is_enabled(name) else (False, f"is not enabled: custom_ops has no +{name}")


def _has_fp8(config: Any, weights: tuple[Any, ...], activations: tuple[Any, ...]) -> Answer:
    """Whether a layer's scales are among these, its results are floats, and FP8 layers are enabled."""
    for found, allowed, what in (
        (config.weight_quant_key, weights, "weights"),
        (config.activation_quant_key, activations, "activations"),
    ):
        if found not in allowed:
            return False, f"has no scales {found} of {what}"
    if config.out_dtype not in _OUT_DTYPES:
        return False, f"has no results of {config.out_dtype}"
    return _is_wanted("fp8_linear")


class HipKittensFp8LinearKernel(_OnTargets, FP8ScaledMMLinearKernel):
    """FP8 weights (K, N) in the device's e4m3, with float32 scales of tensors or channels."""

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        activations = kFp8StaticTensorSym, kFp8DynamicTensorSym, kFp8DynamicTokenSym
        return _has_fp8(config, (kFp8StaticTensorSym, kFp8StaticChannelSym), activations)

    def input_quant_key(self) -> Any:
        """Activations may arrive quantized, as QuantFP8 quantizes them."""
        return self.config.activation_quant_key

    def apply_scaled_mm(
        self,
        *,
        A: torch.Tensor,
        B: torch.Tensor,
        out_dtype: torch.dtype,
        As: torch.Tensor,
        Bs: torch.Tensor,
        bias: torch.Tensor | None,
        output_shape: list[int],
    ) -> torch.Tensor:
        """The product of A (M, K) and B (K, N)."""
        # One element each is the scale of a tensor.
        of_rows, of_columns = As.reshape(-1, 1), Bs.reshape(1, -1)
        out = scaled_matmul(A, B, of_rows, of_columns, bias=bias, out_dtype=out_dtype)
        return out.view(output_shape)


class HipKittensFp8BlockLinearKernel(_OnTargets, Fp8BlockScaledMMLinearKernel):
    """FP8 weights (N, K) with scales of 128x128 blocks. The bias is added by vLLM."""

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        return _has_fp8(config, (kFp8Static128BlockSym,), (kFp8Dynamic128Sym,))

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Scales that a checkpoint stores as powers of two (e8m0) become the float32 that the kernels read."""
        super().process_weights_after_loading(layer)
        params = self._get_layer_params(layer)
        if params.block_scale.dtype == torch.float8_e8m0fnu:
            replace_parameter(layer, params.block_scale_attr, params.block_scale.data.float())

    def apply_block_scaled_mm(
        self, A: torch.Tensor, B: torch.Tensor, As: torch.Tensor, Bs: torch.Tensor
    ) -> torch.Tensor:
        """The product of A (M, K) and B (N, K)."""
        return scaled_matmul(
            A, B.t(), As, Bs.t(), recipe=("1x128", "128x128"), out_dtype=self.config.out_dtype
        )


class HipKittensInt8LinearKernel(_OnTargets, Int8ScaledMMLinearKernel):
    """int8 weights (N, K) with float32 scales of tensors or channels."""

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        if not config.input_symmetric:
            return False, "has no zero points of activations"
        return _is_wanted("int8_linear")

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """The scales of layers that were merged, such as QKV, become those of channels; a fixed scale of activations becomes one."""
        _, weight_scale, input_scale, zero_point, _ = self.layer_param_names
        scale = getattr(layer, weight_scale).data
        if len(layer.logical_widths) > 1 and not self.config.is_channelwise:
            scale = convert_to_channelwise(scale, layer.logical_widths)
        replace_parameter(layer, weight_scale, scale.float())
        if self.config.is_static_input_scheme:
            replace_parameter(layer, input_scale, getattr(layer, input_scale).data.float().max())
            setattr(layer, zero_point, None)

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x (..., K), of 16-bit floats or float32, to (..., N) of the same dtype."""
        weight, weight_scale, input_scale, *_ = self._get_layer_params(layer)
        rows = x.reshape(-1, x.shape[-1])
        if self.config.is_static_input_scheme:
            codes, scale = quantize(rows, QuantSpec("int8", "tensor"), input_scale)
        else:
            codes, scale = quantize(rows, QuantSpec("int8", "row"))
        of_columns = weight_scale.reshape(1, -1)
        out = scaled_matmul(codes, weight.t(), scale, of_columns, bias=bias, out_dtype=x.dtype)
        return out.view(*x.shape[:-1], out.shape[-1])


class _MxLinear(_OnTargets):
    """Weights (N, K) with e8m0 scales of 32 along K. After loading, scales are in the kernels' order, since otherwise each call would copy
    them, and weights of a multiple of 16 rows are preshuffled (panel layout), which the kernels read fastest. vLLM sees the shape of rows.
    """

    rows: QuantSpec | None = None  # how activations are quantized
    _in_panels = False

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        weight, scale = layer.weight.data, layer.weight_scale.data
        count, length = weight.shape
        groups = length * (2 if weight.dtype == torch.uint8 else 1) // 32
        # Loaders may have padded them.
        scale = scale[:count, :groups]
        self._in_panels = count % PANEL_ROWS[0] == 0 and length * weight.itemsize % CHUNK == 0
        if self._in_panels:
            replace_parameter(layer, "weight", preshuffle(weight).view(weight.shape))
        replace_parameter(layer, "weight_scale", shuffled(scale))

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x (..., K), of 16-bit floats, to (..., N) of the same dtype."""
        weight = panels_of_rows(layer.weight) if self._in_panels else layer.weight
        rows = x.reshape(-1, x.shape[-1])
        codes, scale = (rows, None) if self.rows is None else quantize(rows, self.rows)
        out = scaled_matmul(
            codes, as_b(weight), scale, layer.weight_scale,
            recipe=("tensor" if self.rows is None else "1x32", "1x32"), swizzle="shuffled", bias=bias, out_dtype=x.dtype,
        )  # fmt: skip
        return out.view(*x.shape[:-1], out.shape[-1])


class HipKittensMxfp4LinearKernel(_MxLinear, MxFp4LinearKernel):
    """Activations stay bfloat16."""

    activation_key: ClassVar[Any] = None

    @classmethod
    def _supports_quant_scheme(cls, weight_key: Any, activation_key: Any) -> bool:
        return weight_key == kMxfp4Static and activation_key == cls.activation_key

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        # vLLM builds layers with the model's dtype as PyTorch's default.
        if cls.activation_key is None and torch.get_default_dtype() != torch.bfloat16:
            return False, f"has no {torch.get_default_dtype()} activations with MXFP4 weights"
        if config.activation_quant_key != cls.activation_key:
            return False, f"has no scales {config.activation_quant_key} of activations"
        return _is_wanted("mxfp4_linear")


class HipKittensMxfp4RowsLinearKernel(HipKittensMxfp4LinearKernel):
    """Activations are quantized to MXFP4, on gfx950."""

    scaled_instructions, activation_key = True, kMxfp4Dynamic
    rows = QuantSpec("mxfp4", layout="shuffled")


class HipKittensMxfp8LinearKernel(_MxLinear, Mxfp8LinearKernel):
    """Weights and activations of MXFP8, on gfx950."""

    scaled_instructions = True
    rows = QuantSpec("mxfp8", layout="shuffled")

    @classmethod
    def can_implement(cls, config: Any) -> Answer:
        if config.bmm_batch_size is not None:
            return False, "has no batched products"
        return _is_wanted("mxfp8_linear")


# vLLM's lists of kernels, by kind, whose kernels it tries in order.
_KERNELS = {
    "_POSSIBLE_FP8_KERNELS": (HipKittensFp8LinearKernel,),
    "_POSSIBLE_FP8_BLOCK_KERNELS": (HipKittensFp8BlockLinearKernel,),
    "_POSSIBLE_INT8_KERNELS": (HipKittensInt8LinearKernel,),
    "_POSSIBLE_MXFP4_KERNELS": (HipKittensMxfp4LinearKernel, HipKittensMxfp4RowsLinearKernel),
    "_POSSIBLE_MXFP8_KERNELS": (HipKittensMxfp8LinearKernel,),
}


def register() -> None:
    """Once per process: layers that vLLM builds from now on try ours first. vLLM's register_linear_kernel would put ours last."""
    for name, kernels in _KERNELS.items():
        getattr(linear, name).setdefault(current_platform._enum, [])[:0] = kernels
