# SPDX-License-Identifier: MIT
"""Detects RMS norms, whatever they are called: their forward is run on a few numbers and compared.

Transformers has a separate class for almost every model. They differ in the name of eps, in whether 1 is added to the weight (Gemma), in
whether there is a weight, and in the dtype of the result; what they compute is the most reliable criterion.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch

from .norm import rms_norm

EPS_NAMES = ("variance_epsilon", "eps", "epsilon", "norm_eps")
ROWS = 3


def members(original: type, eps_name: str, offset: int, promotes: bool) -> dict[str, Any]:
    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        (x,) = (*inputs, *named.values())
        weight = getattr(self, "weight", None)
        if promotes and weight is not None:
            x = x.to(torch.promote_types(x.dtype, weight.dtype))
        if offset:
            weight = offset + weight.float()
        return rms_norm(x, weight, getattr(self, eps_name))

    return {"forward": forward}


def gated_members(original: type, eps_name: str) -> dict[str, Any]:
    def forward(self, hidden_states: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return rms_norm(
            hidden_states, self.weight, getattr(self, eps_name), gate=gate.to(hidden_states.dtype)
        )

    return {"forward": forward}


def looks_like_a_norm(module: torch.nn.Module) -> bool:
    """Whether it has the structure of an RMS norm: an eps, no submodule, and at most one parameter."""
    return (
        any(isinstance(getattr(module, name, None), float) for name in EPS_NAMES)
        and not module._modules
        and set(module._parameters) <= {"weight"}
    )


def understand(module: torch.nn.Module) -> tuple | str:
    """The rule for `replacement_class`, or why there is none."""
    kind = type(module)
    parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    names = [each.name for each in parameters]
    gated = names == ["hidden_states", "gate"]
    if len(names) != 1 and not gated:
        return f"its forward takes {', '.join(names)}; a norm of one tensor, or of hidden_states and gate, is replaced"
    weight = getattr(module, "weight", None)
    if weight is not None and weight.dim() != 1:
        return f"its weight has shape {tuple(weight.shape)}; a weight of one dimension is replaced"
    eps_name = next(name for name in EPS_NAMES if isinstance(getattr(module, name, None), float))
    size = 8 if weight is None else weight.shape[0]
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    own = random(size)
    stand_in = copy.copy(module)
    # torch.nn.Module looks into these dictionaries; the copy shares them with the module.
    stand_in.__dict__["_parameters"] = {} if weight is None else {"weight": torch.nn.Parameter(own.float())}
    x = random(ROWS, size)
    # The last row is as small as eps, so that eps has an effect.
    x[-1] *= getattr(module, eps_name) ** 0.5
    normal = x * (x.square().mean(-1, keepdim=True) + getattr(module, eps_name)).rsqrt()
    gates = (random(ROWS, size),) if gated else ()
    try:
        with torch.no_grad(), torch.device("cpu"), torch.autocast("cpu", enabled=False):
            result = kind.forward(stand_in, x.float(), *(gate.float() for gate in gates))
            dtype = kind.forward(stand_in, x.bfloat16(), *(gate.bfloat16() for gate in gates)).dtype
    except Exception as error:
        return f"its forward cannot be run on its own ({type(error).__name__}: {error})"
    if not isinstance(result, torch.Tensor) or dtype not in (torch.bfloat16, torch.float32):
        return "its forward does not return one tensor of the input's or the weight's dtype"
    if gated:
        expected = normal * own * torch.nn.functional.silu(gates[0])
        if weight is None or dtype != torch.bfloat16 or result.shape != x.shape:
            return "its forward is not x / rms(x) * weight * silu(gate) in the dtype of x"
        if not torch.allclose(result.double(), expected, rtol=1e-4, atol=1e-5):
            return "its forward is not x / rms(x) * weight * silu(gate)"
        return "gated_rms_norm", eps_name
    for offset, expected in ((0, normal if weight is None else normal * own), (1, normal * (1 + own))):
        if result.shape == x.shape and torch.allclose(result.double(), expected, rtol=1e-4, atol=1e-5):
            if weight is None and dtype != torch.bfloat16:
                return "it returns float32 for any input"
            return "rms_norm", eps_name, offset, dtype == torch.float32
    return "its forward is neither x / rms(x) * weight nor x / rms(x) * (1 + weight)"
