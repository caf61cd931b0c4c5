"""Matrix instructions: layout and arithmetic of every shape against independent statements of both."""

from __future__ import annotations

import functools
import math
import re

import numpy as np
import pytest
import torch

from tests.oracles.matrix_layouts import MatrixShape, pack_inputs, pack_outputs, unpack_outputs
from tests.oracles.matrix_rounding import QUIET_NAN, cdna3_dot, host_dot, sequential_dot
from tests.simulated_device import SimulatorError
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

BOTH, NEW, OLD = ("gfx942", "gfx950"), ("gfx950",), ("gfx942",)
TARGETS_OF = {
    "v_mfma_f32_32x32x16_bf16": NEW,
    "v_mfma_f32_16x16x32_bf16": NEW,
    "v_mfma_f32_32x32x8_bf16": BOTH,
    "v_mfma_f32_16x16x16_bf16": BOTH,
    "v_mfma_f32_32x32x4_2b_bf16": BOTH,
    "v_mfma_f32_16x16x4_4b_bf16": BOTH,
    "v_mfma_f32_4x4x4_16b_bf16": BOTH,
    "v_mfma_f32_32x32x16_f16": NEW,
    "v_mfma_f32_16x16x32_f16": NEW,
    "v_mfma_f32_32x32x8_f16": BOTH,
    "v_mfma_f32_16x16x16_f16": BOTH,
    "v_mfma_f32_32x32x4_2b_f16": BOTH,
    "v_mfma_f32_16x16x4_4b_f16": BOTH,
    "v_mfma_f32_4x4x4_16b_f16": BOTH,
    "v_mfma_f32_32x32x2_f32": BOTH,
    "v_mfma_f32_16x16x4_f32": BOTH,
    "v_mfma_f32_32x32x1_2b_f32": BOTH,
    "v_mfma_f32_16x16x1_4b_f32": BOTH,
    "v_mfma_f32_4x4x1_16b_f32": BOTH,
    "v_mfma_f32_32x32x4_xf32": OLD,
    "v_mfma_f32_16x16x8_xf32": OLD,
    "v_mfma_f64_16x16x4_f64": BOTH,
    "v_mfma_f64_4x4x4_4b_f64": BOTH,
    "v_mfma_i32_32x32x16_i8": BOTH,
    "v_mfma_i32_16x16x32_i8": BOTH,
    "v_mfma_i32_32x32x32_i8": NEW,
    "v_mfma_i32_16x16x64_i8": NEW,
    "v_mfma_i32_32x32x4_2b_i8": BOTH,
    "v_mfma_i32_16x16x4_4b_i8": BOTH,
    "v_mfma_i32_4x4x4_16b_i8": BOTH,
}
BITS = {"bf16": 16, "f16": 16, "f32": 32, "xf32": 32, "f64": 64, "i8": 8, "i32": 32}
TORCH = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f32": torch.float32,
    "xf32": torch.float32,
    "f64": torch.float64,
    "i8": torch.int8,
    "i32": torch.int32,
}
SIGNED = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
A, B, C, D = 16, 24, 32, 64  # first registers


@functools.cache
def parse(name: str) -> tuple[MatrixShape, str, str]:
    """(shape, input kind, output kind) of a mnemonic."""
    output, m, k, blocks, kind = re.fullmatch(
        r"v_mfma_(\w+?)_(\d+)x\d+x(\d+)_(?:(\d+)b_)?(\w+)", name
    ).groups()
    return MatrixShape(int(m), int(k), int(blocks or 1), BITS[kind], BITS[output]), kind, output


def to_bits(values: np.ndarray, kind: str) -> np.ndarray:
    bits = torch.from_numpy(np.asarray(values, np.float64)).to(TORCH[kind]).view(SIGNED[BITS[kind]]).numpy()
    return bits.view(f"u{BITS[kind] // 8}").astype(np.uint64)


def from_bits(bits: np.ndarray, kind: str) -> np.ndarray:
    width = BITS[kind]
    plain = torch.from_numpy(np.ascontiguousarray(bits).astype(f"u{width // 8}").view(f"i{width // 8}"))
    return plain.view(TORCH[kind]).to(torch.float64).numpy()


