# SPDX-License-Identifier: MIT
"""Qwen3-Next and Qwen3.5 of Transformers with their gated delta nets on hipkittens.gated_delta_rule: logits, gradients, generation,
training. tests/integrations/test_transformers_5.py runs this file with Transformers 5, which contains Qwen3.5."""

import collections
import copy
import functools
import itertools

import pytest
import torch
import transformers

import hipkittens
from hipkittens import fla
from tests.integrations.test_transformers_training import losses, rms
from tests.integrations.tiny_models import SIZES, TRANSFORMERS_5, VOCABULARY
from tests.simulated_device import TARGETS

IDS = torch.randint(1, VOCABULARY, (2, 70), generator=torch.Generator().manual_seed(1))
EXPERTS = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts_per_tok": 2,
    "num_experts": 4,
}
CONFIGURATIONS = {"Qwen3NextConfig": EXPERTS, "Qwen3_5TextConfig": {}, "Qwen3_5MoeTextConfig": EXPERTS}
# Transformers 4 contains only Qwen3-Next of the three, whose layers have the functions as attributes.
PRESENT = [name for name in CONFIGURATIONS if hasattr(transformers, name)]
assert len(PRESENT) == (3 if TRANSFORMERS_5 else 1)
FUNCTIONS = "hipkittens.gated_delta_rule, hipkittens.causal_conv1d, hipkittens.causal_conv1d_update"


def make(name, dtype, **more):
    torch.manual_seed(0)
    config = getattr(transformers, name)(
        **{**SIZES, "num_hidden_layers": 2, "max_position_embeddings": 128}, head_dim=16,
        layer_types=["linear_attention", "full_attention"], linear_conv_kernel_dim=4, linear_key_head_dim=24,
        linear_value_head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4, **CONFIGURATIONS[name],
    )  # fmt: skip
    # grouped_mm, which Transformers 5 would use, does not support float64.
    experts = {"experts_implementation": "eager"} if TRANSFORMERS_5 else {}
    return transformers.AutoModelForCausalLM.from_config(config, **experts, **more).to(dtype)


