"""Buffer loads and stores with format conversion: every format, both ways, at the edges of its values."""

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.memory_kernels import OLD, aligned, around, descriptor_of, load, run
from tests.simulator.number_formats import F16, F32, Format
from tests.simulator.scalar_reference import signed

DATA = {1: (8,), 2: (16,), 3: (8, 8), 4: (32,), 5: (16, 16), 6: (11, 11, 10), 7: (10, 11, 11), 8: (2, 10, 10, 10),
        9: (10, 10, 10, 2), 10: (8, 8, 8, 8), 11: (32, 32), 12: (16, 16, 16, 16), 13: (32, 32, 32), 14: (32, 32, 32, 32)}  # fmt: skip
DATA_NAMES = {1: "8", 2: "16", 3: "8_8", 4: "32", 5: "16_16", 6: "10_11_11", 7: "11_11_10", 8: "10_10_10_2", 9: "2_10_10_10",
              10: "8_8_8_8", 11: "32_32", 12: "16_16_16_16", 13: "32_32_32", 14: "32_32_32_32"}  # fmt: skip
NUMBERS = {0: "UNORM", 1: "SNORM", 2: "USCALED", 3: "SSCALED", 4: "UINT", 5: "SINT", 7: "FLOAT"}
LETTERS = {1: "x", 2: "xy", 3: "xyz", 4: "xyzw"}


def pairs():
    for data, number in itertools.product(DATA, NUMBERS):
        if NUMBERS[number] == "FLOAT" and (DATA[data][0] < 10 or DATA[data][-1] == 2):
            continue
        yield data, number


def small_float(bits: int) -> Format:
    return (
        F16 if bits == 16 else Format(5, bits - 5)
    )  # the unsigned ones have a sign bit above, which stays 0


def as_f32(value: Fraction) -> int:
    return F32.round(value)


def widen(raw: int, bits: int, number: str) -> int:
    """A channel's value in memory converted to its value in the register."""
    top, signed_top = (1 << bits) - 1, (1 << (bits - 1)) - 1
    if number == "FLOAT":
        if bits == 32:
            return raw
        f = small_float(bits)
        if not f.is_finite(raw):
            sign = 1 << 31 if f.is_negative(raw) else 0
            return sign | 0x7F800000 | (raw & ((1 << f.mantissa_bits) - 1)) << (23 - f.mantissa_bits)
        negative_zero = f.is_zero(raw) and f.is_negative(raw)
        return F32.round(f.value(raw), negative_zero=negative_zero)
    return {
        "UNORM": lambda: as_f32(Fraction(raw, top)),
        "SNORM": lambda: as_f32(max(Fraction(signed(raw, bits), signed_top), Fraction(-1))),
        "USCALED": lambda: as_f32(Fraction(raw)),
        "SSCALED": lambda: as_f32(Fraction(signed(raw, bits))),
        "UINT": lambda: raw,
        "SINT": lambda: signed(raw, bits) & 0xFFFFFFFF,
    }[number]()


def narrow(value: int, bits: int, number: str) -> int:
    """A register's value converted to the channel in memory."""
    top, low, high = (1 << bits) - 1, -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if number == "UINT":
        return min(value, top)
    if number == "SINT":
        return min(max(signed(value, 32), low), high) & top
    if number == "FLOAT":
        if bits == 32:
            return value
        f = small_float(bits)
        negative = F32.is_negative(value)
        if F32.is_nan(value):
            return (f.sign_bit if negative and bits == 16 else 0) | f.infinity | f.quiet_bit
        if negative and bits != 16:
            return 0
        if F32.is_infinite(value):
            return (f.sign_bit if negative else 0) | f.infinity
        return f.round(F32.value(value), negative_zero=negative)
    if F32.is_nan(value):
        return 0
    real = (
        F32.value(value)
        if F32.is_finite(value)
        else Fraction(-(1 << 140) if F32.is_negative(value) else 1 << 140)
    )
    if number == "UNORM":
        return round(min(max(real, Fraction(0)), Fraction(1)) * top)
    if number == "SNORM":
        return round(min(max(real, Fraction(-1)), Fraction(1)) * high) & top
    if number == "USCALED":
        return int(min(max(real, Fraction(0)), Fraction(top)))
    return int(min(max(real, Fraction(low)), Fraction(high))) & top


