# SPDX-License-Identifier: MIT
"""Mixture-of-experts models of Transformers on hipkittens.moe: blocks and models compared with eager, the patch report, and unpatch."""

import copy
import json

import pytest
import tiny_models
import torch
import torch.distributed as dist
import transformers
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import hipkittens
from hipkittens import cli
from hipkittens._accuracy import compare

if tiny_models.TRANSFORMERS_5:
    pytest.skip("Transformers 5 has other experts", allow_module_level=True)

BF16 = torch.bfloat16
ONLY_EXPERTS = dict.fromkeys(("attention", "norm", "rotary", "mlp", "loss"), False)
# Inputs for which bfloat16 and float32 choose the same experts everywhere: elsewhere errors would not be rounding errors.
SEEDS = {"mixtral": 1, "qwen3_moe": 1, "qwen2_moe": 6, "deepseek_v3": 5, "gpt_oss": 1}
CLASSES = {
    "mixtral": "MixtralSparseMoeBlock",
    "qwen3_moe": "Qwen3MoeSparseMoeBlock",
    "qwen2_moe": "Qwen2MoeSparseMoeBlock",
    "olmoe": "OlmoeSparseMoeBlock",
    "deepseek_v3": "DeepseekV3MoE",
    "gpt_oss": "GptOssMLP",
}
# Models whose copy is in float32, not float64: their code requires float32 in the middle.
IN_FLOAT32 = ("deepseek_v3", "gpt_oss", "qwen2_moe")


def block_of(name):
    model = tiny_models.make(name)
    return next(module for module in model.modules() if type(module).__name__ == CLASSES[name])


def results(block, x, grad):
    block.zero_grad(set_to_none=True)
    leaf = x.detach().clone().requires_grad_()
    found = block(leaf)
    out = found[0] if isinstance(found, tuple) else found
    out.backward(grad.to(out.dtype))
    gradients = {name: value.grad for name, value in block.named_parameters() if value.grad is not None}
    return {"out": out.detach(), "x": leaf.grad, **gradients}


@pytest.mark.parametrize("target", ("gfx942", "gfx950"))
@pytest.mark.parametrize("name", CLASSES)
def test_blocks(name, target):
    """Outputs and every gradient, including tokens whose experts are chosen in float32."""
    block = block_of(name)
    reference = copy.deepcopy(block).float()
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(1, 96, 64, generator=generator).to(BF16)
    router = getattr(block, "gate", None) or block.router
    logits = torch.nn.functional.linear(x[0], router.weight, getattr(router, "bias", None)).float()
    scores = logits.sort(-1, descending=True).values
    k = router.top_k if hasattr(router, "top_k") else block.top_k
    x = x[:, scores[:, k - 1] - scores[:, k] > 0.05] if name != "deepseek_v3" else x
    assert x.shape[1] >= 48
    grad = torch.randn(x.shape, generator=generator).to(BF16)
    exact = results(reference, x.float(), grad)
    theirs = results(block, x, grad)
    with (
        hipkittens.simulate(target, checks="all", threads=1) as run,
        hipkittens.patched(block, **ONLY_EXPERTS) as report,
    ):
        ours = results(block, x, grad)
    assert not run.findings and report.replaced
    assert exact.keys() == theirs.keys() <= ours.keys()
    for each, value in exact.items():
        comparison = compare(ours[each], theirs[each], value.double(), value.abs().max().item())
        assert comparison.passes, (each, comparison)
    assert not any(ours[each].any() for each in ours.keys() - exact.keys())  # experts without tokens


@pytest.mark.parametrize("name", SEEDS)
def test_models(name):
    """Logits and every gradient, with everything patched that can be."""
    model = tiny_models.make(name)
    inputs = {"input_ids": tiny_models.tokens(2, 13, seed=SEEDS[name])}
    if name in IN_FLOAT32:
        twin, runs = copy.deepcopy(model).float(), lambda: [tiny_models.run(model, inputs)]
    else:
        twin, runs = tiny_models.twin_in_float64(model), lambda: tiny_models.runs_of_torch(model, inputs)
    reference, theirs = tiny_models.run(twin, inputs), runs()
    with hipkittens.patched(model) as report:
        ours = tiny_models.run(model, inputs)
    assert {row.kind for row in report.replaced if row.part == "moe"} & {CLASSES[name], "GptOssExperts"}
    experts = [each for each, _ in model.named_parameters() if ".experts." in each]
    assert experts and all(each in ours for each in experts)
    ours = {each: value for each, value in ours.items() if each in reference}
    assert tiny_models.within_bar(tiny_models.worst_ratios(tiny_models.comparisons(ours, theirs, reference)))


