# SPDX-License-Identifier: MIT
"""The GEMM rows whose matrix steps take e8m0 factors of 1 x 32 (MXFP4, MXFP8): gfx950's scaled matrix instruction."""

import functools
import pathlib
import struct
import subprocess
import sys
import tempfile

import numpy as np
import pytest
import torch

from hipkittens.quantization import shuffled_six_bits, six_bits_in_float
from tests.oracles.aiter.formats import FLOAT4, tiled_scales
from tests.simulated_device import ALL_CHECKS, Kernel, Module, take_findings

ROOT = pathlib.Path(__file__).resolve().parents[2]

TYPES = {"bf16": 0, "f16": 1, "f32": 2}  # ElementType
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
FLOAT8 = {"fp8": torch.float8_e4m3fn, "bf8": torch.float8_e5m2}
TILES = {
    "256x256": (256, 256, 512),
    "128x128": (128, 128, 256),
    "64x128": (64, 128, 256),
    "32x128": (32, 128, 256),
    "16x128": (16, 128, 256),
}


@functools.cache
def kernel(row: str) -> Kernel:
    with tempfile.TemporaryDirectory() as directory:
        output = pathlib.Path(directory) / "kernel.co"
        tool = ROOT / "tools" / "build_kernels.py"
        words = ["--target", "gfx950", "--operation", "gemm", "--variant", row, "--output", str(output)]
        done = subprocess.run([sys.executable, str(tool), *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return Module(output.read_bytes(), "gfx950").kernel(f"hipkittens_gemm_{row}_gfx950")


def operand(random: np.random.Generator, format: str, rows: int, k: int):
    """Bytes of rows and their values in float64."""
    if format == "fp4":
        packed = torch.from_numpy(random.integers(0, 256, (rows, k // 2), np.uint8))
        return packed, FLOAT4[torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()]
    if format in ("fp6", "bf6"):
        packed = torch.from_numpy(random.integers(0, 256, (rows, k // 4 * 3), np.uint8))
        return shuffled_six_bits(packed), six_bits_in_float(packed, format).double()
    if format == "bf16":
        values = torch.from_numpy(random.standard_normal((rows, k))).bfloat16()
        return values.view(torch.uint8), values.double()
    values = torch.from_numpy(random.standard_normal((rows, k))).to(FLOAT8[format])
    return values.view(torch.uint8), values.double()


def factors(codes: torch.Tensor) -> torch.Tensor:
    """e8m0: 2^(code - 127), and 255 is NaN."""
    value = torch.ldexp(torch.ones(codes.shape, dtype=torch.float64), codes.int() - 127)
    return torch.where(codes == 255, torch.nan, value)


def product(name, formats, m, n, k, output="f32", *, codes=None, padding=255, bias=False, of_b=False):
    """The result of kernel `name`, and its float64 reference. `codes`: e8m0 of A (M, K/32) and of B (N, K/32). of_b: A has a float32
    factor for each row."""
    random = np.random.default_rng(m + n + k)
    tile, tile_k = name.rsplit("_", 1)[1].rsplit("x", 1)
    tile_m, tile_n, threads = TILES[tile]
    (a, a_values), (b, b_values) = (
        operand(random, format, rows, k) for format, rows in zip(formats, (m, n), strict=True)
    )
    if codes is None:
        codes = [torch.from_numpy(random.integers(107, 148, (rows, k // 32), np.uint8)) for rows in (m, n)]
    scales = []
    for code in codes:
        rows, columns = code.shape
        padded = torch.full((-(-rows // 32) * 32, -(-columns // 8) * 8), padding, dtype=torch.uint8)
        padded[:rows, :columns] = code
        scales.append(tiled_scales(padded).contiguous().numpy().reshape(-1)[: padded.numel()].copy())
    # Rows of fp6 and bf16 are counted in dwords and in halves.
    stride_a, stride_b = (
        each.shape[1] // {"fp6": 4, "bf6": 4, "bf16": 2}.get(format, 1)
        for each, format in zip((a, b), formats, strict=True)
    )
    rows_of_a = torch.from_numpy(random.uniform(0.5, 2, m)).float()
    if of_b:
        scales[0] = rows_of_a.numpy()
    k_tiles = -(-k // int(tile_k))
    out = torch.full((m, n), torch.nan, dtype=DTYPES[output])
    added = torch.from_numpy(random.standard_normal(n)).float() if bias else None
    stored = {"a": a.contiguous().numpy(), "b": b.contiguous().numpy(), "a_scale": scales[0], "b_scale": scales[1],
              "c": out.view(torch.uint8).numpy() if output == "bf16" else out.numpy()}  # fmt: skip
    if bias:
        stored["bias"] = added.numpy()
    at = {name: array.ctypes.data for name, array in stored.items()}
    stride = -(-(k // 32) // 8) * 256
    packed = struct.pack(
        "<9qqQiii ii ii i5I4x10qi4x",
        *(at["a"], stride_a, 0, at["b"], stride_b, 0, at["c"], n, 0),
        *(0, at.get("bias", 0), m, n, k, k_tiles, k_tiles, TYPES[output], TYPES["f32"]),
        n % (16 // out.itemsize) == 0,
        *(-(-m // tile_m), -(-n // tile_n), 1, 1, 1),
        *((at["a_scale"], 1, 0, 0, 1) if of_b else (at["a_scale"], stride, 0, 0, 32)),
        *(at["b_scale"], stride, 0, 0, 32),
        -1,
    )
    kernel(name).launch(
        packed,
        stored,
        grid=(-(-m // tile_m) * -(-n // tile_n), 1, 1),
        block=(threads, 1, 1),
        read_only=("a", "b", "a_scale", "b_scale", "bias"),
        poison=1,
        checks=ALL_CHECKS,
    )
    left, right = (
        values * factors(code).repeat_interleave(32, 1)
        for values, code in zip((a_values, b_values), codes, strict=True)
    )
    if of_b:
        left = a_values * rows_of_a.double()[:, None]
    return out, left @ right.T + (added.double() if bias else 0)


def rms_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """RMS error relative to rows of similar size: scales of rows differ widely."""
    size = expected.square().mean().sqrt()
    return float((out.double() - expected).square().mean().sqrt() / size)


FP4, FP8 = ("fp4", "fp4"), ("fp8", "fp8")
CASES = [
    ("nt_mxfp4_256x256x256", FP4, 256, 252, 256),
    ("nt_mxfp4_256x256x256", FP4, 257, 260, 1376),
    ("nt_mxfp4_256x256x256", FP4, 17, 256, 800),
    ("nt_mxfp4_128x128x256", FP4, 129, 128, 2880),
    ("nt_mxfp4_128x128x256", FP4, 2, 20, 32),
    ("nt_mxfp8_128x128x128", FP8, 128, 132, 160),
    ("nt_mxfp8_128x128x128", FP8, 70, 4, 1184),
    ("nt_mxfp8_mxbf8_128x128x128", ("fp8", "bf8"), 33, 68, 640),
    ("nt_mxbf8_mxfp8_128x128x128", ("bf8", "fp8"), 33, 68, 640),
    ("nt_mxfp4_32x128x256", FP4, 1, 128, 2880),
    ("nt_mxfp8_32x128x128", FP8, 17, 132, 928),
    ("nt_mxfp4_16x128x256", FP4, 1, 128, 2880),
    ("nt_mxfp4_16x128x256", FP4, 49, 260, 1376),
    ("nt_mxfp4_16x128x256", FP4, 16, 4, 32),
    ("nt_mxfp8_16x128x128", FP8, 49, 132, 928),
    ("nt_mxfp8_16x128x128", FP8, 17, 4, 160),
]


@pytest.mark.parametrize(("name", "formats", "m", "n", "k"), CASES)
def test_products_with_scales(name, formats, m, n, k):
    out, expected = product(name, formats, m, n, k)
    assert rms_error(out, expected) <= 1e-6
    assert not [each for each in take_findings() if each["checker"] != "notes"]


@pytest.mark.parametrize(
    ("name", "formats", "m", "n", "k"),
    [
        ("nt_mxfp8_mxfp4_256x256x128", ("fp8", "fp4"), 257, 260, 1376),
        ("nt_mxfp8_mxfp4_256x256x128", ("fp8", "fp4"), 17, 256, 160),
        ("nt_mxfp8_mxfp4_128x128x128", ("fp8", "fp4"), 129, 132, 800),
        ("nt_mxbf8_mxfp4_32x128x128", ("bf8", "fp4"), 33, 4, 2880),
        ("nt_fp8_mxfp4_256x256x128", ("fp8", "fp4"), 257, 260, 1376),
        ("nt_bf8_mxfp4_128x128x128", ("bf8", "fp4"), 40, 72, 32),
        ("nt_bf16_mxfp4_128x128x128", ("bf16", "fp4"), 129, 132, 1376),
        ("nt_bf16_mxfp4_64x128x128", ("bf16", "fp4"), 65, 252, 160),
        ("nt_bf16_mxfp4_32x128x128", ("bf16", "fp4"), 1, 128, 2880),
        ("nt_mxfp6_256x256x128", ("fp6", "fp6"), 257, 260, 1376),
        ("nt_mxfp6_256x256x128", ("fp6", "fp6"), 17, 256, 160),
        ("nt_mxfp6_128x128x128", ("fp6", "fp6"), 129, 132, 800),
        ("nt_mxbf6_32x128x128", ("bf6", "bf6"), 33, 4, 2880),
    ],
)
def test_operands_of_other_widths(name, formats, m, n, k):
    of_b = not name.startswith("nt_mx")
    out, expected = product(name, formats, m, n, k, of_b=of_b)
    assert rms_error(out, expected) <= 1e-6
    assert not [each for each in take_findings() if each["checker"] != "notes"]


@pytest.mark.parametrize("output", ["bf16", "f16"])
def test_other_outputs_and_bias(output):
    codes = [torch.randint(124, 130, (rows, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)) for rows in (40, 72)]  # fmt: skip
    out, expected = product(
        "nt_mxfp4_128x128x256", ("fp4", "fp4"), 40, 72, 288, output, codes=codes, bias=True
    )
    assert rms_error(out, expected) <= 2.5e-3


@pytest.mark.parametrize(
    "name",
    [
        "nt_mxfp4_256x256x256",
        "nt_mxfp4_128x128x256",
        "nt_mxfp8_128x128x128",
        "nt_mxfp4_16x128x256",
        "nt_mxfp8_16x128x128",
    ],
)
def test_ends_of_e8m0(name):
    """0 is 2^-127 and not zero, 255 is NaN only in its own row (column), and factors past K are never read."""
    k = 288
    codes = [torch.full((rows, k // 32), 127, dtype=torch.uint8) for rows in (48, 64)]
    codes[0][3] = 0
    codes[1][5] = 254
    codes[0][40, 8] = 255
    codes[1][63, 0] = 255
    out, expected = product(name, FP4 if "fp4" in name else FP8, 48, 64, k, codes=codes)
    assert torch.equal(out.isnan(), expected.isnan())
    assert out[40].isnan().all() and out[:, 63].isnan().all() and out.isnan().sum() == 48 + 64 - 1
    small = out[3, 5:6].double(), expected[3, 5:6]
    torch.testing.assert_close(*small, rtol=1e-5, atol=0)
    # f32 represents these sums except for the last bits of its subnormal range.
    torch.testing.assert_close(out[3, :5].double(), expected[3, :5], rtol=1e-5, atol=2.0**-148)
