# SPDX-License-Identifier: MIT
"""`hipkittens sim debug` in a terminal, or with commands and answers as lines."""

from __future__ import annotations

import cmd
import dataclasses
import json
import signal
import sys
from collections.abc import Sequence

from .commands import Commands
from .process import DebuggedProcess
from .run_comparison import RunComparison
from .session import Session


class Console(cmd.Cmd):
    """A line is a command; an empty one repeats the last. Ctrl-C stops a running launch."""

    prompt = "(hipkittens) "

    def __init__(self, session: Session, comparison: RunComparison | None = None) -> None:
        super().__init__()
        self._session = session
        self._commands = Commands(session, comparison)

    def get_names(self) -> list[str]:
        return [f"do_{name}" for name in (*self._commands.names(), "help", "quit")]

    def onecmd(self, line: str) -> bool:
        name = line.strip().split(" ")[0]
        if name in ("quit", "q", "exit", "EOF"):
            return True
        if not name:
            return self.emptyline()
        if name in ("help", "?"):
            print(help_text(line.strip().partition(" ")[2]), flush=True)
            return False
        self.lastcmd = line
        before = signal.signal(signal.SIGINT, lambda *_: self._session.pause())
        try:
            print(self._commands.run(line).text, flush=True)
        except ValueError as error:
            print(error, flush=True)
        finally:
            signal.signal(signal.SIGINT, before)
        return False


def help_text(name: str = "") -> str:
    """Help for one command, or for all."""
    commands = Commands(None)
    names = [name] if name else commands.names()
    return "\n".join(str(commands.find(each).__doc__) for each in names)


@dataclasses.dataclass(frozen=True)
class Other:
    """What --against selects: another program, the same one for another target, or both."""

    program: Sequence[str] | None = None
    target: str | None = None


def main(
    program: Sequence[str],
    *,
    target: str | None,
    checks: str | None,
    commands: Sequence[str],
    as_json: bool,
    against: Other | None = None,
) -> int:
    """Runs `commands`, then those of standard input; returns the program's status, or 1 if the debugger was left before the program ended.

    With `as_json` every command is answered by one line of JSON: {"command", "result"} or {"command", "error"}, and the program prints to
    standard error. The program of `against` always prints there.
    """
    output = sys.stderr if as_json else None

    def start() -> DebuggedProcess:
        return DebuggedProcess(program, target=target, checks=checks, output=output)

    def start_other() -> DebuggedProcess:
        return DebuggedProcess(against.program or program, target=against.target or target, output=sys.stderr)

    session = Session(start())
    comparison = None

    def restart() -> tuple[DebuggedProcess, DebuggedProcess]:
        session.process.kill()
        comparison.other.process.kill()
        return start(), start_other()

    try:
        if against is not None:
            comparison = RunComparison(session, Session(start_other()), restart)
        console = Console(session, comparison)
        for line in commands:
            if as_json:
                _answer(session, console._commands, line)
            else:
                print(f"{console.prompt}{line}", flush=True)
                if console.onecmd(line):
                    break
        else:
            if as_json:
                for line in sys.stdin:
                    if line.strip() == "quit":
                        break
                    if line.strip():
                        _answer(session, console._commands, line.strip())
            elif session.process.process.poll() is None:
                console.cmdloop()
        status = session.process.process.poll()
        return 1 if status is None else status
    finally:
        session.process.kill()
        if comparison is not None:
            comparison.other.process.kill()


def _answer(session: Session, commands: Commands, line: str) -> None:
    try:
        print(json.dumps({"command": line, "result": commands.run(line).data}), flush=True)
    except ValueError as error:
        print(json.dumps({"command": line, "error": str(error)}), flush=True)
