# SPDX-License-Identifier: MIT
"""Attention and its gradient as problems of `bench`, `profile`, `trace` and docs/performance.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from ..attention import attention
from ._record import Benchmark, Table
from ._tables import DEVICES

_FIRST = dict.fromkeys(DEVICES, (1024,))
_TWO = {"MI300X": (1024, 2048), "MI355X": (1024, 2048)}
_THREE = _TWO | {"MI355X": (1024, 2048, 4096)}
_OF_DEEPSEEK = "B1H128N{N}D192V128:causal"
_OF_GEMMA = {"MI300X": (2048, 4096), "MI355X": (2048, 4096)}


def _tables(
    title: str, heads: str, sizes: Mapping[str, tuple[int, ...]], peers: Sequence[str]
) -> Iterator[Table]:
    """Without a mask and causal. Peers are run at all sizes except Triton, whose kernels have many more instructions."""
    for mask in ("", ":causal"):
        most = {
            library: {
                device: min(some) if library == "triton" else max(some) for device, some in sizes.items()
            }
            for library in peers
        }
        yield Table(title + (", causal" if mask else ""), f"B16{heads}{mask}", sizes, most)


def _flops(problem) -> float:
    """2 B H N L (D + V), half of that under a causal mask."""
    e = problem.extents
    return 2.0 * e["B"] * e["H"] * e["N"] * e["L"] * (e["D"] + e["V"]) * (0.5 if problem.causal else 1)


def _backward_flops(problem) -> float:
    """Three GEMMs of width D and two of width V."""
    e = problem.extents
    return _flops(problem) / (e["D"] + e["V"]) * (3 * e["D"] + 2 * e["V"])


def _bytes(times: int):
    """`times` q, k, v and out, and the LSE."""

    def count(problem) -> float:
        e = problem.extents
        rows = e["B"] * (e["N"] * e["H"] + e["L"] * e["K"])
        return 2 * times * rows * (e["D"] + e["V"]) + 4 * e["B"] * e["H"] * e["N"]

    return count


def _refuse(extents) -> str | None:
    if extents["H"] % extents["K"]:
        return (
            f"{extents['H']} query heads cannot share {extents['K']} key heads; H has to be a multiple of K"
        )
    return None


def _operands(problem, device):
    e = problem.extents
    q = problem.tensor(device, e["B"], e["N"], e["H"], e["D"])
    return q, *(problem.tensor(device, e["B"], e["L"], e["K"], e[size]) for size in "DV")


def _terms(problem, device) -> dict[str, Any]:
    """S: whether there are sinks; C: the softcap; A: whether there are ALiBi slopes."""
    e = problem.extents
    of_heads = torch.full((e["H"],), 0.125, device=device)
    return {
        "sinks": of_heads if e["S"] else None,
        "softcap": float(e["C"]),
        "alibi_slopes": of_heads if e["A"] else None,
    }


def _call(problem, device):
    q, k, v = _operands(problem, device)
    terms = _terms(problem, device)
    return lambda: attention(q, k, v, causal=problem.causal, **terms)


def _call_backward(problem, device):
    e = problem.extents
    q, k, v = _operands(problem, device)
    options = (e["D"] ** -0.5, problem.causal, -1, -1, 0.0, None, *_terms(problem, device).values())
    gradient, out = (problem.tensor(device, *q.shape[:-1], e["V"]) for _ in range(2))
    lse = torch.zeros(e["B"], e["H"], e["N"], device=device)
    if device != "cpu":
        out, lse = torch.ops.hipkittens.attention_forward(q, k, v, *options)
    return lambda: torch.ops.hipkittens.attention_backward(gradient, None, q, k, v, out, lse, *options)


def _torch_leaves(problem) -> list[torch.Tensor]:
    from ..profiling.peers import Unavailable

    e = problem.extents
    if problem.causal and e["N"] != e["L"]:
        raise Unavailable("PyTorch aligns a causal mask with the first key")
    if any(e[term] for term in "SCA"):
        raise Unavailable("scaled_dot_product_attention has no sinks, softcap or ALiBi")
    leaves = [problem.tensor("cuda", e["B"], e["H"], e["N"], e["D"])]
    return leaves + [problem.tensor("cuda", e["B"], e["K"], e["L"], e[size]) for size in "DV"]


def _call_torch(problem):
    leaves = _torch_leaves(problem)
    return lambda: F.scaled_dot_product_attention(*leaves, is_causal=problem.causal, enable_gqa=True)


def _call_torch_backward(problem):
    leaves = [leaf.requires_grad_() for leaf in _torch_leaves(problem)]
    out = F.scaled_dot_product_attention(*leaves, is_causal=problem.causal, enable_gqa=True)
    gradient = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)


_SYNTAX = {
    "example": "B16H64K8N2048D128:causal",
    "letters": "BHND",
    "optional": {"K": "H", "L": "N", "V": "D", "S": 0, "C": 0, "A": 0},
    "causal": True,
    "refuse": _refuse,
}
BENCHMARKS = (
    Benchmark(
        "attention",
        shapes="B16H16N1024D128,B16H16N2048D128",
        flops=_flops,
        bytes=_bytes(1),
        call=_call,
        torch=_call_torch,
        heading="Attention",
        tables=(
            *_tables("Attention, 16 heads of 128, batch 16", "H16N{N}D128", _FIRST | _THREE, ("aiter", "triton")),
            *_tables("Attention, 64 query and 8 key heads of 128, batch 16", "H64K8N{N}D128",
                     {"MI300X": (1024,), "MI355X": (1024,)}, ("aiter",)),
            *_tables("Attention, 16 heads of 64, batch 16", "H16N{N}D64", _TWO, ()),
            Table("Attention, 128 heads of 192 and 128 (DeepSeek-V3), causal", _OF_DEEPSEEK, _TWO, {}),
            Table("Attention, 16 query and 8 key heads of 256 (Gemma), batch 2, causal", "B2H16K8N{N}D256:causal",
                  _OF_GEMMA, {}),
            Table("Attention, 16 query and 8 key heads of 256 and a softcap that no score is near (Gemma 2), batch 2, causal",
                  "B2H16K8N{N}D256C50:causal", _OF_GEMMA, {}),
        ),
        **_SYNTAX,
    ),
    Benchmark(
        "attention_backward",
        shapes="B16H16N1024D128",
        flops=_backward_flops,
        bytes=_bytes(2),  # and their gradients
        call=_call_backward,
        torch=_call_torch_backward,
        heading="Attention backward",
        tables=(
            *_tables("Attention backward, 16 heads of 128, batch 16", "H16N{N}D128", _FIRST, ("aiter",)),
            *_tables("Attention backward, 64 query and 8 key heads of 128, batch 16", "H64K8N{N}D128",
                     {"MI355X": (1024,)}, ("aiter",)),
            Table("Attention backward, 128 heads of 192 and 128 (DeepSeek-V3), causal", _OF_DEEPSEEK, _TWO, {}),
        ),
        **_SYNTAX,
    ),
)  # fmt: skip
