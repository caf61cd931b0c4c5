# SPDX-License-Identifier: MIT
"""The debugger's commands, for interactive use and for scripts: each returns text and the same as JSON."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from .register_values import DTYPES, VectorRegisters, as_json
from .run_comparison import RunComparison
from .session import Exit, Session, Stop
from .symbols import Frame

_LINES_AROUND = 5


@dataclasses.dataclass(frozen=True)
class Result:
    data: Any
    text: str


def short_function(name: str) -> str:
    """A function's name without its template arguments."""
    depth, kept = 0, []
    for character in name.replace("operator<", "operator\0").replace("->", "\1"):
        depth += (character == "<") - (character == ">")
        if depth == 0 and character != ">":
            kept.append(character)
    return "".join(kept).replace("\0", "<").replace("\1", "->") or name


class Commands:
    """Each public method is a command: its name, its arguments as text, and its docstring as help."""

    def __init__(self, session: Session, comparison: RunComparison | None = None) -> None:
        self._session = session
        self._comparison = comparison
        self._other = None if comparison is None else Commands(comparison.other)
        self._frame = 0

    # Commands that resume the program.
    MOVING = ("continue", "stepi", "step", "next", "finish")

    @classmethod
    def names(cls) -> list[str]:
        return [name.rstrip("_") for name, _ in inspect.getmembers(cls, inspect.isfunction) if name[0] != "_" and name not in ("names", "run", "find")]  # fmt: skip

    _SHORT: ClassVar = {
        "b": "break", "c": "continue", "s": "step", "n": "next", "si": "stepi", "p": "print", "bt": "backtrace", "l": "list",
        "x": "disassemble", "disas": "disassemble", "d": "delete", "fin": "finish", "r": "continue", "run": "continue",
    }  # fmt: skip

    def find(self, name: str) -> Callable[[str], Result]:
        """ValueError for a name that is not a command, or a prefix of several."""
        name = self._SHORT.get(name, name)
        names = self.names()
        found = [name] if name in names else [each for each in names if each.startswith(name)]
        if len(found) != 1:
            raise ValueError(
                f"{name!r} is {'several commands: ' + ', '.join(found) if found else 'no command; allowed: ' + ', '.join(names)}"
            )
        return getattr(self, found[0], None) or getattr(self, found[0] + "_")

    def run(self, line: str) -> Result:
        """Runs a command line. ValueError describes what is wrong with it."""
        name, _, words = line.strip().partition(" ")
        return self.find(name)(words.strip())

    # Breakpoints.

    def break_(self, words: str) -> Result:
        """break PLACE [wave N] [workgroup X,Y,Z] [if CONDITION]: PLACE is FILE:LINE, entry+OFFSET, `instruction PATTERN`, or a pattern of kernels' names"""
        added = self._session.set_breakpoint(words)
        places = (
            f"{len(added.locations)} places in this kernel"
            if self._session.stop
            else "kernels are not loaded yet"
        )
        return Result(added.to_dict(), f"breakpoint {added.number} at {added.place}: {places}")

    def delete(self, words: str) -> Result:
        """delete NUMBER: removes a breakpoint"""
        self._session.delete_breakpoint(_number(words, "the number of a breakpoint"))
        return self.breakpoints("")

    def breakpoints(self, words: str) -> Result:
        """breakpoints: lists the breakpoints"""
        rows = [each.to_dict() for each in self._session.breakpoints.values()]
        text = "\n".join(
            f"{row['number']:3}  {row['place']}"
            + (f" wave {row['wave']}" if row["wave"] is not None else "")
            + (f" workgroup {row['workgroup']}" if row["workgroup"] else "")
            + (f" if {row['condition']}" if row["condition"] else "")
            + f"  ({len(row['locations'])} places, {row['hits']} hits)"
            for row in rows
        )
        return Result(rows, text or "no breakpoints")

    def watch(self, words: str) -> Result:
        """watch PLACE[, PLACE ...]: stops when they change: v3, v3[5], v[0:4], lds OFFSET BYTES, TENSOR [OFFSET BYTES], memory ADDRESS BYTES; without arguments, stops watching"""
        self._session.watch(words)
        return Result({"watch": words or None}, f"watching {words}" if words else "watching nothing")

    def launches(self, words: str) -> Result:
        """launches on|off: whether every launch stops before it begins"""
        self._session.stops_at_launches = _switch(words)
        return Result({"launches": self._session.stops_at_launches}, f"launches {words}")

    def ends(self, words: str) -> Result:
        """ends on|off: whether every launch stops when it has finished, so that its memory can be inspected"""
        self._session.stops_at_ends = _switch(words)
        return Result({"ends": self._session.stops_at_ends}, f"ends {words}")

    def findings(self, words: str) -> Result:
        """findings on|off: whether a checker's finding stops the wave (the program has to run with --checks)"""
        self._session.stops_at_findings = _switch(words)
        return Result({"findings": self._session.stops_at_findings}, f"findings {words}")

    def order(self, words: str) -> Result:
        """order SEED|off: runs each launch in another order of waves first (0: by their numbers), and stops where the launch computes with other values"""
        self._session.compares_with_order = (
            None if words == "off" else _number(words, "the seed of an order of waves, or off")
        )
        return Result({"order": self._session.compares_with_order}, f"order {words}")

    # Execution control.

    def continue_(self, words: str) -> Result:
        """continue: runs to the next breakpoint, finding or fault"""
        return self._reached(self._session.go_on())

    def stepi(self, words: str) -> Result:
        """stepi [COUNT]: executes the selected wave's next instruction"""
        for _ in range(_number(words, "how many instructions") if words else 1):
            reached = self._session.step_instruction()
            if isinstance(reached, Exit) or reached.reason != "step":
                break
        return self._reached(reached)

    def step(self, words: str) -> Result:
        """step: runs until the wave is at another line, including that of an inlined call"""
        return self._reached(self._session.step_line())

    def next(self, words: str) -> Result:
        """next: runs until the wave is at another line of this function, or has left it"""
        return self._reached(self._session.next_line())

    def finish(self, words: str) -> Result:
        """finish: runs until the wave has left this function, an inlined call or the kernel"""
        return self._reached(self._session.finish())

    def _reached(self, reached: Stop | Exit) -> Result:
        self._frame = 0
        data = reached.to_dict()
        if isinstance(reached, Exit):
            return Result(data, _place_text(reached))
        lines = [_place_text(reached)]
        if reached.text:
            lines.append(reached.text)
        if reached.has_waves:
            lines.append(self._here())
        return Result(data, "\n".join(lines))

    def _here(self) -> str:
        address = self._session.address
        instruction = self._session.launch.symbols.instruction(address)
        text = f"entry+{address - self._session.launch.entry:#x}  {instruction.text}"
        line = self._frames()[0].line
        if line is None:
            return text
        lines = self._session.sources.lines(line.file)
        here = f"\n{line.line:5}  {lines[line.line - 1]}" if 0 < line.line <= len(lines) else ""
        return f"{text}\n{line}{here}"

    # Comparison with another program.

    def compare(self, words: str) -> Result:
        """compare [TENSOR] [DTYPE [TOLERANCE]]: runs to the end of the next launch whose memory differs from that of --against; DTYPE as in v3.f32, TOLERANCE relative to the largest magnitude"""
        outcome = self._against().run(**_compared(words))
        self._frame = 0
        here, there = outcome.reached
        data = {
            "launch": outcome.launch,
            "differences": [each.to_dict() for each in outcome.differences],
            "unmatched": outcome.unmatched,
            "here": here.to_dict(),
            "there": there and there.to_dict(),
        }
        if not outcome.differences and not outcome.unmatched:
            lines = [] if outcome.launch == 0 else [f"no difference in {outcome.launch} launches"]
            ended = isinstance(here, Exit) and isinstance(there, Exit)
            if not ended or here.status or there.status:
                lines += [f"here: {_place_text(here)}", f"there: {_place_text(there)}"]
            return Result(data, "\n".join(lines) or "no program has launched anything")
        lines = [f"launch {outcome.launch}: kernel {here.launch.kernel}, there {there.launch.kernel} ({there.launch.event['target']})"]  # fmt: skip
        lines += [each.text for each in outcome.differences]
        if outcome.unmatched:
            lines.append(f"not compared, since one has no such memory: {', '.join(outcome.unmatched)}")
        return Result(data, "\n".join(lines))

    def writer(self, words: str) -> Result:
        """writer: restarts both programs, up to the wave that writes the final value of the first element that `compare` found to differ"""
        here, there = self._against().writer()
        self._frame = 0
        result = self._reached(here)
        at = f"entry+{there.address - there.launch.entry:#x}"
        return Result(
            {"here": result.data, "there": there.to_dict()},
            f"{result.text}\nthere: {_place_text(there)}, {at}",
        )

    def other(self, words: str) -> Result:
        """other COMMAND: runs a command that inspects the program of --against, such as other print v3"""
        self._against()
        name = self._other.find(words.partition(" ")[0]).__name__.rstrip("_")
        if name in (*self.MOVING, "compare", "writer", "other"):
            raise ValueError(f"`{name}` moves both programs' places apart; `other` looks alone")
        return self._other.run(words)

    def _against(self) -> RunComparison:
        if self._comparison is None:
            raise ValueError(
                "there is no other program; start the debugger with --against or --against-target"
            )
        return self._comparison

    # Inspection.

    def wave(self, words: str) -> Result:
        """wave N: selects the wave whose registers are read and that steps"""
        self._session.select_wave(_number(words, "the number of a wave"))
        self._frame = 0
        return Result({"wave": self._session.wave}, self._here())

    def waves(self, words: str) -> Result:
        """waves: lists the waves of the stopped workgroup, with the memory operations each has in flight"""
        self._session.need_stop()
        symbols, entry = self._session.launch.symbols, self._session.launch.entry
        rows = []
        for wave in self._session.waves():
            in_flight = [
                {"queue": each["queue"], "offset": each["address"] - entry, "instruction": symbols.instruction(each["address"]).text}
                for each in wave["in_flight"]
            ]  # fmt: skip
            line = symbols.line_at(wave["address"])
            rows.append(
                {
                    "wave": wave["wave"],
                    "status": wave["status"],
                    "offset": wave["address"] - entry,
                    "instruction": symbols.instruction(wave["address"]).text,
                    "line": str(line) if line else None,
                    "exec": f"{wave['exec']:#018x}",
                    "scc": wave["scc"],
                    "barriers": wave["barriers"],
                    "in_flight": in_flight,
                }
            )
        lines = []
        for row in rows:
            mark = "*" if row["wave"] == self._session.wave else " "
            lines.append(
                f"{mark} {row['wave']:2}  {row['status']:<12} entry+{row['offset']:#x}  {row['instruction']}  exec {row['exec']}"
            )
            lines += [
                f"       in flight, {each['queue']}: {each['instruction']}" for each in row["in_flight"]
            ]
        return Result(rows, "\n".join(lines))

    def _frames(self) -> list[Frame]:
        self._session.need_stop()
        return self._session.launch.symbols.frames(self._session.address)

    def backtrace(self, words: str) -> Result:
        """backtrace: the functions around the instruction, including those that the compiler inlined"""
        self._session.need_stop()
        frames = self._frames()
        rows = [
            {"frame": index, "function": frame.function, "line": str(frame.line) if frame.line else None}
            for index, frame in enumerate(frames)
        ]
        text = "\n".join(
            f"#{row['frame']:<3} {short_function(row['function'])}  {row['line'] or ''}" for row in rows
        )
        return Result(rows, text)

    def frame(self, words: str) -> Result:
        """frame N: selects the frame whose source `list` shows"""
        frames = self._frames()
        number = _number(words, "the number of a frame")
        if number >= len(frames):
            raise ValueError(f"frame {number}; there are frames 0 to {len(frames) - 1}")
        self._frame = number
        return self.list_("")

    def list_(self, words: str) -> Result:
        """list: the source around the selected frame's line"""
        self._session.need_stop()
        line = self._frames()[self._frame].line
        if line is None:
            raise ValueError("the code object has no line table")
        lines = self._session.sources.lines(line.file)
        if not lines:
            raise ValueError(f"the source of {line} is not here; `directory FOLDER` says where to look")
        first = max(line.line - _LINES_AROUND, 1)
        rows = [{"line": number, "text": lines[number - 1]} for number in range(first, min(line.line + _LINES_AROUND, len(lines)) + 1)]  # fmt: skip
        text = "\n".join(
            f"{'>' if row['line'] == line.line else ' '}{row['line']:5}  {row['text']}" for row in rows
        )
        return Result({"file": line.file, "at": line.line, "lines": rows}, f"{line}\n{text}")

    def directory(self, words: str) -> Result:
        """directory [FOLDER]: adds a folder in which sources are looked for"""
        if words:
            self._session.sources.add(words)
        folders = [str(folder) for folder in self._session.sources.folders]
        return Result(folders, f"sources are also looked for in {words}" if words else "\n".join(folders))

    def disassemble(self, words: str) -> Result:
        """disassemble [COUNT]: the wave's next instructions (default 10)"""
        self._session.need_stop()
        symbols, entry = self._session.launch.symbols, self._session.launch.entry
        index = symbols.index_of(self._session.address)
        count = _number(words, "how many instructions") if words else 10
        rows = []
        for each in symbols.instructions[index : index + count]:
            line = symbols.line_at(each.address)
            rows.append(
                {
                    "offset": each.address - entry,
                    "instruction": each.text,
                    "line": str(line) if line else None,
                }
            )
        width = max(len(row["instruction"]) for row in rows)
        text = "\n".join(
            f"  entry+{row['offset']:#x}  {row['instruction']:<{width}}  {row['line'] or ''}" for row in rows
        )
        return Result(rows, text)

    def print_(self, words: str) -> Result:
        """print EXPRESSION: Python over v3, v[0:4], v3.f32, a3, s4, s[4:6], exec, vcc, m0, scc, lds(offset, count, dtype), tensor(name, dtype), memory(address, count, dtype), variables; v[0:16].tile("32x32") is a matrix"""
        value = self._session.evaluate(words)
        return Result(as_json(value), _shown(value))

    def variables(self, words: str) -> Result:
        """variables: of the source, where the code object was compiled with -g, and the registers that hold them"""
        self._session.need_stop()
        rows = []
        for variable in self._session.launch.symbols.variables(self._session.address):
            place = variable.place
            where = (
                " ".join(f"{each.kind}{each.number}" for each in place) if isinstance(place, tuple) else place
            )
            rows.append(
                {"name": variable.name, "type": variable.type, "function": variable.function, "place": where}
            )
        text = "\n".join(
            f"{row['type']} {row['name']}: {'no register here' if row['place'] is None else row['place']}  ({short_function(row['function'])})"
            for row in rows
        )
        return Result(rows, text or "none: the code object was compiled without -g")

    def registers(self, words: str) -> Result:
        """registers: the scalar registers and special registers"""
        session = self._session
        session.need_stop()
        scalars = {f"s{index}": int(value) for index, value in enumerate(session.scalar_registers(0, 102))}
        names = ("vcc", "exec", "m0", "scc", "mode", "flat_scratch")
        special = {name: int(session.evaluate(name)) for name in names}
        lines = ["  ".join(f"{name} {value:#x}" for name, value in special.items())]
        cells = [f"{name:>4} {value:08x}" for name, value in scalars.items()]
        lines += ["  ".join(cells[first : first + 6]) for first in range(0, len(cells), 6)]
        return Result(special | scalars, "\n".join(lines))

    def launch(self, words: str) -> Result:
        """launch: kernel, grid, memory and arguments of the stopped launch"""
        self._session.need_stop()
        event = self._session.launch.event
        size = max((each["offset"] + each["bytes"] for each in event["arguments"]), default=0)
        held = self._session.memory(event["arguments_address"], size) if size else b""
        arguments = [
            {"name": each["name"], "kind": each["kind"], "bytes": held[each["offset"] : each["offset"] + each["bytes"]].hex()}
            for each in event["arguments"]
        ]  # fmt: skip
        data = {key: event[key] for key in ("launch", "kernel", "target", "grid", "block", "lds_bytes")}
        data |= {"vector_registers": event["vector_registers"], "accum_offset": event["accum_offset"]}
        data |= {"memory": self._session.launch.tensors, "arguments": arguments}
        lines = [
            f"kernel {data['kernel']} ({data['target']}), launch {data['launch']}",
            f"grid {tuple(data['grid'])} of workgroups of {tuple(data['block'])}; LDS {data['lds_bytes']} bytes; "
            f"{data['vector_registers']} vector registers, AGPRs from {data['accum_offset']}",
        ]
        for region in data["memory"]:
            only = "" if region["writable"] else ", read-only"
            lines.append(f"  {region['name']}: {region['bytes']} bytes at {region['begin']:#x}{only}")
        lines += [
            f"  argument {each['name'] or '?'} ({each['kind']}): {each['bytes'][:64]}" for each in arguments
        ]
        return Result(data, "\n".join(lines))

    def set_(self, words: str) -> Result:
        """set PLACE = EXPRESSION: s4, exec, vcc, m0, v3 (its active lanes), v3[5], a3; a float is written as f32"""
        place, equals, expression = words.partition("=")
        if not equals:
            raise ValueError("set wants PLACE = EXPRESSION, such as set v3[5] = 1.0")
        self._session.assign(place.strip(), expression)
        return Result({"set": place.strip()}, "")


