# SPDX-License-Identifier: MIT
"""vLLM's unquantized experts on hipkittens.moe, which `vllm.register` substitutes for vLLM's own where they are enabled:

    VLLM_PLUGINS=hipkittens vllm serve MODEL --compilation-config '{"custom_ops": ["+unquantized_fused_moe"]}'

Supports bfloat16 and float16, biases, expert parallelism by vLLM's expert_map; silu, gelu and gpt-oss' swiglu. Anything else, such as LoRA,
a limit of silu, activations without a gate and data parallelism, remains with the kernels that vLLM chooses. For quantized weights see
vllm_scaled_experts.

Written against vLLM 0.33.0, whose modular kernel runs it in the simulator (tests/oracles/test_vllm_experts.py). **It has never run in a
vLLM server on a GPU.** Importing requires vLLM.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.modular_kernel import (
    FusedMoEActivationFormat,
    FusedMoEExpertsModular,
)
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import TopKWeightAndReduceNoOP
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.platforms import current_platform

from ..activation import SWIGLU_LIMIT
from ..batch_invariance import is_batch_invariant
from ..experts import moe
from ._vllm_targets import is_of_targets

_DTYPES = (torch.bfloat16, torch.float16)
# vLLM's activations: ours, and whether rows of the gate and of the other half are interleaved.
_ACTIVATIONS = {
    MoEActivation.SILU: ("silu", False),
    MoEActivation.GELU: ("gelu", False),
    MoEActivation.GELU_TANH: ("gelu_tanh", False),
    MoEActivation.SWIGLUOAI: ("swiglu", True),
}


class HipKittensExperts(FusedMoEExpertsModular):
    """Both GEMMs, the gate, and the sum over a token's choices. Weights as vLLM loads them: (experts, 2 I, H) and (experts, H, I)."""

    @staticmethod
    def activation_format() -> FusedMoEActivationFormat:
        return FusedMoEActivationFormat.Standard

    @staticmethod
    def is_supported_config(cls: Any, moe_config: Any, *others: Any, **more: Any) -> tuple[bool, str | None]:
        """vLLM's own checks, and ours of the dtype and of a limit of the gate."""
        if moe_config.in_dtype not in _DTYPES:
            return False, f"kernel does not support {moe_config.in_dtype}"
        limit, of_swiglu = moe_config.swiglu_limit, moe_config.activation == MoEActivation.SWIGLUOAI
        if limit is not None and not (of_swiglu and limit == SWIGLU_LIMIT):
            return False, f"kernel does not support a limit of {limit} of {moe_config.activation}"
        return FusedMoEExpertsModular.is_supported_config(cls, moe_config, *others, **more)

    @staticmethod
    def _supports_current_device() -> bool:
        return is_of_targets(current_platform.get_device_capability())

    @staticmethod
    def _supports_no_act_and_mul() -> bool:
        return False

    @staticmethod
    def _supports_quant_scheme(weight_key: Any, activation_key: Any) -> bool:
        return weight_key is None and activation_key is None

    @staticmethod
    def _supports_activation(activation: MoEActivation) -> bool:
        return activation in _ACTIVATIONS

    @staticmethod
    def _supports_parallel_config(moe_parallel_config: Any) -> bool:
        return moe_parallel_config.dp_size == 1

    @staticmethod
    def _supports_batch_invariance() -> bool:
        return is_batch_invariant()

    def finalize_weight_and_reduce_impl(self) -> TopKWeightAndReduceNoOP:
        return TopKWeightAndReduceNoOP()

    def workspace_shapes(
        self, M: int, N: int, K: int, *others: Any, **more: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """No workspace, and the result."""
        return (0,), (0,), (M, K)

    def apply(
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        a1q_scale: torch.Tensor | None,
        a2_scale: torch.Tensor | None,
        workspace13: torch.Tensor,
        workspace2: torch.Tensor,
        expert_tokens_meta: Any,
        apply_router_weight_on_input: bool,
    ) -> None:
        """Writes output, (tokens, H). With apply_router_weight_on_input vLLM has multiplied hidden_states already."""
        kind, interleaved = _ACTIVATIONS[activation]
        if apply_router_weight_on_input:
            topk_weights = torch.ones_like(topk_weights)
        given = {"interleaved": interleaved} | self._of_weights(w1)
        result = moe(
            hidden_states, self._as_stored(w1), self._as_stored(w2), topk_weights, topk_ids, activation=kind, bias1=self.w1_bias, bias2=self.w2_bias, expert_map=expert_map,
            **given,
        )  # fmt: skip
        output.copy_(result)

    def _as_stored(self, weights: torch.Tensor) -> torch.Tensor:
        """Weights in the shape of rows, as `moe` accepts them."""
        return weights

    def _of_weights(self, w1: torch.Tensor) -> dict[str, Any]:
        """Additional arguments of `moe` for quantized weights."""
        return {}


def register() -> None:
    """Once per process: unquantized layers that vLLM builds from now on use these experts, if custom_ops enable unquantized_fused_moe and
    `is_supported_config` accepts them.
    """

    @CustomOp.register_oot(name="UnquantizedFusedMoEMethod")
    class HipKittensFusedMoEMethod(UnquantizedFusedMoEMethod):
        """vLLM's method with our experts, whose weights are stored as for its Triton kernels."""

        def __init__(self, moe: Any):
            super().__init__(moe)
            taken, _ = HipKittensExperts.is_supported_config(
                HipKittensExperts, moe, None, None, FusedMoEActivationFormat.Standard
            )
            if taken and not moe.is_lora_enabled and self.enabled():
                self.unquantized_backend, self.experts_cls = UnquantizedMoeBackend.TRITON, HipKittensExperts

    # The name by which custom_ops enable it; register_oot uses the class name.
    HipKittensFusedMoEMethod.name = UnquantizedFusedMoEMethod.name
