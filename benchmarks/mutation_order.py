# SPDX-License-Identifier: MIT
"""Determines whether a wait or a barrier orders anything that would be unordered without it, by replaying the memory events of the
waves with the counters and barriers of the mutant, and by following the registers through the code. Independent of the simulator's
checkers.

LDS: two accesses of different waves to the same bytes, one of them a write, are ordered if one has completed, by a wait of its
wave, before a barrier that the other wave has passed when it issues its own. An access is pending until such a wait: LDS
instructions complete in order, and so do those of vector memory (CDNA3 ISA manual, section 4.4).
Global memory, where a kernel reads what it writes: the bytes that waves access are not known, so every store is assumed to conflict
with every other access; everything that the shipped waits and barriers order must stay ordered. Kernels with atomic accesses, or with
accesses that are coherent between workgroups, are not judged.
Registers: no instruction touches a register that a load in flight may still write, either on any path through the executed code, or
on the paths that lead from each memory instruction, wait or barrier of a wave to its next one.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from mutation_code import COUNTER_LIMITS, Line, Mutant, Mutations, counts
from mutation_lanes import Sides, sides_of_branches
from mutation_plain import is_plain
from mutation_registers import registers

_BARRIER, _WAIT, _VECTOR_MEMORY, _TO_LDS, _LDS = range(5)
_NEVER = 1 << 30
_NO_CELLS = np.zeros(0, np.int64)
# Without a result and on integers: the sum is the same in any order.
_COMMUTATIVE = re.compile(r"ds_(add|sub|max|min|or|and|xor)_[uib](32|64)$")
_COHERENT = re.compile(r".*(_atomic| sc[01]\b)|buffer_(inv|wb)")
# State of registers: loads that may be in flight, each with the least number of younger ones in its queue.
State = dict[int, int]


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
    commutes: int = 0  # with others of the same number


def _events(trace: bytes) -> dict[int, dict[int, list[tuple]]]:
    """By workgroup and wave: (address, kind, bytes, LDS addresses)."""
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
    """The events of one run of the shipped kernel."""

    def __init__(self, trace: bytes, mutations: Mutations, reads_what_it_writes: bool = False):
        self.mutations = mutations
        self.reads_what_it_writes = reads_what_it_writes
        self.lines = {line.address: line for line in mutations.lines}
        self.events = _events(trace)
        executed = [line for line in mutations.lines if line.address in mutations.executed]
        self.understood = not any(
            # An atomic access without a result (without sc0) changes no register and no LDS.
            re.match(r"flat_|scratch_|.*_atomic.* sc0\b|s_setpc|s_swappc|s_setvskip", line.text)
            or (line.mnemonic.startswith("ds_") and not _is_known_in_lds(line.mnemonic))
            for line in executed
        )  # fmt: skip
        self.is_coherent = any(_COHERENT.match(line.text) for line in executed)
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
        # Waits for LDS alone do not affect what waves see of global memory.
        of_lds_alone = mutant.kind == "wait" and all(counter == "lgkmcnt" for counter, _ in mutant.relaxed)
        of_memory = self.reads_what_it_writes and not of_lds_alone
        if of_memory and self.is_coherent:
            return False
        if mutant.kind == "wait" and not (
            self._registers_are_safe(mutant) or self._registers_are_safe_in_the_run(mutant)
        ):
            return False
        return all(
            self._workgroup_is_ordered(waves, mutant)
            and not (of_memory and self._workgroup_loses_order(waves, mutant))
            for waves in self.events.values()
        )

    def _waits(self, line: Line, mutant: Mutant | None) -> dict[str, int]:
        waits = counts(line)
        if mutant and mutant.kind == "wait" and line.address == mutant.address:
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
            in_lds, _, passed = self._replay(wave, events, mutant)
            accesses += in_lds
            barriers.add(passed)
        return len(barriers) == 1 and self._all_ordered(accesses)

    def _workgroup_loses_order(self, waves: dict[int, list[tuple]], mutant: Mutant) -> bool:
        """Whether any two accesses to global memory, one of them a store, were ordered and no longer are."""
        rows = []
        for wave, events in waves.items():
            _, shipped, _ = self._replay(wave, events, None)
            _, changed, _ = self._replay(wave, events, mutant)
            rows += [
                (wave, before.writes, before.issue_epoch, before.land_epoch, after.issue_epoch, after.land_epoch)
                for before, after in zip(shipped, changed, strict=True)
            ]  # fmt: skip
        if not rows:
            return False
        every = np.unique(np.array(rows, np.int64), axis=0)
        stores = every[every[:, 1] > 0]
        return _lose_order(stores, every) or _lose_order(every, stores)

    def _replay(
        self, wave: int, events: list[tuple], mutant: Mutant | None
    ) -> tuple[list[Access], list[Access], int]:
        """Accesses to LDS, accesses to global memory, and the number of barriers passed."""
        epoch, found, memory = 0, [], []
        queues: dict[str, list[Access]] = {"vmcnt": [], "lgkmcnt": []}
        half = None  # the instruction for which the last event was the first half
        for clock, (address, kind, size, lds) in enumerate(events):
            line = self.lines[address]
            if kind == _BARRIER:
                epoch += not (mutant and mutant.kind == "barrier" and address == mutant.address)
            elif kind == _WAIT:
                for counter, count in self._waits(line, mutant).items():
                    queue = queues[counter]
                    landed = queue[: max(0, len(queue) - count)]
                    del queue[: len(landed)]
                    for access in landed:
                        access.land_epoch, access.land_clock = epoch, clock
            elif kind == _VECTOR_MEMORY:
                access = Access(wave, not _results(line), "vmcnt", _NO_CELLS, epoch, clock)
                memory.append(access)
                queues["vmcnt"].append(access)
            else:
                counter = "vmcnt" if kind == _TO_LDS else "lgkmcnt"
                commutes = zlib.crc32(line.mnemonic.encode()) if _COMMUTATIVE.match(line.mnemonic) else 0
                writes = kind == _TO_LDS or commutes > 0 or line.mnemonic.startswith("ds_write")
                access = Access(
                    wave, writes, counter, self._cells(lds, size), epoch, clock, commutes=commutes
                )
                found.append(access)
                paired = ("read2" in line.mnemonic or "write2" in line.mnemonic) and half is None
                if paired:  # both halves complete together: the first is counted with the second
                    half = access
                else:
                    if half is not None:
                        access.cells = np.union1d(access.cells, half.cells)
                        found.remove(half)
                        half = None
                    queues[counter].append(access)
        # A load to LDS has completed its read of global memory when it completes.
        memory += [replace(access, writes=False) for access in found if access.queue == "vmcnt"]
        return found, memory, epoch

    def _cells(self, addresses: np.ndarray, size: int) -> np.ndarray:
        first = addresses[:, None] + np.arange(0, max(size, self.cell), self.cell, dtype=np.uint32)[None]
        last = addresses + (size - 1)
        return np.unique(np.concatenate([first.ravel(), last]) // self.cell)

    @staticmethod
    def _all_ordered(accesses: list[Access]) -> bool:
        """Whether all are ordered. Accesses that share a cell but no byte count as conflicting, which errs on the safe side."""
        if not accesses:
            return True
        columns = np.array([
            (access.wave, access.writes, access.queue == "vmcnt", access.issue_epoch, access.land_epoch, access.issue_clock,
             access.land_clock, access.commutes) for access in accesses
        ], np.int64)  # fmt: skip
        cells = np.concatenate([access.cells for access in accesses])
        owners = np.repeat(np.arange(len(accesses)), [len(access.cells) for access in accesses])
        by_cell = np.argsort(cells, kind="stable")
        groups = np.split(owners[by_cell], np.flatnonzero(np.diff(cells[by_cell])) + 1)
        for group in {group.tobytes(): group for group in groups}.values():
            wave, writes, direct, issue, land, clock, landed, commutes = columns[group].T
            meets = (writes[:, None] | writes[None]) > 0
            meets &= (commutes[:, None] != commutes[None]) | (commutes[None] == 0)
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
        """Tracks, for every instruction, the loads that may be in flight and the least number of younger ones in their queue."""
        lines, executed, index_of = self.mutations.lines, self.mutations.executed, self._index_of
        entering: dict[int, State] = {}
        first = min(index_of[address] for address in executed)
        work = [(first, {})]
        while work:
            index, state = work.pop()
            while True:
                line = lines[index]
                if line.address not in executed:
                    break
                merged = _merged(entering.get(index), state)
                if merged == entering.get(index):
                    break
                entering[index] = state = merged
                state = self._step(index, state, mutant)
                if state is None:
                    return False
                if line.target is not None and line.target in executed:
                    work.append((index_of[line.target], dict(state)))
                if line.mnemonic in ("s_branch", "s_endpgm"):
                    break
                index += 1
        return True

    def _registers_are_safe_in_the_run(self, mutant: Mutant) -> bool:
        """The same, wave by wave: paths lead from one event to the next, with no instruction that causes events between them."""
        known: dict[tuple, State | None] = {}
        for waves in self.events.values():
            for events in waves.values():
                at, state, is_half = None, {}, False
                for address, *_ in [*events, (None,)]:
                    # For read2 and write2, the second half.
                    is_half = not is_half and address == at and "2" in self.lines[at].mnemonic.split("_")[1]
                    if is_half:
                        continue
                    key = at, address, tuple(sorted(state.items()))
                    if key not in known:
                        known[key] = self._between(at, address, state, mutant)
                    state = known[key]
                    if state is None:
                        return False
                    at = address
        return True

    @cached_property
    def _index_of(self) -> dict[int, int]:
        return {line.address: index for index, line in enumerate(self.mutations.lines)}

    @cached_property
    def _makes_events(self) -> frozenset[int]:
        return frozenset(
            address for waves in self.events.values() for events in waves.values() for address, *_ in events
        )

    def _behind(self, index: int) -> list[int]:
        """The lines that can be executed after a line."""
        line = self.mutations.lines[index]
        found = [] if line.mnemonic in ("s_branch", "s_endpgm") else [index + 1]
        if line.target is not None:
            found.append(self._index_of[line.target])
        return [each for each in found if self.mutations.lines[each].address in self.mutations.executed]

    def _path(self, at: int | None, to: int | None) -> tuple[list[int], dict[int, list[int]], int | None]:
        """The lines where paths begin; the lines on them, each with its successors; where they end. None: the program's begin and end."""
        lines = self.mutations.lines
        begin = [min(self._index_of[address] for address in self.mutations.executed)]
        if at is not None:
            begin = self._behind(self._index_of[at])
        end = None if to is None else self._index_of[to]
        reached, before = set(), defaultdict(list)
        work = list(begin)
        while work:
            index = work.pop()
            if index in reached:
                continue
            reached.add(index)
            if index == end or lines[index].address in self._makes_events:
                continue
            for behind in self._behind(index):
                before[behind].append(index)
                work.append(behind)
        ends = [end] if to is not None else [each for each in reached if lines[each].mnemonic == "s_endpgm"]
        on_path, work = set(), [each for each in ends if each in reached]
        while work:
            index = work.pop()
            if index not in on_path:
                on_path.add(index)
                work += before[index]
        behind_each = {
            index: [each for each in self._behind(index) if each in on_path and index in before[each]]
            for index in on_path
            if index != end
        }
        return [index for index in begin if index in on_path], behind_each, end

    def _between(self, at: int | None, to: int | None, state: State, mutant: Mutant) -> State | None:
        """The state after the event at `to`, from the state after the event at `at`. None: a register is touched too early."""
        begin, behind_each, end = self._path(at, to)
        if not begin:
            return None
        entering: dict[int, State] = {}
        work = [(index, state) for index in begin]
        while work:
            index, state = work.pop()
            merged = _merged(entering.get(index), state)
            if merged == entering.get(index):
                continue
            entering[index] = merged
            if index == end:
                continue
            after = self._step(index, merged, mutant)
            if after is None:
                return None
            work += [(each, after) for each in behind_each[index]]
        return {} if end is None else self._step(end, entering[end], mutant)

    def _step(self, index: int, state: State, mutant: Mutant) -> State | None:
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
            if in_order and _results(line):  # younger loads of the queue overwrite a result in order
                meeting &= registers(",".join(line.operands[1:]))
            if meeting and not self._is_of_other_lanes(load, index):
                return None
        if queue is None:
            return state
        after = {
            load: min(younger + 1, 64) if _queue(self.lines[load]) == queue else younger
            for load, younger in state.items()
        }
        if queue != "scalar":
            # A counter cannot pass its largest value: issue waits until the oldest has landed (section 4.4).
            after = {
                load: younger for load, younger in after.items()
                if _queue(self.lines[load]) == "scalar" or not self._has_landed(_queue(self.lines[load]), younger, COUNTER_LIMITS)
            }  # fmt: skip
        if _results(line):
            after[line.address] = 0
        return after

    def _is_of_other_lanes(self, load: int, index: int) -> bool:
        """Whether the load and the instruction, a plain one, access registers of disjoint lanes."""
        return is_plain(self.mutations.lines[index]) and any(
            sides.separate(self._index_of[load], index) for sides in self._sides
        )

    @cached_property
    def _sides(self) -> list[Sides]:
        return sides_of_branches(self.mutations.lines)

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
            # The compiler uses it for 32-bit multiply-add: the upper half of the addend only affects that of the result.
            upper = _upper_half(line.operands[-1])
            if upper and self._is_dead(_upper_half(line.operands[0]), index):
                others = ",".join([line.operands[0], *line.operands[2:4]])
                touched -= {upper} - registers(others)
        elif re.match(r"v_pk_(add|mul|fma)_f32$", line.mnemonic):
            touched = registers(line.operands[0]) | _sources_of_packed(line)
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