@pytest.mark.parametrize("name", CLASSES)
def test_every_product_of_experts_is_reported(name):
    model = tiny_models.make(name)
    report = hipkittens.patch(model, dry_run=True)
    rows = {row.module: row for row in report.rows if row.part == "moe"}
    assert all(row.replaced_by == "hipkittens.moe" and not row.reason for row in rows.values())
    for each, module in model.named_modules():
        if ".experts." in each and not module._modules:
            assert each in rows, each
    assert len(rows) == len([row for row in report.rows if ".experts" in row.module or row.part == "moe"])
    assert "hipkittens.moe" in str(report)


@pytest.mark.parametrize("name", ("mixtral", "deepseek_v3", "gpt_oss"))
def test_unpatch_restores_everything(name):
    model = tiny_models.make(name)
    ids = tiny_models.tokens()
    before, kinds = model(ids).logits, [type(module) for module in model.modules()]
    state = {each: (value.data_ptr(), value.clone()) for each, value in model.state_dict().items()}
    parameters = [id(each) for each in model.parameters()]
    hipkittens.patch(model)
    patched = model(ids).logits
    assert not torch.equal(patched, before)
    again = hipkittens.patch(model)
    assert not again.replaced
    assert {row.reason for row in again.rows if row.part == "moe"} == {
        "it has been replaced before, by hipkittens.moe"
    }
    twin = copy.deepcopy(model)
    assert torch.equal(twin(ids).logits, patched)
    assert [id(each) for each in model.parameters()] == parameters
    for each, value in model.state_dict().items():
        assert value.data_ptr() == state[each][0] and torch.equal(value, state[each][1])
    hipkittens.unpatch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(model(ids).logits, before)


def test_joined_experts_are_copied_by_no_call(tmp_path, monkeypatch):
    """The same bytes are seen by optimizers and files, too; weights that have been moved since are stacked again."""
    model, stacks = tiny_models.make("qwen3_moe"), []
    ids, parameters = tiny_models.tokens(2, 13), {}
    inputs = {"input_ids": ids}
    hipkittens.patch(model, **ONLY_EXPERTS)
    expected = tiny_models.run(model, inputs)
    hipkittens.unpatch(model)
    parameters = dict(model.named_parameters())
    model.save_pretrained(tmp_path / "apart")
    places = [value.data_ptr() for value in parameters.values()]
    hipkittens.patch(model, join_experts=True, dry_run=True, **ONLY_EXPERTS)
    assert [value.data_ptr() for value in parameters.values()] == places
    hipkittens.patch(model, join_experts=True, **ONLY_EXPERTS)
    whole = torch.stack
    monkeypatch.setattr(torch, "stack", lambda *given: stacks.append(given) or whole(*given))
    found = tiny_models.run(model, inputs)
    assert not stacks
    assert all(value is parameters[each] for each, value in model.named_parameters())
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[each], value) for each, value in expected.items())
    model.save_pretrained(tmp_path / "joined")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("apart", "joined")]
    assert sizes[0] == sizes[1]
    saved = type(model).from_pretrained(tmp_path / "joined", dtype=BF16).state_dict()
    assert all(torch.equal(saved[each], value) for each, value in model.state_dict().items())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    logits = model(ids).logits
    optimizer.step()
    assert not torch.equal(model(ids).logits, logits) and not stacks
    loss = model(ids).logits.float().sum()
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    twin = copy.deepcopy(model)
    assert torch.equal(twin(ids).logits, model(ids).logits)
    first = model.model.layers[0].mlp.experts[0].up_proj
    first.weight.data = first.weight.data.clone()
    before = len(stacks)
    model(ids)
    assert len(stacks) == before + 1


def test_router_logits_and_the_loss_of_balance():
    model = tiny_models.make("mixtral")
    ids = tiny_models.tokens()
    before = model(ids, labels=ids, output_router_logits=True)
    hipkittens.patch(model, **ONLY_EXPERTS)
    after = model(ids, labels=ids, output_router_logits=True)
    assert len(after.router_logits) == len(before.router_logits) == 2
    torch.testing.assert_close(after.router_logits[0], before.router_logits[0])
    torch.testing.assert_close(after.aux_loss, before.aux_loss, rtol=0.02, atol=0)


def test_float32_under_autocast():
    model = tiny_models.make("qwen3_moe", torch.float32)
    left = [row.reason for row in hipkittens.patch(model, **ONLY_EXPERTS).rows if row.part == "moe"]
    assert left and all("x is torch.float32; allowed: torch.bfloat16, torch.float16" in each for each in left)
    inputs = {"input_ids": tiny_models.tokens(2, 13)}
    with torch.autocast("cpu", BF16):
        expected = model(**inputs).logits.float()
        report = hipkittens.patch(model, dtype=BF16, **ONLY_EXPERTS)
        found = tiny_models.run(model, inputs)
    assert report.replaced
    assert (found["logits"].float() - expected).norm() <= 2.0**-6 * expected.norm()
    assert all(value.dtype == torch.float32 for each, value in found.items() if each != "logits")


