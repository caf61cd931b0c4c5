"""Matrix products in every orientation, rounding conversions, changes of layout, and schedules."""

import re

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import ROOT, Layout, from_type, run, to_type

SOURCE = (ROOT / "tests/tiles/product_kernels.cpp").read_text()

every_target = pytest.mark.parametrize("target", TARGETS)


def shape_layout(name: str, shape: str) -> Layout:
    rows, cols = map(int, shape.split("x"))
    return Layout(name, rows, cols, 8 if rows != cols else 4)


@every_target
@pytest.mark.parametrize("verb", ["AB", "ABt", "AtB", "AtBt"])
@pytest.mark.parametrize(
    ("dtype", "size", "name", "depth", "run_length"),
    re.findall(r"^PRODUCT\((\w+), (\d+), (\w+), (\d+), (\d+)\)", SOURCE, re.M),
)
def test_product(target, verb, dtype, size, name, depth, run_length):
    size, depth, run_length = int(size), int(depth), int(run_length)
    rng = np.random.default_rng(size + depth)
    a = rng.integers(-8, 9, (64, depth)).astype(np.float32)
    b = rng.integers(-8, 9, (depth, 32)).astype(np.float32)
    c = rng.integers(-99, 100, (64, 32)).astype(np.float32)
    wide = 64 * run_length // size
    rows, cols = Layout("row_l", size, wide, run_length), Layout("col_l", wide, size, run_length)
    left = cols.pack(to_type(a.T, dtype)) if "At" in verb else rows.pack(to_type(a, dtype))
    right = rows.pack(to_type(b.T, dtype)) if "Bt" in verb else cols.pack(to_type(b, dtype))
    result = Layout(name, size, size, 4)
    out = np.zeros(64 * 32, np.float32)
    for arithmetic in ("fast", "strict", "exact"):
        run(
            "product_kernels",
            f"mma_{verb}_{dtype}_{size}_{name}_{run_length}",
            target,
            a=left,
            b=right,
            c=result.pack(c),
            out=out,
            arithmetic=arithmetic,
        )
        np.testing.assert_array_equal(result.unpack(out, 64, 32), c + a @ b)


@every_target
@pytest.mark.parametrize(("to", "given"), re.findall(r"^CONVERT\((\w+), (\w+)\)", SOURCE, re.M))
def test_conversions_round_to_nearest_even(target, to, given):
    rng = np.random.default_rng(6)
    ties = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8 + 2**-20, -1 - 2**-8])
    special = np.float32(
        [0, -0.0, np.inf, -np.inf, 65504, 65519, 1e30, 3.4e38, 2**-14, 2**-24, 2**-25, 1e-40]
    )
    with np.errstate(over="ignore"):
        values = np.concatenate([ties, special, rng.standard_normal(1024 - 18).astype(np.float32)]).reshape(
            32, 32
        )
        source = to_type(values, given)
        expected = from_type(to_type(from_type(source, given), to), to)
    layout = Layout("row_l", 16, 16, 4)
    out = to_type(np.zeros((32, 32)), to)
    run("product_kernels", f"convert_{given}_{to}", target, a=layout.pack(source), out=out)
    np.testing.assert_array_equal(layout.unpack(from_type(out, to), 32, 32), expected)
    nan = to_type(np.zeros((32, 32)), given)
    nan[:] = {"float": np.nan, "half": np.nan, "bf16": 0x7FC1}[given]
    run("product_kernels", f"convert_{given}_{to}", target, a=nan, out=out)
    assert np.isnan(from_type(out, to)).all()


@every_target
@pytest.mark.parametrize(
    ("dtype", "from_name", "from_shape", "to_name", "to_shape"),
    re.findall(r"^RELAYOUT\((\w+), (\w+), rt_(\w+), (\w+), rt_(\w+)\)", SOURCE, re.M),
)
def test_relayout_and_transpose(target, dtype, from_name, from_shape, to_name, to_shape):
    values = np.arange(1024, dtype=np.float32).reshape(32, 32) % 256
    values[16:] *= 0.5
    source, destination = shape_layout(from_name, from_shape), shape_layout(to_name, to_shape)
    out = to_type(np.zeros((2, 1024)), dtype)
    run(
        "product_kernels",
        f"relayout_{dtype}_{source.suffix}_{destination.suffix}",
        target,
        a=source.pack(to_type(values, dtype)),
        out=out,
    )
    np.testing.assert_array_equal(destination.unpack(from_type(out[0], dtype), 32, 32), values)
    flipped = Layout(
        from_name, source.cols, source.rows, source.run
    )  # the transpose has the transposed base tile
    np.testing.assert_array_equal(flipped.unpack(from_type(out[1], dtype), 32, 32), values.T)


@every_target
@pytest.mark.parametrize("seed", range(4))
def test_ping_pong_groups_are_half_a_phase_apart(target, seed):
    out = np.zeros((8, 12), np.int32)
    run("product_kernels", "ping_pong", target, out=out, threads=512, wave_order_seed=seed)
    # While the lower group multiplies phase p, the upper one moves phase p: it may or may not have written it yet, but
    # is never further. While the upper group multiplies phase p, the lower one moves phase p + 1.
    phase = np.arange(1, 13)
    assert np.all((out[:4] == phase) | (out[:4] == phase - 1))
    assert np.all((out[4:] == phase) | (out[4:] == np.minimum(phase + 1, 12)))