def _merged(known: State | None, state: State) -> State:
    """The state where two paths meet."""
    merged = dict(known or {})
    for load, younger in state.items():
        merged[load] = min(younger, merged.get(load, younger))
    return merged


def _lose_order(some: np.ndarray, others: np.ndarray) -> bool:
    """Columns: wave, writes, issued and landed as shipped, issued and landed as changed."""
    waves = some[:, None, 0] != others[None, :, 0]
    before = some[:, None, 3] < others[None, :, 2]
    return bool((waves & before & ~(some[:, None, 5] < others[None, :, 4])).any())


def _is_known_in_lds(mnemonic: str) -> bool:
    return mnemonic.startswith(
        ("ds_read", "ds_write", "ds_bpermute", "ds_permute", "ds_swizzle", "ds_nop")
    ) or bool(_COMMUTATIVE.match(mnemonic))


def _sources_of_packed(line: Line) -> set[str]:
    """For each pair, OP_SEL selects the register for the lower result, by default the lower one, and OP_SEL_HI the one for
    the upper result, by default the upper one (CDNA3 ISA manual, VOP3P)."""
    operands = re.split(r" (?:op_sel|neg_)", line.text[len(line.mnemonic) :])[0].split(",")
    chosen = {name: choice.split(",") for name, choice in re.findall(r"(\w+):\[([01,]+)\]", line.text)}
    found = set()
    for place, operand in enumerate(operands[1:]):
        pair = re.fullmatch(r" *([vsa])\[(\d+):(\d+)\]", operand)
        if pair:
            lower = chosen["op_sel"][place] if "op_sel" in chosen else 0
            upper = chosen["op_sel_hi"][place] if "op_sel_hi" in chosen else 1
            found |= {f"{pair[1]}{int(pair[2]) + int(half)}" for half in (lower, upper)}
        else:
            found |= registers(operand)
    return found


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
    """Registers that change when the load completes."""
    name = line.mnemonic
    loads = name.startswith(("s_load", "s_buffer_load", "ds_read", "ds_bpermute", "ds_permute", "ds_swizzle"))
    loads |= (
        name.startswith(("buffer_load", "global_load"))
        and not line.text.endswith(" lds")
        and "load_lds" not in name
    )
    return registers(line.operands[0]) if loads else set()
