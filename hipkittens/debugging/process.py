# SPDX-License-Identifier: MIT
"""A program whose launches in the simulator can be stopped: the peer of csrc/simulator/debug/debug_session.h."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._environment import CHECKS, DEBUG_SOCKET
from .._program import cannot_run, simulated_hip


class DebuggedProcess:
    """Starts `program` with the simulator as its HIP library, and receives the events of its launches.

    target       the GPU that it finds; None leaves that to the program
    checks       enabled checkers, as in HIPKITTENS_CHECKS; None: those of the environment
    output       where its standard output and error go: None is this process's, or a subprocess constant or file

    ValueError if it cannot be started.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        target: str | None = None,
        checks: str | None = None,
        output: Any = None,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hipkittens")
        path = str(Path(self._folder.name) / "debugger")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        self._connection: socket.socket | None = None
        self._received = b""
        self._hip = simulated_hip(target)
        variables = self._hip.__enter__() | dict(environment or {}) | {DEBUG_SOCKET.variable: path}
        if checks:
            variables |= {CHECKS.variable: checks}
        try:
            # A session of its own, so that an interrupt of the terminal reaches the debugger alone.
            self.process = subprocess.Popen(
                program,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
            )
        except OSError as error:
            self._close()
            raise cannot_run(program, error) from None

    def event(self) -> dict[str, Any]:
        """The next event: "launch", "stop", "launch_end" from the simulator, or "exit" with the program's `status`."""
        while True:
            if self._connection is None and not self._accept():
                status = self.process.wait()
                return {"event": "exit", "status": status}
            line = self._line()
            if line is not None:
                return json.loads(line)
            self._connection.close()  # that process has ended or forked; another one may launch
            self._connection, self._received = None, b""

    def request(self, command: str) -> dict[str, Any]:
        """The answer to a command at a stop. ValueError with the simulator's message if it refuses."""
        self.send(command)
        line = self._line()
        if line is None:
            raise ValueError("the program has gone")
        answer = json.loads(line)
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer

    def send(self, command: str) -> None:
        """Sends a command whose only answer is the next event."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it has gone, as the next event says
                self._connection.sendall(command.encode() + b"\n")

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._close()

    def _accept(self) -> bool:
        while True:
            readable, _, _ = select.select([self._listener], [], [], 0.05)
            if readable:
                self._connection, _ = self._listener.accept()
                return True
            if self.process.poll() is not None:
                return False

    def _line(self) -> str | None:
        while b"\n" not in self._received:
            try:
                part = self._connection.recv(1 << 20)
            except OSError:
                part = b""
            if not part:
                return None
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        return line.decode()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._listener.close()
        self._hip.__exit__(None, None, None)
        self._folder.cleanup()
