# SPDX-License-Identifier: MIT
"""`hipkittens sim debug --adapter`: the Debug Adapter Protocol over standard input and output, for VS Code and other editors.

Specification: https://microsoft.github.io/debug-adapter-protocol/specification (1.70). A thread is a wave of the stopped workgroup, a stack
frame is a function that the compiler inlined, or the kernel. The Python libraries for this protocol are clients and types; the server side
is the message loop below, tested against both in tests/test_debug_adapter.py.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from . import breakpoints, watches
from .commands import Commands, short_function
from .process import DebuggedProcess
from .session import Exit, Session, Stop
from .symbols import Instruction, Register

_FRAMES_PER_WAVE = 1000
_RUNNING = 1  # the one thread that there is while no wave has stopped
_CAPABILITIES = {
    "supportsConfigurationDoneRequest": True,
    "supportsFunctionBreakpoints": True,
    "supportsConditionalBreakpoints": True,
    "supportsInstructionBreakpoints": True,
    "supportsDataBreakpoints": True,
    "supportsDataBreakpointBytes": True,
    "supportsSteppingGranularity": True,
    "supportsDisassembleRequest": True,
    "supportsReadMemoryRequest": True,
    "supportsSetVariable": True,
    "supportsEvaluateForHovers": True,
    "supportsTerminateRequest": True,
    "exceptionBreakpointFilters": [
        {"filter": "finding", "label": "Findings of the simulator's checkers", "default": True},
    ],
}


@dataclasses.dataclass(frozen=True)
class _Container:
    """What a variablesReference refers to. `names_variables`: its children's names are those of the source, not places."""

    children: Callable[[], list[dict[str, Any]]]
    wave: int | None
    names_variables: bool = False


