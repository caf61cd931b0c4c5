# SPDX-License-Identifier: MIT
"""vLLM's layer methods for experts with FP8 and MXFP4 weights, running our experts through the plugin, in a process of `vllm_packages`."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import unittest.mock
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import hipkittens
from tests.oracles.aiter import formats
from tests.oracles.vllm_moe_kernels import Case, Workspaces, compared, configuration, drawn, experts


@dataclass(frozen=True)
class ScaledCase(Case):
    """weights: "blocks", "tensor" and "channel" of FP8, "int8", or "mxfp4". rows: "token" and "tensor" of FP8 and int8, "mxfp4" and "mxfp8",
    or None for unquantized rows. checkpoint: whose method loads the weights; None for vLLM's own, or for what it calls."""

    weights: str = "blocks"
    rows: str | None = "token"
    checkpoint: str | None = None


@dataclass
class Quantised:
    """Quantized values and scales as checkpoints store them, and their dequantized values."""

    codes: torch.Tensor
    scale: torch.Tensor
    exact: torch.Tensor


def quantised(weight: torch.Tensor, kind: str) -> Quantised:
    """Quantize (experts, rows, columns) consisting of whole blocks."""
    wide = weight.double()
    if kind == "mxfp4":
        codes, scale = formats.quantised_float4(wide)
        return Quantised(codes, scale, formats.float4_values(codes, scale))
    if kind == "blocks":
        return Quantised(*formats.quantised_blocks(wide, torch.float8_e4m3fn))
    if kind in ("channel", "int8"):
        return Quantised(*formats.quantised(wide, torch.int8 if kind == "int8" else torch.float8_e4m3fn))
    codes, scale, exact = formats.quantised(wide.flatten(1), torch.float8_e4m3fn)
    return Quantised(codes.view(wide.shape), scale[..., None], exact.view(wide.shape))


def rounded(row: torch.Tensor, kind: str | None, target: str) -> torch.Tensor:
    """Round as activations are quantized, by PyTorch's operations; in the row's dtype."""
    if kind is None:
        return row
    if kind == "mxfp4":
        return formats.float4_values(*formats.quantised_float4(row.double())).to(row.dtype)
    groups = row.double().unflatten(-1, (-1, {"block": 128, "mxfp8": 32}.get(kind, row.shape[-1])))
    if kind == "mxfp8":
        step = torch.exp2(groups.abs().amax(-1, keepdim=True).log2().floor() - 8)
        values = (groups / step).clamp(-448, 448).to(torch.float8_e4m3fn).double() * step
    else:
        _, _, values = formats.quantised(groups, torch.int8 if kind == "int8" else formats.float8(target))
    return values.flatten().to(row.dtype)


@contextlib.contextmanager
def _vllm(enabled: str, target: str = "gfx950") -> Any:
    """vLLM's configuration, with an operator enabled; workspaces without a worker, and a group of one rank; the quantization requested by a
    user without a model; and what vLLM would know of a device, which is not there to empty its cache."""
    from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    package = "vllm.model_executor.layers.fused_moe"
    options = CompilationConfig(custom_ops=["none", enabled])
    config = VllmConfig(device_config=DeviceConfig("cpu"), compilation_config=options)
    # No checkpoint has been read.
    config.model_config = SimpleNamespace(
        hf_config=SimpleNamespace(), hf_text_config=SimpleNamespace(), quantization_config=None
    )
    with (
        set_current_vllm_config(config),
        torch.inference_mode(),
        unittest.mock.patch(f"{package}.modular_kernel.current_workspace_manager", Workspaces),
        unittest.mock.patch("vllm.distributed.parallel_state._TP", SimpleNamespace(world_size=1)),
        unittest.mock.patch(f"{package}.oracle.mxfp4._user_moe_activation_override", lambda: None),
        unittest.mock.patch("torch.accelerator.empty_cache"),
        unittest.mock.patch.object(current_platform, "is_fp8_fnuz", lambda: target == "gfx942"),
    ):
        yield options


class Layer(torch.nn.Module):
    """The attributes of vLLM's RoutedExperts that methods use."""

    def __init__(self, config: Any, case: Case, expert_map: torch.Tensor | None):
        super().__init__()
        self.moe_config, self.activation, self.global_num_experts = config, config.activation, case.experts
        self.local_num_experts, self.intermediate_size_per_partition = (
            case.here or case.experts,
            case.intermediate,
        )
        self.apply_router_weight_on_input, self.expert_map = case.weights_on_input, expert_map

    def _expert_routing_tables(self) -> None:
        return None


