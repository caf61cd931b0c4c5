# SPDX-License-Identifier: MIT
"""hipkittens.patch on models of Transformers: configurations, files, copies, compilation, and Liger's names for its options."""

import copy
import json
import subprocess
import sys

import pytest
import tiny_models
import torch
import transformers

import hipkittens
from hipkittens import cli
from hipkittens.integrations import transformers as patches


def logits(model):
    return model(tiny_models.tokens()).logits


def test_unpatch_restores_everything():
    model = tiny_models.make("qwen3")
    config, before = model.config, logits(model)
    state = copy.deepcopy(vars(config))
    kinds = [type(module) for module in model.modules()]
    forwards = [type(module).forward for module in model.modules()]
    hipkittens.patch(model, linear=True)
    assert model.config is not config and model.config._attn_implementation == "hipkittens"
    assert type(model.config) is type(config)
    hipkittens.unpatch(model)
    assert model.config is config and vars(config) == state
    assert all(getattr(module, "config", config) is config for module in model.modules())
    assert [type(module) for module in model.modules()] == kinds
    assert [type(module).forward for module in model.modules()] == forwards
    assert not any("hipkittens" in name for module in model.modules() for name in vars(module))
    assert torch.equal(logits(model), before)


def test_a_model_of_the_same_configuration_stays():
    one = tiny_models.make("llama")
    torch.manual_seed(0)
    other = type(one)(one.config).bfloat16()
    before = logits(other)
    functions = vars(sys.modules[type(one).__module__]).copy()
    hipkittens.patch(one, linear=True)
    assert other.config._attn_implementation == "sdpa"
    assert torch.equal(logits(other), before)
    assert vars(sys.modules[type(one).__module__]) == functions
    assert (
        torch.equal(logits(type(one)(one.config.__class__(**other.config.to_dict())).bfloat16()), before)
        is False
    )


def test_what_is_changed_in_the_configuration_meanwhile_stays():
    model = tiny_models.make("llama")
    config = model.config
    hipkittens.patch(model)
    model.config.use_cache = False
    model.resize_token_embeddings(70)
    hipkittens.unpatch(model)
    assert config.use_cache is False and config.vocab_size == 70
    assert config._attn_implementation == "sdpa"


def test_files_are_those_of_the_model_itself(tmp_path):
    model = tiny_models.make("gemma").eval()
    model.save_pretrained(tmp_path / "before")
    hipkittens.patch(model, linear=True)
    model.save_pretrained(tmp_path / "patched")
    texts = [(tmp_path / name / "config.json").read_text() for name in ("before", "patched")]
    assert texts[0] == texts[1] and "hipkittens" not in texts[1]
    as_saved, loaded = (
        type(model).from_pretrained(tmp_path / name, dtype=torch.bfloat16).eval()
        for name in ("before", "patched")
    )
    hipkittens.patch(as_saved, linear=True)
    ours = logits(as_saved)
    loaded.set_attn_implementation("hipkittens")
    hipkittens.patch(loaded, linear=True)
    assert torch.equal(logits(loaded), ours)
    twin = copy.deepcopy(loaded)
    assert torch.equal(logits(twin), ours)
    hipkittens.unpatch(twin)
    assert type(twin.model.norm).__name__ == "GemmaRMSNorm" and torch.equal(logits(loaded), ours)


@pytest.mark.parametrize("padded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_torch_compile(padded):
    """In one graph with a mask; Transformers' function for packed sequences breaks the graph where there is none."""
    model = tiny_models.make("llama").eval()
    hipkittens.patch(model)
    inputs = {"input_ids": tiny_models.tokens(), "use_cache": False}
    kept = torch.ones(3, 24, dtype=torch.bool)
    if padded:
        inputs["attention_mask"] = tiny_models.padding("left")
        kept = inputs["attention_mask"].bool()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=padded)
    with torch.no_grad():
        expected = model(**inputs).logits[kept]
        torch.testing.assert_close(compiled(**inputs).logits[kept], expected, rtol=0, atol=0.06)


@pytest.mark.slow
def test_compiled_models_refuse_packed_positions_loudly():
    model = tiny_models.make("llama").eval()
    hipkittens.patch(model)
    compiled = torch.compile(model, backend="aot_eager")
    positions = torch.cat((torch.arange(10), torch.arange(14)))[None]
    with torch.no_grad(), pytest.raises(RuntimeError, match="pass cu_seq_lens_q"):
        compiled(tiny_models.tokens(1), position_ids=positions, use_cache=False)


