# SPDX-License-Identifier: MIT
"""vLLM's quantized experts with stubs of vLLM's classes. tests/oracles/test_vllm_experts.py runs vLLM's own."""

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
PLAIN = {"gemm1_alpha": None, "gemm1_beta": None, "gemm1_clamp_limit": None}


@pytest.fixture
def experts(monkeypatch):
    """The module imported among stubs, and the options that enable it."""
    stub_frameworks.vllm(monkeypatch)
    options = stub_frameworks.vllm_scaled_experts(monkeypatch)
    yield importlib.import_module(f"{INTEGRATIONS}.vllm_scaled_experts"), options
    for name in ("_vllm_switches", "vllm_experts", "vllm_linear", "vllm_scaled_experts"):
        sys.modules.pop(f"{INTEGRATIONS}.{name}", None)


def config(module, **changes):
    given = {
        "in_dtype": torch.bfloat16, "swiglu_limit": None, "activation": module.MoEActivation.SILU, "moe_backend": "auto",
        "moe_parallel_config": SimpleNamespace(use_batched_activation_format=False),
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def problem(rows, hidden, inner):
    random = torch.Generator().manual_seed(0)
    x, w1, w2 = (
        torch.randn(shape, generator=random).to(torch.bfloat16)
        for shape in ((rows, hidden), (4, 2 * inner, hidden), (4, hidden, inner))
    )
    weights, ids = torch.rand(rows, 4, generator=random).topk(2)
    return x, w1, w2, weights, ids


def applied(kernel, x, w1, w2, weights, ids, activation):
    out, nothing = torch.full_like(x, 7), torch.empty(0)
    kernel.apply(out, x, w1, w2, weights, ids, activation, 4, None, None, None, nothing, nothing, None, False)
    return out


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("weights", "by_token", "recipe"),
    [
        ("blocks", False, ("1x128", "128x128")),
        ("row", True, ("row", "row")),
        ("tensor", True, ("row", "tensor")),
        ("tensor", False, ("tensor", "tensor")),
    ],
)
def test_scales_of_fp8(experts, target, weights, by_token, recipe):
    module, _ = experts
    x, w1, w2, chosen, ids = problem(9, 256, 128)
    with hipkittens.simulate(target, checks="all") as launches:
        if weights == "tensor":
            # One scale per expert.
            quantised = [
                tuple(map(torch.stack, zip(*(hipkittens.quantize(each, QuantSpec("fp8", "tensor")) for each in w), strict=True)))
                for w in (w1, w2)
            ]  # fmt: skip
            quantised = [(codes, scale.reshape(-1)) for codes, scale in quantised]
        else:
            spec = QuantSpec("fp8", (128, 128) if weights == "blocks" else "row")
            quantised = [hipkittens.quantize(w, spec) for w in (w1, w2)]
        (codes1, scale1), (codes2, scale2) = quantised
        kernel = module.HipKittensFp8Experts(config(module), SimpleNamespace(**PLAIN))
        kernel.w1_bias = kernel.w2_bias = None
        kernel.w1_scale, kernel.w2_scale = scale1, scale2
        kernel.block_shape, kernel.per_act_token_quant = [128, 128] if weights == "blocks" else None, by_token
        assert kernel.expects_unquantized_inputs
        out = applied(kernel, x, codes1, codes2, chosen, ids, module.MoEActivation.SILU)
        expected = hipkittens.moe(
            x, codes1, codes2, chosen, ids, scale_w1=scale1, scale_w2=scale2, recipe=recipe
        )
    assert launches.findings == [] and torch.equal(out, expected)


