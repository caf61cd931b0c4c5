# SPDX-License-Identifier: MIT
"""Detects mixture-of-experts modules: their forward is run on a few numbers and compared, as for norms and gated blocks.

Transformers 4 has three forms: a block that scores, selects and loops over a list of experts (Mixtral, Qwen-MoE, OLMoE); one whose method
`moe` loops over experts that were selected before (DeepSeek-V3, GLM-4); and experts in stacked parameters (gpt-oss).
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ._expert_weights import join, stacked
from .activation import ACTIVATIONS, gated_in_torch
from .experts import moe
from .routing import router

# Names of the gate, up and down projections.
_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_STACKED = {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"}
_BLOCK, _CHOSEN = ["hidden_states"], ["hidden_states", "topk_indices", "topk_weights"]
_GPT_OSS = ["hidden_states", "router_indices", "routing_weights"]
_SHARED = {"shared_expert", "shared_expert_gate"}
_PLAIN = torch.nn.Linear.forward
_HIDDEN, _INNER, _ROWS = 8, 12, 7


def members_of_block(
    original: type, kind: str, names: tuple[str, str, str], renormalize: bool, shared: bool
) -> dict[str, Any]:
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        logits = self.gate(x)
        weights, ids = router(logits, self.top_k, renormalize=renormalize)
        out = moe(x, *_weights_of(self.experts, names), weights, ids, activation=kind).to(x.dtype)
        if shared:
            out = out + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)
        return out.reshape(hidden_states.shape), logits

    return {"forward": forward}


def members_of_chosen(original: type, kind: str, names: tuple[str, str, str]) -> dict[str, Any]:
    def method(
        self, hidden_states: torch.Tensor, topk_indices: torch.Tensor, topk_weights: torch.Tensor
    ) -> torch.Tensor:
        found = moe(
            hidden_states, *_weights_of(self.experts, names), topk_weights, topk_indices, activation=kind
        )
        return found.to(hidden_states.dtype)

    return {"moe": method}


def members_of_stacked(original: type) -> dict[str, Any]:
    def forward(self, hidden_states: torch.Tensor, router_indices=None, routing_weights=None) -> torch.Tensor:
        x = hidden_states.reshape(-1, hidden_states.shape[-1])
        # An id past the last expert marks a token that has none.
        weights = routing_weights.gather(1, router_indices.clamp(max=routing_weights.shape[1] - 1))
        out = moe(
            x,
            self.gate_up_proj.mT,
            self.down_proj.mT,
            weights,
            router_indices,
            activation="swiglu",
            bias1=self.gate_up_proj_bias,
            bias2=self.down_proj_bias,
            interleaved=True,
            swiglu_limit=self.limit,
        ).to(x.dtype)
        return out.view(hidden_states.shape[0], -1, x.shape[1])

    return {"forward": forward}


def _weights_of(
    experts: torch.nn.ModuleList, names: tuple[str, str, str]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(E, 2 I, H) and (E, H, I) from the parameters as they are."""
    gate, up, down = names
    first = stacked([_weight(expert, name) for expert in experts for name in (gate, up)])
    w1 = first.view(len(experts), 2 * first.shape[1], first.shape[2])
    return w1, stacked([_weight(expert, down) for expert in experts])


def join_weights(module: torch.nn.Module) -> None:
    """Makes the parameters of a replaced list of experts contiguous in memory, in the order in which `_weights_of` stacks them."""
    gate, up, down = _names(module.experts[0])
    for names in ((gate, up), (down,)):
        join([expert._modules[name].weight for expert in module.experts for name in names])


def _weight(expert: torch.nn.Module, name: str) -> torch.Tensor:
    """RuntimeError if the projection has become a module that computes something else (such as an adapter), or its weight is sharded:
    fully_shard gathers the weights of modules that are called, and experts are not.
    """
    projection = expert._modules[name]
    kind = type(projection)
    if kind is not torch.nn.Linear and getattr(kind, "_hipkittens_original", kind).forward is not _PLAIN:
        raise RuntimeError(
            f"hipkittens: {name} of an expert has become a {kind.__name__} after hipkittens.patch, which reads its weight alone; "
            "change the model before hipkittens.patch, or patch with moe=False"
        )
    if is_traceable_wrapper_subclass(projection.weight):
        raise RuntimeError(
            f"hipkittens: the weight of {name} of an expert is a {type(projection.weight).__name__}; hipkittens.patch's block reads "
            "plain ones. Shard layers or blocks, not single experts, or patch with moe=False"
        )
    return projection.weight


def looks_like_experts(module: torch.nn.Module) -> bool:
    return _form(module) is not None


