"""neg, abs, op_sel, clamp, omod, SDWA, constants and scalars as sources: each is a rewriting of operands or result."""

import numpy as np
import pytest

from tests.simulator.number_formats import F16, F32, F64
from tests.simulator.vector_cases import samples, signed
from tests.simulator.vector_kernels import HOST_LEVELS, SPARSE, bits_of, load, run

OLD = 0x1234ABCD_CAFEF00D
LOW, HALF, UPPER = np.uint64(0xFFFFFFFF), 0xFFFF, np.uint64(32)


def apply(function, *columns) -> np.ndarray:
    rows = [function(*(int(v) for v in row)) for row in zip(*(c.ravel() for c in columns), strict=True)]
    return np.array([value & 0xFFFFFFFF_FFFFFFFF for value in rows], np.uint64).reshape(columns[0].shape)


def check(module, name, values, want, **settings):
    """At every level with all lanes, and with some lanes."""
    for level in HOST_LEVELS:
        got = run(module, name, values, old=OLD, host_level=level, **settings).destination
        wrong = np.argwhere(got != want)
        if len(wrong):
            at = tuple(wrong[0])
            given = [hex(int(v[at])) for v in values]
            pytest.fail(
                f"{name} {level}: {given} gives {int(got[at]):#x}, want {int(want[at]):#x}; {len(wrong)} wrong"
            )
    partial = run(module, name, values, old=OLD, exec_mask=SPARSE, **settings).destination
    assert (partial == np.where(bits_of(SPARSE), want, OLD)).all()


def in_low_register(value: np.ndarray) -> np.ndarray:
    return value & LOW | np.uint64(OLD) & ~LOW


# ---- Signs.

SIGNS = {"": lambda f, a: a, "-": lambda f, a: f.negate(a), "||": lambda f, a: f.magnitude(a),
         "-||": lambda f, a: f.negate(f.magnitude(a))}  # fmt: skip


def signed_text(how: str, register: str) -> str:
    return {"": register, "-": f"-{register}", "||": f"|{register}|", "-||": f"-|{register}|"}[how]


SIGN_CASES = {
    f"{kind}_{i}": (kind, first, second)
    for kind in ("f16", "f32", "f64")
    for i, (first, second) in enumerate([("-", ""), ("", "||"), ("-||", "-"), ("||", "-||")])
}


def source_of(kind: str, register: int) -> str:
    return f"v[{register}:{register + 1}]" if kind == "f64" else f"v{register}"


@pytest.fixture(scope="module")
def signs():
    bodies = {}
    for name, (kind, first, second) in SIGN_CASES.items():
        e64 = "" if kind == "f64" else "_e64"
        a, b = signed_text(first, source_of(kind, 16)), signed_text(second, source_of(kind, 18))
        bodies[name] = f"v_add_{kind}{e64} {source_of(kind, 32)}, {a}, {b}"
    bodies["third"] = "v_fma_f32 v32, v16, -v18, -|v20|"
    bodies["compare"] = "v_cmp_lt_f32_e64 s[44:45], -v16, |v18|"
    return load(bodies)


@pytest.mark.parametrize("name", SIGN_CASES)
def test_signs(signs, name):
    kind, first, second = SIGN_CASES[name]
    f = {"f16": F16, "f32": F32, "f64": F64}[kind]
    values = samples((kind, kind), 256)
    want = apply(lambda a, b: f.add(SIGNS[first](f, a), SIGNS[second](f, b)), *values)
    check(signs, name, values, want if kind == "f64" else in_low_register(want))


def test_signs_of_a_third_source_and_of_a_comparison(signs):
    values = samples(("f32",) * 3, 256)
    want = apply(lambda a, b, c: F32.fma(a, F32.negate(b), F32.negate(F32.magnitude(c))), *values)
    check(signs, "third", values, in_low_register(want))
    a, b = samples(("f32", "f32"), 256)
    truth = apply(lambda x, y: F32.compare(F32.negate(x), F32.magnitude(y)) == -1, a, b).astype(bool)
    got = run(signs, "compare", [a, b])
    assert (bits_of(got.mask) == truth).all()


# ---- op_sel.


def half(value: int, upper) -> int:
    return value >> 16 if upper else value & HALF


PACKED = {
    f"{lo:03b}_{hi:03b}": (lo, hi) for lo, hi in ((0, 7), (0, 0), (7, 7), (7, 0), (5, 3), (2, 6), (1, 1))
}


def selection(bits: int, count: int) -> str:
    return "[" + ",".join(str(bits >> i & 1) for i in range(count)) + "]"


