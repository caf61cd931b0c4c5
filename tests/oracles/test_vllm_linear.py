# SPDX-License-Identifier: MIT
"""Linear layers of vLLM 0.33.0 with the kernels that our plugin adds, from its own configurations of FP8, compressed-tensors and Quark
checkpoints, with every checker on.

Relative to float64 with the same quantized operands, errors are at most twice those of float32, rounded to the layer's dtype.
"""

import pytest
import torch

from tests.oracles import vllm_linear, vllm_packages
from tests.oracles.vllm_linear import Case

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(vllm_packages.missing()), reason=vllm_packages.missing()),
]
FP8, BLOCKS, INT8 = (
    "HipKittensFp8LinearKernel",
    "HipKittensFp8BlockLinearKernel",
    "HipKittensInt8LinearKernel",
)
CASES = {
    "blocks": (BLOCKS, {"method": "fp8", "weights": "blocks", "rows": "group", "widths": (256, 128)}),
    "blocks, a token": (BLOCKS, {"method": "fp8", "weights": "blocks", "rows": "group", "widths": (128,), "tokens": 1}),
    "channels": (FP8, {"method": "compressed-tensors", "weights": "channel", "rows": "token"}),
    "channels, many": (FP8, {"method": "compressed-tensors", "weights": "channel", "rows": "token", "tokens": 257, "columns": 544, "widths": (80, 48, 48), "bias": True}),
    "tensors, fixed": (FP8, {"method": "compressed-tensors", "weights": "tensor", "rows": "fixed", "dtype": torch.float16}),
    "Quark's channels": (FP8, {"method": "quark", "weights": "channel", "rows": "token", "tokens": 1, "bias": True}),
    "Quark's tensors": (FP8, {"method": "quark", "weights": "tensor", "rows": "fixed"}),
    "int8 channels": (INT8, {"method": "compressed-tensors", "weights": "int8 channel", "rows": "token", "bias": True}),
    "int8 tensors, fixed": (INT8, {"method": "compressed-tensors", "weights": "int8 tensor", "rows": "fixed", "dtype": torch.float16}),
    "Quark's int8": (INT8, {"method": "quark", "weights": "int8 channel", "rows": "token", "tokens": 1}),
    "mxfp4": ("HipKittensMxfp4LinearKernel", {"method": "quark", "weights": "mxfp4", "rows": None, "bias": True}),
    "mxfp4, rows of 40": ("HipKittensMxfp4LinearKernel", {"method": "quark", "weights": "mxfp4", "rows": None, "widths": (40,), "columns": 96}),
    "mxfp4 rows": ("HipKittensMxfp4RowsLinearKernel", {"method": "quark", "weights": "mxfp4", "rows": "mxfp4", "bias": True}),
    "mxfp4 rows, a token": ("HipKittensMxfp4RowsLinearKernel", {"method": "quark", "weights": "mxfp4", "rows": "mxfp4", "tokens": 1, "dtype": torch.float16}),
    "mxfp8": ("HipKittensMxfp8LinearKernel", {"method": "compressed-tensors", "weights": "mxfp8", "rows": "mxfp8", "bias": True}),
}  # fmt: skip
ONLY_GFX950 = {"mxfp4 rows", "mxfp4 rows, a token", "mxfp8"}
# Of the result's norm, for activations of 4 and of 8 bits.
COARSE, FINE = 0.15, 0.04


@pytest.fixture(scope="module")
def process():
    with vllm_packages.process() as found:
        yield found


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", CASES)
def test_linear(process, target, name):
    if target == "gfx942" and name in ONLY_GFX950:
        pytest.skip("the matrix cores of gfx942 take no scales of 32")
    kernel, given = CASES[name]
    case = Case(target, **given)
    found = process.submit(vllm_linear.run, case).result()
    assert found["findings"] == [] and found["kernel"] == kernel and found["compiled"]
    assert found["shape"] == (1, case.tokens, sum(case.widths))
    assert found["distance"] < (COARSE if case.rows == "mxfp4" else FINE)
    for error, allowed in zip(found["errors"], found["allowed"], strict=True):
        assert error <= 2 * allowed


def test_what_is_chosen(process):
    theirs = "vLLM's"
    assert process.submit(vllm_linear.chosen).result() == {
        "channels": FP8,
        "blocks": BLOCKS,
        "blocks of 64": theirs,
        "int8": INT8,
        "zero points": theirs,
        "mxfp4": "HipKittensMxfp4LinearKernel",
        "mxfp4 rows": "HipKittensMxfp4RowsLinearKernel",
        "mxfp8": "HipKittensMxfp8LinearKernel",
        **{f"{name}, not enabled": theirs for name in ("channels", "blocks", "int8", "mxfp4", "mxfp8")},
        "mxfp4, float16": theirs,
        "channels, gfx942": FP8,
        "mxfp4, gfx942": "HipKittensMxfp4LinearKernel",
        "mxfp4 rows, gfx942": theirs,
        "mxfp8, gfx942": theirs,
        **{f"{name}, another device": theirs for name in ("channels", "mxfp4", "mxfp4 rows", "mxfp8")},
    }
