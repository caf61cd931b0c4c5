# SPDX-License-Identifier: MIT
"""Megatron Core, TorchTitan, vLLM and SGLang, through stubs of their published interfaces, since the default run installs none of them.

tests/oracles has test_megatron.py, test_torchtitan.py and test_vllm_*.py, which run the first three frameworks themselves.
"""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks

ROOT = Path(__file__).resolve().parents[2]
BF16 = torch.bfloat16


@pytest.fixture
def load(monkeypatch):
    """Import an integration afresh, among the stubs that this test has installed."""
    loaded = []

    def importer(name):
        loaded.append(f"hipkittens.integrations.{name}")
        sys.modules.pop(loaded[-1], None)
        return importlib.import_module(loaded[-1])

    yield importer
    for name in loaded:
        sys.modules.pop(name, None)


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def config(**changes):
    given = {
        "context_parallel_size": 1,
        "attention_dropout": 0.0,
        "window_size": None,
        "sequence_parallel": False,
    }
    return SimpleNamespace(**{**given, **changes})


KINDS = stub_frameworks.AttnMaskType


def test_megatron_core_attention(monkeypatch, load):
    stub_frameworks.megatron(monkeypatch)
    kind = load("megatron").CoreAttention
    q, k, v = (draw(20, 2, heads, 32, seed=heads).requires_grad_() for heads in (4, 2, 2))
    attend = kind(config(), 1, KINDS.causal, "self", softmax_scale=0.2)
    out = attend(q, k, v, torch.ones(1, 1, 20, 20, dtype=torch.bool))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.double().permute(1, 2, 0, 3) for x in (q, k, v)), is_causal=True, scale=0.2, enable_gqa=True
    ).permute(2, 0, 1, 3)
    assert out.shape == (20, 2, 4 * 32) and (out - expected.flatten(-2)).abs().max() < 0.03
    gradients = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
    one = attend(q[-1:], k, v, None)  # the last token, with a cache
    assert torch.allclose(one.float(), out[-1:].float(), atol=0.02)
    whole = attend(q, k, v, None, attn_mask_type=KINDS.no_mask)
    assert torch.allclose(whole[-1].float(), out[-1].float(), atol=0.02)
    assert not torch.allclose(whole[0].float(), out[0].float(), atol=0.02)
    near = kind(config(window_size=(3, 0)), 1, KINDS.causal, "self")(q, k, v, None)
    assert torch.equal(
        near.unflatten(-1, (4, 32)).transpose(0, 1),
        hipkittens.attention(*(x.transpose(0, 1) for x in (q, k, v)), causal=True, window_size=(3, 0)),
    )


def test_megatron_packs_and_dropout(monkeypatch, load):
    stub_frameworks.megatron(monkeypatch)
    kind = load("megatron").CoreAttention
    q, k, v = (draw(30, heads, 32, seed=heads) for heads in (4, 2, 2))
    ends = torch.tensor([0, 11, 30], dtype=torch.int32)
    pack = SimpleNamespace(
        qkv_format="thd", cu_seqlens_q=ends, cu_seqlens_kv=ends, max_seqlen_q=19, max_seqlen_kv=19
    )
    attend = kind(config(), 1, KINDS.padding_causal, "self")
    out = attend(q, k, v, None, packed_seq_params=pack)
    expected = hipkittens.attention_varlen(q, k, v, ends, ends, 19, 19, causal=True)
    assert torch.equal(out, expected.flatten(-2))
    before = stub_frameworks.RngTracker.forks
    attend = kind(config(attention_dropout=0.5), 1, KINDS.causal, "self")
    given = (q[:, None], k[:, None], v[:, None], None)
    assert not torch.equal(attend(*given), attend(*given))
    assert stub_frameworks.RngTracker.forks == before + 2
    attend.eval()
    assert torch.equal(attend(*given), attend(*given))
    assert stub_frameworks.RngTracker.forks == before + 2


def test_megatron_refusals(monkeypatch, load):
    stub_frameworks.megatron(monkeypatch)
    kind = load("megatron").CoreAttention
    x = draw(5, 1, 2, 32)
    for name, value in (("context_parallel_size", 2), ("softmax_type", "learnable")):
        with pytest.raises(NotImplementedError, match=f"{name} is {value}"):
            kind(config(**{name: value}), 1, KINDS.causal, "self")
    attend = kind(config(), 1, KINDS.causal, "self")
    padded = SimpleNamespace(qkv_format="thd", cu_seqlens_q_padded=torch.zeros(2))
    refused = {
        "attn_mask_type is arbitrary": {"attn_mask_type": KINDS.arbitrary},
        "attn_mask_type is padding": {"attn_mask_type": KINDS.padding},
        "attention_bias is given": {"attention_bias": x},
        "cu_seqlens_q_padded is given": {"packed_seq_params": padded},
    }
    for text, options in refused.items():
        with pytest.raises(NotImplementedError, match=text):
            attend(x, x, x, None, **options)


