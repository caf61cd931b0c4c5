"""Data movement between memory, LDS and registers: every byte in its place, none outside it, no bank conflicts."""

import re

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import ROOT, Layout, from_type, run, to_type

SOURCE = (ROOT / "tests/tiles/move_kernels.cpp").read_text()
UNTOUCHED = 77.0

every_target = pytest.mark.parametrize("target", TARGETS)


def layout_of(name: str, shape: str) -> Layout:
    rows, cols = map(int, shape.split("x"))
    run_length = {(16, 32): 8, (32, 16): 8, (16, 16): 4, (32, 32): 4, (16, 4): 1}[rows, cols]
    return Layout(name, rows, cols, run_length)


def numbers(rows: int, cols: int) -> np.ndarray:
    """Small integers, exact in every type, in no simple order."""
    return (np.arange(rows * cols).reshape(rows, cols) * 37 % 251 - 125).astype(np.float32)


def strided(values: np.ndarray, stride: int, dtype: str, padding=np.nan) -> np.ndarray:
    """The matrix with rows `stride` elements apart, ending with its last element."""
    storage = np.full((values.shape[0], stride), padding, np.float32)
    storage[:, : values.shape[1]] = values
    return to_type(storage.reshape(-1)[: (values.shape[0] - 1) * stride + values.shape[1]], dtype)


GLOBAL = re.findall(r"^GLOBAL_REGISTER\((\w+), (\w+), rt_(\w+)\)", SOURCE, re.M)
# rows, cols, stride of the matrix; where the 32 x 64 tile begins. Whole, cut below, cut on the right inside a run, both.
MATRICES = [(32, 64, 64, 0), (37, 69, 80, 5), (20, 64, 64, 0), (32, 51, 64, 0), (29, 45, 47, 3), (1, 1, 1, 0)]


@every_target
@pytest.mark.parametrize(("dtype", "name", "shape"), GLOBAL)
@pytest.mark.parametrize(("rows", "cols", "stride", "begin"), MATRICES)
def test_registers_from_and_to_memory(target, dtype, name, shape, rows, cols, stride, begin):
    layout = layout_of(name, shape)
    values = numbers(rows, cols)
    tile = np.zeros((32, 64), np.float32)
    inside = values[begin : begin + 32, begin : begin + 64]
    tile[: inside.shape[0], : inside.shape[1]] = inside
    out = to_type(np.full((32, 64), UNTOUCHED), dtype)
    place = {"stride": stride, "rows": rows, "cols": cols, "number": begin}
    run(
        "move_kernels",
        f"load_{dtype}_{layout.suffix}",
        target,
        a=strided(values, stride, dtype),
        out=out,
        **place,
    )
    np.testing.assert_array_equal(layout.unpack(from_type(out, dtype), 32, 64), tile)

    given = numbers(32, 64) + 1
    memory = strided(np.full((rows, cols), UNTOUCHED), stride, dtype, UNTOUCHED)
    run(
        "move_kernels",
        f"store_{dtype}_{layout.suffix}",
        target,
        a=layout.pack(to_type(given, dtype)),
        out=memory,
        **place,
    )
    expected = np.full((rows, cols), UNTOUCHED, np.float32)
    expected[begin : begin + 32, begin : begin + 64] = given[: inside.shape[0], : inside.shape[1]]
    np.testing.assert_array_equal(
        from_type(memory, dtype), from_type(strided(expected, stride, dtype, UNTOUCHED), dtype)
    )


THROUGH_LDS = [
    (dtype, access, shape, fill)
    for dtype in ("bf16", "half")
    for access, shape, fills in [
        ("rows", "16x32", ("registers", "elements", "direct")),
        ("rows", "32x16", ("registers", "elements")),
        ("linear", "16x16", ("registers", "elements")),
        ("columns", "32x16", ("registers", "elements", "direct")),
        ("columns", "16x32", ("registers", "elements")),
        ("transposed", "16x32", ("registers",)),
        ("transposed", "32x16", ("elements",)),
    ]
    for fill in fills
] + [("float", "linear", shape, fill) for shape in ("16x4", "32x32") for fill in ("registers", "elements")]


@every_target
@pytest.mark.parametrize(("dtype", "access", "shape", "fill"), THROUGH_LDS)
@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (50, 64), (64, 40), (61, 37), (1, 3)])
def test_tiles_through_lds(target, dtype, access, shape, fill, rows, cols):
    if fill == "direct" and target == "gfx942":
        pytest.skip("gfx942 has no wide direct load")
    layout = layout_of("col_l" if access == "columns" else "row_l", shape)
    stride = 65 if fill == "elements" else 72
    values = numbers(rows, cols)
    tile = np.zeros((64, 64), np.float32)
    tile[:rows, :cols] = values
    if access == "transposed":
        # Partial chunks of columns include what follows them in memory; rows of the tile beyond are not checked.
        tile = tile.T
        kept = slice(0, cols)
    else:
        kept = slice(0, 64)
    given = strided(values, stride, dtype)
    quarter = (64, layout.cols) if access == "columns" else (layout.rows, 64)
    out = to_type(np.zeros((4, quarter[0] * quarter[1])), dtype)
    for seed in (0, 3):
        report = run(
            "move_kernels",
            f"{dtype}_{access}_{shape}_{fill}",
            target,
            a=given,
            out=out,
            stride=stride,
            rows=rows,
            cols=cols,
            threads=256,
            wave_order_seed=seed,
        )
        for wave, registers in enumerate(from_type(out, dtype)):
            ours = layout.unpack(registers, *quarter)
            begin = wave * (layout.cols if access == "columns" else layout.rows) % 64
            if access == "columns":
                np.testing.assert_array_equal(ours, tile[:, begin : begin + layout.cols])
            else:
                expected = tile[begin : begin + layout.rows]
                seen = slice(0, max(0, min(layout.rows, kept.stop - begin)))
                np.testing.assert_array_equal(ours[seen], expected[seen])
    swizzled = access in ("rows", "transposed") or (access == "columns" and target == "gfx950")
    if swizzled and cols % 8 == 0:
        assert report.lds_conflict_cycles == 0
