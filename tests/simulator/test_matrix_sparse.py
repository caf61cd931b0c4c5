"""v_smfmac_* with small integers, for which products and sums are exact in any order of addition."""

import itertools

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels
from tests.simulator.test_vector_float8 import FORMATS

SHAPES = {
    "gfx942": {"f16": ((16, 32), (32, 16)), "bf16": ((16, 32), (32, 16)), "byte": ((16, 64), (32, 32))},
    "gfx950": {"f16": ((16, 64), (32, 32)), "bf16": ((16, 64), (32, 32)), "byte": ((16, 128), (32, 64))},
}
BYTES = ["i8", *(f"{a}_{b}" for a, b in itertools.product(("fp8", "bf8"), repeat=2))]


def cases(target: str):
    # gfx950 has gfx942's shapes too.
    for source in ("gfx942", target) if target == "gfx950" else (target,):
        for kind in ("f16", "bf16", *BYTES):
            for size, depth in SHAPES[source]["byte" if kind in BYTES else kind]:
                yield kind, size, depth


def mnemonic(kind: str, size: int, depth: int) -> str:
    return f"v_smfmac_{'i32' if kind == 'i8' else 'f32'}_{size}x{size}x{depth}_{kind}"


def element_bits(kind: str) -> int:
    return 16 if kind in ("f16", "bf16") else 8


def registers(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]"


def sets_of(kind: str, size: int, depth: int) -> int:
    given_in_lane = depth // 2 // (64 // size)
    return 32 // (2 * given_in_lane)


KERNELS = {target: {} for target in TARGETS}
for target in TARGETS:
    for kind, size, depth in cases(target):
        in_lane = depth // (64 // size) * element_bits(kind) // 32  # registers of B
        d, a, b = registers(64, size * size // 64), registers(16, in_lane // 2), registers(24, in_lane)
        for cbsz, abid in ((0, 0), (0, 1), (0, 3), (1, 1)):
            text = "".join(f"v_mov_b32 v{64 + i}, v{40 + i}\n" for i in range(size * size // 64))
            text += f"s_nop 4\n{mnemonic(kind, size, depth)} {d}, {a}, {b}, v38 cbsz:{cbsz} abid:{abid}\ns_nop 15\ns_nop 4"
            KERNELS[target][f"{mnemonic(kind, size, depth)}_{cbsz}{abid}"] = RegisterKernel(
                text, inputs=40, outputs=16
            )


def encoder(target: str, kind: str):
    """Integers -3..3 encoded in a format."""
    if kind == "i8":
        return {value: value & 0xFF for value in range(-3, 4)}
    if kind == "f16":
        return {value: int(np.float16(value).view(np.uint16)) for value in range(-3, 4)}
    if kind == "bf16":
        return {value: int(np.float32(value).view(np.uint32)) >> 16 for value in range(-3, 4)}
    byte = FORMATS[target, kind]
    codes = {}
    for code in range(256):
        value = byte.value(code)
        if value == value and abs(value) <= 3 and value == int(value):
            codes.setdefault(int(value), code)
    return codes


@pytest.mark.parametrize("target", TARGETS)
def test_products(target):
    kernels = RegisterKernels(KERNELS[target], target)
    generator = np.random.default_rng(8)
    for kind, size, depth in cases(target):
        bits, groups = element_bits(kind), 64 // size
        dense, given_in_lane = depth // groups, depth // groups // 2
        kinds = kind.split("_") if "_" in kind else (kind, kind)
        a_codes, b_codes = (encoder(target, k) for k in kinds)
        a = generator.integers(-3, 4, (size, depth // 2))
        b = generator.integers(-3, 4, (depth, size))
        c = generator.integers(-9, 10, (size, size))
        # Two different positions out of four for every pair, in rising order; different ones for each set of indexes.
        sets = sets_of(kind, size, depth)
        pairs = np.array(list(itertools.combinations(range(4), 2)))
        positions = pairs[generator.integers(0, 6, (sets, size, depth // 4))].reshape(sets, size, depth // 2)
        rows = np.zeros((40, 64), np.uint32)

        def put(first, lane, place, code, bits=bits, rows=rows):
            rows[first + place * bits // 32, lane] |= np.uint32(code << (place * bits % 32))

        for lane in range(64):
            row, group = lane % size, lane // size
            for e in range(given_in_lane):
                put(0, lane, e, a_codes[a[row, group * given_in_lane + e]])
                for which in range(sets):
                    position = positions[which, row, group * given_in_lane + e]
                    rows[22, lane] |= np.uint32(position << (which * 2 * given_in_lane + 2 * e))
            for e in range(dense):
                put(8, lane, e, b_codes[b[group * dense + e, row]])
        places = {}
        for row, column in itertools.product(range(size), repeat=2):
            register = 4 * (row // 8) + row % 4 if size == 32 else row % 4
            lane = 32 * (row // 4 % 2) + column if size == 32 else 16 * (row // 4) + column
            places[row, column] = register, lane
            value = c[row, column] if kind == "i8" else np.float32(c[row, column]).view(np.uint32)
            rows[24 + register, lane] = np.uint32(value & 0xFFFFFFFF)
        for cbsz, abid in ((0, 0), (0, 1), (0, 3), (1, 1)):
            chosen = positions[0 if cbsz else abid % sets]
            full = np.zeros((size, depth), np.int64)
            for row, k in itertools.product(range(size), range(depth // 2)):
                full[row, k // 2 * 4 + chosen[row, k]] = a[row, k]
            expected = full @ b + c
            for level in (LEVELS[-1], LEVELS[0]):
                got = kernels.run(f"{mnemonic(kind, size, depth)}_{cbsz}{abid}", rows, host_level=level)
                got = got.view(np.int32) if kind == "i8" else got.view(np.float32)
                for place, where in places.items():
                    assert got[where] == expected[place], (
                        mnemonic(kind, size, depth),
                        cbsz,
                        abid,
                        place,
                        level,
                    )
