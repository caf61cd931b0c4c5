"""v_cmp and v_cmpx of every type and condition, classes, and instructions that read or write lane masks."""

import numpy as np
import pytest

from tests.simulator.number_formats import F16, F32, F64
from tests.simulator.vector_cases import as_kind, operand, samples
from tests.simulator.vector_kernels import ALL, HOST_LEVELS, SPARSE, bits_of, load, run

FORMATS = {"f16": F16, "f32": F32, "f64": F64}
INTEGER = {
    "f": (),
    "lt": (-1,),
    "eq": (0,),
    "le": (-1, 0),
    "gt": (1,),
    "ne": (-1, 1),
    "ge": (0, 1),
    "t": (-1, 0, 1),
}
FLOAT = {
    "f": (), "lt": (-1,), "eq": (0,), "le": (-1, 0), "gt": (1,), "lg": (-1, 1), "ge": (0, 1), "o": (-1, 0, 1), "u": (None,),
    "nge": (-1, None), "nlg": (0, None), "ngt": (-1, 0, None), "nle": (1, None), "neq": (-1, 1, None), "nlt": (0, 1, None),
    "tru": (-1, 0, 1, None),
}  # fmt: skip
TYPES = {"i16": INTEGER, "u16": INTEGER, "i32": INTEGER, "u32": INTEGER, "i64": INTEGER, "u64": INTEGER,
         "f16": FLOAT, "f32": FLOAT, "f64": FLOAT}  # fmt: skip


def ordering(kind, a, b):
    if kind in FORMATS:
        return FORMATS[kind].compare(a, b)
    return (a > b) - (a < b)


def class_of(f, a):
    """The bit of the class mask that `a` belongs to."""
    if f.is_nan(a):
        return 0 if f.is_signaling(a) else 1
    if f.is_infinite(a):
        return 2 if f.is_negative(a) else 9
    if f.is_zero(a):
        return 5 if f.is_negative(a) else 6
    if f.magnitude(a) >> f.mantissa_bits == 0:
        return 4 if f.is_negative(a) else 7
    return 3 if f.is_negative(a) else 8


@pytest.fixture(scope="module")
def module():
    bodies = {}
    for kind, conditions in TYPES.items():
        a, b = operand(16, kind), operand(18, kind)
        for condition in conditions:
            for prefix in ("v_cmp", "v_cmpx"):
                bodies[f"{prefix}_{condition}_{kind}"] = f"{prefix}_{condition}_{kind}_e64 s[44:45], {a}, {b}"
            bodies[f"short_{condition}_{kind}"] = f"v_cmp_{condition}_{kind}_e32 vcc, {a}, {b}"
    for kind in FORMATS:
        bodies[f"class_{kind}"] = f"v_cmp_class_{kind}_e64 s[44:45], {operand(16, kind)}, v18"
    bodies["to_exec"] = "v_cmp_lt_u32_e64 exec, v16, v18"
    return load(bodies)


