# SPDX-License-Identifier: MIT
"""The environment variables: each is declared once, wrong values and names are reported, and the logger obeys one of them."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from hipkittens import _backend, _environment, _findings, _installation, _timing

ROOT = Path(__file__).resolve().parent.parent
ROWS = {row.variable: row for row in _environment.VARIABLES}


def read_in_sources():
    """Every environment variable that a source reads, with the sources."""
    asked = re.compile(
        r"""(?:getenv\(|environ(?:\.get\(|\[|\s*\|\s*\{)|ENV\{|\$\{)\s*["']?(HIPKITTENS_[A-Z_]+)["']?\s*[\]),:}-]"""
    )
    found = {}
    files = [ROOT / "run"]
    for folder in ("hipkittens", "csrc", "cmake", "tools", "tests", "benchmarks"):
        files += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".cpp", ".h", ".cmake")
        ]
    for path in files:
        text = path.read_text()
        # A CMake variable of the same prefix is no environment variable.
        names = (
            re.findall(r"ENV\{(HIPKITTENS_[A-Z_]+)\}", text)
            if path.suffix == ".cmake"
            else asked.findall(text)
        )
        for name in names:
            found.setdefault(name, set()).add(path.relative_to(ROOT).as_posix())
    return found


def test_every_variable_that_is_read_is_declared():
    found = read_in_sources()
    assert {
        "HIPKITTENS_LIBHIP_PATH",
        "HIPKITTENS_CHECKS",
        "HIPKITTENS_DEVICE_COMPILER",
        "HIPKITTENS_PYTHON",
    } <= set(found)
    assert not {name: places for name, places in found.items() if name not in ROWS}


def test_rows_agree_with_the_code():
    assert set(_environment.ARCH.allowed) == set(_installation.TARGETS)
    assert set(_environment.CHECKERS) == set(_findings.CHECKERS)
    assert len(ROWS) == len(_environment.VARIABLES) and all(row.meaning for row in ROWS.values())
    assert _backend.backend() in _environment.BACKEND.allowed


@pytest.mark.parametrize(
    "row", [row for row in _environment.VARIABLES if row.allowed], ids=lambda row: row.name
)
def test_values(row):
    for value in row.allowed:
        assert row.read({row.variable: value}) == value
    assert row.read({}) == row.read({row.variable: ""}) == row.default
    for wrong in ("nonsense", row.allowed[0] + "x", row.allowed[0].upper() + " "):
        with pytest.raises(
            ValueError, match=rf"^hipkittens: {row.variable} is '{wrong}'; allowed: {row.allowed[0]}"
        ):
            row.read({row.variable: wrong})


def test_several_values():
    row = _environment.CHECKS
    assert row.read({row.variable: "memcheck, racecheck"}) == "memcheck, racecheck"
    with pytest.raises(ValueError, match=r"with commas between$"):
        row.read({row.variable: "memcheck,raceczech"})


def test_unknown_names(monkeypatch):
    monkeypatch.setenv("HIPKITTENS_BACKEDN", "sim")
    monkeypatch.setenv("HIPKITTENS_ZZZ", "1")
    monkeypatch.setenv("OTHER_BACKEDN", "1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _environment.check()
    assert [str(warning.message) for warning in caught] == [
        "hipkittens reads no environment variable HIPKITTENS_BACKEDN; did you mean HIPKITTENS_BACKEND?",
        "hipkittens reads no environment variable HIPKITTENS_ZZZ; `hipkittens info` lists those it reads",
    ]


TWICE = """
import logging, sys, torch, hipkittens
log = logging.getLogger("hipkittens")
if "program" in sys.argv:
    logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="program %(name)s: %(message)s")
a = torch.ones(8, 8, dtype=torch.bfloat16)
hipkittens.matmul(a, a), hipkittens.matmul(a, a)
"""


def outcome(*arguments, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HIPKITTENS_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TWICE, *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_nothing_is_logged_unless_asked_for():
    assert outcome() == ("", "")


def test_the_variable_shows_each_message_once():
    out, err = outcome("program", HIPKITTENS_LOG="debug")
    assert out == "" and err.count("hipkittens DEBUG: loading ") == 1
    assert "CPU tensors run in the simulator" in err
    assert all(line.startswith("hipkittens ") for line in err.splitlines())
    _, err = outcome(HIPKITTENS_LOG="info")
    assert "INFO" in err and "DEBUG" not in err


def test_a_programs_own_logging_hears_it():
    out, err = outcome("program")
    assert "program hipkittens: loading " in out and err == ""


@pytest.mark.parametrize(
    "environment, message",
    [
        (
            {"HIPKITTENS_TIMING": "MI355X"},
            "HIPKITTENS_TIMING is 'MI355X' and HIPKITTENS_TIMING_FILE is not set",
        ),
        (
            {"HIPKITTENS_TIMING_FILE": "a.json"},
            "HIPKITTENS_TIMING_FILE is 'a.json' and HIPKITTENS_TIMING is not set",
        ),
        (
            {
                "HIPKITTENS_TIMING": "MI355X",
                "HIPKITTENS_TIMING_FILE": "a.json",
                "HIPKITTENS_TIMING_TIMELINE": "all",
            },
            "HIPKITTENS_TIMING_TIMELINE is 'all'; allowed: a number",
        ),
        (
            {"HIPKITTENS_TIMING": "MI355X", "HIPKITTENS_TIMING_FILE": "no/such/folder/a.json"},
            "HIPKITTENS_TIMING_FILE: there is no folder",
        ),
    ],
)
def test_half_a_request_to_model_is_refused(monkeypatch, environment, message):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message):
        _timing.apply_environment()
