# SPDX-License-Identifier: MIT
"""hipkittens.patch(model, fused_loss=True): the losses without materialized logits, compared with Transformers' own."""

import copy

import pytest
import torch

transformers = pytest.importorskip("transformers")

import hipkittens  # noqa: E402
from hipkittens._accuracy import BAR, compare  # noqa: E402
from tests.integrations import tiny_models  # noqa: E402
from tests.integrations.tiny_models import BF16, SIZES, tokens  # noqa: E402


def make(name):
    if name != "gemma2":
        return tiny_models.make(name)
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        **SIZES, head_dim=16, final_logit_softcapping=3.0, attn_logit_softcapping=None
    )
    return transformers.AutoModelForCausalLM.from_config(config).to(BF16).train()


def inputs(**more):
    ids = tokens()
    labels = ids.clone()
    labels[0, :7] = -100
    return {"input_ids": ids, "labels": labels, "use_cache": False, **more}


def trained(model, **more):
    model.zero_grad(set_to_none=True)
    output = model(**inputs(**more))
    output.loss.backward()
    return output, {name: value.grad.clone() for name, value in model.named_parameters()}


def only_fused(model):
    """Patch nothing else of the model, so that all differences are the loss's."""
    off = dict.fromkeys(("attention", "norm", "rotary", "mlp", "loss"), False)
    return hipkittens.patch(model, fused_loss=True, **off)


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("items", [None, 50])
def test_loss_and_gradients(name, arch, items):
    more = {} if items is None else {"num_items_in_batch": torch.tensor(items)}
    model = make(name)
    whole, theirs = trained(model, **more)
    reference, expected = trained(tiny_models.twin_in_float64(model), **more)
    report = only_fused(model)
    assert [row.replaced_by for row in report.replaced] == ["hipkittens.linear_cross_entropy"]
    with hipkittens.simulate(arch, checks="all") as checked:
        output, ours = trained(model, **more)
    assert not checked.findings and output.logits is None and whole.logits is not None
    # How close one number comes to another's error is luck: allow a quarter of a rounding to bfloat16.
    assert abs(output.loss.item() / reference.loss.item() - 1) <= 2**-10
    for name_of, gradient in ours.items():
        found = compare(
            gradient, theirs[name_of], expected[name_of].double(), expected[name_of].abs().max().item()
        )
        assert max(found.ratio_max, found.ratio_rms) <= BAR, (name_of, found)


def test_evaluation_and_calls_without_labels_have_logits():
    model = make("llama")
    expected = model.eval()(**inputs())
    only_fused(model)
    found = model(**inputs())
    assert torch.equal(found.logits, expected.logits) and torch.equal(found.loss, expected.loss)
    model.train()
    assert torch.equal(model(input_ids=tokens()).logits, expected.logits)


def test_options_of_the_call():
    model = make("llama")
    only_fused(model)
    ids, labels = tokens(), inputs()["labels"]
    expected = model(input_ids=ids, labels=labels).loss
    assert torch.equal(model(ids, None, None, None, None, labels).loss, expected)  # by place
    as_tuple = model(input_ids=ids, labels=labels, use_cache=False, return_dict=False)
    assert isinstance(as_tuple, tuple) and torch.equal(as_tuple[0], expected)
    shifted = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:]
    assert torch.equal(model(input_ids=ids, labels=labels, shift_labels=shifted).loss, expected)
    with pytest.raises(ValueError, match="logits_to_keep is 1 for a loss of all tokens"):
        model(input_ids=ids, labels=labels, logits_to_keep=1)


def test_a_copy_is_its_own_and_unpatch_undoes():
    model = make("llama")
    own = type(model).forward
    only_fused(model)
    twin = copy.deepcopy(model)
    assert twin.forward.__self__ is twin
    hipkittens.unpatch(model)
    assert "forward" not in vars(model) and model.forward.__func__ is own
    assert twin(**inputs()).logits is None and model(**inputs()).logits is not None
    with hipkittens.patched(model, fused_loss=True):
        assert model(**inputs()).logits is None
    assert model(**inputs()).logits is not None


def test_reasons():
    def reason(model, **options):
        rows = hipkittens.patch(model, fused_loss=True, dry_run=True, **options).rows
        return next(row.reason for row in rows if row.part == "fused_loss")

    granite = transformers.GraniteConfig(**SIZES, logits_scaling=2.0)
    found = reason(transformers.AutoModelForCausalLM.from_config(granite).bfloat16())
    assert "does more than Llama's: logits_scaling" in found
    assert "its hidden states are torch.float32" in reason(tiny_models.make("llama", torch.float32))
    assert not reason(tiny_models.make("llama", torch.float32), dtype=BF16)
    model = make("llama")
    model.lm_head.register_forward_hook(lambda *_: None)
    assert "lm_head is a Linear with a forward or hooks of its own" in reason(model)
    model = make("llama")
    model.forward = model.forward
    assert "its forward has been replaced on the module itself" in reason(model)


def test_memory_of_the_loss():
    """No allocation is as large as the logits."""
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 32768})
    model = transformers.AutoModelForCausalLM.from_config(config).to(BF16).train()
    only_fused(model)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            result = function(*args, **(kwargs or {}))
            for value in torch.utils._pytree.tree_leaves(result):
                if isinstance(value, torch.Tensor) and not value._is_view():
                    largest = max(largest, value.numel() * value.element_size())
            return result

    ids = torch.randint(3, 32768, (8, 512))
    with Watch():
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    logits = ids.numel() * 32768 * 2
    assert largest <= logits // 8
