"""One step of every scalar and vector ALU row that AMD's pseudocode (in the tinygrad wheel) defines and that
tests/oracles/pseudocode.py can run, bit for bit. tests/isa/evidence.json lists which rows those are."""

from __future__ import annotations

import functools
import json
import pathlib
import random

import numpy as np
import pytest

pytest.importorskip("tinygrad.runtime.autogen.amd.cdna.str_pcode")

from tests.isa.row_writer import Row, read_rows
from tests.oracles import pseudocode
from tests.oracles.pseudocode import Unsupported, Value
from tests.simulator import vector_kernels
from tests.simulator.number_formats import F16, F32, F64
from tests.simulator.register_kernels import RegisterKernel, RegisterKernels
from tests.simulator.test_scalar import EDGES, LOOP, WIDE_EDGES
from tests.simulator.vector_cases import samples

EVIDENCE = json.loads((pathlib.Path(__file__).parent / "evidence.json").read_text())
TARGET = "gfx950"
FLOATS = {"f16": F16, "f32": F32, "f64": F64}

# Where the pseudocode differs from what the instruction does, or leaves open something that we decide otherwise.
EXPECTED_DIFFERENCES: dict[str, str] = EVIDENCE["pseudocode_differences"]

SCALAR = ("sop1", "sop2", "sopc", "sopk")
VECTOR = ("vop1", "vop2", "vopc", "vop3", "vop3_sdst", "vop3p")
ROWS = {row.mnemonic: row for row in read_rows() if TARGET in row.targets}
BITS = {"b32": 32, "u32": 32, "i32": 32, "b64": 64, "u64": 64, "i64": 64}
KINDS = {"b16": "u16", "b32": "u32", "b64": "u64", "pk_f32": "u64", "vgpr_pk_f32": "u64"}
SAMPLED = {"u16", "i16", "f16", "u32", "i32", "f32", "u64", "i64", "f64", "pk_f16", "pk_i16", "pk_u16"}


@functools.cache
def has_meaning_here(name: str) -> bool:
    """Whether the interpreter can run the pseudocode of a row at all."""
    text = pseudocode.text_of(name)
    if text is None:
        return False
    wide = Value("b", 64, 5)
    try:
        for scc in (0, 1):
            pseudocode.run(text, S0=wide, S1=Value("b", 64, 3), S2=wide, D0=Value("b", 128, 7), D1=Value("b", 1, 0),
                           VCC=Value("b", 64, 1), EXEC=Value("b", 64, 1), SCC=Value("u", 1, scc), OPSEL=Value("u", 4, 0))  # fmt: skip
    except Unsupported:
        return False
    return True


# ---- Scalar.


def scalar_text(row: Row) -> str | None:
    """The row with its operands in the registers that tests/simulator/test_scalar.py's loop uses."""
    words = []
    for place, operand in enumerate((*row.destinations, *row.sources)):
        number = 20 if place < len(row.destinations) else (8, 10)[place - len(row.destinations)]
        if operand.type in ("imm", "uimm"):
            words.append("0x8765")
        elif operand.type in BITS:
            words.append(f"s{number}" if BITS[operand.type] == 32 else f"s[{number}:{number + 1}]")
        else:
            return None
    return f"{row.mnemonic} {', '.join(words)}"


def scalar_cases(row: Row) -> list[tuple[int, int, int, int]]:
    generator = random.Random(row.mnemonic)
    edges = [EDGES if BITS.get(operand.type, 32) == 32 else WIDE_EDGES for operand in row.sources] + [
        EDGES,
        EDGES,
    ]
    cases = []
    for _ in range(96):
        a, b = (
            generator.choice(edges[i]) if generator.random() < 0.6 else generator.getrandbits(64)
            for i in range(2)
        )
        cases.append((a, b, generator.getrandbits(64), generator.getrandbits(1)))
    return cases