def to_half(value: int, number: str) -> int:
    if number in ("UINT", "SINT"):
        return value & 0xFFFF
    if F32.is_nan(value):
        return (0x8000 if F32.is_negative(value) else 0) | 0x7E00
    if F32.is_infinite(value):
        return (0x8000 if F32.is_negative(value) else 0) | 0x7C00
    return F16.round(F32.value(value), negative_zero=F32.is_negative(value))


BODIES = {}
for data, number in pairs():
    format_ = f"format:[BUF_DATA_FORMAT_{DATA_NAMES[data]},BUF_NUM_FORMAT_{NUMBERS[number]}]"
    tag = f"{data}_{number}"
    BODIES[f"load_{tag}"] = around(f"tbuffer_load_format_xyzw v[32:35], v16, s[12:15], 0 {format_} offen")
    BODIES[f"store_{tag}"] = around(f"tbuffer_store_format_xyzw v[18:21], v16, s[12:15], 0 {format_} offen")
for count, letters in LETTERS.items():
    last = f"v[32:{31 + count}]" if count > 1 else "v32"
    data = f"v[18:{17 + count}]" if count > 1 else "v18"
    halves = (count + 1) // 2
    half_last, half_data = ("v[32:33]", "v[18:19]") if halves == 2 else ("v32", "v18")
    form = "format:[BUF_DATA_FORMAT_16_16_16_16,BUF_NUM_FORMAT_FLOAT] offen"
    BODIES[f"t_{letters}"] = around(f"tbuffer_load_format_{letters} {last}, v16, s[12:15], 0 {form}")
    BODIES[f"ts_{letters}"] = around(f"tbuffer_store_format_{letters} {data}, v16, s[12:15], 0 {form}")
    BODIES[f"td_{letters}"] = around(
        f"tbuffer_load_format_d16_{letters} {half_last}, v16, s[12:15], 0 {form}"
    )
    BODIES[f"tsd_{letters}"] = around(
        f"tbuffer_store_format_d16_{letters} {half_data}, v16, s[12:15], 0 {form}"
    )
    BODIES[f"u_{letters}"] = around(f"buffer_load_format_{letters} {last}, v16, s[12:15], 0 idxen")
    BODIES[f"us_{letters}"] = around(f"buffer_store_format_{letters} {data}, v16, s[12:15], 0 idxen")
    BODIES[f"ud_{letters}"] = around(f"buffer_load_format_d16_{letters} {half_last}, v16, s[12:15], 0 idxen")
    BODIES[f"usd_{letters}"] = around(
        f"buffer_store_format_d16_{letters} {half_data}, v16, s[12:15], 0 idxen"
    )
BODIES["ud_hi"] = around("buffer_load_format_d16_hi_x v32, v16, s[12:15], 0 idxen")
BODIES["usd_hi"] = around("buffer_store_format_d16_hi_x v18, v16, s[12:15], 0 idxen")
IDENTITY = 4 | 5 << 3 | 6 << 6 | 7 << 9


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


