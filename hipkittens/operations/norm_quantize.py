# SPDX-License-Identifier: MIT
"""The record of norm_quantize; the function is in hipkittens/norm_quantization.py."""

from __future__ import annotations

from functools import partial

import torch

from ..norm_quantization import norm_quantize
from ..quantization import QuantSpec, dequantize
from ._record import Benchmark, Checks, Example, Function, Operation, Operator, no_derivative
from ._sharding import replicated
from .quantize import codes_and_scales


def _fake(
    x,
    residual,
    weight,
    bias,
    x_bias,
    gate,
    smooth,
    scale,
    second,
    second_weight,
    centred,
    eps,
    gemma,
    round_before_weight,
    round_residual,
    second_eps,
    need_norm,
    *options,
):
    codes, scales = codes_and_scales(x, x.shape[-1], scale, None, *options)
    has_sum = residual is not None or x_bias is not None
    return (
        codes,
        scales,
        x.new_empty(x.shape if need_norm else (0,)),
        x.new_empty(x.shape if has_sum else (0,)),
        x.new_empty((0,) if second is None else second.shape),
    )


_no_backward = no_derivative("norm_quantize", "rms_norm and a straight-through estimator")


def _sharding(x, *rest):
    return [replicated((x, *rest), 5)]


def _whole_numbers(x: torch.Tensor) -> torch.Tensor:
    """For rows whose root mean square is the scale: the int8 codes of plus and minus 1 are plus and minus 127."""
    signs = torch.where(x < 0, -1.0, 1.0).to(x.dtype)
    spec = QuantSpec("int8")
    return dequantize(*norm_quantize(signs, None, 0.0, spec)[:2], spec, x.dtype)


def _call(problem, device, spec):
    rows, columns = problem["rows"], problem["columns"]
    x, weight = problem.tensor(device, rows, columns), problem.tensor(device, columns)
    return lambda: norm_quantize(x, weight, 1e-6, spec)


def _benchmark(name: str, heading: str, spec: QuantSpec, bytes_of_element: float) -> Benchmark:
    return Benchmark(
        name,
        example="16384x8192",
        extents=("rows", "columns"),
        shapes="16384x2048,16384x8192",
        heading=heading,
        bytes=lambda problem: bytes_of_element * problem["rows"] * problem["columns"],
        call=partial(_call, spec=spec),
    )


def _checks() -> Checks:
    return Checks(
        examples=(
            Example(
                "norm_quantize int8, rows",
                {"x": (64, 1000)},
                _whole_numbers,
                lambda x: torch.where(x < 0, -1.0, 1.0).to(x.dtype),
                gradients=False,
                integers=True,
            ),
        ),
        calls=lambda tensor: [
            (
                "residual, groups of 128, a second input",
                "norm_quantize",
                (tensor(4, 1536), tensor(1536), 1e-6, QuantSpec("fp8", 128)),
                {"residual": tensor(4, 1536), "second": tensor(4, 512), "second_weight": tensor(512)},
            ),
            (
                "MXFP4, gate, norm returned",
                "norm_quantize",
                (tensor(4, 96), tensor(96), 1e-6, QuantSpec("mxfp4", layout="shuffled")),
                {"gate": tensor(4, 96), "return_norm": True},
            ),
        ],
        benchmarks=(
            _benchmark(
                "norm_quantize", "RMS norm with quantization to fp8, rowwise scales", QuantSpec("fp8"), 3
            ),
            _benchmark(
                "norm_quantize_groups",
                "RMS norm with quantization to fp8, groups of 128",
                QuantSpec("fp8", 128),
                3 + 4 / 128,
            ),
            _benchmark(
                "norm_quantize_mxfp4", "RMS norm with quantization to MXFP4", QuantSpec("mxfp4"), 2.5 + 1 / 32
            ),
        ),
        exercise=lambda draw: [
            norm_quantize(draw(20, 64).detach(), draw(64, seed=3).detach(), 1e-6, QuantSpec("int8"))[1]
        ],
    )


OPERATION = Operation(
    name="norm_quantize",
    folder="norm",
    functions=(
        Function(
            norm_quantize,
            lambda tensor, dtype: (
                tensor(32, 128, dtype=dtype),
                tensor(128, dtype=dtype),
                1e-6,
                QuantSpec("fp8"),
            ),
        ),
    ),
    operators=(Operator("norm_quantize", _fake, _no_backward, sharding=_sharding, first_option=10),),
    checks=_checks,
)
