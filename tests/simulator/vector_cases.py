"""Instructions of the vector ALU with independently written scalar meanings.

A case is (mnemonic, destination kind, source kinds, meaning). Kinds: u/i 8..64 as ints, f16 f32 f64 as bit patterns,
pk_* as 32 bits, m a lane mask (bool). The meaning takes and returns Python ints.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tests.simulator.number_formats import BF16, F16, F32, F64

FORMATS = {"f16": F16, "f32": F32, "f64": F64}
WIDTH = {"16": 16, "32": 32, "64": 64}

EDGES = {
    "32": [0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF,
           0x800000, 0xFFFFFF, 0x1000000, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xAAAAAAAA, 0x55555555, 0xFFFFFFFE, 0xFFFFFFFF],
    "16": [0, 1, 2, 7, 8, 15, 16, 31, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF, 0xAAAA, 0x5555],
    "64": [0, 1, 31, 32, 63, 64, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 32) + 1, (1 << 63) - 1, 1 << 63,
           (1 << 63) + 1, (1 << 64) - 1, (1 << 64) - 2, 0xAAAAAAAA55555555],
}  # fmt: skip


def float_edges(name: str) -> list[int]:
    f = FORMATS[name]
    one = f.bias << f.mantissa_bits
    positive = [
        0, 1, 2, (1 << f.mantissa_bits) - 1, 1 << f.mantissa_bits, (1 << f.mantissa_bits) + 1, one - 1, one, one + 1,
        one + f.quiet_bit, one + (1 << f.mantissa_bits), one - (1 << f.mantissa_bits), one + (3 << f.mantissa_bits) + 1,
        (f.bias + f.mantissa_bits) << f.mantissa_bits, f.infinity - 1, f.infinity - (1 << f.mantissa_bits), f.infinity,
        f.infinity | 1, f.infinity | f.quiet_bit, f.infinity | f.quiet_bit | 5,
    ]  # fmt: skip
    return positive + [value | f.sign_bit for value in positive]


def edges(kind: str) -> list[int]:
    if kind in FORMATS:
        return float_edges(kind)
    if kind == "pk_f16":
        half = float_edges("f16")
        return [a | b << 16 for a, b in zip(half, half[7:] + half[:7], strict=True)]
    if kind.startswith("pk_"):
        half = EDGES["16"]
        return [a | b << 16 for a, b in zip(half, half[5:] + half[:5], strict=True)]
    return EDGES[kind[1:]]


def random_value(kind: str, source: random.Random) -> int:
    if kind in FORMATS:
        f = FORMATS[kind]
        near = f.bias + source.randint(-6, 6) if source.random() < 0.7 else source.randint(0, 2 * f.bias)
        return (
            source.getrandbits(1) << (f.bits - 1)
            | near << f.mantissa_bits
            | source.getrandbits(f.mantissa_bits)
        )
    if kind == "pk_f16":
        return random_value("f16", source) | random_value("f16", source) << 16
    bits = 32 if kind.startswith("pk_") else int(kind[1:])
    return source.getrandbits(source.randint(1, bits)) if source.random() < 0.3 else source.getrandbits(bits)


def samples(kinds: tuple[str, ...], count: int = 1024, seed: int = 1) -> list[np.ndarray]:
    """`count` tuples of source values, as arrays of waves x 64: pairs of edge values first, then random ones."""
    source = random.Random(f"{kinds}{seed}")
    if len(kinds) == 1:
        rows = [(value,) for value in edges(kinds[0])]
    elif len(kinds) == 2:
        rows = list(itertools.product(edges(kinds[0]), edges(kinds[1])))
        source.shuffle(rows)
        rows = rows[: count * 3 // 4]
    else:
        rows = [tuple(source.choice(edges(kind)) for kind in kinds) for _ in range(count // 2)]
    while len(rows) < count:
        rows.append(tuple(random_value(kind, source) for kind in kinds))
    source.shuffle(rows)
    return [np.array(column, np.uint64).reshape(-1, 64) for column in zip(*rows, strict=True)]


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    result: str
    sources: tuple[str, ...]
    meaning: Callable[..., int]
    accumulates: bool = False  # the last source is the destination

    def expected(self, values: list[np.ndarray]) -> np.ndarray:
        bits = width(self.result)
        flat = [
            [as_kind(kind, int(v)) for v in column.ravel()]
            for kind, column in zip(self.sources, values, strict=True)
        ]
        known: dict[tuple, int] = {}
        out = []
        for row in zip(*flat, strict=True):
            if row not in known:
                known[row] = int(self.meaning(*row)) & ((1 << bits) - 1)
            out.append(known[row])
        return np.array(out, np.uint64).reshape(values[0].shape)


def width(kind: str) -> int:
    if kind in FORMATS:
        return FORMATS[kind].bits
    return 32 if kind.startswith("pk_") or kind == "m" else int(kind[1:])


def as_kind(kind: str, value: int) -> int:
    if kind == "m":
        return value
    value &= (1 << width(kind)) - 1
    if kind.startswith("i"):
        return value - (1 << width(kind)) if value >> (width(kind) - 1) else value
    return value


def operand(register: int, kind: str, mask: str = "s[36:37]") -> str:
    if kind == "m":
        return mask
    return f"v[{register}:{register + 1}]" if width(kind) == 64 else f"v{register}"


def text_of(case: Case) -> str:
    sources = case.sources[:-1] if case.accumulates else case.sources
    operands = [operand(32, case.result), *(operand(16 + 2 * i, kind) for i, kind in enumerate(sources))]
    return f"{case.name} {', '.join(operands)}"


# ---- Integers.


def clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def median(a, b, c):
    return sorted((a, b, c))[1]


def highest(a: int) -> int:
    return 32 - a.bit_length() if a else -1


def lowest(a: int) -> int:
    return (a & -a).bit_length() - 1


def highest_signed(a: int) -> int:
    same = a if a >= 0 else ~a
    return highest(same)


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bytes_of(a: int) -> list[int]:
    return [a >> shift & 0xFF for shift in (0, 8, 16, 24)]


def permute(a: int, b: int, selector: int) -> int:
    data = bytes_of(b) + bytes_of(a)
    out = 0
    for i, select in enumerate(bytes_of(selector)):
        if select >= 13:
            byte = 0xFF
        elif select == 12:
            byte = 0
        elif select >= 8:
            byte = 0xFF if data[2 * (select - 8) + 1] & 0x80 else 0
        else:
            byte = data[select]
        out |= byte << 8 * i
    return out


def sad(a: int, b: int, *, skip_zero: bool = False) -> int:
    return sum(
        abs(x - y) for x, y in zip(bytes_of(a), bytes_of(b), strict=True) if not (skip_zero and y == 0)
    )


def halves(a: int) -> tuple[int, int]:
    return a & 0xFFFF, a >> 16


def packed(function, *sources: int, bits: int = 16) -> int:
    low = function(*(s & 0xFFFF for s in sources)) & 0xFFFF
    return low | (function(*(s >> 16 for s in sources)) & 0xFFFF) << 16


def packed_signed(function, *sources: int) -> int:
    return packed(lambda *x: function(*(signed(v, 16) for v in x)), *sources)


def dot(a: int, b: int, c: int, bits: int, is_signed: bool) -> int:
    take = (lambda v: signed(v, bits)) if is_signed else (lambda v: v & ((1 << bits) - 1))
    return c + sum(take(a >> s) * take(b >> s) for s in range(0, 32, bits))


U, S = "u32", "i32"
INTEGER = [
    Case("v_mov_b32_e32", U, (U,), lambda a: a),
    Case("v_not_b32_e32", U, (U,), lambda a: ~a),
    Case("v_bfrev_b32_e32", U, (U,), lambda a: int(f"{a:032b}"[::-1], 2)),
    Case("v_ffbh_u32_e32", U, (U,), highest),
    Case("v_ffbl_b32_e32", U, (U,), lowest),
    Case("v_ffbh_i32_e32", U, (S,), highest_signed),
    Case("v_add_u32_e32", U, (U, U), lambda a, b: a + b),
    Case("v_sub_u32_e32", U, (U, U), lambda a, b: a - b),
    Case("v_subrev_u32_e32", U, (U, U), lambda a, b: b - a),
    Case("v_add_i32", U, (S, S), lambda a, b: a + b),
    Case("v_sub_i32", U, (S, S), lambda a, b: a - b),
    Case("v_mul_lo_u32", U, (U, U), lambda a, b: a * b),
    Case("v_mul_hi_u32", U, (U, U), lambda a, b: a * b >> 32),
    Case("v_mul_hi_i32", U, (S, S), lambda a, b: a * b >> 32),
    Case("v_mul_i32_i24_e32", U, (U, U), lambda a, b: signed(a, 24) * signed(b, 24)),
    Case("v_mul_u32_u24_e32", U, (U, U), lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF)),
    Case("v_mul_hi_i32_i24_e32", U, (U, U), lambda a, b: signed(a, 24) * signed(b, 24) >> 32),
    Case("v_mul_hi_u32_u24_e32", U, (U, U), lambda a, b: (a & 0xFFFFFF) * (b & 0xFFFFFF) >> 32),
    Case("v_mad_i32_i24", U, (U, U, U), lambda a, b, c: signed(a, 24) * signed(b, 24) + c),
    Case("v_mad_u32_u24", U, (U, U, U), lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c),
    Case("v_mad_u32_u16", U, ("u16", "u16", U), lambda a, b, c: a * b + c),
    Case("v_mad_i32_i16", U, ("i16", "i16", U), lambda a, b, c: a * b + c),
    Case("v_min_i32_e32", U, (S, S), min),
    Case("v_max_i32_e32", U, (S, S), max),
    Case("v_min_u32_e32", U, (U, U), min),
    Case("v_max_u32_e32", U, (U, U), max),
    Case("v_min3_i32", U, (S, S, S), min),
    Case("v_max3_i32", U, (S, S, S), max),
    Case("v_med3_i32", U, (S, S, S), median),
    Case("v_min3_u32", U, (U, U, U), min),
    Case("v_max3_u32", U, (U, U, U), max),
    Case("v_med3_u32", U, (U, U, U), median),
    Case("v_and_b32_e32", U, (U, U), lambda a, b: a & b),
    Case("v_or_b32_e32", U, (U, U), lambda a, b: a | b),
    Case("v_xor_b32_e32", U, (U, U), lambda a, b: a ^ b),
    Case("v_xnor_b32_e32", U, (U, U), lambda a, b: ~(a ^ b)),
    Case("v_lshlrev_b32_e32", U, (U, U), lambda a, b: b << (a & 31)),
    Case("v_lshrrev_b32_e32", U, (U, U), lambda a, b: b >> (a & 31)),
    Case("v_ashrrev_i32_e32", U, (U, S), lambda a, b: b >> (a & 31)),
    Case("v_and_or_b32", U, (U, U, U), lambda a, b, c: a & b | c),
    Case("v_or3_b32", U, (U, U, U), lambda a, b, c: a | b | c),
    Case("v_xad_u32", U, (U, U, U), lambda a, b, c: (a ^ b) + c),
    Case("v_add3_u32", U, (U, U, U), lambda a, b, c: a + b + c),
    Case("v_lshl_or_b32", U, (U, U, U), lambda a, b, c: a << (b & 31) | c),
    Case("v_lshl_add_u32", U, (U, U, U), lambda a, b, c: (a << (b & 31)) + c),
    Case("v_add_lshl_u32", U, (U, U, U), lambda a, b, c: (a + b) << (c & 31)),
    Case("v_bfe_u32", U, (U, U, U), lambda a, b, c: a >> (b & 31) & ((1 << (c & 31)) - 1)),
    Case("v_bfe_i32", U, (S, U, U), lambda a, b, c: signed(a >> (b & 31), c & 31) if c & 31 else 0),
    Case("v_bfi_b32", U, (U, U, U), lambda a, b, c: a & b | ~a & c),
    Case("v_bfm_b32", U, (U, U), lambda a, b: ((1 << (a & 31)) - 1) << (b & 31)),
    Case("v_alignbit_b32", U, (U, U, U), lambda a, b, c: (a << 32 | b) >> (c & 31)),
    Case("v_alignbyte_b32", U, (U, U, U), lambda a, b, c: (a << 32 | b) >> 8 * (c & 3)),
    Case("v_perm_b32", U, (U, U, U), permute),
    Case("v_bcnt_u32_b32", U, (U, U), lambda a, b: a.bit_count() + b),
    Case("v_sad_u8", U, (U, U, U), lambda a, b, c: sad(a, b) + c),
    Case("v_sad_hi_u8", U, (U, U, U), lambda a, b, c: (sad(a, b) << 16) + c),
    Case("v_msad_u8", U, (U, U, U), lambda a, b, c: sad(a, b, skip_zero=True) + c),
    Case("v_sad_u16", U, (U, U, U), lambda a, b, c: abs((a & 0xFFFF) - (b & 0xFFFF)) + abs((a >> 16) - (b >> 16)) + c),
    Case("v_sad_u32", U, (U, U, U), lambda a, b, c: abs(a - b) + c),
    Case("v_lerp_u8", U, (U, U, U), lambda a, b, c: sum(
        (x + y + (z & 1) >> 1) << 8 * i for i, (x, y, z) in enumerate(zip(bytes_of(a), bytes_of(b), bytes_of(c), strict=True)))),
    Case("v_sat_pk_u8_i16_e32", U, (U,), lambda a: clamp(signed(a, 16), 0, 255) | clamp(signed(a >> 16, 16), 0, 255) << 8),
    Case("v_ashr_pk_i8_i32", U, (S, S, U), lambda a, b, c: (clamp(a >> (c & 31), -128, 127) & 0xFF)
         | (clamp(b >> (c & 31), -128, 127) & 0xFF) << 8),
    Case("v_ashr_pk_u8_i32", U, (S, S, U), lambda a, b, c: clamp(a >> (c & 31), 0, 255) | clamp(b >> (c & 31), 0, 255) << 8),
    Case("v_prng_b32_e32", U, (U,), lambda a: a << 1 ^ (197 if a >> 31 else 0)),
    Case("v_bitop3_b32", U, (U, U, U), lambda a, b, c: a & b & ~c | ~a & c),  # text below names the table

    Case("v_lshlrev_b64", "u64", (U, "u64"), lambda a, b: b << (a & 63)),
    Case("v_lshrrev_b64", "u64", (U, "u64"), lambda a, b: b >> (a & 63)),
    Case("v_ashrrev_i64", "u64", (U, "i64"), lambda a, b: b >> (a & 63)),
    Case("v_lshl_add_u64", "u64", ("u64", U, "u64"), lambda a, b, c: (a << (b & 7)) + c),
    Case("v_mov_b64_e32", "u64", ("u64",), lambda a: a),

    # 16-bit results: the old instructions clear the upper half.
    Case("v_add_u16_e32", U, ("u16", "u16"), lambda a, b: a + b & 0xFFFF),
    Case("v_sub_u16_e32", U, ("u16", "u16"), lambda a, b: a - b & 0xFFFF),
    Case("v_subrev_u16_e32", U, ("u16", "u16"), lambda a, b: b - a & 0xFFFF),
    Case("v_mul_lo_u16_e32", U, ("u16", "u16"), lambda a, b: a * b & 0xFFFF),
    Case("v_lshlrev_b16_e32", U, ("u16", "u16"), lambda a, b: b << (a & 15) & 0xFFFF),
    Case("v_lshrrev_b16_e32", U, ("u16", "u16"), lambda a, b: b >> (a & 15)),
    Case("v_ashrrev_i16_e32", U, ("u16", "i16"), lambda a, b: b >> (a & 15) & 0xFFFF),
    Case("v_max_u16_e32", U, ("u16", "u16"), max),
    Case("v_min_u16_e32", U, ("u16", "u16"), min),
    Case("v_max_i16_e32", U, ("i16", "i16"), lambda a, b: max(a, b) & 0xFFFF),
    Case("v_min_i16_e32", U, ("i16", "i16"), lambda a, b: min(a, b) & 0xFFFF),
    Case("v_mad_legacy_u16", U, ("u16", "u16", "u16"), lambda a, b, c: a * b + c & 0xFFFF),
    Case("v_mad_legacy_i16", U, ("i16", "i16", "i16"), lambda a, b, c: a * b + c & 0xFFFF),
    Case("v_pack_b32_f16", U, ("u16", "u16"), lambda a, b: a | b << 16),

    Case("v_pk_mad_i16", U, ("pk_i16",) * 3, lambda a, b, c: packed(lambda x, y, z: x * y + z, a, b, c)),
    Case("v_pk_mad_u16", U, ("pk_i16",) * 3, lambda a, b, c: packed(lambda x, y, z: x * y + z, a, b, c)),
    Case("v_pk_mul_lo_u16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: x * y, a, b)),
    Case("v_pk_add_i16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: x + y, a, b)),
    Case("v_pk_add_u16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: x + y, a, b)),
    Case("v_pk_sub_i16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: x - y, a, b)),
    Case("v_pk_sub_u16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: x - y, a, b)),
    Case("v_pk_lshlrev_b16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: y << (x & 15), a, b)),
    Case("v_pk_lshrrev_b16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: y >> (x & 15), a, b)),
    Case("v_pk_ashrrev_i16", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: signed(y, 16) >> (x & 15), a, b)),
    Case("v_pk_max_i16", U, ("pk_i16",) * 2, lambda a, b: packed_signed(max, a, b)),
    Case("v_pk_min_i16", U, ("pk_i16",) * 2, lambda a, b: packed_signed(min, a, b)),
    Case("v_pk_max_u16", U, ("pk_i16",) * 2, lambda a, b: packed(max, a, b)),
    Case("v_pk_min_u16", U, ("pk_i16",) * 2, lambda a, b: packed(min, a, b)),
    Case("v_dot2_i32_i16", U, ("pk_i16", "pk_i16", U), lambda a, b, c: dot(a, b, c, 16, True)),
    Case("v_dot2_u32_u16", U, ("pk_i16", "pk_i16", U), lambda a, b, c: dot(a, b, c, 16, False)),
    Case("v_dot4_i32_i8", U, (U, U, U), lambda a, b, c: dot(a, b, c, 8, True)),
    Case("v_dot4_u32_u8", U, (U, U, U), lambda a, b, c: dot(a, b, c, 8, False)),
    Case("v_dot8_i32_i4", U, (U, U, U), lambda a, b, c: dot(a, b, c, 4, True)),
    Case("v_dot8_u32_u4", U, (U, U, U), lambda a, b, c: dot(a, b, c, 4, False)),
    Case("v_dot4c_i32_i8_e32", U, (U, U, U), lambda a, b, c: dot(a, b, c, 8, True), accumulates=True),
    Case("v_dot2c_i32_i16_e32", U, (U, U, U), lambda a, b, c: dot(a, b, c, 16, True), accumulates=True),
    Case("v_dot8c_i32_i4_e32", U, (U, U, U), lambda a, b, c: dot(a, b, c, 4, True), accumulates=True),

    # With clamp: saturation.
    Case("v_add_u32_e64:clamp", U, (U, U), lambda a, b: min(a + b, 0xFFFFFFFF)),
    Case("v_sub_u32_e64:clamp", U, (U, U), lambda a, b: max(a - b, 0)),
    Case("v_subrev_u32_e64:clamp", U, (U, U), lambda a, b: max(b - a, 0)),
    Case("v_add_i32:clamp", U, (S, S), lambda a, b: clamp(a + b, -(1 << 31), (1 << 31) - 1)),
    Case("v_sub_i32:clamp", U, (S, S), lambda a, b: clamp(a - b, -(1 << 31), (1 << 31) - 1)),
    Case("v_add_u16_e64:clamp", U, ("u16", "u16"), lambda a, b: min(a + b, 0xFFFF)),
    Case("v_sub_u16_e64:clamp", U, ("u16", "u16"), lambda a, b: max(a - b, 0)),
    Case("v_pk_add_u16:clamp", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: min(x + y, 0xFFFF), a, b)),
    Case("v_pk_sub_u16:clamp", U, ("pk_i16",) * 2, lambda a, b: packed(lambda x, y: max(x - y, 0), a, b)),
    Case("v_pk_add_i16:clamp", U, ("pk_i16",) * 2,
         lambda a, b: packed_signed(lambda x, y: clamp(x + y, -32768, 32767), a, b)),
    Case("v_pk_sub_i16:clamp", U, ("pk_i16",) * 2,
         lambda a, b: packed_signed(lambda x, y: clamp(x - y, -32768, 32767), a, b)),
]  # fmt: skip

# ---- Floats.


def integral(f, how):
    def apply(a):
        if not f.is_finite(a):
            return f.quiet(a) if f.is_nan(a) else a
        return f.round(Fraction(how(f.value(a)))) & ~f.sign_bit | (a & f.sign_bit)

    return apply


def floor(value):
    return value.numerator // value.denominator


def ceiling(value):
    return -floor(-value)


def truncate(value):
    return floor(value) if value >= 0 else ceiling(value)


def nearest(value):
    return round(value)  # Python rounds fractions to even


def fraction(f):
    def apply(a):
        if not f.is_finite(a):
            return f.quiet(a) if f.is_nan(a) else f.generated_nan
        value = f.value(a) - floor(f.value(a))
        below_one = (f.bias << f.mantissa_bits) - 1
        return min(f.round(value), below_one)

    return apply


def load_exponent(f):
    def apply(a, n):
        if not f.is_finite(a):
            return f.quiet(a) if f.is_nan(a) else a
        return f.round(abs(f.value(a)) * Fraction(2) ** clamp(n, -3000, 3000)) | (a & f.sign_bit)

    return apply


def binary_exponent(value: Fraction) -> int:
    """e with |value| = m * 2^e, m in [1/2, 1)."""
    value = abs(value)
    e = value.numerator.bit_length() - value.denominator.bit_length()
    return e + 1 if value >= Fraction(2) ** e else e


def frexp_exponent(f):
    return lambda a: 0 if not f.is_finite(a) or f.is_zero(a) else binary_exponent(f.value(a))


def frexp_mantissa(f):
    def apply(a):
        if not f.is_finite(a) or f.is_zero(a):
            return f.quiet(a) if f.is_nan(a) else a
        return f.round(f.value(a) / Fraction(2) ** binary_exponent(f.value(a)))

    return apply


def median_number(f):
    def apply(a, b, c):
        low = f.minimum_number
        if f.is_nan(a) or f.is_nan(b) or f.is_nan(c):
            return low(low(a, b), c)
        return sorted((a, b, c), key=f.key)[1]

    return apply


def either_nan(f, function):
    def apply(a, b):
        nan = f.first_nan(a, b)
        return function(a, b) if nan is None else nan

    return apply


def to_integer(f, low, high, how=truncate):
    def apply(a):
        if f.is_nan(a):
            return 0
        if f.is_infinite(a):
            return low if f.is_negative(a) else high
        return clamp(how(f.value(a)), low, high)

    return apply


def square_root(f):
    def apply(a):
        if f.is_nan(a):
            return f.quiet(a)
        if f.is_zero(a) or a == f.infinity:
            return a
        if f.is_negative(a):
            return f.generated_nan
        # Enough bits below the rounding place, with a sticky bit.
        value = f.value(a)
        shift = 2 * (f.mantissa_bits + 8) + 2 * f.bias
        scaled = value * Fraction(4) ** shift
        whole = scaled.numerator // scaled.denominator
        root = math.isqrt(whole)
        sticky = 0 if root * root == whole and scaled.denominator == 1 else 1
        return f.round(Fraction(2 * root + sticky, 2) / Fraction(2) ** shift)

    return apply


def pair(f, function, *sources):
    return function(*(s & 0xFFFF for s in sources)) | function(*(s >> 16 for s in sources)) << 16


def norm(low, scale):
    def apply(a, f=F32):
        if f.is_nan(a):
            return 0
        value = (
            Fraction(low if f.is_negative(a) else 1)
            if f.is_infinite(a)
            else clamp(f.value(a), Fraction(low), Fraction(1))
        )
        return round(F32.value(F32.round(value * scale))) & 0xFFFF

    return apply


snorm, unorm = norm(-1, 32767), norm(0, 65535)


def cube_major(a, b, c):
    def at_least(p, q):
        return F32.compare(F32.magnitude(p), F32.magnitude(q)) in (0, 1)

    return "z" if at_least(c, a) and at_least(c, b) else "y" if at_least(b, a) else "x"


def arithmetic(prefix: str, f, kind: str, suffix: str = "_e32") -> list[Case]:
    wide = "f64" in prefix
    e32 = "" if wide else suffix
    cases = [
        Case(f"v_add_{prefix}{e32}", kind, (kind, kind), f.add),
        Case(f"v_mul_{prefix}{e32}", kind, (kind, kind), f.multiply),
        Case(f"v_fma_{prefix}", kind, (kind,) * 3, f.fma),
        Case(f"v_min_{prefix}{e32}", kind, (kind, kind), f.minimum_number),
        Case(f"v_max_{prefix}{e32}", kind, (kind, kind), f.maximum_number),
        Case(f"v_trunc_{prefix}_e32", kind, (kind,), integral(f, truncate)),
        Case(f"v_ceil_{prefix}_e32", kind, (kind,), integral(f, ceiling)),
        Case(f"v_floor_{prefix}_e32", kind, (kind,), integral(f, floor)),
        Case(f"v_rndne_{prefix}_e32", kind, (kind,), integral(f, nearest)),
        Case(f"v_fract_{prefix}_e32", kind, (kind,), fraction(f)),
        Case(f"v_ldexp_{prefix}{'_e32' if prefix == 'f16' else ''}", kind, (kind, "i16" if prefix == "f16" else "i32"),
             load_exponent(f)),
        Case(f"v_frexp_exp_{'i16' if prefix == 'f16' else 'i32'}_{prefix}_e32", "i16" if prefix == "f16" else "i32", (kind,),
             frexp_exponent(f)),
        Case(f"v_frexp_mant_{prefix}_e32", kind, (kind,), frexp_mantissa(f)),
        Case(f"v_sqrt_{prefix}_e32", kind, (kind,), square_root(f)),
        Case(f"v_rcp_{prefix}_e32", kind, (kind,), lambda a: f.divide(f.bias << f.mantissa_bits, a)),
    ]  # fmt: skip
    if not wide:
        cases += [
            Case(
                f"v_sub_{prefix}_e32",
                kind,
                (kind, kind),
                lambda a, b: f.first_nan(a, b) or f.add(a, f.negate(b)),
            ),
            Case(
                f"v_subrev_{prefix}_e32",
                kind,
                (kind, kind),
                lambda a, b: f.first_nan(a, b) or f.add(b, f.negate(a)),
            ),
            Case(
                f"v_min3_{prefix}",
                kind,
                (kind,) * 3,
                lambda a, b, c: f.minimum_number(f.minimum_number(a, b), c),
            ),
            Case(
                f"v_max3_{prefix}",
                kind,
                (kind,) * 3,
                lambda a, b, c: f.maximum_number(f.maximum_number(a, b), c),
            ),
            Case(f"v_med3_{prefix}", kind, (kind,) * 3, median_number(f)),
        ]
    return cases


MAXIMUM, MINIMUM = either_nan(F32, F32.maximum_number), either_nan(F32, F32.minimum_number)
FLOAT = [
    *arithmetic("f32", F32, "f32"),
    *arithmetic("f16", F16, "f16"),
    *arithmetic("f64", F64, "f64"),
    Case("v_fmac_f32_e32", "f32", ("f32",) * 3, F32.fma, accumulates=True),
    Case("v_fmac_f64_e32", "f64", ("f64",) * 3, F64.fma, accumulates=True),
    Case("v_rcp_iflag_f32_e32", "f32", ("f32",), lambda a: F32.divide(0x3F800000, a)),
    Case("v_mul_legacy_f32", "f32", ("f32", "f32"), lambda a, b: 0 if F32.is_zero(a) or F32.is_zero(b) else F32.multiply(a, b)),
    Case("v_minimum3_f32", "f32", ("f32",) * 3, lambda a, b, c: MINIMUM(MINIMUM(a, b), c)),
    Case("v_maximum3_f32", "f32", ("f32",) * 3, lambda a, b, c: MAXIMUM(MAXIMUM(a, b), c)),
    Case("v_mad_legacy_f16", "f16", ("f16",) * 3,
         lambda a, b, c: n if (n := F16.first_nan(a, b, c)) is not None else F16.add(F16.multiply(a, b), c)),
    Case("v_pk_add_f16", "pk_f16", ("pk_f16",) * 2, lambda a, b: pair(F16, F16.add, a, b)),
    Case("v_pk_mul_f16", "pk_f16", ("pk_f16",) * 2, lambda a, b: pair(F16, F16.multiply, a, b)),
    Case("v_pk_fma_f16", "pk_f16", ("pk_f16",) * 3, lambda a, b, c: pair(F16, F16.fma, a, b, c)),
    Case("v_pk_min_f16", "pk_f16", ("pk_f16",) * 2, lambda a, b: pair(F16, F16.minimum_number, a, b)),
    Case("v_pk_max_f16", "pk_f16", ("pk_f16",) * 2, lambda a, b: pair(F16, F16.maximum_number, a, b)),
    Case("v_pk_fmac_f16_e32", "pk_f16", ("pk_f16",) * 3, lambda a, b, c: pair(F16, F16.fma, a, b, c), accumulates=True),
    Case("v_cubeid_f32", "f32", ("f32",) * 3, lambda a, b, c: F32.round(Fraction(
        {"z": 4 + (F32.compare(c, 0) == -1), "y": 2 + (F32.compare(b, 0) == -1), "x": 0 + (F32.compare(a, 0) == -1)}[
            cube_major(a, b, c)]))),
]  # fmt: skip

# ---- Conversions.


def to_bf16(a):
    if F32.is_nan(a):
        return a >> 16 | 0x40
    return F32.convert(a, BF16)


def to_f16(a, **how):
    return F32.convert(a, F16, **how)


I32_LIMITS, U32_LIMITS = (-(1 << 31), (1 << 31) - 1), (0, (1 << 32) - 1)
CONVERT = [
    Case("v_cvt_f32_i32_e32", "f32", (S,), lambda a: F32.round(Fraction(a))),
    Case("v_cvt_f32_u32_e32", "f32", (U,), lambda a: F32.round(Fraction(a))),
    Case("v_cvt_i32_f32_e32", S, ("f32",), to_integer(F32, *I32_LIMITS)),
    Case("v_cvt_u32_f32_e32", U, ("f32",), to_integer(F32, *U32_LIMITS)),
    Case("v_cvt_flr_i32_f32_e32", S, ("f32",), to_integer(F32, *I32_LIMITS, how=floor)),
    Case("v_cvt_rpi_i32_f32_e32", S, ("f32",), lambda a: to_integer(F32, *I32_LIMITS, how=floor)(F32.add(a, 0x3F000000))),
    Case("v_cvt_off_f32_i4_e32", "f32", (U,), lambda a: F32.round(Fraction(signed(a, 4), 16))),
    *(Case(f"v_cvt_f32_ubyte{i}_e32", "f32", (U,), lambda a, i=i: F32.round(Fraction(a >> 8 * i & 0xFF))) for i in range(4)),
    Case("v_cvt_f64_f32_e32", "f64", ("f32",), lambda a: F32.convert(a, F64)),
    Case("v_cvt_f32_f64_e32", "f32", ("f64",), lambda a: F64.convert(a, F32)),
    Case("v_cvt_f64_i32_e32", "f64", (S,), lambda a: F64.round(Fraction(a))),
    Case("v_cvt_f64_u32_e32", "f64", (U,), lambda a: F64.round(Fraction(a))),
    Case("v_cvt_i32_f64_e32", S, ("f64",), to_integer(F64, *I32_LIMITS)),
    Case("v_cvt_u32_f64_e32", U, ("f64",), to_integer(F64, *U32_LIMITS)),
    Case("v_cvt_f16_f32_e32", U, ("f32",), to_f16),
    Case("v_cvt_f32_f16_e32", "f32", ("f16",), lambda a: F16.convert(a, F32)),
    Case("v_cvt_f16_u16_e32", U, ("u16",), lambda a: F16.round(Fraction(a))),
    Case("v_cvt_f16_i16_e32", U, ("i16",), lambda a: F16.round(Fraction(a))),
    Case("v_cvt_u16_f16_e32", U, ("f16",), to_integer(F16, 0, 0xFFFF)),
    Case("v_cvt_i16_f16_e32", U, ("f16",), lambda a: to_integer(F16, -32768, 32767)(a) & 0xFFFF),
    Case("v_cvt_norm_i16_f16_e32", U, ("f16",), lambda a: snorm(F16.convert(a, F32))),
    Case("v_cvt_norm_u16_f16_e32", U, ("f16",), lambda a: unorm(F16.convert(a, F32))),
    Case("v_cvt_f32_bf16_e32", "f32", ("u16",), lambda a: a << 16),
    Case("v_cvt_pk_bf16_f32", U, ("f32", "f32"), lambda a, b: to_bf16(a) | to_bf16(b) << 16),
    Case("v_cvt_pk_f16_f32", U, ("f32", "f32"), lambda a, b: to_f16(a) | to_f16(b) << 16),
    Case("v_cvt_pkrtz_f16_f32", U, ("f32", "f32"), lambda a, b: to_f16(a, toward_zero=True) | to_f16(b, toward_zero=True) << 16),
    Case("v_cvt_pknorm_i16_f32", U, ("f32", "f32"), lambda a, b: snorm(a) | snorm(b) << 16),
    Case("v_cvt_pknorm_u16_f32", U, ("f32", "f32"), lambda a, b: unorm(a) | unorm(b) << 16),
    Case("v_cvt_pknorm_i16_f16", U, ("f16", "f16"), lambda a, b: snorm(F16.convert(a, F32)) | snorm(F16.convert(b, F32)) << 16),
    Case("v_cvt_pknorm_u16_f16", U, ("f16", "f16"), lambda a, b: unorm(F16.convert(a, F32)) | unorm(F16.convert(b, F32)) << 16),
    Case("v_cvt_pk_u16_u32", U, (U, U), lambda a, b: min(a, 0xFFFF) | min(b, 0xFFFF) << 16),
    Case("v_cvt_pk_i16_i32", U, (S, S), lambda a, b: (clamp(a, -32768, 32767) & 0xFFFF) | (clamp(b, -32768, 32767) & 0xFFFF) << 16),
    Case("v_cvt_pk_u8_f32", U, ("f32", U, U), lambda a, b, c: c & ~(0xFF << 8 * (b & 3))
         | to_integer(F32, 0, 255)(a) << 8 * (b & 3)),
]  # fmt: skip

ALL_CASES = [*INTEGER, *FLOAT, *CONVERT]


def assembly(case: Case) -> str:
    name, _, modifier = case.name.partition(":")
    text = text_of(dataclasses.replace(case, name=name))
    if name.startswith("v_bitop3"):
        text += " bitop3:0x4a"  # a & b & ~c | ~a & c: products 110, 001, 011
    return f"{text} {modifier}".strip()
