# SPDX-License-Identifier: MIT
"""A debugged program: its launches, where they stop, and the contents of registers and memory there."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import struct
from collections.abc import Iterator
from typing import Any, Literal

import torch

from . import breakpoints, differences, watches
from .breakpoints import Breakpoint
from .process import DebuggedProcess
from .register_values import DTYPES, RegisterFile, Scalar, VectorRegisters, dtype_named
from .sources import Sources
from .symbols import Frame, Instruction, Register, Symbols
from .watches import Watch

# Operand codes of the special registers (csrc/isa/instruction.h).
_SPECIAL = {"flat_scratch": (102, 2), "vcc": (106, 2), "m0": (124, 1), "exec": (126, 2)}
_SGPRS = 102


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch that has begun. `event` is the simulator's description of it (csrc/simulator/debug/debug_session.cpp)."""

    event: dict[str, Any]
    symbols: Symbols

    @property
    def number(self) -> int:
        return self.event["launch"]

    @property
    def kernel(self) -> str:
        return self.event["kernel"]

    @property
    def entry(self) -> int:
        return self.event["entry"]

    @property
    def tensors(self) -> list[dict[str, Any]]:
        return [region for region in self.event["regions"] if not region["is_own"]]


@dataclasses.dataclass(frozen=True)
class Stop:
    """Where a wave has stopped, before the instruction at `address`.

    reason    "launch", "end", "breakpoint", "step", "watch", "finding" (of a checker), "fault", "ended" (the wave that was stepped),
    "pause",
              "difference"
    text      a description of the fault, the finding, the change or the difference
    breakpoints, watches    numbers of those that stopped it
    """

    reason: str
    text: str
    launch: Launch
    workgroup: tuple[int, int, int]
    linear_workgroup: int
    wave: int
    address: int
    breakpoints: tuple[int, ...] = ()
    moment: Literal["begin", "wave", "end"] = (
        "wave"  # of the launch; at its beginning and end there is only memory
    )
    watches: tuple[int, ...] = ()

    @property
    def has_waves(self) -> bool:
        return self.moment == "wave"

    @property
    def instruction(self) -> Instruction:
        return self.launch.symbols.instruction(self.address)

    @property
    def frames(self) -> list[Frame]:
        return self.launch.symbols.frames(self.address)

    def to_dict(self) -> dict[str, Any]:
        line = self.launch.symbols.line_at(self.address)
        return {
            "reason": self.reason,
            "text": self.text,
            "launch": self.launch.number,
            "kernel": self.launch.kernel,
            "target": self.launch.event["target"],
            "workgroup": list(self.workgroup),
            "wave": self.wave,
            "offset": self.address - self.launch.entry,
            "instruction": self.instruction.text,
            "line": str(line) if line else None,
            "breakpoints": list(self.breakpoints),
            "watches": list(self.watches),
        }


@dataclasses.dataclass(frozen=True)
class Exit:
    """The program has ended."""

    status: int

    def to_dict(self) -> dict[str, Any]:
        return {"reason": "exit", "status": self.status}


