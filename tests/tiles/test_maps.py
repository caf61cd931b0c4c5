"""Maps, reductions and masks of register tiles against numpy."""

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import ROOT, TILES, from_type, run, to_type

ROWS, COLS = 32, 32
TYPES = ["float", "bf16", "half"]
# One rounding of the result, and before it 2 ulp of f32 for what the hardware approximates.
ROUNDING = {"float": 0.0, "bf16": 2.0**-8, "half": 2.0**-11}
APPROXIMATE = 2.0**-21

SOURCE = (ROOT / "tests/tiles/map_kernels.cpp").read_text()
TYPED_TILES = [
    (t, tile) for t in TYPES for tile in TILES if f"ONE_TILE({t}, {tile.name}, {tile.suffix[6:]})" in SOURCE
]
every_tile = pytest.mark.parametrize(
    ("dtype", "tile"), TYPED_TILES, ids=[f"{t}-{tile.suffix}" for t, tile in TYPED_TILES]
)
every_target = pytest.mark.parametrize("target", TARGETS)


def same(ours, expected, dtype):
    np.testing.assert_array_equal(ours, from_type(to_type(expected, dtype), dtype))


def near(ours, expected, dtype):
    np.testing.assert_allclose(ours, expected, rtol=ROUNDING[dtype] + APPROXIMATE, atol=1e-6)


def tiles_of(out, dtype, tile):
    return [
        tile.unpack(registers, ROWS, COLS)
        for registers in from_type(out, dtype).reshape(-1, ROWS * COLS // 64, 64)
    ]


@every_target
@every_tile
def test_unary(target, dtype, tile):
    rng = np.random.default_rng(1)
    x = from_type(to_type(rng.uniform(-3, 3, (ROWS, COLS)), dtype), dtype)
    out = np.zeros((4, ROWS * COLS), to_type(x, dtype).dtype)
    run("map_kernels", f"unary_{dtype}_{tile.suffix}", target, a=tile.pack(to_type(x, dtype)), out=out)
    powers, mapped, zeros, infinities = tiles_of(out, dtype, tile)
    near(powers, np.exp2(x.astype(np.float64)), dtype)
    same(mapped, np.where(x < 0, -x, 2 * x), dtype)
    assert np.all(zeros == 0) and np.all(infinities == -np.inf)


@every_target
@every_tile
def test_binary(target, dtype, tile):
    rng = np.random.default_rng(2)

    def values(*shape):
        signs = rng.choice([-1.0, 1.0], shape)
        return from_type(to_type(signs * rng.uniform(0.5, 4, shape), dtype), dtype)

    x, y, rows, cols = values(ROWS, COLS), values(ROWS, COLS), values(ROWS), values(COLS)
    scalar = 1.375
    vectors = [tile.pack_vector(to_type(rows, dtype), True), tile.pack_vector(to_type(cols, dtype), False)]
    out = np.zeros((19, ROWS * COLS), to_type(x, dtype).dtype)
    run(
        "map_kernels",
        f"binary_{dtype}_{tile.suffix}",
        target,
        a=tile.pack(to_type(x, dtype)),
        b=tile.pack(to_type(y, dtype)),
        c=np.concatenate([v.reshape(-1) for v in vectors]),
        out=out,
        scalar=scalar,
    )
    results = iter(tiles_of(out, dtype, tile))
    others = [y, np.float32(scalar), rows[:, None], cols[None, :]]
    for function in (np.add, np.subtract, np.multiply, np.divide):
        for other in others:
            expected = function(x.astype(np.float32), other)
            (near if function is np.divide else same)(next(results), expected, dtype)
    near(next(results), x.astype(np.float64) * y + x, dtype)

    def rounded(values):
        return from_type(to_type(values, dtype), dtype)

    same(next(results), x + rounded(rounded(rows - np.float32(scalar)) + rows)[:, None], dtype)
    # The hardware's exp2 may round differently, before two more roundings.
    factors = np.exp2(cols.astype(np.float64)) + cols
    np.testing.assert_allclose(
        next(results), x * factors[None, :], rtol=0, atol=(8 * ROUNDING[dtype] + APPROXIMATE) * 4 * 20
    )


@every_target
@every_tile
def test_reductions(target, dtype, tile):
    rng = np.random.default_rng(3)
    # Sums stay exact in bf16.
    x = rng.integers(-1, 2, (ROWS, COLS)).astype(np.float32)
    x[:, : COLS // 2] = rng.choice([-1, 1, 2, 0.5], (ROWS, COLS // 2), p=[0.3, 0.5, 0.1, 0.1])
    old_rows, old_cols = rng.integers(-9, 10, ROWS).astype(np.float32), rng.choice([-1.0, 1.0, 2.0], COLS)
    packed = [
        tile.pack_vector(to_type(old_rows, dtype), True),
        tile.pack_vector(to_type(old_cols, dtype), False),
    ]
    sizes = [p.size for p in packed]
    out = np.zeros(4 * sizes[0] + 4 * sizes[1], to_type(x, dtype).dtype)
    run(
        "map_kernels",
        f"reduce_{dtype}_{tile.suffix}",
        target,
        a=tile.pack(to_type(x, dtype)),
        c=np.concatenate([p.reshape(-1) for p in packed]),
        out=out,
    )
    position = 0

    def expect(values, per_row):
        """The next vector; in every lane that holds an element."""
        nonlocal position
        size = sizes[0 if per_row else 1]
        ours = from_type(out[position : position + size], dtype).reshape(-1, 64)
        position += size
        expected = from_type(to_type(np.asarray(values), dtype), dtype)
        np.testing.assert_array_equal(ours, tile.pack_vector(expected, per_row))

    for reduce, combine in (
        (np.sum, np.add),
        (np.max, np.maximum),
    ):
        for axis, old in ((1, old_rows), (0, old_cols)):
            result = reduce(x, axis=axis)
            expect(result, axis == 1)
            expect(combine(result, old), axis == 1)
    assert position == out.size


@every_target
@every_tile
@pytest.mark.parametrize("number", [0, 5, 33, -7])
def test_masks(target, dtype, tile, number):
    x = np.arange(ROWS * COLS, dtype=np.float32).reshape(ROWS, COLS) % 251
    out = np.zeros((2, ROWS * COLS), to_type(x, dtype).dtype)
    run(
        "map_kernels",
        f"mask_{dtype}_{tile.suffix}",
        target,
        a=tile.pack(to_type(x, dtype)),
        out=out,
        number=number,
        scalar=-500.0,
    )
    row, col = np.arange(ROWS)[:, None] + 0 * x.astype(int), np.arange(COLS)[None, :] + 0 * x.astype(int)
    removed = [col >= number, row + 2 * col < number]
    for ours, mask in zip(tiles_of(out, dtype, tile), removed, strict=True):
        same(ours, np.where(mask, -500, x), dtype)
