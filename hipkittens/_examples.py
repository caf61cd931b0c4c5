# SPDX-License-Identifier: MIT
"""Runs an example of an operation: its results and gradients next to PyTorch's, both compared with float64."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from . import _backend, _library, operations
from ._accuracy import compare
from .operations._record import Example, Operation


def examples() -> list[tuple[Operation, Example]]:
    """The examples of `hipkittens demo`."""
    return [
        (operation, example)
        for operation in operations.every()
        for example in operations.checks(operation).examples
    ]


def inputs_of(example: Example, generator: torch.Generator) -> list[torch.Tensor]:
    def draw(shape: tuple[int, ...]) -> torch.Tensor:
        if example.integers:
            return torch.randint(-8, 9, shape, generator=generator).to(example.dtype)
        return torch.randn(shape, generator=generator).to(example.dtype)

    return [draw(shape) for shape in example.inputs.values()]


def run(target: str, operation: Operation, example: Example) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    inputs = inputs_of(example, generator)
    output_generator = generator.get_state()

    def results(function: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        leaves = [value.to(dtype).requires_grad_(example.gradients) for value in inputs]
        y = function(*leaves)
        if not example.gradients:
            return {"y": y}
        generator.set_state(output_generator)
        dy = torch.randn(y.shape, generator=generator).to(example.dtype)
        gradients = torch.autograd.grad(y, leaves, dy.to(y.dtype))
        names = ("d" + name for name in example.inputs)
        return {"y": y.detach(), **dict(zip(names, gradients, strict=True))}

    variant, instructions = "", None
    with _backend.simulate(target):
        started = time.perf_counter()
        ours = results(example.ours, example.dtype)
        seconds = time.perf_counter() - started
        if not example.gradients:  # of the single launch
            kernel = _library.last_kernel().removeprefix(f"hipkittens_{operation.folder}_")
            variant, instructions = (
                kernel.removesuffix("_" + target),
                _library.last_report().get("instructions"),
            )
    theirs, reference = results(example.theirs, example.dtype), results(example.theirs, torch.float64)
    whole = example.magnitude and example.magnitude(*(value.double() for value in inputs))
    rows = []
    for name, value in ours.items():
        exact_value = reference[name]
        magnitude = whole if whole is not None else exact_value.abs().max().item()
        comparison = compare(value, theirs[name], exact_value, magnitude)
        exact = torch.equal(value.double(), exact_value.to(value.dtype).double())
        rows.append(
            {
                "target": target,
                "job": example.title,
                "result": name,
                "shape": list(example.shape or inputs[0].shape),
                "dtype": str(example.dtype).removeprefix("torch."),
                "variant": variant,
                **asdict(comparison),
                "exact": exact,
                "ok": comparison.passes and (exact or not example.integers),
                "instructions": instructions,
                "seconds": seconds if name == "y" else None,
            }
        )
    return rows