class Session:
    """Breakpoints live as long as the session; a watch, until its launch ends; a stop, until the program continues.

    One thread at a time uses it. While it waits for a launch, others may call pause, add_breakpoint, delete_breakpoint and delete_watch.

    stops_at_findings    whether a checker's finding stops the wave (the process has to be checked)

    compares_with_order, if it is not None, is the seed of an order of waves in which every launch is run first. A wave then stops at its
    first instruction that reads other values than in that run, and the launch at its end if it leaves other memory.
    """

    def __init__(self, process: DebuggedProcess, *, stops_at_findings: bool = True) -> None:
        self.process = process
        self.breakpoints: dict[int, Breakpoint] = {}
        self.watches: dict[int, Watch] = {}
        self._sent_watches: set[int] = set()
        self.sources = Sources()
        self.stops_at_findings = stops_at_findings
        self.stops_at_launches = self.stops_at_ends = False
        self.compares_with_order: int | None = None
        self._order_of_launch: int | None = None  # with which the current launch is compared
        self.stop: Stop | None = None
        self.launch: Launch | None = None
        self.wave: int | None = None  # whose registers are read
        self._next_number = 1
        self._symbols: dict[int, Symbols] = {}
        self._last_step = ""
        self._has_new_breakpoints = False

    @contextlib.contextmanager
    def stopping_at(self, *, launches: bool | None = None, ends: bool | None = None) -> Iterator[None]:
        """Context manager: stops before launches or at their ends as specified; None keeps the current setting."""
        before = self.stops_at_launches, self.stops_at_ends
        self.stops_at_launches = before[0] if launches is None else launches
        self.stops_at_ends = before[1] if ends is None else ends
        try:
            yield
        finally:
            self.stops_at_launches, self.stops_at_ends = before

    def start_again(self, process: DebuggedProcess) -> None:
        """Another process of the program instead of the current one; breakpoints are kept."""
        self.process = process
        self.stop = self.launch = self.wave = None
        self._forget_watches()

    # Breakpoints.

    def set_breakpoint(self, text: str) -> Breakpoint:
        """See breakpoints.parsed. It also applies to the current launch. ValueError for an invalid place or condition."""
        return self.add_breakpoint(breakpoints.parsed(self._next_number, text))

    def add_breakpoint(self, added: Breakpoint) -> Breakpoint:
        added.number = self._next_number
        if added.condition:
            _check_syntax(added.condition)
        self._next_number += 1
        self.breakpoints[added.number] = added
        self._send_breakpoints()
        return added

    def delete_breakpoint(self, number: int) -> None:
        if number not in self.breakpoints:
            raise ValueError(
                f"there is no breakpoint {number}; there are {sorted(self.breakpoints) or 'none'}"
            )
        del self.breakpoints[number]
        self._send_breakpoints()

    def _send_breakpoints(self) -> None:
        if self.launch is None:
            return  # the next launch gets them
        if self.stop is None:
            self._has_new_breakpoints = True
            self.pause()
            return
        self._has_new_breakpoints = False
        for each in self.breakpoints.values():
            each.locations = each.find(self.launch.symbols, self.launch.kernel, self.launch.entry)
        addresses = {address for each in self.breakpoints.values() for address in each.locations}
        self.process.request(" ".join(["breakpoints", *map(str, sorted(addresses))]))

    # Watches.

    def watch(self, places: str) -> None:
        """Watches only these, separated by commas (see watches.py for what they can be); "" for nothing."""
        self.need_stop()
        wanted = [self.watch_of(place) for place in places.split(",")] if places.strip() else []
        for number in list(self.watches):
            self.delete_watch(number)
        for each in wanted:
            self.add_watch(each)

    def watch_of(self, place: str, condition: str = "") -> Watch:
        """A watch for add_watch. Registers are those of the selected wave. ValueError for an invalid place."""
        stop = self.need_stop()
        workgroup = stop.linear_workgroup if stop.has_waves else None
        return watches.resolved(place, stop.launch.event, self.wave or 0, workgroup, condition)

    def add_watch(self, added: Watch) -> Watch:
        """Stops once those bytes change. ValueError if they do not belong to the stopped launch, or workgroup."""
        stop = self.need_stop()
        if added.launch != stop.launch.number:
            raise ValueError(f"{added.place}: launch {added.launch}, whose bytes these are, has ended")
        if added.workgroup not in (None, stop.linear_workgroup):
            raise ValueError(f"{added.place}: its workgroup is not the one that has stopped")
        if added.condition:
            _check_syntax(added.condition)
        self.process.request(f"watch {self._next_number} {added.request}")
        added.number = self._next_number
        self._next_number += 1
        self.watches[added.number] = added
        self._sent_watches.add(added.number)
        return added

    def delete_watch(self, number: int) -> None:
        if number not in self.watches:
            raise ValueError(f"there is no watch {number}; there are {sorted(self.watches) or 'none'}")
        del self.watches[number]
        if self.stop is None:  # the launch runs
            self._has_new_breakpoints = True
            self.pause()
        else:
            self._send_ended_watches()

    def _send_ended_watches(self) -> None:
        for number in self._sent_watches - self.watches.keys():
            self.process.request(f"watch {number}")
            self._sent_watches.discard(number)

    def _forget_watches(self) -> None:
        self.watches.clear()
        self._sent_watches.clear()

    # Execution control. Each returns the next stop, or the program's end.

    def go_on(self) -> Stop | Exit:
        return self._run("continue")

    def step_instruction(self) -> Stop | Exit:
        """Executes the selected wave's next instruction."""
        return self._step([])

    def step_line(self) -> Stop | Exit:
        """Runs until the wave is at another line, including that of an inlined call."""
        chain = self._chain(self.address)
        return self._step_while(lambda address: self._chain(address) == chain)

    def next_line(self) -> Stop | Exit:
        """Runs until the wave is at another line of the selected frame's function, or has left it."""
        chain = self._chain(self.address)[-1]  # without DWARF: only a function
        outer = self._chain(self.address)[:-1]
        depth = len(outer)

        def inside(address: int) -> bool:
            other = self._chain(address)
            return (
                len(other) > depth
                and other[:depth] == outer
                and other[depth][:2] == chain[:2]
                and (len(other) > depth + 1 or other[depth] == chain)
            )

        return self._step_while(inside)

    def finish(self) -> Stop | Exit:
        """Runs until the wave has left the innermost function: an inlined call, or the kernel, at whose end the wave ends."""
        calls = [part[:2] for part in self._chain(self.address)]
        return self._step_while(
            lambda address: [part[:2] for part in self._chain(address)][: len(calls)] == calls
        )

    def pause(self) -> None:
        """Stops the running launch, from a thread other than the one that waits for it."""
        self.process.send("pause")

    @property
    def address(self) -> int:
        """The address of the selected wave's next instruction in the file."""
        stop = self.need_stop()
        if self.wave == stop.wave or not stop.has_waves:
            return stop.address
        return self.waves()[self.wave]["address"]

    def _chain(self, address: int) -> list[tuple]:
        """The functions around an instruction, the kernel first, each with its line."""
        return [
            (frame.function, frame.call, frame.line)
            for frame in reversed(self.launch.symbols.frames(address))
        ]

    def _step_while(self, inside) -> Stop | Exit:
        ranges: list[list[int]] = []
        for instruction in self.launch.symbols.instructions:
            if not inside(instruction.address):
                continue
            if ranges and ranges[-1][1] == instruction.address:
                ranges[-1][1] = instruction.end
            else:
                ranges.append([instruction.address, instruction.end])
        return self._step([number for part in ranges for number in part])

    def _step(self, ranges: list[int]) -> Stop | Exit:
        stop = self.need_stop()
        wave = self.wave if self.wave is not None else 0
        return self._run(" ".join(["step", str(stop.linear_workgroup), str(wave), *map(str, ranges)]))

    def _run(self, command: str) -> Stop | Exit:
        if self.stop is not None:
            self.process.send(command)
        self.stop, self._last_step = None, command
        while True:
            event = self.process.event()
            if event["event"] == "exit":
                self.launch = None
                self._forget_watches()
                return Exit(event["status"])
            reached = {"launch": self._begin, "stop": self._stopped, "launch_end": self._ended}[
                event["event"]
            ](event)
            if reached is not None:
                return reached

    def _ended(self, event: dict[str, Any]) -> Stop | None:
        launch, self._last_step = self.launch, "continue"
        self._forget_watches()
        different = event["differences"]
        if self.stops_at_ends or different:
            self.wave = 0
            reason, text = "end", event["error"]
            if different:
                reason = "difference"
                text = differences.of_memory(different, self._order_of_launch)
            self.stop = Stop(reason, text, launch, (0, 0, 0), 0, 0, launch.entry, moment="end")
            return self.stop
        self.launch = None
        self.process.send("continue")
        return None

    def _begin(self, event: dict[str, Any]) -> Stop | None:
        digest = event["code"]
        if digest not in self._symbols:
            code = bytes.fromhex(self.process.request("code")["bytes"])
            self._symbols[digest] = Symbols(code, event["target"])
        self.launch = Launch(event, self._symbols[digest])
        self.wave = 0
        self._forget_watches()
        self.stop = Stop("launch", "", self.launch, (0, 0, 0), 0, 0, self.launch.entry, moment="begin")
        self._send_breakpoints()
        order = self._order_of_launch = self.compares_with_order
        if order is not None:
            there = self.process.request(f"replay {order}")["error_there"]
            if there:
                text = f"under wave order {order} this launch fails: {there}"
                self.stop = dataclasses.replace(self.stop, reason="difference", text=text)
                return self.stop
        if self.stops_at_launches:
            return self.stop
        self.stop = None
        self.process.send("continue")
        return None

    def _stopped(self, event: dict[str, Any]) -> Stop | None:
        self.wave = event["wave"]
        text = event["text"]
        if event["reason"] == "finding":
            text = json.loads(text)["message"]
        elif event["reason"] == "difference":
            symbols, entry = self.launch.symbols, self.launch.entry
            text = differences.of_registers(json.loads(text), self._order_of_launch, symbols, entry)
        changes = []
        if event["reason"] == "watch":
            # A watch that was deleted while the launch ran may have changed before the simulator was told.
            changes = [each for each in watches.changes_of(text) if each["watch"] in self.watches]
            text = watches.describe(changes, self.watches)
        self.stop = Stop(
            event["reason"],
            text,
            self.launch,
            tuple(event["workgroup"]),
            event["linear_workgroup"],
            event["wave"],
            event["address"],
            watches=tuple(each["watch"] for each in changes),
        )
        if self._has_new_breakpoints:
            self._send_breakpoints()
            self._send_ended_watches()
            if self.stop.reason == "pause":
                return self._pass_by()
        hit = [each for each in self.breakpoints.values() if self._is_hit(each)]
        for each in hit:
            each.hits += 1
        self.stop = dataclasses.replace(self.stop, breakpoints=tuple(each.number for each in hit))
        if not self._is_wanted():
            # The simulator reports one reason to stop. A breakpoint, or the end of a step, may coincide with it.
            if not hit and not self._has_stepped():
                return self._pass_by()
            self.stop = dataclasses.replace(self.stop, reason="breakpoint" if hit else "step", text="")
        return self.stop

    def _is_wanted(self) -> bool:
        if self.stop.reason == "breakpoint":
            return bool(self.stop.breakpoints)
        if self.stop.reason == "finding":
            return self.stops_at_findings
        return self.stop.reason != "watch" or self._have_changed()

    def _has_stepped(self) -> bool:
        """Whether the wave that was stepped is past the addresses that it was to leave."""
        name, *words = self._last_step.split()
        if name != "step" or [int(word) for word in words[:2]] != [
            self.stop.linear_workgroup,
            self.stop.wave,
        ]:
            return False
        bounds = [int(word) for word in words[2:]]
        inside = zip(bounds[::2], bounds[1::2], strict=True)
        return not any(begin <= self.stop.address < end for begin, end in inside)

    def _have_changed(self) -> bool:
        """Whether one of the changed watches requests a stop; others do not count as hit."""
        wanted = [self.watches[number] for number in self.stop.watches]
        wanted = [each for each in wanted if not each.condition or bool(self.evaluate(each.condition))]
        for each in wanted:
            each.hits += 1
        self.stop = dataclasses.replace(self.stop, watches=tuple(each.number for each in wanted))
        return bool(wanted)

    def _pass_by(self) -> None:
        self.stop = None
        self.process.send(self._last_step)

    def _is_hit(self, each: Breakpoint) -> bool:
        stop = self.stop
        if stop.reason in ("fault", "ended") or stop.address not in each.locations:
            return False
        if not each.wants(stop.wave, stop.workgroup):
            return False
        return not each.condition or bool(self.evaluate(each.condition))

    # Inspection at a stop.

    def need_stop(self) -> Stop:
        """ValueError if no launch has stopped."""
        if self.stop is None:
            raise ValueError("no launch has stopped; set a breakpoint and `continue`")
        return self.stop

    def waves(self) -> list[dict[str, Any]]:
        """For the stopped workgroup: wave, status, address of the next instruction, exec, scc, barriers, and in_flight, the instructions
        whose memory operations have not completed.
        """
        self.need_stop()
        return self.process.request("waves")["waves"]

    def select_wave(self, wave: int) -> None:
        count = len(self.waves())
        if not 0 <= wave < count:
            raise ValueError(f"wave {wave}; the workgroup has waves 0 to {count - 1}")
        self.wave = wave

    def vector_registers(self, first: int, count: int, name: str = "") -> VectorRegisters:
        """Vector registers, in the numbering of the unified file."""
        raw = bytearray.fromhex(self.process.request(f"vector {self.wave} {first} {count}")["bytes"])
        return VectorRegisters(torch.frombuffer(raw, dtype=torch.uint8).reshape(count, 64, 4), name)

    def scalar_registers(self, code: int, count: int) -> Scalar | list[int]:
        values = self.process.request(f"scalar {self.wave} {code} {count}")["values"]
        if count > 2:
            return [Scalar(value) for value in values]
        return Scalar(sum(value << 32 * index for index, value in enumerate(values)), 32 * count)

    def memory(self, address: int, size: int) -> bytes:
        """Bytes of the launch's tensors, its arguments or its code. ValueError for other addresses."""
        self.need_stop()
        return bytes.fromhex(self.process.request(f"memory {address} {size}")["bytes"])

    def lds(self, offset: int, size: int) -> bytes:
        return bytes.fromhex(self.process.request(f"lds {offset} {size}")["bytes"])

    def evaluate(self, expression: str) -> Any:
        """The value of a Python expression over registers and memory of the selected wave; docs/debugger.md lists the names.

        ValueError describes what is wrong with it.
        """
        self.need_stop()
        try:
            return eval(compile(expression.strip(), "expression", "eval"), {"__builtins__": {}}, _Names(self))
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"{expression.strip()!r}: {error}") from None

    def assign(self, place: str, expression: str) -> None:
        """Sets a register: s4, exec, v3 (all active lanes) or v3[5]; a float is written as f32."""
        number, lane = place, None
        if place.endswith("]") and "[" in place:
            number, _, lane = place[:-1].partition("[")
        value = self.evaluate(expression)
        bits = struct.unpack("<I", struct.pack("<f", value))[0] if isinstance(value, float) else int(value)
        kind, digits = number[:1], number[1:]
        if kind in "va" and digits.isdecimal():
            self._assign_vector(kind, int(digits), bits, None if lane is None else int(lane))
        elif number in _SPECIAL or (kind == "s" and digits.isdecimal()):
            code, count = _SPECIAL.get(number, (int(digits) if digits.isdecimal() else 0, 1))
            for index in range(count):
                self.process.request(
                    f"set_scalar {self.wave} {code + index} {bits >> 32 * index & 0xFFFFFFFF}"
                )
        else:
            raise ValueError(f"{place!r} cannot be set; allowed: s4, exec, vcc, m0, v3, v3[5], a3, a3[5]")

    def _assign_vector(self, kind: str, number: int, bits: int, lane: int | None) -> None:
        first = number + (self.launch.event["accum_offset"] if kind == "a" else 0)
        raw = self.vector_registers(first, 1).raw
        active = int(self.scalar_registers(*_SPECIAL["exec"]))
        for each in range(64):
            if each == lane or (lane is None and active >> each & 1):
                raw[0, each] = torch.tensor(
                    list((bits & 0xFFFFFFFF).to_bytes(4, "little")), dtype=torch.uint8
                )
        self.process.request(f"set_vector {self.wave} {first} {bytes(raw.flatten().tolist()).hex()}")

    def tensor(self, name: str) -> dict[str, Any] | None:
        """The launch's memory of that name: begin, bytes, writable; None if it has none."""
        return next((region for region in self.launch.tensors if region["name"] == name), None)

    def variable(self, name: str) -> Any:
        """The value of a source variable that DWARF locates. KeyError if there is none."""
        for variable in self.launch.symbols.variables(self.address):
            if variable.name != name:
                continue
            if variable.place is None:
                raise ValueError(f"{name}: the compiler has it in no register here")
            if isinstance(variable.place, int):
                return variable.place
            return self.value_of(variable.place, variable.type)
        raise KeyError(name)

    def value_of(self, place: tuple[Register, ...], type_name: str) -> Any:
        """The contents of registers as a C++ type: an SGPR's number, or one for every lane."""
        dtype = {
            "float": "f32",
            "int": "i32",
            "double": "f64",
            "unsigned int": "u32",
            "long": "i64",
            "_Float16": "f16",
        }
        base = dtype.get(type_name.split("[")[0].removeprefix("const "), "u32")
        if place[0].kind == "s":
            value = self.scalar_registers(place[0].number, len(place))
            return (
                getattr(value, base)
                if isinstance(value, Scalar) and len(place) * 4 == DTYPES[base].itemsize
                else value
            )
        raw = torch.cat([self._register(register).raw for register in place])
        return VectorRegisters(raw, "variable").of(DTYPES[base])

    def _register(self, register: Register) -> VectorRegisters:
        first = register.number + (self.launch.event["accum_offset"] if register.kind == "a" else 0)
        return self.vector_registers(first, 1, f"{register.kind}{register.number}")


