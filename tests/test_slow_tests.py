# SPDX-License-Identifier: MIT
"""tools/slow_tests.py: what it records of a run, and that the page lists every file."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """
import os, pytest
@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_right(number): pass
@pytest.mark.slow
def test_wrong(): assert False
@pytest.mark.slow
def test_not_here(): pytest.skip("nothing to test")
def test_fast(): raise SystemExit("is not run")
"""


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("slow_tests", ROOT / "tools" / "slow_tests.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["slow_tests"] = module
    spec.loader.exec_module(module)
    return module


def test_what_a_run_counts(tool, tmp_path):
    file = tmp_path / "test_some.py"
    file.write_text(SOURCE)
    found = tool.run(str(file), ["-p", "no:cacheprovider"])
    assert (found.passed, found.failed, found.skipped) == (3, 1, 1)
    file.write_text(SOURCE.replace("assert False", "os._exit(3)"))
    assert tool.run(str(file), ["-p", "no:cacheprovider"]).failed >= 1  # a crash does not count as success


def test_the_page_is_read_as_it_is_written(tool, tmp_path):
    rows = {
        file: tool.Run(file, 3, 0, 1, 25, "2026-11-22") for file in ("tests/test_b.py", "tests/test_a.py")
    }
    (tmp_path / "page.md").write_text(tool.text(rows))
    assert tool.read(tmp_path / "page.md") == rows
    assert tool.read(tmp_path / "none.md") == {}


def test_the_page_says_nothing_of_files_that_are_gone(tool):
    marked = subprocess.run(
        ["grep", "-rlE", "mark.slow|marks=pytest.mark.slow|compile_backend", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert set(tool.read()) <= set(marked.stdout.split()) and tool.PAGE.read_text() == tool.text(tool.read())


def test_a_file_without_slow_tests_is_refused(tool, monkeypatch):
    monkeypatch.setattr(tool, "files_with_slow_tests", lambda: ["tests/test_norm.py"])
    monkeypatch.setattr(sys, "argv", ["slow_tests.py", "tests/test_cli.py"])
    with pytest.raises(
        SystemExit, match=r"no slow tests in tests/test_cli\.py; there are some in tests/test_norm\.py"
    ):
        tool.main()