def parts_read_by(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules whose parameters the replaced module reads, but which are never called."""
    return [part for part in module.experts.modules()] if "experts" in module._modules else []


def _form(module: torch.nn.Module) -> str | None:
    kind = type(module)
    if module._parameters.keys() >= _STACKED and _arguments(kind.forward) == _GPT_OSS:
        return "stacked_experts"
    experts = module._modules.get("experts")
    if not isinstance(experts, torch.nn.ModuleList) or not len(experts) or _names(experts[0]) is None:
        return None
    if _arguments(getattr(kind, "moe", None)) == _CHOSEN:
        return "chosen_experts"
    if "gate" in module._modules and _arguments(kind.forward) == _BLOCK:
        return "experts_block"
    return None


def _arguments(function: Any) -> list[str]:
    return [] if function is None else list(inspect.signature(function).parameters)[1:]


def _names(expert: torch.nn.Module) -> tuple[str, str, str] | None:
    for names in _PROJECTIONS:
        if all(isinstance(expert._modules.get(name), torch.nn.Linear) for name in names):
            return names
    return None


def understand(module: torch.nn.Module) -> tuple | str:
    """The rule for `replacement_class`, or why there is none."""
    form = _form(module)
    reason = "" if form == "stacked_experts" else _why_not_the_experts(module)
    if reason:
        return reason
    if getattr(module, "jitter_noise", 0):
        return f"its jitter_noise is {module.jitter_noise}; it multiplies tokens by noise in training"
    generator = torch.Generator().manual_seed(0)
    try:
        with (
            torch.random.fork_rng(devices=[]),
            torch.no_grad(),
            torch.device("cpu"),
            torch.autocast("cpu", enabled=False),
        ):
            return _UNDERSTAND[form](module, generator)
    except Exception as error:
        return f"its forward cannot be run on its own ({type(error).__name__}: {error})"


def _why_not_the_experts(module: torch.nn.Module) -> str:
    """What their parameters do not show: biases, other classes, hooks."""
    experts = module.experts
    names = _names(experts[0])
    shapes = set()
    for number, expert in enumerate(experts):
        if _names(expert) != names or type(expert).__name__ != type(experts[0]).__name__:
            return f"experts.{number} is another kind of module than experts.0"
        for each, part in expert.named_modules():
            where = f"experts.{number}{'.' if each else ''}{each}"
            if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks:
                return f"{where} has a hook, which would not be called"
            if "forward" in vars(part):
                return f"the forward of {where} has been replaced on the module itself"
        for name in names:
            part = expert._modules[name]
            kind = getattr(type(part), "_hipkittens_original", type(part))
            if kind.forward is not _PLAIN:
                return f"experts.{number}.{name} is a {kind.__name__} with a forward of its own"
            if is_traceable_wrapper_subclass(part.weight):
                return f"the weight of experts.{number}.{name} is a {type(part.weight).__name__}"
            if part.bias is not None:
                return f"experts.{number}.{name} has a bias"
        shapes.add(tuple(expert._modules[name].weight.shape for name in names))
    return "" if len(shapes) == 1 else "its experts have different shapes"


def _random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def _linear(generator: torch.Generator, inside: int, outside: int) -> torch.nn.Linear:
    made = torch.nn.Linear(inside, outside, bias=False)
    made.weight = torch.nn.Parameter(_random(generator, outside, inside))
    return made


def _small_expert(expert: torch.nn.Module, generator: torch.Generator) -> torch.nn.Module:
    """The same class with small projections; torch.nn.Module looks into the dictionary, which a copy shares."""
    gate, up, down = _names(expert)
    made = copy.copy(expert)
    made.__dict__["_modules"] = {
        **expert._modules,
        gate: _linear(generator, _HIDDEN, _INNER),
        up: _linear(generator, _HIDDEN, _INNER),
        down: _linear(generator, _INNER, _HIDDEN),
    }
    return made


def _stand_in(module: torch.nn.Module, modules: dict[str, Any], **attributes: Any) -> torch.nn.Module:
    made = copy.copy(module)
    made.__dict__.update(attributes, training=True, _modules={**module._modules, **modules})
    return made


def _result(expert: torch.nn.Module, kind: str, x: torch.Tensor) -> torch.Tensor:
    gate, up, down = (expert._modules[name] for name in _names(expert))
    return down(gated_in_torch(gate(x), kind, other=up(x)))


def _sum(experts: Any, kind: str, x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    every = torch.stack([_result(expert, kind, x) for expert in experts], 1)
    rows = torch.arange(x.shape[0])[:, None]
    return (every[rows, ids] * weights[..., None]).sum(1)


def _same(found: Any, expected: torch.Tensor) -> bool:
    return (
        isinstance(found, torch.Tensor)
        and found.shape == expected.shape
        and torch.allclose(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    )


def _understand_block(module: torch.nn.Module, generator: torch.Generator) -> tuple | str:
    whole = getattr(module, "num_experts", None)
    k = getattr(module, "top_k", None)
    if not isinstance(k, int) or whole != len(module.experts):
        return "it has no top_k, or num_experts is not the number of its experts"
    count = min(whole, k + 2)
    experts = [_small_expert(module.experts[0], generator) for _ in range(count)]
    small: dict[str, Any] = {
        "gate": _linear(generator, _HIDDEN, count),
        "experts": torch.nn.ModuleList(experts),
    }
    shared = module._modules.keys() >= _SHARED
    if shared:
        small["shared_expert"] = _small_expert(module.shared_expert, generator)
        small["shared_expert_gate"] = _linear(generator, _HIDDEN, 1)
    x = _random(generator, 1, _ROWS, _HIDDEN)
    made = _stand_in(module, small, num_experts=count, hidden_dim=_HIDDEN, hidden_size=_HIDDEN)
    found = type(module).forward(made, x.clone())
    x = x[0]
    logits = small["gate"](x)
    if not isinstance(found, tuple) or len(found) != 2 or not _same(found[1], logits):
        return "its forward does not return its result and gate(x)"
    chosen, ids = logits.softmax(-1).topk(k, -1)
    for kind in ACTIVATIONS:
        for renormalize in (False, True):
            weights = chosen / chosen.sum(-1, keepdim=True) if renormalize else chosen
            expected = _sum(experts, kind, x, weights, ids)
            if shared:
                beside = _result(small["shared_expert"], kind, x)
                expected = expected + torch.sigmoid(small["shared_expert_gate"](x)) * beside
            if _same(found[0], expected[None]):
                return "experts_block", kind, _names(module.experts[0]), renormalize, shared
    return (
        "its forward is not a weighted sum of gated experts that the softmax of gate(x) chooses, with act one of "
        + ", ".join(ACTIVATIONS)
    )


def _understand_chosen(module: torch.nn.Module, generator: torch.Generator) -> tuple | str:
    experts = [_small_expert(module.experts[0], generator) for _ in range(5)]
    made = _stand_in(module, {"experts": torch.nn.ModuleList(experts)})
    x = _random(generator, _ROWS, _HIDDEN)
    weights, ids = _random(generator, _ROWS, 5).topk(2, -1)
    found = type(module).moe(made, x.clone(), ids, weights)
    for kind in ACTIVATIONS:
        if _same(found, _sum(experts, kind, x, weights, ids)):
            return "chosen_experts", kind, _names(module.experts[0])
    return f"its moe is not a weighted sum of gated experts with act one of {', '.join(ACTIVATIONS)}"


def _understand_stacked(module: torch.nn.Module, generator: torch.Generator) -> tuple | str:
    count = 4
    made = copy.copy(module)
    parameters = {
        "gate_up_proj": 3 * _random(generator, count, _HIDDEN, 2 * _INNER),
        "gate_up_proj_bias": _random(generator, count, 2 * _INNER),
        "down_proj": _random(generator, count, _INNER, _HIDDEN),
        "down_proj_bias": _random(generator, count, _HIDDEN),
    }
    sizes = {"num_experts": count, "hidden_size": _HIDDEN, "intermediate_size": _INNER, "expert_dim": _INNER}
    given = {name: size for name, size in sizes.items() if name in vars(module)}
    made.__dict__.update(given, training=True, _parameters={**module._parameters, **parameters})
    x = _random(generator, 1, _ROWS, _HIDDEN)
    chosen, ids = _random(generator, _ROWS, count).topk(2, -1)
    scattered = torch.zeros(_ROWS, count).scatter(1, ids, chosen)
    found = type(module).forward(made, x.clone(), router_indices=ids, routing_weights=scattered)
    every = torch.einsum("th,ehi->tei", x[0], parameters["gate_up_proj"]) + parameters["gate_up_proj_bias"]
    gated = gated_in_torch(every[..., 0::2], "swiglu", getattr(module, "limit", None), other=every[..., 1::2])
    every = torch.einsum("tei,eih->teh", gated, parameters["down_proj"]) + parameters["down_proj_bias"]
    expected = (every[torch.arange(_ROWS)[:, None], ids] * chosen[..., None]).sum(1)
    if _same(found, expected[None]):
        return ("stacked_experts",)
    return "its forward is not gpt-oss' swiglu of every second column, with alpha 1.702 and its limit"


_UNDERSTAND = {
    "experts_block": _understand_block,
    "chosen_experts": _understand_chosen,
    "stacked_experts": _understand_stacked,
}
