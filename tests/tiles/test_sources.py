"""Tiles of a range: contiguous rows, listed rows, rows of pages; zeros past the end, without reading memory."""

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import run

every_target = pytest.mark.parametrize("target", TARGETS)


def numbers(rows: int, cols: int) -> np.ndarray:
    return (np.arange(rows * cols).reshape(rows, cols) * 37 % 2039 - 1000).astype(np.float16)


def tiles(target: str, name: str, count: int, tile_cols: int, **arguments) -> np.ndarray:
    """The kernel's output for `count` tiles and one more, which must be zero."""
    out = np.full((count + 1, 64, tile_cols), 77, np.float16)
    run("source_kernels", name, target, out=out, threads=256, **arguments)
    np.testing.assert_array_equal(out[count], 0)
    return out[:count]


@every_target
@pytest.mark.parametrize("name", ["contiguous", "windows"])
@pytest.mark.parametrize(("rows", "stride", "first"), [(128, 64, 0), (200, 96, 3), (7, 64, 2)])
def test_rows_of_a_matrix(target, name, rows, stride, first):
    values = numbers(rows, stride)
    count = -(-(rows - first) // 64)
    expected = np.zeros((count * 64, 64), np.float16)
    expected[: rows - first] = values[first:, :64]
    storage = values.reshape(-1)[: (rows - 1) * stride + 64].copy()  # ends with the matrix
    place = {"a": storage, "stride": stride, "rows": rows, "cols": 64, "number": first}
    np.testing.assert_array_equal(tiles(target, name, count, 64, **place).reshape(expected.shape), expected)


@every_target
@pytest.mark.parametrize("listed", [64, 41])
def test_rows_of_a_list(target, listed):
    values = numbers(300, 136)
    index = np.random.default_rng(listed).permutation(64).astype(np.int32)[:listed] + 201  # in any order
    index[3] = index[5]  # a row may occur more than once
    lowest = int(index.min())
    expected = np.zeros((2, 64, 64), np.float16)
    for tile in range(2):
        expected[tile, :listed] = values[index, tile * 64 : tile * 64 + 64]
    place = {"b": index, "stride": 136, "rows": listed, "cols": 128, "number": lowest}
    np.testing.assert_array_equal(tiles(target, "list", 2, 64, a=values, **place), expected)


@every_target
@pytest.mark.parametrize(
    ("name", "page"),
    [("pages_of_tiles", 64), ("pages_of_tiles", 128), ("pages_of_waves", 16), ("pages_of_waves", 32)],
)
@pytest.mark.parametrize("rows", [192, 130, 10])
def test_rows_of_pages(target, name, page, rows):
    pages = -(-rows // page)
    pool = numbers((pages + 3) * page, 128)
    table = np.random.default_rng(rows).permutation(pages + 3).astype(np.int32)[:pages]
    count = -(-rows // 64)
    expected = np.zeros((count * 64, 128), np.float16)
    for row in range(rows):
        expected[row] = pool[table[row // page] * page + row % page]
    place = {"b": table, "stride": 128, "rows": rows, "cols": 128, "number": page}
    np.testing.assert_array_equal(
        tiles(target, name, count, 128, a=pool, **place).reshape(expected.shape), expected
    )
