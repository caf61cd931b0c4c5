# SPDX-License-Identifier: MIT
"""The rows of `hipkittens demo` for attention, layer_norm, rms_norm and rotary: outputs and gradients beside PyTorch's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F

from . import _backend, attention, layer_norm, rms_norm, rotary
from ._accuracy import compare


@dataclass(frozen=True)
class RowJob:
    title: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    names: tuple[str, ...]
    ours: Callable[..., torch.Tensor]
    theirs: Callable[..., torch.Tensor]


def _turn(x: torch.Tensor) -> torch.Tensor:
    """The rotation in PyTorch, with tables in x's dtype or in float32, whichever is wider."""
    cos, sin = (
        table.to(torch.promote_types(x.dtype, torch.float32))[:, None] for table in _tables(*x.shape[1::2])
    )
    a, b = x.to(cos.dtype).chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)


def _tables(tokens: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """PyTorch's attention in our layout, (batch, length, heads, head size)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


ROW_JOBS = (
    RowJob("attention, causal", (1, 257, 4, 128), torch.bfloat16, ("q", "k", "v"),
           lambda q, k, v: attention(q, k, v, causal=True), lambda q, k, v: _attend(q, k, v, True)),
    RowJob("attention, 3 heads to 1", (2, 200, 3, 64), torch.float16, ("q", "k", "v"),
           lambda q, k, v: attention(q, k[:, :, 1:2], v[:, :, 1:2]),
           lambda q, k, v: _attend(q, k[:, :, 1:2], v[:, :, 1:2], False)),
    RowJob("layer_norm", (256, 1024), torch.bfloat16, ("x", "weight", "bias"), layer_norm,
           lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b)),
    RowJob("rms_norm, residual", (64, 4096), torch.bfloat16, ("x", "weight", "residual"),
           lambda x, w, r: rms_norm(x, w, residual=r), lambda x, w, r: F.rms_norm(x + r, x.shape[-1:], w, 1e-6)),
    RowJob("rotary", (1, 128, 8, 128), torch.bfloat16, ("x",),
           lambda x: rotary(x, *_tables(*x.shape[1::2])), _turn),
)  # fmt: skip


def run(target: str, job: RowJob) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": job.shape[-1:], "bias": job.shape[-1:]}
    inputs = [
        torch.randn(shapes.get(name, job.shape), generator=generator).to(job.dtype) for name in job.names
    ]
    dy = torch.randn(job.shape, generator=generator).to(job.dtype)

    def results(function, dtype) -> dict[str, torch.Tensor]:
        leaves = [value.to(dtype).requires_grad_() for value in inputs]
        y = function(*leaves)
        gradients = torch.autograd.grad(y, leaves, dy.to(dtype))
        return {"y": y.detach(), **dict(zip(("d" + name for name in job.names), gradients, strict=True))}

    with _backend.simulate(target):
        started = time.perf_counter()
        ours = results(job.ours, job.dtype)
        seconds = time.perf_counter() - started
    theirs, reference = results(job.theirs, job.dtype), results(job.theirs, torch.float64)
    rows = []
    for name, value in ours.items():
        comparison = compare(value, theirs[name], reference[name], reference[name].abs().max().item())
        rows.append(
            {
                "target": target,
                "job": job.title,
                "result": name,
                "shape": list(job.shape),
                "dtype": str(job.dtype).removeprefix("torch."),
                "variant": "",
                **asdict(comparison),
                "exact": torch.equal(value.double(), reference[name].to(value.dtype).double()),
                "ok": comparison.passes,
                "instructions": None,
                "seconds": seconds if name == "y" else None,
            }
        )
    return rows