def test_torchtitan_rms_norm(monkeypatch, load):
    registered = stub_frameworks.torchtitan(monkeypatch)
    integration = load("torchtitan")
    [(target, exact, factory)] = registered
    assert target is integration.RMSNorm.Config and exact and factory is integration.rms_norm
    before = target(eps=0.25)
    before.normalized_shape = 48
    norm = integration.HipKittensRMSNorm(factory(before)).to(BF16)
    theirs = integration.RMSNorm(before).to(BF16)
    assert norm.state_dict().keys() == theirs.state_dict().keys()
    x = draw(3, 7, 48)
    assert torch.equal(norm(x), hipkittens.rms_norm(x, norm.weight, 0.25))
    assert torch.allclose(norm(x).float(), theirs(x).float(), atol=0.02)


def test_vllm_rms_norm_and_rotary(monkeypatch, load):
    replaced, rms_norm, rotary = stub_frameworks.vllm(monkeypatch)
    integration = load("vllm")
    assert replaced == {}
    for listed in (None, "", "other, hipkittens2"):
        monkeypatch.delenv("VLLM_PLUGINS", raising=False)
        if listed is not None:
            monkeypatch.setenv("VLLM_PLUGINS", listed)
        integration.plugin()
        assert replaced == {}
    monkeypatch.setenv("VLLM_PLUGINS", "other, hipkittens")
    integration.plugin()
    integration.register()
    assert set(replaced) == {"RMSNorm", "RotaryEmbedding", "UnquantizedFusedMoEMethod"}
    assert {each.name for each in replaced.values()} == {
        "rms_norm",
        "rotary_embedding",
        "unquantized_fused_moe",
    }
    norm = rms_norm(64, eps=0.1, dtype=BF16)
    assert type(norm) is replaced["RMSNorm"]
    x, residual = draw(6, 64), draw(6, 64, seed=1)
    assert torch.allclose(norm(x).float(), norm.forward_native(x).float(), atol=0.03)
    for ours, theirs in zip(norm(x, residual), norm.forward_native(x, residual), strict=True):
        assert torch.allclose(ours.float(), theirs.float(), atol=0.03)
    partly = rms_norm(64, var_hidden_size=16, dtype=BF16)
    assert torch.equal(partly(x), partly.forward_native(x))
    positions = torch.tensor([3, 0, 17, 5, 5, 2])
    for neox in (True, False):
        turn = rotary(32, 16, 20, 100.0, neox, torch.float32)
        query, key = draw(6, 4 * 32), draw(6, 32, seed=2)
        for given in ((positions, query, key), (positions.view(2, 3), query.view(2, 3, -1), None)):
            for ours, theirs in zip(turn(*given), turn.forward_native(*given), strict=True):
                assert (ours is None) == (theirs is None)
                assert ours is None or torch.allclose(ours.float(), theirs.float(), atol=0.03)


@pytest.mark.parametrize("aiter", [False, True])
def test_sglang_rms_norm(monkeypatch, load, aiter):
    registry, rms_norm = stub_frameworks.sglang(monkeypatch)
    integration = load("sglang")
    for listed in (None, "", "other, hipkittens2"):
        monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
        if listed is not None:
            monkeypatch.setenv("SGLANG_PLUGINS", listed)
        integration.plugin()
        assert registry.hooks == {}
    monkeypatch.setenv("SGLANG_PLUGINS", "other, hipkittens")
    integration.plugin()
    integration.register()
    registry.apply_hooks()
    norm = rms_norm(64, eps=0.1, aiter=aiter).to(BF16)
    x, residual, more = (draw(6, 64, seed=seed) for seed in range(3))
    ours = norm(x), *norm(x, residual)
    assert norm.calls == 0
    exact = norm.forward_native(x), *norm.forward_native(x, residual)
    for mine, theirs in zip(ours, exact, strict=True):
        assert torch.allclose(mine.float(), theirs.float(), atol=0.03)
    # What ours does not support falls back to theirs, bit for bit.
    before = norm.calls
    for mine, theirs in zip(norm(x, residual, more), norm.forward_native(x, residual, more), strict=True):
        assert torch.equal(mine, theirs)
    assert norm(x[:0]).shape == (0, 64) and norm.calls == before + 3
    for options in ({"var_hidden_size": 16}, {"fp32_residual": True}):
        other = rms_norm(64, aiter=aiter, **options).to(BF16)
        assert torch.equal(other(x), other.forward_native(x)) and other.calls == 2