@pytest.fixture(scope="module")
def selections():
    bodies = {}
    for name, (lo, hi) in PACKED.items():
        for signs, text in ((False, ""), (True, " neg_lo:[1,0,1] neg_hi:[0,1,1]")):
            how = f"op_sel:{selection(lo, 3)} op_sel_hi:{selection(hi, 3)}{text}"
            bodies[f"fma_f16_{name}_{signs}"] = f"v_pk_fma_f16 v32, v16, v18, v20 {how}"
            bodies[f"fma_f32_{name}_{signs}"] = f"v_pk_fma_f32 v[32:33], v[16:17], v[18:19], v[20:21] {how}"
        how = f"op_sel:{selection(lo, 2)} op_sel_hi:{selection(hi, 2)}"
        bodies[f"add_u16_{name}"] = f"v_pk_add_u16 v32, v16, v18 {how}"
        bodies[f"mov_{name}"] = f"v_pk_mov_b32 v[32:33], v[16:17], v[18:19] op_sel:{selection(lo, 2)}"
        mix = f"op_sel:{selection(lo, 3)} op_sel_hi:{selection(hi, 3)}"
        bodies[f"mix_{name}"] = f"v_fma_mix_f32 v32, -v16, |v18|, v20 {mix}"
        bodies[f"mixlo_{name}"] = f"v_fma_mixlo_f16 v32, -v16, |v18|, v20 {mix}"
        bodies[f"mixhi_{name}"] = f"v_fma_mixhi_f16 v32, -v16, |v18|, v20 {mix}"
    for bits in (0b0001, 0b0110, 0b1000, 0b1111):
        bodies[f"fma_{bits:04b}"] = f"v_fma_f16 v32, v16, v18, v20 op_sel:{selection(bits, 4)}"
        bodies[f"mad_u16_{bits:04b}"] = f"v_mad_u16 v32, v16, v18, v20 op_sel:{selection(bits, 4)}"
    return load(bodies)


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("name", PACKED)
def test_packed_f16_halves(selections, name, signs):
    lo, hi = PACKED[name]
    values = samples(("pk_f16",) * 3, 128)
    neg_lo, neg_hi = (0b101, 0b110) if signs else (0, 0)

    def one(bits, neg, sources):
        chosen = [half(s, bits >> i & 1) ^ (0x8000 if neg >> i & 1 else 0) for i, s in enumerate(sources)]
        return F16.fma(*chosen)

    want = apply(lambda *s: one(lo, neg_lo, s) | one(hi, neg_hi, s) << 16, *values)
    check(selections, f"fma_f16_{name}_{signs}", values, in_low_register(want))


@pytest.mark.parametrize("signs", [False, True])
@pytest.mark.parametrize("name", PACKED)
def test_packed_f32_dwords(selections, name, signs):
    lo, hi = PACKED[name]
    low, high = samples(("f32",) * 3, 128), samples(("f32",) * 3, 128, seed=9)
    values = [a | b << UPPER for a, b in zip(low, high, strict=True)]
    neg_lo, neg_hi = (0b101, 0b110) if signs else (0, 0)

    def one(bits, neg, sources):
        chosen = [(s >> 32 if bits >> i & 1 else s & 0xFFFFFFFF) ^ (0x80000000 if neg >> i & 1 else 0)
                  for i, s in enumerate(sources)]  # fmt: skip
        return F32.fma(*chosen)

    check(
        selections,
        f"fma_f32_{name}_{signs}",
        values,
        apply(lambda *s: one(lo, neg_lo, s) | one(hi, neg_hi, s) << 32, *values),
    )


@pytest.mark.parametrize("name", PACKED)
def test_packed_integers_and_moves(selections, name):
    lo, hi = PACKED[name]
    a, b = samples(("pk_i16", "pk_i16"), 128)
    want = apply(
        lambda x, y: (
            (half(x, lo & 1) + half(y, lo & 2) & HALF) | (half(x, hi & 1) + half(y, hi & 2) & HALF) << 16
        ),
        a,
        b,
    )
    check(selections, f"add_u16_{name}", [a, b], in_low_register(want))
    a, b = samples(("u64", "u64"), 128)
    want = apply(
        lambda x, y: (x >> 32 if lo & 1 else x & 0xFFFFFFFF) | (y >> 32 if lo & 2 else y & 0xFFFFFFFF) << 32,
        a,
        b,
    )
    check(selections, f"mov_{name}", [a, b], want)


