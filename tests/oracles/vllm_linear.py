# SPDX-License-Identifier: MIT
"""vLLM's linear layers, built from quantization configurations as checkpoints have them, with the kernels that our plugin adds, in a process
of `vllm_packages`."""

from __future__ import annotations

import contextlib
import unittest.mock
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import hipkittens
from hipkittens import QuantSpec
from tests.oracles.aiter import formats

_NAMES = ("fp8_linear", "int8_linear", "mxfp4_linear", "mxfp8_linear")
FLOAT8 = torch.float8_e4m3fn  # of checkpoints


@dataclass(frozen=True)
class Case:
    """method: of `_configuration`. widths: the merged layers'. rows: how activations are quantized, "token", "tensor", "fixed" (one scale of
    the checkpoint), "group", "mxfp4" and "mxfp8", or None."""

    target: str
    method: str
    rows: str | None
    weights: str
    tokens: int = 33
    columns: int = 256
    widths: tuple[int, ...] = (128, 64)
    dtype: torch.dtype = torch.bfloat16
    bias: bool = False


def _quark(kind: str, rows: str | None, weights: str) -> Any:
    from vllm.model_executor.layers.quantization.quark.quark import QuarkConfig

    schemes = {
        "channel": "per_channel",
        "tensor": "per_tensor",
        "token": "per_channel",
        "fixed": "per_tensor",
    }
    if kind == "fp4":
        group = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}
        weight = group | {"is_dynamic": False}
        given = None if rows is None else group | {"is_dynamic": True}
    else:
        common = {"dtype": kind, "symmetric": True}
        weight = common | {"qscheme": schemes[weights], "is_dynamic": False, "ch_axis": 0}
        given = common | {"qscheme": schemes[rows or ""], "is_dynamic": rows != "fixed"}
    return QuarkConfig.from_config(
        {
            "export": {"kv_cache_group": [], "pack_method": "reorder"}, "exclude": [], "layer_quant_config": {},
            "layer_type_quant_config": {}, "global_quant_config": {"weight": weight, "input_tensors": given},
        }
    )  # fmt: skip