def masks(truth: np.ndarray) -> np.ndarray:
    return (truth.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


@pytest.mark.parametrize("kind", TYPES)
def test_conditions(module, kind):
    values = samples((kind, kind))
    order = np.array([[ordering(kind, as_kind(kind, int(a)), as_kind(kind, int(b))) for a, b in zip(x, y, strict=True)]
                      for x, y in zip(*values, strict=True)], object)  # fmt: skip
    for condition, when in TYPES[kind].items():
        want = masks(np.array([[o in when for o in row] for row in order]))
        for level in HOST_LEVELS:
            got = run(module, f"v_cmp_{condition}_{kind}", values, host_level=level, mask=7)
            assert (got.mask == want).all(), (condition, level)
            assert (got.vcc == 7).all() and (got.exec == ALL).all()
        partial = run(module, f"v_cmpx_{condition}_{kind}", values, exec_mask=SPARSE)
        assert (partial.mask == want & np.uint64(SPARSE)).all(), condition
        assert (partial.exec == want & np.uint64(SPARSE)).all(), condition
        short = run(module, f"short_{condition}_{kind}", values, exec_mask=SPARSE, mask=ALL)
        assert (short.vcc == want & np.uint64(SPARSE)).all(), condition


@pytest.mark.parametrize("kind", FORMATS)
def test_class(module, kind):
    values = samples((kind, "u32"))
    f = FORMATS[kind]
    want = masks(np.array([[bool(int(b) >> class_of(f, int(a)) & 1) for a, b in zip(x, y, strict=True)]
                           for x, y in zip(*values, strict=True)]))  # fmt: skip
    for level in HOST_LEVELS:
        assert (run(module, f"class_{kind}", values, host_level=level).mask == want).all()


def test_comparison_into_exec(module):
    a, b = samples(("u32", "u32"), 128)
    assert (run(module, "to_exec", [a, b]).exec == masks(a < b)).all()


CARRY = {
    "add_co": ("v_add_co_u32_e64 v32, s[44:45], v16, v18", lambda a, b, c: a + b),
    "sub_co": ("v_sub_co_u32_e64 v32, s[44:45], v16, v18", lambda a, b, c: a - b),
    "subrev_co": ("v_subrev_co_u32_e64 v32, s[44:45], v16, v18", lambda a, b, c: b - a),
    "addc_co": ("v_addc_co_u32_e64 v32, s[44:45], v16, v18, s[36:37]", lambda a, b, c: a + b + c),
    "subb_co": ("v_subb_co_u32_e64 v32, s[44:45], v16, v18, s[36:37]", lambda a, b, c: a - b - c),
    "subbrev_co": ("v_subbrev_co_u32_e64 v32, s[44:45], v16, v18, s[36:37]", lambda a, b, c: b - a - c),
    "add_co_vcc": ("v_add_co_u32_e32 v32, vcc, v16, v18", lambda a, b, c: a + b),
    "addc_co_vcc": ("v_addc_co_u32_e32 v32, vcc, v16, v18, vcc", lambda a, b, c: a + b + c),
}
SELECT = {
    "cndmask": "v_cndmask_b32_e64 v32, v16, v18, s[36:37]",
    "cndmask_vcc": "v_cndmask_b32_e32 v32, v16, v18, vcc",
    "cndmask_signs": "v_cndmask_b32_e64 v32, -v16, |v18|, s[36:37]",
}
WIDE = {
    "mad_u64": ("v_mad_u64_u32 v[32:33], s[44:45], v16, v18, v[20:21]", ("u32", "u32", "u64")),
    "mad_i64": ("v_mad_i64_i32 v[32:33], s[44:45], v16, v18, v[20:21]", ("i32", "i32", "i64")),
    "mad_overlap": ("v_mad_u64_u32 v[16:17], s[44:45], v16, v18, v[20:21]", ("u32", "u32", "u64")),
}


@pytest.fixture(scope="module")
def mask_module():
    return load({name: text for name, (text, _) in (CARRY | WIDE).items()} | SELECT)


@pytest.mark.parametrize("name", CARRY)
def test_carry(mask_module, name):
    a, b = samples(("u32", "u32"))
    carry_in = 0x0123_4567_89AB_CDEF
    exact = CARRY[name][1](a.astype(np.int64), b.astype(np.int64), bits_of(carry_in).astype(np.int64))
    want_bits = masks((exact < 0) | (exact > 0xFFFFFFFF))
    for level in HOST_LEVELS:
        got = run(mask_module, name, [a, b], mask=carry_in, host_level=level)
        assert (got.destination == (exact & 0xFFFFFFFF).astype(np.uint64)).all()
        assert ((got.vcc if name.endswith("vcc") else got.mask) == want_bits).all()
    partial = run(mask_module, name, [a, b], mask=carry_in, exec_mask=SPARSE, old=5)
    assert ((partial.vcc if name.endswith("vcc") else partial.mask) == want_bits & np.uint64(SPARSE)).all()
    assert (partial.destination[:, ~bits_of(SPARSE)] == 5).all()


@pytest.mark.parametrize("name", SELECT)
def test_select(mask_module, name):
    a, b = samples(("u32", "u32"), 128)
    mask = 0xF0F0_1234_8000_0001
    if name == "cndmask_signs":
        a, b = a ^ np.uint64(0x80000000), b & np.uint64(0x7FFFFFFF)
    given = samples(("u32", "u32"), 128)
    for level in HOST_LEVELS:
        got = run(mask_module, name, given, mask=mask, host_level=level).destination
        assert (got == np.where(bits_of(mask), b, a)).all()


@pytest.mark.parametrize("name", WIDE)
def test_multiply_add_64(mask_module, name):
    kinds = WIDE[name][1]
    values = samples(kinds)
    exact = np.array([as_kind("i32", int(a)) * as_kind("i32", int(b)) + as_kind("i64", int(c)) if kinds[0] == "i32"
                      else int(a) * int(b) + int(c)
                      for a, b, c in zip(*(v.ravel() for v in values), strict=True)], object).reshape(-1, 64)  # fmt: skip
    want = (exact & ALL).astype(np.uint64)
    carry = masks(((exact >> 64) & 1).astype(bool))
    for level in HOST_LEVELS:
        got = run(mask_module, name, values, host_level=level)
        assert ((got.first_source if name == "mad_overlap" else got.destination) == want).all()
        assert (got.mask == carry).all()
