# SPDX-License-Identifier: MIT
"""The hot loop of a kernel, determined from the instructions that a recorded launch executed and the branches between them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

# The simulator's name for an instruction's unit, and its class here.
CLASS_OF_UNIT = {
    "matrix": "mfma",
    "valu": "valu",
    "transcendental": "valu",
    "salu": "salu",
    "branch": "salu",
    "smem": "scalar_memory",
    "lds": "lds",
    "vector_memory": "vector_memory",
    "flat": "vector_memory",
    "message": "wait",
    "internal": "wait",  # s_waitcnt, s_barrier, s_nop, s_setprio
}
CLASSES = tuple(dict.fromkeys(CLASS_OF_UNIT.values()))
_INDIRECT = ("s_setpc_b64", "s_swappc_b64", "s_call_b64", "s_rfe_b64", "s_cbranch_g_fork", "s_cbranch_join")


class Executed(NamedTuple):
    """One instruction, with the totals over all waves of a launch."""

    address: int  # from the start of the text
    size: int
    text: str
    unit: str
    executions: int
    bytes: int  # between lanes and tensors
    lds_conflict_cycles: int

    @property
    def mnemonic(self) -> str:
        return self.text.split(None, 1)[0]

    def successors(self) -> tuple[int, ...]:
        after = self.address + self.size
        if not self.text.startswith("s_"):  # most instructions, none of them a branch
            return (after,)
        mnemonic = self.mnemonic
        if mnemonic in _INDIRECT:
            raise ValueError(f"{self.text} at {self.address:#x}: its target is not in the instruction")
        if mnemonic == "s_endpgm":
            return ()
        if mnemonic != "s_branch" and not mnemonic.startswith("s_cbranch_"):
            return (after,)
        target = after + 4 * int(self.text.split()[1])
        return (target,) if mnemonic == "s_branch" else (target, after)


@dataclass
class _Block:
    instructions: list[Executed] = field(default_factory=list)
    after: list[int] = field(default_factory=list)  # blocks, by address
    before: list[int] = field(default_factory=list)

    @cached_property
    def weight(self) -> int:
        return sum(instruction.executions for instruction in self.instructions)


def _blocks(instructions: list[Executed]) -> dict[int, _Block]:
    """Basic blocks by address. Blocks that were never executed are omitted, and no edge leads to them."""
    known = {instruction.address for instruction in instructions}
    after = {i.address: [a for a in i.successors() if a in known] for i in instructions}
    starts = {instructions[0].address}
    for previous, instruction in itertools.pairwise(instructions):
        follows = after[previous.address]
        if follows != [instruction.address]:
            starts |= {*follows, instruction.address}
    starts.update(after[instructions[-1].address])  # the code may end with a branch back
    blocks: dict[int, _Block] = {}
    for instruction in instructions:
        if instruction.address in starts:
            block = blocks[instruction.address] = _Block()
        block.instructions.append(instruction)
    for address, block in blocks.items():
        block.after = after[block.instructions[-1].address]
        for follower in block.after:
            blocks[follower].before.append(address)
    return blocks


def _back_edges(blocks: dict[int, _Block], entry: int) -> list[tuple[int, int]]:
    """(from, to) of the edges to a block on the current depth-first path."""
    found, seen, on_path = [], {entry}, {entry}
    stack = [(entry, iter(blocks[entry].after))]
    while stack:
        address, followers = stack[-1]
        for follower in followers:
            if follower in on_path:
                found.append((address, follower))
            elif follower not in seen:
                seen.add(follower)
                on_path.add(follower)
                stack.append((follower, iter(blocks[follower].after)))
                break
        else:
            on_path.remove(address)
            stack.pop()
    return found


def _loops(blocks: dict[int, _Block], entry: int) -> dict[int, set[int]]:
    """The blocks of each natural loop, by its head."""
    loops: dict[int, set[int]] = {}
    for tail, head in _back_edges(blocks, entry):
        body = loops.setdefault(head, {head})
        waiting = [tail]
        while waiting:
            address = waiting.pop()
            if address not in body:
                body.add(address)
                waiting += blocks[address].before
    return loops


def loop_of(instructions: list[Executed]) -> tuple[int | None, list[Executed]]:
    """The innermost loop that contains at least half of all executions inside loops: the address of its first instruction, and
    all of them by address. None and everything for a kernel without loops.
    """
    blocks = _blocks(instructions)
    loops = _loops(blocks, instructions[0].address)
    weights = {head: sum(blocks[a].weight for a in body) for head, body in loops.items()}
    inner = [head for head in loops if 2 * weights[head] >= max(weights.values())]
    head = min(inner, key=lambda head: (len(loops[head]), weights[head]), default=None)
    body = blocks.keys() if head is None else loops[head]
    return head, [i for address in sorted(body) for i in blocks[address].instructions]


def hot_loop(instructions: list[Executed], waves: int) -> dict[str, Any]:
    """Figures of the loop of `loop_of`.

    An iteration is one execution of its first instruction by one wave; code off the usual path counts as often as it was executed. A kernel
    without loops is one iteration.
    """
    head, inside = loop_of(instructions)
    first = instructions[0].address if head is None else head
    turns = next(instruction.executions for instruction in inside if instruction.address == first)
    counts = Counter()
    for instruction in inside:
        counts[CLASS_OF_UNIT[instruction.unit]] += instruction.executions
    executed = counts.total()
    return {
        "is_loop": head is not None,
        "address": first,
        "code_bytes": sum(instruction.size for instruction in inside),
        "turns_per_wave": turns / waves,
        "instructions_per_turn": executed / turns,
        "per_turn": {name: counts[name] / turns for name in CLASSES},
        "mfma_share": counts["mfma"] / executed,
        "share_of_all": executed / sum(instruction.executions for instruction in instructions),
        "lds_conflict_cycles": sum(instruction.lds_conflict_cycles for instruction in inside),
    }
