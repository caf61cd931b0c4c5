"""Scalar instructions in Python integers, from the CDNA3 ISA manual's descriptions.

Each entry: operand widths (result, first, second source; 0 for none) and a function of (a, b, d, scc) to
(result, scc). `d` is the destination's old value. A comparison has no result.
"""

from __future__ import annotations

from collections.abc import Callable

Meaning = Callable[[int, int, int, int], tuple[int, int]]
REFERENCE: dict[str, tuple[tuple[int, int, int], Meaning]] = {}


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def bit_string(value: int, bits: int) -> str:
    """Most significant bit first."""
    return format(value, f"0{bits}b")


def define(name: str, widths: tuple[int, int, int], meaning: Meaning) -> None:
    result_bits = widths[0]

    def within_width(a: int, b: int, d: int, scc: int) -> tuple[int, int]:
        result, new_scc = meaning(a, b, d, scc)
        return result % (1 << result_bits) if result_bits else 0, int(new_scc)

    REFERENCE[name] = (widths, within_width)


def define_plain(name: str, widths: tuple[int, int, int], function: Callable[[int, int], int]) -> None:
    """Define an instruction that leaves SCC unchanged."""
    define(name, widths, lambda a, b, d, scc: (function(a, b), scc))


def define_nonzero(name: str, widths: tuple[int, int, int], function: Callable[[int, int], int]) -> None:
    """Define an instruction that sets SCC to whether the result is nonzero."""
    bits = widths[0]
    define(name, widths, lambda a, b, d, scc: (function(a, b), function(a, b) % (1 << bits) != 0))


def _find(text: str, digit: str) -> int:
    return text.find(digit)  # -1 if there is none, as the instruction specifies


def _quads(value: int, bits: int) -> list[bool]:
    return [value >> at & 15 != 0 for at in range(0, bits, 4)]


for bits in (32, 64):
    one, two = (bits, bits, 0), (bits, bits, bits)
    define_plain(f"s_mov_b{bits}", one, lambda a, b: a)
    define(f"s_cmov_b{bits}", one, lambda a, b, d, scc: (a if scc else d, scc))
    define_nonzero(f"s_not_b{bits}", one, lambda a, b: ~a)
    define_nonzero(
        f"s_wqm_b{bits}", one, lambda a, b, n=bits: sum(15 << 4 * i for i, q in enumerate(_quads(a, n)) if q)
    )
    define_nonzero(
        f"s_quadmask_b{bits}", one, lambda a, b, n=bits: sum(1 << i for i, q in enumerate(_quads(a, n)) if q)
    )
    define_plain(f"s_brev_b{bits}", one, lambda a, b, n=bits: int(bit_string(a, n)[::-1], 2))
    for digit in "01":
        define_nonzero(
            f"s_bcnt{digit}_i32_b{bits}",
            (32, bits, 0),
            lambda a, b, n=bits, c=digit: bit_string(a, n).count(c),
        )
        define_plain(
            f"s_ff{digit}_i32_b{bits}",
            (32, bits, 0),
            lambda a, b, n=bits, c=digit: _find(bit_string(a, n)[::-1], c),
        )
    define_plain(f"s_flbit_i32_b{bits}", (32, bits, 0), lambda a, b, n=bits: _find(bit_string(a, n), "1"))
    define(f"s_bitset0_b{bits}", (bits, 32, 0), lambda a, b, d, scc, n=bits: (d & ~(1 << a % n), scc))
    define(f"s_bitset1_b{bits}", (bits, 32, 0), lambda a, b, d, scc, n=bits: (d | 1 << a % n, scc))
    define(f"s_bitcmp0_b{bits}", (0, bits, 32), lambda a, b, d, scc, n=bits: (0, not a >> b % n & 1))
    define(f"s_bitcmp1_b{bits}", (0, bits, 32), lambda a, b, d, scc, n=bits: (0, a >> b % n & 1))
    define(f"s_cselect_b{bits}", two, lambda a, b, d, scc: (a if scc else b, scc))
    define_nonzero(f"s_and_b{bits}", two, lambda a, b: a & b)
    define_nonzero(f"s_or_b{bits}", two, lambda a, b: a | b)
    define_nonzero(f"s_xor_b{bits}", two, lambda a, b: a ^ b)
    define_nonzero(f"s_andn2_b{bits}", two, lambda a, b: a & ~b)
    define_nonzero(f"s_orn2_b{bits}", two, lambda a, b: a | ~b)
    define_nonzero(f"s_nand_b{bits}", two, lambda a, b: ~(a & b))
    define_nonzero(f"s_nor_b{bits}", two, lambda a, b: ~(a | b))
    define_nonzero(f"s_xnor_b{bits}", two, lambda a, b: ~(a ^ b))
    shift = (bits, bits, 32)
    define_nonzero(f"s_lshl_b{bits}", shift, lambda a, b, n=bits: a << b % n)
    define_nonzero(f"s_lshr_b{bits}", shift, lambda a, b, n=bits: a >> b % n)
    define_nonzero(f"s_ashr_i{bits}", shift, lambda a, b, n=bits: signed(a, n) >> b % n)
    define_plain(f"s_bfm_b{bits}", (bits, 32, 32), lambda a, b, n=bits: ((1 << a % n) - 1) << b % n)

    def field(a: int, b: int, n: int, is_signed: bool) -> int:
        width = min(b >> 16 & 127, n)
        value = (signed(a, n) if is_signed else a) >> (b % n)
        value &= (1 << width) - 1
        return signed(value, width) if is_signed and width else value

    define_nonzero(f"s_bfe_u{bits}", shift, lambda a, b, n=bits, f=field: f(a, b, n, False))
    define_nonzero(f"s_bfe_i{bits}", shift, lambda a, b, n=bits, f=field: f(a, b, n, True))

