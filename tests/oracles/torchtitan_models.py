# SPDX-License-Identifier: MIT
"""TorchTitan's debug models with experts on our kernels, compared with its own and with exact arithmetic, in a process of
`torchtitan_packages`.

The model code is TorchTitan's: its configurations, reduced to two layers and to eight of Qwen3's 64 experts; its `apply_overrides`; and for
training its `apply_fsdp_to_decoder` with one process, which keeps parameters in float32 and computes in bfloat16. Our variant replaces
nothing else. The two variants that it is compared with need the following, which this file provides:

* PyTorch has no varlen_attn for CPU tensors: scaled_dot_product_attention for each document, in the dtype of its operands.
* Exact arithmetic (float64; TorchTitan's rotary embeddings are float32) cannot include the casts to bfloat16 in VarlenAttention and
  GroupedExperts, and there is no grouped product of float64.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from hipkittens._accuracy import compare
from hipkittens.integrations import grouped_mm, varlen
from tests.oracles.model_runs import chosen_experts, launched

OVERRIDE = "hipkittens.integrations.torchtitan.rms_norm"
LENGTH = 16
LAYERS = 2
# Tokens for which bfloat16 and exact arithmetic choose the same experts everywhere.
SEEDS = {"qwen3": 3, "deepseek_v3": 4}


def configuration(name: str, overrides: list[str]) -> tuple[Any, list[str]]:
    """TorchTitan's configuration of its debug model, made small, and the names of what its overrides replaced."""
    from torchtitan.config.override import OverrideConfig, apply_overrides
    from torchtitan.models import deepseek_v3, qwen3

    kind, flavor = {"qwen3": (qwen3, "debugmodel_moe"), "deepseek_v3": (deepseek_v3, "debugmodel")}[name]
    config = kind.model_registry(flavor, attn_backend="varlen", moe_comm_backend="standard").model
    del config.layers[LAYERS:]
    for layer in config.layers:
        if layer.moe is not None:
            few, chosen = 8, 2
            layer.moe.num_experts = layer.moe.router.num_experts = layer.moe.router.gate.out_features = few
            layer.moe.router.top_k = layer.moe.routed_experts.token_dispatcher.top_k = chosen
            layer.moe.routed_experts.token_dispatcher.num_experts = few
            layer.moe.routed_experts.inner_experts.num_experts = few
    return config, apply_overrides(OverrideConfig(imports=list(overrides)), config)


def build(name: str, overrides: list[str]) -> torch.nn.Module:
    """The model in float32, with weights determined by its name."""
    torch.manual_seed(0)
    model = configuration(name, overrides)[0].build()
    model.init_states()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms begin as ones, which hide mistakes
            with torch.no_grad():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model.train()


