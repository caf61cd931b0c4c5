# SPDX-License-Identifier: MIT
"""SGLang's Triton runner of experts (`fused_experts_none_to_triton`) with our experts, in a process of `sglang_packages`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

import hipkittens
from tests.oracles.vllm_moe_kernels import compared, drawn, experts
from tests.oracles.vllm_scaled_moe import ScaledCase, quantised, rounded


@dataclass(frozen=True)
class RunnerCase(ScaledCase):
    """weights: as in ScaledCase, or "16 bits". factor: by which the runner multiplies results."""

    inplace: bool = False
    factor: float | None = None


def run(case: RunnerCase) -> dict[str, Any]:
    """Our errors and those of PyTorch's operations with the same rounded rows, relative to float64 with the dequantized weights: largest
    and norm; findings; and whether hidden states were overwritten."""
    from sglang.srt.layers.moe.moe_runner.base import MoeRunnerConfig
    from sglang.srt.layers.moe.moe_runner.triton import TritonMoeQuantInfo, fused_experts_none_to_triton
    from sglang.srt.layers.moe.token_dispatcher.standard import StandardDispatchOutput
    from sglang.srt.layers.moe.topk import StandardTopKOutput
    from sglang.srt.layers.quantization.fp8_utils import normalize_e4m3fn_to_e4m3fnuz
    from sglang.srt.plugins import load_plugins

    load_plugins()
    problem = drawn(case)
    given: dict[str, Any] = {"w13_weight": problem.w1, "w2_weight": problem.w2}
    if case.weights != "16 bits":
        stored = [quantised(each, case.weights) for each in (problem.w1, problem.w2)]
        for name, each in zip(("w13", "w2"), stored, strict=True):
            codes, scale = each.codes, each.scale
            if case.target == "gfx942" and case.weights != "int8":
                codes, scale, _ = normalize_e4m3fn_to_e4m3fnuz(codes, scale)
            given |= {
                f"{name}_weight": codes,
                f"{name}_scale": scale.flatten() if case.weights == "tensor" else scale,
            }
        given |= {
            "use_int8_w8a8": case.weights == "int8", "use_fp8_w8a8": case.weights != "int8",
            "per_channel_quant": case.weights in ("int8", "channel"), "block_shape": [128, 128] if case.weights == "blocks" else None,
        }  # fmt: skip
        problem = dataclasses.replace(problem, w1=stored[0].exact, w2=stored[1].exact)
    ids = problem.ids if problem.expert_map is None else problem.expert_map[problem.ids]
    oss = case.activation == "swigluoai"
    config = MoeRunnerConfig(
        num_experts=case.experts, num_local_experts=case.here or case.experts, activation="silu" if oss else case.activation,
        apply_router_weight_on_input=case.weights_on_input, inplace=case.inplace, routed_scaling_factor=case.factor,
        gemm1_alpha=1.702 if oss else None, gemm1_clamp_limit=7.0 if oss else None,
    )  # fmt: skip
    x = problem.x.clone()
    topk = StandardTopKOutput(problem.weights, ids.to(torch.int32), torch.empty(0))
    fields = {"hidden_states": x, "topk_output": topk}
    more = {name: None for name in StandardDispatchOutput._fields if name not in fields}
    with torch.no_grad(), hipkittens.simulate(case.target, checks="all") as launches:
        info = TritonMoeQuantInfo(b13=problem.biases[0], b2=problem.biases[1], **given)
        out = fused_experts_none_to_triton(
            StandardDispatchOutput(**fields, **more), info, config
        ).hidden_states
    rows = {"blocks": "block", "int8": "int8", "16 bits": None}.get(case.weights, case.rows)
    factor = case.factor or 1.0
    theirs = experts(case, case.dtype, problem, lambda row: rounded(row, rows, case.target)) * factor
    found = compared(out, theirs, experts(case, torch.float64, problem) * factor, launches)
    return found | {"overwritten": out.data_ptr() == x.data_ptr()}
