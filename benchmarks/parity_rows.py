# SPDX-License-Identifier: MIT
"""The cases of layer_norm, rms_norm, rotary and rotary_qk: outputs and every gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from parity_operation import DTYPES, Operation, Result, dense_leaf, leaf, with_gaps

import hipkittens

# Single elements, primes, multiples of a lane's 8 elements and of every variant's capacity, and one off them.
LENGTHS = (
    64, 1, 2, 3, 8, 17, 255, 256, 257, 512, 513, 768, 1000, 2048, 2049, 4096, 5003, 8192, 8200, 33000, 65536,
)  # fmt: skip
NORM_DTYPES = ("bf16", "f16", "f32")
EPS = 1e-5


def _lay_out(values: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values, in rows with NaN between them, or with the rows of three dimensions in another order."""
    if layout == "gap":
        return with_gaps(values, 1, 2)
    if layout == "transposed":
        both = torch.stack([values, values.flip(0)], dim=1)  # rows, 2, columns
        return both.transpose(0, 1)
    if layout == "strided" and values.shape[-1] > 1:
        return values.mT.contiguous().mT
    return values


def _run_norm(operation: str, target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    dtype, columns, rows = DTYPES[case["dtype"]], case["columns"], case["rows"]

    def draw(*shape, dtype=dtype, mean=0.0):
        return (torch.randn(shape, generator=generator) + mean).to(dtype)

    inputs = {"x": _lay_out(draw(rows, columns, mean=case["mean"]) * case["size"], case["layout"])}
    if case["residual"]:
        inputs["residual"] = _lay_out(draw(rows, columns) * case["size"], case["layout"])
    if case["parameters"]:
        inputs["weight"] = draw(columns, dtype=DTYPES[case["parameters"]])
        if case["bias"] and operation == "layer_norm":
            inputs["bias"] = draw(columns, dtype=DTYPES[case["parameters"]])
    dy = _lay_out(draw(rows, columns), case["layout"])
    dz = _lay_out(draw(rows, columns), case["layout"]) if case["residual_gradient"] else None

    def ours(x, residual=None, weight=None, bias=None):
        arguments = (weight, EPS) if operation == "rms_norm" else (weight, bias, EPS)
        return getattr(hipkittens, operation)(x, *arguments, residual=residual, return_residual=True)

    def add(x, residual):
        """Documented: z = x + residual is rounded to x's dtype before it is normalised. So it is for float64."""
        if residual is None:
            return x
        z = x + residual
        return z + (z.to(dtype).to(z.dtype) - z).detach()

    def fused(x, residual=None, weight=None, bias=None):
        z = add(x, residual)
        if operation == "rms_norm":
            return F.rms_norm(z, (columns,), weight, EPS), z
        return F.layer_norm(z, (columns,), weight, bias, EPS), z

    def in_steps(x, residual=None, weight=None, bias=None):
        """As models write it: normalised in float32, scaled in the model's dtype."""
        z = add(x, residual)
        wide = z if z.dtype == torch.float64 else z.float()
        if operation == "layer_norm":
            wide = wide - wide.mean(-1, keepdim=True)
        y = (wide * (wide.square().mean(-1, keepdim=True) + EPS).rsqrt()).to(z.dtype)
        y = y if weight is None else y * weight
        return (y if bias is None else y + bias), z

    def results(function, make_leaf, convert):
        leaves = {name: make_leaf(convert(value)) for name, value in inputs.items()}
        y, z = function(**leaves)
        outputs, gradients = [y], [convert(dy).to(y.dtype)]
        if dz is not None:
            outputs, gradients = [y, z], [*gradients, convert(dz).to(z.dtype)]
        found = torch.autograd.grad(outputs, list(leaves.values()), gradients)
        values = {
            "y": y,
            "residual": z,
            **{"d" + name: value for name, value in zip(leaves, found, strict=True)},
        }
        return {name: value.detach() for name, value in values.items()}

    with hipkittens.simulate(target, checks=True, threads=1):
        mine = results(ours, leaf, lambda value: value)
    # PyTorch gets parameters of x's dtype, and rounds their gradients to the dtype they are wanted in.
    others = [results(function, dense_leaf, lambda value: value.to(dtype)) for function in (fused, in_steps)]
    exact = results(fused, dense_leaf, lambda value: value.double())
    magnitudes = _norm_magnitudes(operation, inputs, dy, dz)
    return [
        Result(name, value, [other[name].to(value.dtype) for other in others], exact[name], magnitudes[name])
        for name, value in mine.items()
    ]


def _norm_magnitudes(operation, inputs, dy, dz) -> dict[str, float]:
    """The largest sums of absolute values that each result is made of: what float32 arithmetic rounds."""
    x, dy = inputs["x"].double(), dy.double()
    z = x + inputs["residual"].double() if "residual" in inputs else x
    mean = z.mean(-1, keepdim=True) if operation == "layer_norm" else torch.zeros_like(z[..., :1])
    rstd = ((z - mean).square().mean(-1, keepdim=True) + EPS).rsqrt()
    # A mean, too, is rounded to float32.
    xhat = ((z - mean).abs() + mean.abs()) * rstd
    weight = inputs["weight"].double().abs() if "weight" in inputs else torch.ones(())
    bias = inputs["bias"].double().abs() if "bias" in inputs else torch.zeros(())
    g = dy.abs() * weight
    dx = rstd * (g + g.mean(-1, keepdim=True) + xhat * (g * xhat).mean(-1, keepdim=True))
    if dz is not None:
        dx = dx + dz.double().abs()
    columns = z.shape[-1]
    return {
        "y": (xhat * weight + bias).max().item(),
        "residual": z.abs().max().item(),
        "dx": dx.max().item(),
        "dresidual": dx.max().item(),
        "dweight": (dy.abs() * xhat).reshape(-1, columns).sum(0).max().item(),
        "dbias": dy.abs().reshape(-1, columns).sum(0).max().item(),
    }


def _norm(operation: str) -> Operation:
    def run(target, case, seed):
        return _run_norm(operation, target, case, seed)

    factors = {
        "columns": LENGTHS,
        "rows": (5, 1, 2, 9),
        "dtype": NORM_DTYPES,
        "parameters": ("", *NORM_DTYPES),
        "bias": (False, True),
        "residual": (False, True),
        "residual_gradient": (False, True),
        "mean": (0.0, 20.0),
        "size": (1.0, 2.0**-9, 2.0**6),
        "layout": ("dense", "gap", "transposed", "strided"),
    }
    draws = {
        "columns": lambda choose: int(2 ** choose.uniform(0, 14)),
        "rows": lambda choose: choose.randint(1, 40),
        "mean": lambda choose: choose.choice((0.0, 1.0, -30.0)),
    }
    # More rows than there are workers for them in backward.
    extra = (
        {"columns": 40, "rows": 1500, "parameters": "bf16", "bias": True},
        {"columns": 520, "rows": 300, "parameters": "f32", "bias": True, "dtype": "f16"},
    )
    return Operation(operation, factors, run, draws, extra)


def turn(x, cos, sin, interleaved, rows, head_axis):
    """The rotation in the widest of the dtypes it is given, as real products."""
    cos, sin = (table[rows].unsqueeze(head_axis) for table in (cos, sin))
    pairs = cos.shape[-1]
    turned, rest = x[..., : 2 * pairs], x[..., 2 * pairs :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    parts = (a * cos - b * sin, a * sin + b * cos)
    joined = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat((joined.to(x.dtype), rest), -1)


def turn_complex(x, cos, sin, interleaved, rows, head_axis):
    """The same as products of complex numbers."""
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    pairs = cos.shape[-1]
    factor = torch.complex(cos.to(wide), sin.to(wide))[rows].unsqueeze(head_axis)
    turned, rest = x[..., : 2 * pairs].to(wide), x[..., 2 * pairs :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    z = torch.complex(a, b) * factor
    joined = torch.stack((z.real, z.imag), -1 if interleaved else -2).flatten(-2)
    return torch.cat((joined.to(x.dtype), rest), -1)


def _run_rotary(operation: str, target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    dtype, table, (features, pairs) = DTYPES[case["dtype"]], DTYPES[case["table"]], case["features"]
    batch, tokens, heads_first = case["batch"], case["tokens"], case["layout"] == "bhnd"
    names = ("q", "k") if operation == "rotary_qk" else ("x",)

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
    head_axis = -3 if heads_first else -2

    def ours(*values):
        options = {"interleaved": case["interleaved"], "positions": positions, "offset": offset}
        found = getattr(hipkittens, operation)(*values, cos, sin, layout=case["layout"], **options)
        return [found] if len(values) == 1 else list(found)

    def theirs(function):
        def run(*values):
            tables = [t.to(torch.promote_types(values[0].dtype, torch.float32)) for t in (cos, sin)]
            return [function(value, *tables, case["interleaved"], rows, head_axis) for value in values]

        return run

    def results(function, make_leaf, dtype):
        leaves = [make_leaf(value, dtype) for value in inputs.values()]
        outputs = function(*leaves)
        found = torch.autograd.grad(outputs, leaves, [value.to(dtype or value.dtype) for value in gradients])
        return [value.detach() for value in (*outputs, *found)]

    with hipkittens.simulate(target, checks=True, threads=1):
        mine = results(ours, leaf, None)
    others = [results(theirs(function), dense_leaf, None) for function in (turn, turn_complex)]
    exact = results(theirs(turn_complex), dense_leaf, torch.float64)
    largest = 2 * max(value.double().abs().max().item() for value in (*inputs.values(), *gradients))
    return [
        Result(name, value, [other[i] for other in others], exact[i], largest)
        for i, (name, value) in enumerate(zip((*names, *("d" + name for name in names)), mine, strict=True))
    ]


def _rotary(operation: str) -> Operation:
    def run(target, case, seed):
        return _run_rotary(operation, target, case, seed)

    factors = {
        # features, pairs
        "features": (
            (64, 32),
            (2, 1),
            (128, 64),
            (80, 40),
            (96, 16),
            (17, 3),
            (256, 128),
            (72, 36),
            (40, 8),
            (64, 16),
        ),
        "heads": ((4, 2), (1, 1), (8, 1), (3, 3), (5, 1)),
        "tokens": (17, 1, 2, 33, 257),
        "batch": (1, 2, 3),
        "dtype": NORM_DTYPES,
        "table": NORM_DTYPES,
        "layout": ("bnhd", "bhnd"),
        "storage": ("dense", "swapped", "gap"),
        "interleaved": (False, True),
        "positions": ("", "offset", "tokens", "batch", "int32"),
    }
    draws = {
        "tokens": lambda choose: choose.randint(1, 200),
        "features": lambda choose: (2 * (pairs := choose.randint(1, 64)) + choose.randint(0, 32), pairs),
        "heads": lambda choose: (choose.randint(1, 9), choose.randint(1, 4)),
    }
    return Operation(operation, factors, run, draws)


LAYER_NORM, RMS_NORM = _norm("layer_norm"), _norm("rms_norm")
ROTARY, ROTARY_QK = _rotary("rotary"), _rotary("rotary_qk")
