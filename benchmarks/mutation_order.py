# SPDX-License-Identifier: MIT
"""Whether a wait or a barrier orders anything that would not be ordered without it: a replay of what the waves did, with the
counters and barriers of the mutant, and a walk over the code with its registers. Independent of the simulator's checkers.

LDS: two accesses of different waves to the same bytes, one of them a write, are ordered if one has landed, by a wait of its
wave, before a barrier that the other wave has passed when it issues its own. An access is pending until such a wait: LDS
instructions complete in order, and so do those of vector memory (CDNA3 ISA manual, section 4.4).
Registers: no instruction, on any path through the executed code, touches what a load may still have to write.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from mutation_code import COUNTER_LIMITS, Line, Mutant, Mutations, counts
from mutation_registers import registers

_BARRIER, _WAIT, _VECTOR_MEMORY, _TO_LDS, _LDS = range(5)
_NEVER = 1 << 30


@dataclass(eq=False)
class Access:
    wave: int
    writes: bool
    queue: str
    cells: np.ndarray
    issue_epoch: int
    issue_clock: int
    land_epoch: int = _NEVER
    land_clock: int = _NEVER


def _events(trace: bytes) -> dict[int, dict[int, list[tuple]]]:
    """workgroup: wave: (address, kind, bytes, LDS addresses)"""
    words = np.frombuffer(trace, np.uint32)
    result: dict[int, dict[int, list[tuple]]] = defaultdict(lambda: defaultdict(list))
    at = 0
    while at < len(words):
        who, address, what, size = (int(word) for word in words[at : at + 4])
        kind, count = what >> 16, what & 0xFFFF
        result[who >> 8][who & 0xFF].append((address, kind, size, words[at + 4 : at + 4 + count]))
        at += 4 + count
    return result


class Order:
    """The events of one run of a kernel as shipped."""

    def __init__(self, trace: bytes, mutations: Mutations):
        self.mutations = mutations
        self.lines = {line.address: line for line in mutations.lines}
        self.events = _events(trace)
        executed = [line for line in mutations.lines if line.address in mutations.executed]
        self.understood = not any(
            re.match(r"flat_|scratch_|.*_atomic|ds_(add|append|consume|max|min|cmpst|wrxchg|sub|or|and|xor)|s_setpc|s_swappc", line.text)
            for line in executed
        )  # fmt: skip
        sizes = {
            size
            for waves in self.events.values()
            for wave in waves.values()
            for _, kind, size, _ in wave
            if kind >= _TO_LDS
        }
        self.cell = min([16, *(size & -size for size in sizes)])

    def keeps(self, mutant: Mutant) -> bool:
        if not self.understood:
            return False
        if mutant.kind == "wait" and not self._registers_are_safe(mutant):
            return False
        return all(self._workgroup_is_ordered(waves, mutant) for waves in self.events.values())

    def _waits(self, line: Line, mutant: Mutant) -> dict[str, int]:
        waits = counts(line)
        if mutant.kind == "wait" and line.address == mutant.address:
            # A counter cannot pass its largest value: issue waits there (section 4.4).
            if mutant.what == "deleted":
                return {counter: COUNTER_LIMITS[counter] for counter in waits}
            for counter, count in mutant.relaxed:
                waits[counter] = count + 1
        return waits

    def _workgroup_is_ordered(self, waves: dict[int, list[tuple]], mutant: Mutant) -> bool:
        accesses: list[Access] = []
        barriers = set()
        for wave, events in waves.items():
            accesses += self._replay(wave, events, mutant, barriers)
        return len(barriers) == 1 and self._all_ordered(accesses)

    def _replay(self, wave: int, events: list[tuple], mutant: Mutant, barriers: set[int]) -> list[Access]:
        epoch, found = 0, []
        queues: dict[str, list[Access | None]] = {"vmcnt": [], "lgkmcnt": []}
        half = None  # the instruction of which the last event was the first half
        for clock, (address, kind, size, lds) in enumerate(events):
            line = self.lines[address]
            if kind == _BARRIER:
                epoch += not (mutant.kind == "barrier" and address == mutant.address)
            elif kind == _WAIT:
                for counter, count in self._waits(line, mutant).items():
                    queue = queues[counter]
                    landed = queue[: max(0, len(queue) - count)]
                    del queue[: len(landed)]
                    for access in landed:
                        if access:
                            access.land_epoch, access.land_clock = epoch, clock
            elif kind == _VECTOR_MEMORY:
                queues["vmcnt"].append(None)
            else:
                counter = "vmcnt" if kind == _TO_LDS else "lgkmcnt"
                writes = kind == _TO_LDS or line.mnemonic.startswith("ds_write")
                access = Access(wave, writes, counter, self._cells(lds, size), epoch, clock)
                found.append(access)
                paired = ("read2" in line.mnemonic or "write2" in line.mnemonic) and half is None
                if paired:  # both halves land together: the first is counted with the second
                    half = access
                else:
                    if half is not None:
                        access.cells = np.union1d(access.cells, half.cells)
                        found.remove(half)
                        half = None
                    queues[counter].append(access)
        barriers.add(epoch)
        return found

    def _cells(self, addresses: np.ndarray, size: int) -> np.ndarray:
        first = addresses[:, None] + np.arange(0, max(size, self.cell), self.cell, dtype=np.uint32)[None]
        last = addresses + (size - 1)
        return np.unique(np.concatenate([first.ravel(), last]) // self.cell)

    @staticmethod
    def _all_ordered(accesses: list[Access]) -> bool:
        """An access that shares a cell but no byte with another counts as meeting it: that errs on the safe side."""
        if not accesses:
            return True
        columns = np.array([
            (access.wave, access.writes, access.queue == "vmcnt", access.issue_epoch, access.land_epoch, access.issue_clock,
             access.land_clock) for access in accesses
        ], np.int64)  # fmt: skip
        cells = np.concatenate([access.cells for access in accesses])
        owners = np.repeat(np.arange(len(accesses)), [len(access.cells) for access in accesses])
        by_cell = np.argsort(cells, kind="stable")
        groups = np.split(owners[by_cell], np.flatnonzero(np.diff(cells[by_cell])) + 1)
        for group in {group.tobytes(): group for group in groups}.values():
            wave, writes, direct, issue, land, clock, landed = columns[group].T
            meets = (writes[:, None] | writes[None]) > 0
            others = wave[:, None] != wave[None]
            before = land[:, None] < issue[None]
            own_before = landed[:, None] < clock[None]
            ordered = np.where(
                others, before | before.T, (direct[:, None] == direct[None]) | own_before | own_before.T
            )
            if (meets & ~ordered).any():
                return False
        return True

    def _registers_are_safe(self, mutant: Mutant) -> bool:
        """Loads that may be in flight, with the least number of younger ones of their queue, at every instruction."""
        lines, executed = self.mutations.lines, self.mutations.executed
        index_of = {line.address: index for index, line in enumerate(lines)}
        entering: dict[int, dict[int, int]] = {}
        first = min(index_of[address] for address in executed)
        work = [(first, {})]
        while work:
            index, state = work.pop()
            while True:
                line = lines[index]
                if line.address not in executed:
                    break
                known = entering.get(index)
                if known is not None:
                    merged = dict(known)
                    for load, younger in state.items():
                        merged[load] = min(younger, merged.get(load, younger))
                    if merged == known:
                        break
                    state = merged
                entering[index] = state
                state = self._step(index, state, mutant)
                if state is None:
                    return False
                if line.target is not None and line.target in executed:
                    work.append((index_of[line.target], dict(state)))
                if line.mnemonic in ("s_branch", "s_endpgm"):
                    break
                index += 1
        return True

    def _step(self, index: int, state: dict[int, int], mutant: Mutant) -> dict[int, int] | None:
        line = self.mutations.lines[index]
        if line.mnemonic == "s_waitcnt":
            waits = self._waits(line, mutant)
            return {
                load: younger for load, younger in state.items()
                if not self._has_landed(_queue(self.lines[load]), younger, waits)
            }  # fmt: skip
        queue = _queue(line)
        touched = self._touched(index)
        for load in state:
            meeting = touched & _results(self.lines[load])
            in_order = queue == _queue(self.lines[load]) and queue != "scalar"
            if in_order and _results(line):  # a result that a younger load of the queue overwrites in order
                meeting &= registers(",".join(line.operands[1:]))
            if meeting:
                return None
        if queue is None:
            return state
        after = {
            load: min(younger + 1, 64) if _queue(self.lines[load]) == queue else younger
            for load, younger in state.items()
        }
        if _results(line):
            after[line.address] = 0
        return after

    @staticmethod
    def _has_landed(queue: str | None, younger: int, waits: dict[str, int]) -> bool:
        if queue == "scalar":  # out of order
            return waits.get("lgkmcnt") == 0
        counter = "lgkmcnt" if queue == "lds" else "vmcnt"
        return counter in waits and younger >= waits[counter]

    def _touched(self, index: int) -> set[str]:
        line = self.mutations.lines[index]
        touched = registers(line.text[len(line.mnemonic) :])
        if line.mnemonic == "v_mad_u64_u32":
            # The compiler multiplies and adds 32 bits with it: the upper half of the addend only reaches that of the result.
            upper = _upper_half(line.operands[-1])
            if upper and self._is_dead(_upper_half(line.operands[0]), index):
                others = ",".join([line.operands[0], *line.operands[2:4]])
                touched -= {upper} - registers(others)
        return touched

    def _is_dead(self, register: str | None, index: int) -> bool:
        for line in self.mutations.lines[index + 1 : index + 400]:
            if line.is_branch:
                return False
            results = (
                registers(line.operands[0])
                if line.operands and line.mnemonic.startswith("v_")
                else _results(line)
            )
            sources = line.operands if not results else line.operands[1:]
            if register in registers(",".join(sources)):
                return False
            if register in results:
                return True
        return False


def _upper_half(operand: str) -> str | None:
    pair = re.fullmatch(r"v\[(\d+):(\d+)\]", operand)
    return f"v{pair[2]}" if pair else None


def _queue(line: Line) -> str | None:
    if line.mnemonic.startswith(("s_load", "s_buffer_load")):
        return "scalar"
    if line.mnemonic.startswith("ds_"):
        return "lds"
    return "vector" if line.mnemonic.startswith(("buffer_", "global_")) else None


def _results(line: Line) -> set[str]:
    """Registers that change when it lands."""
    name = line.mnemonic
    loads = name.startswith(("s_load", "s_buffer_load", "ds_read", "ds_bpermute", "ds_permute", "ds_swizzle"))
    loads |= (
        name.startswith(("buffer_load", "global_load"))
        and not line.text.endswith(" lds")
        and "load_lds" not in name
    )
    return registers(line.operands[0]) if loads else set()
