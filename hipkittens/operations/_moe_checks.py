# SPDX-License-Identifier: MIT
"""Checks of mixture-of-experts layers: examples, parity, a benchmark."""

from __future__ import annotations

import torch

from ..activation import gated_in_torch, in_torch
from ..experts import moe
from ._expert_sort_checks import drawn_experts
from ._moe_benchmarks import BENCHMARKS
from ._record import DTYPES, Checks, Example, Parity, ParityProblem


def by_tokens(ids, kind="silu", interleaved=False, weight_input=False, limit=None, held=None, gated=True):
    """moe in PyTorch, each expert's tokens at a time; held: the index in w1 and w2 for each id."""
    wanted = ids if held is None else held[ids.long()]

    def layer(x, w1, w2, weights, bias1=None, bias2=None):
        wide = (lambda value: value) if x.dtype == torch.float64 else torch.Tensor.float
        choices = x.new_zeros(*ids.shape, x.shape[1])
        for expert in range(w1.shape[0]):
            tokens, slots = torch.where(wanted == expert)
            rows = x[tokens]
            if weight_input:
                rows = (wide(rows) * weights[tokens, slots, None]).to(x.dtype)
            hidden = rows @ w1[expert].mT
            if bias1 is not None:
                hidden = hidden + bias1[expert]
            if interleaved:
                hidden = torch.cat((hidden[:, 0::2], hidden[:, 1::2]), 1)
            hidden = wide(hidden)
            hidden = gated_in_torch(hidden, kind, limit) if gated else in_torch(hidden, kind)
            y = hidden.to(x.dtype) @ w2[expert].mT
            if bias2 is not None:
                y = y + bias2[expert]
            choices = choices.index_put((tokens, slots), y)
        values = wide(choices)
        if not weight_input:
            values = values * weights[..., None]
        return values.sum(1).to(x.dtype)

    return layer


def _parity(case, generator) -> ParityProblem:
    experts, k = case["experts"]
    tokens, features, inner = case["tokens"], case["features"], case["inner"]
    dtype = DTYPES[case["dtype"]]

    def random(*shape, scale=1.0):
        return (torch.randn(shape, generator=generator) * scale).to(dtype)

    ids = drawn_experts(tokens, experts, k, "cpu", generator)
    if case["one_expert"]:
        ids = torch.full_like(ids, experts - 1)
    rows = 2 * inner if case["gated"] else inner
    inputs = {
        "x": random(tokens, features),
        "w1": random(experts, rows, features, scale=features**-0.5),
        "w2": random(experts, features, inner, scale=inner**-0.5),
        "weights": torch.rand(tokens, k, generator=generator).to(dtype),
    }
    if case["bias"]:
        inputs |= {"bias1": random(experts, rows), "bias2": random(experts, features)}
    options = {name: case[name] for name in ("interleaved", "weight_input", "gated")}

    def ours(x, w1, w2, weights, bias1=None, bias2=None):
        return moe(x, w1, w2, weights, ids, activation=case["kind"], bias1=bias1, bias2=bias2, **options)

    return ParityProblem(
        inputs=inputs,
        ours=ours,
        theirs=by_tokens(ids, case["kind"], **options),
        baseline="PyTorch, one expert at a time, rounded as often; sums over chosen experts in float32",
    )


def _example(function):
    ids = drawn_experts(40, 8, 2, "cpu")

    def run(x, w1, w2, weights):
        return function(x, w1 / 8, w2 / 8, weights, ids.to(x.device))

    return run


CHECKS = Checks(
    examples=(
        Example(
            "moe",
            {"x": (40, 64), "w1": (8, 80, 64), "w2": (8, 64, 40), "weights": (40, 2)},
            _example(lambda x, w1, w2, weights, ids: moe(x, w1, w2, weights, ids)),
            _example(lambda x, w1, w2, weights, ids: by_tokens(ids)(x, w1, w2, weights)),
        ),
    ),
    parity=(
        Parity(
            "moe",
            {
                "dtype": ("bf16", "f16"),
                "kind": ("silu", "gelu_tanh", "swiglu"),
                "tokens": (64, 33, 257),
                "experts": ((8, 2), (16, 1), (32, 8)),
                "features": (64, 72, 130),
                "inner": (40, 32, 17),
                "interleaved": (False, True),
                "weight_input": (False, True),
                "bias": (False, True),
                "one_expert": (False, True),
                "gated": (True,),  # without a gate there are neither swiglu nor interleaved rows
            },
            _parity,
            extra=tuple(
                {"gated": False, "dtype": dtype, "kind": kind, "bias": bias, "weight_input": not bias}
                for dtype, kind, bias in (("bf16", "silu", True), ("f16", "gelu_tanh", False))
            ),
        ),
    ),
    calls=lambda tensor: [
        (
            "gpt-oss",
            "moe",
            (
                tensor(4, 64),
                tensor(8, 96, 64),
                tensor(8, 64, 48),
                tensor(4, 2),
                tensor(4, 2, dtype=torch.int32),
            ),
            {
                "activation": "swiglu",
                "interleaved": True,
                "bias1": tensor(8, 96),
                "bias2": tensor(8, 64),
                "swiglu_limit": 7.0,
            },
        ),
        (
            "not gated",
            "moe",
            (
                tensor(4, 64),
                tensor(8, 48, 64),
                tensor(8, 64, 48),
                tensor(4, 2),
                tensor(4, 2, dtype=torch.int32),
            ),
            {"gated": False},
        ),
        (
            "fp8 weights, rowwise scales",
            "moe",
            (
                tensor(4, 64),
                tensor(8, 96, 64, dtype=torch.float8_e4m3fnuz),
                tensor(8, 64, 48, dtype=torch.float8_e4m3fnuz),
                tensor(4, 2),
                tensor(4, 2, dtype=torch.int32),
            ),
            {
                "scale_w1": tensor(8, 96, 1, dtype=torch.float32),
                "scale_w2": tensor(8, 64, 1, dtype=torch.float32),
            },
        ),
        (
            "int8 weights, rowwise scales",
            "moe",
            (
                tensor(4, 64),
                tensor(8, 96, 64, dtype=torch.int8),
                tensor(8, 64, 48, dtype=torch.int8),
                tensor(4, 2),
                tensor(4, 2, dtype=torch.int32),
            ),
            {
                "scale_w1": tensor(8, 96, 1, dtype=torch.float32),
                "scale_w2": tensor(8, 64, 1, dtype=torch.float32),
            },
        ),
        (
            "weights of a different dtype",
            "moe",
            (
                tensor(4, 64),
                tensor(8, 96, 64, dtype=torch.float16),
                tensor(8, 64, 48),
                tensor(4, 2),
                tensor(4, 2, dtype=torch.int32),
            ),
            {},
        ),
    ],
    benchmarks=BENCHMARKS,
)
