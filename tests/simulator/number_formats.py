"""Binary floating-point formats in exact arithmetic: the reference for the simulator's arithmetic.

Values are bit patterns (ints). Arithmetic goes through fractions, so that there is exactly one, explicit rounding.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class Format:
    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_bit(self) -> int:
        return 1 << (self.bits - 1)

    @property
    def infinity(self) -> int:
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def quiet_bit(self) -> int:
        return 1 << (self.mantissa_bits - 1)

    @property
    def generated_nan(self) -> int:  # of 0 * inf and the like
        return self.sign_bit | self.infinity | self.quiet_bit

    def magnitude(self, a: int) -> int:
        return a & (self.sign_bit - 1)

    def is_nan(self, a: int) -> bool:
        return self.magnitude(a) > self.infinity

    def is_signaling(self, a: int) -> bool:
        return self.is_nan(a) and not a & self.quiet_bit

    def is_infinite(self, a: int) -> bool:
        return self.magnitude(a) == self.infinity

    def is_finite(self, a: int) -> bool:
        return self.magnitude(a) < self.infinity

    def is_zero(self, a: int) -> bool:
        return self.magnitude(a) == 0

    def is_negative(self, a: int) -> bool:
        return bool(a & self.sign_bit)

    def quiet(self, a: int) -> int:
        return a | self.quiet_bit

    def value(self, a: int) -> Fraction:
        exponent = a >> self.mantissa_bits & ((1 << self.exponent_bits) - 1)
        mantissa = a & ((1 << self.mantissa_bits) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        power = max(exponent, 1) - self.bias - self.mantissa_bits
        result = Fraction(mantissa) * Fraction(2) ** power
        return -result if self.is_negative(a) else result

    def round(self, value: Fraction, *, negative_zero: bool = False, toward_zero: bool = False) -> int:
        """Round to nearest even (or toward zero); overflow gives infinity (toward zero: the largest finite value)."""
        if value == 0:
            return self.sign_bit if negative_zero else 0
        sign = self.sign_bit if value < 0 else 0
        value = abs(value)
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        if Fraction(2) ** exponent > value:
            exponent -= 1
        exponent = max(exponent, 1 - self.bias)
        scaled = value / Fraction(2) ** (exponent - self.mantissa_bits)
        whole, rest = divmod(scaled.numerator, scaled.denominator)
        twice = 2 * rest
        if not toward_zero and (twice > scaled.denominator or (twice == scaled.denominator and whole & 1)):
            whole += 1
        # Adding the significand with its hidden bit lets a carry run into the exponent.
        result = ((exponent + self.bias - 1) << self.mantissa_bits) + whole
        if result >= self.infinity:
            result = self.infinity - (1 if toward_zero else 0)
        return sign | result

    def first_nan(self, *sources: int) -> int | None:
        for source in sources:
            if self.is_nan(source):
                return self.quiet(source)
        return None

    def add(self, a: int, b: int) -> int:
        if (nan := self.first_nan(a, b)) is not None:
            return nan
        if self.is_infinite(a):
            return self.generated_nan if self.is_infinite(b) and a != b else a
        if self.is_infinite(b):
            return b
        return self.round(
            self.value(a) + self.value(b), negative_zero=self.is_negative(a) and self.is_negative(b)
        )

    def negate(self, a: int) -> int:
        return a ^ self.sign_bit

    def multiply(self, a: int, b: int) -> int:
        if (nan := self.first_nan(a, b)) is not None:
            return nan
        negative = self.is_negative(a) != self.is_negative(b)
        if self.is_infinite(a) or self.is_infinite(b):
            if self.is_zero(a) or self.is_zero(b):
                return self.generated_nan
            return self.infinity | (self.sign_bit if negative else 0)
        return self.round(self.value(a) * self.value(b), negative_zero=negative) | (
            self.sign_bit if negative else 0
        )

    def fma(self, a: int, b: int, c: int) -> int:
        if (nan := self.first_nan(a, b, c)) is not None:
            return nan
        negative = self.is_negative(a) != self.is_negative(b)
        if self.is_infinite(a) or self.is_infinite(b):
            if self.is_zero(a) or self.is_zero(b):
                return self.generated_nan
            product = self.infinity | (self.sign_bit if negative else 0)
            return self.generated_nan if self.is_infinite(c) and c != product else product
        if self.is_infinite(c):
            return c
        exact = self.value(a) * self.value(b) + self.value(c)
        return self.round(exact, negative_zero=negative and self.is_negative(c))

    def divide(self, a: int, b: int) -> int:
        if (nan := self.first_nan(a, b)) is not None:
            return nan
        sign = self.sign_bit if self.is_negative(a) != self.is_negative(b) else 0
        if (self.is_infinite(a) and self.is_infinite(b)) or (self.is_zero(a) and self.is_zero(b)):
            return self.generated_nan
        if self.is_infinite(a) or self.is_zero(b):
            return self.infinity | sign
        if self.is_infinite(b) or self.is_zero(a):
            return sign
        return self.round(abs(self.value(a)) / abs(self.value(b))) | sign

    def key(self, a: int) -> int:
        """A sort key with the order of the hardware's minimum and maximum: -0 before +0."""
        return -self.magnitude(a) - 1 if self.is_negative(a) else self.magnitude(a)

    def number(self, a: int, b: int, choose) -> int:
        """IEEE minimumNumber and maximumNumber with MODE.IEEE: a signaling NaN is quieted, otherwise the other operand is returned."""
        if self.is_signaling(a):
            return self.quiet(a)
        if self.is_signaling(b):
            return self.quiet(b)
        if self.is_nan(a):
            return b
        if self.is_nan(b):
            return a
        return choose(a, b, key=self.key)

    def minimum_number(self, a: int, b: int) -> int:
        return self.number(a, b, min)

    def maximum_number(self, a: int, b: int) -> int:
        return self.number(a, b, max)

    def compare(self, a: int, b: int) -> int | None:
        """-1, 0, 1; None if unordered."""
        if self.is_nan(a) or self.is_nan(b):
            return None
        x, y = (0 if self.is_zero(v) else self.key(v) + (1 if self.is_negative(v) else 0) for v in (a, b))
        return (x > y) - (x < y)

    def convert(self, a: int, to: Format, **how) -> int:
        sign = to.sign_bit if self.is_negative(a) else 0
        if self.is_nan(a):
            mantissa = a & ((1 << self.mantissa_bits) - 1)
            shift = to.mantissa_bits - self.mantissa_bits
            return (
                sign | to.infinity | to.quiet_bit | (mantissa << shift if shift >= 0 else mantissa >> -shift)
            )
        if self.is_infinite(a):
            return sign | to.infinity
        return to.round(abs(self.value(a)), **how) | sign


F16, BF16, F32, F64 = Format(5, 10), Format(8, 7), Format(8, 23), Format(11, 52)
