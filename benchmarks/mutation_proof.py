# SPDX-License-Identifier: MIT
"""Mechanical proofs that a mutant behaves like the kernel. Each inspects the code and the record of a run, never the
reports of a checker.

A proof from the code alone holds for every problem. One from the record of a run holds for this problem, in the recorded
order of waves: such a mutant may be a mistake that another problem would expose.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mutation_code import Line, Mutant, Mutations, mutated
from mutation_order import Order
from mutation_plain import TRANSCENDENTAL, is_plain
from mutation_registers import registers
from mutation_run import Subject

# Longest distance that any hazard requires: 18 wait states (CDNA3 ISA manual, section 4.5).
_HAZARD_WINDOW = 19
# Wait states after which others may use the results of these (the same section). Comparisons write scalar registers.
_STATES_BEHIND_TRANSCENDENTAL, _STATES_BEFORE_DPP = 1, 2
_STATES_BEHIND_COMPARISON, _STATES_BEFORE_MEMORY_BEHIND_IT = 2, 5


ALWAYS, ON_THIS_PROBLEM = "always", "on this problem"


@dataclass(frozen=True)
class Proof:
    """Why a mutant is equivalent, and whether always or only on the problem that was run."""

    reason: str
    holds: str


def proof(mutant: Mutant, mutations: Mutations, subject: Subject) -> Proof | None:
    """A proof that the mutant is equivalent; None without one."""
    if mutant.kind in ("wait", "barrier"):
        reason = _idle_wait(mutant, subject) if mutant.kind == "wait" else None
        reason, holds = reason or _orders_nothing(mutant, mutations, subject), ON_THIS_PROBLEM
    elif mutant.kind == "nop":
        every_line = frozenset(line.address for line in mutations.lines)
        reason, holds = _nothing_to_wait_for(mutant, mutations, every_line), ALWAYS
        if reason is None:
            reason, holds = _nothing_to_wait_for(mutant, mutations, mutations.executed), ON_THIS_PROBLEM
    elif mutant.kind in ("swizzle", "offset"):
        reason, holds = _sign_of_the_lane(mutant, mutations) if mutant.kind == "swizzle" else None, ALWAYS
        if reason is None and subject.finds_the_same(mutated(subject.image, mutant)):
            reason, holds = (
                "every instruction read the same register values as in the shipped kernel",
                ON_THIS_PROBLEM,
            )
    else:
        return None
    return None if reason is None else Proof(reason, holds)


def _idle_wait(mutant: Mutant, subject: Subject) -> str | None:
    """Proof for a wait at which the counters never exceed the mutant's: it never blocks."""
    in_flight = subject.in_flight.get(mutant.address, {"vmcnt": 0, "lgkmcnt": 0})
    if any(in_flight[counter] > count for counter, count in mutant.relaxed):
        return None
    most = " and ".join(f"{counter} {in_flight[counter]}" for counter, _ in mutant.relaxed)
    return f"the wait is always reached with at most {most}"


def _orders_nothing(mutant: Mutant, mutations: Mutations, subject: Subject) -> str | None:
    if subject.order is None:
        subject.order = Order(subject.trace, mutations, subject.reads_what_it_writes)
    if not subject.order.keeps(mutant):
        return None
    if mutant.kind == "barrier":
        return "in a replay without it, every two accesses to the same LDS bytes are still ordered by waits and barriers"
    return "no path accesses a register before its load has completed, and in a replay all LDS accesses stay ordered"


def _reads_like_a_plain_one(line: Line) -> bool:
    """A vector instruction that is not plain only because of its result or of the lanes whose registers it reads, or a load."""
    name = line.mnemonic
    if name.endswith("_dpp"):
        return name.startswith("v_mov_b32")
    if name.startswith("v_writelane"):
        return line.operands[2].isdigit()  # a lane that is not selected by a register
    return name.startswith((*TRANSCENDENTAL, "v_cmp_", "buffer_load", "global_load")) and "f64" not in name


def _nothing_to_wait_for(mutant: Mutant, mutations: Mutations, taken: frozenset[int]) -> str | None:
    """Proof for an s_nop. The compiler inserts waits after packed arithmetic as if it wrote half registers, and around inline assembly.
    On every path through the addresses `taken` that leads to the instruction after the s_nop, everything that it depends on or
    overwrites comes from a plain instruction, for which the hardware waits by itself, or is far enough back."""
    index = next(i for i, line in enumerate(mutations.lines) if line.address == mutant.address)
    consumer = mutations.lines[index + 1]
    if consumer.mnemonic.startswith("s_load"):
        return "a scalar load needs no wait states"
    needs = registers(consumer.text[len(consumer.mnemonic) :])
    if consumer.text.endswith(" lds"):
        needs.add("m0")
    elif consumer.mnemonic.startswith("s_"):
        if re.search("reg|m0|trap|sendmsg|rfe", consumer.text):
            return None
    elif not (is_plain(consumer) or _reads_like_a_plain_one(consumer)):
        return None
    behind_comparisons = (
        _STATES_BEHIND_COMPARISON if consumer.mnemonic.startswith("v_") else _STATES_BEFORE_MEMORY_BEHIND_IT
    )
    if not _is_free_of(needs, index, mutations, taken, behind_comparisons):
        return None
    # For a source with DPP, the values in other lanes.
    if consumer.mnemonic.endswith("_dpp") and not _is_free_of(
        registers(consumer.operands[1]), index, mutations, taken, behind_comparisons, _STATES_BEFORE_DPP
    ):
        return None
    return "its dependencies need no wait states, or are far enough back"