@pytest.mark.parametrize("name", PACKED)
def test_mixed_precision(selections, name):
    lo, hi = PACKED[name]
    values = samples(("f32",) * 3, 128)
    for i in range(3):
        if hi >> i & 1:
            values[i] = samples(("pk_f16",) * 3, 128)[i]

    def result(*sources):
        wide = [F16.convert(half(s, lo >> i & 1), F32) if hi >> i & 1 else s for i, s in enumerate(sources)]
        return F32.fma(F32.negate(wide[0]), F32.magnitude(wide[1]), wide[2])

    want = apply(result, *values)
    check(selections, f"mix_{name}", values, in_low_register(want))
    as_half = apply(lambda a: F32.convert(a, F16), want)
    check(selections, f"mixlo_{name}", values, as_half | np.uint64(OLD & ~0xFFFF))
    check(selections, f"mixhi_{name}", values, as_half << np.uint64(16) | np.uint64(OLD & ~0xFFFF0000))


@pytest.mark.parametrize("bits", [0b0001, 0b0110, 0b1000, 0b1111])
def test_halves_of_16_bit_instructions(selections, bits):
    def place(result):
        return (
            result << np.uint64(16) | np.uint64(OLD & ~0xFFFF0000)
            if bits & 8
            else result | np.uint64(OLD & ~0xFFFF)
        )

    values = samples(("pk_f16",) * 3, 128)
    want = apply(lambda *s: F16.fma(*(half(v, bits >> i & 1) for i, v in enumerate(s))), *values)
    check(selections, f"fma_{bits:04b}", values, place(want))
    values = samples(("pk_i16",) * 3, 128)
    want = apply(lambda a, b, c: half(a, bits & 1) * half(b, bits & 2) + half(c, bits & 4) & HALF, *values)
    check(selections, f"mad_u16_{bits:04b}", values, place(want))


# ---- clamp and omod.

OMOD = {"mul:2": 2.0, "mul:4": 4.0, "div:2": 0.5}
CLAMPED = {
    "f32": ("v_add_f32_e64 v32, v16, v18 clamp", F32),
    "f16": ("v_add_f16_e64 v32, v16, v18 clamp", F16),
    "f64": ("v_add_f64 v[32:33], v[16:17], v[18:19] clamp", F64),
}


def clamped(f, a):
    if f.is_nan(a) or f.is_negative(a):
        return 0
    return min(a, f.bias << f.mantissa_bits)


@pytest.fixture(scope="module")
def clamps():
    return load({name: text for name, (text, _) in CLAMPED.items()} | {
        "pk_f16": "v_pk_add_f16 v32, v16, v18 clamp",
        "pk_f32": "v_pk_add_f32 v[32:33], v[16:17], v[18:19] clamp",
        "omod": "v_add_f32_e64 v32, v16, v18 mul:4",
    })  # fmt: skip


@pytest.mark.parametrize("kind", CLAMPED)
def test_clamp(clamps, kind):
    f = CLAMPED[kind][1]
    values = samples((kind, kind), 256)
    want = apply(lambda a, b: clamped(f, f.add(a, b)), *values)
    check(clamps, kind, values, want if kind == "f64" else in_low_register(want))


def test_clamp_of_packed_results(clamps):
    values = samples(("pk_f16", "pk_f16"), 256)
    want = apply(
        lambda a, b: (
            clamped(F16, F16.add(a & HALF, b & HALF)) | clamped(F16, F16.add(a >> 16, b >> 16)) << 16
        ),
        *values,
    )
    check(clamps, "pk_f16", values, in_low_register(want))
    low, high = samples(("f32", "f32"), 128), samples(("f32", "f32"), 128, seed=4)
    values = [a | b << UPPER for a, b in zip(low, high, strict=True)]
    want = apply(lambda a, b: clamped(F32, F32.add(a & 0xFFFFFFFF, b & 0xFFFFFFFF))
                 | clamped(F32, F32.add(a >> 32, b >> 32)) << 32, *values)  # fmt: skip
    check(clamps, "pk_f32", values, want)


def test_output_modifiers_are_ignored_in_ieee_mode(clamps):
    values = samples(("f32", "f32"), 128)
    check(clamps, "omod", values, in_low_register(apply(F32.add, *values)))


def test_output_modifiers():
    module = load(
        {name.replace(":", "_"): f"v_mul_f32_e64 v32, v16, v18 {name}" for name in OMOD}, denormals=0, ieee=0
    )
    a, b = np.random.default_rng(1).standard_normal((2, 2, 64)).astype(np.float32)
    a[0, :4] = [0.0, -0.0, -0.0, 3.0]
    for name, factor in OMOD.items():
        want = (a * b * np.float32(factor) + np.float32(0)).view(np.uint32).astype(np.uint64)
        check(module, name.replace(":", "_"), [a.view(np.uint32), b.view(np.uint32)], in_low_register(want))


