# SPDX-License-Identifier: MIT
"""What the GEMMs by AITER's names require of their operands, and AITER's orders of weights and scales."""

from __future__ import annotations

import torch

from .. import _backend
from .._arguments import check_tensor
from .._panels import panels_of_rows, shape_of_weights
from ..gemm import OUTPUT_DTYPES

# The formats of both targets.
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)


def check_operands(function: str, operands: dict[str, torch.Tensor], dims: int = 2) -> None:
    """TypeError or ValueError, unless both have this number of dimensions (for preshuffled operands, that of their rows), and the same last
    dimension, and with three dimensions the same first one.
    """
    where = f"hipkittens.aiter.{function}"
    shapes = []
    for name, value in operands.items():
        check_tensor(where, name, value)
        shapes.append(shape_of_weights(value, where, name) if value.dim() == dims + 2 else value.shape)
        if len(shapes[-1]) != dims:
            raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it needs {dims} dimensions")
    (first, second), (x, w) = operands, shapes
    for what, axis in (("columns", -1), ("matrices", 0))[: dims - 1]:
        if x[axis] != w[axis]:
            raise ValueError(
                f"{where}: {first} has {x[axis]} {what} and {second} {w[axis]} ({first}: {tuple(x)}, {second}: {tuple(w)}); they must be "
                "equal"
            )


def check_shape(function: str, name: str, value: torch.Tensor, *allowed: tuple[int, ...]) -> None:
    """TypeError or ValueError, unless it is a tensor of one of these shapes."""
    where = f"hipkittens.aiter.{function}"
    check_tensor(where, name, value)
    if tuple(value.shape) not in allowed:
        raise ValueError(
            f"{where}: {name} has shape {tuple(value.shape)}; it must be {' or '.join(map(str, allowed))}"
        )


def with_elements(function: str, name: str, value: torch.Tensor | None, *shape: int) -> torch.Tensor | None:
    """`value` in this shape; ValueError if it has another number of elements."""
    if value is None:
        return None
    where, count = f"hipkittens.aiter.{function}", torch.Size(shape).numel()
    check_tensor(where, name, value)
    if value.numel() != count:
        raise ValueError(f"{where}: {name} has shape {tuple(value.shape)}; it needs {count} elements")
    return value.reshape(shape)


def check_output(function: str, dtype: torch.dtype) -> None:
    """TypeError for a result dtype that no GEMM supports."""
    if dtype not in OUTPUT_DTYPES:
        raise TypeError(
            f"hipkittens.aiter.{function}: results are {dtype}; allowed: {', '.join(map(str, OUTPUT_DTYPES))}"
        )


def panels_of_shuffled(function: str, name: str, w: torch.Tensor, panel: int = 16) -> torch.Tensor:
    """Weights (..., N, K) of aiter.ops.shuffle.shuffle_weight(w, layout=(panel, 16)) in the panel layout's shape, which products accept as
    b: (..., N / panel, bytes of a row / 16, panel, elements of 16 bytes).
    """
    where = f"hipkittens.aiter.{function}"
    check_tensor(where, name, w)
    width = w.shape[-1] * w.itemsize if w.dim() else 0
    if w.dim() < 2 or w.shape[-2] % panel or width % 16:
        raise ValueError(
            f"{where}: {name} has shape {tuple(w.shape)}; a shuffled weight has rows of 16 bytes or a multiple, and a multiple of {panel} "
            "of them"
        )
    return panels_of_rows(w, panel)


def panels_of_bands(function: str, name: str, w: torch.Tensor) -> torch.Tensor:
    """The same from the shape that AITER's Triton kernels expect, (N / 16, 16 K)."""
    where = f"hipkittens.aiter.{function}"
    check_tensor(where, name, w)
    if w.dim() != 2 or w.shape[1] % 256:
        raise ValueError(
            f"{where}: {name} has shape {tuple(w.shape)}; a shuffled weight is (N / 16, 16 times the bytes of a row), which 256 divides"
        )
    return panels_of_shuffled(function, name, w.reshape(w.shape[0] * 16, w.shape[1] // 16))


def check_has_mxfp4(function: str, x: torch.Tensor) -> None:
    """ValueError on a target without MXFP4 matrix instructions."""
    if x.device.type == "meta" or _backend.uses_torch():
        return
    target = _backend.arch_of(x.device)
    if target != "gfx950":
        raise ValueError(
            f"hipkittens.aiter.{function}: {target} has no matrix instruction with scales, which MXFP4 needs; allowed: gfx950; or "
            "dequantise (hipkittens.dequantize) and use hipkittens.matmul"
        )


def ends_of(batches: int, rows: int, device: torch.device) -> torch.Tensor:
    """Ends of groups of so many rows each, for hipkittens.grouped_matmul of a batch."""
    return torch.arange(1, batches + 1, dtype=torch.int32, device=device) * rows
