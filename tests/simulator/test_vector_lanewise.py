"""Sums of byte differences, digits of 2/pi, and integer results that saturate under clamp."""

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.simulator.number_formats import F32
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels
from tests.simulator.scalar_reference import signed

M32, M64 = (1 << 32) - 1, (1 << 64) - 1
EDGES = (
    0,
    1,
    0x7F,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x7FFFFF,
    0x800000,
    0xFFFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFF00FF00,
    M32,
)


def limit(value: int, bits: int, is_signed: bool) -> int:
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if is_signed else (0, (1 << bits) - 1)
    return min(max(value, low), high) & ((1 << bits) - 1)


def parts(value: int, bits: int, is_signed: bool, width: int = 32) -> list[int]:
    fields = [value >> shift & ((1 << bits) - 1) for shift in range(0, width, bits)]
    return [signed(field, bits) for field in fields] if is_signed else fields


def differences(a: int, b: int, masked: bool = False) -> int:
    return sum(
        abs(x - y) for x, y in zip(parts(a, 8, False), parts(b, 8, False), strict=True) if y or not masked
    )


def dot(a: int, b: int, bits: int, is_signed: bool) -> int:
    return sum(x * y for x, y in zip(parts(a, bits, is_signed), parts(b, bits, is_signed), strict=True))


def i(value: int, bits: int = 32) -> int:
    return signed(value & ((1 << bits) - 1), bits)


def u(value: int, bits: int = 32) -> int:
    return value & ((1 << bits) - 1)


# For three dwords: the instruction's result with clamp.
SATURATING = {
    "v_mul_i32_i24": lambda a, b, c: limit(i(a, 24) * i(b, 24), 32, True),
    "v_mul_u32_u24": lambda a, b, c: limit(u(a, 24) * u(b, 24), 32, False),
    "v_mad_i32_i24": lambda a, b, c: limit(i(a, 24) * i(b, 24) + i(c), 32, True),
    "v_mad_u32_u24": lambda a, b, c: limit(u(a, 24) * u(b, 24) + c, 32, False),
    "v_mad_i32_i16": lambda a, b, c: limit(i(a, 16) * i(b, 16) + i(c), 32, True),
    "v_mad_u32_u16": lambda a, b, c: limit(u(a, 16) * u(b, 16) + c, 32, False),
    "v_mad_legacy_i16": lambda a, b, c: limit(i(a, 16) * i(b, 16) + i(c, 16), 16, True),
    "v_mad_legacy_u16": lambda a, b, c: limit(u(a, 16) * u(b, 16) + u(c, 16), 16, False),
    "v_sad_u8": lambda a, b, c: limit(differences(a, b) + c, 32, False),
    "v_sad_hi_u8": lambda a, b, c: limit((differences(a, b) << 16) + c, 32, False),
    "v_msad_u8": lambda a, b, c: limit(differences(a, b, True) + c, 32, False),
    "v_sad_u16": lambda a, b, c: limit(abs(u(a, 16) - u(b, 16)) + abs((a >> 16) - (b >> 16)) + c, 32, False),
    "v_sad_u32": lambda a, b, c: limit(abs(a - b) + c, 32, False),
    "v_dot2_i32_i16": lambda a, b, c: limit(dot(a, b, 16, True) + i(c), 32, True),
    "v_dot2_u32_u16": lambda a, b, c: limit(dot(a, b, 16, False) + c, 32, False),
    "v_dot4_i32_i8": lambda a, b, c: limit(dot(a, b, 8, True) + i(c), 32, True),
    "v_dot4_u32_u8": lambda a, b, c: limit(dot(a, b, 8, False) + c, 32, False),
    "v_dot8_i32_i4": lambda a, b, c: limit(dot(a, b, 4, True) + i(c), 32, True),
    "v_dot8_u32_u4": lambda a, b, c: limit(dot(a, b, 4, False) + c, 32, False),
    "v_pk_mad_i16": lambda a, b, c: limit(i(a, 16) * i(b, 16) + i(c, 16), 16, True)
    | limit(i(a >> 16, 16) * i(b >> 16, 16) + i(c >> 16, 16), 16, True) << 16,
    "v_pk_mad_u16": lambda a, b, c: limit(u(a, 16) * u(b, 16) + u(c, 16), 16, False)
    | limit((a >> 16) * (b >> 16) + (c >> 16), 16, False) << 16,
    # Where nothing can overflow, clamp has no effect.
    "v_max3_i16": lambda a, b, c: max(i(a, 16), i(b, 16), i(c, 16)) & 0xFFFF,
    "v_alignbit_b32": lambda a, b, c: (a << 32 | b) >> (c & 31) & M32,
}  # fmt: skip
TWO_SOURCES = {"v_mul_i32_i24", "v_mul_u32_u24"}
KEEPS_UPPER_HALF = {"v_max3_i16"}
# The accumulating forms replace the third source by their destination.
ACCUMULATING = {
    "v_dot2c_i32_i16": "v_dot2_i32_i16",
    "v_dot4c_i32_i8": "v_dot4_i32_i8",
    "v_dot8c_i32_i4": "v_dot8_i32_i4",
}
CARRIES = {
    "v_add_co_u32": lambda a, b, carry: a + b,
    "v_sub_co_u32": lambda a, b, carry: a - b,
    "v_subrev_co_u32": lambda a, b, carry: b - a,
    "v_addc_co_u32": lambda a, b, carry: a + b + carry,
    "v_subb_co_u32": lambda a, b, carry: a - b - carry,
    "v_subbrev_co_u32": lambda a, b, carry: b - a - carry,
}

