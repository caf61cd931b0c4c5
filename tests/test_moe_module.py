# SPDX-License-Identifier: MIT
"""hipkittens.nn.MoE compared with a PyTorch module with the same parameters: results, all gradients, refused arguments."""

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import nn
from hipkittens._accuracy import compare
from hipkittens.operations._moe_checks import by_tokens
from hipkittens.routing import choice_in_torch, weights_in_torch
from tests.simulated_device import TARGETS

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
HIDDEN, INNER, EXPERTS = 64, 40, 8

MODELS = {
    "mixtral": {"top_k": 2},
    "qwen2_moe": {"top_k": 3, "renormalize": False, "shared_intermediate_size": 24, "shared_gate": True},
    "deepseek_v3": {
        "top_k": 2,
        "score": "sigmoid",
        "groups": 4,
        "topk_groups": 2,
        "scale": 2.5,
        "score_bias": True,
        "shared_intermediate_size": 40,
    },
    "gpt_oss": {
        "top_k": 2,
        "activation": "swiglu",
        "interleaved": True,
        "swiglu_limit": 1.0,
        "bias": True,
        "router_bias": True,
    },
    "llama4": {
        "top_k": 1,
        "score": "sigmoid",
        "renormalize": False,
        "weight_input": True,
        "shared_intermediate_size": 40,
    },
}


class Plain(torch.nn.Module):
    """The same layer in PyTorch's operations, one expert's tokens at a time; scores are float32, as in ours."""

    def __init__(self, ours, options):
        super().__init__()
        self.options = options
        for name, value in ours.state_dict().items():
            where = self
            *parents, last = name.split(".")
            for parent in parents:
                if not hasattr(where, parent):
                    setattr(where, parent, torch.nn.Module())
                where = getattr(where, parent)
            if last == "score_bias":
                where.register_buffer(last, value.clone())
            else:
                setattr(where, last, torch.nn.Parameter(value.clone()))

    def forward(self, x):
        options = self.options
        wide = (lambda value: value) if x.dtype == F64 else torch.Tensor.float
        router_bias = getattr(self, "router_bias", None)
        logits = F.linear(
            wide(x), wide(self.router_weight), None if router_bias is None else wide(router_bias)
        )
        kind = list(("softmax", "sigmoid", "sqrtsoftplus")).index(options.get("score", "softmax"))
        score_bias = getattr(self, "score_bias", None)
        ids = choice_in_torch(
            logits.detach(),
            score_bias,
            options["top_k"],
            kind,
            options.get("groups", 1),
            options.get("topk_groups", 1),
        )
        weights = weights_in_torch(
            logits, ids, kind, options.get("renormalize", True), options.get("scale", 1.0)
        )
        layer = by_tokens(
            ids,
            options.get("activation", "silu"),
            options.get("interleaved", False),
            options.get("weight_input", False),
            options.get("swiglu_limit"),
        )
        biases = [getattr(self, name, None) for name in ("bias1", "bias2")]
        out = layer(x, self.w1, self.w2, weights, *biases)
        if hasattr(self, "shared"):
            gate, up = F.linear(x, self.shared.gate_up_proj.weight).chunk(2, -1)
            shared = F.linear((F.silu(wide(gate)) * wide(up)).to(x.dtype), self.shared.down_proj.weight)
            if hasattr(self, "shared_gate"):
                shared = torch.sigmoid(F.linear(x, self.shared_gate.weight)) * shared
            out = out + shared
        return out


def made(options, dtype=BF16, seed=0):
    torch.manual_seed(seed)
    module = nn.MoE(HIDDEN, INNER, EXPERTS, **options, dtype=dtype)
    with torch.no_grad():
        module.router_weight.mul_(4)
        if module.score_bias is not None:
            module.score_bias.normal_(0, 0.1)
    return module


def results(module, x, grad, dtype):
    leaf = x.to(dtype).requires_grad_()
    out = module(leaf)
    names = ["x", *(name for name, _ in module.named_parameters())]
    gradients = torch.autograd.grad(out, [leaf, *module.parameters()], grad.to(out.dtype))
    return {"out": out.detach(), **dict(zip(names, gradients, strict=True))}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (BF16, F16), ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_results_and_gradients(target, dtype, model):
    options = MODELS[model]
    ours = made(options, dtype)
    plain = Plain(ours, options)
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(33, HIDDEN, generator=generator).to(dtype) for _ in range(2))
    with hipkittens.simulate(target, checks="all") as run:
        found = results(ours, x, grad, dtype)
    assert not run.findings
    theirs = results(plain, x, grad, dtype)
    exact = results(plain.to(F64), x, grad, F64)
    assert found.keys() == exact.keys()
    for name, value in found.items():
        comparison = compare(value, theirs[name], exact[name], exact[name].abs().max().item())
        assert comparison.passes, (name, comparison)


