"""gfx950's f8f6f4 matrix instructions: formats, layouts and block scales."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from tests.oracles.matrix_rounding import QUIET_NAN, round_to_f32
from tests.simulated_device import HOST_LEVELS, library
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

# Number in CBSZ or BLGP: bits, bits of fraction, exponent bias.
FORMATS = {0: (8, 3, 7), 1: (8, 2, 15), 2: (6, 3, 1), 3: (6, 2, 3), 4: (4, 1, 1)}
SHAPES = {"16x16x128": (16, 128), "32x32x64": (32, 64)}
A, B, C, SCALES, D = 16, 24, 32, 48, 64  # first registers
# Where arithmetic fast adds up bf16 products.
FAST_LEVELS = [
    name for name in ("avx512_bf16", "amx") if HOST_LEVELS[name] <= library().hipkittens_best_host_level()
]


def value_of(pattern: int, number: int) -> float:
    bits, fraction_bits, bias = FORMATS[number]
    sign = -1.0 if pattern >> (bits - 1) else 1.0
    magnitude = pattern % (1 << (bits - 1))
    exponent, fraction = magnitude >> fraction_bits, magnitude % (1 << fraction_bits)
    if number == 0 and magnitude == 127:
        return math.nan
    if number == 1 and exponent == 31:
        return math.nan if fraction else sign * math.inf
    significand = fraction / (1 << fraction_bits) + (1 if exponent else 0)
    return sign * significand * 2.0 ** (max(exponent, 1) - bias)


def is_small_multiple(value: float) -> bool:
    return abs(value) <= 16 and (value * 8).is_integer()


def place(k: int, row: int, m: int, depth: int, bits: int) -> tuple[int, int]:
    """(lane, index of the element) of element k of a row."""
    groups = 64 // m
    if bits == 8:
        half, rest = divmod(k, depth // 2)
        return row + m * (rest // 16), 16 * half + rest % 16
    assert groups * 32 == depth
    return row + m * (k // 32), k % 32


def pack(patterns: np.ndarray, m: int, depth: int, number: int) -> np.ndarray:
    """[row][k] to eight registers, of which narrow formats use fewer."""
    bits = FORMATS[number][0]
    registers = np.zeros((8, 64), np.uint32)
    lanes = [0] * 64
    for row, k in np.ndindex(m, depth):
        lane, element = place(k, row, m, depth, bits)
        lanes[lane] |= int(patterns[row, k]) << (bits * element)
    for lane, word in enumerate(lanes):
        for register in range(bits):
            registers[register, lane] = word >> (32 * register) & 0xFFFFFFFF
    return registers


def span(first: int, count: int) -> str:
    return f"v[{first}:{first + count - 1}]"


def text_of(shape: str, a: int, b: int, scales: str = "") -> str:
    m, _ = SHAPES[shape]
    count = m * m // 64
    name = f"v_mfma_scale_f32_{shape}_f8f6f4" if scales else f"v_mfma_f32_{shape}_f8f6f4"
    operands = f"{span(D, count)}, {span(A, FORMATS[a][0])}, {span(B, FORMATS[b][0])}, {span(C, count)}"
    return f"{name} {operands}{scales} cbsz:{a} blgp:{b}"


def run(text: str, shape: str, a, b, a_number, b_number, c, scales=None, **settings) -> np.ndarray:
    m, depth = SHAPES[shape]
    rows = np.zeros((34, 64), np.uint32)
    rows[0:8], rows[8:16] = pack(a, m, depth, a_number), pack(b, m, depth, b_number)
    rows[16 : 16 + m * m // 64] = output_rows(c)
    if scales is not None:
        rows[32:34] = scales
    kernel = RegisterKernel(text, first_input=A, inputs=34, first_output=D, outputs=m * m // 64)
    out = RegisterKernels({"k": kernel}, "gfx950").run("k", rows, **settings)
    return matrix_of(out, m)


def positions(m: int):
    for row, column in np.ndindex(m, m):
        group = row // 4
        yield row, column, 4 * (group // (64 // m)) + row % 4, m * (group % (64 // m)) + column


def output_rows(c: np.ndarray) -> np.ndarray:
    m = len(c)
    rows = np.zeros((m * m // 64, 64), np.uint32)
    for row, column, register, lane in positions(m):
        rows[register, lane] = c[row, column]
    return rows


def matrix_of(rows: np.ndarray, m: int) -> np.ndarray:
    result = np.zeros((m, m), np.uint32)
    for row, column, register, lane in positions(m):
        result[row, column] = rows[register, lane]
    return result


def scaled_dot(a, b, scales_a, scales_b, c: float) -> float:
    """One fused multiply-add of the scaled product per k; a scale is a byte, for 32 k."""
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        s, t = scales_a[k // 32], scales_b[k // 32]
        if 255 in (s, t) or not (math.isfinite(x) and math.isfinite(y) and math.isfinite(c)):
            c = math.nan if 255 in (s, t) else x * y + c
        elif x and y:
            exact = Fraction(x) * Fraction(y) * Fraction(2) ** (int(s) + int(t) - 254) + Fraction(c)
            c = round_to_f32(exact)
    return c


def check(got, a, b, a_number, b_number, c, scales_a, scales_b):
    m = len(a)
    random = np.random.default_rng(1)
    for _ in range(40):
        i, j = random.integers(0, m, 2)
        left = [value_of(int(p), a_number) for p in a[i]]
        right = [value_of(int(p), b_number) for p in b[j]]
        start = float(np.uint32(c[i, j]).view(np.float32))
        expected = scaled_dot(left, right, scales_a[:, i], scales_b[:, j], start)
        wanted = QUIET_NAN if math.isnan(expected) else int(np.float32(expected).view(np.uint32))
        assert int(got[i, j]) & 0xFFFFFFFF == wanted or (
            expected == 0 and int(got[i, j]) << 1 & 0xFFFFFFFF == 0
        ), (i, j)


def patterns(shape: str, number: int, random) -> np.ndarray:
    m, depth = SHAPES[shape]
    found = random.integers(0, 1 << FORMATS[number][0], (m, depth))
    if number < 2:
        # Infinities and NaN only in the first row.
        found[1:][[[not math.isfinite(value_of(int(p), number)) for p in row] for row in found[1:]]] = 0x31
    return found


def addend(shape: str, random) -> np.ndarray:
    m, _ = SHAPES[shape]
    return (
        (random.standard_normal((m, m)) * 2.0 ** random.integers(-20, 20, (m, m)))
        .astype(np.float32)
        .view(np.uint32)
    )


@pytest.mark.parametrize("shape, a_number, b_number", list(itertools.product(SHAPES, FORMATS, FORMATS)))
def test_formats(shape, a_number, b_number):
    random = np.random.default_rng(2)
    a, b, c = patterns(shape, a_number, random), patterns(shape, b_number, random), addend(shape, random)
    ones = np.full((SHAPES[shape][1] // 32, SHAPES[shape][0]), 127)
    text = text_of(shape, a_number, b_number)
    results = [
        run(text, shape, a, b, a_number, b_number, c, arithmetic="strict", host_level=level)
        for level in (LEVELS[0], LEVELS[-1])
    ]
    assert np.array_equal(results[0], results[1]), "host levels differ"
    check(results[0], a, b, a_number, b_number, c, ones, ones)


@pytest.mark.parametrize("low, high", [(100, 150), (0, 255)])
@pytest.mark.parametrize(
    "shape, number", [("16x16x128", 4), ("32x32x64", 4), ("16x16x128", 0), ("32x32x64", 2)]
)
def test_scales(shape, number, low, high):
    """Scales near one, and all possible ones, including a NaN; op_sel selects the bytes of a scale register."""
    m, depth = SHAPES[shape]
    random = np.random.default_rng(3)
    a, b, c = patterns(shape, number, random), patterns(shape, number, random), addend(shape, random)
    scales = random.integers(low, high, (2, 64, 4), dtype=np.uint8)
    if high == 255:
        scales[0, 3] = 255
    rows = scales.view(np.uint32)[:, :, 0]
    for a_byte, b_byte in ((0, 0), (1, 2), (3, 1)):
        text = text_of(
            shape,
            number,
            number,
            f", v{SCALES}, v{SCALES + 1} op_sel:[{a_byte & 1},{b_byte & 1},0] op_sel_hi:[{a_byte >> 1},{b_byte >> 1},0]",
        )
        got = run(text, shape, a, b, number, number, c, rows, arithmetic="strict")
        blocks = depth // 32
        check(
            got,
            a,
            b,
            number,
            number,
            c,
            scales[0, :, a_byte].reshape(blocks, m),
            scales[1, :, b_byte].reshape(blocks, m),
        )


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("a_number, b_number", [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (0, 4), (3, 1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_fast_gives_the_same_where_every_sum_is_exact(shape, a_number, b_number, level):
    """Small multiples of 1/8; also with a constant for C, and with one special value in a row and a column."""
    m, depth = SHAPES[shape]
    random = np.random.default_rng(4)
    sides = []
    for number in (a_number, b_number):
        exact = [p for p in range(1 << FORMATS[number][0]) if is_small_multiple(value_of(p, number))]
        sides.append(random.choice(exact, (m, depth)))
        if number < 2:
            sides[-1][3, 5], sides[-1][9, depth - 1] = 0x7F, 0x7C  # NaN; infinity in bf8
    c = random.integers(-99, 100, (m, m)).astype(np.float32).view(np.uint32)
    text = text_of(shape, a_number, b_number)
    for form in (text, text.replace(span(C, m * m // 64), "1.0")):
        fast, strict = (
            run(form, shape, *sides, a_number, b_number, c, arithmetic=arithmetic, host_level=level)
            for arithmetic in ("fast", "strict")
        )
        assert np.array_equal(fast.view(np.float32), strict.view(np.float32), equal_nan=True)


@pytest.mark.parametrize("level", ["strict", *FAST_LEVELS])
@pytest.mark.parametrize("number", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_zeros_may_have_any_scale_but_nan(shape, number, level):
    """Past the end of memory, loads return zeros as elements and as scales: 2^-127, an exponent that fast arithmetic does not have. A
    single nonzero element has to be multiplied by it nevertheless."""
    m, depth = SHAPES[shape]
    blocks = depth // 32
    random = np.random.default_rng(7)
    exact = [p for p in range(1 << FORMATS[number][0]) if is_small_multiple(value_of(p, number))]
    sides = [random.choice(exact, (m, depth)) for _ in range(2)]
    scales = np.full((2, blocks, m), 127, np.uint8)
    for side, first in zip(range(2), (m - 5, m - 3), strict=True):
        sides[side][first:] = 0
        scales[side, :, first:] = 0
    for block in range(blocks):
        sides[0][block, 32 * block : 32 * block + 32] = 0
        scales[0, block, block] = 255 if block == 1 else 0
    sides[0][m - 1, depth - 7] = exact[-1]  # not all zeros
    registers = np.zeros((2, 64, 4), np.uint8)
    registers[:, :, 0] = scales.reshape(2, 64)
    c = random.integers(-99, 100, (m, m)).astype(np.float32).view(np.uint32)
    text = text_of(shape, number, number, f", v{SCALES}, v{SCALES + 1} op_sel:[0,0,0] op_sel_hi:[0,0,0]")
    settings = {"arithmetic": "strict"} if level == "strict" else {"arithmetic": "fast", "host_level": level}
    got = run(text, shape, *sides, number, number, c, registers.view(np.uint32)[:, :, 0], **settings)
    left, right = (np.vectorize(value_of)(side, number) for side in sides)
    for i, j in np.ndindex(m, m):
        start = float(np.uint32(c[i, j]).view(np.float32))
        expected = np.float32(scaled_dot(left[i], right[j], scales[0, :, i], scales[1, :, j], start))
        found = np.uint32(got[i, j]).view(np.float32)
        assert found == expected or (np.isnan(found) and np.isnan(expected)), (i, j)


@pytest.mark.parametrize("level", FAST_LEVELS)
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("a_number, b_number", [(0, 1), (2, 3), (4, 4), (4, 0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_fast_scales_within_the_rounding_of_the_sum(shape, a_number, b_number, far, level):
    m, depth = SHAPES[shape]
    random = np.random.default_rng(5)
    a, b = (
        random.choice(
            [p for p in range(1 << FORMATS[number][0]) if math.isfinite(value_of(p, number))], (m, depth)
        )
        for number in (a_number, b_number)
    )
    c = random.standard_normal((m, m)).astype(np.float32)
    # As far from one as bf16's exponents allow, with sums that stay in the range of f32.
    scales = np.stack([random.integers(127 - 89, 127 + most, (64, 4), dtype=np.uint8) for most in (90, -20)])
    if far:
        scales[0, 5], scales[1, 7] = 255, 2
    text = text_of(shape, a_number, b_number, f", v{SCALES}, v{SCALES + 1} op_sel:[1,0,0] op_sel_hi:[0,1,0]")
    rows = scales.view(np.uint32)[:, :, 0]
    fast, strict = (
        run(text, shape, a, b, a_number, b_number, c.view(np.uint32), rows, arithmetic=arithmetic, host_level=level)
        .view(np.float32)
        .astype(np.float64)
        for arithmetic in ("fast", "strict")
    )  # fmt: skip
    if far:
        assert np.array_equal(fast, strict, equal_nan=True)
        return
    blocks = depth // 32
    sides = []
    for patterns_of, number, byte in ((a, a_number, scales[0, :, 1]), (b, b_number, scales[1, :, 2])):
        powers = 2.0 ** (byte.reshape(blocks, m).T.astype(np.float64) - 127)
        magnitudes = np.abs(np.vectorize(lambda p, number=number: value_of(int(p), number))(patterns_of))
        sides.append(magnitudes * powers.repeat(32, 1))
    bound = depth * 2.0**-23 * (sides[0] @ sides[1].T + np.abs(c)) + 2.0**-120
    assert np.isfinite(strict).all() and (np.abs(fast - strict) <= bound).all()