def test_gradient_checkpointing_gives_the_same_gradients():
    model = tiny_models.make("qwen3_moe")
    hipkittens.patch(model)
    inputs = {"input_ids": tiny_models.tokens(2, 13)}
    plain = tiny_models.run(model, inputs)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    again = tiny_models.run(model, inputs)
    assert plain.keys() == again.keys()
    assert all(torch.equal(again[each], value) for each, value in plain.items())


def test_compiled():
    model = tiny_models.make("mixtral").eval()
    hipkittens.patch(model, **ONLY_EXPERTS)
    block = model.model.layers[0].block_sparse_moe
    x = torch.randn(1, 9, 64, generator=torch.Generator().manual_seed(1)).to(BF16)
    with torch.no_grad():
        expected, _ = block(x)
        found, _ = torch.compile(block, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(found, expected)


def reason_of(model, **options):
    report = hipkittens.patch(model, dry_run=True, **{**ONLY_EXPERTS, **options})
    return next(row.reason for row in report.rows if row.part == "moe" and row.reason)


def test_reasons():
    assert reason_of(tiny_models.make("mixtral"), moe=False) == "moe=False"
    pattern = "model.layers.*.experts.1.w2"
    assert reason_of(tiny_models.make("mixtral"), exclude=[pattern]) == "it was excluded"
    model = tiny_models.make("mixtral")
    first = model.model.layers[0].block_sparse_moe
    first.jitter_noise = 0.1
    assert "jitter_noise is 0.1" in reason_of(model)
    first.jitter_noise = 0.0
    handle = first.experts[2].register_forward_hook(lambda *_: None)
    assert "experts.2 has a hook, which would not be called" in reason_of(model)
    handle.remove()
    first.experts[1].w3 = torch.nn.Linear(64, 96, dtype=BF16)
    assert "experts.1.w3 has a bias" in reason_of(model)
    odd = tiny_models.make("gpt_oss")
    odd.model.layers[1].mlp.experts.alpha = 1.5
    assert "alpha 1.702" in reason_of(odd)

    class Doubled(type(first)):
        def forward(self, hidden_states):
            out, logits = super().forward(hidden_states)
            return 2 * out, logits

    model = tiny_models.make("mixtral")
    model.model.layers[1].block_sparse_moe.__class__ = Doubled
    assert "not a weighted sum of gated experts" in reason_of(model)


def test_an_adapter_put_in_later_is_not_passed_by():
    model = tiny_models.make("mixtral")
    hipkittens.patch(model)

    class Adapter(torch.nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    expert = model.model.layers[1].block_sparse_moe.experts[3]
    expert.w2 = Adapter(96, 64, bias=False, dtype=BF16)
    with pytest.raises(RuntimeError, match="w2 of an expert has become a Adapter after"):
        model(tiny_models.tokens())


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def test_layers_are_sharded_and_not_single_experts(one_process):
    model = tiny_models.make("mixtral")
    inputs = {"input_ids": tiny_models.tokens(2, 13)}
    hipkittens.patch(model, join_experts=True, **ONLY_EXPERTS)
    expected = tiny_models.run(model, inputs)
    for layer in model.model.layers:
        fully_shard(layer, mesh=one_process)
    fully_shard(model, mesh=one_process)
    found = tiny_models.run(model, inputs)
    assert torch.equal(found["logits"], expected["logits"])
    for each, value in expected.items():
        if each != "logits":
            assert torch.equal(found[each].full_tensor(), value), each
    model = tiny_models.make("mixtral")
    hipkittens.patch(model, **ONLY_EXPERTS)
    for expert in model.model.layers[0].block_sparse_moe.experts:
        fully_shard(expert, mesh=one_process)
    with pytest.raises(
        RuntimeError, match=r"is a DTensor; hipkittens.*Shard layers or blocks, not single experts"
    ):
        model(**inputs)
    hipkittens.unpatch(model)
    assert "experts.0 has a hook, which would not be called" in reason_of(model)


def test_the_command_and_real_sizes(tmp_path, capsys):
    """A model of 128 experts in 48 layers is recognized without its weights."""
    config = transformers.Qwen3MoeConfig(num_hidden_layers=2, num_experts=128)
    config.save_pretrained(tmp_path)
    assert cli.main(["patch", "--dry-run", "--json", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    blocks = [row for row in rows if row["kind"] == "Qwen3MoeSparseMoeBlock"]
    assert len(blocks) == 2 and all(row["replaced_by"] == "hipkittens.moe" for row in blocks)
