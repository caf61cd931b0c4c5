"""v_cvt_scalef32_* and v_cvt_sr_*8_f32: values and placement, against exact fractions."""

import functools
import itertools
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.simulator.number_formats import BF16, F16, F32
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels
from tests.simulator.test_vector_float8 import FORMATS, Byte

WIDE = {"f32": F32, "f16": F16, "bf16": BF16}
# Without infinities and NaN: what is larger becomes the largest.
SMALL = {
    "fp6": (6, Byte(3, 1, False, 0x1F, ())),
    "bf6": (6, Byte(2, 3, False, 0x1F, ())),
    "fp4": (4, Byte(1, 1, False, 7, ())),
}
NAN = "nan"


@functools.cache
def small(name: str, target: str) -> tuple[int, Byte]:
    return SMALL[name] if name in SMALL else (8, FORMATS[target, name])


def number(wide: str, bits: int) -> Fraction | float:
    f = WIDE[wide]
    if f.is_nan(bits):
        return float("nan")
    if f.is_infinite(bits):
        return -float("inf") if f.is_negative(bits) else float("inf")
    return f.value(bits)


def encode(
    name: str, target: str, wide: str, bits: int, exponent: int | None, noise: int | None = None
) -> int:
    """The encoding of a value divided by 2^exponent (None: NaN); `noise` replaces rounding to nearest even."""
    width, byte = small(name, target)
    f = WIDE[wide]
    sign = 1 << (width - 1) if f.is_negative(bits) else 0
    has_nan = width == 8
    beyond = (
        sign | byte.largest if not has_nan else (0x80 if byte.is_fnuz else sign | (byte.infinity or 0x7F))
    )
    value = number(wide, bits)
    if exponent is None or value != value:
        # A NaN that comes from a scale has no sign to keep.
        sign = sign if exponent is not None else 0
        return sign | byte.largest if not has_nan else 0x80 if byte.is_fnuz else sign | 0x7F
    if isinstance(value, float):
        return beyond
    magnitude = abs(value) / Fraction(2) ** exponent
    # Spacing of the format: the denormal step, or the last bit of the significand.
    power = 1 - byte.bias
    while magnitude >= Fraction(2) ** (power + 1):
        power += 1
    step = Fraction(2) ** (power - byte.mantissa_bits)
    whole, rest = divmod(magnitude / step, 1)
    if noise is None:
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole & 1)
    else:
        # The random number's high bits stand right below the last place; 24 of them in a denormal result.
        below = 23 - byte.mantissa_bits if magnitude >= Fraction(2) ** (1 - byte.bias) else 24
        up = int(rest * (1 << below)) + (noise >> (32 - below)) >= 1 << below
    code = (
        int(whole)
        + int(up)
        + (
            (power + byte.bias - 1) << byte.mantissa_bits
            if magnitude >= Fraction(2) ** (1 - byte.bias)
            else 0
        )
    )
    if code > byte.largest:
        return beyond
    return 0 if code == 0 and byte.is_fnuz else sign | code


def decode(name: str, wide: str, code: int, exponent: int | None) -> int | str:
    width, byte = small(name, "gfx950")
    magnitude = code & ((1 << (width - 1)) - 1)
    f = WIDE[wide]
    sign = f.sign_bit if code >> (width - 1) else 0
    value = byte.value(magnitude)
    if exponent is None or value != value:
        return NAN
    if value == float("inf"):
        return sign | f.infinity
    return sign | f.round(value * Fraction(2) ** exponent)


def next_random(value: int) -> int:
    return (value << 1 ^ (197 if value >> 31 else 0)) & 0xFFFFFFFF


SCALES = [0x3F800000, 0x40000000, 0x3F000000, 0x40490FDB, 0xC1000000, 0x7F800000, 0x47000000, 0x38800000]


def scale_exponent(bits: int) -> int | None:
    field = bits >> 23 & 0xFF
    return None if field == 255 else field - 127


def wide_rows(wide: str, name: str, target: str, rows: int, seed: str) -> np.ndarray:
    """Values around those of the small format, and a few that are far away."""
    source = random.Random(seed)
    _, byte = small(name, target)
    f = WIDE[wide]
    per_row = 2 if f.bits == 16 else 1
    special = [
        0,
        f.sign_bit,
        1,
        f.infinity,
        f.infinity | f.sign_bit,
        f.infinity | f.quiet_bit,
        f.infinity - 1,
    ]

    def one() -> int:
        if source.random() < 0.15:
            return source.choice(special)
        magnitude = byte.magnitudes()[source.randrange(byte.largest + 1)]
        other = byte.magnitudes()[source.randrange(byte.largest + 1)]
        if isinstance(magnitude, float) or isinstance(other, float):
            return source.choice(special)
        value = magnitude if source.random() < 0.3 else (magnitude + other) / 2
        return (
            f.round(value * Fraction(2) ** source.randint(-3, 3))
            ^ source.choice((0, 0, 1))
            ^ source.choice((0, f.sign_bit))
        )

    table = np.zeros((rows, 64), np.uint32)
    for row, lane in itertools.product(range(rows), range(64)):
        table[row, lane] = sum(one() << (16 * part) for part in range(per_row))
    return table


