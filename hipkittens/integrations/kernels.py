# SPDX-License-Identifier: MIT
"""Hugging Face's `kernels` with the layers of this installation, without the hub.

    from hipkittens.integrations import kernels
    kernels.kernelize(model)                                  # forward of every layer that `kernels` can name, if ours

`hipkittens.layers` lists the layers. The repositories that `tools/hub_kernels.py` builds contain the same layers for
`kernels.LayerRepository`; to mix them with layers of other repositories, register `mapping()` instead. Written for `kernels` 0.17; imported
by nothing else in this package.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _backend, layers


class InstalledLayer:
    """A layer of `hipkittens.layers` by name, with the interface of a `kernels` repository. Raises ValueError for an unknown name."""

    def __init__(self, layer_name: str) -> None:
        if layer_name not in layers.__all__:
            raise ValueError(
                f"hipkittens.integrations.kernels: no layer {layer_name!r}; allowed: {', '.join(layers.__all__)}"
            )
        self.layer_name = layer_name

    def load(self) -> type[torch.nn.Module]:
        return getattr(layers, self.layer_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstalledLayer) and other.layer_name == self.layer_name

    def __hash__(self) -> int:
        return hash((InstalledLayer, self.layer_name))

    def __str__(self) -> str:
        return f"hipkittens of this installation, layer `{self.layer_name}`"


def mapping(device: str = "rocm") -> dict[str, dict[str, InstalledLayer]]:
    """Every layer, for `kernels.register_kernel_mapping` or `use_kernel_mapping`.

    device is "rocm", or "cpu", whose tensors run in the simulator; ValueError for any other.
    """
    if device not in ("rocm", "cpu"):
        raise ValueError(
            f"hipkittens.integrations.kernels.mapping: device is {device!r}; allowed: 'rocm', an AMD GPU, and 'cpu', simulated"
        )
    return {name: {device: InstalledLayer(name)} for name in layers.__all__}


def kernelize(model: torch.nn.Module, mode: Any = None, device: str | None = None) -> torch.nn.Module:
    """`kernels.kernelize` with `mapping` alone; returns the model, whose layers with a name among ours call `hipkittens` from now on.

    mode    kernels.Mode; by default TRAINING, which also covers inference, or INFERENCE for a model in evaluation mode
    device  "rocm" or "cpu"; by default that of the model's first parameter

    For Transformers, instead of `use_kernels=True`, which prefers the repositories that Transformers names. The `forward` of individual
    modules changes; hooks, parameters and classes do not. Raises ImportError if `kernels` is missing, ValueError for a model on another
    device.
    """
    try:
        import kernels
    except ImportError as error:
        raise ImportError(
            "hipkittens.integrations.kernels needs Hugging Face's kernels, 0.17 or later: pip install kernels"
        ) from error
    if device is None:
        kind = next(
            (parameter.device.type for parameter in model.parameters()), "none, for it has no parameter"
        )
        device = "rocm" if kind == "cuda" and _backend.has_amd_gpus() else kind
    if mode is None:
        mode = kernels.Mode.TRAINING if model.training else kernels.Mode.INFERENCE
    with kernels.use_kernel_mapping(mapping(device), inherit_mapping=False):
        return kernels.kernelize(model, mode=mode, device=device)