def span(first: int, count: int, letter: str = "v") -> str:
    return f"{letter}{first}" if count == 1 else f"{letter}[{first}:{first + count - 1}]"


def instruction(name: str, *, d: str = "", c: str = "", modifiers: str = "") -> str:
    shape, _, _ = parse(name)
    inputs, outputs = shape.input_registers, shape.output_registers
    d, c = d or span(D, outputs), c or span(C, outputs)
    return f"{name} {d}, {span(A, inputs)}, {span(B, inputs)}, {c} {modifiers}"


def kernel(text: str) -> RegisterKernel:
    return RegisterKernel(text, first_input=A, inputs=48, first_output=D, outputs=32)


@functools.cache
def plain_kernels(target: str) -> RegisterKernels:
    names = [name for name, targets in TARGETS_OF.items() if target in targets]
    return RegisterKernels({name: kernel(instruction(name)) for name in names}, target)


def rows_of(name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Bit patterns of A [block][row][k], B [block][column][k], C [block][row][column] as input rows."""
    shape, _, _ = parse(name)
    rows = np.zeros((48, 64), np.uint32)
    rows[0 : shape.input_registers] = pack_inputs(shape, a)
    rows[8 : 8 + shape.input_registers] = pack_inputs(shape, b)
    rows[16 : 16 + shape.output_registers] = pack_outputs(shape, c)
    return rows


def result_bits(name: str, rows: np.ndarray) -> np.ndarray:
    shape, _, _ = parse(name)
    return unpack_outputs(shape, rows[: shape.output_registers])


def integers(name: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape, _, _ = parse(name)
    random = np.random.default_rng(seed)
    inputs = (shape.blocks, shape.m, shape.k)
    return (
        random.integers(-8, 9, inputs),
        random.integers(-8, 9, inputs),
        random.integers(-99, 100, (shape.blocks, shape.m, shape.m)),
    )


def product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.einsum("bik,bjk->bij", a, b) + c


def integer_rows(name: str, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Input rows of small integers, and the exact result."""
    _, kind, output = parse(name)
    a, b, c = integers(name, seed)
    return rows_of(name, to_bits(a, kind), to_bits(b, kind), to_bits(c, output)), product(a, b, c)


ALL = [(name, target) for name, targets in TARGETS_OF.items() for target in targets]


@pytest.mark.parametrize("name, target", ALL)
def test_layout(name, target):
    """Small integers need no rounding: every element is exact, in every arithmetic, at every host level."""
    rows, expected = integer_rows(name)
    for level in LEVELS:
        for arithmetic in ("fast", "strict", "exact"):
            out = plain_kernels(target).run(name, rows, arithmetic=arithmetic, host_level=level)
            got = from_bits(result_bits(name, out), parse(name)[2])
            assert np.array_equal(got, expected), (level, arithmetic)


# --- rounding ------------------------------------------------------------------------------------------

ROUNDED = [
    ("v_mfma_f32_32x32x16_bf16", "gfx950"),
    ("v_mfma_f32_16x16x32_bf16", "gfx950"),
    ("v_mfma_f32_32x32x8_bf16", "gfx942"),
    ("v_mfma_f32_16x16x16_bf16", "gfx942"),
    ("v_mfma_f32_4x4x4_16b_bf16", "gfx942"),
    ("v_mfma_f32_32x32x4_2b_bf16", "gfx942"),
    ("v_mfma_f32_32x32x16_f16", "gfx950"),
    ("v_mfma_f32_16x16x16_f16", "gfx942"),
    ("v_mfma_f32_16x16x4_4b_f16", "gfx942"),
    ("v_mfma_f32_4x4x4_16b_f16", "gfx950"),
    ("v_mfma_f32_16x16x4_f32", "gfx942"),
    ("v_mfma_f32_32x32x1_2b_f32", "gfx942"),
    ("v_mfma_f32_16x16x8_xf32", "gfx942"),
    ("v_mfma_f32_32x32x4_xf32", "gfx942"),
]
# Values: normal numbers spread over 2^-n .. 2^n, or bit patterns: any finite ones (denormals, overflow), any.
SPREADS = (1, 5, 14, 40, "finite", "any")
EXPONENT_MASK = {"bf16": 0x7F80, "f16": 0x7C00, "f32": 0x7F800000, "xf32": 0x7F800000}


def random_bits(kind: str, shape: tuple[int, ...], spread, random) -> np.ndarray:
    if isinstance(spread, int):
        values = random.standard_normal(shape) * 2.0 ** random.integers(-spread, spread + 1, shape)
        values[random.random(shape) < 0.1] = 0
        return to_bits(values, kind)
    bits = random.integers(0, 1 << BITS[kind], shape, dtype=np.uint64)
    mask = np.uint64(EXPONENT_MASK[kind])
    return np.where(bits & mask == mask, bits & ~mask, bits) if spread == "finite" else bits


def multiplicands(kind: str, bits: np.ndarray) -> np.ndarray:
    """Operands as the multiplier sees them: xf32 drops 13 bits of fraction."""
    return from_bits(bits & np.uint64(0xFFFFE000) if kind == "xf32" else bits, kind)


def random_case(name: str, spread, seed: int):
    shape, kind, _ = parse(name)
    random = np.random.default_rng(seed)
    inputs = (shape.blocks, shape.m, shape.k)
    a, b = random_bits(kind, inputs, spread, random), random_bits(kind, inputs, spread, random)
    c = random_bits("f32", (shape.blocks, shape.m, shape.m), spread, random)
    return a, b, c


def check_elements(name, arithmetic, a, b, c, got_bits, dot, count=60):
    """Compare `count` random elements with a rule stated per element."""
    shape, kind, _ = parse(name)
    a, b, c = multiplicands(kind, a), multiplicands(kind, b), from_bits(c, "f32")
    random = np.random.default_rng(len(name))
    for _ in range(count):
        block, i, j = random.integers(shape.blocks), random.integers(shape.m), random.integers(shape.m)
        with np.errstate(all="ignore"):
            expected = dot(a[block, i].tolist(), b[block, j].tolist(), float(c[block, i, j]))
        bits = int(got_bits[block, i, j])
        wanted = QUIET_NAN if math.isnan(expected) else int(np.float32(expected).view(np.uint32))
        assert bits == wanted, (
            name,
            arithmetic,
            a[block, i].tolist(),
            b[block, j].tolist(),
            c[block, i, j],
            expected,
            float(np.uint32(bits).view(np.float32)),
        )


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name, target", ROUNDED)
def test_strict_rounding(name, target, spread):
    a, b, c = random_case(name, spread, 2)
    rows = rows_of(name, a, b, c)
    results = [
        plain_kernels(target).run(name, rows, arithmetic="strict", host_level=level) for level in LEVELS
    ]
    assert all(np.array_equal(results[0], other) for other in results), "host levels differ"
    check_elements(name, "strict", a, b, c, result_bits(name, results[0]), sequential_dot)
    # Below avx512_bf16, `fast` is `strict`.
    fast = plain_kernels(target).run(name, rows, arithmetic="fast", host_level=LEVELS[:3][-1])
    assert np.array_equal(results[0], fast)


def rule(name: str):
    """The CDNA3 rule for the inputs of `name`; f32 is k-sequential there too."""
    _, kind, _ = parse(name)
    if kind == "f32":
        return sequential_dot
    return functools.partial(
        cdna3_dot, group=4 if kind == "xf32" else 8, smallest_exponent=-14 if kind == "f16" else -126
    )


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("name, target", ROUNDED)
def test_exact_rounding(name, target, spread):
    a, b, c = random_case(name, spread, 3)
    rows = rows_of(name, a, b, c)
    results = [
        plain_kernels(target).run(name, rows, arithmetic="exact", host_level=level) for level in LEVELS
    ]
    assert all(np.array_equal(results[0], other) for other in results), "host levels differ"
    check_elements(name, "exact", a, b, c, result_bits(name, results[0]), rule(name))


def test_exact_rounding_of_sparse_and_extreme_groups():
    """Zero products, groups of zeros, tiny groups next to large ones, products at the edge of f32's range."""
    name, target = "v_mfma_f32_16x16x16_bf16", "gfx942"
    random = np.random.default_rng(4)
    shape = (1, 16, 16)
    for _ in range(6):
        a = random.standard_normal(shape) * 2.0 ** random.integers(-126, 127, shape)
        b = random.standard_normal(shape) * 2.0 ** random.integers(-126, 127, shape)
        a[:, :, :8][random.random((1, 16, 8)) < 0.7] = 0
        a[:, ::3, 8:] = 0
        b[:, ::5] *= 2.0**-60
        c = random.standard_normal(shape) * 2.0 ** random.integers(-140, 127, shape)
        a, b, c = to_bits(a, "bf16"), to_bits(b, "bf16"), to_bits(c, "f32")
        out = plain_kernels(target).run(
            name, rows_of(name, a, b, c), arithmetic="exact", host_level=LEVELS[-1]
        )
        check_elements(name, "exact", a, b, c, result_bits(name, out), rule(name), 150)


def test_the_rules_differ():
    """The published rule rounds toward negative infinity: on ordinary data it differs from the sequential sum."""
    name = "v_mfma_f32_32x32x8_bf16"
    rows = rows_of(name, *random_case(name, 1, 5))
    strict, exact = (
        plain_kernels("gfx942").run(name, rows, arithmetic=arithmetic) for arithmetic in ("strict", "exact")
    )
    different = np.mean(strict[:16] != exact[:16])
    assert 0.02 < different < 0.6


@pytest.mark.skipif("avx512_bf16" not in LEVELS, reason="this CPU has no AVX512_BF16")
@pytest.mark.parametrize("spread", (1, 5, 40, "finite"))
@pytest.mark.parametrize(
    "name, target", [case for case in ROUNDED if "bf16" in case[0] and "4x4x4" not in case[0]]
)
def test_fast_bf16_is_the_hosts_dot_product(name, target, spread):
    a, b, c = random_case(name, spread, 6)
    out = plain_kernels(target).run(name, rows_of(name, a, b, c), arithmetic="fast", host_level="avx512_bf16")

    def dot(x, y, z):
        value = host_dot(x, y, z)
        return 0.0 if value == 0 else value  # the sign of an underflow depends on the host

    got = result_bits(name, out)
    got = np.where(got == 0x80000000, 0, got)
    # inf - inf: the host's own NaN.
    got = np.where((got & 0x7FFFFFFF) > 0x7F800000, QUIET_NAN, got)
    check_elements(name, "fast", a, b, c, got, dot)


def test_fast_stays_within_the_error_of_an_f32_sum():
    for name, target in ROUNDED:
        shape, kind, _ = parse(name)
        a, b, c = random_case(name, 1, 7)
        out = plain_kernels(target).run(name, rows_of(name, a, b, c), arithmetic="fast")
        left, right, start = multiplicands(kind, a), multiplicands(kind, b), from_bits(c, "f32")
        bound = np.einsum("bik,bjk->bij", abs(left), abs(right)) + abs(start)
        error = abs(from_bits(result_bits(name, out), "f32") - product(left, right, start))
        assert (error <= (shape.k + 1) * 2.0**-24 * bound).all(), name


def test_f64_is_a_fused_sum_in_order():
    random = np.random.default_rng(8)
    for name in ("v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"):
        shape, _, _ = parse(name)
        values = [random.standard_normal((shape.blocks, shape.m, n)) for n in (shape.k, shape.k, shape.m)]
        rows = rows_of(name, *(to_bits(v, "f64") for v in values))
        outs = [plain_kernels("gfx942").run(name, rows, host_level=level) for level in LEVELS]
        assert all(np.array_equal(outs[0], other) for other in outs), "host levels differ"
        got = from_bits(result_bits(name, outs[0]), "f64")
        for block, i, j in np.ndindex(got.shape):
            total = float(values[2][block, i, j])
            for k in range(shape.k):
                total = exact_fma(float(values[0][block, i, k]), float(values[1][block, j, k]), total)
            assert got[block, i, j] == total


def exact_fma(a: float, b: float, c: float) -> float:
    from fractions import Fraction

    return float(Fraction(a) * Fraction(b) + Fraction(c))  # Fraction to float rounds to nearest even


def test_integer_sums_wrap():
    name = "v_mfma_i32_16x16x32_i8"
    a = np.full((1, 16, 32), 127)
    c = np.full((1, 16, 16), 2**31 - 1)
    rows = rows_of(name, to_bits(a, "i8"), to_bits(a, "i8"), to_bits(c, "i32"))
    for level in LEVELS:
        got = result_bits(name, plain_kernels("gfx942").run(name, rows, host_level=level))
        assert (got == (2**31 - 1 + 32 * 127 * 127) % 2**32).all()


# --- operands and modifiers ----------------------------------------------------------------------------

NAME = "v_mfma_f32_16x16x16_f16"


def run_text(text: str, rows: np.ndarray, target: str = "gfx942", **settings) -> np.ndarray:
    return RegisterKernels({"k": kernel(text)}, target).run("k", rows, **settings)


@pytest.mark.parametrize("level", LEVELS)
def test_exec_is_ignored(level):
    rows, expected = integer_rows(NAME)
    out = run_text("s_mov_b64 exec, 5\n" + instruction(NAME) + "\ns_mov_b64 exec, -1", rows, host_level=level)
    assert np.array_equal(from_bits(result_bits(NAME, out), "f32"), expected)


def test_mode_is_ignored():
    """Denormals are kept and sums rounded to nearest even where MODE flushes f32 and rounds toward zero."""
    name = "v_mfma_f32_16x16x16_bf16"
    rows = rows_of(name, *random_case(name, "finite", 9))
    for arithmetic in ("strict", "exact"):
        outs = []
        for directives in (
            ".amdhsa_float_denorm_mode_32 0\n.amdhsa_float_round_mode_32 3",
            ".amdhsa_float_denorm_mode_32 3",
        ):
            kernels = RegisterKernels({"k": kernel(instruction(name))}, "gfx942", directives=directives)
            outs.append(kernels.run("k", rows, arithmetic=arithmetic))
        assert np.array_equal(outs[0], outs[1])


def test_accumulator_registers():
    """Every operand in AGPRs, and a mix."""
    rows, expected = integer_rows(NAME)
    to_agprs = "".join(f"v_accvgpr_write_b32 a{n - A}, v{n}\n" for n in range(A, A + 48))
    back = "".join(f"v_accvgpr_read_b32 v{D + n}, a{60 + n}\n" for n in range(4))
    for operands in ("a[60:63], a[0:1], a[8:9], a[16:19]", "a[60:63], v[16:17], a[8:9], a[16:19]"):
        out = run_text(f"{to_agprs}s_nop 7\n{NAME} {operands}\ns_nop 15\n{back}", rows)
        assert np.array_equal(from_bits(result_bits(NAME, out), "f32"), expected), operands


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "v_mfma_f32_32x32x8_bf16",
        "v_mfma_f32_4x4x4_16b_f16",
        "v_mfma_f64_16x16x4_f64",
        "v_mfma_f64_4x4x4_4b_f64",
        "v_mfma_i32_16x16x32_i8",
        "v_mfma_f32_32x32x4_2b_f16",
    ],
)
@pytest.mark.parametrize("arithmetic", ("fast", "exact"))
def test_constant_addend(name, arithmetic):
    _, _kind, output = parse(name)
    rows, _ = integer_rows(name)
    a, b, c = integers(name, 1)
    constants = {"0": 0, "7": 7, "-3": -3} if output == "i32" else {"0": 0, "1.0": 1, "-4.0": -4}
    for text, value in constants.items():
        out = run_text(instruction(name, c=text), rows, arithmetic=arithmetic)
        assert np.array_equal(
            from_bits(result_bits(name, out), output), product(a, b, np.full_like(c, value))
        ), text