# name: (small format, wide format, elements, down?, stochastic?, interleaved sources?, text, ...)
KERNELS, ROWS = {}, {}


def add(text: str, **row) -> None:
    name = text.split()[0] + str(len(KERNELS))
    old = "".join(f"v_mov_b32 v{64 + i}, 0x{0xA5A50000 + i:x}\n" for i in range(32))
    KERNELS[name], ROWS[name] = RegisterKernel(old + text, inputs=36, outputs=32), row


# Sources v16.. hold the elements (the second source of interleaved ones v32..), v48 random bits, v49 the scale.
for small_name, (wide, source, count) in itertools.product(
    ("fp8", "bf8", "fp4"), (("f32", "v16, v32", 2), ("f16", "v16", 2), ("bf16", "v16", 2))
):
    for place in range(2 if small_name != "fp4" else 4):
        if small_name == "fp4":
            bits = [0, 0, place & 1, place >> 1]
        else:
            bits = [0, 0, 0, place] if wide == "f32" else [0, 0, place]
        add(
            f"v_cvt_scalef32_pk_{small_name}_{wide} v64, {source}, v49 op_sel:{bits}".replace(" ", " "),
            small=small_name,
            wide=wide,
            count=count,
            down=True,
            interleaved=wide == "f32",
            shift=place * (8 if small_name == "fp4" else 16),
        )
for small_name, wide, place in itertools.product(("fp8", "bf8"), WIDE, range(4)):
    add(
        f"v_cvt_scalef32_sr_{small_name}_{wide} v64, v16, v48, v49 op_sel:[0,0,{place & 1},{place >> 1}]",
        small=small_name,
        wide=wide,
        count=1,
        down=True,
        random=True,
        shift=8 * place,
    )
for wide, place in itertools.product(WIDE, range(4)):
    source = "v[16:17]" if wide == "f32" else "v16"
    add(
        f"v_cvt_scalef32_sr_pk_fp4_{wide} v64, {source}, v48, v49 op_sel:[0,0,{place & 1},{place >> 1}]",
        small="fp4",
        wide=wide,
        count=2,
        down=True,
        random=True,
        shift=8 * place,
    )
for small_name in ("fp6", "bf6"):
    add(
        f"v_cvt_scalef32_2xpk16_{small_name}_f32 v[64:69], v[16:31], v[32:47], v49",
        small=small_name,
        wide="f32",
        count=32,
        down=True,
        interleaved=True,
    )
    add(
        f"v_cvt_scalef32_sr_pk32_{small_name}_f32 v[64:69], v[16:47], v48, v49",
        small=small_name,
        wide="f32",
        count=32,
        down=True,
        random=True,
    )
    for wide in ("f16", "bf16"):
        add(
            f"v_cvt_scalef32_pk32_{small_name}_{wide} v[64:69], v[16:31], v49",
            small=small_name,
            wide=wide,
            count=32,
            down=True,
        )
        add(
            f"v_cvt_scalef32_sr_pk32_{small_name}_{wide} v[64:69], v[16:31], v48, v49",
            small=small_name,
            wide=wide,
            count=32,
            down=True,
            random=True,
        )
        add(
            f"v_cvt_scalef32_pk32_{wide}_{small_name} v[64:79], v[16:21], v49",
            small=small_name,
            wide=wide,
            count=32,
            down=False,
        )
    add(
        f"v_cvt_scalef32_pk32_f32_{small_name} v[64:95], v[16:21], v49",
        small=small_name,
        wide="f32",
        count=32,
        down=False,
    )
for small_name, wide in itertools.product(("fp8", "bf8", "fp4"), WIDE):
    destination = "v[64:65]" if wide == "f32" else "v64"
    for place in range(4 if small_name == "fp4" else 2):
        bits = f"[{place & 1},{place >> 1},0]"
        add(
            f"v_cvt_scalef32_pk_{wide}_{small_name} {destination}, v16, v49 op_sel:{bits}",
            small=small_name,
            wide=wide,
            count=2,
            down=False,
            from_bit=place * (8 if small_name == "fp4" else 16),
        )
