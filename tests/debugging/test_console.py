# SPDX-License-Identifier: MIT
"""`hipkittens sim debug`: the session shown in docs/debugger.md, and the same session as JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("elftools")

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "debugger.md"
PROMPT = "(hipkittens) "
PROGRAM = ["--", sys.executable, "examples/missing_barrier.py"]


def debugged(*arguments, standard_input=""):
    command = [sys.executable, "-m", "hipkittens", "sim", "debug", *arguments, *PROGRAM]
    return subprocess.run(
        command, cwd=ROOT, input=standard_input, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(("index", "options"), [(0, ["--checks", "racecheck"]), (1, [])])
def test_the_sessions_of_the_page_are_what_is_printed(index, options):
    session = re.findall(r"^```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[index]
    commands = [line.removeprefix(PROMPT) for line in session.splitlines() if line.startswith(PROMPT)]
    given = [part for command in commands for part in ("-c", command)]
    printed = debugged(*options, *given).stdout
    assert [line.rstrip() for line in printed.splitlines()] == [
        line.rstrip() for line in session.splitlines()
    ]


def test_a_script_gets_a_line_of_json_for_each_command():
    lines = ["break reverse_blocks", "continue", "print exec", "fly", "registers", "breakpoints", "quit"]
    done = debugged("--json", standard_input="\n".join(lines))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["command"] for answer in answers] == lines[:-1]
    assert (
        answers[1]["result"]["kernel"] == "reverse_blocks" and answers[1]["result"]["reason"] == "breakpoint"
    )
    assert answers[2]["result"] == (1 << 64) - 1
    assert "'fly' is no command; allowed: " in answers[3]["error"]
    assert answers[4]["result"]["exec"] == (1 << 64) - 1
    assert answers[5]["result"][0]["hits"] == 1
    assert done.returncode == 1  # it was left before its end


def test_the_status_is_the_program_s():
    done = debugged("-c", "continue", "-c", "quit")
    assert done.returncode == 0
    assert "the program ended with status 0" in done.stdout


REFUSED = [
    ("break", "break wants a place"),
    ("break a.cpp:3 wave x", "wave 'x' is no number"),
    ("break [", "no regular expression"),
    ("break gemm if v0 ==", "the condition 'v0 ==' is no expression of Python"),
    ("delete 7", "there is no breakpoint 7; there are none"),
    ("waves", "no launch has stopped"),
    ("print v0", "no launch has stopped"),
    ("launches maybe", "'maybe'; allowed: on, off"),
    ("st", "several commands: step, stepi"),
    ("directory /nowhere", "'/nowhere' is no folder"),
    ("set v0", "set wants PLACE = EXPRESSION"),
]


@pytest.fixture(scope="module")
def refusals():
    """The responses to each of these commands, in one session."""
    done = debugged("--json", standard_input="\n".join(command for command, _ in REFUSED))
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {answer["command"]: answer["error"] for answer in answers}


@pytest.mark.parametrize(("command", "words"), REFUSED)
def test_what_is_wrong_is_said(command, words, refusals):
    assert words in refusals[command]


def test_a_person_is_told_as_well():
    assert "there is no breakpoint 7" in debugged("-c", "delete 7", "-c", "quit").stdout


def test_help_has_a_line_for_each_command():
    from hipkittens.debugging.commands import Commands
    from hipkittens.debugging.console import help_text

    lines = help_text().splitlines()
    assert [line.split()[0].rstrip(":") for line in lines] == Commands.names()