@pytest.mark.parametrize("target", TARGETS)
def test_int8(experts, target):
    module, _ = experts
    x, w1, w2, chosen, ids = problem(9, 96, 64)
    with hipkittens.simulate(target, checks="all") as launches:
        (codes1, scale1), (codes2, scale2) = (
            hipkittens.quantize(w, QuantSpec("int8", "row")) for w in (w1, w2)
        )
        kernel = module.HipKittensInt8Experts(config(module), SimpleNamespace(**PLAIN))
        kernel.w1_bias, kernel.w2_bias, kernel.w1_scale, kernel.w2_scale = None, None, scale1, scale2
        out = applied(kernel, x, codes1, codes2, chosen, ids, module.MoEActivation.SILU)
        expected = hipkittens.moe(
            x, codes1, codes2, chosen, ids, scale_w1=scale1, scale_w2=scale2, recipe=("row", "row")
        )
    assert launches.findings == [] and torch.equal(out, expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("prepared", [False, True])
def test_weights_of_mxfp4_that_take_turns(experts, target, prepared):
    module, _ = experts
    x, w1, w2, chosen, ids = problem(5, 96, 64)
    spec = QuantSpec("mxfp4")
    swiglu = module.MoEActivation.SWIGLUOAI
    with hipkittens.simulate(target, checks="all") as launches:
        (codes1, scale1), (codes2, scale2) = (hipkittens.quantize(w, spec) for w in (w1, w2))
        bias1, bias2 = w1[:, :, 0].contiguous(), w2[:, :, 0].contiguous()
        layer = torch.nn.Module()
        values = {
            "w13_weight": codes1,
            "w2_weight": codes2,
            "w13_weight_scale": scale1,
            "w2_weight_scale": scale2,
            "w13_bias": bias1,
        }
        for name, value in values.items():
            setattr(layer, name, torch.nn.Parameter(value.clone(), requires_grad=False))
        described = SimpleNamespace(
            **(PLAIN | {"gemm1_alpha": 1.702, "gemm1_beta": 1.0, "gemm1_clamp_limit": 7.0}),
            _w1=SimpleNamespace(scale=layer.w13_weight_scale, bias=layer.w13_bias),
            _w2=SimpleNamespace(scale=layer.w2_weight_scale, bias=bias2),
        )
        kernel = module.HipKittensMxfp4Experts(config(module, activation=swiglu), described)
        if prepared:
            kernel.process_weights_after_loading(layer)
            again = layer.w13_weight.clone()
            kernel.process_weights_after_loading(layer)
            assert torch.equal(layer.w13_weight, again) and not torch.equal(layer.w13_weight, codes1)
        kernel.w1_scale, kernel.w2_scale = described._w1.scale, described._w2.scale
        kernel.w1_bias, kernel.w2_bias = described._w1.bias, described._w2.bias
        out = applied(kernel, x, layer.w13_weight, layer.w2_weight, chosen, ids, swiglu)
        expected = hipkittens.moe(
            x, codes1, codes2, chosen, ids, activation="swiglu", interleaved=True, bias1=bias1, bias2=bias2,
            scale_w1=scale1, scale_w2=scale2, recipe=(None, "1x32"),
        )  # fmt: skip
    assert launches.findings == [] and torch.equal(out, expected)


def test_what_is_selected(experts, monkeypatch):
    module, options = experts
    module.register()
    fp8, int8, mxfp4 = module.fp8, module.int8, module.mxfp4
    ours = importlib.import_module("vllm.model_executor.layers.quantization.fp8").select_fp8_moe_backend
    assert ours is fp8.select_fp8_moe_backend
    blocks = "kFp8Static128BlockSym", "kFp8Dynamic128Sym"
    assert ours(config(module), *blocks) == ("vLLM's", None)
    assert mxfp4.select_mxfp4_moe_backend(config(module)) == ("vLLM's", None)
    assert int8.select_int8_moe_backend(config(module)) == ("vLLM's", None)
    options.custom_ops |= {"fp8_fused_moe", "int8_fused_moe", "mxfp4_fused_moe"}
    found = int8.select_int8_moe_backend(config(module))
    assert found == (int8.Int8MoeBackend.TRITON, module.HipKittensInt8Experts)
    assert int8.select_int8_moe_backend(config(module), "kInt8StaticChannelSym", None) == ("vLLM's", None)
    for keys in (blocks, ("kFp8StaticChannelSym", "kFp8DynamicTokenSym")):
        assert ours(config(module), *keys) == (fp8.Fp8MoeBackend.TRITON, module.HipKittensFp8Experts)
    assert (
        options.enabled_custom_ops["fp8_fused_moe"] == 2 and options.disabled_custom_ops["fp8_fused_moe"] == 1
    )
    for key, kind in (
        (None, module.HipKittensMxfp4Experts),
        ("kMxfp4Dynamic", module.HipKittensMxfp4RowsExperts),
        ("kMxfp8Dynamic", module.HipKittensMxfp8RowsExperts),
    ):
        found = mxfp4.select_mxfp4_moe_backend(config(module), key)
        assert found == (mxfp4.Mxfp4MoeBackend.EMULATION, kind)
    batched = SimpleNamespace(use_batched_activation_format=True)
    for other in ({"moe_backend": "aiter"}, {"in_dtype": torch.float32}, {"moe_parallel_config": batched}):
        assert ours(config(module, **other), *blocks) == ("vLLM's", None)
    monkeypatch.setattr(
        module.current_platform, "get_device_capability", lambda: SimpleNamespace(major=9, minor=4)
    )
    assert mxfp4.select_mxfp4_moe_backend(config(module))[1] is module.HipKittensMxfp4Experts
    for key in ("kMxfp4Dynamic", "kMxfp8Dynamic"):  # gfx942 has no instructions for them
        assert mxfp4.select_mxfp4_moe_backend(config(module), key) == ("vLLM's", None)
    fixed = "kFp8StaticTensorSym"
    assert ours(config(module), fixed, fixed) == ("vLLM's", None)
    assert mxfp4.select_mxfp4_moe_backend(config(module), fixed) == ("vLLM's", None)


@pytest.mark.parametrize(("name", "value"), [("gemm1_alpha", 1.0), ("gemm1_clamp_limit", 10.0)])
def test_a_gate_of_other_numbers_is_refused(experts, name, value):
    module, _ = experts
    with pytest.raises(ValueError, match=f"{name} of .* is {value}; allowed: None"):
        module.HipKittensFp8Experts(config(module), SimpleNamespace(**(PLAIN | {name: value})))