def batch(model: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Tokens, and their positions in two documents per row."""
    tokens = torch.randint(0, 2048, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat((torch.arange(5), torch.arange(LENGTH - 5))).expand(2, LENGTH)
    return tokens, positions, model.get_attention_masks(positions)


def loss_of(model: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean cross entropy of the next tokens, and the logits."""
    from torchtitan.components.loss import cross_entropy_loss

    tokens, positions, masks = batch(model, seed)
    logits = model(tokens, positions, masks)
    labels = tokens.roll(-1, 1)
    if logits.dtype == torch.float64:  # TorchTitan's rounds to float32
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits
    return cross_entropy_loss(logits, labels) / labels.numel(), logits


def _documents(q, k, v, ends_q, ends_k, longest_q, longest_k, *, scale=None, window_size=(-1, -1), **_):
    """PyTorch's varlen_attn for the CPU: causal, each document separately."""
    assert window_size == (-1, 0) and torch.equal(ends_q, ends_k)
    ends, found = ends_q.tolist(), []
    for first, last in itertools.pairwise(ends):
        given = (x[first:last].transpose(0, 1) for x in (q, k, v))
        found.append(
            torch.nn.functional.scaled_dot_product_attention(
                *given, is_causal=True, scale=scale, enable_gqa=True
            )
        )
    return torch.cat(found, 1).transpose(0, 1)


def _exact_attention(self, q, k, v, *, attention_masks, scale=None, **_):
    packed = _documents(
        *(x.flatten(0, 1) for x in (q, k, v)), *attention_masks[:4], scale=scale, window_size=self.window_size
    )
    return packed.view(*q.shape[:2], *packed.shape[1:])


def _exact_experts(self, x, counts):
    parts = x.split(counts.tolist())
    found = []
    for part, w1, w2, w3 in zip(parts, self.w1_EFD, self.w2_EDF, self.w3_EFD, strict=True):
        found.append((torch.nn.functional.silu(part @ w1.t()) * (part @ w3.t())) @ w2.t())
    return torch.cat(found)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Context with TorchTitan on a CPU."""
    with unittest.mock.patch("torchtitan.models.common.attention.varlen_attn", _documents):
        yield


@contextlib.contextmanager
def exact() -> Iterator[None]:
    """Context with TorchTitan in float64."""
    from torchtitan.models.common.attention import VarlenAttention
    from torchtitan.models.common.moe import GroupedExperts

    with (
        unittest.mock.patch.object(VarlenAttention, "forward", _exact_attention),
        unittest.mock.patch.object(GroupedExperts, "forward", _exact_experts),
    ):
        yield


@contextlib.contextmanager
def ours(target: str, **options: Any) -> Iterator[dict[str, Any]]:
    """Context for unmodified TorchTitan with our operators, which records the launches, findings and calls that fell back."""
    with varlen.active(), grouped_mm.active(), launched(target, **options) as found:
        yield found
        found["passed_on"] = grouped_mm.passed_on()


def _results(model: torch.nn.Module, seed: int) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    with chosen_experts(model, "moe.router", lambda result: result[1].sort(-1).values) as choices:
        loss, logits = loss_of(model, seed)
    loss.backward()
    return {
        "logits": logits.detach(),
        **{name: each.grad for name, each in model.named_parameters()},
    }, choices


def gradients(name: str, target: str, seed: int | None = None) -> dict[str, Any]:
    """One step in bfloat16: for the logits and each parameter's gradient our error over eager's, and the launches."""
    seed = SEEDS[name] if seed is None else seed
    plain = build(name, []).bfloat16()
    model = build(name, [OVERRIDE]).bfloat16()
    with exact():
        reference, best = _results(copy.deepcopy(plain).double(), seed)
    with eager():
        theirs, chosen = _results(copy.deepcopy(plain), seed)
    with ours(target, checks="all") as found:
        mine, choices = _results(model, seed)
    assert reference.keys() == theirs.keys() == mine.keys()
    same = all(
        torch.equal(one, other) for other in (chosen, choices) for one, other in zip(best, other, strict=True)
    )
    ratios = {}
    for each, value in reference.items():
        comparison = compare(mine[each], theirs[each], value.double(), value.abs().max().item())
        ratios[each] = (comparison.ratio_max, comparison.ratio_rms)
    return {
        **found,
        "ratios": ratios,
        "same_experts": same,
        "norms": sum(type(each).__name__ == "HipKittensRMSNorm" for each in model.modules()),
        "other_norms": sum(type(each).__name__ == "RMSNorm" for each in model.modules()),
    }


def _train(name: str, overrides: list[str], steps: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Losses and parameters. In float64 without FSDP, otherwise with float32 parameters that are gathered in `dtype`."""
    from torchtitan.distributed.fsdp import apply_fsdp_to_decoder

    model = build(name, overrides)
    if dtype == torch.float64:
        model = model.double()
    else:
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",))
        apply_fsdp_to_decoder(model, mesh, param_dtype=dtype, reduce_dtype=torch.float32, pp_enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss, _ = loss_of(model, SEEDS[name])
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().double())
    whole = {
        key: (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().clone()
        for key, value in model.named_parameters()
    }
    return {"losses": torch.stack(losses), **whole}


def training(name: str, target: str, steps: int) -> dict[str, Any]:
    """Steps with momentum, sharded by TorchTitan: the losses (exact, eager's, ours), for each parameter's change our error over eager's,
    and the launches."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with exact():
            reference = _train(name, [], steps, torch.float64)
        with eager():
            theirs = _train(name, [], steps, torch.bfloat16)
        with ours(target) as found:
            mine = _train(name, [OVERRIDE], steps, torch.bfloat16)
    finally:
        dist.destroy_process_group()
    start = dict(build(name, []).named_parameters())
    ratios = {}
    losses = [each.pop("losses").tolist() for each in (reference, theirs, mine)]
    for each, value in reference.items():
        moved = (value - start[each].double()).abs().max().item()
        comparison = compare(mine[each], theirs[each], value, moved)
        ratios[each] = (comparison.ratio_max, comparison.ratio_rms)
    return {**found, "ratios": ratios, "losses": losses}


def replaced(name: str) -> list[str]:
    """TorchTitan's report of the override."""
    return configuration(name, [OVERRIDE])[1]
