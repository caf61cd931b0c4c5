# SPDX-License-Identifier: MIT
"""Checks of float8_linear: its recipes by PyTorch operations, with separate casts."""

from __future__ import annotations

from functools import partial

import torch

from ..float8 import float8_linear
from ..quantization import dtype_of
from ._record import DTYPES, Benchmark, Checks, Example, Parity, ParityProblem

RECIPES = ("rowwise", "tensorwise", "rowwise_with_gw_hp")


def dequantised(values: torch.Tensor, axis: int | None, format: str, power: bool) -> torch.Tensor:
    """Q(values) in float64: a scale for each slice along axis, or one for all; all its steps are computed as in float32."""
    dtype = dtype_of(format, values.device)
    largest = torch.finfo(dtype).max
    values = values.float()
    magnitude = values.abs().amax() if axis is None else values.abs().amax(axis, keepdim=True)
    if power:
        fraction, exponent = torch.frexp(magnitude / largest)
        scale = torch.ldexp(torch.ones_like(magnitude), exponent - (fraction == 0.5).int())
    else:
        scale = magnitude / largest
    scale = torch.where(magnitude == 0, 1.0, scale)
    codes = (values * (1 / scale)).clamp(-largest, largest).to(dtype)
    return codes.double() * scale.double()


class _Emulated(torch.autograd.Function):
    """Sums in float32, or in float64 of such inputs; one rounding to the inputs' dtype."""

    @staticmethod
    def forward(ctx, x, w, bias, recipe):
        ctx.save_for_backward(x, w)
        ctx.recipe, ctx.bias_dtype = recipe, None if bias is None else bias.dtype
        axis = None if recipe == "tensorwise" else 1
        cast = partial(dequantised, axis=axis, format="fp8", power=recipe != "tensorwise")
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        y = cast(x).to(wide) @ cast(w).to(wide).t()
        return (y if bias is None else y + bias.to(wide)).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        if ctx.recipe == "tensorwise":
            of_dy = dequantised(dy, None, "bf8", False).to(wide)
            dx = of_dy @ dequantised(w, None, "fp8", False).to(wide)
            dw = of_dy.t() @ dequantised(x, None, "fp8", False).to(wide)
        else:
            hp = ctx.recipe == "rowwise_with_gw_hp"
            of_w = dequantised(w, None if hp else 0, "fp8", True).to(wide)
            dx = dequantised(dy, 1, "fp8", True).to(wide) @ of_w
            if hp:
                dw = dy.t().to(wide) @ x.to(wide)
            else:
                of_dy, of_x = (dequantised(value, 0, "fp8", True).to(wide) for value in (dy, x))
                dw = of_dy.t() @ of_x
        db = None if ctx.bias_dtype is None else dy.sum(0, dtype=wide).to(ctx.bias_dtype)
        return dx.to(x.dtype), dw.to(w.dtype), db, None


def emulated(x, w, bias=None, recipe="rowwise"):
    """float8_linear by PyTorch operations, for x (M, K)."""
    return _Emulated.apply(x, w, bias, recipe)


def _parity(case, generator) -> ParityProblem:
    dtype = DTYPES[case["dtype"]]
    m, k, n = case["rows"], case["features"], case["outputs"]

    def drawn(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    inputs = {"x": drawn(m, k), "w": drawn(n, k)}
    if case["bias"]:
        inputs["bias"] = drawn(n)
    given = partial(dict, recipe=case["recipe"])
    return ParityProblem(
        inputs=inputs,
        ours=lambda *tensors: float8_linear(*tensors, **given()),
        theirs=lambda *tensors: emulated(*tensors, **given()),
        baseline="the recipe in PyTorch's operations: the same quantized values, summed in float32, rounded once",
        magnitude=4.0 * max(m, k, n) ** 0.5,
    )


def _call(problem, device):
    x = problem.tensor(device, problem["M"], problem["K"])
    w = problem.tensor(device, problem["N"], problem["K"])
    if not problem.training:
        return lambda: float8_linear(x, w)
    x, w = (value.detach().requires_grad_() for value in (x, w))

    def step():
        y = float8_linear(x, w)
        return torch.autograd.grad(y, (x, w), torch.ones_like(y))

    return step


def _products(problem) -> int:
    return 3 if problem.training else 1


CHECKS = Checks(
    examples=tuple(
        Example(
            f"float8_linear, {recipe}",
            {"x": (96, 160), "w": (80, 160), "bias": (80,)},
            partial(float8_linear, recipe=recipe),
            partial(emulated, recipe=recipe),
        )
        # They have one reference for all targets, whose codes have the same values if scales are powers of two.
        for recipe in RECIPES
        if recipe != "tensorwise"
    ),
    parity=(
        Parity(
            "float8_linear",
            {
                "dtype": ("bf16", "f16"),
                "recipe": RECIPES,
                "rows": (64, 1, 17, 257),
                "features": (160, 16, 2, 255),
                "outputs": (96, 1, 17, 130),
                "bias": (True, False),
            },
            _parity,
        ),
    ),
    calls=lambda tensor: (
        [(recipe, "float8_linear", (tensor(4, 96), tensor(32, 96)), {"recipe": recipe}) for recipe in RECIPES]
        + [
            (
                "float32, rowwise_with_gw_hp",
                "float8_linear",
                tuple(tensor(size, 96, dtype=torch.float32) for size in (4, 32)),
                {"recipe": "rowwise_with_gw_hp"},
            )
        ]
    ),
    benchmarks=(
        Benchmark(
            "float8_linear",
            example="8192x8192x8192",
            extents=("M", "N", "K"),
            shapes="8192x8192x8192,8192x8192x8192:training",
            heading="Linear layer in fp8, including casts",
            bytes=lambda problem: (
                2.0
                * _products(problem)
                * (problem["M"] * problem["K"] + problem["N"] * problem["K"] + problem["M"] * problem["N"])
            ),
            flops=lambda problem: 2.0 * _products(problem) * problem["M"] * problem["N"] * problem["K"],
            bits=8,
            call=_call,
            training=True,
        ),
    ),
)