# ---- SDWA.

SELECTS = {"BYTE_0": (8, 0), "BYTE_1": (8, 8), "BYTE_2": (8, 16), "BYTE_3": (8, 24), "WORD_0": (16, 0), "WORD_1": (16, 16),
           "DWORD": (32, 0)}  # fmt: skip
UNUSED = ("UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE")


@pytest.fixture(scope="module")
def sdwa():
    bodies = {}
    for select in SELECTS:
        bodies[f"source_{select}"] = (
            f"v_add_u32_sdwa v32, v16, v18 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:{select} src1_sel:DWORD"
        )
        bodies[f"sext_{select}"] = (
            f"v_add_u32_sdwa v32, v16, sext(v18) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:{select}"
        )
        bodies[f"compare_{select}"] = (
            f"v_cmp_lt_u32_sdwa s[44:45], v16, v18 src0_sel:{select} src1_sel:{select}"
        )
        for unused in UNUSED:
            bodies[f"{select}_{unused}"] = (
                f"v_add_u32_sdwa v32, v16, v18 dst_sel:{select} dst_unused:{unused} src0_sel:DWORD src1_sel:DWORD"
            )
    bodies["half"] = (
        "v_mul_f16_sdwa v32, -v16, |v18| dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 src1_sel:WORD_0"
    )
    bodies["convert"] = "v_cvt_f32_f16_sdwa v32, v16 dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1"
    bodies["clamp"] = (
        "v_add_f16_sdwa v32, v16, v18 clamp dst_sel:WORD_0 dst_unused:UNUSED_PRESERVE src0_sel:WORD_0 src1_sel:WORD_0"
    )
    return load(bodies, "gfx942")


def field(value: int, select: str) -> int:
    width, shift = SELECTS[select]
    return value >> shift & ((1 << width) - 1)


@pytest.mark.parametrize("select", SELECTS)
def test_sdwa_sources(sdwa, select):
    values = samples(("u32", "u32"), 256)
    check(
        sdwa,
        f"source_{select}",
        values,
        in_low_register(apply(lambda a, b: field(a, select) + b & 0xFFFFFFFF, *values)),
    )
    width = SELECTS[select][0]
    want = apply(lambda a, b: a + signed(field(b, select), width) & 0xFFFFFFFF, *values)
    check(sdwa, f"sext_{select}", values, in_low_register(want))
    truth = apply(lambda a, b: field(a, select) < field(b, select), *values).astype(bool)
    assert (bits_of(run(sdwa, f"compare_{select}", values).mask) == truth).all()


@pytest.mark.parametrize("unused", UNUSED)
@pytest.mark.parametrize("select", SELECTS)
def test_sdwa_destinations(sdwa, select, unused):
    width, shift = SELECTS[select]
    values = samples(("u32", "u32"), 256)

    def place(a, b):
        result = a + b & ((1 << width) - 1)
        if unused == "UNUSED_PRESERVE":
            keep = 0xFFFFFFFF & ~(((1 << width) - 1) << shift)
            return result << shift | OLD & keep
        return (signed(result, width) if unused == "UNUSED_SEXT" else result) << shift & 0xFFFFFFFF

    check(sdwa, f"{select}_{unused}", values, in_low_register(apply(place, *values)))


def test_sdwa_of_floats(sdwa):
    values = samples(("pk_f16", "pk_f16"), 256)
    want = apply(
        lambda a, b: F16.multiply(F16.negate(a >> 16), F16.magnitude(b & HALF)) << 16 | OLD & HALF, *values
    )
    check(sdwa, "half", values, in_low_register(want))
    check(sdwa, "convert", values[:1], in_low_register(apply(lambda a: F16.convert(a >> 16, F32), values[0])))
    want = apply(lambda a, b: clamped(F16, F16.add(a & HALF, b & HALF)) | OLD & 0xFFFF0000, *values)
    check(sdwa, "clamp", values, in_low_register(want))


# ---- Scalars and constants.

CONSTANTS = {
    "64": 64, "-16": -16, "0.5": 0x3F000000, "-4.0": 0xC0800000, "0.15915494": 0x3E22F983, "0x12345678": 0x12345678,
    "s38": None, "vcc_lo": 0x89ABCDEF, "exec_hi": 0xFFFFFFFF, "m0": 77,
}  # fmt: skip
HALF_CONSTANTS = {"1.0": 0x3C00, "-0.5": 0xB800, "3": 3, "-1": 0xFFFF, "0.15915494": 0x3118}
# For packed math an integer is its 32 bits, and a float as an integer operand is float32's bit pattern: both halves are
# then chosen from these.
PACKED_CONSTANTS = {"-1": 0xFFFFFFFF, "7": 7, "-16": 0xFFFFFFF0, "1.0": 0x3F800000}
WIDE_CONSTANTS = {"1.0": 0x3FF0000000000000, "-2.0": 0xC000000000000000, "5": 5, "-3": (1 << 64) - 3,
                  "0.15915494309189532": 0x3FC45F306DC9C882, "s[38:39]": 0x4008_0000_0000_0001}  # fmt: skip