def _is_free_of(
    needs: set[str],
    index: int,
    mutations: Mutations,
    taken: frozenset[int],
    behind_comparisons: int,
    least: int = 0,
) -> bool:
    """Whether no instruction before line `index`, among those at the addresses `taken`, wrote or still reads one of these registers too
    close to its user: `behind_comparisons` wait states for a comparison, and `least` even for a plain instruction."""
    sources: dict[int, list[int]] = {}
    for at, line in enumerate(mutations.lines):
        if line.target is not None and line.address in taken:
            sources.setdefault(line.target, []).append(at)
    # Places to continue from, as "everything before line `at`": the registers still needed there, and the wait states up to there.
    paths, seen = [(index, frozenset(needs), 0)], set()
    while paths:
        at, needed, states = paths.pop()
        if not needed or states >= _HAZARD_WINDOW or (at, needed, states) in seen:
            continue
        seen.add((at, needed, states))
        if at < len(mutations.lines):
            for source in sources.get(mutations.lines[at].address, ()):
                paths.append((source, needed, states + 1))
        if at == 0:
            continue
        line = mutations.lines[at - 1]
        if line.mnemonic in ("s_branch", "s_endpgm") or line.address not in taken:
            continue
        if line.mnemonic.startswith(("s_setpc", "s_swappc")):
            return False
        if least > states and needed & (registers(line.operands[0]) if line.operands else set()):
            return False
        left = _left_to_need(line, needed, states, behind_comparisons)
        if left is None:
            return False
        paths.append((at - 1, left, states + (int(line.operands[0]) + 1 if line.mnemonic == "s_nop" else 1)))
    return True


def _left_to_need(
    line: Line, needs: frozenset[str], states: int, behind_comparisons: int
) -> frozenset[str] | None:
    """The part of `needs` that instructions before this one may still write; None if this one is too close for one of them."""
    # One wait state between a scalar write of M0 and a load to LDS; other scalar results need none. Among stores, only
    # those of more than 64 bits read their data late.
    written = registers(line.operands[0]) if line.operands else set()
    touched = registers(line.text[len(line.mnemonic) :])
    if line.mnemonic.startswith("s_"):
        harmless = not ("m0" in written & needs and states < 1)
        if states < _STATES_BEFORE_MEMORY_BEHIND_IT - 1:
            # The table of wait states does not cover a scalar result between the two instructions that it names.
            written = set()
    elif "store" in line.mnemonic or line.mnemonic.startswith("ds_write"):
        harmless, written = not re.search("x[34]|b96|b128|2st|write2", line.mnemonic), set()
    elif line.mnemonic.startswith(("buffer_load", "global_load", "ds_read")):
        # Waits order the loaded data; that loads still read their addresses is not a hazard in the manual.
        harmless, written = True, set()
    else:
        # Instructions that only read a register cause no hazard, except matrix instructions; these write more than they name first.
        more = ("mfma", "smfmac", "_co_", "div_", "cmpx", "swap", "mad_u64", "mad_i64")
        only_reads = not written & needs and not any(word in line.mnemonic for word in more)
        # v_writelane: a lane of a VGPR, like any other result.
        needs_no_care = is_plain(line) or line.mnemonic.startswith("v_writelane")
        harmless = only_reads or needs_no_care or states >= _states_behind(line, behind_comparisons)
    return None if touched & needs and not harmless else needs - written


def _states_behind(line: Line, behind_comparisons: int) -> int:
    """The most wait states that its result requires."""
    name = line.mnemonic
    if name.startswith(TRANSCENDENTAL) and "f64" not in name:
        return _STATES_BEHIND_TRANSCENDENTAL
    if name.startswith("v_cmp_") and line.operands[0].startswith(("s", "vcc")):
        return behind_comparisons
    return _HAZARD_WINDOW


def _sign_of_the_lane(mutant: Mutant, mutations: Mutations) -> str | None:
    """Proof for the correction of a division of the lane's number towards zero: it shifts the sign, which is 0, by any amount."""
    shift = re.fullmatch(r"v_lshrrev_b32_e32 (v\d+), \d+, (v\d+)", mutant.text)
    if not shift:
        return None
    value = shift[2]
    index = next(i for i, line in enumerate(mutations.lines) if line.address == mutant.address)
    for line in reversed(mutations.lines[:index]):
        if line.is_branch or line.address in mutations.targets:
            return None
        if line.operands and line.operands[0] == value:
            sign = re.fullmatch(r"v_ashrrev_i32_e32 v\d+, 31, (v\d+)", line.text)
            if sign:
                value = sign[1]
            else:
                if line.mnemonic.startswith("v_mbcnt_hi"):
                    return "the shifted value is the sign of the lane index, 0"
                return None
    return None