def _compressed_tensors(kind: str, rows: str | None, weights: str) -> Any:
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    common: dict[str, Any] = {"num_bits": 8, "symmetric": True, "type": kind}
    if rows == "mxfp8":
        shared = common | {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8"}
        weight, given, layout = shared, shared | {"dynamic": True}, "mxfp8-quantized"
    else:
        strategies = {"fixed": "tensor"}
        weight = common | {"strategy": weights, "dynamic": False}
        given = common | {"strategy": strategies.get(rows or "", rows), "dynamic": rows != "fixed"}
        layout = "float-quantized" if kind == "float" else "int-quantized"
    groups = {"group_0": {"targets": ["Linear"], "weights": weight, "input_activations": given}}
    return CompressedTensorsConfig.from_config(
        {"format": layout, "quantization_status": "compressed", "ignore": [], "config_groups": groups}
    )


def _configuration(case: Case) -> Any:
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config

    match case.method:
        case "fp8":
            return Fp8Config(True, "dynamic", weight_block_size=[128, 128])
        case "compressed-tensors":
            kind = "int" if case.weights.startswith("int8") else "float"
            return _compressed_tensors(kind, case.rows, case.weights.removeprefix("int8 "))
        case "quark":
            kind = {"int8": "int8", "mxfp4": "fp4"}.get(case.weights.split()[0], "fp8_e4m3")
            return _quark(kind, case.rows, case.weights.removeprefix("int8 "))
    raise ValueError(case.method)


@contextlib.contextmanager
def vllm(target: str, dtype: torch.dtype, enabled: tuple[str, ...] = _NAMES) -> Any:
    """vLLM's configuration with our linear layers enabled, the group of one rank, and what vLLM would know of a device."""
    from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.quantization import input_quant_fp8
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    options = CompilationConfig(custom_ops=["none", *(f"+{name}" for name in enabled)])
    config = VllmConfig(device_config=DeviceConfig("cpu"), compilation_config=options)
    config.model_config = SimpleNamespace(dtype=dtype, quantization_config=None)
    kind = formats.float8(target)
    # vLLM limits FNUZ values to 224, as it says in get_fp8_min_max.
    largest = 224.0 if target == "gfx942" else 448.0
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with (
            set_current_vllm_config(config),
            torch.inference_mode(),
            unittest.mock.patch(
                "vllm.distributed.parallel_state._TP", SimpleNamespace(world_size=1, rank_in_group=0)
            ),
            unittest.mock.patch.object(current_platform, "is_fp8_fnuz", lambda: target == "gfx942"),
            unittest.mock.patch.object(current_platform, "fp8_dtype", lambda: kind),
            unittest.mock.patch.multiple(
                input_quant_fp8, _FP8_DTYPE=kind, _FP8_MIN=-largest, _FP8_MAX=largest, _FP8_MIN_SCALING_FACTOR=1 / (512 * largest)
            ),
        ):  # fmt: skip
            yield options
    finally:
        torch.set_default_dtype(before)


def _layer(case: Case) -> Any:
    from vllm.model_executor.layers.linear import MergedColumnParallelLinear

    return MergedColumnParallelLinear(
        case.columns, list(case.widths), bias=case.bias, params_dtype=case.dtype, quant_config=_configuration(case),
        prefix="model.layers.0.mlp.gate_up_proj", return_bias=False, disable_tp=True,
    )  # fmt: skip


def _loaded(layer: Any, case: Case, weight: torch.Tensor) -> torch.Tensor:
    """Loads the quantized weight as a checkpoint would; returns its values in float64."""
    kind, codes = case.weights.split()[-1], layer.weight.data.dtype
    if kind == "mxfp4":
        stored, scale = formats.quantised_float4(weight)
        exact = formats.float4_values(stored, scale)
    elif kind == "mxfp8":
        groups = weight.unflatten(-1, (-1, 32))
        exponent = groups.abs().amax(-1, keepdim=True).log2().floor() - 8
        values = (groups / torch.exp2(exponent)).clamp(-448, 448).to(FLOAT8)
        stored, scale = values.flatten(-2), (exponent[..., 0] + 127).to(torch.uint8)
        exact = (values.double() * torch.exp2(exponent)).flatten(-2)
    elif kind == "blocks":
        stored, scale, exact = formats.quantised_blocks(weight, FLOAT8)
    elif kind == "channel":
        stored, scale, exact = formats.quantised(weight, codes)
        scale = scale.view(layer.weight_scale.shape)
    elif codes == torch.int8:  # one scale for each merged layer
        parts = [formats.quantised(part.flatten(), codes) for part in weight.split(case.widths)]
        stored, exact = (torch.cat([part[i].view(-1, case.columns) for part in parts]) for i in (0, 2))
        scale = torch.stack([part[1][0] for part in parts])
    else:  # one scale for all of them; vLLM requantizes several with one of its extensions
        stored, scale, exact = formats.quantised(weight.flatten(), codes)
        stored, exact = stored.view(weight.shape), exact.view(weight.shape)
        scale = torch.cat([scale, layer.weight_scale.data[1:]])
    scales = "weight_scale_inv" if hasattr(layer, "weight_scale_inv") else "weight_scale"
    layer.weight.data.copy_(stored)
    getattr(layer, scales).data.copy_(scale)
    return exact


def _as_quantised(case: Case, kernel: Any, layer: Any, x: torch.Tensor) -> torch.Tensor:
    """The activations' values after quantization, in float64."""
    if case.rows is None:
        return x.double()
    if hasattr(kernel, "quant_fp8"):
        codes, scale = kernel.quant_fp8(x, getattr(layer, "input_scale", None), None)
        if case.rows == "group":
            scale = scale.repeat_interleave(128, -1)[:, : case.columns]
        return codes.double() * scale.double()
    if case.rows in ("mxfp4", "mxfp8"):
        codes, scale = hipkittens.quantize(x, QuantSpec(case.rows))
        if case.rows == "mxfp4":
            return formats.float4_values(codes, scale)
        return codes.double() * torch.exp2(scale.double() - 127).repeat_interleave(32, -1)
    spec = QuantSpec("int8", "tensor" if case.rows == "fixed" else "row")
    codes, scale = hipkittens.quantize(x, spec, layer.input_scale if case.rows == "fixed" else None)
    return codes.double() * scale.double()


def run(case: Case) -> dict[str, Any]:
    """For a layer's result and float32's of the same quantized operands, rounded to the layer's dtype: errors relative to float64, the largest
    and the norm; `distance`, the norm of the error relative to activations that are not quantized, as a share of the result's; the kernel's
    class; findings; and whether a compiled layer gives the same."""
    random = torch.Generator().manual_seed(case.tokens)
    wide = torch.float64
    x = torch.randn(case.tokens, case.columns, generator=random, dtype=torch.float32).to(case.dtype)
    weight = torch.randn(sum(case.widths), case.columns, generator=random, dtype=torch.float32).to(wide)
    weight *= case.columns**-0.5
    with vllm(case.target, case.dtype), hipkittens.simulate(case.target, checks="all") as launches:
        layer = _layer(case)
        exact = _loaded(layer, case, weight)
        bias = None
        if case.bias:
            bias = torch.randn(len(weight), generator=random, dtype=torch.float32).to(case.dtype)
            layer.bias.data.copy_(bias)
        if case.rows == "fixed":
            largest = 127 if case.weights.startswith("int8") else 448
            layer.input_scale.data.fill_(float(x.abs().max()) / largest)
        layer.quant_method.process_weights_after_loading(layer)
        owner = getattr(layer, "scheme", layer.quant_method)
        kernel = next(
            getattr(owner, name) for name in ("kernel", "fp8_linear", "ocp_mx_linear") if hasattr(owner, name)
        )
        # Three dimensions, as in some models.
        out = layer(x.view(1, case.tokens, -1))
        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="eager")(x)
        seen = _as_quantised(case, kernel, layer, x)
    addend = 0 if bias is None else bias.double()
    expected = seen @ exact.t() + addend
    whole = x.double() @ exact.t() + addend
    added = 0 if bias is None else bias.float()
    theirs = (seen.float() @ exact.float().t() + added).to(case.dtype)
    return {
        "kernel": type(kernel).__name__,
        "shape": tuple(out.shape),
        "errors": _sizes(out[0].double() - expected),
        "allowed": _sizes(theirs.double() - expected),
        "distance": float((out[0].double() - whole).norm() / whole.norm()),
        "compiled": torch.equal(compiled, out[0]),
        "findings": [str(each) for each in launches.findings],
    }