for small_name, place in itertools.product(("fp8", "bf8"), range(4)):
    bits = f"{place & 1},{place >> 1}"
    add(
        f"v_cvt_scalef32_f32_{small_name} v64, v16, v49 op_sel:[{bits},0]",
        small=small_name,
        wide="f32",
        count=1,
        down=False,
        from_bit=8 * place,
    )
    for high in (0, 1):
        add(
            f"v_cvt_scalef32_f16_{small_name} v64, v16, v49 op_sel:[{bits},{high}]",
            small=small_name,
            wide="f16",
            count=1,
            down=False,
            from_bit=8 * place,
            shift=16 * high,
        )
UNSCALED = {}
for small_name, place in itertools.product(("fp8", "bf8"), range(4)):
    UNSCALED[small_name, place] = RegisterKernel(
        f"v_mov_b32 v64, 0xa5a5a5a5\nv_cvt_sr_{small_name}_f32 v64, v16, v17 op_sel:[0,0,{place & 1},{place >> 1}]",
        inputs=2, outputs=1)  # fmt: skip


@pytest.fixture(scope="module")
def kernels():
    return RegisterKernels(KERNELS, "gfx950")


def reference(row: dict, given: np.ndarray, lane: int) -> tuple[list[int], int, list]:
    """(elements, bits of one, positions of NaN among them) of the result."""
    exponent = scale_exponent(int(given[33, lane]))
    width = small(row["small"], "gfx950")[0]
    per_row = 2 if WIDE[row["wide"]].bits == 16 else 1
    if not row["down"]:
        packed = sum(int(given[i, lane]) << (32 * i) for i in range(6)) >> row.get("from_bit", 0)
        codes = [packed >> (width * i) & ((1 << width) - 1) for i in range(row["count"])]
        return [decode(row["small"], row["wide"], code, exponent) for code in codes], 32 // per_row
    values, noise = [], int(given[32, lane])
    for i in range(row["count"]):
        if row.get("interleaved"):
            bits = int(given[i // 2 + 16 * (i % 2), lane])
        else:
            bits = int(given[i // per_row, lane]) >> (16 * (i % per_row)) & (
                (1 << WIDE[row["wide"]].bits) - 1
            )
        values.append(
            encode(row["small"], "gfx950", row["wide"], bits, exponent, noise if row.get("random") else None)
        )
        noise = next_random(noise)
    return values, width


@pytest.mark.parametrize("name", KERNELS)
def test_values_and_places(kernels, name):
    row = ROWS[name]
    given = wide_rows(row["wide"], row["small"], "gfx950", 36, name)
    source = random.Random(name)
    if not row["down"]:
        given[:6] = [[source.getrandbits(32) for _ in range(64)] for _ in range(6)]
    given[32] = [source.getrandbits(32) for _ in range(64)]
    given[33] = np.resize(np.array(SCALES, np.uint32), 64)
    got = kernels.run(name, given, host_level=LEVELS[-1])
    for lane in range(0, 64, 4 if row["count"] == 32 else 1):
        values, bits = reference(row, given, lane)
        result = sum(int(got[i, lane]) << (32 * i) for i in range(32))
        untouched = sum((0xA5A50000 + i) << (32 * i) for i in range(32))
        shift = row.get("shift", 0)
        for i, value in enumerate(values):
            field = result >> (shift + bits * i) & ((1 << bits) - 1)
            if value == NAN:
                assert WIDE[row["wide"]].is_nan(field), (lane, i)
            elif value & 0x7F == 0x7F and bits == 8 and scale_exponent(int(given[33, lane])) is None:
                assert field & 0x7F == 0x7F  # a NaN; its sign is unspecified
            else:
                assert field == value, (lane, i, hex(field), hex(value), hex(int(given[33, lane])))
        mask = ((1 << (bits * len(values))) - 1) << shift
        assert result & ~mask == untouched & ~mask, lane
    for level in LEVELS[:-1]:
        other = kernels.run(name, given, host_level=level)
        # The signs of NaNs that come from a scale of NaN may differ.
        defined = [scale_exponent(int(bits)) is not None for bits in given[33]]
        np.testing.assert_array_equal(other[:, defined], got[:, defined])


@pytest.mark.parametrize("target", TARGETS)
def test_stochastic_bytes(target):
    kernels = RegisterKernels(
        {f"{name}{place}": kernel for (name, place), kernel in UNSCALED.items()}, target
    )
    for name, place in UNSCALED:
        given = wide_rows("f32", name, target, 2, f"{target}{name}{place}")
        given[1] = [random.Random(lane).getrandbits(32) for lane in range(64)]
        got = kernels.run(f"{name}{place}", given)[0]
        for lane in range(64):
            code = encode(name, target, "f32", int(given[0, lane]), 0, int(given[1, lane]))
            assert int(got[lane]) == 0xA5A5A5A5 & ~(0xFF << 8 * place) | code << 8 * place, (
                name,
                hex(given[0, lane]),
            )