def _place_text(reached: Stop | Exit | None) -> str:
    if reached is None:
        return "where it was"
    if isinstance(reached, Exit):
        return f"the program ended with status {reached.status}"
    reason = reached.reason
    if reason == "breakpoint":
        reason += f" {', '.join(map(str, reached.breakpoints))}"
    text = f"{reason}: kernel {reached.launch.kernel} ({reached.launch.event['target']}), launch {reached.launch.number}"
    return text + (f", workgroup {reached.workgroup}, wave {reached.wave}" if reached.has_waves else "")


def _compared(words: str) -> dict[str, Any]:
    """The arguments of `compare`. ValueError for invalid ones."""
    parts = words.split()
    chosen: dict[str, Any] = {}
    if parts and parts[0] not in DTYPES:
        chosen["tensor"] = parts.pop(0)
    if parts:
        chosen["dtype"] = parts.pop(0)
    if parts:
        try:
            chosen["tolerance"] = float(parts.pop(0))
        except ValueError:
            raise ValueError(f"{words!r}: the tolerance is no number") from None
    if parts:
        raise ValueError(f"{words!r}; wanted: [TENSOR] [DTYPE [TOLERANCE]]")
    return chosen


def _switch(words: str) -> bool:
    if words not in ("on", "off"):
        raise ValueError(f"{words!r}; allowed: on, off")
    return words == "on"


def _number(words: str, what: str) -> int:
    try:
        return int(words, 0)
    except ValueError:
        raise ValueError(f"{words!r}; wanted: {what}") from None


def _shown(value: Any) -> str:
    if isinstance(value, VectorRegisters):
        return f"u32 {_lanes(value.u32, '{:08x}')}\nf32 {_lanes(value.f32, '{:.6g}')}"
    if isinstance(value, torch.Tensor):
        if value.dtype.itemsize == 1 and value.is_floating_point():
            value = value.float()
        # Wide matrices keep their rows on a line, up to some size.
        with torch._tensor_str.printoptions(threshold=4096, linewidth=250, precision=4):
            return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{int(value)} ({int(value):#x})"
    return str(value)


def _lanes(values: torch.Tensor, form: str) -> str:
    rows = values.tolist() if values.dim() > 1 else [values.tolist()]
    return "\n    ".join(" ".join(form.format(value) for value in row) for row in rows)