def run(case: ScaledCase) -> dict[str, Any]:
    """Our errors and those of PyTorch's operations with the same rounded rows, relative to float64 with the dequantized weights: largest
    and norm; and findings, and the class of the experts."""
    problem = drawn(case)
    weights = [quantised(each, case.weights) for each in (problem.w1, problem.w2)]
    config = configuration(case)
    layer = Layer(config, case, problem.expert_map)
    kind = case.weights if case.weights in ("int8", "mxfp4") else "fp8"
    with _vllm(f"+{kind}_fused_moe", case.target), hipkittens.simulate(case.target, checks="all") as launches:
        kernel = _kernel(case, config, layer, weights, problem.biases)
        out = kernel.apply(
            problem.x, layer.w13_weight, layer.w2_weight, problem.weights, problem.ids.to(torch.int32), config.activation, case.experts,
            problem.expert_map, case.weights_on_input,
        )  # fmt: skip
    problem = dataclasses.replace(problem, w1=weights[0].exact, w2=weights[1].exact)
    rows = {"blocks": "block", "int8": "int8"}.get(case.weights, case.rows)
    torchs = experts(case, case.dtype, problem, lambda row: rounded(row, rows, case.target))
    found = compared(out, torchs, experts(case, torch.float64, problem), launches)
    return found | {"experts": type(kernel.fused_experts).__name__}


def _kernel(case: ScaledCase, config: Any, layer: Any, weights: list[Quantised], biases: Any) -> Any:
    """Through vLLM's methods for checkpoints; otherwise through what their methods call, since the method for tensor scales requantizes
    weights with an extension of vLLM's."""
    method = _method(case, config, layer)
    local = case.here or case.experts
    scales = "weight_scale_inv" if case.weights == "blocks" and case.checkpoint is None else "weight_scale"
    values = {"w13_weight": weights[0].codes, "w2_weight": weights[1].codes}
    values |= {f"w13_{scales}": weights[0].scale, f"w2_{scales}": weights[1].scale}
    if case.bias:
        values |= {"w13_bias": biases[0], "w2_bias": biases[1]}
    if method is None:
        for name, value in values.items():
            layer.register_parameter(name, torch.nn.Parameter(value, requires_grad=False))
        return _kernel_without_method(case, config, layer)
    method.create_weights(layer, local, case.hidden, case.intermediate, case.dtype)
    for name, value in values.items():
        loaded = getattr(layer, name).data
        loaded.copy_(value.view(loaded.shape))
    method.process_weights_after_loading(layer)
    return method.moe_kernel


def _method(case: ScaledCase, config: Any, layer: Any) -> Any:
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config, Fp8MoEMethod
    from vllm.model_executor.layers.quantization.mxfp4 import GptOssMxfp4MoEMethod
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys

    if case.checkpoint == "compressed-tensors":
        from compressed_tensors.quantization import QuantizationArgs

        common = {"num_bits": 8, "type": "int" if case.weights == "int8" else "float"}
        weights: dict[str, Any] = {"strategy": "channel"}
        rows: dict[str, Any] = {"strategy": "token", "dynamic": True}
        if case.weights == "blocks":
            weights = {"strategy": "block", "block_structure": [128, 128]}
            rows = {"strategy": "group", "group_size": 128, "dynamic": True}
        name = "int8" if case.weights == "int8" else "fp8"
        package = "vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe"
        module = importlib.import_module(f"{package}.compressed_tensors_moe_w8a8_{name}")
        kind = getattr(module, f"CompressedTensorsW8A8{name.title()}MoEMethod")
        return kind(QuantizationArgs(**common, **weights), QuantizationArgs(**common, **rows), config)
    if case.checkpoint == "quark":
        from vllm.model_executor.layers.quantization.quark import quark_moe as methods

        if case.weights == "mxfp4":
            rows = {None: None, "mxfp4": keys.kMxfp4Dynamic}[case.rows]
            return methods.QuarkOCP_MX_MoEMethod(config, keys.kMxfp4Static, rows)
        return methods.QuarkW8A8Fp8MoEMethod(config, keys.kFp8StaticChannelSym, keys.kFp8DynamicTokenSym)
    if case.weights == "blocks":
        return Fp8MoEMethod(Fp8Config(True, "dynamic", weight_block_size=[128, 128]), layer)
    if case.weights == "mxfp4" and case.rows is None:
        return GptOssMxfp4MoEMethod(config)
    return None