def test_gradient_checkpointing_gives_the_same_gradients():
    model = tiny_models.make("llama")
    hipkittens.patch(model, linear=True)
    inputs = {"input_ids": tiny_models.tokens(), "attention_mask": tiny_models.padding("right")}
    plain = tiny_models.run(model, inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = tiny_models.run(model, inputs)
    assert plain.keys() == again.keys()
    assert all(torch.equal(again[name], value) for name, value in plain.items())


def test_a_wrapped_model_is_found():
    wrapper = torch.nn.Sequential(torch.nn.Identity(), tiny_models.make("llama"))
    report = hipkittens.patch(wrapper)
    assert "1.model.layers.0.self_attn" in {row.module for row in report.replaced}
    assert wrapper[1].config._attn_implementation == "hipkittens"
    hipkittens.unpatch(wrapper)
    assert wrapper[1].config._attn_implementation == "sdpa"


def test_reasons_for_attention():
    def reason(model):
        rows = hipkittens.patch(model, norm=False, rotary=False).rows
        return next(row.reason for row in rows if row.part == "attention")

    odd = transformers.LlamaConfig(**{**tiny_models.SIZES, "hidden_size": 48})
    assert "the head size is 12" in reason(transformers.AutoModelForCausalLM.from_config(odd).bfloat16())
    assert "torch.float32" in reason(tiny_models.make("llama", torch.float32))
    bert = reason(tiny_models.make("bert"))
    assert bert == "" if tiny_models.TRANSFORMERS_5 else "no interface" in bert


def test_liger_s_words():
    model = tiny_models.make("llama")
    report = patches.apply_to_llama(rope=True, rms_norm=False, swiglu=False, model=model)
    assert {row.part for row in report.replaced} == {"attention", "rotary"}
    hipkittens.unpatch(model)
    report = patches.apply_to_llama(cross_entropy=True, model=model)
    assert {row.part for row in report.replaced} == {"attention", "rotary", "norm", "mlp", "loss"}
    hipkittens.unpatch(model)
    with pytest.raises(ValueError, match="fused_linear_cross_entropy is True and model None"):
        patches.apply_to_qwen2(fused_linear_cross_entropy=True)
    report = patches.apply_to_llama(fused_linear_cross_entropy=True, model=model)
    assert "fused_loss" in {row.part for row in report.replaced}
    hipkittens.unpatch(model)
    in_float32 = tiny_models.make("llama", torch.float32)
    with pytest.raises(ValueError, match=r"its hidden states are torch\.float32"):
        patches.apply_to_llama(fused_linear_cross_entropy=True, model=in_float32)
    assert type(in_float32.model.norm).__name__ == "LlamaRMSNorm"
    with pytest.raises(TypeError, match="model is a 'llama'; allowed: mistral"):
        patches.apply_to_mistral(model=model)
    with pytest.raises(ValueError, match="Pass a model"):
        patches.apply_to_bert()
    assert patches.apply_to_bert(model=tiny_models.make("bert")).replaced


def test_classes_for_later_models_until_removed():
    existing = tiny_models.make("llama")
    before = logits(existing)
    recorders = dict(type(existing.model)._can_record_outputs)
    with patches.apply_to_llama() as patch:
        assert patch.classes == ["LlamaAttention", "LlamaRMSNorm"]
        with pytest.raises(RuntimeError, match="replaced already"):
            patches.apply_to_llama()
        later, other = tiny_models.make("llama"), tiny_models.make("mistral")
        assert type(later.model.norm).__name__ == "HipkittensLlamaRMSNorm"
        assert type(other.model.norm).__name__ == "MistralRMSNorm"
    assert torch.equal(logits(existing), before)
    assert type(tiny_models.make("llama").model.norm).__name__ == "LlamaRMSNorm"
    assert type(existing.model)._can_record_outputs == recorders
    assert not torch.equal(logits(later), before)
    hipkittens.unpatch(later)
    assert torch.equal(logits(later), before)


def test_the_command_builds_without_weights(tmp_path, capsys):
    tiny_models.make("mistral").config.save_pretrained(tmp_path)
    for name in (str(tmp_path), str(tmp_path / "config.json"), "MistralConfig"):
        assert cli.main(["patch", "--dry-run", "--json", name]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["model"] == "MistralForCausalLM"
        assert {"attention", "rotary", "norm", "mlp", "loss"} == {
            row["part"] for row in report["rows"] if row["replaced_by"]
        }
    with pytest.raises(SystemExit, match="no configuration class"):
        cli.main(["patch", "--dry-run", "Nobody"])


def test_importing_hipkittens_imports_no_transformers():
    code = "import sys, hipkittens, torch; hipkittens.patch(torch.nn.Linear(8, 8)); assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
