# SPDX-License-Identifier: MIT
"""The cases of layer_norm and rms_norm: outputs and every gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from parity_operation import DTYPES, Operation, Result, dense_leaf, leaf, simulated, with_gaps

import hipkittens

# Single elements, primes, multiples of a lane's 8 elements and of every variant's capacity, and sizes that differ from these by one.
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
        """As documented, z = x + residual is rounded to x's dtype before it is normalized; the float64 reference does the same."""
        if residual is None:
            return x
        z = x + residual
        return z + (z.to(dtype).to(z.dtype) - z).detach()

    def own(x, residual=None, weight=None, bias=None):
        z = add(x, residual)
        if operation == "rms_norm":
            return F.rms_norm(z, (columns,), weight, EPS), z
        return F.layer_norm(z, (columns,), weight, bias, EPS), z

    def in_float32(x, residual=None, weight=None, bias=None):
        """For weights whose dtype PyTorch does not accept together with x's dtype."""
        z = add(x, residual)
        wide, weight, bias = (None if value is None else value.float() for value in (z, weight, bias))
        if operation == "rms_norm":
            return F.rms_norm(wide, (columns,), weight, EPS).to(dtype), z
        return F.layer_norm(wide, (columns,), weight, bias, EPS).to(dtype), z

    def results(function, make_leaf, convert):
        leaves = {name: make_leaf(value, convert) for name, value in inputs.items()}
        y, z = function(**leaves)
        outputs, gradients = [y], [dy.to(y.dtype)]
        if dz is not None:
            outputs, gradients = [y, z], [*gradients, dz.to(z.dtype)]
        found = torch.autograd.grad(outputs, list(leaves.values()), gradients)
        values = {
            "y": y,
            "residual": z,
            **{"d" + name: value for name, value in zip(leaves, found, strict=True)},
        }
        return {name: value.detach() for name, value in values.items()}

    with simulated(target):
        mine = results(ours, leaf, None)
    # Neither side rounds parameters to another dtype.
    taken = not case["parameters"] or DTYPES[case["parameters"]] == dtype
    baseline = results(own if taken else in_float32, dense_leaf, None)
    exact = results(own, dense_leaf, torch.float64)
    magnitudes = _norm_magnitudes(operation, inputs, dy, dz)
    name_of_baseline = f"PyTorch's own {operation}" + ("" if taken else " in float32, rounded once")
    return [
        Result(name, value, baseline[name].to(value.dtype), exact[name], magnitudes[name], name_of_baseline)
        for name, value in mine.items()
    ]


def _norm_magnitudes(operation, inputs, dy, dz) -> dict[str, float]:
    """The largest sums of absolute values that each result consists of: the quantities that float32 arithmetic rounds."""
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


LAYER_NORM, RMS_NORM = _norm("layer_norm"), _norm("rms_norm")