def scalar_rows() -> dict[str, str]:
    texts = {}
    for name, row in ROWS.items():
        if (
            row.encoding in SCALAR
            and name != "s_setvskip"
            and has_meaning_here(name)
            and (text := scalar_text(row))
        ):
            texts[name] = text
    return texts


def check_scalar(name: str, kernels: RegisterKernels) -> str | None:
    """None, or a description of the difference."""
    row, cases = ROWS[name], scalar_cases(ROWS[name])
    mask = (1 << 32) - 1
    table = np.array(
        [[a & mask, a >> 32, b & mask, b >> 32, d & mask, d >> 32, scc, 0] for a, b, d, scc in cases],
        np.uint32,
    )
    out = kernels.run_table(name, table)
    for (a, b, d, scc), got in zip(cases, out.tolist(), strict=True):
        sources = []
        for operand, value in zip(row.sources, (a, b), strict=False):
            is_constant = operand.type in ("imm", "uimm")
            sources.append(
                Value("b", 16, 0x8765)
                if is_constant
                else Value("b", BITS[operand.type], value & ((1 << BITS[operand.type]) - 1))
            )
        variables = {f"S{i}": value for i, value in enumerate(sources)}
        after = pseudocode.run(
            pseudocode.text_of(name),
            D0=Value("b", 64, d),
            SCC=Value("u", 1, scc),
            EXEC=Value("b", 64, (1 << 64) - 1),
            **variables,
        )
        want = (after["D0"].bits & ((1 << 64) - 1), after["SCC"].bits & 1, after["EXEC"].bits)
        bits = BITS[row.destinations[0].type] if row.destinations else 0
        if bits:
            want = (want[0] & ((1 << bits) - 1) | d >> bits << bits, *want[1:])
        result = (
            (got[0] | got[1] << 32, got[2], got[4] | got[5] << 32)
            if len(got) > 5
            else (got[0] | got[1] << 32, got[2], want[2])
        )
        if result[:2] != want[:2]:
            return f"{name} a={a:#x} b={b:#x} d={d:#x} scc={scc}: {result[0]:#x} {result[1]}, pseudocode {want[0]:#x} {want[1]}"
    return None


# ---- Vector.


def vector_text(row: Row) -> str | None:
    words, source = [], 0
    for operand in row.destinations:
        if operand.type == "mask":
            words.append("s[44:45]")
        elif operand.dwords <= 4 and (
            operand.type in SAMPLED or operand.type in KINDS or operand.type == "b128"
        ):
            words.append("v32" if operand.dwords == 1 else f"v[32:{31 + operand.dwords}]")
        else:
            return None
    for operand in row.sources:
        if operand.type == "mask":
            words.append("s[36:37]")
        elif operand.dwords <= 2 and KINDS.get(operand.type, operand.type) in SAMPLED:
            first = 16 + 2 * source
            words.append(f"v{first}" if operand.dwords == 1 else f"v[{first}:{first + 1}]")
            source += 1
        else:
            return None
    has_both = row.encoding in ("vop1", "vop2", "vopc") and "no_vop3" not in row.modifiers
    return f"{row.mnemonic}{'_e64' if has_both else ''} {', '.join(words)}"


def vector_rows() -> dict[str, str]:
    texts = {}
    for name, row in ROWS.items():
        if row.encoding in VECTOR and has_meaning_here(name) and (text := vector_text(row)):
            texts[name] = text
    return texts


def same(kind: str, got: int, want: int) -> bool:
    if got == want:
        return True
    if kind in FLOATS:  # the pseudocode does not specify which NaN it is
        return FLOATS[kind].is_nan(got) and FLOATS[kind].is_nan(want)
    if kind in ("pk_f16", "pk_f32"):
        half, width = ("f16", 16) if kind == "pk_f16" else ("f32", 32)
        low = (1 << width) - 1
        return same(half, got & low, want & low) and same(half, got >> width, want >> width)
    return False