def elements(data: int, source: random.Random) -> np.ndarray:
    """64 elements of a format: every channel at its edges and in between."""
    total = sum(DATA[data]) // 8
    memory = aligned(64 * 4 * max(1, total // 4 + 1))
    image = memory.view(np.uint8)
    for lane in range(64):
        bits = at = 0
        for width in DATA[data]:
            top = (1 << width) - 1
            edges = [0, 1, top, top >> 1, (top >> 1) + 1, (top >> 1) + 2, top - 1]
            bits |= (source.choice(edges) if source.random() < 0.5 else source.getrandbits(width)) << at
            at += width
        image[lane * total : (lane + 1) * total] = np.frombuffer(bits.to_bytes(total, "little"), np.uint8)
    return memory


def channels_of(image: np.ndarray, lane: int, data: int) -> list[int]:
    total = sum(DATA[data]) // 8
    bits = int.from_bytes(image[lane * total : (lane + 1) * total].tobytes(), "little")
    values = []
    for width in DATA[data]:
        values.append(bits & ((1 << width) - 1))
        bits >>= width
    return values


@pytest.mark.parametrize("number", NUMBERS)
def test_loads_of_every_format(module, number):
    name = NUMBERS[number]
    one = 1 if name in ("UINT", "SINT") else 0x3F800000
    for data in [data for data, other in pairs() if other == number]:
        memory = elements(data, random.Random(data * 8 + number))
        total = sum(DATA[data]) // 8
        offsets = np.arange(64, dtype=np.uint32) * total
        # One element is out of range, and one that begins in range ends outside it.
        records = 62 * total + 1
        out = run(
            module, f"load_{data}_{number}", [offsets], memory, descriptor=descriptor_of(memory, records)
        )
        for lane in range(64):
            want = [0, 0, 0, 0]
            if (lane + 1) * total <= records:
                raw = channels_of(memory.view(np.uint8), lane, data)
                got = [widen(value, width, name) for value, width in zip(raw, DATA[data], strict=True)]
                want = got + [0, 0, 0, one][len(got) :]
            assert [int(value) for value in out[:, lane]] == want, (DATA_NAMES[data], name, lane)


INTERESTING = [0.0, -0.0, 1.0, -1.0, 0.5, 0.25, 1.5, -1.5, 2.5, 127.0, 127.5, 128.5, 255.0, 255.5, 256.0, -128.0, -129.0, 65504.0,
               65519.0, 65520.0, 1e5, -1e5, 1e10, 3e9, -3e9, 1e38, 6e-5, 6e-8, 3e-8, 1e-10, math.inf, -math.inf, math.nan]  # fmt: skip


@pytest.mark.parametrize("number", NUMBERS)
def test_stores_of_every_format(module, number):
    name = NUMBERS[number]
    source = random.Random(number)
    for data in [data for data, other in pairs() if other == number]:
        rows = np.zeros((4, 64), np.uint32)
        for i, lane in itertools.product(range(4), range(64)):
            value = source.choice(INTERESTING) if source.random() < 0.6 else source.uniform(-2, 2)
            rows[i, lane] = np.float32(value).view(np.uint32)
            if name in ("UINT", "SINT"):
                rows[i, lane] = source.choice(
                    (0, 1, 127, 128, 255, 256, 65535, 65536, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFF80)
                )
        memory = elements(data, source)
        before = memory.view(np.uint8).copy()
        total = sum(DATA[data]) // 8
        offsets = np.arange(64, dtype=np.uint32) * total
        run(
            module,
            f"store_{data}_{number}",
            [offsets, 0, *rows],
            memory,
            descriptor=descriptor_of(memory, 63 * total),
        )
        for lane in range(64):
            want = channels_of(before, lane, data)
            if lane < 63:
                want = [narrow(int(rows[i, lane]), width, name) for i, width in enumerate(DATA[data])]
            assert channels_of(memory.view(np.uint8), lane, data) == want, (DATA_NAMES[data], name, lane)


@pytest.mark.parametrize("count", LETTERS)
def test_channels_and_halves(module, count):
    source, letters = random.Random(count), LETTERS[count]
    memory = elements(12, source)
    offsets = np.arange(64, dtype=np.uint32) * 8
    descriptor = descriptor_of(memory, 512)
    raw = [channels_of(memory.view(np.uint8), lane, 12) for lane in range(64)]
    out = run(module, f"t_{letters}", [offsets], memory, descriptor=descriptor)
    for lane in range(64):
        assert [int(v) for v in out[:count, lane]] == [
            widen(value, 16, "FLOAT") for value in raw[lane][:count]
        ]
    assert (out[count:] == (OLD + np.arange(count, 4, dtype=np.uint32))[:, None]).all()
    out = run(module, f"td_{letters}", [offsets], memory, descriptor=descriptor)
    for i, lane in itertools.product(range(count), range(64)):
        half = int(out[i // 2, lane]) >> (16 * (i % 2)) & 0xFFFF
        want = to_half(widen(raw[lane][i], 16, "FLOAT"), "FLOAT")
        assert half == want or (F16.is_nan(half) and F16.is_nan(want))
    if count % 2:  # the other half of the last register stays
        assert (out[count // 2] >> np.uint32(16) == (OLD + np.uint32(count // 2)) >> np.uint32(16)).all()
    for kernel, halves in ((f"ts_{letters}", False), (f"tsd_{letters}", True)):
        memory = elements(12, source)
        before = memory.view(np.uint8).copy()
        rows = np.array([[source.getrandbits(32) for _ in range(64)] for _ in range(4)], np.uint32)
        run(module, kernel, [offsets, 0, *rows], memory, descriptor=descriptor_of(memory, 512))
        for lane in range(64):
            want = channels_of(before, lane, 12)
            for i in range(count):
                if halves:
                    half = int(rows[i // 2, lane]) >> (16 * (i % 2)) & 0xFFFF
                    want[i] = narrow(widen(half, 16, "FLOAT"), 16, "FLOAT")
                else:
                    want[i] = narrow(int(rows[i, lane]), 16, "FLOAT")
            assert channels_of(memory.view(np.uint8), lane, 12) == want


def test_the_descriptor_names_format_and_channels(module):
    source = random.Random(4)
    memory = elements(10, source)
    index = np.arange(64, dtype=np.uint32)

    def word3(data, number, selects=IDENTITY):
        return data << 15 | number << 12 | selects

    raw = [channels_of(memory.view(np.uint8), lane, 10) for lane in range(64)]
    turned = 6 | 1 << 3 | 0 << 6 | 4 << 9  # Z, 1, 0, X
    for selects, chosen in ((IDENTITY, lambda c: c), (turned, lambda c: [c[2], 1, 0, c[0]])):
        descriptor = descriptor_of(memory, 64, stride=4, word3=word3(10, 4, selects))
        for count, letters in LETTERS.items():
            out = run(module, f"u_{letters}", [index], memory, descriptor=descriptor)
            for lane in range(64):
                assert [int(value) for value in out[:count, lane]] == chosen(raw[lane])[:count]
    descriptor = descriptor_of(memory, 64, stride=4, word3=word3(10, 4))
    high = run(module, "ud_hi", [index], memory, descriptor=descriptor)[0]
    assert [int(value) for value in high] == [(int(OLD) & 0xFFFF) | c[0] << 16 for c in raw]
    rows = np.array([[source.getrandbits(32) for _ in range(64)]], np.uint32)
    run(module, "usd_hi", [index, 0, *rows], memory, descriptor=descriptor)
    for lane in range(64):
        assert channels_of(memory.view(np.uint8), lane, 10) == [
            min(int(rows[0, lane]) >> 16, 255),
            *raw[lane][1:],
        ]
    for kernel in ("us_xy", "usd_xy", "ud_xyzw"):
        run(module, kernel, [index, 0, *rows, *rows], memory, descriptor=descriptor)


def test_reserved_formats_are_refused(module):
    memory = aligned(64)
    for word3 in (0, 15 << 15, 10 << 15 | 7 << 12, 4 << 15 | 6 << 12):
        with pytest.raises(SimulatorError, match="a reserved buffer format"):
            run(
                module,
                "u_x",
                [np.zeros(64, np.uint32)],
                memory,
                descriptor=descriptor_of(memory, 64, 4, word3=word3),
            )
