# SPDX-License-Identifier: MIT
"""Attention of Transformers with a softcap, with sinks and with a separate head size for V, compared with eager; and greedy tokens."""

import copy

import pytest
import tiny_models
import torch
import transformers

import hipkittens
import hipkittens.integrations.transformers
from hipkittens._accuracy import BAR, compare

BF16 = torch.bfloat16
LENGTH = 40
MODELS = {
    "gemma2": lambda: transformers.Gemma2Config(
        **tiny_models.SIZES, head_dim=16, sliding_window=8, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
    ),
    "gpt_oss": lambda: transformers.GptOssConfig(
        **tiny_models.SIZES, head_dim=16, sliding_window=8, num_local_experts=4, num_experts_per_tok=2
    ),
    "deepseek_v3": lambda: transformers.DeepseekV3Config(
        **{**tiny_models.SIZES, "num_key_value_heads": tiny_models.SIZES["num_attention_heads"]}, q_lora_rank=None, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=24,
        n_routed_experts=8, n_group=4, topk_group=2, moe_intermediate_size=40, first_k_dense_replace=2,
    ),
}  # fmt: skip


def model_of(name):
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name]())
    for parameter in model.parameters():
        if parameter.dim() == 1:  # sinks begin as zeros or as what memory held
            torch.nn.init.normal_(parameter)
    return model.to(BF16)


def results(attention, x, places, mask, grad):
    attention.zero_grad(set_to_none=True)
    leaf = x.detach().clone().requires_grad_()
    out = attention(leaf, position_embeddings=places, attention_mask=mask)[0]
    out.backward(grad.to(out.dtype))
    gradients = {name: value.grad for name, value in attention.named_parameters()}
    assert all(value is not None for value in gradients.values())
    return {"out": out.detach(), "x": leaf.grad, **gradients}


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name, target):
    """Each within twice the error of eager, which rounds scores and weights, relative to eager in float64."""
    model = model_of(name)
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(2, LENGTH, 64, generator=generator).to(BF16) for _ in range(2))
    for layer in model.model.layers[:2]:
        attention = layer.self_attn
        window = getattr(attention, "sliding_window", None)
        place = torch.arange(LENGTH)
        hidden = place > place[:, None]
        if window is not None:
            hidden |= place <= place[:, None] - window
        mask = torch.zeros(LENGTH, LENGTH).masked_fill(hidden, torch.finfo(BF16).min)[None, None]
        positions = place[None].expand(2, -1)
        places = model.model.rotary_emb(x, positions)
        model.set_attn_implementation("eager")
        exact = copy.deepcopy(attention).double()
        reference = results(exact, x.double(), [part.double() for part in places], mask.double(), grad)
        theirs = results(attention, x, places, mask.to(BF16), grad)
        model.set_attn_implementation("hipkittens")
        with hipkittens.simulate(target, checks="all", threads=1) as run:
            ours = results(attention, x, places, None, grad)
        assert not run.findings
        for key, wanted in reference.items():
            if "sinks" in key:  # few values: one of them may be right by luck
                error, other = ((found[key].double() - wanted).norm() for found in (ours, theirs))
                assert error <= 2 * other + 2**-8 * wanted.norm()
                continue
            result = compare(ours[key], theirs[key], wanted, wanted.abs().max().item())
            assert max(result.ratio_max, result.ratio_rms) <= BAR, (key, result)


@pytest.mark.parametrize("name", MODELS)
def test_a_patched_model_generates_eager_s_tokens(name):
    """In float16 with logits far enough apart that rounding does not change the largest."""
    model = model_of(name).half().eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(8)
    ids = tiny_models.tokens(2, 11)
    model.set_attn_implementation("eager")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    with hipkittens.patched(model, norm=False, rotary=False, mlp=False, moe=False, loss=False) as report:
        assert {row.part for row in report.replaced} == {"attention"}, str(report)
        assert len(report.replaced) == model.config.num_hidden_layers
        assert torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **options), wanted)
