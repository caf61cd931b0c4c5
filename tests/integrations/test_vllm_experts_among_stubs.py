# SPDX-License-Identifier: MIT
"""vLLM's experts with stubs of vLLM's classes. tests/oracles/test_vllm_experts.py runs vLLM's own."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks
from tests.simulated_device import TARGETS

MODULE = "hipkittens.integrations.vllm_experts"


@pytest.fixture
def experts(monkeypatch):
    """The module imported among stubs, and the registrations it made."""
    replaced, *_ = stub_frameworks.vllm(monkeypatch)
    sys.modules.pop(MODULE, None)
    yield importlib.import_module(MODULE), replaced
    sys.modules.pop(MODULE, None)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("on_input", [False, True])
@pytest.mark.parametrize(("name", "gate"), [("SILU", "silu"), ("GELU", "gelu"), ("SWIGLUOAI", "swiglu")])
def test_apply(experts, target, name, gate, on_input):
    module, _ = experts
    random = torch.Generator().manual_seed(0)
    x, w1, w2, bias1, bias2 = (
        torch.randn(shape, generator=random).to(torch.bfloat16)
        for shape in ((9, 64), (4, 64, 64), (4, 64, 32), (4, 64), (4, 64))
    )
    weights, ids = torch.rand(9, 6, generator=random).topk(2)
    there = torch.tensor([-1, 0, 1, 2, 3, -1], dtype=torch.int32)
    kernel = module.HipKittensExperts()
    kernel.w1_bias, kernel.w2_bias = bias1, bias2
    assert kernel.workspace_shapes(9, 64, 128, 2, 6, 4, None, None) == ((0,), (0,), (9, 128))
    out = torch.full_like(x, 7)
    nothing = torch.empty(0)
    with hipkittens.simulate(target, checks="all") as launches:
        kernel.apply(
            out,
            x,
            w1,
            w2,
            weights,
            ids,
            module.MoEActivation[name],
            6,
            there,
            None,
            None,
            nothing,
            nothing,
            None,
            on_input,
        )
        used = torch.ones_like(weights) if on_input else weights
        expected = hipkittens.moe(
            x,
            w1,
            w2,
            used,
            ids,
            activation=gate,
            bias1=bias1,
            bias2=bias2,
            expert_map=there,
            interleaved=gate == "swiglu",
        )
    assert launches.findings == [] and torch.equal(out, expected)


def test_what_is_taken(experts):
    module, replaced = experts
    kind = module.HipKittensExperts
    silu, swiglu, relu2 = (module.MoEActivation[each] for each in ("SILU", "SWIGLUOAI", "RELU2"))

    def config(**changes):
        given = {
            "in_dtype": torch.bfloat16,
            "swiglu_limit": None,
            "activation": silu,
            "is_lora_enabled": False,
        }
        return SimpleNamespace(**(given | changes))

    def taken(**changes):
        return kind.is_supported_config(kind, config(**changes))[0]

    assert taken() and taken(in_dtype=torch.float16) and taken(activation=swiglu, swiglu_limit=7.0)
    assert not taken(in_dtype=torch.float32) and not taken(swiglu_limit=7.0) and not taken(activation=relu2)
    assert kind._supports_quant_scheme(None, None) and not kind._supports_quant_scheme("fp8", None)
    assert kind._supports_current_device() and not kind._supports_no_act_and_mul()
    assert not kind._supports_batch_invariance()
    for size in (1, 2):
        assert kind._supports_parallel_config(SimpleNamespace(dp_size=size)) is (size == 1)
    module.register()
    method = replaced["UnquantizedFusedMoEMethod"]
    assert method(config()).experts_cls is kind
    for other in (config(is_lora_enabled=True), config(in_dtype=torch.float32)):
        assert method(other).experts_cls == "vLLM's"
    method.custom_ops = ("-unquantized_fused_moe",)
    assert method(config()).experts_cls == "vLLM's"


def test_devices(experts, monkeypatch):
    module, _ = experts
    for capability, takes in (((9, 4), True), ((9, 5), True), ((9, 0), False)):
        found = SimpleNamespace(major=capability[0], minor=capability[1])
        monkeypatch.setattr(
            module, "current_platform", SimpleNamespace(get_device_capability=lambda found=found: found)
        )
        assert module.HipKittensExperts._supports_current_device() is takes
