# SPDX-License-Identifier: MIT
"""Which rule a module's class may follow, and the reason if there is none."""

from __future__ import annotations

import torch

from . import _patch_delta_rule, _patch_experts, _patch_mlps, _patch_norms, _patch_rotary, nn
from ._function_globals import global_of, names_in
from ._patch_classes import is_replaced
from ._patch_report import PatchRow
from ._supported import supported


def judge(
    name, module, wanted, dtype, excluded, interface, inside_multihead, inside_experts
) -> list[tuple[PatchRow, tuple | None]]:
    """The rows of one module, each with the rule its class is to follow."""
    kind = type(module).__name__
    if id(module) in inside_experts:
        by, reason = inside_experts[id(module)]
        return [] if module._modules else [(PatchRow(name, kind, "moe", by, reason), None)]
    if is_replaced(module):
        original, rule = type(module)._hipkittens_original, type(module)._hipkittens_rule
        part, by = _PART_OF[rule[0]]
        return [(PatchRow(name, original.__name__, part, "", f"it has been replaced before, by {by}"), None)]
    rows = []
    if name in interface:
        reason = interface[name][1]
        if not wanted["attention"]:
            reason = "attention=False"
        elif interface[name][0] is not None and interface[name][0]._attn_implementation == "hipkittens":
            reason = 'it has attn_implementation="hipkittens" already'
        rows.append((PatchRow(name, kind, "attention", *_outcome("hipkittens.attention", reason)), None))
    found = _rule(module)
    if found is not None:
        part, by, rule, reason = found
        if "forward" in vars(module):
            reason = "its forward has been replaced on the module itself; undo that first"
        elif id(module) in inside_multihead:
            reason = "torch.nn.MultiheadAttention reads its weight and never calls it"
        elif excluded:
            reason = "it was excluded"
        elif not reason and not wanted[part]:
            reason = f"{part}=False"
        elif not reason:
            reason = _refusal(module, rule, dtype)
        rows.append((PatchRow(name, kind, part, *_outcome(by, reason)), None if reason else rule))
    if not rows:
        part, reason = _why_nothing(module)
        if reason:
            rows.append((PatchRow(name, kind, part, "", reason), None))
    return rows


def _outcome(by: str, reason: str) -> tuple[str, str]:
    return ("", reason) if reason else (by, "")


_PART_OF = {
    "torch.nn.LayerNorm": ("norm", "hipkittens.layer_norm"),
    "torch.nn.RMSNorm": ("norm", "hipkittens.rms_norm"),
    "torch.nn.Linear": ("linear", "hipkittens.linear"),
    "torch.nn.MultiheadAttention": ("attention", "hipkittens.nn.MultiheadAttention"),
    "rms_norm": ("norm", "hipkittens.rms_norm"),
    "gated_rms_norm": ("norm", "hipkittens.rms_norm"),
    "rotary": ("rotary", "hipkittens.rotary_qk"),
    "gated_mlp": ("mlp", "hipkittens.gated_activation"),
    "experts_block": ("moe", "hipkittens.moe"),
    "chosen_experts": ("moe", "hipkittens.moe"),
    "stacked_experts": ("moe", "hipkittens.moe"),
    "gated_delta_net": (
        "linear_attention",
        "hipkittens.gated_delta_rule, hipkittens.causal_conv1d, hipkittens.causal_conv1d_update",
    ),
    "torch.nn.TransformerEncoderLayer": ("", "its modules"),
}