class Adapter:
    """One session: requests come from `source`, responses and events go to `sink`."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink = source, sink
        self._writing = threading.Lock()
        self._sent = 0
        self._launch: dict[str, Any] = {}
        self._launch_request: dict[str, Any] | None = None
        self._process: DebuggedProcess | None = None
        self._session: Session | None = None
        self._pending: list[
            tuple[str, list[breakpoints.Breakpoint]]
        ] = []  # set before the program has started
        self._own: dict[str, list[int]] = {}  # numbers of breakpoints by what set them
        self._watchable: dict[str, watches.Watch] = {}  # by the dataId that the client was told
        self._watched: dict[str, int] = {}  # numbers of watches by dataId
        self._references: list[_Container] = []
        self._is_ending, self._stops_at_findings = False, True

    def serve(self) -> None:
        """Runs until the client disconnects or its input ends."""
        try:
            while not self._is_ending and (request := self._read()) is not None:
                self._handle(request)
        finally:
            if self._process is not None:
                self._process.kill()

    # Messages.

    def _read(self) -> dict[str, Any] | None:
        length = 0
        while True:
            line = self._source.readline()
            if not line:
                return None
            name, _, value = line.decode("ascii", "replace").strip().partition(":")
            if name.lower() == "content-length":
                length = int(value)
            elif not name:
                break
        body = self._source.read(length)
        return json.loads(body) if len(body) == length else None

    def _send(self, message: dict[str, Any]) -> None:
        with self._writing:
            self._sent += 1
            body = json.dumps({"seq": self._sent} | message).encode()
            self._sink.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            self._sink.flush()

    def _event(self, name: str, **body: Any) -> None:
        self._send({"type": "event", "event": name, "body": body})

    def _respond(self, request: dict[str, Any], body: dict[str, Any] | None = None, error: str = "") -> None:
        response = {
            "type": "response",
            "request_seq": request["seq"],
            "success": not error,
            "command": request["command"],
        }
        if error:
            response |= {"message": error, "body": {"error": {"id": 1, "format": error}}}
        elif body is not None:
            response["body"] = body
        self._send(response)

    def _handle(self, request: dict[str, Any]) -> None:
        handler = getattr(self, f"_on_{request['command']}", None)
        if handler is None:
            self._respond(request, error=f"hipkittens sim debug has no request {request['command']!r}")
            return
        try:
            answer = handler(request.get("arguments") or {}, request)
        except ValueError as error:
            self._respond(request, error=str(error))
            return
        if answer is not None:
            body, then = answer if isinstance(answer, tuple) else (answer, None)
            self._respond(request, body)
            if then is not None:
                then()

    # Start and end.

    def _on_initialize(self, arguments: dict, request: dict):
        return _CAPABILITIES, lambda: self._event("initialized")

    def _on_launch(self, arguments: dict, request: dict) -> None:
        program = arguments.get("program")
        if not program or not isinstance(program, (str, list)):
            raise ValueError(
                "launch wants `program`, a path or a list of words, and takes args, target, checks, cwd, env, stopOnEntry, sourceFolders"
            )
        self._launch, self._launch_request = arguments, request  # answered by configurationDone

    def _on_configurationDone(self, arguments: dict, request: dict) -> None:
        self._respond(request)
        if self._launch_request is None:
            return
        given = self._launch
        words = given["program"] if isinstance(given["program"], list) else [given["program"]]
        try:
            self._process = DebuggedProcess(
                [*words, *given.get("args", [])],
                target=given.get("target"),
                checks=given.get("checks"),
                output=subprocess.PIPE,
                folder=given.get("cwd"),
                environment=given.get("env"),
            )
            session = Session(self._process, stops_at_findings=self._stops_at_findings)
            session.stops_at_launches = bool(given.get("stopOnEntry"))
            for folder in given.get("sourceFolders", []):
                session.sources.add(folder)
            for owner, added in self._pending:
                self._own[owner] = [session.add_breakpoint(each).number for each in added]
        except ValueError as error:
            self._respond(self._launch_request, error=str(error))
            self._event("terminated")
            return
        self._session = session
        self._respond(self._launch_request, {})
        threading.Thread(target=self._pass_on_output, daemon=True).start()
        self._run(session.go_on)

    def _pass_on_output(self) -> None:
        for line in self._process.process.stdout:
            self._event("output", category="stdout", output=line.decode(errors="replace"))

    def _on_disconnect(self, arguments: dict, request: dict):
        self._is_ending = True
        return {}

    def _on_terminate(self, arguments: dict, request: dict):
        if self._process is not None:
            self._process.process.kill()
        return {}

    # Execution control.

    def _run(self, go: Callable[[], Stop | Exit]) -> None:
        threading.Thread(target=self._wait_for, args=(go,), daemon=True).start()

    def _wait_for(self, go: Callable[[], Stop | Exit]) -> None:
        try:
            reached = go()
        except ValueError as error:  # a condition that cannot be evaluated
            self._event("output", category="stderr", output=f"{error}\n")
            if self._session.stop is None:
                return
            reached = self._session.stop
        self._references.clear()
        self._tell_of_ended_watches()
        if isinstance(reached, Exit):
            self._event("exited", exitCode=reached.status)
            self._event("terminated")
            return
        if reached.reason == "launch" and self._launch.get("stopOnEntry"):
            self._session.stops_at_launches = False
        reason = {
            "launch": "entry",
            "watch": "data breakpoint",
            "finding": "exception",
            "difference": "exception",
            "fault": "exception",
            "ended": "step",
        }
        self._event(
            "stopped",
            reason=reason.get(reached.reason, reached.reason),
            description=f"{reached.reason}: kernel {reached.launch.kernel}",
            text=reached.text,
            threadId=reached.wave + 1,
            allThreadsStopped=True,
            hitBreakpointIds=[*reached.breakpoints, *reached.watches],
        )

    def _stopped_session(self) -> Session:
        if self._session is None or self._session.stop is None:
            raise ValueError("no wave has stopped")
        return self._session

    def _go(self, arguments: dict, of_lines: Callable, *, by_instruction: Callable | None = None):
        session = self._stopped_session()
        session.wave = arguments["threadId"] - 1
        is_fine = arguments.get("granularity") == "instruction" and by_instruction is not None
        return {}, lambda: self._run(by_instruction if is_fine else of_lines)

    def _on_continue(self, arguments: dict, request: dict):
        session = self._stopped_session()
        return {"allThreadsContinued": True}, lambda: self._run(session.go_on)

    def _on_next(self, arguments: dict, request: dict):
        session = self._stopped_session()
        return self._go(arguments, session.next_line, by_instruction=session.step_instruction)

    def _on_stepIn(self, arguments: dict, request: dict):
        session = self._stopped_session()
        return self._go(arguments, session.step_line, by_instruction=session.step_instruction)

    def _on_stepOut(self, arguments: dict, request: dict):
        return self._go(arguments, self._stopped_session().finish)

    def _on_pause(self, arguments: dict, request: dict):
        if self._session is None or self._session.stop is not None:
            raise ValueError("no launch is under way")
        self._session.pause()
        return {}

    # Breakpoints.

    def _replace(self, owner: str, wanted: list[breakpoints.Breakpoint]) -> None:
        if self._session is None:
            self._pending = [each for each in self._pending if each[0] != owner] + [(owner, wanted)]
            return
        for number in self._own.get(owner, []):
            self._session.delete_breakpoint(number)
        self._own[owner] = [self._session.add_breakpoint(each).number for each in wanted]

    @staticmethod
    def _described(wanted: list[breakpoints.Breakpoint]) -> dict[str, Any]:
        # It is not known yet which kernels will be launched: a place is verified once a stopped kernel contains it.
        rows = []
        for each in wanted:
            row: dict[str, Any] = {"id": each.number or 0, "verified": bool(each.locations)}
            if isinstance(each, breakpoints.LineBreakpoint):
                row["line"] = each.found_line or each.line
            if not each.locations:
                row["message"] = "no kernel that was launched so far has code there"
            rows.append(row)
        return {"breakpoints": rows}

    def _on_setBreakpoints(self, arguments: dict, request: dict):
        path = arguments["source"].get("path") or arguments["source"].get("name", "")
        wanted: list[breakpoints.Breakpoint] = [
            breakpoints.LineBreakpoint(0, condition=each.get("condition", ""), file=path, line=each["line"])
            for each in arguments.get("breakpoints", [])
        ]
        self._replace(f"source {path}", wanted)
        return self._described(wanted)

    def _on_setFunctionBreakpoints(self, arguments: dict, request: dict):
        wanted = [
            breakpoints.parsed(
                0, each["name"] + (f" if {each['condition']}" if each.get("condition") else "")
            )
            for each in arguments["breakpoints"]
        ]
        self._replace("functions", wanted)
        return self._described(wanted)

    def _on_setInstructionBreakpoints(self, arguments: dict, request: dict):
        session = self._stopped_session()
        wanted: list[breakpoints.Breakpoint] = [
            breakpoints.OffsetBreakpoint(
                0,
                condition=each.get("condition", ""),
                offset=int(each["instructionReference"], 0) + each.get("offset", 0) - session.launch.entry,
            )
            for each in arguments["breakpoints"]
        ]
        self._replace("instructions", wanted)
        return self._described(wanted)

    def _on_setExceptionBreakpoints(self, arguments: dict, request: dict):
        stops = "finding" in arguments.get("filters", [])
        self._stops_at_findings = stops
        if self._session is not None:
            self._session.stops_at_findings = stops
        return {}

    def _on_dataBreakpointInfo(self, arguments: dict, request: dict):
        session = self._stopped_session()
        name, number = arguments["name"], arguments.get("variablesReference")
        is_variable = None
        if number:
            container = self._container(number)
            is_variable = container.names_variables
            session.wave = session.wave if container.wave is None else container.wave
        elif arguments.get("frameId"):
            session.wave = (arguments["frameId"] - 1) // _FRAMES_PER_WAVE
        place = name
        if arguments.get("asAddress"):
            place = f"memory {name} {arguments.get('bytes', 1)}"
        try:
            watch = self._watch_of(place, is_variable)
        except ValueError as error:
            return {"dataId": None, "description": str(error)}
        identity = f"launch {watch.launch} {watch.request}"
        where = "memory of the launch"
        if watch.workgroup is not None:
            identity += f" workgroup {watch.workgroup}"
            where = f"workgroup {session.stop.workgroup}"
            where += "" if watch.request.startswith("lds") else f", wave {session.wave}"
        self._watchable[identity] = watch
        shown = watch.place if watch.place == name else f"{name} in {watch.place}"
        return {
            "dataId": identity,
            "description": f"{shown} ({watch.bytes} bytes, {where})",
            "accessTypes": ["write"],
            "canPersist": False,
        }

    def _watch_of(self, name: str, is_variable: bool | None) -> watches.Watch:
        """`is_variable` None: a place, or otherwise a variable of the source."""
        session = self._stopped_session()
        if not is_variable:
            try:
                return session.watch_of(name)
            except ValueError:
                if is_variable is False:
                    raise
        for variable in session.launch.symbols.variables(session.address):
            if variable.name == name:
                return session.watch_of(_registers_of(name, variable.place))
        return session.watch_of(name)

    def _on_setDataBreakpoints(self, arguments: dict, request: dict):
        wanted = arguments["breakpoints"]
        identities = [each["dataId"] + _condition_suffix(each) for each in wanted]
        session = self._session
        for identity in self._watched.keys() - set(identities):
            number = self._watched.pop(identity)
            if number in session.watches:
                session.delete_watch(number)
        rows = []
        for each, identity in zip(wanted, identities, strict=True):
            try:
                rows.append({"id": self._watch(each, identity), "verified": True})
            except ValueError as error:
                rows.append({"verified": False, "message": str(error)})
        return {"breakpoints": rows}

    def _watch(self, wanted: dict[str, Any], identity: str) -> int:
        """The number of the watch: an existing one for it, or a new one."""
        if wanted.get("accessType", "write") != "write":
            raise ValueError(
                f"accessType {wanted['accessType']!r}; allowed: 'write', since a launch stops when bytes have changed"
            )
        if identity not in self._watched:
            session = self._stopped_session()
            if wanted["dataId"] not in self._watchable:
                raise ValueError(f"dataId {wanted['dataId']!r} is of no dataBreakpointInfo of this session")
            watch = dataclasses.replace(
                self._watchable[wanted["dataId"]], condition=wanted.get("condition", "")
            )
            self._watched[identity] = session.add_watch(watch).number
        return self._watched[identity]

    def _tell_of_ended_watches(self) -> None:
        for identity, number in list(self._watched.items()):
            if number not in self._session.watches:
                del self._watched[identity]
                gone = {"id": number, "verified": False, "message": "its launch has ended"}
                self._event("breakpoint", reason="changed", breakpoint=gone)

    # Inspection.

    def _on_threads(self, arguments: dict, request: dict):
        session = self._session
        if session is None or session.stop is None or not session.stop.has_waves:
            return {"threads": [{"id": _RUNNING, "name": "launch"}]}
        workgroup = session.stop.workgroup
        return {
            "threads": [
                {
                    "id": wave["wave"] + 1,
                    "name": f"workgroup {workgroup}, wave {wave['wave']} ({wave['status']})",
                }
                for wave in session.waves()
            ]
        }

    def _on_stackTrace(self, arguments: dict, request: dict):
        session = self._stopped_session()
        session.wave = wave = arguments["threadId"] - 1
        address = session.address
        rows = []
        for index, frame in enumerate(session.launch.symbols.frames(address)):
            row: dict[str, Any] = {
                "id": wave * _FRAMES_PER_WAVE + index + 1,
                "name": short_function(frame.function),
                "line": frame.line.line if frame.line else 0,
                "column": 0,
                "instructionPointerReference": hex(address),
            }
            path = session.sources.path(frame.line.file) if frame.line else None
            if path is not None:
                row["source"] = {"name": path.name, "path": str(path)}
            elif frame.line:
                row["source"] = {"name": Path(frame.line.file).name, "presentationHint": "deemphasize"}
            rows.append(row)
        first = arguments.get("startFrame", 0)
        last = first + (arguments.get("levels") or len(rows))
        return {"stackFrames": rows[first:last], "totalFrames": len(rows)}

    def _on_scopes(self, arguments: dict, request: dict):
        session = self._stopped_session()
        wave = (arguments["frameId"] - 1) // _FRAMES_PER_WAVE
        event = session.launch.event
        accum, registers = event["accum_offset"], event["vector_registers"]
        scopes = [
            ("Variables", "locals", _Container(lambda: self._variables_of_source(wave), wave, True)),
            ("Scalar registers", "registers", _Container(lambda: self._scalars(wave), wave)),
            (
                "Vector registers",
                "registers",
                _Container(lambda: self._vectors(wave, "v", min(accum, registers)), wave),
            ),
        ]
        if registers > accum:
            scopes.append(
                (
                    "Accumulation registers",
                    "registers",
                    _Container(lambda: self._vectors(wave, "a", registers - accum), wave),
                )
            )
        scopes.append(("Memory", "arguments", _Container(self._memory, None)))
        return {
            "scopes": [
                {
                    "name": name,
                    "presentationHint": hint,
                    "variablesReference": self._reference(container),
                    "expensive": hint == "registers",
                }
                for name, hint, container in scopes
            ]
        }

    def _reference(self, container: _Container) -> int:
        self._references.append(container)
        return len(self._references)

    def _container(self, number: int) -> _Container:
        if not 0 < number <= len(self._references):
            raise ValueError(f"variablesReference {number} is of an earlier stop")
        return self._references[number - 1]

    def _on_variables(self, arguments: dict, request: dict):
        self._stopped_session()
        return {"variables": self._container(arguments["variablesReference"]).children()}

    def _variables_of_source(self, wave: int) -> list[dict[str, Any]]:
        session = self._stopped_session()
        session.wave = wave
        rows = []
        for variable in session.launch.symbols.variables(session.address):
            try:
                value = str(session.variable(variable.name))
            except ValueError as error:
                value = str(error)
            rows.append(
                {"name": variable.name, "value": value, "type": variable.type, "variablesReference": 0}
            )
        return rows

    def _scalars(self, wave: int) -> list[dict[str, Any]]:
        session = self._stopped_session()
        session.wave = wave
        values = {name: session.evaluate(name) for name in ("exec", "vcc", "m0", "scc", "mode")}
        values |= {f"s{index}": value for index, value in enumerate(session.scalar_registers(0, 102))}
        return [
            {"name": name, "value": f"{int(value):#x}", "variablesReference": 0, "evaluateName": name}
            for name, value in values.items()
        ]

    def _vectors(self, wave: int, kind: str, count: int) -> list[dict[str, Any]]:
        session = self._stopped_session()
        session.wave = wave
        return [
            {
                "name": f"{kind}{number}",
                "value": " ".join(f"{value:#x}" for value in session.evaluate(f"{kind}{number}.u32").tolist()[:4]) + " ...",
                "variablesReference": self._reference(_Container(lambda number=number: self._lanes(wave, f"{kind}{number}"), wave)),
                "evaluateName": f"{kind}{number}",
                "indexedVariables": 64,
            }
            for number in range(count)
        ]  # fmt: skip

    def _lanes(self, wave: int, register: str) -> list[dict[str, Any]]:
        session = self._stopped_session()
        session.wave = wave
        bits, floats = (
            session.evaluate(f"{register}.u32").tolist(),
            session.evaluate(f"{register}.f32").tolist(),
        )
        return [
            {
                "name": f"{register}[{lane}]",
                "value": f"{bits[lane]:#010x}  {floats[lane]:.6g}",
                "variablesReference": 0,
                "evaluateName": f"{register}[{lane}]",
            }
            for lane in range(64)
        ]

    def _memory(self) -> list[dict[str, Any]]:
        session = self._stopped_session()
        return [
            {
                "name": region["name"],
                "value": f"{region['bytes']} bytes at {region['begin']:#x}",
                "variablesReference": 0,
                "memoryReference": hex(region["begin"]),
            }
            for region in session.launch.tensors
        ]

    def _on_setVariable(self, arguments: dict, request: dict):
        session = self._stopped_session()
        session.assign(arguments["name"], arguments["value"])
        return {"value": arguments["value"]}

    def _on_evaluate(self, arguments: dict, request: dict):
        session = self._stopped_session()
        if arguments.get("frameId"):
            session.wave = (arguments["frameId"] - 1) // _FRAMES_PER_WAVE
        commands = Commands(session)
        text = arguments["expression"].strip()
        if arguments.get("context") != "repl":
            return {"result": commands.print_(text).text, "variablesReference": 0}
        name = text.partition(" ")[0]
        if name in Commands.MOVING or Commands._SHORT.get(name) in Commands.MOVING:
            raise ValueError(
                f"{name} would move the program behind the editor's back; use its buttons or keys"
            )
        is_command = name in Commands.names() or name in Commands._SHORT
        result = commands.run(text) if is_command else commands.print_(text)
        return {"result": result.text, "variablesReference": 0}

    def _on_disassemble(self, arguments: dict, request: dict):
        symbols = self._stopped_session().launch.symbols
        address = int(arguments["memoryReference"], 0) + arguments.get("offset", 0)
        first = symbols.index_of(address) + arguments.get("instructionOffset", 0)
        rows = []
        for index in range(first, first + arguments["instructionCount"]):
            if not 0 <= index < len(symbols.instructions):  # the client expects as many as it has requested
                rows.append(
                    {
                        "address": hex(max(address + 4 * (index - first), 0)),
                        "instruction": "",
                        "presentationHint": "invalid",
                    }
                )
                continue
            rows.append(self._disassembled(symbols.instructions[index]))
        return {"instructions": rows}

    def _disassembled(self, instruction: Instruction) -> dict[str, Any]:
        line = self._session.launch.symbols.line_at(instruction.address)
        row: dict[str, Any] = {
            "address": hex(instruction.address),
            "instructionBytes": instruction.bytes.hex(" "),
            "instruction": instruction.text,
        }
        path = self._session.sources.path(line.file) if line else None
        if path is not None:
            row |= {"location": {"name": path.name, "path": str(path)}, "line": line.line}
        return row

    def _on_readMemory(self, arguments: dict, request: dict):
        session = self._stopped_session()
        address = int(arguments["memoryReference"], 0) + arguments.get("offset", 0)
        count = arguments["count"]
        for region in session.launch.tensors:
            if region["begin"] <= address < region["begin"] + region["bytes"]:
                held = session.memory(address, min(count, region["begin"] + region["bytes"] - address))
                return {
                    "address": hex(address),
                    "data": base64.b64encode(held).decode(),
                    "unreadableBytes": count - len(held),
                }
        return {"address": hex(address), "unreadableBytes": count}


def _registers_of(name: str, place: tuple[Register, ...] | int | None) -> str:
    """The vector registers of a variable as a place to watch. ValueError if it is in none."""
    numbers = [register.number for register in place] if isinstance(place, tuple) else []
    kinds = {register.kind for register in place} if isinstance(place, tuple) else set()
    if len(kinds) != 1 or kinds <= {"s"} or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError(
            f"{name}: the compiler does not have it in vector registers, one behind the other, here"
        )
    return f"{kinds.pop()}[{numbers[0]}:{numbers[-1] + 1}]"


def _condition_suffix(wanted: dict[str, Any]) -> str:
    return f" if {wanted['condition']}" if wanted.get("condition") else ""


def main() -> int:
    """Serves standard input and output until the client disconnects."""
    Adapter(sys.stdin.buffer, sys.stdout.buffer).serve()
    return 0
