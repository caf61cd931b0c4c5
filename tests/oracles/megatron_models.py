# SPDX-License-Identifier: MIT
"""Small GPT models of Megatron Core on our kernels, compared with Megatron's own and with float64, in a process of `megatron_packages`.

The model code is Megatron's, from its local layer spec. In our variant the spec contains our CoreAttention, and the experts are Megatron's
GroupedMLP, which calls grouped_gemm. The two variants that it is compared with use Megatron's DotProductAttention and its SequentialMLP,
which runs one expert after another, with the same weights. Everything else, in all three, is Megatron's on PyTorch's operators.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from hipkittens._accuracy import Comparison, compare, mean_of
from tests.oracles.model_runs import chosen_experts, launched

EXPERTS, HIDDEN, FFN, VOCABULARY, LENGTH = 4, 64, 48, 64, 24
# Tokens for which bfloat16 and float64 choose the same experts everywhere.
SEEDS = (2, 3, 5, 6)


def build(ours: bool, dtype: torch.dtype, experts: bool = False, **changes: Any) -> torch.nn.Module:
    """A model of two layers, with weights that depend on `experts` alone."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig

    from hipkittens.integrations.megatron import CoreAttention

    bf16 = dtype == torch.bfloat16
    options: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 32,
        "ffn_hidden_size": 96,
        "use_cpu_initialization": True,
        "params_dtype": torch.bfloat16 if bf16 else torch.float32,
        "bf16": bf16,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
    }
    if experts:
        options |= {
            "num_moe_experts": EXPERTS,
            "moe_ffn_hidden_size": FFN,
            "moe_router_topk": 2,
            "moe_grouped_gemm": ours,
            "moe_token_dispatcher_type": "allgather",
            "moe_aux_loss_coeff": 0.0,
        }
    options |= changes
    spec = get_gpt_layer_local_spec(
        num_experts=EXPERTS if experts else None, moe_grouped_gemm=experts and ours, normalization="RMSNorm"
    )
    if ours:
        spec.submodules.self_attention.submodules.core_attention = CoreAttention
    model = GPTModel(
        TransformerConfig(**options),
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
    )
    _fill(model)
    return model.to(dtype).cuda().train()


@torch.no_grad()
def _fill(model: torch.nn.Module) -> None:
    """Fill with weights representable in bfloat16, the same for both kinds of experts."""
    for name, value in _weights(model).items():
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        drawn = torch.randn(value.shape, generator=generator)
        value.copy_((1 + 0.1 * drawn if value.dim() == 1 else 0.1 * drawn).bfloat16())


def _weights(model: torch.nn.Module, gradients: str = "") -> dict[str, torch.Tensor]:
    """Parameters, or an attribute of theirs, under the names that single experts have."""
    found = {}
    for name, parameter in model.named_parameters():
        value = getattr(parameter, gradients) if gradients else parameter
        layer, grouped, weight = name.partition(".experts.weight")
        if not grouped:
            found[name] = value
            continue
        split = value.view(EXPERTS, HIDDEN, -1) if weight == "1" else value.view(EXPERTS, -1, HIDDEN)
        for expert, each in enumerate(split):
            found[f"{layer}.experts.local_experts.{expert}.linear_fc{weight}.weight"] = each.t()
    return found


