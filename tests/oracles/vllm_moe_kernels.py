# SPDX-License-Identifier: MIT
"""vLLM's modular kernel of experts (`FusedMoEKernel`) with our experts, and the method of its layers, in a process of `vllm_packages`."""

from __future__ import annotations

import unittest.mock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import hipkittens


@dataclass(frozen=True)
class Case:
    """activation: vLLM's name. here: how many of the experts this device holds, the last ones."""

    target: str
    tokens: int
    experts: int = 8
    choices: int = 2
    hidden: int = 128
    intermediate: int = 64
    activation: str = "silu"
    dtype: torch.dtype = torch.bfloat16
    bias: bool = False
    here: int | None = None
    weights_on_input: bool = False


def configuration(case: Case, **changes: Any) -> Any:
    from vllm.model_executor.layers.fused_moe.activation import MoEActivation
    from vllm.model_executor.layers.fused_moe.config import (
        FusedMoEConfig,
        FusedMoEParallelConfig,
        RoutingMethodType,
    )

    given: dict[str, Any] = {
        "num_experts": case.experts, "experts_per_token": case.choices, "hidden_dim": case.hidden, "intermediate_size": case.intermediate,
        "num_local_experts": case.here or case.experts, "num_logical_experts": case.experts,
        "activation": MoEActivation(case.activation), "device": "cpu", "routing_method": RoutingMethodType.Renormalize,
        "moe_parallel_config": FusedMoEParallelConfig.make_no_parallel(), "in_dtype": case.dtype, "has_bias": case.bias,
    }  # fmt: skip
    return FusedMoEConfig(**(given | changes))


@dataclass(frozen=True)
class Problem:
    """A layer's inputs: weights and ids are those of each token's choices."""

    x: torch.Tensor
    w1: torch.Tensor
    w2: torch.Tensor
    biases: tuple[torch.Tensor | None, torch.Tensor | None]
    weights: torch.Tensor
    ids: torch.Tensor
    expert_map: torch.Tensor | None


def drawn(case: Case) -> Problem:
    random = torch.Generator().manual_seed(case.tokens)

    def normal(*shape: int, size: float = 1.0) -> torch.Tensor:
        return (size * torch.randn(shape, generator=random)).to(case.dtype)

    local, columns = case.here or case.experts, 2 * case.intermediate
    x = normal(case.tokens, case.hidden)
    w1, w2 = (
        normal(local, rows, inner, size=inner**-0.5)
        for rows, inner in ((columns, case.hidden), (case.hidden, case.intermediate))
    )
    biases = (normal(local, columns), normal(local, case.hidden)) if case.bias else (None, None)
    weights, ids = torch.randn(case.tokens, case.experts, generator=random).softmax(-1).topk(case.choices)
    expert_map = None
    if case.here:
        expert_map = torch.arange(case.experts, dtype=torch.int32) - (case.experts - case.here)
        expert_map[expert_map < 0] = -1
    return Problem(x, w1, w2, biases, weights, ids, expert_map)


