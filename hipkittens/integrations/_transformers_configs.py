# SPDX-License-Identifier: MIT
"""Selects hipkittens' attention for one Transformers model, and for no other that shares its configuration.

Transformers reads the name of the attention function from the configuration, and models created from one configuration object share it.
The model therefore gets copies; changes made to them are written back to the originals by `restore`.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from .._function_globals import names_in
from .._supported import supported

try:
    from transformers import PreTrainedConfig
except ImportError:  # Transformers 4
    from transformers import PretrainedConfig as PreTrainedConfig

IMPLEMENTATION = "hipkittens"
_INTERNAL = "_attn_implementation_internal"
_KEPT = (_INTERNAL, "_attn_implementation_autoset")


def uses_interface(module: torch.nn.Module) -> bool:
    """Whether its forward looks its attention function up in AttentionInterface."""
    return "ALL_ATTENTION_FUNCTIONS" in names_in(type(module).forward)


def refusals(
    root: torch.nn.Module, dtype: torch.dtype | None, left_out: set[str]
) -> dict[str, tuple[Any, str]]:
    """For the name of each module that uses the interface: its configuration, and why it cannot use the kernels, or ""."""
    models = [module for module in root.modules() if isinstance(module, PreTrainedModel)]
    found: dict[str, tuple[Any, str]] = {}
    for name, module in root.named_modules():
        if uses_interface(module):
            config = getattr(module, "config", None)
            owners = [model for model in models if model.config is config and module in set(model.modules())]
            reason = "it was excluded" if name in left_out else _refusal(module, config, owners, dtype)
            found[name] = (config, reason)
    # One configuration, one attention function.
    for config, reason in list(found.values()):
        if reason:
            for name, (other, own_reason) in found.items():
                if other is config and not own_reason:
                    found[name] = (
                        config,
                        f"it shares its configuration with a module that is left: {reason}",
                    )
    return found


def _refusal(
    module: torch.nn.Module, config: Any, owners: list[PreTrainedModel], dtype: torch.dtype | None
) -> str:
    if not isinstance(config, PreTrainedConfig) or not owners:
        return "it shares no configuration with a model of Transformers, which makes its mask"
    for model in owners:
        if not model._supports_flash_attn:
            return f"{type(model).__name__} says that it has masks or biases that flash attention has not"
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return f"attention_chunk_size is {chunk}; no kernel has chunked masks"
    parameter = next(module.parameters(), None)
    size = getattr(module, "head_dim", None) or getattr(module, "attention_head_size", None)
    if parameter is None or not isinstance(size, int):
        return ""
    query = torch.empty(
        1, 1, getattr(config, "num_attention_heads", 1), size,
        dtype=dtype or parameter.dtype, device=parameter.device,
    )  # fmt: skip
    heads = getattr(config, "num_key_value_heads", None) or query.shape[2]
    key = query.new_empty(1, 1, heads, size)
    return supported("attention", query, key, key).reason


class Switch:
    """The copies of the configurations of the `chosen` attention modules, and where they were placed."""

    def __init__(self, root: torch.nn.Module, configs: list[Any]) -> None:
        memo: dict[int, Any] = {}
        self._placed: list[tuple[torch.nn.Module, str, Any]] = []
        self._copies: dict[int, tuple[Any, Any, dict[str, Any]]] = {}
        chosen = {id(config) for config in configs}
        for module in root.modules():
            for attribute, value in list(vars(module).items()):
                if isinstance(value, PreTrainedConfig):
                    twin = copy.deepcopy(value, memo)
                    setattr(module, attribute, twin)
                    self._placed.append((module, attribute, value))
                    self._remember(value, twin, chosen)

    def _remember(self, config: Any, twin: Any, chosen: set[int]) -> None:
        if id(config) in self._copies:
            return
        self._copies[id(config)] = (config, twin, {})
        for key, value in vars(config).items():
            if isinstance(value, PreTrainedConfig):
                self._remember(value, vars(twin)[key], chosen)
        if id(config) in chosen:
            setattr(twin, _INTERNAL, IMPLEMENTATION)
        self._copies[id(config)] = (config, twin, copy.deepcopy(_plain(twin)))

    def restore(self) -> None:
        """Restores the originals, including the changes made to the copies since."""
        for config, twin, before in self._copies.values():
            for key, value in _plain(twin).items():
                if key not in before or before[key] != value:
                    vars(config)[key] = value
            for key in before.keys() - vars(twin).keys():
                vars(config).pop(key, None)
        for module, attribute, value in self._placed:
            held = vars(module).get(attribute)
            if any(held is twin for _, twin, _ in self._copies.values()):
                setattr(module, attribute, value)


def _plain(config: Any) -> dict[str, Any]:
    return {
        key: value
        for key, value in vars(config).items()
        if key not in _KEPT and not isinstance(value, PreTrainedConfig)
    }