def _rule(module: torch.nn.Module) -> tuple[str, str, tuple | None, str] | None:
    """(part, what replaces it, rule, why not) of what the kernels could compute."""
    for name in ("LayerNorm", "RMSNorm", "Linear", "MultiheadAttention"):
        theirs = getattr(torch.nn, name)
        if isinstance(module, theirs):
            rule = (f"torch.nn.{name}",)
            reason = ""
            if type(module).forward is not theirs.forward:
                reason = f"it is a torch.nn.{name} with a forward of its own"
                if isinstance(module, getattr(nn, name)):
                    reason = f"it is a hipkittens.nn.{name} already"
            return *_PART_OF[rule[0]], rule, reason
    if global_of(type(module).forward, _patch_rotary.NAME) is not None:
        return _with_reason("rotary", _patch_rotary.understand(type(module)))
    if _patch_norms.looks_like_a_norm(module):
        return _with_reason("rms_norm", _patch_norms.understand(module))
    if _patch_mlps.looks_like_a_gated_mlp(module):
        return _with_reason("gated_mlp", _patch_mlps.understand(module))
    if _patch_delta_rule.looks_like_a_gated_delta_net(module):
        return _with_reason("gated_delta_net", _patch_delta_rule.understand(module))
    if _patch_experts.looks_like_experts(module):
        return _with_reason("experts_block", _patch_experts.understand(module))
    return None


def _with_reason(name: str, rule: tuple | str) -> tuple[str, str, tuple | None, str]:
    reason = rule if isinstance(rule, str) else ""
    return *_PART_OF[name], None if reason else rule, reason


def _refusal(module: torch.nn.Module, rule: tuple, dtype: torch.dtype | None) -> str:
    """The error message that the operation raises for tensors as this module will get them, or ""."""
    parameter = next(module.parameters(), None)
    if parameter is None:
        return ""
    weight = getattr(module, "weight", None)
    bias = getattr(module, "bias", None)

    def input_of(size: int) -> torch.Tensor:
        return torch.empty(1, size, dtype=dtype or parameter.dtype, device=parameter.device)

    if rule[0] == "torch.nn.Linear":
        if dtype is not None and dtype != weight.dtype:  # since autocast converts them
            weight, bias = (value if value is None else value.detach().to(dtype) for value in (weight, bias))
        return supported("linear", input_of(weight.shape[1]), weight, bias).reason
    if rule[0] in ("rms_norm", "gated_rms_norm", "torch.nn.RMSNorm", "torch.nn.LayerNorm"):
        weight, bias = (value if value is None else value.flatten() for value in (weight, bias))
        function = "layer_norm" if rule[0] == "torch.nn.LayerNorm" else "rms_norm"
        parameters = (weight, bias) if function == "layer_norm" else (weight,)
        return supported(function, input_of(weight.numel()), *parameters).reason
    if rule[0] == "gated_mlp":
        return supported("gated_activation", input_of(8), rule[1]).reason
    if _PART_OF[rule[0]][0] == "moe":  # two experts with eight features: sizes do not matter
        x, ids = input_of(8), torch.zeros(1, 1, dtype=torch.int32, device=parameter.device)
        w1, w2 = (x.new_empty(2, *sizes) for sizes in ((16, 8), (8, 8)))
        return supported("moe", x, w1, w2, x.new_empty(1, 1), ids).reason
    if rule[0] == "gated_delta_net":
        return _patch_delta_rule.refusal(module, dtype or parameter.dtype)
    if rule[0] == "torch.nn.MultiheadAttention":
        query = input_of(module.embed_dim).view(1, 1, module.num_heads, module.head_dim)
        return supported("attention", query, query, query).reason
    return ""


def _why_nothing(module: torch.nn.Module) -> tuple[str, str]:
    """(part, reason) for a module that is not replaced because there is nothing for it; no reason for mere containers."""
    used = names_in(type(module).forward)
    kind = type(module).__name__
    if "scaled_dot_product_attention" in used:
        return "attention", (
            "it calls torch's scaled_dot_product_attention by itself; hipkittens.integrations.sdpa redirects that"
        )
    if kind.endswith("Attention") and {"softmax", "matmul", "bmm", "baddbmm"} & used:
        return (
            "attention",
            "it computes attention by itself, with no interface that a kernel could be put behind",
        )
    if not module._modules:
        return "", f"no kernel computes {kind}"
    return "", ""
