# SPDX-License-Identifier: MIT
"""Checks of qkv_rotary: problems for its kernels, examples, parity, benchmarks."""

from __future__ import annotations

import torch

from ..qkv import qkv_rotary
from ._record import DTYPES, Benchmark, Checks, Example, Parity, ParityProblem, Trial
from ._rotary_parity import turn
from ._tensors import draw, with_gaps


def tables_of(tokens: int, pairs: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.outer(
        torch.arange(tokens, dtype=torch.float64), 10000.0 ** -torch.linspace(0, 1, pairs).double()
    )
    return angles.cos().float(), angles.sin().float()


def trial(name: str) -> Trial:
    """Both norms with gradients, both orders of pairs, features that are not rotated, and a cache."""
    dtype = DTYPES[name]

    def run():
        results = []
        for features, pairs, interleaved in ((128, 64, False), (72, 24, True), (22, 9, False)):
            qkv = draw(9, 9 * features, dtype=dtype)
            weights = [draw(features, dtype=dtype) for _ in range(2)]
            options = {"interleaved": interleaved, "q_weight": weights[0], "k_weight": weights[1]}
            tables = tables_of(9, pairs)
            out = qkv_rotary(qkv, *tables, 5, 2, **options)
            results += [
                *out,
                *torch.autograd.grad(out, (qkv, *weights), [draw(*each.shape, dtype=dtype) for each in out]),
            ]
            if dtype != torch.float32:
                caches = [torch.zeros(1, 16, 2, features, dtype=dtype) for _ in range(2)]
                with torch.no_grad():
                    qkv_rotary(
                        qkv, *tables, 5, 2, **options,
                        key_cache=caches[0], value_cache=caches[1], slots=torch.arange(9) - 1,
                    )  # fmt: skip
                results += caches
        return results

    return Trial(f"qkv_rotary 9 tokens {name}", run)


def representative(name: str) -> Trial:
    """As wide as the kernels are typically used."""

    def run():
        qkv, weight = draw(64, 12 * 128, dtype=DTYPES[name]), draw(128, dtype=DTYPES[name])
        out = qkv_rotary(qkv, *tables_of(64, 64), 8, 2, q_weight=weight, k_weight=weight)
        return [*out, *torch.autograd.grad(out, (qkv, weight), [torch.ones_like(each) for each in out])]

    return Trial(f"qkv_rotary N64 H8 Hkv2 D128 {name}", run)


def _in_torch(qkv, q_weight, k_weight, tables, heads, kv_heads, interleaved, rows, eps=1e-6):
    """In qkv's dtype or in float32, whichever is wider, rounded once."""
    wide = torch.promote_types(qkv.dtype, torch.float32)
    x = qkv.to(wide).unflatten(-1, (heads + 2 * kv_heads, -1))
    results = []
    for part, weight in zip(
        x.split((heads, kv_heads, kv_heads), -2), (q_weight, k_weight, None), strict=True
    ):
        if len(results) < 2:
            if weight is not None:
                part = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + eps) * weight.to(wide)
            part = turn(part, *(table.to(wide) for table in tables), interleaved, rows, -2)
        results.append(part.to(qkv.dtype))
    return results


def _ours_joined(qkv, q_weight, k_weight):
    tables = (table.to(qkv.device) for table in tables_of(qkv.shape[1], 32))
    results = qkv_rotary(qkv, *tables, 4, 2, q_weight=q_weight, k_weight=k_weight)
    return torch.cat(results, -2)


def _theirs_joined(qkv, q_weight, k_weight):
    tables = tables_of(qkv.shape[1], 32)
    return torch.cat(_in_torch(qkv, q_weight, k_weight, tables, 4, 2, False, torch.arange(qkv.shape[1])), -2)


