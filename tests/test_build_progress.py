# SPDX-License-Identifier: MIT
"""tools/build_progress.py: how it translates pip's output lines."""

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

TOOL = Path(__file__).resolve().parent.parent / "tools" / "build_progress.py"
KERNEL = "  [{}/64] cd /x && python tools/build_kernels.py --target gfx950 --operation norm --variant forward_bf16_512 --output a.co\n"
HEADERS = (
    "  [{}/64] cd /x && python tools/build_kernels.py --target gfx950 --operation norm --output norm.pch\n"
)
HOST = "  [{}/64] /usr/bin/c++ -O3 -o CMakeFiles/a.dir/torch/gemm.cpp.o -c /x/csrc/torch/gemm.cpp\n"


def run(text, folder):
    log = folder / "logs" / "last.log"
    done = subprocess.run(
        [sys.executable, TOOL, "--log", log], input=text, capture_output=True, text=True, check=True
    )
    assert log.read_text() == text
    return done.stdout.splitlines(), done.stderr


def test_without_a_terminal_there_are_some_lines(tmp_path):
    kinds = [HEADERS, *[HOST, KERNEL] * 31, HOST]
    steps = [kind.format(step) for step, kind in enumerate(kinds, 1)]
    out, err = run("Processing /x\n" + "".join(steps) + "  Building editable: finished\n", tmp_path)
    assert not err and 18 <= len(out) <= 22
    assert out[0] == "[1/64] headers of norm for gfx950" and out[-1] == "[64/64] torch/gemm.cpp"


def test_what_failed_is_shown_with_what_is_around_it(tmp_path):
    text = "".join(HOST.format(step) for step in range(1, 20)) + "FAILED: gemm.cpp.o\ngemm.cpp:1: error: no\n"
    _, err = run(text, tmp_path)
    assert "FAILED: gemm.cpp.o" in err and "gemm.cpp:1: error: no" in err and "[1/64]" not in err
    assert str(tmp_path / "logs" / "last.log") in err


def test_a_terminal_gets_a_line_that_moves(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    drawn = followed()
    assert "norm.forward_bf16_512 for gfx950" in drawn and "64/64" in drawn


def test_a_terminal_that_cannot_move_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "[64/64] norm.forward_bf16_512 for gfx950" in followed().splitlines()


def followed():
    """The terminal output of a build."""
    sys.path.insert(0, str(TOOL.parent))
    try:
        import build_progress
    finally:
        sys.path.remove(str(TOOL.parent))
    drawn = io.StringIO()
    console = Console(file=drawn, force_terminal=True, width=120)
    lines = [KERNEL.format(step) for step in range(1, 65)]
    assert build_progress.follow(lines, io.StringIO(), console) == lines
    return drawn.getvalue()