def test_names_shapes_and_defaults():
    module = made(
        MODELS["gpt_oss"] | {"shared_intermediate_size": 24, "shared_gate": True, "score_bias": True}
    )
    assert {name: tuple(value.shape) for name, value in module.state_dict().items()} == {
        "router_weight": (EXPERTS, HIDDEN),
        "router_bias": (EXPERTS,),
        "score_bias": (EXPERTS,),
        "w1": (EXPERTS, 2 * INNER, HIDDEN),
        "bias1": (EXPERTS, 2 * INNER),
        "w2": (EXPERTS, HIDDEN, INNER),
        "bias2": (EXPERTS, HIDDEN),
        "shared.gate_up_proj.weight": (48, HIDDEN),
        "shared.down_proj.weight": (HIDDEN, 24),
        "shared_gate.weight": (1, HIDDEN),
    }
    assert set(made({"top_k": 2}).state_dict()) == {"router_weight", "w1", "w2"}
    assert "top_k" not in repr(module) and "activation='swiglu'" in repr(module)
    drawn = nn.MoE(64, 16, 4, 2).w2
    assert 0.9 * 0.25 < drawn.abs().max() <= 0.25
    meta = nn.MoE(64, 16, 4, 2, device="meta", dtype=BF16)
    assert meta(torch.empty(2, 3, 64, device="meta", dtype=BF16)).shape == (2, 3, 64)


def test_batches_logits_and_a_compiled_module(compile_backend):
    module = made(MODELS["qwen2_moe"])
    x = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = module(x.flatten(0, 1))
    logits = module.logits(x)
    assert logits.shape == (2, 9, EXPERTS) and logits.dtype == torch.float32
    assert torch.equal(module(x).flatten(0, 1), expected)
    assert torch.equal(module(x, logits).flatten(0, 1), expected)
    assert module(x[:0]).shape == (0, 9, HIDDEN)
    compiled = torch.compile(module, fullgraph=True, backend=compile_backend)
    out = compiled(x)
    torch.testing.assert_close(out.flatten(0, 1), expected, rtol=2**-7, atol=2**-9)
    out.float().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


def test_under_autocast():
    module = made(MODELS["mixtral"])
    x = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(2)).bfloat16()
    expected = module(x)
    module.float()
    with torch.autocast("cpu", BF16):
        out = module(x.float())
    assert out.dtype == BF16 and torch.equal(out, expected)


def test_training_lowers_a_loss():
    module = made(MODELS["deepseek_v3"])
    x, wanted = (
        torch.randn(24, HIDDEN, generator=torch.Generator().manual_seed(3)).bfloat16() for _ in range(2)
    )
    optimizer = torch.optim.AdamW(module.parameters(), 3e-3)
    losses = []
    for _ in range(6):
        loss = F.mse_loss(module(x).float(), wanted.float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


WRONG = [
    (lambda: nn.MoE(64, 16, 4, 5), ValueError, "nn.MoE: top_k is 5; allowed: 1 to num_experts, 4"),
    (lambda: nn.MoE(64, 0, 4, 2), ValueError, "nn.MoE: intermediate_size is 0; it must be at least 1"),
    (lambda: nn.MoE(64, 16.0, 4, 2), TypeError, "nn.MoE: intermediate_size is 16.0; it must be a whole number"),
    (lambda: nn.MoE(64, 16, 4, 2, activation="selu"), ValueError, "nn.MoE: activation is 'selu'; allowed: 'silu'"),
    (lambda: nn.MoE(64, 16, 4, 2, score="max"), ValueError, "nn.MoE: score is 'max'; allowed: 'softmax'"),
    (lambda: nn.MoE(64, 16, 4, 2, shared_gate=True), ValueError, "shared_gate is True and shared_intermediate_size None"),
    (lambda: nn.MoE(64, 16, 4, 2, bias="no"), TypeError, "nn.MoE: bias is 'no'; allowed: True, False"),
    (lambda: nn.MoE(64, 16, 4, 2, shared_intermediate_size=0), ValueError, "shared_intermediate_size is 0"),
    (lambda: nn.MoE(64, 16, 4, 2)(torch.ones(3, 63)), ValueError, "nn.MoE: x has shape (3, 63); its last dimension must be 64"),
    (lambda: nn.MoE(64, 16, 4, 2)(torch.ones(3, 64)), TypeError, "a is torch.float32; allowed: torch.bfloat16, torch.float16"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", WRONG)
def test_bad_input(call, error, message):
    with pytest.raises(error) as raised:
        call()
    assert message in str(raised.value)
