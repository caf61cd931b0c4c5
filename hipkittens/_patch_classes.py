# SPDX-License-Identifier: MIT
"""Gives a single module another forward by giving it another class: a subclass of its own class, created here.

The module object stays the same, with its parameters, buffers, hooks and everything else in its __dict__; isinstance still holds, and no
other instance of the class is affected. Such a class remembers what it was created from, so that a module can be copied, pickled and
restored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from . import _patch_delta_rule, _patch_experts, _patch_mlps, _patch_norms, _patch_rotary, nn


def _forward_of(ours: type) -> Callable[[type], dict[str, Any]]:
    return lambda original: {"forward": vars(ours)["forward"]}


# The meaning of a rule's name: from the module's class and the rule's further values to the members of the subclass.
MEMBERS: dict[str, Callable[..., dict[str, Any]]] = {
    "rms_norm": _patch_norms.members,
    "gated_rms_norm": _patch_norms.gated_members,
    "rotary": _patch_rotary.members,
    "gated_mlp": _patch_mlps.members,
    "gated_delta_net": _patch_delta_rule.members,
    "experts_block": _patch_experts.members_of_block,
    "chosen_experts": _patch_experts.members_of_chosen,
    "stacked_experts": _patch_experts.members_of_stacked,
    "torch.nn.LayerNorm": _forward_of(nn.LayerNorm),
    "torch.nn.RMSNorm": _forward_of(nn.RMSNorm),
    "torch.nn.Linear": _forward_of(nn.Linear),
    "torch.nn.MultiheadAttention": lambda original: {
        name: value for name, value in vars(nn.MultiheadAttention).items() if callable(value)
    },
    # A property takes precedence over the instance's own attribute, which a fused path of torch reads.
    "torch.nn.TransformerEncoderLayer": lambda original: {
        "activation_relu_or_gelu": property(lambda self: 0)
    },
}


def replacement_class(original: type, rule: tuple) -> type:
    """The subclass of `original` that follows `rule`: (name in MEMBERS, further values)."""
    return _make(original, rule)


@functools.cache
def _make(original: type, rule: tuple) -> type:
    def reduce(self, protocol):
        return _empty, (original, rule), self.__dict__

    return type(
        f"Hipkittens{original.__name__}",
        (original,),
        {
            "__module__": original.__module__,
            "__doc__": original.__doc__,
            "_hipkittens_original": original,
            "_hipkittens_rule": rule,
            "__reduce_ex__": reduce,
            **MEMBERS[rule[0]](original, *rule[1:]),
        },
    )


def _empty(original: type, rule: tuple) -> torch.nn.Module:
    made = replacement_class(original, rule)
    return made.__new__(made)


def is_replaced(module: torch.nn.Module) -> bool:
    """Whether the module's class is one of `replacement_class`, or was made from one."""
    return hasattr(type(module), "_hipkittens_original")


def restore_class(name: str, module: torch.nn.Module) -> None:
    """Restores the module's original class. RuntimeError if another class has been derived from ours since."""
    kind = type(module)
    if "_hipkittens_original" not in vars(kind):
        raise RuntimeError(
            f"hipkittens.unpatch: {name} has become a {kind.__name__} after hipkittens.patch; undo that first (FSDP's "
            "fully_shard does it, for example), or patch before it and leave the model patched"
        )
    module.__class__ = kind._hipkittens_original
