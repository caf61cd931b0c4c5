"""fp8 and bf8 conversions: all bit patterns, and rounding to nearest even, in the FNUZ (gfx942) and OCP (gfx950) formats."""

import bisect
import dataclasses
import functools
from fractions import Fraction

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.simulator.number_formats import F32
from tests.simulator.vector_cases import samples
from tests.simulator.vector_kernels import HOST_LEVELS, load, run

OLD = 0x1234ABCD_CAFEF00D


@dataclasses.dataclass(frozen=True)
class Byte:
    mantissa_bits: int
    bias: int
    is_fnuz: bool
    largest: int
    nans: tuple[int, ...]
    infinity: int | None = None

    @functools.cache  # noqa: B019
    def magnitudes(self) -> list[Fraction]:
        return [self.value(code) for code in range(self.largest + 1)]

    def value(self, code: int) -> Fraction | float:
        sign, magnitude = (-1 if code & 0x80 else 1), code & 0x7F
        if code in self.nans:
            return float("nan")
        if magnitude == self.infinity:
            return sign * float("inf")
        exponent, mantissa = magnitude >> self.mantissa_bits, magnitude & ((1 << self.mantissa_bits) - 1)
        if exponent:
            mantissa |= 1 << self.mantissa_bits
        return sign * mantissa * Fraction(2) ** (max(exponent, 1) - self.bias - self.mantissa_bits)

    def encode(self, bits: int) -> int:
        sign = 0x80 if F32.is_negative(bits) else 0
        beyond = 0x80 if self.is_fnuz else sign | (self.infinity or 0x7F)
        if F32.is_nan(bits):
            return 0x80 if self.is_fnuz else sign | 0x7F
        if F32.is_infinite(bits):
            return beyond
        value = abs(F32.value(bits))
        values = self.magnitudes()
        above = bisect.bisect_left(values, value)
        near = [code for code in (above - 1, above) if 0 <= code <= self.largest]
        code = min(near, key=lambda code: (abs(values[code] - value), code & 1))
        # Beyond the largest value, rounding is as if the next encoding were its successor: halfway rounds to the even one.
        step = self.value(self.largest) - self.value(self.largest - 1)
        limit = self.value(self.largest) + step / 2
        if value > limit or (value == limit and self.largest & 1):
            return beyond
        return 0 if code == 0 and self.is_fnuz else sign | code


FORMATS = {
    ("gfx942", "fp8"): Byte(3, 8, True, 0x7F, (0x80,)),
    ("gfx942", "bf8"): Byte(2, 16, True, 0x7F, (0x80,)),
    ("gfx950", "fp8"): Byte(3, 7, False, 0x7E, (0x7F, 0xFF)),
    ("gfx950", "bf8"): Byte(2, 15, False, 0x7B, (0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF), 0x7C),
}


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    return request.param


@pytest.fixture(scope="module")
def module(target):
    bodies = {}
    for kind in ("fp8", "bf8"):
        bodies[f"one_{kind}"] = f"v_cvt_f32_{kind}_e32 v32, v16"
        bodies[f"byte_{kind}"] = f"v_cvt_f32_{kind}_sdwa v32, v16 src0_sel:BYTE_2"
        bodies[f"two_{kind}"] = f"v_cvt_pk_f32_{kind}_sdwa v[32:33], v16 src0_sel:WORD_1"
        bodies[f"pack_{kind}"] = f"v_cvt_pk_{kind}_f32 v32, v16, v18"
        bodies[f"pack_saturated_{kind}"] = (
            "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\ns_nop 1\n"
            f"v_cvt_pk_{kind}_f32 v32, v16, v18\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 0"
        )
        bodies[f"pack_high_{kind}"] = f"v_cvt_pk_{kind}_f32 v32, -v16, |v18| op_sel:[0,0,1]"
    return load(bodies, target)


def same(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    return (got == want) | (np.isnan(got) & np.isnan(want))


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_every_code(module, target, kind):
    values = np.array([float(FORMATS[target, kind].value(code)) for code in range(256)], np.float32)
    codes = np.arange(256, dtype=np.uint64).reshape(4, 64)
    for level in HOST_LEVELS:
        got = (
            run(module, f"one_{kind}", [codes | 0xABCD00], host_level=level)
            .destination.astype(np.uint32)
            .view(np.float32)
        )
        assert same(got.ravel(), values).all(), level
    got = (
        run(module, f"byte_{kind}", [codes << np.uint64(16) | 0x55])
        .destination.astype(np.uint32)
        .view(np.float32)
    )
    assert same(got.ravel(), values).all()
    pairs = codes << np.uint64(16) | codes[::-1] << np.uint64(24)
    both = (
        run(module, f"two_{kind}", [pairs])
        .destination.copy()
        .view(np.uint32)
        .view(np.float32)
        .reshape(4, 64, 2)
    )
    assert same(both[..., 0].ravel(), values).all()
    assert same(both[::-1, :, 1].ravel(), values).all()


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_rounding(module, target, kind):
    byte = FORMATS[target, kind]
    a, b = samples(("f32", "f32"), 512)
    random = np.random.default_rng(3)
    # Around every value and every midpoint between two.
    grid = np.array([float(byte.value(code)) for code in range(byte.largest + 1)], np.float32)
    middle = (grid[1:] + grid[:-1]) / 2
    near = np.concatenate(
        [grid, middle, np.nextafter(middle, np.float32(0)), np.nextafter(middle, np.float32(1e9))]
    )
    a = np.concatenate([a, np.resize(near.view(np.uint32), 512).reshape(8, 64).astype(np.uint64)])
    b = np.concatenate([b, random.permutation(a[-8:].ravel()).reshape(8, 64)])
    encode = np.vectorize(lambda bits: byte.encode(int(bits)), otypes=[np.uint64])
    low, high = encode(a), encode(b)
    for level in HOST_LEVELS:
        got = run(module, f"pack_{kind}", [a, b], old=OLD, host_level=level).destination
        assert (got == (low | high << np.uint64(8) | np.uint64(OLD & ~0xFFFF))).all(), level
    low, high = encode(a ^ np.uint64(1 << 31)), encode(b & np.uint64((1 << 31) - 1))
    got = run(module, f"pack_high_{kind}", [a, b], old=OLD).destination
    assert (got == (low << np.uint64(16) | high << np.uint64(24) | np.uint64(OLD & ~0xFFFF0000))).all()


@pytest.mark.parametrize("kind", ["fp8", "bf8"])
def test_finite_values_stay_finite_where_mode_says_so(module, target, kind):
    """MODE.FP16_OVFL, which Triton sets before it casts to fp8."""
    byte = FORMATS[target, kind]
    largest = float(byte.value(byte.largest))
    values = np.array(
        [largest, 1.01 * largest, 1.2 * largest, 1e30, 3e38, 0.5, -largest, -2 * largest], np.float32
    )
    a = np.resize(values, 256).view(np.uint32).reshape(4, 64).astype(np.uint64)
    want = np.clip(values, -largest, largest)
    for level in HOST_LEVELS:
        codes = run(
            module, f"pack_saturated_{kind}", [a, a], old=OLD, host_level=level
        ).destination & np.uint64(0xFF)
        got = np.array([float(byte.value(int(code))) for code in codes.ravel()[:8]], np.float32)
        np.testing.assert_array_equal(got, want)
    infinity = np.full((4, 64), 0x7F800000, np.uint64)
    with_mode = run(module, f"pack_saturated_{kind}", [infinity, infinity], old=OLD).destination
    np.testing.assert_array_equal(
        with_mode, run(module, f"pack_{kind}", [infinity, infinity], old=OLD).destination
    )
