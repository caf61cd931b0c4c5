# SPDX-License-Identifier: MIT
"""The Debug Adapter Protocol: requests from dap-python's client, with every response validated against dap-types, the protocol's schema."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading

import pytest
from debugged_kernels import line_of, write

dap = pytest.importorskip("dap")
dap_types = pytest.importorskip("dap_types")
pytest.importorskip("elftools")


def checked(message):
    """The message as the protocol's own type. ValidationError if it does not conform."""
    name = message["event"] if message["type"] == "event" else message["command"]
    suffix = "Event" if message["type"] == "event" else "Response"
    if message["type"] == "response" and not message["success"]:
        return dap_types.ErrorResponse.model_validate(message)
    return getattr(dap_types, name[0].upper() + name[1:] + suffix).model_validate(message)


class Editor:
    """A client that sends the messages of dap-python's client, and keeps the responses."""

    def __init__(self, folder):
        program, kernel = write(folder)
        self.kernel = kernel
        self.launch_arguments = {"program": [sys.executable, str(program), str(kernel)]}
        self.adapter = subprocess.Popen(
            [sys.executable, "-m", "hipkittens", "sim", "debug", "--adapter"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.client = dap.Client("hipkittens")
        self.messages, self.events = queue.Queue(), []
        threading.Thread(target=self._read, daemon=True).start()
        self.initialized = self._answer(1)

    def _read(self):
        while header := self.adapter.stdout.readline():
            length = int(header.split(b":")[1])
            self.adapter.stdout.readline()
            self.messages.put(json.loads(self.adapter.stdout.read(length)))

    def _answer(self, sequence):
        self.adapter.stdin.write(self.client.send())
        self.adapter.stdin.flush()
        while True:
            message = self.messages.get(timeout=60)
            checked(message)
            if message["type"] == "response" and message["request_seq"] == sequence:
                return message
            self.events.append(message)

    def ask(self, command, **arguments):
        """The body of the response, which has to report success."""
        message = self.send(command, **arguments)
        assert message["success"], message
        return message.get("body", {})

    def send(self, command, **arguments):
        return self._answer(self.client.send_request(command, arguments))

    def wait_for(self, name):
        while True:
            for index, message in enumerate(self.events):
                if message.get("event") == name:
                    del self.events[: index + 1]
                    return message["body"]
            message = self.messages.get(timeout=60)
            checked(message)
            self.events.append(message)

    def start(self, **arguments):
        self.wait_for("initialized")
        self.client.send_request("launch", self.launch_arguments | arguments)
        self.ask("configurationDone")


@pytest.fixture
def editor(tmp_path):
    editor = Editor(tmp_path)
    yield editor
    if editor.adapter.poll() is None:
        assert editor.send("disconnect")["success"]
        assert editor.adapter.wait(timeout=60) == 0


def test_a_breakpoint_stops_and_shows_source_frames_and_registers(editor):
    line = line_of("the store")
    source = {"path": str(editor.kernel)}
    answer = editor.ask(
        "setBreakpoints", source=source, breakpoints=[{"line": line, "condition": "wave == 1"}]
    )
    assert len(answer["breakpoints"]) == 1
    editor.start(sourceFolders=[str(editor.kernel.parent)])
    stopped = editor.wait_for("stopped")
    assert (stopped["reason"], stopped["threadId"]) == ("breakpoint", 2)
    threads = editor.ask("threads")["threads"]
    assert [thread["id"] for thread in threads] == [1, 2]
    frames = editor.ask("stackTrace", threadId=2)["stackFrames"]
    assert (frames[0]["name"], frames[0]["line"]) == ("scale", line)
    assert frames[0]["source"]["path"] == str(editor.kernel.resolve())
    scopes = {
        scope["name"]: scope["variablesReference"]
        for scope in editor.ask("scopes", frameId=frames[0]["id"])["scopes"]
    }
    scalars = editor.ask("variables", variablesReference=scopes["Scalar registers"])["variables"]
    assert {"name": "exec", "value": "0xffffffffffffffff"}.items() <= scalars[0].items()
    vectors = editor.ask("variables", variablesReference=scopes["Vector registers"])["variables"]
    lanes = editor.ask("variables", variablesReference=vectors[0]["variablesReference"])["variables"]
    assert len(lanes) == 64
    memory = editor.ask("variables", variablesReference=scopes["Memory"])["variables"]
    assert [row["name"] for row in memory] == ["x", "out"] or {row["name"] for row in memory} == {"x", "out"}
    assert (
        editor.ask("evaluate", expression="exec & 0xff", frameId=frames[0]["id"], context="watch")["result"]
        == "255 (0xff)"
    )
    x = next(row["memoryReference"] for row in memory if row["name"] == "x")
    assert editor.ask("readMemory", memoryReference=x, offset=4, count=4)["data"] == "AACAPw=="  # 1.0
    pointer = frames[0]["instructionPointerReference"]
    rows = editor.ask("disassemble", memoryReference=pointer, instructionOffset=-2, instructionCount=5)[
        "instructions"
    ]
    assert len(rows) == 5 and rows[2]["address"] == pointer


def test_steps_and_the_end_of_the_program(editor):
    editor.ask("setFunctionBreakpoints", breakpoints=[{"name": "scale"}])
    editor.start()
    assert editor.wait_for("stopped")["reason"] == "breakpoint"
    first = editor.ask("stackTrace", threadId=1)["stackFrames"][0]
    editor.ask("stepIn", threadId=1, granularity="instruction")
    assert editor.wait_for("stopped")["reason"] == "step"
    second = editor.ask("stackTrace", threadId=1)["stackFrames"][0]
    assert int(second["instructionPointerReference"], 0) > int(first["instructionPointerReference"], 0)
    editor.ask("next", threadId=1)
    editor.wait_for("stopped")
    editor.ask("setFunctionBreakpoints", breakpoints=[])
    editor.ask("continue", threadId=1)
    assert editor.wait_for("output")["output"].strip() == "right"
    assert editor.wait_for("exited")["exitCode"] == 0
    assert not editor.send("stackTrace", threadId=1)["success"]


def test_data_breakpoints_stop_where_registers_and_memory_change(editor):
    assert editor.ask("setDataBreakpoints", breakpoints=[]) == {"breakpoints": []}
    line = line_of("in the loop")
    place = {"line": line, "condition": "wave == 0 and workgroup[0] == 0"}
    editor.ask("setBreakpoints", source={"path": str(editor.kernel)}, breakpoints=[place])
    editor.start(sourceFolders=[str(editor.kernel.parent)])
    editor.wait_for("stopped")
    editor.ask("setBreakpoints", source={"path": str(editor.kernel)}, breakpoints=[])
    frame = editor.ask("stackTrace", threadId=1)["stackFrames"][0]["id"]
    scopes = {
        scope["name"]: scope["variablesReference"] for scope in editor.ask("scopes", frameId=frame)["scopes"]
    }
    children = {
        name: editor.ask("variables", variablesReference=number)["variables"]
        for name, number in scopes.items()
    }

    def info(**arguments):
        return editor.ask("dataBreakpointInfo", **arguments)

    out = info(variablesReference=scopes["Memory"], name="out")
    assert out["description"] == "out (1024 bytes, memory of the launch)" and out["accessTypes"] == ["write"]
    register = info(variablesReference=scopes["Vector registers"], name="v0")
    assert register["description"] == "v0 (256 bytes, workgroup (0, 0, 0), wave 0)"
    lane = info(variablesReference=children["Vector registers"][0]["variablesReference"], name="v0[5]")
    assert lane["description"].startswith("v0[5] (4 bytes,") and lane["dataId"] != register["dataId"]
    second = info(name="out 256 4", frameId=frame)
    begin = next(row["memoryReference"] for row in children["Memory"] if row["name"] == "out")
    assert info(name=hex(int(begin, 0) + 256), asAddress=True, bytes=4)["dataId"] == second["dataId"]
    scalar = info(variablesReference=scopes["Scalar registers"], name="s4")
    assert scalar["dataId"] is None and "'s4' cannot be watched" in scalar["description"]
    sums = info(variablesReference=scopes["Variables"], name="sum")
    assert sums["description"].startswith("sum in v["), sums

    def watch(*wanted):
        return editor.ask("setDataBreakpoints", breakpoints=wanted)["breakpoints"]

    first = {"dataId": out["dataId"], "condition": "wave == 1"}
    rows = watch(first, {"dataId": second["dataId"]}, {"dataId": lane["dataId"], "accessType": "read"})
    assert [row["verified"] for row in rows] == [True, True, False]
    assert "allowed: 'write'" in rows[2]["message"]
    # A breakpoint that stays keeps its number.
    assert watch({"dataId": sums["dataId"]}, first)[1]["id"] == rows[0]["id"]
    editor.ask("continue", threadId=1)
    stopped = editor.wait_for("stopped")
    assert (stopped["reason"], stopped["threadId"]) == ("data breakpoint", 1)
    assert stopped["text"].startswith("v[") and "became" in stopped["text"]
    watch(first)
    editor.ask("continue", threadId=1)
    stopped = editor.wait_for("stopped")
    assert (stopped["threadId"], stopped["hitBreakpointIds"]) == (2, [rows[0]["id"]])
    # It ends with its launch, which a breakpoint in the next one shows.
    editor.ask("setFunctionBreakpoints", breakpoints=[{"name": "scale"}])
    [row] = watch({"dataId": second["dataId"], "condition": "False"})
    editor.ask("continue", threadId=1)
    gone = editor.wait_for("breakpoint")["breakpoint"]
    assert (gone["id"], gone["verified"], gone["message"]) == (row["id"], False, "its launch has ended")
    editor.wait_for("stopped")
    assert "launch 1, whose bytes these are, has ended" in watch({"dataId": out["dataId"]})[0]["message"]
    assert "of no dataBreakpointInfo" in watch({"dataId": "anything"})[0]["message"]


def test_what_is_wrong_is_said(editor):
    assert "no request 'restartFrame'" in editor.send("restartFrame", frameId=1)["message"]
    assert "launch wants `program`" in editor.send("launch")["message"]
    assert "no wave has stopped" in editor.send("continue", threadId=1)["message"]
    editor.launch_arguments = {"program": "/nowhere/program"}
    editor.start()
    editor.wait_for("terminated")


def test_a_folder_that_is_not_there_ends_the_launch(editor):
    editor.start(sourceFolders=["/nowhere"])
    editor.wait_for("terminated")


def test_findings_that_an_editor_does_not_ask_for_do_not_stop(editor):
    editor.ask("setExceptionBreakpoints", filters=[])
    editor.launch_arguments = {"program": [sys.executable, "examples/missing_barrier.py"]}
    editor.start(checks="racecheck")
    assert editor.wait_for("exited")["exitCode"] == 0
