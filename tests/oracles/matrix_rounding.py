"""How matrix instructions accumulate, element by element in exact rational arithmetic.

`cdna3_dot` is the rule MMA-Sim derived from hardware (arXiv 2511.10909, github.com/microsoft/MMA-Sim, "TR_FDPA"
with F = 24 and F2 = 31), rewritten from its description with integers and fractions; `cdna3_dot_of_bytes` is its rule
for 8-bit floats ("GTR_FDPA").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

QUIET_NAN = 0x7FC00000


def round_to_f32(value: Fraction) -> float:
    """Round to nearest even, with f32's denormals and overflow; the result is a Python float that is exactly an f32."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, -126) - 23)
    steps = magnitude / quantum
    whole = math.floor(steps)
    rest = steps - whole
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2):
        whole += 1
    rounded = whole * quantum
    result = math.inf if rounded >= Fraction(2) ** 128 else float(rounded)
    return -result if value < 0 else result


def fused_multiply_add(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c  # only the kind of the result matters
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        # Exact zero sums are +0 unless both addends are -0.
        product_negative = math.copysign(1, a) * math.copysign(1, b) < 0
        zero_product = a == 0 or b == 0
        return -0.0 if zero_product and product_negative and c == 0 and math.copysign(1, c) < 0 else 0.0
    result = round_to_f32(exact)
    return math.copysign(result, -1) if exact < 0 else result


def sequential_dot(a: Sequence[float], b: Sequence[float], c: float) -> float:
    """The strict rule: one fused multiply-add per k, in order."""
    for x, y in zip(a, b, strict=True):
        c = fused_multiply_add(x, y, c)
    return c


def host_dot(a: Sequence[float], b: Sequence[float], c: float) -> float:
    """vdpbf16ps: pairs of k, the odd one first; denormal inputs and results are zero."""

    def flushed(value: float) -> float:
        return math.copysign(0.0, value) if abs(value) < 2.0**-126 else value

    c = flushed(c)
    for k in range(0, len(a), 2):
        for i in (k + 1, k):
            c = flushed(fused_multiply_add(flushed(a[i]), flushed(b[i]), c))
    return c


def _split(value: float, smallest_exponent: int) -> tuple[Fraction, int]:
    if value == 0:
        return Fraction(0), smallest_exponent
    exponent = max(math.frexp(value)[1] - 1, smallest_exponent)
    return Fraction(value) / Fraction(2) ** exponent, exponent


def _aligned_sum(products: Sequence[tuple[Fraction, int]]) -> tuple[Fraction, int]:
    """The largest exponent, and the sum truncated to 24 fractional bits relative to it."""
    largest = max(exponent for _, exponent in products)
    kept = (Fraction(math.trunc(s * Fraction(2) ** (e - largest + 24)), 2**24) for s, e in products)
    return sum(kept, Fraction(0)), largest


def _floor(value: Fraction, bits: int) -> Fraction:
    return Fraction(math.floor(value * 2**bits), 2**bits)


def _cdna3_group(a: Sequence[float], b: Sequence[float], c: float, smallest_exponent: int) -> float:
    products: list[tuple[Fraction, int]] = []
    special = 0.0 if math.isfinite(c) else c
    for x, y in zip(a, b, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            special += x * y
            continue
        if abs(Fraction(x) * Fraction(y)) >= Fraction(2) ** 128:
            special += math.inf if (x > 0) == (y > 0) else -math.inf
            continue
        (x_significand, x_exponent), (y_significand, y_exponent) = (
            _split(x, smallest_exponent),
            _split(y, smallest_exponent),
        )
        significand = x_significand * y_significand
        products.append((significand, x_exponent + y_exponent if significand else -126))
    if special != 0:  # true for NaN too
        return special
    total, largest = _aligned_sum(products)
    c_significand, c_exponent = _split(c, -126)
    top = max(largest, c_exponent)
    kept = _floor(total * Fraction(2) ** (largest - top), 31)
    kept_c = _floor(c_significand * Fraction(2) ** (c_exponent - top), 24)
    return round_to_f32((kept + kept_c) * Fraction(2) ** top)


def cdna3_dot(
    a: Sequence[float], b: Sequence[float], c: float, *, group: int, smallest_exponent: int
) -> float:
    """f16 (group 8, smallest exponent -14), bf16 (8, -126), xf32 (4, -126)."""
    for first in range(0, len(a), group):
        c = _cdna3_group(a[first : first + group], b[first : first + group], c, smallest_exponent)
    return c


def cdna3_dot_of_bytes(
    a: Sequence[float], b: Sequence[float], c: float, *, smallest_of_a: int, smallest_of_b: int
) -> float:
    """fp8 and bf8: groups of 16, in which even and odd k are summed separately."""
    special = sum((x * y for x, y in zip(a, b, strict=True) if not math.isfinite(x * y)), 0.0)
    if special != 0:
        return special + c
    if not math.isfinite(c):
        return c
    for first in range(0, len(a), 16):
        halves = []
        for parity in (0, 1):
            products = []
            for k in range(first + parity, first + 16, 2):
                x_significand, x_exponent = _split(a[k], smallest_of_a)
                y_significand, y_exponent = _split(b[k], smallest_of_b)
                significand = x_significand * y_significand
                products.append((significand, x_exponent + y_exponent if significand else -126))
            halves.append(_aligned_sum(products))
        largest = max(exponent for _, exponent in halves)
        total = sum((_floor(value * Fraction(2) ** (e - largest), 24) for value, e in halves), Fraction(0))
        c_significand, c_exponent = _split(c, -126)
        top = max(largest, c_exponent)
        kept = _floor(total * Fraction(2) ** (largest - top), 31)
        kept_c = (
            _floor(c_significand * Fraction(2) ** (c_exponent - top), 24)
            if c_exponent >= top - 25
            else Fraction(0)
        )
        c = round_to_f32((kept + kept_c) * Fraction(2) ** top)
    return c