def check_vector(name: str, module) -> str | None:
    row = ROWS[name]
    kinds = tuple(KINDS.get(operand.type, operand.type) for operand in row.sources if operand.type != "mask")
    accumulates = bool(row.destinations) and "+" in row.destinations[0].marks
    all_kinds = (
        (*kinds, KINDS.get(row.destinations[0].type, row.destinations[0].type)) if accumulates else kinds
    )
    values = samples(all_kinds, 128, seed=5)
    mask = 0xF00F_1234_5678_9ABC
    old = values[-1] if accumulates else np.full_like(values[0], 0xDEADBEEF_CAFEF00D)
    sources = values[: len(kinds)]
    outcome = vector_kernels.run(module, name, sources, old=old, mask=mask, host_level="best")
    result = row.destinations[0]
    text = pseudocode.text_of(name)
    for wave, lane in np.ndindex(values[0].shape):
        bit = mask >> lane & 1
        variables = {f"S{i}": Value("b", 64, int(column[wave, lane])) for i, column in enumerate(sources)}
        if "mbcnt" in name:
            variables["laneId"] = Value("u", 32, lane)
        start = int(old[wave, lane])
        after = pseudocode.run(text, D0=Value("b", 128, 0 if result.type == "mask" else start), D1=Value("b", 1, 0), OPSEL=Value("u", 4, 0),
                               VCC=Value("b", 64, bit), EXEC=Value("b", 64, 1), **variables)  # fmt: skip
        given = ", ".join(f"{value.bits:#x}" for value in variables.values())
        if result.type == "mask":
            got, want = int(outcome.mask[wave]) >> lane & 1, after["D0"].bits & 1
            if got != want or (name.startswith("v_cmpx") and int(outcome.exec[wave]) >> lane & 1 != want):
                return f"{name} {given}: {got}, pseudocode {want}"
            continue
        bits = 16 if result.type in ("f16", "u16", "i16", "b16", "bf16") else 32 * result.dwords
        got = int(outcome.destination[wave, lane]) | int(outcome.upper[wave, lane]) << 64
        got, want = got & ((1 << bits) - 1), after["D0"].bits & ((1 << bits) - 1)
        if not same(result.type, got, want):
            return f"{name} {given} old {start:#x}: {got:#x}, pseudocode {want:#x}"
        if len(row.destinations) > 1:
            carry = after["D1"].bits if "D1" in text else after["VCC"].bits & 1
            if int(outcome.mask[wave]) >> lane & 1 != carry:
                return f"{name} {given}: carry, pseudocode {carry}"
    return None


@functools.cache
def differences() -> dict[str, str | None]:
    """Every row that could be compared, with its differences."""
    result: dict[str, str | None] = {}
    texts = scalar_rows()
    names = sorted(texts)
    for start in range(0, len(names), 16):
        some = names[start : start + 16]
        loops = {
            name: RegisterKernel(LOOP.format(name=name, count=96, instruction=texts[name])) for name in some
        }
        kernels = RegisterKernels(loops, TARGET)
        for name in some:
            result[name] = attempt(check_scalar, name, kernels)
    module = vector_kernels.load(vector_rows(), TARGET)
    for name in vector_rows():
        result[name] = attempt(check_vector, name, module)
    return result


def attempt(check, name: str, module) -> str | None:
    try:
        return check(name, module)
    except Unsupported as reason:
        return f"unsupported: {reason}"


def test_rows_do_what_the_pseudocode_says():
    found = {
        name: text for name, text in differences().items() if text and not text.startswith("unsupported")
    }
    unexpected = {name: text for name, text in found.items() if name not in EXPECTED_DIFFERENCES}
    assert not unexpected, unexpected
    assert set(EXPECTED_DIFFERENCES) == set(found)


def test_the_recorded_evidence_is_what_was_compared():
    equal = sorted(name for name, text in differences().items() if text is None)
    assert equal == EVIDENCE["pseudocode"]
    assert len(equal) > 350