@pytest.mark.parametrize(
    "name",
    [
        NAME,
        "v_mfma_f32_32x32x8_f16",
        "v_mfma_f32_16x16x16_bf16",
        "v_mfma_f32_4x4x4_16b_bf16",
        "v_mfma_f64_16x16x4_f64",
        "v_mfma_i32_16x16x32_i8",
    ],
)
def test_destination_over_its_sources(name):
    """D overlapping C, A and B: the sources are read before D is written."""
    shape, _, output = parse(name)
    rows, expected = integer_rows(name)
    count = shape.output_registers
    for first in (C, A, B if B + count <= C else 14):  # 14: from before A to past B
        text = instruction(name, d=span(first, count)) + "\ns_nop 15\n"
        text += "".join(f"v_mov_b32_e32 v{D + n}, v{first + n}\n" for n in range(count))
        out = run_text(text, rows)
        assert np.array_equal(from_bits(result_bits(name, out), output), expected), first


@pytest.mark.parametrize(
    "name, cbsz, abid",
    [
        ("v_mfma_f32_32x32x4_2b_f16", 1, 0),
        ("v_mfma_f32_32x32x4_2b_bf16", 1, 1),
        ("v_mfma_f32_16x16x4_4b_f16", 1, 1),
        ("v_mfma_f32_16x16x1_4b_f32", 2, 3),
        ("v_mfma_f32_4x4x4_16b_f16", 2, 1),
        ("v_mfma_f32_4x4x1_16b_f32", 4, 13),
        ("v_mfma_f32_4x4x4_16b_bf16", 3, 6),
        ("v_mfma_i32_16x16x4_4b_i8", 2, 2),
    ],
)
def test_broadcast_of_a_block(name, cbsz, abid):
    """CBSZ, ABID: each run of 2^CBSZ blocks multiplies with the A of its block ABID."""
    shape, _, output = parse(name)
    rows, _ = integer_rows(name)
    a, b, c = integers(name, 1)
    run = 1 << cbsz
    chosen = a[[block // run * run + abid for block in range(shape.blocks)]]
    out = run_text(instruction(name, modifiers=f"cbsz:{cbsz} abid:{abid}"), rows)
    assert np.array_equal(from_bits(result_bits(name, out), output), product(chosen, b, c))


@pytest.mark.parametrize(
    "name", ["v_mfma_f32_32x32x8_f16", "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x4_4b_f16"]
)
def test_lane_groups_of_b(name):
    """BLGP permutes the lanes B is read from."""
    shape, _, _output = parse(name)
    rows, _ = integer_rows(name)
    lanes = np.arange(64)
    patterns = {
        1: lanes % 32,
        2: lanes % 32 + 32,
        3: (lanes + 16) % 64,
        4: lanes % 16,
        5: lanes % 16 + 16,
        6: lanes % 16 + 32,
        7: lanes % 16 + 48,
    }
    for blgp, pattern in patterns.items():
        permuted = rows.copy()
        permuted[8:16] = rows[8:16][:, pattern]
        expected = plain_kernels("gfx942").run(name, permuted)
        out = run_text(instruction(name, modifiers=f"blgp:{blgp}"), rows)
        assert np.array_equal(out[: shape.output_registers], expected[: shape.output_registers]), blgp


@pytest.mark.parametrize("name", ["v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"])
def test_negation_in_f64(name):
    rows, _ = integer_rows(name)
    a, b, c = integers(name, 1)
    for signs in ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1)):
        out = run_text(instruction(name, modifiers=f"neg:[{signs[0]},{signs[1]},{signs[2]}]"), rows)
        expected = (-1) ** (signs[0] + signs[1]) * product(a, b, 0 * c) + (-1) ** signs[2] * c
        assert np.array_equal(from_bits(result_bits(name, out), "f64"), expected), signs


def test_broadcast_without_blocks_is_refused():
    rows, _ = integer_rows(NAME)
    with pytest.raises(SimulatorError, match="no meaning"):
        run_text(instruction(NAME, modifiers="cbsz:1"), rows)
