# SPDX-License-Identifier: MIT
"""hipkittens.patch on modules of torch.nn and on unknown modules: what is replaced, what is left and why, and unpatch."""

import copy
import json
import pickle

import pytest
import torch
from torch import nn

import hipkittens
from hipkittens import cli
from hipkittens._accuracy import compare

BF16 = torch.bfloat16


class ScaledNorm(nn.Module):
    """x / rms(x) * (1 + weight), under a name that does not reveal it."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 0.25))
        self.eps = 1e-5

    def forward(self, hidden):
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (1 + self.weight.float())).type_as(hidden)


class PlainNorm(ScaledNorm):
    """The weight in float32 makes the result float32."""

    def forward(self, hidden):
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(hidden.dtype)


class MeanNorm(ScaledNorm):
    def forward(self, hidden):
        return hidden / hidden.abs().mean(-1, keepdim=True) * self.weight


class GatedNorm(ScaledNorm):
    def forward(self, hidden, gate):
        return super().forward(hidden) * gate


class LoudLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 64)
        self.norms = nn.ModuleList([nn.LayerNorm(64), nn.RMSNorm(64), ScaledNorm(64), PlainNorm(64)])
        self.attend = nn.MultiheadAttention(64, 4, batch_first=True)
        self.head = nn.Linear(64, 32, bias=False)
        self.head.weight = self.embed.weight
        self.loud = LoudLinear(64, 64)

    def forward(self, tokens):
        x = self.embed(tokens)
        for norm in self.norms:
            x = x + norm(x)
        x = x + self.attend(x, x, x, need_weights=False)[0]
        return self.head(self.loud(x))


def make(dtype=BF16):
    torch.manual_seed(0)
    return Model().to(dtype)


def reasons(report):
    return {row.module: row.reason for row in report.left}


TOKENS = torch.arange(34).view(2, 17) % 32


def test_what_is_replaced_and_why_the_rest_is_not():
    model = make()
    report = hipkittens.patch(model)
    assert {row.module: row.replaced_by for row in report.replaced} == {
        "norms.0": "hipkittens.layer_norm",
        "norms.1": "hipkittens.rms_norm",
        "norms.2": "hipkittens.rms_norm",
        "norms.3": "hipkittens.rms_norm",
        "attend": "hipkittens.nn.MultiheadAttention",
    }
    assert reasons(report) == {
        "embed": "no kernel computes Embedding",
        "attend.out_proj": "torch.nn.MultiheadAttention reads its weight and never calls it",
        "head": "linear=False",
        "loud": "it is a torch.nn.Linear with a forward of its own",
    }
    assert "norms.*" in str(report) and "no kernel computes Embedding" in str(report)
    assert json.loads(report.to_json())["replaced"] == 5
    assert "replaced before" in reasons(hipkittens.patch(model, linear=True))["norms.2"]
    assert type(model.head).__name__ == "HipkittensLinear"


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_results_and_gradients_keep_the_bar(target):
    model = make()
    wide = copy.deepcopy(model).double()

    def run(network):
        network.zero_grad()
        logits = network(TOKENS)
        (logits * torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).view_as(logits)).sum().backward()
        return {"logits": logits} | {name: value.grad.clone() for name, value in network.named_parameters()}

    reference, theirs = run(wide), run(model)
    with hipkittens.simulate(target), hipkittens.patched(model, linear=True) as report:
        ours = run(model)
    assert len(report.replaced) == 6
    for name, expected in reference.items():
        if name.endswith(
            "in_proj_bias"
        ):  # the keys' third has the gradient 0: nothing but rounding error is left
            continue
        compared = compare(ours[name], theirs[name], expected, expected.abs().max().item())
        assert compared.passes, (name, compared)


def test_nothing_else_notices():
    """Parameters, their order, ties, hooks and the optimizer; and unpatch restores exactly the same classes and bits."""
    model = make()
    before = model(TOKENS)
    names, parameters = list(model.state_dict()), list(model.parameters())
    kinds = [type(module) for module in model.modules()]
    called = []
    model.norms[0].register_forward_hook(lambda *_: called.append("hook"))
    hipkittens.patch(model, linear=True)
    assert list(model.state_dict()) == names
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.head.weight is model.embed.weight
    assert all(isinstance(module, kind) for module, kind in zip(model.modules(), kinds, strict=True))
    after = model(TOKENS)
    assert called == ["hook"] and not torch.equal(before, after)
    hipkittens.unpatch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(model(TOKENS), before)


def test_other_models_of_the_same_classes_stay():
    one, other = make(), make()
    before = other(TOKENS)
    hipkittens.patch(one, linear=True)
    assert torch.equal(other(TOKENS), before)
    assert torch.equal(make()(TOKENS), before)


def test_copies_and_pickles_stay_patched_and_can_be_undone():
    model = make()
    before = model(TOKENS)
    hipkittens.patch(model, linear=True)
    after = model(TOKENS)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin.norms[2]) is type(model.norms[2])
        assert torch.equal(twin(TOKENS), after)
        hipkittens.unpatch(twin)
        assert torch.equal(twin(TOKENS), before)
    assert torch.equal(model(TOKENS), after)


def test_patched_leaves_what_was_patched_before():
    model = make()
    hipkittens.patch(model, attention=False, linear=False)
    with hipkittens.patched(model, linear=True) as report:
        assert [row.module for row in report.replaced] == ["attend", "head"]
    assert type(model.head) is nn.Linear
    assert type(model.norms[0]).__name__ == "HipkittensLayerNorm"


def test_a_dry_run_changes_nothing():
    model = make()
    kinds = [type(module) for module in model.modules()]
    report = hipkittens.patch(model, dry_run=True)
    assert len(report.replaced) == 5 and "would be replaced by" in str(report)
    assert [type(module) for module in model.modules()] == kinds


def test_reasons_are_the_operations_errors():
    report = hipkittens.patch(make(torch.float32), linear=True, exclude=["norms.1"])
    found = reasons(report)
    assert found["norms.1"] == "it was excluded"
    refused = hipkittens.supported("linear", torch.ones(1, 64), torch.ones(32, 64)).reason
    assert found["head"] == refused and "torch.autocast" in refused
    assert "torch.float32" in found["attend"]
    assert [row.module for row in report.replaced] == ["norms.0", "norms.2", "norms.3"]
    assert len(hipkittens.patch(make(torch.float32), linear=True, dtype=BF16).replaced) == 6
    with torch.autocast("cpu", BF16):
        assert len(hipkittens.patch(make(torch.float32), linear=True).replaced) == 6


@pytest.mark.parametrize(
    "norm, reason",
    [
        (MeanNorm(8), "neither x / rms"),
        (GatedNorm(8), "its forward takes hidden, gate"),
    ],
)
def test_other_norms_stay(norm, reason):
    (row,) = hipkittens.patch(nn.Sequential(norm)).rows
    assert reason in row.reason


def test_a_norm_keeps_its_dtype():
    x = torch.randn(3, 64, dtype=BF16)
    for norm in (ScaledNorm(64), PlainNorm(64)):
        expected = norm(x)
        with hipkittens.patched(norm):
            found = norm(hidden=x)
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected, rtol=2**-7, atol=0)


def test_a_forward_that_somebody_replaced_stays():
    model = make()
    model.norms[0].forward = lambda x: x
    assert "undo that first" in reasons(hipkittens.patch(model))["norms.0"]


def test_unpatch_refuses_classes_made_of_ours():
    model = make()
    hipkittens.patch(model)
    ours = type(model.norms[1])
    model.norms[1].__class__ = type("Sharded", (ours,), {})
    with pytest.raises(RuntimeError, match=r"norms.1 has become a Sharded"):
        hipkittens.unpatch(model)
    assert type(model.norms[0]).__name__ == "HipkittensLayerNorm"
    model.norms[1].__class__ = ours
    hipkittens.unpatch(model)
    assert type(model.norms[0]) is nn.LayerNorm


def test_torch_s_fused_encoder_does_not_pass_the_modules_by():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 96, batch_first=True, dtype=BF16).eval()
    encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x = torch.randn(2, 9, 64, dtype=BF16)
    with torch.no_grad():
        before = encoder(x)
        with hipkittens.simulate("gfx942") as run, hipkittens.patched(encoder, linear=True) as report:
            after = encoder(x)
        assert torch.equal(encoder(x), before)
    assert run is not None and not torch.equal(after, before)
    torch.testing.assert_close(after, before, rtol=0, atol=0.06)
    assert any("fused inference" in row.replaced_by for row in report.rows)


def test_torch_compile_of_a_patched_model():
    model = make()
    hipkittens.patch(model, linear=True)
    expected = model(TOKENS)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(TOKENS), expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: hipkittens.patch(nn.Linear), TypeError, "model is type"),
        (lambda: hipkittens.patch(make(), norm="yes"), TypeError, "norm is 'yes'"),
        (lambda: hipkittens.patch(make(), exclude="head"), TypeError, "exclude is a str"),
        (lambda: hipkittens.unpatch(None), TypeError, "model is NoneType"),
    ],
)
def test_bad_arguments(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_the_command(tmp_path, capsys, monkeypatch):
    (tmp_path / "somebodys_network.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 8))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert (
        cli.main(
            ["patch", "--dry-run", "--json", "--linear", "--dtype", "bfloat16", "somebodys_network:make"]
        )
        == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["dry_run"] and [row["replaced_by"] for row in report["rows"]] == [
        "hipkittens.layer_norm",
        "hipkittens.linear",
    ]
    assert cli.main(["patch", "--dry-run", "somebodys_network:make"]) == 0
    assert "linear=False" in capsys.readouterr().out
    for name, text in (("somebodys_network:other", "there is no other"), ("nowhere:make", "cannot import")):
        with pytest.raises(SystemExit, match=text):
            cli.main(["patch", "--dry-run", name])
