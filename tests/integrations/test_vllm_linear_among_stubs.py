# SPDX-License-Identifier: MIT
"""vLLM's quantized linear layers with stubs of vLLM's classes. tests/oracles/test_vllm_linear.py runs vLLM's own."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from hipkittens import QuantSpec
from tests.integrations import stub_frameworks
from tests.simulated_device import TARGETS

INTEGRATIONS = "hipkittens.integrations"
NAMES = ("fp8_linear", "int8_linear", "mxfp4_linear", "mxfp8_linear")
TENSOR, CHANNEL, BLOCK = "kFp8StaticTensorSym", "kFp8StaticChannelSym", "kFp8Static128BlockSym"
TOKEN, GROUP = "kFp8DynamicTokenSym", "kFp8Dynamic128Sym"


@pytest.fixture
def linear(monkeypatch):
    """The module imported among stubs, and the options that enable it."""
    stub_frameworks.vllm(monkeypatch)
    options = stub_frameworks.vllm_scaled_experts(monkeypatch)
    options.custom_ops |= set(NAMES)
    yield importlib.import_module(f"{INTEGRATIONS}.vllm_linear"), options
    for name in ("_vllm_switches", "vllm_experts", "vllm_linear", "vllm_scaled_experts"):
        sys.modules.pop(f"{INTEGRATIONS}.{name}", None)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(shape[0])).to(dtype)


def layer_of(**values):
    layer = torch.nn.Module()
    for name, value in values.items():
        setattr(
            layer,
            name,
            torch.nn.Parameter(value, requires_grad=False) if isinstance(value, torch.Tensor) else value,
        )
    return layer


def fp8(weight=CHANNEL, activation=TOKEN, out_dtype=torch.bfloat16):
    return SimpleNamespace(weight_quant_key=weight, activation_quant_key=activation, out_dtype=out_dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("of_weight", ["row", "tensor"])
@pytest.mark.parametrize("of_rows", ["row", "tensor"])
def test_scales_of_fp8(linear, target, of_weight, of_rows):
    module, _ = linear
    x, w, bias = normal(9, 160), normal(48, 160), normal(48)
    with hipkittens.simulate(target, checks="all") as launches:
        (a, scale_a), (b, scale_b) = (
            hipkittens.quantize(each, QuantSpec("fp8", of)) for each, of in ((x, of_rows), (w, of_weight))
        )
        kernel = module.HipKittensFp8LinearKernel(fp8())
        assert kernel.input_quant_key() == TOKEN
        # vLLM keeps scales of channels as (N, 1), and those of tensors with or without a dimension.
        given = {"As": scale_a, "Bs": scale_b if of_weight == "row" else scale_b.view(1)}
        out = kernel.apply_scaled_mm(
            A=a, B=b.t(), out_dtype=torch.float16, bias=bias, output_shape=[3, 3, 48], **given
        )
        expected = hipkittens.scaled_matmul(
            a, b.t(), scale_a, scale_b.t() if of_weight == "row" else scale_b, recipe=(of_rows, of_weight), bias=bias,
            out_dtype=torch.float16,
        )  # fmt: skip
    assert launches.findings == [] and torch.equal(out, expected.view(3, 3, 48))


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_of_powers_of_two_become_float32(linear, target):
    module, _ = linear
    x, w = normal(5, 256), normal(128, 256)
    powers = torch.tensor([[120, 128]], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    with hipkittens.simulate(target, checks="all") as launches:
        a, scale_a = hipkittens.quantize(x, QuantSpec("fp8", 128))
        b, _ = hipkittens.quantize(w, QuantSpec("fp8", (128, 128)))
        kernel = module.HipKittensFp8BlockLinearKernel(fp8(BLOCK, GROUP, torch.float32))
        layer = layer_of(weight=b, weight_scale_inv=powers)
        kernel.process_weights_after_loading(layer)
        assert layer.weight_scale_inv.dtype == torch.float32
        out = kernel.apply_block_scaled_mm(a, layer.weight, scale_a, layer.weight_scale_inv)
        wide = (a.double() * scale_a.double().repeat_interleave(128, -1)) @ (
            b.double() * torch.tensor([2.0**-7, 2.0]).double().repeat_interleave(128)
        ).t()
    assert launches.findings == []
    torch.testing.assert_close(out.double(), wide, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_int8(linear, target, fixed, channels):
    module, _ = linear
    x, w, bias = normal(2, 7, 96, dtype=torch.float16), normal(48, 96), normal(48)
    names = ("weight", "weight_scale", "input_scale", "input_zero_point", "azp_adj")
    config = SimpleNamespace(input_symmetric=True, is_static_input_scheme=fixed, is_channelwise=channels)
    with hipkittens.simulate(target, checks="all") as launches:
        if channels:
            codes, scale = hipkittens.quantize(w, QuantSpec("int8", "row"))
            of_rows = scale
        else:  # of two merged layers, with 32 rows and 16
            parts = [hipkittens.quantize(part, QuantSpec("int8", "tensor")) for part in w.split((32, 16))]
            codes, scale = torch.cat([part[0] for part in parts]), torch.stack([part[1] for part in parts])
            of_rows = scale.repeat_interleave(torch.tensor([32, 16]))[:, None]
        given = {"weight": codes, "weight_scale": scale, "logical_widths": [32, 16]}
        if fixed:
            given |= {"input_scale": torch.tensor([0.02, 0.03]), "input_zero_point": None}
        layer = layer_of(**given)
        kernel = module.HipKittensInt8LinearKernel(config, names)
        kernel.process_weights_after_loading(layer)
        out = kernel.apply_weights(layer, x, bias)
        spec = QuantSpec("int8", "tensor" if fixed else "row")
        a, scale_a = hipkittens.quantize(x.view(14, 96), spec, torch.tensor(0.03) if fixed else None)
        expected = hipkittens.scaled_matmul(
            a, codes.t(), scale_a, of_rows.t(), recipe=("tensor" if fixed else "row", "row"), bias=bias, out_dtype=x.dtype
        )  # fmt: skip
    assert launches.findings == [] and torch.equal(out, expected.view(2, 7, 48))


MX = {
    "mxfp4": ("HipKittensMxfp4LinearKernel", None, TARGETS),
    "mxfp4 rows": ("HipKittensMxfp4RowsLinearKernel", "mxfp4", ["gfx950"]),
    "mxfp8": ("HipKittensMxfp8LinearKernel", "mxfp8", ["gfx950"]),
}


@pytest.mark.parametrize(("name", "target"), [(name, target) for name in MX for target in MX[name][2]])
@pytest.mark.parametrize("rows", [48, 40])  # whole panels, and not
def test_mx(linear, monkeypatch, name, target, rows):
    module, _ = linear
    kind, of_rows, _ = MX[name]
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)
    x, w, bias = normal(3, 5, 96), normal(rows, 96), normal(rows)
    kernel = getattr(module, kind)
    config = SimpleNamespace(
        activation_quant_key=getattr(kernel, "activation_key", None), bmm_batch_size=None
    )
    with hipkittens.simulate(target, checks="all") as launches:
        codes, scale = hipkittens.quantize(w, QuantSpec(of_rows or "mxfp4"))
        # A loader may have padded the scales.
        padded = torch.nn.functional.pad(scale, (0, 5, 0, 3), value=99)
        layer = layer_of(weight=codes.clone(), weight_scale=padded)
        made = kernel(config)
        made.process_weights_after_loading(layer)
        assert layer.weight.shape == codes.shape
        assert torch.equal(layer.weight.view(torch.uint8), codes.view(torch.uint8)) == (rows == 40)
        out = made.apply_weights(layer, x, bias)
        a, scale_a = (x.view(15, 96), None) if of_rows is None else hipkittens.quantize(x.view(15, 96), QuantSpec(of_rows))  # fmt: skip
        expected = hipkittens.scaled_matmul(
            a,
            codes.t(),
            scale_a,
            scale.t(),
            recipe=("tensor" if of_rows is None else "1x32", "1x32"),
            bias=bias,
        )
    assert launches.findings == [] and torch.equal(out, expected.view(3, 5, rows))


def test_ours_come_first(linear):
    module, _ = linear
    for name, kernels in module._KERNELS.items():
        getattr(module.linear, name)["ROCM"] = ["vLLM's"]
        assert all(isinstance(kernel, type) for kernel in kernels)
    module.register()
    assert {name: getattr(module.linear, name)["ROCM"] for name in module._KERNELS} == {
        name: [*kernels, "vLLM's"] for name, kernels in module._KERNELS.items()
    }


def test_reasons(linear, monkeypatch):
    module, options = linear

    def reason(kind, config):
        can, why = getattr(module, kind).can_implement(config)
        assert not can
        return why

    float8, blocks = "HipKittensFp8LinearKernel", "HipKittensFp8BlockLinearKernel"
    assert f"has no scales {BLOCK} of weights" == reason(float8, fp8(BLOCK))
    assert f"has no scales {GROUP} of activations" == reason(float8, fp8(activation=GROUP))
    assert reason(float8, fp8(out_dtype=torch.int8)) == "has no results of torch.int8"
    assert f"has no scales {CHANNEL} of weights" == reason(blocks, fp8())
    assert f"has no scales {TOKEN} of activations" == reason(blocks, fp8(BLOCK))
    assert reason(blocks, fp8(BLOCK, GROUP, torch.int8)) == "has no results of torch.int8"
    zero_points = SimpleNamespace(input_symmetric=False)
    assert "zero points" in reason("HipKittensInt8LinearKernel", zero_points)
    plain = SimpleNamespace(activation_quant_key=None)
    assert "torch.float32 activations with MXFP4" in reason("HipKittensMxfp4LinearKernel", plain)
    assert "has no scales None" in reason("HipKittensMxfp4RowsLinearKernel", plain)
    batched = SimpleNamespace(bmm_batch_size=4)
    assert "batched" in reason("HipKittensMxfp8LinearKernel", batched)
    options.custom_ops.clear()
    assert reason(float8, fp8()) == "is not enabled: custom_ops has no +fp8_linear"
    assert options.disabled_custom_ops["fp8_linear"] == 1
    assert module.HipKittensFp8LinearKernel.is_supported() == (True, None)
    for capability, plain, scaled in (((9, 4), True, False), ((9, 5), True, True), ((9, 0), False, False)):
        of_device = SimpleNamespace(major=capability[0], minor=capability[1])
        monkeypatch.setattr(
            module.current_platform, "get_device_capability", lambda of_device=of_device: of_device
        )
        for kind in ("Fp8", "Fp8Block", "Int8", "Mxfp4"):
            assert getattr(module, f"HipKittens{kind}LinearKernel").is_supported()[0] == plain
        for kind in ("Mxfp4Rows", "Mxfp8"):
            assert getattr(module, f"HipKittens{kind}LinearKernel").is_supported()[0] == scaled
