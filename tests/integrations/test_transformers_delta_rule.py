# SPDX-License-Identifier: MIT
"""Qwen3-Next of Transformers with its gated delta nets on hipkittens.gated_delta_rule: logits, gradients, generation."""

import copy

import pytest
import torch
import transformers

import hipkittens
from hipkittens import fla
from tests.integrations.tiny_models import SIZES, VOCABULARY
from tests.simulated_device import TARGETS

pytestmark = pytest.mark.skipif(
    not hasattr(transformers, "Qwen3NextConfig"), reason="this Transformers has no Qwen3-Next"
)
IDS = torch.randint(1, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(1))


def qwen3_next(dtype):
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(
        **{**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 128}, head_dim=16,
        layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=24,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, num_experts_per_tok=2, num_experts=4,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config).to(dtype)


def logits_and_gradients(model):
    result = model(IDS, labels=IDS)
    result.loss.backward()
    return result.logits, {name: value.grad for name, value in model.named_parameters()}


def error(found, reference):
    return (found.double() - reference).norm().item()


@pytest.mark.parametrize("target", TARGETS)
def test_logits_and_gradients(target):
    """As far from float64 as eager bfloat16 is, within the factor of 2; experts, whose choice jumps, apart."""
    model = qwen3_next(torch.bfloat16)
    exact = copy.deepcopy(model).double()
    eager = copy.deepcopy(model)
    options = {"moe": False, "norm": False, "rotary": False, "mlp": False, "loss": False, "attention": False}
    with hipkittens.simulate(target, checks="all") as run:
        report = hipkittens.patch(model, **options)
        ours = logits_and_gradients(model)
    assert run.findings == []
    rows = [row for row in report.rows if row.part == "linear_attention"]
    assert [row.replaced_by for row in rows] == ["hipkittens.gated_delta_rule"]
    theirs, reference = logits_and_gradients(eager), logits_and_gradients(exact)
    assert error(ours[0], reference[0]) <= 2 * error(theirs[0], reference[0])
    for name in ("A_log", "dt_bias", "in_proj_qkvz.weight", "in_proj_ba.weight", "conv1d.weight"):
        name = f"model.layers.0.linear_attn.{name}"
        found, torchs, wanted = (result[1][name] for result in (ours, theirs, reference))
        assert found.isfinite().all() and found.abs().sum() > 0
        assert error(found, wanted) <= 2 * error(torchs, wanted), name


@pytest.mark.parametrize("target", TARGETS)
def test_generation_is_eager_ones_and_unpatch_restores(target):
    model = qwen3_next(
        torch.float32
    ).eval()  # In bfloat16 a random model's largest logits are too close to each other.
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(IDS[:, :20], **options)
    layer = model.model.layers[0].linear_attn
    functions = layer.chunk_gated_delta_rule, layer.causal_conv1d_update
    with hipkittens.simulate(target), hipkittens.patched(model):
        assert layer.chunk_gated_delta_rule is fla.chunk_gated_delta_rule
        assert torch.equal(model.generate(IDS[:, :20], **options), expected)
        copied = copy.deepcopy(model)
        assert copied.model.layers[0].linear_attn.chunk_gated_delta_rule is fla.chunk_gated_delta_rule
    assert (layer.chunk_gated_delta_rule, layer.causal_conv1d_update) == functions
    hipkittens.unpatch(copied)
    assert copied.model.layers[0].linear_attn.chunk_gated_delta_rule is functions[0]


@pytest.mark.parametrize("target", TARGETS)
def test_gated_norm(target):
    """Its results and gradients beside its own forward's, both from float64."""
    model = qwen3_next(torch.bfloat16)
    norm = model.model.layers[0].linear_attn.norm
    x, gate = (torch.randn(33, 16, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (2, 3))
    torch.nn.init.normal_(norm.weight, generator=torch.Generator().manual_seed(4))

    def run(module, dtype):
        inputs = [each.to(dtype).requires_grad_() for each in (x, gate)]
        y = module(*inputs)
        return y, *torch.autograd.grad(y.square().sum(), (*inputs, module.weight))

    reference, theirs = run(copy.deepcopy(norm).double(), torch.float64), run(norm, torch.bfloat16)
    with hipkittens.simulate(target, checks="all") as checked, hipkittens.patched(model) as report:
        [row] = [row for row in report.rows if row.module.endswith("linear_attn.norm")]
        assert row.replaced_by == "hipkittens.rms_norm"
        ours = run(norm, torch.bfloat16)
    assert checked.findings == []
    for found, eager, exact in zip(ours, theirs, reference, strict=True):
        assert found.dtype == eager.dtype and error(found, exact) <= 2 * error(eager, exact)


def test_what_is_left():
    model = qwen3_next(torch.bfloat16)
    [row] = [
        row
        for row in hipkittens.patch(model, linear_attention=False, dry_run=True).rows
        if row.part == "linear_attention"
    ]
    assert row.reason == "linear_attention=False"
    layer = model.model.layers[0].linear_attn
    layer.head_k_dim = 320
    [row] = [row for row in hipkittens.patch(model).rows if row.part == "linear_attention"]
    assert "q and k have 320 elements; kernels have 1 to 256" in row.reason


def test_names_of_fla():
    """Its defaults, its order, and what is refused."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 20, heads, 16, generator=generator) for heads in (1, 1, 2))
    g, beta = -torch.rand(1, 20, 2, generator=generator), torch.rand(1, 20, 2, generator=generator)
    expected = hipkittens.gated_delta_rule(q, k, v, g, beta, scale=0.5, return_state=True, l2norm=True)
    found = fla.chunk_gated_delta_rule(q, k, v, g, beta, 0.5, None, True, True)
    recurrent = fla.fused_recurrent_gated_delta_rule(q, k, v, g, None, None, beta, 0.5, None, True, True)
    for ours, other, wanted in zip(found, recurrent, expected, strict=True):
        assert torch.equal(ours, wanted) and torch.equal(other, wanted)
    first = fla.chunk_gated_delta_rule(q, k, v, g, beta, 0.5, None, True, True, state_v_first=True)
    assert torch.equal(first[1].transpose(-1, -2), expected[1])
    assert fla.chunk_gated_delta_rule(q, k, v, g, beta)[1] is None
    bare = fla.chunk_gated_delta_rule(q, k, v, use_qk_l2norm_in_kernel=True)[0]
    ones = torch.ones_like(beta)
    assert torch.equal(bare, hipkittens.gated_delta_rule(q, k, v, 0 * g, ones, l2norm=True))
    logits = fla.chunk_gated_delta_rule(
        q, k, v, g, beta, use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True, use_qk_l2norm_in_kernel=True
    )[0]
    assert torch.equal(logits, hipkittens.gated_delta_rule(q, k, v, g, 2 * beta.sigmoid(), l2norm=True))
    with pytest.raises(NotImplementedError, match=r"gk is given; pass g, one decay a head"):
        fla.fused_recurrent_gated_delta_rule(q, k, v, g, q, None, beta)
    with pytest.raises(NotImplementedError, match="chunk_size is 32; allowed: 64"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, chunk_size=32)
    with pytest.raises(ValueError, match="A_log or dt_bias is given and use_gate_in_kernel is False"):
        fla.chunk_gated_delta_rule(q, k, v, g, beta, A_log=g[0, 0])