def run(case: Case) -> dict[str, Any]:
    """Our errors and those of PyTorch's operations in the case's dtype, relative to float64: the largest and the norm; and findings."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe.config import FusedMoEQuantConfig, biased_moe_quant_config
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import (
        UnquantizedMoeBackend,
        make_unquantized_moe_kernel,
    )

    from hipkittens.integrations.vllm_experts import HipKittensExperts

    problem = drawn(case)
    quantisation = biased_moe_quant_config(*problem.biases) if case.bias else FusedMoEQuantConfig.make()
    config = configuration(case)
    with (
        set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))),
        torch.inference_mode(),
        # vLLM's workspaces belong to a worker, and there is none.
        unittest.mock.patch(
            "vllm.model_executor.layers.fused_moe.modular_kernel.current_workspace_manager", Workspaces
        ),
        hipkittens.simulate(case.target, checks="all") as launches,
    ):
        kernel = make_unquantized_moe_kernel(
            quantisation, config, UnquantizedMoeBackend.TRITON, HipKittensExperts
        )
        out = kernel.apply(
            problem.x, problem.w1, problem.w2, problem.weights, problem.ids.to(torch.int32), config.activation, case.experts,
            problem.expert_map, case.weights_on_input,
        )  # fmt: skip
    torchs = experts(case, case.dtype, problem)
    return compared(out, torchs, experts(case, torch.float64, problem), launches)


def compared(out: torch.Tensor, torchs: torch.Tensor, exact: torch.Tensor, launches: Any) -> dict[str, Any]:
    errors = [
        (float(each.abs().max()), float(each.norm()))
        for each in (out.double() - exact, torchs.double() - exact)
    ]
    return {"errors": errors[0], "allowed": errors[1], "findings": [str(each) for each in launches.findings]}


class Workspaces:
    def get_simultaneous(self, *given: tuple[tuple[int, ...], torch.dtype]) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype) for shape, dtype in given]


def experts(
    case: Case,
    dtype: torch.dtype,
    problem: Problem,
    rounded: Callable[[torch.Tensor], torch.Tensor] = lambda row: row,
) -> torch.Tensor:
    """The experts by PyTorch's operations, choice by choice. rounded: how rows are rounded before products."""
    weights, ids, expert_map, biases = problem.weights, problem.ids, problem.expert_map, problem.biases
    x, w1, w2 = (each.to(dtype) for each in (problem.x, problem.w1, problem.w2))
    out = torch.zeros(x.shape, dtype=torch.promote_types(dtype, torch.float32))
    kind = case.activation
    for token, choices in enumerate(ids.tolist()):
        for weight, expert in zip(weights[token], choices, strict=True):
            at = expert if expert_map is None else int(expert_map[expert])
            if at < 0:
                continue
            row = x[token] * weight.to(dtype) if case.weights_on_input else x[token]
            inner = w1[at] @ rounded(row)
            if case.bias:
                inner = inner + biases[0][at].to(dtype)
            if kind == "swigluoai":
                gate, other = inner[::2].clamp(max=7), inner[1::2].clamp(-7, 7)
                inner = gate * torch.sigmoid(1.702 * gate) * (other + 1)
            else:
                gate, other = inner.chunk(2)
                inner = activated(kind, gate) * other
            row = w2[at] @ rounded(inner)
            if case.bias:
                row = row + biases[1][at].to(dtype)
            out[token] += row if case.weights_on_input else weight.to(out.dtype) * row
    return out.to(dtype)


def activated(kind: str, x: torch.Tensor) -> torch.Tensor:
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh" if kind == "gelu_tanh" else "none")


def methods() -> dict[str, str]:
    """The experts of the methods that vLLM builds, keyed by what is different, where vLLM itself has chosen others."""
    from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    kind = unquantized_fused_moe_method.UnquantizedFusedMoEMethod
    case = Case("gfx950", 1)
    found = {}
    chosen = (unquantized_fused_moe_method.UnquantizedMoeBackend.TRITON, object)
    # vLLM's choice for ROCm: it has no kernels for a platform without a name.
    with unittest.mock.patch.object(
        unquantized_fused_moe_method, "select_unquantized_moe_backend", lambda moe_config: chosen
    ):
        for name, switch, config in (
            ("enabled", "+unquantized_fused_moe", configuration(case)),
            ("not enabled", "-unquantized_fused_moe", configuration(case)),
            ("lora", "+unquantized_fused_moe", configuration(case, is_lora_enabled=True)),
            ("float32", "+unquantized_fused_moe", configuration(case, in_dtype=torch.float32)),
            ("limit", "+unquantized_fused_moe", configuration(case, swiglu_limit=7.0)),
        ):
            options = CompilationConfig(custom_ops=["none", switch])
            with set_current_vllm_config(
                VllmConfig(device_config=DeviceConfig("cpu"), compilation_config=options)
            ):
                found[name] = kind(config).experts_cls.__name__
    return found