@pytest.mark.parametrize("group", ["vllm.general_plugins", "sglang.srt.plugins"])
def test_plugins_are_declared(group):
    heading = re.escape(f'[project.entry-points."{group}"]')
    declared = re.search(
        rf'^{heading}\nhipkittens = "(.*):(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M
    )
    module, function = declared.groups()
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_sglang_linear(monkeypatch, load, target):
    registry, _ = stub_frameworks.sglang(monkeypatch)
    monkeypatch.setenv("SGLANG_PLUGINS", "hipkittens")
    load("sglang").plugin()
    hook = registry.hooks["sglang.srt.layers.quantization.fp8_utils.triton_w8a8_block_fp8_linear"]

    def theirs(*given, **options):
        return given, options

    x, w, bias = draw(2, 5, 256), draw(128, 256, seed=1), draw(128, seed=2)
    with hipkittens.simulate(target, checks="all") as launches:
        codes, scale = hipkittens.quantize(w, hipkittens.QuantSpec("fp8", (128, 128)))
        of_rows, row_scale = hipkittens.quantize(
            x.view(10, 256), hipkittens.QuantSpec("fp8", 128, floor=1e-10)
        )
        expected = hipkittens.scaled_matmul(
            of_rows, codes.t(), row_scale, scale.t(), recipe=("1x128", "128x128"), bias=bias
        )
        out = hook(theirs, x, codes, [128, 128], scale, bias=bias)
        assert torch.equal(out, expected.view(2, 5, 128))
        assert torch.equal(hook(theirs, of_rows, codes, [128, 128], scale, row_scale, bias), expected)
        for block, more in (([32, 32], {}), ([128, 128], {"act_scale_ue8m0": True})):
            given, options = hook(theirs, x, codes, block, scale, bias=bias, weight_bf16=w, **more)
            assert given[2] == block and given[5] is bias and options["weight_bf16"] is w
            assert options["act_scale_ue8m0"] == bool(more)
        given, _ = hook(theirs, x[:0], codes, [128, 128], scale)
        assert given[0].shape == (0, 5, 256)
    assert launches.findings == []


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_sglang_scaled_linear(monkeypatch, load, target):
    name = "sglang.srt.layers.quantization.fp8_utils.apply_fp8_linear"
    for aiter in ("1", "0"):
        registry, _ = stub_frameworks.sglang(monkeypatch)
        monkeypatch.setenv("SGLANG_PLUGINS", "hipkittens")
        monkeypatch.setenv("SGLANG_USE_AITER", aiter)
        registry.hooks.clear()
        load("sglang").plugin()
        assert (name in registry.hooks) == (aiter == "0")
    hook, spec = registry.hooks[name], hipkittens.QuantSpec
    x, w, bias = draw(2, 5, 256), draw(48, 256, seed=1), draw(48, seed=2)
    fixed = torch.tensor([0.02])

    def theirs(*given, **options):
        return given, options

    with hipkittens.simulate(target, checks="all") as launches:
        rows = x.view(10, 256)
        for of_weight, more, of_rows in (
            ("row", {}, "row"),
            ("tensor", {}, "tensor"),
            ("tensor", {"use_per_token_if_dynamic": True}, "row"),
            ("row", {"compressed_tensor_quant": True}, "tensor"),
            ("row", {"compressed_tensor_quant": True, "use_per_token_if_dynamic": True}, "row"),
            ("row", {"input_scale": fixed, "use_per_token_if_dynamic": True}, "tensor"),
        ):
            codes, scale = hipkittens.quantize(w, spec("fp8", of_weight))
            given = fixed.reshape(()) if "input_scale" in more else None
            a, scale_a = hipkittens.quantize(rows, spec("fp8", of_rows), given)
            scale_b = scale if of_weight == "tensor" else scale.t()
            recipe = (of_rows, of_weight)
            expected = hipkittens.scaled_matmul(a, codes.t(), scale_a, scale_b, recipe=recipe, bias=bias)
            # SGLang's scales of tensors have one dimension or none.
            out = hook(
                theirs, x, codes.t(), scale if of_weight == "row" else scale.view(1), bias=bias, **more
            )
            assert torch.equal(out, expected.view(2, 5, 48))
            arrived = hook(
                theirs, a, codes.t(), scale, scale_a, bias=bias, pre_quant_output_dtype=torch.float16
            )
            expected = hipkittens.scaled_matmul(
                a, codes.t(), scale_a, scale_b, recipe=recipe, bias=bias, out_dtype=torch.float16
            )
            assert torch.equal(arrived, expected)
        for changes in ({"weight_scale": torch.ones(3)}, {"input_scale_ub": fixed}, {"input_scale": torch.ones(10, 1)}, {"input": x[:0]}):  # fmt: skip
            given = {"input": x, "weight": codes.t(), "weight_scale": scale, "pad_output": True} | changes
            passed, options = hook(theirs, **given)
            assert passed[0] is given["input"] and options["pad_output"] is True
            assert "cutlass_fp8_supported" not in options
            assert hook(theirs, **given, cutlass_fp8_supported=False)[1]["cutlass_fp8_supported"] is False
        with pytest.raises(ValueError, match="have no input_scale"):
            hook(theirs, a, codes.t(), scale)
    assert launches.findings == []