def tokens(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens, positions, and Megatron's mask, which is True where a query must not look."""
    ids = torch.randint(0, VOCABULARY, (2, LENGTH), generator=torch.Generator().manual_seed(seed))
    hidden = torch.ones(LENGTH, LENGTH).triu(1).bool()[None, None]
    return ids.cuda(), torch.arange(LENGTH).expand(2, LENGTH).cuda(), hidden.cuda()


def _loss(model: torch.nn.Module, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and a sum in which each has its own weight, so that all gradients are dense."""
    logits = model(*tokens(seed))
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2)).bfloat16()
    return logits, (logits * weights.to(logits.dtype).cuda()).sum()


def _results(model: torch.nn.Module, seed: int) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
    model.zero_grad(set_to_none=True)
    with chosen_experts(model, "mlp.router", lambda result: result[1]) as choices:
        logits, loss = _loss(model, seed)
    loss.backward()
    return {"logits": logits.detach(), **_weights(model, "grad")}, choices


def _comparisons(mine: Any, theirs: Any, reference: Any) -> dict[str, Comparison]:
    """Comparisons by name, with the experts of a layer as one tensor: with a few tokens each, the largest error of one is a matter of
    chance."""
    assert mine.keys() == theirs.keys() == reference.keys()
    together: dict[str, list[str]] = {}
    for name in reference:
        layer, single, projection = name.partition(".local_experts.")
        together.setdefault(layer + projection[1:] if single else name, []).append(name)
    found = {}
    for each, names in together.items():
        one, other, value = (
            torch.cat([given[name].double().flatten() for name in names]).cpu()
            for given in (mine, theirs, reference)
        )
        found[each] = compare(one, other, value, value.abs().max().item())
    return found


def _ratios(draws: list[dict[str, Comparison]]) -> dict[str, tuple[float, float]]:
    """The ratios of our largest and RMS error to theirs, by name. With one draw the largest error of a norm's 64 weights is a matter of
    chance, too."""
    means = {name: mean_of([draw[name] for draw in draws]) for name in draws[0]}
    return {name: (each.ratio_max, each.ratio_rms) for name, each in means.items()}


def gradients(target: str, **changes: Any) -> dict[str, Any]:
    """Logits and gradients in bfloat16: our error over Megatron's, and the launches. `changes` are passed to `build`."""
    exact, theirs = (build(False, dtype, **changes) for dtype in (torch.float64, torch.bfloat16))
    model = build(True, torch.bfloat16, **changes)
    given = [(_results(exact, seed), _results(theirs, seed)) for seed in SEEDS]
    with launched(target, checks="all") as found:
        mine = [_results(model, seed) for seed in SEEDS]
    draws, same = [], True
    for ((reference, best), (other, chosen)), (one, choices) in zip(given, mine, strict=True):
        draws.append(_comparisons(one, other, reference))
        for layer in zip(best, chosen, choices, strict=True):
            same = same and torch.equal(layer[0], layer[1]) and torch.equal(layer[0], layer[2])
    return {
        **found,
        "ratios": _ratios(draws),
        "same_experts": same,
        "modules": {type(each).__name__ for each in model.modules()},
    }


def _accumulated(model: torch.nn.Module, draws: list[tuple[int, ...]]) -> list[dict[str, torch.Tensor]]:
    """Gradients of micro-batches, summed in float32 by Megatron's DistributedDataParallel, for each of these draws."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    wrapped = DistributedDataParallel(
        model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model
    )
    found = []
    for seeds in draws:
        wrapped.zero_grad_buffer()
        for seed in seeds:
            _loss(wrapped, seed)[1].backward()
        wrapped.finish_grad_sync()
        assert all(each.main_grad.dtype == torch.float32 for each in model.parameters())
        found.append({name: each.clone() for name, each in _weights(model, "main_grad").items()})
    return found


def fused_accumulation(target: str, **changes: Any) -> dict[str, Any]:
    """Like `gradients`, with two micro-batches, and with gradient_accumulation_fusion on in ours."""
    micro_batches = [SEEDS[:2], SEEDS[2:]]
    exact, reference = build(False, torch.float64, **changes), []
    for seeds in micro_batches:
        exact.zero_grad(set_to_none=True)
        for seed in seeds:
            _loss(exact, seed)[1].backward()
        reference.append({name: each.clone() for name, each in _weights(exact, "grad").items()})
    theirs = _accumulated(build(False, torch.bfloat16, **changes), micro_batches)
    model = build(True, torch.bfloat16, gradient_accumulation_fusion=True, **changes)
    with launched(target, checks="all") as found:
        mine = _accumulated(model, micro_batches)
    return {**found, "ratios": _ratios(list(map(_comparisons, mine, theirs, reference)))}


def packed(target: str) -> dict[str, Any]:
    """The logits of two packed sequences: their largest difference from those of each sequence alone, in units of bfloat16's spacing."""
    from megatron.core.packed_seq_params import PackedSeqParams

    model = build(True, torch.bfloat16).eval()
    ids, _, hidden = tokens()
    ids = ids.view(1, -1)
    ends = [0, 17, ids.shape[1]]
    places = torch.cat([torch.arange(last - first) for first, last in itertools.pairwise(ends)])[None].cuda()
    cumulative = torch.tensor(ends, dtype=torch.int32).cuda()
    pack = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cumulative,
        cu_seqlens_kv=cumulative,
        max_seqlen_q=ends[2] - ends[1],
        max_seqlen_kv=ends[2] - ends[1],
    )
    with torch.no_grad(), launched(target, checks="all") as found:
        together = model(ids, places, None, packed_seq_params=pack)
        alone = [
            model(ids[:, first:last], places[:, first:last], hidden[..., : last - first, : last - first])
            for first, last in itertools.pairwise(ends)
        ]
    expected = torch.cat(alone, 1).float()
    spacing = torch.finfo(torch.bfloat16).eps * expected.abs().clamp(min=1)
    return {**found, "worst": float(((together.float() - expected).abs() / spacing).max())}


def dropout(target: str) -> dict[str, Any]:
    """Whether logits with attention dropout differ from call to call, are repeated by a seed of Megatron's, and have no dropout in
    evaluation."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    model, given = build(True, torch.bfloat16, attention_dropout=0.3), tokens()
    plain = build(True, torch.bfloat16)
    with torch.no_grad(), launched(target, checks="all") as found:
        model_parallel_cuda_manual_seed(5)
        first, second = model(*given), model(*given)
        model_parallel_cuda_manual_seed(5)
        again = model(*given)
        rest = model.eval()(*given)
        without = plain(*given)
    found["differ"] = not torch.equal(first, second)
    found["repeated"] = torch.equal(first, again)
    found["ends"] = torch.equal(rest, without)
    return found