KERNELS = {}
for name in SATURATING:
    sources = "v16, v17" if name in TWO_SOURCES else "v16, v17, v18"
    suffix = "_e64" if name in TWO_SOURCES else ""
    KERNELS[name] = RegisterKernel(
        f"v_mov_b32 v64, 0\n{name}{suffix} v64, {sources} clamp", inputs=4, outputs=1
    )
for name in ACCUMULATING:
    KERNELS[name] = RegisterKernel(f"v_mov_b32 v64, v18\n{name}_e64 v64, v16, v17 clamp", inputs=4, outputs=1)
for name in CARRIES:
    carry = ", s[20:21]" if name in ("v_addc_co_u32", "v_subb_co_u32", "v_subbrev_co_u32") else ""
    KERNELS[name] = RegisterKernel(
        "v_cmp_lt_i32_e64 s[20:21], v18, 0\n"
        f"{name}_e64 v64, s[22:23], v16, v17{carry} clamp\nv_cndmask_b32_e64 v65, 0, 1, s[22:23]",
        inputs=4,
        outputs=2,
    )
for name in ("u64_u32", "i64_i32"):
    for flag in ("", "_clamp"):
        KERNELS[f"v_mad_{name}{flag}"] = RegisterKernel(
            f"v_mad_{name} v[64:65], s[22:23], v16, v17, v[18:19]{flag.replace('_', ' ')}\nv_cndmask_b32_e64 v66, 0, 1, s[22:23]",
            inputs=4,
            outputs=3,
        )
for flag in ("", "_clamp"):
    for name in ("v_qsad_pk_u16_u8", "v_mqsad_pk_u16_u8"):
        KERNELS[name + flag] = RegisterKernel(
            f"{name} v[64:65], v[16:17], v18, v[20:21]{flag.replace('_', ' ')}", inputs=8, outputs=2
        )
    KERNELS["v_mqsad_u32_u8" + flag] = RegisterKernel(
        f"v_mqsad_u32_u8 v[64:67], v[16:17], v18, v[20:23]{flag.replace('_', ' ')}", inputs=8, outputs=4
    )
KERNELS["v_trig_preop_f64"] = RegisterKernel("v_trig_preop_f64 v[64:65], v[16:17], v18", inputs=4, outputs=2)
KERNELS["v_cvt_pkaccum_u8_f32"] = RegisterKernel(
    "v_mov_b32 v64, v18\nv_cvt_pkaccum_u8_f32 v64, v16, v17", inputs=4, outputs=1
)


@pytest.fixture(scope="module", params=TARGETS)
def kernels(request):
    return RegisterKernels(KERNELS, request.param)


def rows(name: str, count: int) -> np.ndarray:
    """Edge values in as many combinations as fit into 64 lanes, then random ones."""
    source = random.Random(name)
    values = [
        [source.choice(EDGES) if lane < 40 else source.getrandbits(32) for lane in range(64)]
        for _ in range(count)
    ]
    return np.array(values, np.uint32)


def lanes(array: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(int(value) for value in column) for column in array.T]


def pair(low: int, high: int) -> int:
    return low | high << 32


@pytest.mark.parametrize("level", LEVELS[-1:] + LEVELS[:1])
@pytest.mark.parametrize("name", [*SATURATING, *ACCUMULATING])
def test_clamped_results_saturate(kernels, name, level):
    given = rows(name, 4)
    got = kernels.run(name, given, host_level=level)[0]
    meaning = SATURATING[ACCUMULATING.get(name, name)]
    assert [int(value) for value in got] == [meaning(*lane[:3]) for lane in lanes(given)]


