# SPDX-License-Identifier: MIT
"""Parity of rotary embeddings with PyTorch's: references, and the cases of benchmarks/parity.py."""

from __future__ import annotations

import torch

from ..rotary import rotary, rotary_qk
from ._record import DTYPES, Parity, ParityProblem
from ._tensors import with_gaps


def turn(x, cos, sin, interleaved, rows, head_axis):
    """The rotation in the widest of its arguments' dtypes, as real products."""
    cos, sin = (table[rows].unsqueeze(head_axis) for table in (cos, sin))
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = (a * cos - b * sin, a * sin + b * cos)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((joined.to(x.dtype), rest), -1)


def _parity_problem(names: tuple[str, ...]):
    function = rotary if len(names) == 1 else rotary_qk

    def problem(case, generator) -> ParityProblem:
        dtype, table, (features, pairs) = DTYPES[case["dtype"]], DTYPES[case["table"]], case["features"]
        batch, tokens, heads_first = case["batch"], case["tokens"], case["layout"] == "bhnd"

        def draw(count):
            shape = (batch, tokens, count, features)
            if case["storage"] == "swapped":
                shape = (batch, count, tokens, features)
            values = torch.randn(shape, generator=generator).to(dtype)
            values = values.transpose(1, 2) if case["storage"] == "swapped" else values
            values = with_gaps(values, 1, 3) if case["storage"] == "gap" else values
            return values.transpose(1, 2) if heads_first else values

        inputs = {name: draw(count) for name, count in zip(names, case["heads"], strict=False)}
        gradients = [draw(count) for _, count in zip(names, case["heads"], strict=False)]
        angles = 100 * torch.rand(tokens + 6, pairs, generator=generator, dtype=torch.float64)
        cos, sin = angles.cos().to(table), angles.sin().to(table)
        positions, offset = None, 0
        if case["positions"] == "offset":
            offset = 3
        elif case["positions"]:
            shape = (tokens,) if case["positions"] == "tokens" else (batch, tokens)
            integer = torch.int32 if case["positions"] == "int32" else torch.int64
            positions = torch.randint(tokens + 6, shape, generator=generator).to(integer)
        rows = torch.arange(tokens) + offset if positions is None else positions.long()

        def ours(*values):
            options = {"interleaved": case["interleaved"], "positions": positions, "offset": offset}
            return function(*values, cos, sin, layout=case["layout"], **options)

        def theirs(*values):
            wide = torch.promote_types(values[0].dtype, torch.float32)
            options = (cos.to(wide), sin.to(wide), case["interleaved"], rows, -3 if heads_first else -2)
            return [turn(value, *options) for value in values]

        largest = 2 * max(value.double().abs().max().item() for value in (*inputs.values(), *gradients))
        baseline = "PyTorch's real products in float32, rounded once"
        return ParityProblem(inputs, ours, theirs, baseline, names, gradients, magnitude=largest)

    return problem


def parity_of(names: tuple[str, ...]) -> Parity:
    factors = {
        # features, pairs
        "features": (
            (64, 32), (2, 1), (128, 64), (80, 40), (96, 16), (17, 3), (256, 128), (72, 36), (40, 8), (64, 16),
        ),
        "heads": ((4, 2), (1, 1), (8, 1), (3, 3), (5, 1)),
        "tokens": (17, 1, 2, 33, 257),
        "batch": (1, 2, 3),
        "dtype": tuple(DTYPES),
        "table": tuple(DTYPES),
        "layout": ("bnhd", "bhnd"),
        "storage": ("dense", "swapped", "gap"),
        "interleaved": (False, True),
        "positions": ("", "offset", "tokens", "batch", "int32"),
    }  # fmt: skip
    draws = {
        "tokens": lambda choose: choose.randint(1, 200),
        "features": lambda choose: (2 * (pairs := choose.randint(1, 64)) + choose.randint(0, 32), pairs),
        "heads": lambda choose: (choose.randint(1, 9), choose.randint(1, 4)),
    }
    return Parity("rotary" if len(names) == 1 else "rotary_qk", factors, _parity_problem(names), draws)