def _sizes(error: torch.Tensor) -> tuple[float, float]:
    return float(error.abs().max()), float(error.norm())


def chosen() -> dict[str, str]:
    """The kernels that vLLM chooses, by what is different; "vLLM's" where it finds none, as it has none for a platform without a name."""
    from vllm.config import get_current_vllm_config
    from vllm.model_executor.kernels import linear
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys
    from vllm.platforms import current_platform
    from vllm.platforms.interface import DeviceCapability

    def fp8(activation: Any, weight: Any, dtype: torch.dtype = torch.bfloat16) -> Any:
        return linear.init_fp8_linear_kernel(activation, weight, dtype, dtype, (192, 256))

    token, channel = keys.kFp8DynamicTokenSym, keys.kFp8StaticChannelSym
    calls = {
        "channels": lambda: fp8(token, channel),
        "blocks": lambda: fp8(keys.kFp8Dynamic128Sym, keys.kFp8Static128BlockSym),
        "blocks of 64": lambda: fp8(keys.kFp8Dynamic64Sym, keys.kFp8Static128BlockSym),
        "int8": lambda: linear.init_int8_linear_kernel(True, False, True, ""),
        "zero points": lambda: linear.init_int8_linear_kernel(True, False, False, ""),
        "mxfp4": lambda: linear.init_mxfp4_linear_kernel(),
        "mxfp4 rows": lambda: linear.init_mxfp4_linear_kernel(keys.kMxfp4Dynamic),
        "mxfp8": lambda: linear.init_mxfp8_linear_kernel(weight_shape=(192, 256)),
    }

    def found(call: Any) -> str:
        try:
            return type(call()).__name__
        except ValueError:
            return "vLLM's"

    out = {}
    with vllm("gfx950", torch.bfloat16) as options:
        out |= {name: found(call) for name, call in calls.items()}
        assert get_current_vllm_config().compilation_config is options
        assert all(options.enabled_custom_ops[name] > 0 for name in _NAMES)
    with vllm("gfx950", torch.bfloat16, enabled=()):
        out |= {f"{name}, not enabled": found(calls[name]) for name in ("channels", "blocks", "int8", "mxfp4", "mxfp8")}  # fmt: skip
    with vllm("gfx950", torch.float16):
        out["mxfp4, float16"] = found(calls["mxfp4"])
    for name, capability in (("gfx942", (9, 4)), ("another device", (9, 0))):
        with (
            vllm("gfx950", torch.bfloat16),
            unittest.mock.patch.object(
                current_platform, "get_device_capability", lambda of=capability: DeviceCapability(*of)
            ),
        ):
            out |= {f"{each}, {name}": found(calls[each]) for each in ("channels", "mxfp4", "mxfp4 rows", "mxfp8")}  # fmt: skip
    return out
