"""Scalar instructions against Python integers, over edge values and both values of SCC."""

import itertools
import random

import numpy as np
import pytest

from tests.simulated_device import SimulatorError
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels
from tests.simulator.scalar_reference import EXEC_OPERATIONS, REFERENCE, overflows, signed

EDGES = (
    0,
    1,
    2,
    31,
    32,
    33,
    63,
    0x7FFF,
    0x8000,
    0xFFFF,
    0x10000,
    0x12345678,
    0x7FFFFFFF,
    0x80000000,
    0x80000001,
    0xFFFFFFFE,
    0xFFFFFFFF,
)
WIDE_EDGES = (
    0,
    1,
    0x80000000,
    0xFFFFFFFF,
    1 << 32,
    0x0123456789ABCDEF,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
# Bit field controls: offset | width << 16, with widths around and past the register's.
CONTROLS = tuple(
    offset | width << 16 for offset in (0, 1, 31, 63) for width in (0, 1, 8, 31, 32, 33, 63, 64, 127)
)

# A case is eight dwords in: a (2), b (2), d (2), SCC, EXEC is all ones; and out: result (2), SCC, EXEC (2).
LOOP = """
  s_mov_b32 s40, {count}
loop_{name}:
  s_load_dwordx8 s[8:15], s[4:5], 0
  s_waitcnt lgkmcnt(0)
  s_mov_b64 s[20:21], s[12:13]
  s_cmp_lg_u32 s14, 0
  {instruction}
  s_cselect_b32 s22, 1, 0
  s_mov_b64 s[24:25], exec
  s_mov_b64 exec, 1
  v_mov_b32_e32 v2, s20
  v_mov_b32_e32 v3, s21
  v_mov_b32_e32 v4, s22
  v_mov_b32_e32 v5, 0
  v_mov_b32_e32 v6, s24
  v_mov_b32_e32 v7, s25
  global_store_dwordx4 v5, v[2:5], s[6:7]
  global_store_dwordx2 v5, v[6:7], s[6:7] offset:16
  s_mov_b64 exec, -1
  s_add_u32 s4, s4, 32
  s_addc_u32 s5, s5, 0
  s_add_u32 s6, s6, 32
  s_addc_u32 s7, s7, 0
  s_sub_u32 s40, s40, 1
  s_cmp_lg_u32 s40, 0
  s_cbranch_scc1 loop_{name}
"""


def table(cases) -> np.ndarray:
    mask = (1 << 32) - 1
    return np.array(
        [[a & mask, a >> 32, b & mask, b >> 32, d & mask, d >> 32, scc, 0] for a, b, d, scc in cases],
        np.uint32,
    )


def values(bits: int) -> tuple[int, ...]:
    return {0: (0,), 32: EDGES, 64: WIDE_EDGES}[bits]


def cases_of(name: str) -> list[tuple[int, int, int, int]]:
    (_result, first, second), _ = REFERENCE[name]
    a, b = values(first), values(second) + (CONTROLS if "bfe" in name else ())
    cases = [(x, y, 0x5555AAAA5555AAAA, scc) for x, y, scc in itertools.product(a, b, (0, 1))]
    generator = random.Random(name)
    cases += [
        (
            generator.getrandbits(first or 1),
            generator.getrandbits(second or 1),
            generator.getrandbits(64),
            generator.getrandbits(1),
        )
        for _ in range(40)
    ]
    return cases


def register(number: int, bits: int) -> str:
    return f"s{number}" if bits == 32 else f"s[{number}:{number + 1}]"


def plain_kernel(name: str) -> RegisterKernel:
    widths, _ = REFERENCE[name]
    operands = [register(number, bits) for number, bits in zip((20, 8, 10), widths, strict=True) if bits]
    return RegisterKernel(
        LOOP.format(name=name, count=len(cases_of(name)), instruction=f"{name} {', '.join(operands)}")
    )


@pytest.fixture(scope="module")
def operations():
    names, by_name = sorted(REFERENCE), {}
    for start in range(0, len(names), 16):
        group = names[start : start + 16]
        by_name |= dict.fromkeys(
            group, RegisterKernels({name: plain_kernel(name) for name in group}, "gfx942")
        )
    return by_name


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_operation(operations, name):
    (result_bits, _first, _second), meaning = REFERENCE[name]
    cases = cases_of(name)
    out = operations[name].run_table(name, table(cases))
    for (a, b, d, scc), row in zip(cases, out.tolist(), strict=True):
        expected, expected_scc = meaning(a, b, d, scc)
        got = (row[0] | row[1] << 32) % (1 << result_bits) if result_bits else 0
        assert (got, row[2]) == (expected, expected_scc), (
            f"{name} a={a:#x} b={b:#x} d={d:#x} scc={scc}: {got:#x} {row[2]}"
        )
        untouched = d if result_bits == 0 else None
        if result_bits == 32:
            assert row[1] == d >> 32, "the register after the destination changed"
        if untouched is not None:
            assert row[0] | row[1] << 32 == untouched, "a comparison wrote a register"


def test_every_level_runs_the_same_scalar_code(operations):
    for name in ("s_addc_u32", "s_bfe_i64", "s_quadmask_b64"):
        given = table(cases_of(name))
        results = [operations[name].run_table(name, given, host_level=level) for level in LEVELS]
        assert all(np.array_equal(results[0], other) for other in results)


IMMEDIATES = (0, 1, 5, 0x7FFF, -1, -5, -0x8000)


def sopk_kernels() -> dict[str, RegisterKernel]:
    kernels = {}
    for value in IMMEDIATES:
        tag = f"{value}".replace("-", "m")
        for name in ("s_movk_i32", "s_cmovk_i32", "s_addk_i32", "s_mulk_i32"):
            kernels[f"{name}_{tag}"] = f"{name} s20, {value & 0xFFFF:#x}"
        for compare in ("eq", "lg", "gt", "ge", "lt", "le"):
            kernels[f"s_cmpk_{compare}_i32_{tag}"] = f"s_cmpk_{compare}_i32 s8, {value & 0xFFFF:#x}"
            kernels[f"s_cmpk_{compare}_u32_{tag}"] = f"s_cmpk_{compare}_u32 s8, {value & 0xFFFF:#x}"
    return kernels


SOPK_CASES = [
    (a, 0, d, scc)
    for a in (0, 1, 5, 0x7FFF, 0x8000, 0xFFFF8000, 0xFFFFFFFB, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF)
    for d, scc in ((a, 0), (a, 1))
]


def test_instructions_with_a_16_bit_constant():
    """The unsigned comparisons zero-extend the constant, everything else sign-extends it."""
    bodies = sopk_kernels()
    loops = {
        name: RegisterKernel(LOOP.format(name=name, count=len(SOPK_CASES), instruction=text))
        for name, text in bodies.items()
    }
    names = list(loops)
    for start in range(0, len(names), 16):
        kernels = RegisterKernels({name: loops[name] for name in names[start : start + 16]}, "gfx950")
        for name in names[start : start + 16]:
            check_sopk(kernels, name)


def check_sopk(kernels: RegisterKernels, name: str) -> None:
    mnemonic, tag = name.rsplit("_", 1)
    value = int(tag.replace("m", "-"))
    for (a, _, d, scc), row in zip(
        SOPK_CASES, kernels.run_table(name, table(SOPK_CASES)).tolist(), strict=True
    ):
        if mnemonic == "s_movk_i32":
            expected = value, scc
        elif mnemonic == "s_cmovk_i32":
            expected = value if scc else d, scc
        elif mnemonic == "s_addk_i32":
            expected = d + value, overflows(signed(d, 32) + value)
        elif mnemonic == "s_mulk_i32":
            expected = d * value, scc
        else:
            other = value & 0xFFFF if mnemonic.endswith("u32") else value & 0xFFFFFFFF
            expected = d, REFERENCE[mnemonic.replace("cmpk", "cmp")][1](a, other, 0, scc)[1]
        assert (row[0], row[2]) == (expected[0] & 0xFFFFFFFF, int(expected[1])), (
            f"{name} a={a:#x} d={d:#x} scc={scc}"
        )


EXEC_CASES = [(a, b, 0, scc) for a in WIDE_EDGES for b in WIDE_EDGES for scc in (0, 1)]


def exec_kernel(name: str, suffix: str) -> RegisterKernel:
    instruction = f"s_mov_b64 exec, s[10:11]\n  s_cmp_lg_u32 s14, 0\n  s_{name}_{suffix}_b64 s[20:21], s[8:9]"
    return RegisterKernel(
        LOOP.format(name=f"{name}_{suffix}", count=len(EXEC_CASES), instruction=instruction)
    )


def test_operations_on_exec():
    names = [(name, "saveexec") for name in EXEC_OPERATIONS] + [("andn1", "wrexec"), ("andn2", "wrexec")]
    kernels = RegisterKernels(
        {f"{name}_{suffix}": exec_kernel(name, suffix) for name, suffix in names}, "gfx942"
    )
    for name, suffix in names:
        out = kernels.run_table(f"{name}_{suffix}", table(EXEC_CASES)).tolist()
        for (a, before, _, _), row in zip(EXEC_CASES, out, strict=True):
            after = EXEC_OPERATIONS[name](a, before) % (1 << 64)
            kept = after if suffix == "wrexec" else before
            assert (row[0] | row[1] << 32, row[2], row[4] | row[5] << 32) == (kept, int(after != 0), after), (
                name,
                suffix,
                hex(a),
            )


# Name -> (instructions, result for a = 0x11112222 and SCC).
SOURCES = {
    "scc_source": ("s_add_u32 s20, s8, scc", lambda a, scc: a + scc),
    "scc_source_64": ("s_mov_b64 s[20:21], scc", lambda a, scc: scc),
    "execz_source": ("s_add_i32 s20, s8, src_execz", lambda a, scc: a),
    "vccz_zero": ("s_mov_b64 vcc, 0\n  s_lshl1_add_u32 s20, src_vccz, s8", lambda a, scc: a + 2),
    "vccz_set": (
        "s_mov_b32 vcc_lo, 0\n  s_mov_b32 vcc_hi, 4\n  s_lshl1_add_u32 s20, src_vccz, s8",
        lambda a, scc: a,
    ),
    "literal": ("s_lshl1_add_u32 s20, s8, 0x12345678", lambda a, scc: (2 * a + 0x12345678) & 0xFFFFFFFF),
    "literal_64": ("s_mov_b64 s[20:21], 0x87654321", lambda a, scc: 0x87654321),
    "float_constant": ("s_mov_b32 s20, 1.0", lambda a, scc: 0x3F800000),
    "float_constant_64": ("s_mov_b64 s[20:21], -4.0", lambda a, scc: 0xC010000000000000),
    "negative_constant_64": ("s_mov_b64 s[20:21], -16", lambda a, scc: (1 << 64) - 16),
    "m0": ("s_mov_b32 m0, s8\n  s_mov_b32 s20, m0", lambda a, scc: a),
    "exec_low_half": (
        "s_mov_b32 exec_lo, s8\n  s_mov_b64 s[20:21], exec",
        lambda a, scc: a | 0xFFFFFFFF << 32,
    ),
}


def test_special_sources_and_destinations():
    cases = [(0x11112222, 0x33334444, 0, scc) for scc in (0, 1)]
    loops = {
        name: RegisterKernel(LOOP.format(name=name, count=2, instruction=text))
        for name, (text, _) in SOURCES.items()
    }
    kernels = RegisterKernels(loops, "gfx950")
    for name, (text, expected) in SOURCES.items():
        for (a, _, _, scc), row in zip(cases, kernels.run_table(name, table(cases)).tolist(), strict=True):
            assert row[0] | row[1] << 32 == expected(a, scc), (text, scc)


def test_vector_instructions_see_a_new_exec():
    text = "v_mov_b32_e32 v64, 1\n  s_mov_b32 exec_lo, 0x0000ff00\n  s_mov_b32 exec_hi, 0\n"
    text += "  v_mov_b32_e32 v64, 2\n  s_mov_b64 exec, -1"
    out = RegisterKernels({"k": RegisterKernel(text, outputs=1)}, "gfx942").run(
        "k", np.zeros((0, 64), np.uint32)
    )
    assert out[0].tolist() == [2 if 8 <= lane < 16 else 1 for lane in range(64)]


def hardware_register(text: str, target: str = "gfx942") -> int:
    """s20 after `text`, which finds the f32 denormal mode in s20."""
    text = "s_getreg_b32 s20, hwreg(HW_REG_MODE, 4, 2)\n  " + text
    kernel = RegisterKernel(text + "\n  v_mov_b32_e32 v64, s20", outputs=1)
    return int(RegisterKernels({"k": kernel}, target).run("k", np.zeros((0, 64), np.uint32))[0, 0])


MODE = "s_getreg_b32 s20, hwreg(HW_REG_MODE, {first}, {size})"


def test_mode_register():
    whole = hardware_register(MODE.format(first=0, size=32))
    assert hardware_register(MODE.format(first=4, size=4)) == whole >> 4 & 15
    # f64 and f16 denormals on; written back as read.
    assert (
        hardware_register("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 6, 2), 3\n  " + MODE.format(first=6, size=2))
        == 3
    )
    write_back = MODE.format(first=0, size=4) + "\n  s_setreg_b32 hwreg(HW_REG_MODE, 0, 4), s20\n  "
    assert hardware_register(write_back + MODE.format(first=0, size=32)) == whole


def test_place_of_a_wave():
    assert hardware_register("s_getreg_b32 s20, hwreg(HW_REG_XCC_ID)") == 0
    assert hardware_register("s_getreg_b32 s20, hwreg(HW_REG_HW_ID)") == 0


@pytest.mark.parametrize(
    "text, message",
    [
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 2, 2), 1", "rounding mode of f64"),
        ("s_setreg_imm32_b32 hwreg(HW_REG_MODE, 12, 1), 1", "MODE field"),
        ("s_getreg_b32 s20, hwreg(HW_REG_TBA_LO)", "no meaning"),
        ("s_setkill 1", "no meaning"),
    ],
)
def test_what_is_not_simulated_is_refused(text, message):
    with pytest.raises(SimulatorError, match=message):
        hardware_register(text)
