"""The GEMM main loops with 8-bit operands, scales between K tiles and a longer epilogue: nothing in them assumes 16 bits."""

import struct

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import CHECKS, kernel

every_target = pytest.mark.parametrize("target", TARGETS)
F32 = 2  # ElementType::f32


def e4m3(values: np.ndarray, target: str) -> np.ndarray:
    """Integers of at most four significant bits as e4m3: OCP's on gfx950, with an exponent bias larger by one on gfx942."""
    bias = 8 if target == "gfx942" else 7
    fraction, exponent = np.frexp(np.abs(values).astype(np.float64))
    mantissa = (fraction * 16).astype(int) - 8
    assert np.array_equal(np.ldexp((mantissa + 8) / 16, exponent) * (values != 0), np.abs(values))
    bits = (values < 0) << 7 | (exponent - 1 + bias) << 3 | mantissa
    return np.where(values == 0, 0, bits).astype(np.uint8)


def product(target: str, name: str, m: int, n: int, k: int, tile: int, threads: int, scales=None):
    """A, B and the kernel's A B^T in f32."""
    random = np.random.default_rng(k)
    a, b = random.integers(-8, 9, (m, k)), random.integers(-8, 9, (n, k))
    out = np.full((m, n), np.nan, np.float32)
    stored = {"a": e4m3(a, target), "b": e4m3(b, target), "c": out}
    matrices = (
        word for name, rows in (("a", k), ("b", k), ("c", n)) for word in (stored[name].ctypes.data, rows, 0)
    )
    k_tiles = -(-k // 128)
    packed = struct.pack(
        "<9qqQiii ii ii i5I4x",
        *matrices,
        0,
        scales.ctypes.data if scales is not None else 0,
        *(m, n, k, k_tiles, k_tiles, F32, F32, n % 4 == 0),
        *(1, 1, 1, 1, 1),
    )
    if scales is not None:
        stored["scales"] = scales
    kernel("policy_kernels", name, target).launch(
        packed,
        stored,
        grid=(-(-m // tile), -(-n // tile), 1),
        block=(threads, 1, 1),
        read_only=("a", "b", "scales"),
        **CHECKS,
    )
    return a.astype(np.float64), b.astype(np.float64), out


@every_target
@pytest.mark.parametrize(("m", "n", "k"), [(64, 64, 128), (70, 132, 640), (64, 64, 404)])
@pytest.mark.parametrize("name", ["interleaved_plain", "interleaved_halved"])
def test_8_bit_operands(target, name, m, n, k):
    a, b, out = product(target, name, m, n, k, 64, 256)
    np.testing.assert_array_equal(out, a @ b.T * (0.5 if name == "interleaved_halved" else 1))


@every_target
@pytest.mark.parametrize(
    ("name", "tile", "threads", "k"),
    [
        ("ping_pong_plain", 256, 512, 400),
        ("interleaved_alternate", 128, 256, 916),
        ("simple_plain", 64, 256, 275),
    ],
)
def test_8_bit_operands_in_every_loop(target, name, tile, threads, k):
    a, b, out = product(target, name, tile, tile - 4, k, tile, threads)
    np.testing.assert_array_equal(out, a @ b.T)


def base_tiles(extent: int, tile: int, bands: int, waves: int) -> np.ndarray:
    """The number that a wave gives the base tile of each row (column): bands of a tile, with waves side by side in each."""
    inside = np.arange(extent) % tile
    band, wave = tile // bands, tile // bands // waves
    return inside // band * (wave // 16) + inside % wave // 16


@every_target
@pytest.mark.parametrize(
    ("name", "tile", "bands", "waves", "k"),
    [
        *[("interleaved_scaled", 64, 1, (2, 2), k) for k in (128, 640, 404)],
        *[("ping_pong_scaled", 256, 2, (2, 4), k) for k in (128, 256, 384, 916)],
        ("simple_scaled", 64, 1, (2, 2), 275),
    ],
)
def test_scales_between_k_tiles(target, name, tile, bands, waves, k):
    scales = np.ldexp(1.0, np.arange(-(-k // 128)) - 2).astype(np.float32)
    m, n = tile + 6, tile + 4
    a, b, out = product(target, name, m, n, k, tile, 64 * waves[0] * waves[1], scales)
    expected = sum(
        a[:, begin : begin + 128] @ b[:, begin : begin + 128].T * float(scales[begin // 128])
        for begin in range(0, k, 128)
    )
    i, j = (base_tiles(extent, tile, bands, count) for extent, count in zip((m, n), waves, strict=True))
    np.testing.assert_array_equal(out, np.ldexp(expected, i[:, None] - j))
