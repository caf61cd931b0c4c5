"""Registers that a row declares as read and written, compared with those that change and matter when it runs.

Every scalar and vector ALU row runs twice on registers full of different values. Every register that changes has to be declared as
written; and if all registers not declared as read hold other values, the results have to be the same.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.host_build import build, sources_of
from tests.isa.assembler import assemble
from tests.isa.row_writer import Row, read_rows
from tests.simulator.register_kernels import RegisterKernel, RegisterKernels

TARGET = "gfx950"
# In the rows that a kernel loads and stores: v16..v47, then s36..s67, VCC, M0 and EXEC, broadcast.
VECTORS, SCALARS = range(16, 48), range(36, 68)
VCC, M0, EXEC = 106, 124, 126
PLACES = (
    [f"v{n}" for n in VECTORS]
    + [str(n) for n in SCALARS]
    + [str(n) for n in (VCC, VCC + 1, M0, EXEC, EXEC + 1)]
)
BEFORE = "".join(f"v_readfirstlane_b32 s{n}, v{48 + i}\n" for i, n in enumerate(SCALARS))
BEFORE += "v_readfirstlane_b32 s70, v80\ns_mov_b32 vcc_lo, s70\nv_readfirstlane_b32 s70, v81\ns_mov_b32 vcc_hi, s70\n"
BEFORE += "v_readfirstlane_b32 s70, v82\ns_mov_b32 m0, s70\ns_cmp_eq_u32 s4, s4\ns_nop 4\n"
AFTER = "\ns_nop 4\ns_mov_b64 s[70:71], exec\ns_mov_b64 exec, -1\n"
AFTER += "".join(f"v_mov_b32 v{48 + i}, s{n}\n" for i, n in enumerate(SCALARS))
AFTER += (
    "v_mov_b32 v80, vcc_lo\nv_mov_b32 v81, vcc_hi\nv_mov_b32 v82, m0\nv_mov_b32 v83, s70\nv_mov_b32 v84, s71"
)

SCALAR_ENCODINGS = ("sop1", "sop2", "sopc", "sopk")
VECTOR_ENCODINGS = ("vop1", "vop2", "vopc", "vop3", "vop3_sdst", "vop3p")
# They jump, or change the meaning of later instructions; they have their own tests.
ELSEWHERE = ("s_setpc", "s_swappc", "s_call", "s_getpc", "s_cbranch", "s_rfe", "s_set_gpr", "s_movrel", "s_setvskip", "s_setreg",
             "s_getreg", "v_mfma_ld_scale", "v_screen_partition", "s_setkill")  # fmt: skip


def span(letter: str, first: int, dwords: int) -> str:
    return f"{letter}{first}" if dwords == 1 else f"{letter}[{first}:{first + dwords - 1}]"


def text_of(row: Row) -> str | None:
    words = []
    is_scalar = row.encoding in SCALAR_ENCODINGS
    vector_source, scalar_source = iter((16, 20, 24, 28)), iter((44, 48, 52))
    vector_destination, scalar_destination = iter((32, 40)), iter((56, 60))
    for place, operand in enumerate((*row.destinations, *row.sources)):
        is_destination = place < len(row.destinations)
        if operand.dwords > 4:
            return None
        if operand.type in ("imm", "uimm"):
            words.append("5")
        elif operand.type in ("literal", "literal16"):
            words.append("0x1234")
        elif is_scalar or operand.type in ("mask", "sgpr"):
            first = next(scalar_destination if is_destination else scalar_source)
            # A vector instruction can name only one scalar register.
            is_second = row.mnemonic == "v_writelane_b32" and first != 44
            words.append("5" if is_second else span("s", first, operand.dwords))
        elif operand.type == "agpr":
            return None
        else:
            words.append(
                span("v", next(vector_destination if is_destination else vector_source), operand.dwords)
            )
    has_both = row.encoding in ("vop1", "vop2", "vopc") and "no_vop3" not in row.modifiers
    return f"{row.mnemonic}{'_e64' if has_both else ''} {', '.join(words)}"


TEXTS = {
    row.mnemonic: text
    for row in read_rows()
    if TARGET in row.targets
    and row.encoding in (*SCALAR_ENCODINGS, *VECTOR_ENCODINGS)
    and not row.mnemonic.startswith(ELSEWHERE)
    and (text := text_of(row)) is not None
}
# The same rows in the short form, where VCC stands for the mask.
SHORT = {
    name + "_e32": f"{name}_e32 {words}"
    for name, words in {
        "v_addc_co_u32": "v32, vcc, v16, v20, vcc",
        "v_sub_co_u32": "v32, vcc, v16, v20",
        "v_cndmask_b32": "v32, v16, v20, vcc",
        "v_cmp_lt_f32": "vcc, v16, v20",
        "v_cmpx_ge_u32": "vcc, v16, v20",
    }.items()
}


@pytest.fixture(scope="module")
def describe(tmp_path_factory):
    output = tmp_path_factory.mktemp("isa") / "describe.so"
    library = ctypes.CDLL(
        str(build(output, ["tests/isa/describe_instruction.cpp", *sources_of("isa")], "-shared", "-O0"))
    )

    def registers_of(data: bytes) -> tuple[set[str], set[str]]:
        """(read, written) registers as names of PLACES."""
        text = ctypes.create_string_buffer(512)
        library.describe(int(TARGET[3:]), data, ctypes.c_size_t(len(data)), text, ctypes.c_size_t(512))
        read, written = set(), set()
        for word in text.value.decode().partition("|")[0].split():
            register, marks = word.split(":")
            name, dwords = register.split("x")
            if name.startswith(("#", "off")):
                continue
            letter, number = ("v", int(name[1:])) if name.startswith("v") else ("", int(name))
            names = {f"{letter}{number + i}" for i in range(int(dwords))}
            read |= names if "r" in marks else set()
            written |= names if "w" in marks else set()
        return read, written

    return registers_of


def rows_of(generator: np.random.Generator) -> np.ndarray:
    rows = generator.integers(0, 2**32, (len(PLACES), 64), dtype=np.uint32)
    rows[32:] = rows[32:, :1]  # scalars are the same in every lane
    return rows


def test_declared_reads_and_writes_are_the_ones_that_happen(describe):
    texts = TEXTS | SHORT
    names = sorted(texts)
    answers = assemble([texts[name] for name in names], TARGET)
    assert not [answer for answer in answers if isinstance(answer, str)]
    declared = {name: describe(answer[1]) for name, answer in zip(names, answers, strict=True)}
    generator = np.random.default_rng(12)
    first, other = rows_of(generator), rows_of(generator)
    all_lanes = np.uint32(0xFFFFFFFF)
    wrong, active = {}, set()
    for start in range(0, len(names), 40):
        some = names[start : start + 40]
        kernels = RegisterKernels(
            {
                name: RegisterKernel(BEFORE + texts[name] + AFTER, inputs=len(PLACES), outputs=0)
                for name in some
            },
            TARGET,
        )
        # v16.. and on are stored from where they were loaded.
        for name in some:
            kernel = kernels.kernels[name]
            kernels.kernels[name] = RegisterKernel(kernel.text, 16, len(PLACES), 16, len(PLACES))
        for name in some:
            read, written = declared[name]
            second = other.copy()
            for i, place in enumerate(PLACES):
                if place in read:
                    second[i] = first[i]
            results = []
            for rows in (first, second):
                given = rows.copy()
                given[-2:] = all_lanes  # EXEC
                out = kernels.run(name, given)
                changed = {place for i, place in enumerate(PLACES) if (out[i] != given[i]).any()}
                active |= {name} if changed else set()
                if not changed <= written:
                    wrong[name] = f"writes {sorted(changed - written)} undeclared"
                results.append((given, out))
            (given, out), (given_too, out_too) = results
            # Bits that the instruction leaves alone may differ; all others may not.
            kept = ~(out ^ given) & ~(out_too ^ given_too)
            for i, place in enumerate(PLACES):
                if place in written and ((out[i] ^ out_too[i]) & ~kept[i]).any():
                    wrong[name] = f"{place} depends on a register that is not declared as read"
    assert not wrong, wrong
    assert len(active) > 500  # rows that did something