def slug(text: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in text.replace("-", "minus"))


@pytest.fixture(scope="module")
def constants():
    bodies = {f"xor_{slug(c)}": f"s_mov_b32 m0, 77\nv_xor_b32_e32 v32, {c}, v18" for c in CONSTANTS}
    bodies |= {f"half_{slug(c)}": f"v_max_f16_e32 v32, {c}, v18" for c in HALF_CONSTANTS}
    for c in PACKED_CONSTANTS:
        for chosen in ("0", "1"):
            bodies[f"packed_{slug(c)}_{chosen}"] = f"v_pk_add_u16 v32, v16, {c} op_sel_hi:[1,{chosen}]"
    bodies["packed_vector"] = "v_pk_sub_i16 v32, -1, v16\nv_pk_lshrrev_b16 v32, 1, v32 op_sel_hi:[0,1]"
    bodies |= {f"double_{slug(c)}": f"v_max_f64 v[32:33], {c}, v[18:19]" for c in WIDE_CONSTANTS}
    bodies |= {f"signed_{slug(c)}": f"v_max_f64 v[32:33], -{c}, v[18:19]" for c in ("s[38:39]",)}
    bodies["shift"] = "v_lshlrev_b64 v[32:33], s38, v[18:19]"
    bodies["literal_k"] = "v_fmamk_f32 v32, v16, 0x40490fdb, v18"
    bodies["literal_a"] = "v_fmaak_f32 v32, v16, v18, 0x40490fdb"
    return load(bodies)


def test_scalar_and_constant_sources(constants):
    a, b = samples(("u32", "u32"), 128)
    for text, value in CONSTANTS.items():
        value = 0x55AA1234 if value is None else value & 0xFFFFFFFF
        got = run(constants, f"xor_{slug(text)}", [a, b], mask=0x89ABCDEF, scalars=(0x55AA1234, 0, 0))
        assert (got.destination == (b ^ np.uint64(value))).all(), text


def test_constants_of_packed_integers(constants):
    (a,) = samples(("pk_i16",), 128)
    for text, value in PACKED_CONSTANTS.items():
        for chosen, high in (("0", value & HALF), ("1", value >> 16)):
            want = apply(
                lambda x, low=value & HALF, high=high: (
                    (half(x, 0) + low & HALF) | (half(x, 1) + high & HALF) << 16
                ),
                a,
            )
            check(constants, f"packed_{slug(text)}_{chosen}", [a], in_low_register(want))
    want = apply(lambda x: ((HALF - half(x, 0)) >> 1) | ((HALF - half(x, 1)) >> 1) << 16, a)
    check(constants, "packed_vector", [a], in_low_register(want))


def test_half_and_double_constants(constants):
    a, b = samples(("f16", "f16"), 256)
    for text, value in HALF_CONSTANTS.items():
        want = apply(lambda x, value=value: F16.maximum_number(value, x), b)
        check(constants, f"half_{slug(text)}", [a, b], in_low_register(want))
    a, b = samples(("f64", "f64"), 256)
    scalars = (WIDE_CONSTANTS["s[38:39]"], 0, 0)
    for text, value in WIDE_CONSTANTS.items():
        want = apply(lambda x, value=value: F64.maximum_number(value, x), b)
        check(constants, f"double_{slug(text)}", [a, b], want, scalars=scalars)
    want = apply(lambda x: F64.maximum_number(F64.negate(scalars[0]), x), b)
    check(constants, f"signed_{slug('s[38:39]')}", [a, b], want, scalars=scalars)


def test_literal_multiply_add(constants):
    a, b = samples(("f32", "f32"), 256)
    check(
        constants, "literal_k", [a, b], in_low_register(apply(lambda x, y: F32.fma(x, 0x40490FDB, y), a, b))
    )
    check(
        constants, "literal_a", [a, b], in_low_register(apply(lambda x, y: F32.fma(x, y, 0x40490FDB), a, b))
    )


def test_scalar_shift(constants):
    a, b = samples(("u64", "u64"), 128)
    check(constants, "shift", [a, b], b << np.uint64(37), scalars=(37, 0, 0))