def _check_syntax(condition: str) -> None:
    try:
        compile(condition, "condition", "eval")
    except SyntaxError as error:
        raise ValueError(f"the condition {condition!r} is no expression of Python: {error.msg}") from None


class _Names(dict):
    """The names of an expression: registers, memory, variables of the source, and a few functions of Python."""

    def __init__(self, session: Session) -> None:
        super().__init__(abs=abs, all=all, any=any, hex=hex, int=int, float=float, len=len, list=list, max=max, min=min,
                         range=range, round=round, sum=sum, torch=torch)  # fmt: skip
        self._session = session

    def __missing__(self, name: str) -> Any:
        session = self._session
        try:
            return session.variable(name)
        except KeyError:
            pass
        accum = session.launch.event["accum_offset"]
        registers = session.launch.event["vector_registers"]
        kind, digits = name[:1], name[1:]
        files = {
            "v": RegisterFile("v", lambda first, count: session.vector_registers(first, count, "v"), min(accum, registers)),
            "a": RegisterFile("a", lambda first, count: session.vector_registers(accum + first, count, "a"), max(registers - accum, 0)),
            "s": RegisterFile("s", session.scalar_registers, _SGPRS),
        }  # fmt: skip
        if name in files:
            return files[name]
        if kind in files and digits.isdecimal():
            return files[kind][int(digits)]
        if name in _SPECIAL:
            return session.scalar_registers(*_SPECIAL[name])
        if name in ("scc", "mode", "barriers"):
            return session.waves()[session.wave][name]
        if name in ("wave", "workgroup"):
            return session.wave if name == "wave" else session.stop.workgroup
        if name == "lds":
            return lambda offset, count, dtype="f32": _typed(session.lds, offset, count, dtype)
        if name == "memory":
            return lambda address, count, dtype="f32": _typed(session.memory, address, count, dtype)
        if name == "tensor":
            return lambda name, dtype="f32", offset=0, count=None: _tensor_values(
                session, name, dtype, offset, count
            )
        raise ValueError(
            f"{name!r} is no register, no variable in scope and no function; allowed: v3, v[0:4], a3, s4, s[4:6], exec, vcc, m0, scc, "
            "mode, flat_scratch, wave, workgroup, lds(offset, count, dtype), memory(address, count, dtype), tensor(name, dtype)"
        )


def _typed(read, begin: int, count: int, dtype: str) -> torch.Tensor:
    kind = dtype_named(dtype)
    return torch.frombuffer(bytearray(read(int(begin), int(count) * kind.itemsize)), dtype=torch.uint8).view(
        kind
    )


def _tensor_values(session: Session, name: str, dtype: str, offset: int, count: int | None) -> torch.Tensor:
    found = session.tensor(name)
    if found is None:
        names = ", ".join(region["name"] for region in session.launch.tensors)
        raise ValueError(f"the launch has no memory called {name!r}; it has {names}")
    size = dtype_named(dtype).itemsize
    return _typed(
        session.memory, found["begin"] + offset * size, count or found["bytes"] // size - offset, dtype
    )
