# SPDX-License-Identifier: MIT
"""Runs the parity cases of an operation's record: compares its results and every gradient with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from parity_operation import Operation, Result, dense_leaf, leaf, simulated

from hipkittens.operations._record import Parity, ParityProblem


def operation_of(parity: Parity) -> Operation:
    def run(target: str, case: dict[str, Any], seed: int) -> list[Result]:
        generator = torch.Generator().manual_seed(seed)
        with simulated(target):  # the target determines the 8-bit float formats of a problem
            problem = parity.problem(case, generator)
        return _run(target, problem, generator)

    return Operation(
        parity.function, dict(parity.factors), run, dict(parity.draws), parity.extra, parity.adapt
    )


def _as_list(values: torch.Tensor | Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [values] if isinstance(values, torch.Tensor) else list(values)


def _differentiated(
    function: Callable[..., Any],
    leaves: Mapping[str, torch.Tensor],
    gradients: Callable[[list[torch.Tensor]], list[torch.Tensor]],
) -> list[torch.Tensor]:
    """The outputs, then the gradient of each input, if they have any."""
    outputs = _as_list(function(*leaves.values()))
    if not any(output.requires_grad for output in outputs):
        return outputs
    found = torch.autograd.grad(outputs, list(leaves.values()), gradients(outputs))
    return [value.detach() for value in (*outputs, *found)]


def _run(target: str, problem: ParityProblem, generator: torch.Generator) -> list[Result]:
    drawn: list[torch.Tensor] = list(problem.gradients or ())

    def gradients(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        if not drawn:
            drawn.extend(torch.randn(y.shape, generator=generator).to(y.dtype) for y in outputs)
        return [value.to(y.dtype) for value, y in zip(drawn, outputs, strict=True)]

    def leaves(make: Callable[..., torch.Tensor], dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
        return {name: make(value, dtype) for name, value in problem.inputs.items()}

    # The reference needs it too: the target determines the 8-bit float formats it casts to.
    with simulated(target, "exact" if problem.summed_exactly else None):
        ours = _differentiated(problem.ours, leaves(leaf, None), gradients)
        theirs = _differentiated(problem.theirs, leaves(dense_leaf, None), gradients)
        exact = _differentiated(problem.theirs, leaves(dense_leaf, torch.float64), gradients)
    names = (*problem.outputs, *("d" + name for name in problem.inputs))
    return [
        Result(
            name,
            value,
            theirs[i].to(value.dtype),
            exact[i],
            exact[i].abs().max().item() if problem.magnitude is None else problem.magnitude,
            problem.baseline,
        )
        for i, (name, value) in enumerate(zip(names[: len(ours)], ours, strict=True))
    ]