define_plain("s_flbit_i32", (32, 32, 0), lambda a, b: _find(bit_string(a, 32), "10"[a >> 31]))
define_plain("s_flbit_i32_i64", (32, 64, 0), lambda a, b: _find(bit_string(a, 64), "10"[a >> 63]))
define_plain("s_sext_i32_i8", (32, 32, 0), lambda a, b: signed(a & 0xFF, 8))
define_plain("s_sext_i32_i16", (32, 32, 0), lambda a, b: signed(a & 0xFFFF, 16))
define_nonzero("s_abs_i32", (32, 32, 0), lambda a, b: abs(signed(a, 32)))
define_plain(
    "s_bitreplicate_b64_b32", (64, 32, 0), lambda a, b: int("".join(c * 2 for c in bit_string(a, 32)), 2)
)

BINARY = (32, 32, 32)
define("s_add_u32", BINARY, lambda a, b, d, scc: (a + b, a + b >= 1 << 32))
define("s_addc_u32", BINARY, lambda a, b, d, scc: (a + b + scc, a + b + scc >= 1 << 32))
define("s_sub_u32", BINARY, lambda a, b, d, scc: (a - b, a < b))
define("s_subb_u32", BINARY, lambda a, b, d, scc: (a - b - scc, a - b - scc < 0))


def overflows(value: int) -> bool:
    return not -(1 << 31) <= value < 1 << 31


define("s_add_i32", BINARY, lambda a, b, d, scc: (a + b, overflows(signed(a, 32) + signed(b, 32))))
define("s_sub_i32", BINARY, lambda a, b, d, scc: (a - b, overflows(signed(a, 32) - signed(b, 32))))
define("s_min_u32", BINARY, lambda a, b, d, scc: (min(a, b), a < b))
define("s_max_u32", BINARY, lambda a, b, d, scc: (max(a, b), a >= b))
define(
    "s_min_i32",
    BINARY,
    lambda a, b, d, scc: (min(signed(a, 32), signed(b, 32)), signed(a, 32) < signed(b, 32)),
)
define(
    "s_max_i32",
    BINARY,
    lambda a, b, d, scc: (max(signed(a, 32), signed(b, 32)), signed(a, 32) >= signed(b, 32)),
)
define_plain("s_mul_i32", BINARY, lambda a, b: a * b)
define_plain("s_mul_hi_u32", BINARY, lambda a, b: a * b >> 32)
define_plain("s_mul_hi_i32", BINARY, lambda a, b: signed(a, 32) * signed(b, 32) >> 32)
# The difference wraps to 32 bits before its absolute value is taken.
define_nonzero("s_absdiff_i32", BINARY, lambda a, b: abs(signed((a - b) % (1 << 32), 32)))
for shift_by in (1, 2, 3, 4):
    define(
        f"s_lshl{shift_by}_add_u32", BINARY,
        lambda a, b, d, scc, n=shift_by: ((a << n) + b, (a << n) + b >= 1 << 32),
    )  # fmt: skip
define_plain("s_pack_ll_b32_b16", BINARY, lambda a, b: a % (1 << 16) | b % (1 << 16) << 16)
define_plain("s_pack_lh_b32_b16", BINARY, lambda a, b: a % (1 << 16) | b >> 16 << 16)
define_plain("s_pack_hh_b32_b16", BINARY, lambda a, b: a >> 16 | b >> 16 << 16)

COMPARISONS = {
    "eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
}  # fmt: skip
for name, compare in COMPARISONS.items():
    define(f"s_cmp_{name}_u32", (0, 32, 32), lambda a, b, d, scc, f=compare: (0, f(a, b)))
    define(
        f"s_cmp_{name}_i32", (0, 32, 32), lambda a, b, d, scc, f=compare: (0, f(signed(a, 32), signed(b, 32)))
    )
for name in ("eq", "lg"):
    define(f"s_cmp_{name}_u64", (0, 64, 64), lambda a, b, d, scc, f=COMPARISONS[name]: (0, f(a, b)))

# (source, EXEC) to the new EXEC.
EXEC_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "and": lambda s, e: s & e,
    "or": lambda s, e: s | e,
    "xor": lambda s, e: s ^ e,
    "andn2": lambda s, e: s & ~e,
    "orn2": lambda s, e: s | ~e,
    "nand": lambda s, e: ~(s & e),
    "nor": lambda s, e: ~(s | e),
    "xnor": lambda s, e: ~(s ^ e),
    "andn1": lambda s, e: ~s & e,
    "orn1": lambda s, e: ~s | e,
}