class Called(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts calls of each operator of this package."""

    def __enter__(self):
        self.counts = collections.Counter()
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace.startswith("hipkittens"):
            self.counts[function._opname] += 1
        return function(*args, **(kwargs or {}))


def logits_and_gradients(model):
    result = model(IDS, labels=IDS)
    result.loss.backward()
    return result.logits, {name: value.grad for name, value in model.named_parameters()}


def error(found, reference):
    return (found.double() - reference).norm().item()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRESENT)
def test_logits_and_gradients(target, name):
    """Errors relative to float64 are within a factor of 2 of those of eager bfloat16; experts, whose choice is discontinuous, apart."""
    model = make(name, torch.bfloat16)
    exact = copy.deepcopy(model).double()
    eager = copy.deepcopy(model)
    options = {"moe": False, "norm": False, "rotary": False, "mlp": False, "loss": False, "attention": False}
    with hipkittens.simulate(target, checks="all") as run:
        report = hipkittens.patch(model, **options)
        ours = logits_and_gradients(model)
    assert run.findings == []
    rows = [row for row in report.rows if row.part == "linear_attention"]
    assert [row.replaced_by for row in rows] == [FUNCTIONS]
    theirs, reference = logits_and_gradients(eager), logits_and_gradients(exact)
    assert error(ours[0], reference[0]) <= 2 * error(theirs[0], reference[0])
    of_layer = [each for each in reference[1] if each.startswith("model.layers.0.linear_attn.")]
    assert len(of_layer) == (9 if "3_5" in name else 7)
    for each in of_layer:
        found, torchs, wanted = (result[1][each] for result in (ours, theirs, reference))
        assert found.isfinite().all() and found.abs().sum() > 0
        assert error(found, wanted) <= 2 * error(torchs, wanted), each


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRESENT)
def test_generation_is_eager_ones(target, name):
    # In bfloat16 a random model's largest logits are too close to each other.
    model = make(name, torch.float32).eval()
    options = {"max_new_tokens": 6, "do_sample": False}
    expected = model.generate(IDS[:, :20], **options)
    with hipkittens.simulate(target), hipkittens.patched(model), Called() as called:
        assert torch.equal(model.generate(IDS[:, :20], **options), expected)
    # The layer's prompt, and five tokens after it.
    assert called.counts["gated_delta_rule"] == 6
    assert called.counts["causal_conv1d"] == 1 and called.counts["causal_conv1d_states"] == 5


@pytest.mark.skipif(TRANSFORMERS_5, reason="there layers have no attributes")
def test_unpatch_restores_attributes():
    model = make("Qwen3NextConfig", torch.float32)
    layer = model.model.layers[0].linear_attn
    functions = layer.chunk_gated_delta_rule, layer.causal_conv1d_update
    with hipkittens.patched(model):
        assert layer.chunk_gated_delta_rule is fla.chunk_gated_delta_rule
        copied = copy.deepcopy(model)
        assert copied.model.layers[0].linear_attn.chunk_gated_delta_rule is fla.chunk_gated_delta_rule
    assert (layer.chunk_gated_delta_rule, layer.causal_conv1d_update) == functions
    hipkittens.unpatch(copied)
    assert copied.model.layers[0].linear_attn.chunk_gated_delta_rule is functions[0]


@pytest.mark.skipif(not TRANSFORMERS_5, reason="Transformers 4 passes nothing about packed sequences on")
@pytest.mark.parametrize("target", TARGETS)
def test_packed_sequences_of_a_layer_are_those_of_separate_calls(target):
    model = make("Qwen3_5TextConfig", torch.bfloat16)
    layer, ends = model.model.layers[0].linear_attn, [0, 20, 21, 70]
    hidden = torch.randn(1, 70, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(ends).diff())[None]
    starts = torch.tensor(ends, dtype=torch.int32)
    more = {"cu_seq_lens_k": starts, "max_length_q": 49, "max_length_k": 49, "seq_idx": numbers}
    with hipkittens.simulate(target, checks="all") as run, hipkittens.patched(model), torch.no_grad():
        packed = layer(hidden, cu_seq_lens_q=starts, **more)
        alone = [layer(hidden[:, first:past]) for first, past in itertools.pairwise(ends)]
        whole = layer(hidden, cu_seq_lens_q=starts[[0, 3]])
        assert torch.equal(whole, layer(hidden)) and not torch.equal(whole, packed)
        with pytest.raises(NotImplementedError, match="is given seq_idx"):
            layer(hidden, seq_idx=numbers)
        with pytest.raises(ValueError, match="cu_seq_lens_q is given and there are 2 rows of tokens"):
            layer(hidden.expand(2, -1, -1), cu_seq_lens_q=starts)
    assert run.findings == []
    # Linear layers are PyTorch's, whose summation order depends on the number of rows.
    torch.testing.assert_close(packed, torch.cat(alone, 1), rtol=1e-2, atol=1e-3)


@functools.cache
def losses_of_torch(name):
    """PyTorch's losses with two summation orders."""
    return [losses(make(name, torch.float32, attn_implementation=each)) for each in ("eager", "sdpa")]


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PRESENT)
def test_thirty_steps_are_within_the_noise_of_two_orders(target, name):
    model, by_torch = make(name, torch.float32, attn_implementation="sdpa"), losses_of_torch(name)
    report = hipkittens.patch(model, linear=True, dtype=torch.bfloat16)
    assert [row.replaced_by for row in report.rows if row.part == "linear_attention"] == [FUNCTIONS]
    with hipkittens.simulate(target):
        ours = losses(model)
    assert ours[-5:].mean() < ours[:5].mean() - 0.5
    noise, distance = rms(by_torch[1] - by_torch[0]), min(rms(ours - theirs) for theirs in by_torch)
    print(f"{name} {target}: {distance:.2e} from PyTorch, whose two orders are {noise:.2e} apart")
    assert 0 < distance <= 2 * noise


@pytest.mark.parametrize("target", TARGETS)
def test_gated_norm(target):
    """Results and gradients compared with those of its own forward, both relative to float64."""
    model = make("Qwen3NextConfig", torch.bfloat16)
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
    model = make("Qwen3NextConfig", torch.bfloat16)
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
    """fla's defaults, its argument order, and refused arguments."""
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