def _kernel_without_method(case: ScaledCase, config: Any, layer: Any) -> Any:
    from vllm.model_executor.layers.fused_moe.oracle import fp8, mxfp4
    from vllm.model_executor.layers.quantization.utils import quant_utils
    from vllm.model_executor.layers.quantization.utils.w8a8_utils import normalize_e4m3fn_to_e4m3fnuz
    from vllm.model_executor.utils import replace_parameter

    scales = {"w1_scale": layer.w13_weight_scale, "w2_scale": layer.w2_weight_scale}
    if case.weights == "mxfp4":
        key = {"mxfp4": quant_utils.kMxfp4Dynamic, "mxfp8": quant_utils.kMxfp8Dynamic}[case.rows]
        backend, kind = mxfp4.select_mxfp4_moe_backend(config, key)
        quantisation = mxfp4.make_mxfp4_moe_quant_config(backend, **scales)
        kernel = mxfp4.make_mxfp4_moe_kernel(quantisation, config, kind, backend)
        kernel.fused_experts.process_weights_after_loading(layer)
        return kernel
    of_weights = {"channel": quant_utils.kFp8StaticChannelSym, "tensor": quant_utils.kFp8StaticTensorSym}
    of_rows = {"token": quant_utils.kFp8DynamicTokenSym, "tensor": quant_utils.kFp8DynamicTensorSym}
    backend, kind = fp8.select_fp8_moe_backend(config, of_weights[case.weights], of_rows[case.rows])
    if case.target == "gfx942":
        for name in ("w13", "w2"):
            weight, scale, _ = normalize_e4m3fn_to_e4m3fnuz(
                getattr(layer, f"{name}_weight"), getattr(layer, f"{name}_weight_scale"), None
            )
            replace_parameter(layer, f"{name}_weight", weight)
            scales["w1_scale" if name == "w13" else "w2_scale"] = scale
    quantisation = fp8.make_fp8_moe_quant_config(
        backend, **scales, a1_scale=None, a2_scale=None, per_act_token_quant=case.rows == "token",
        per_out_ch_quant=case.weights == "channel",
    )  # fmt: skip
    return fp8.make_fp8_moe_kernel(quantisation, config, kind, backend)


def selected() -> dict[str, str]:
    """The experts that vLLM's selections return, keyed by what is different, where its own would be `object`."""
    from vllm.model_executor.layers.fused_moe.oracle import fp8, mxfp4
    from vllm.model_executor.layers.quantization import fp8 as fp8_methods
    from vllm.model_executor.layers.quantization.utils import quant_utils as keys

    block, tensor = keys.kFp8Static128BlockSym, keys.kFp8StaticTensorSym
    case = Case("gfx950", 1)
    found = {}
    with (
        unittest.mock.patch.object(fp8, "backend_to_kernel_cls", lambda backend: []),
        unittest.mock.patch.object(mxfp4, "backend_to_kernel_cls", lambda backend: []),
    ):
        for name, switch, weight, rows, changes in (
            ("blocks", "+", block, keys.kFp8Dynamic128Sym, {}),
            ("not enabled", "-", block, keys.kFp8Dynamic128Sym, {}),
            ("fixed scales", "+", tensor, tensor, {}),
            ("lora", "+", block, keys.kFp8Dynamic128Sym, {"is_lora_enabled": True}),
        ):
            with _vllm(f"{switch}fp8_fused_moe") as options:
                # Under the name that methods have imported.
                kind = fp8_methods.select_fp8_moe_backend(configuration(case, **changes), weight, rows)[1]
                counted = options.enabled_custom_ops if switch == "+" else options.disabled_custom_ops
                assert counted["fp8_fused_moe"] == 1
                found[name] = kind.__name__ if kind else "vLLM's"
        for name, rows in (("bfloat16", None), ("mxfp4", keys.kMxfp4Dynamic), ("mxfp8", keys.kMxfp8Dynamic)):
            with _vllm("+mxfp4_fused_moe"):
                found[f"{name} rows"] = mxfp4.select_mxfp4_moe_backend(configuration(case), rows)[1].__name__
    return found
