"""Matrix instructions on 8-bit floats: FNUZ formats on gfx942, OCP formats on gfx950."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from tests.oracles.matrix_layouts import MatrixShape, pack_inputs, pack_outputs, unpack_outputs
from tests.oracles.matrix_rounding import QUIET_NAN, cdna3_dot_of_bytes, sequential_dot
from tests.simulated_device import TARGETS
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

# Torch's type, and the exponent of its smallest normal number.
FORMATS = {
    ("fp8", "gfx942"): (torch.float8_e4m3fnuz, -7),
    ("bf8", "gfx942"): (torch.float8_e5m2fnuz, -15),
    ("fp8", "gfx950"): (torch.float8_e4m3fn, -6),
    ("bf8", "gfx950"): (torch.float8_e5m2, -14),
}
SHAPES = {"16x16x32": MatrixShape(16, 32, 1, 8), "32x32x16": MatrixShape(32, 16, 1, 8)}
CASES = list(itertools.product(SHAPES, ("fp8", "bf8"), ("fp8", "bf8"), TARGETS))
A, B, C, D = 16, 18, 20, 64  # first registers


@functools.cache
def kernels(target: str) -> RegisterKernels:
    found = {}
    for (name, shape), a, b in itertools.product(SHAPES.items(), ("fp8", "bf8"), ("fp8", "bf8")):
        last = shape.output_registers - 1
        text = (
            f"v_mfma_f32_{name}_{a}_{b} v[{D}:{D + last}], v[{A}:{A + 1}], v[{B}:{B + 1}], v[{C}:{C + last}]"
        )
        found[f"mfma_{name}_{a}_{b}"] = RegisterKernel(
            text, first_input=A, inputs=20, first_output=D, outputs=last + 1
        )
    return RegisterKernels(found, target)


def run(shape_name, kinds, target, a, b, c, **settings) -> np.ndarray:
    """Bit patterns in, f32 bit patterns out."""
    shape = SHAPES[shape_name]
    rows = np.zeros((20, 64), np.uint32)
    rows[0:2], rows[2:4] = pack_inputs(shape, a), pack_inputs(shape, b)
    rows[4 : 4 + shape.output_registers] = pack_outputs(shape, c)
    return unpack_outputs(
        shape, kernels(target).run(f"mfma_{shape_name}_{kinds[0]}_{kinds[1]}", rows, **settings)
    )


def decode(bits: np.ndarray, kind: str, target: str) -> np.ndarray:
    return torch.from_numpy(bits.astype(np.uint8)).view(FORMATS[kind, target][0]).to(torch.float64).numpy()


def operands(shape_name: str, seed: int, *, finite: bool, kinds, target):
    """Random bit patterns of A, B and C, every byte value included."""
    shape, random = SHAPES[shape_name], np.random.default_rng(seed)
    sides = []
    for kind in kinds:
        bits = random.integers(0, 256, (1, shape.m, shape.k)).astype(np.uint64)
        if finite:
            bits[~np.isfinite(decode(bits, kind, target))] = 0x31
        sides.append(bits)
    c = (
        random.standard_normal((1, shape.m, shape.m)) * 2.0 ** random.integers(-30, 30, (1, shape.m, shape.m))
    ).astype(np.float32)
    return *sides, c.view(np.uint32).astype(np.uint64)


@pytest.mark.parametrize("kind, target", FORMATS)
def test_every_byte_converts_as_torch_says(kind, target):
    """One multiplied by each of the 256 patterns."""
    one = int(torch.ones(1).to(FORMATS[kind, target][0]).view(torch.uint8))
    for start in range(0, 256, 16):
        a, b = np.zeros((1, 16, 32), np.uint64), np.zeros((1, 16, 32), np.uint64)
        a[0, :, 3], b[0, :, 3] = one, np.arange(start, start + 16)
        got = run(
            "16x16x32", (kind, kind), target, a, b, np.zeros((1, 16, 16), np.uint64), host_level=LEVELS[-1]
        )
        expected = decode(b[0, :, 3], kind, target).astype(np.float32)
        assert np.array_equal(got[0, 5].view(np.float32), expected, equal_nan=True), hex(start)


@pytest.mark.parametrize("finite", (True, False))
@pytest.mark.parametrize("shape_name, a_kind, b_kind, target", CASES)
def test_rounding(shape_name, a_kind, b_kind, target, finite):
    kinds = (a_kind, b_kind)
    a, b, c = operands(shape_name, 1, finite=finite, kinds=kinds, target=target)
    if not finite:
        # Few enough special values that some sums stay finite.
        ordinary = operands(shape_name, 2, finite=True, kinds=kinds, target=target)
        a[:, 2:], b[:, 2:] = ordinary[0][:, 2:], ordinary[1][:, 2:]
    rules = {
        "strict": sequential_dot,
        "exact": functools.partial(
            cdna3_dot_of_bytes,
            smallest_of_a=FORMATS[a_kind, target][1],
            smallest_of_b=FORMATS[b_kind, target][1],
        ),
    }
    left, right = decode(a, a_kind, target), decode(b, b_kind, target)
    start = c.astype(np.uint32).view(np.float32)
    random = np.random.default_rng(3)
    for arithmetic, dot in rules.items():
        results = [
            run(shape_name, kinds, target, a, b, c, arithmetic=arithmetic, host_level=level)
            for level in LEVELS
        ]
        assert all(np.array_equal(results[0], other) for other in results), "host levels differ"
        for _ in range(60):
            i, j = random.integers(0, left.shape[1], 2)
            expected = dot(left[0, i].tolist(), right[0, j].tolist(), float(start[0, i, j]))
            wanted = QUIET_NAN if math.isnan(expected) else int(np.float32(expected).view(np.uint32))
            assert int(results[0][0, i, j]) == wanted, (arithmetic, i, j, expected)


@pytest.mark.parametrize("shape_name, a_kind, b_kind, target", CASES)
def test_fast_is_exact_on_small_integers(shape_name, a_kind, b_kind, target):
    shape, random = SHAPES[shape_name], np.random.default_rng(4)
    values = [random.integers(-4, 5, (1, shape.m, shape.k)) for _ in range(2)]
    bits = [
        torch.from_numpy(v).float().to(FORMATS[kind, target][0]).view(torch.uint8).numpy().astype(np.uint64)
        for v, kind in zip(values, (a_kind, b_kind), strict=True)
    ]
    got = run(shape_name, (a_kind, b_kind), target, *bits, np.zeros((1, shape.m, shape.m), np.uint64))
    assert np.array_equal(got.view(np.float32), np.einsum("bik,bjk->bij", *values))
