# SPDX-License-Identifier: MIT
"""Detects gated feed-forward blocks: their forward is run on a few numbers and compared, as for norms.

Transformers has two forms: separate gate_proj and up_proj (Llama), or one gate_up_proj (Phi-3), whose gate is fused into the GEMM if the
projection has become `hipkittens.linear`.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from .activation import ACTIVATIONS, gated_activation, in_torch
from .nn import project_and_gate

_APART = {"gate_proj", "up_proj", "down_proj"}
_TOGETHER = {"gate_up_proj", "down_proj"}


def members(original: type, kind: str, apart: bool) -> dict[str, Any]:
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if apart:
            gated = gated_activation(self.gate_proj(x), kind, other=self.up_proj(x))
        else:
            gated = project_and_gate(self.gate_up_proj, x, kind)
        return self.down_proj(gated)

    return {"forward": forward}


def looks_like_a_gated_mlp(module: torch.nn.Module) -> bool:
    names = module._modules.keys()
    return any(
        projections <= names
        and all(isinstance(module._modules[name], torch.nn.Linear) for name in projections)
        for projections in (_APART, _TOGETHER)
    )


def understand(module: torch.nn.Module) -> tuple | str:
    """The rule for `replacement_class`, or why there is none."""
    kind = type(module)
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    if len(parameters) != 1:
        return f"its forward takes {', '.join(each.name for each in parameters)}; a block of one tensor is replaced"
    apart = module._modules.keys() >= _APART
    generator = torch.Generator().manual_seed(0)

    def projection(inside: int, outside: int) -> torch.nn.Linear:
        made = torch.nn.Linear(inside, outside, bias=False)
        made.weight = torch.nn.Parameter(torch.randn(outside, inside, generator=generator))
        return made

    # torch.nn.Module looks into this dictionary; the copy shares it with the module.
    stand_in = copy.copy(module)
    small = (
        {name: projection(8, 12) for name in ("gate_proj", "up_proj")}
        if apart
        else {"gate_up_proj": projection(8, 24)}
    )
    small["down_proj"] = projection(12, 8)
    stand_in.__dict__["_modules"] = {**module._modules, **small}
    x = torch.randn(3, 8, generator=generator)
    gate, up = (
        (small["gate_proj"](x), small["up_proj"](x)) if apart else small["gate_up_proj"](x).chunk(2, -1)
    )
    try:
        with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
            result = kind.forward(stand_in, x)
    except Exception as error:
        return f"its forward cannot be run on its own ({type(error).__name__}: {error})"
    for name in ACTIVATIONS:
        expected = small["down_proj"](in_torch(gate, name) * up)
        # gelu and gelu_tanh differ in the fourth digit.
        if result.shape == x.shape and torch.allclose(result, expected, rtol=1e-5, atol=1e-5):
            return "gated_mlp", name, apart
    return f"its forward is not down(act(gate) * up) with act one of {', '.join(ACTIVATIONS)}"
