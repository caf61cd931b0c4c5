# SPDX-License-Identifier: MIT
"""Mechanical proofs that a mutant does what the kernel does. Each looks at the code and at what a run recorded, never at
what a checker says.

A proof from the code alone holds for every problem. One from what a run recorded holds for this problem, in the order of waves
that was recorded: such a mutant may be a mistake that another problem would show.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mutation_code import Line, Mutant, Mutations
from mutation_order import Order
from mutation_registers import registers
from mutation_run import Subject

# Longest distance that any hazard asks for: 18 wait states (CDNA3 ISA manual, section 4.5).
_HAZARD_WINDOW = 19
_TRANSCENDENTAL = ("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos")


ALWAYS, ON_THIS_PROBLEM = "always", "on this problem"


@dataclass(frozen=True)
class Proof:
    """Why a mutant is equivalent, and whether always or only on the problem that was run."""

    reason: str
    holds: str


def proof(mutant: Mutant, mutations: Mutations, subject: Subject) -> Proof | None:
    """Of the mutant's equivalence; None without one."""
    if mutant.kind in ("wait", "barrier"):
        reason = _idle_wait(mutant, subject) if mutant.kind == "wait" else None
        reason, holds = reason or _orders_nothing(mutant, mutations, subject), ON_THIS_PROBLEM
    elif mutant.kind == "nop":
        reason, holds = _nothing_to_wait_for(mutant, mutations), ALWAYS
    elif mutant.kind == "swizzle":
        reason, holds = _sign_of_the_lane(mutant, mutations), ALWAYS
    else:
        return None
    return None if reason is None else Proof(reason, holds)


def _idle_wait(mutant: Mutant, subject: Subject) -> str | None:
    """A wait that is never reached with more in flight than it waits for lets everybody pass at once."""
    in_flight = subject.in_flight.get(mutant.address, {"vmcnt": 0, "lgkmcnt": 0})
    if any(in_flight[counter] > count for counter, count in mutant.relaxed):
        return None
    most = " and ".join(f"{counter} {in_flight[counter]}" for counter, _ in mutant.relaxed)
    return f"the wait is always reached with at most {most}"


def _orders_nothing(mutant: Mutant, mutations: Mutations, subject: Subject) -> str | None:
    if subject.reads_what_it_writes:  # waves might meet in global memory
        return None
    if subject.order is None:
        subject.order = Order(subject.trace, mutations)
    if not subject.order.keeps(mutant):
        return None
    if mutant.kind == "barrier":
        return "in a replay without it, every two accesses to the same LDS bytes are still ordered by waits and barriers"
    return (
        "no path touches a register before its load has landed, and in a replay all LDS accesses stay ordered"
    )


def _is_plain(line: Line) -> bool:
    """A vector instruction whose VGPRs the hardware forwards and interlocks: all but the kinds that the manual lists."""
    name = line.mnemonic
    special = ("mfma", "smfmac", "lane", "permute", "div_", "cmp", "cmpx", "_co_", "fp8", "bf8", "sdwa", "dpp",
               "swap", "f64", "mad_u64", "mad_i64")  # fmt: skip
    modifiers = ("sel:", "row_", "quad_perm", "op_sel:")
    text = line.text.replace("op_sel_hi:", "")
    # OP_SEL of packed arithmetic and of v_fma_mix_f32 chooses halves of the sources, none of the result.
    if name.startswith("v_pk_") or name == "v_fma_mix_f32":
        text = text.replace("op_sel:", "")
    return (
        name.startswith("v_")
        and not name.startswith(_TRANSCENDENTAL)
        and not any(word in name for word in special)
        and not any(word in text for word in modifiers)
        and not line.operands[0].startswith(("s", "vcc", "exec"))
    )


def _nothing_to_wait_for(mutant: Mutant, mutations: Mutations) -> str | None:
    """The compiler waits behind packed arithmetic as if it wrote half registers, and around inline assembly. Going back
    from the instruction behind the s_nop on every path: whatever it depends on, or overwrites, comes from a plain
    instruction, for which the hardware waits by itself, or lies far enough back."""
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
    elif not (_is_plain(consumer) or consumer.mnemonic.startswith(("buffer_load", "global_load"))):
        return None
    sources: dict[int, list[int]] = {}
    for at, line in enumerate(mutations.lines):
        if line.target is not None:
            sources.setdefault(line.target, []).append(at)
    # Places to go on from, as "everything before line `at`": what is still needed there, and the states up to there.
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
        if line.mnemonic in ("s_branch", "s_endpgm"):
            continue
        if line.mnemonic.startswith(("s_setpc", "s_swappc")):
            return None
        left = _left_to_need(line, needed, states)
        if left is None:
            return None
        paths.append((at - 1, left, states + (int(line.operands[0]) + 1 if line.mnemonic == "s_nop" else 1)))
    return "what it depends on needs no wait states, or is far enough back"


def _left_to_need(line: Line, needs: frozenset[str], states: int) -> frozenset[str] | None:
    """Of `needs`, what instructions before this one may still write; None if this one is too near for one of them."""
    # One wait state between a scalar write of M0 and a load to LDS; other scalar results need none. Of stores only
    # those of more than 64 bits take their data late.
    written = registers(line.operands[0]) if line.operands else set()
    touched = registers(line.text[len(line.mnemonic) :])
    if line.mnemonic.startswith("s_"):
        harmless = not ("m0" in written & needs and states < 1)
    elif "store" in line.mnemonic or line.mnemonic.startswith("ds_write"):
        harmless, written = not re.search("x[34]|b96|b128|2st|write2", line.mnemonic), set()
    elif line.mnemonic.startswith(("buffer_load", "global_load", "ds_read")):
        # Waits order what they load; that they still read their addresses is no hazard of the manual's.
        harmless, written = True, set()
    else:
        # What only reads a register is in nobody's way, but for matrix instructions; these write more than they name first.
        more = ("mfma", "smfmac", "_co_", "div_", "cmpx", "swap")
        only_reads = not written & needs and not any(word in line.mnemonic for word in more)
        harmless = only_reads or _is_plain(line)
    return None if touched & needs and not harmless else needs - written


def _sign_of_the_lane(mutant: Mutant, mutations: Mutations) -> str | None:
    """A division of the lane's number, by rounding towards zero, shifts its sign: 0, however far."""
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
                    return "what is shifted is the sign of the lane's number, 0"
                return None
    return None