@pytest.mark.parametrize("name", CARRIES)
def test_clamped_carries(kernels, name):
    given = rows(name, 4)
    for lane, got in zip(lanes(given), lanes(kernels.run(name, given)), strict=True):
        value = CARRIES[name](lane[0], lane[1], lane[2] >> 31)
        assert got == (limit(value, 32, False), int(value < 0 or value > M32))


@pytest.mark.parametrize("flag", ["", "_clamp"])
@pytest.mark.parametrize("name", ["u64_u32", "i64_i32"])
def test_wide_multiply_add(kernels, name, flag):
    given, is_signed = rows(name, 4), name[0] == "i"
    for lane, got in zip(lanes(given), lanes(kernels.run(f"v_mad_{name}{flag}", given)), strict=True):
        a, b, c = lane[0], lane[1], pair(lane[2], lane[3])
        value = i(a) * i(b) + signed(c, 64) if is_signed else a * b + c
        result = limit(value, 64, is_signed) if flag else value & M64
        assert pair(*got[:2]) == result
        assert got[2] == (int(value < 0) if is_signed else int(value > M64))


@pytest.mark.parametrize("flag", ["", "_clamp"])
def test_windows_of_differences(kernels, flag):
    for name in ("v_qsad_pk_u16_u8", "v_mqsad_pk_u16_u8", "v_mqsad_u32_u8"):
        given = rows(name, 8)
        width = 32 if name.endswith("u32_u8") else 16
        for lane, got in zip(lanes(given), lanes(kernels.run(name + flag, given)), strict=True):
            window, reference = pair(lane[0], lane[1]), lane[2]
            old = sum(value << 32 * place for place, value in enumerate(lane[4 : 4 + len(got)]))
            for place in range(4):
                value = differences(window >> 8 * place & M32, reference, "mqsad" in name)
                value += old >> width * place & ((1 << width) - 1)
                value = limit(value, width, False) if flag else value & ((1 << width) - 1)
                result = sum(dword << 32 * place for place, dword in enumerate(got))
                assert result >> width * place & ((1 << width) - 1) == value, (name, place)


def two_over_pi(bits: int) -> int:
    """Its first bits after the binary point, from Machin's formula."""
    unit = 1 << (bits + 64)

    def arctangent_of_inverse(x: int) -> int:
        total, power, n, sign = 0, unit // x, 1, 1
        while power:
            total += sign * (power // n)
            power, n, sign = power // (x * x), n + 2, -sign
        return total

    pi = 4 * (4 * arctangent_of_inverse(5) - arctangent_of_inverse(239))
    return (2 * unit << bits) // pi


def test_digits_of_two_over_pi(kernels):
    digits = two_over_pi(1201)
    source = random.Random(9)
    exponents = [0, 1, 1023, 1077, 1078, 1079, 1130, 1967, 1968, 1969, 2046] + [
        source.randrange(2047) for _ in range(53)
    ]
    segments = [source.randrange(32) for _ in range(64)]
    given = np.zeros((4, 64), np.uint32)
    given[0] = [source.getrandbits(32) for _ in range(64)]
    given[1] = [exponent << 20 | source.getrandbits(20) for exponent in exponents]
    given[2] = segments
    for exponent, segment, got in zip(
        exponents, segments, lanes(kernels.run("v_trig_preop_f64", given)), strict=True
    ):
        shift = segment * 53 + max(exponent - 1077, 0)
        whole = (digits << 2000 >> (2000 + 1201 - shift - 53)) & ((1 << 53) - 1)
        value = Fraction(whole) * Fraction(2) ** (-53 - shift + (128 if exponent >= 1968 else 0))
        expected = float(value) if value >= Fraction(2) ** -1074 else math.ldexp(float(whole), 0) * 0.0
        assert np.array([pair(*got)], np.uint64).view(np.float64)[0] == expected, (exponent, segment)


def test_one_byte_is_replaced(kernels):
    given = rows("bytes", 4)
    floats = [
        0.0,
        -1.0,
        0.5,
        1.0,
        1.5,
        254.9,
        255.0,
        255.5,
        300.0,
        float("inf"),
        -float("inf"),
        float("nan"),
        77.25,
    ]
    given[0] = np.resize(np.array(floats, np.float32), 64).view(np.uint32)
    for lane, got in zip(lanes(given), lanes(kernels.run("v_cvt_pkaccum_u8_f32", given)), strict=True):
        byte = 0 if F32.is_nan(lane[0]) else int(min(max(float(np.uint32(lane[0]).view(np.float32)), 0), 255))
        shift = lane[1] % 4 * 8
        assert got[0] == lane[2] & ~(0xFF << shift) | byte << shift
