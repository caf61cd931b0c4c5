# SPDX-License-Identifier: MIT
"""The record of gated_activation_quantize, whose kernels are quantize's; the function is in hipkittens/quantization.py."""

from __future__ import annotations

import torch

from ..quantization import QuantSpec, dequantize, gated_activation_quantize
from ._record import Benchmark, Checks, Example, Function, Operation, Operator, no_derivative
from ._sharding import replicated
from .quantize import codes_and_scales


def _fake(x, other, bias, scale, ends, activation, alpha, limit, *options):
    return codes_and_scales(x, x.shape[-1] // (2 if other is None else 1), scale, ends, *options)


_no_backward = no_derivative("gated_activation_quantize", "gated_activation and a straight-through estimator")


def _sharding(x, *rest):
    return [replicated((x, *rest), 2)]


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """The int8 codes of relu of 1 times rows whose largest magnitude is 127 are the rows themselves."""
    x = torch.cat((torch.ones_like(x), torch.ones_like(x[:, :1]), x, torch.full_like(x[:, :1], 127)), 1)
    spec = QuantSpec("int8")
    return dequantize(*gated_activation_quantize(x, spec, "relu"), spec, x.dtype)


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    return lambda: gated_activation_quantize(x, QuantSpec("fp8", 128))


def _checks() -> Checks:
    return Checks(
        examples=(
            Example(
                "gated_activation_quantize int8, rows",
                {"x": (64, 500)},
                _whole_numbers,
                lambda x: torch.cat((x, torch.full_like(x[:, :1], 127)), 1),
                gradients=False,
                integers=True,
            ),
        ),
        calls=lambda tensor: [
            ("fp8, rowwise scales", "gated_activation_quantize", (tensor(4, 96), QuantSpec("fp8")), {}),
            (
                "MXFP4, gpt-oss",
                "gated_activation_quantize",
                (tensor(4, 96), QuantSpec("mxfp4", layout="shuffled"), "swiglu"),
                {},
            ),
            (
                "bias",
                "gated_activation_quantize",
                (tensor(4, 96), QuantSpec("fp8", 32), "swiglu"),
                {"bias": tensor(96)},
            ),
            (
                "tensorwise, without the scale",
                "gated_activation_quantize",
                (tensor(4, 96), QuantSpec("fp8", "tensor")),
                {},
            ),
        ],
        exercise=lambda draw: [gated_activation_quantize(draw(20, 64).detach(), QuantSpec("int8"))[1]],
        benchmarks=(
            Benchmark(
                "gated_activation_quantize",
                example="16384x8192",
                extents=("rows", "columns"),
                shapes="16384x4096,16384x16384",
                heading="Gated activation with quantization to fp8, groups of 128",
                bytes=lambda problem: (2.0 + (1 + 4 / 128) / 2) * problem["rows"] * problem["columns"],
                call=_call,
            ),
        ),
    )


OPERATION = Operation(
    name="gated_activation_quantize",
    folder="quantize",
    functions=(
        Function(
            gated_activation_quantize,
            lambda tensor, dtype: (tensor(32, 128, dtype=dtype), QuantSpec("fp8")),
        ),
    ),
    operators=(
        Operator("gated_activation_quantize", _fake, _no_backward, sharding=_sharding, first_option=5),
    ),
    checks=_checks,
)