def _parity(case, generator) -> ParityProblem:
    dtype, (features, pairs), (heads, kv_heads) = DTYPES[case["dtype"]], case["features"], case["heads"]
    batch, tokens = case["batch"], case["tokens"]
    qkv = torch.randn(batch, tokens, (heads + 2 * kv_heads) * features, generator=generator).to(dtype)
    inputs = {"qkv": with_gaps(qkv, *case["gaps"])}
    if case["norm"]:
        for name in ("q_weight", "k_weight"):
            inputs[name] = torch.randn(features, generator=generator).to(dtype)
    angles = 100 * torch.rand(tokens, pairs, generator=generator, dtype=torch.float64)
    tables, rows = (angles.cos().float(), angles.sin().float()), torch.randperm(tokens, generator=generator)

    def ours(qkv, q_weight=None, k_weight=None):
        options = {"interleaved": case["interleaved"], "positions": rows}
        return qkv_rotary(qkv, *tables, heads, kv_heads, q_weight=q_weight, k_weight=k_weight, **options)

    def theirs(qkv, q_weight=None, k_weight=None):
        return _in_torch(qkv, q_weight, k_weight, tables, heads, kv_heads, case["interleaved"], rows)

    baseline = "PyTorch's operations in float32, rounded once"
    return ParityProblem(inputs, ours, theirs, baseline, ("q", "k", "v"))


def _call(problem, device, norm):
    e = problem.extents
    qkv = problem.tensor(device, e["N"], (e["H"] + 2 * e["K"]) * e["D"])
    cos, sin = (table.to(device) for table in tables_of(e["N"], e["D"] // 2))
    weight = problem.tensor(device, e["D"]) if norm else None
    return lambda: qkv_rotary(qkv, cos, sin, e["H"], e["K"], q_weight=weight, k_weight=weight)


def _refuse(extents):
    return f"D is {extents['D']}; rotary turns pairs, so it has to be even" if extents["D"] % 2 else None


def _calls(tensor):
    qkv, table = tensor(33, 8 * 128), tensor(64, 64, dtype=torch.float32)
    weight, slots = tensor(128), tensor(33, dtype=torch.int64)
    caches = {"key_cache": tensor(4, 16, 2, 128), "value_cache": tensor(4, 16, 2, 128), "slots": slots}
    return [
        (
            "norms of q and k",
            "qkv_rotary",
            (qkv, table, table, 4, 2),
            {"q_weight": weight, "k_weight": weight},
        ),
        ("with a cache", "qkv_rotary", (qkv, table, table, 4, 2), caches),
        ("a float32 cache", "qkv_rotary", (qkv.float(), table, table, 4, 2), caches),
        ("heads that do not divide qkv", "qkv_rotary", (qkv, table, table, 4, 3), {}),
    ]


def _exercise(draw):
    qkv, tables = draw(20, 8 * 32), tables_of(20, 16)
    caches = [torch.zeros(2, 16, 2, 32, dtype=qkv.dtype) for _ in range(2)]
    results = qkv_rotary(
        qkv.detach(), *tables, 4, 2, key_cache=caches[0], value_cache=caches[1], slots=torch.arange(20)
    )
    return [*qkv_rotary(qkv, *tables, 4, 2, q_weight=draw(32, seed=1)), *results, *caches]


CHECKS = Checks(
    examples=(
        Example(
            "qkv_rotary", {"qkv": (2, 40, 512), "q_weight": (64,), "k_weight": (64,)}, _ours_joined, _theirs_joined
        ),
    ),
    parity=(
        Parity(
            "qkv_rotary",
            {
                # features, pairs
                "features": ((64, 32), (2, 1), (128, 64), (80, 40), (96, 16), (17, 3), (256, 32), (72, 36)),
                "heads": ((4, 2), (1, 1), (8, 1), (5, 5)),
                "tokens": (17, 1, 2, 33, 130),
                "batch": (1, 3),
                "dtype": tuple(DTYPES),
                "norm": (True, False),
                "interleaved": (False, True),
                "gaps": ((0, 0), (2, 2), (1, 0)),
            },
            _parity,
        ),
    ),
    calls=_calls,
    exercise=_exercise,
    benchmarks=tuple(
        Benchmark(
            name,
            example="H32K8N8192D128",
            letters="NHKD",
            shapes="H32K8N64D128,H32K8N8192D128",
            heading=heading,
            bytes=lambda problem: 4.0 * problem["N"] * (problem["H"] + 2 * problem["K"]) * problem["D"],
            call=lambda problem, device, norm=norm: _call(problem, device, norm),
            refuse=_refuse,
        )
        for name, heading, norm in (
            ("qkv_rotary", "Split of packed QKV with rotary embedding", False),
            ("qkv_norm_rotary", "Split of packed QKV with normalization and rotary embedding", True),
        )
    ),
)  # fmt: skip
