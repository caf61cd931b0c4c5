"""Host C++ for tests: builds sources from csrc and tests into a program or a library with the machine's compiler."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1")


def build(output: pathlib.Path, sources: Sequence[pathlib.Path | str], *options: str) -> pathlib.Path:
    """Compile `sources`, paths from the repository's root, into `output`."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("no C++ compiler on this machine")
    if sanitizers := os.environ.get("SANITIZE_HOST_BUILDS"):  # tools/sanitized_tests.py
        options += (f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g1")
    command = [compiler, "-std=c++20", "-Wall", "-Wextra", "-fPIC", f"-I{ROOT / 'csrc'}", *options,
               *(str(ROOT / path) for path in sources), "-o", str(output), "-ldl", "-pthread"]  # fmt: skip
    # A preloaded sanitizer should not watch the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return output


def sources_of(name: str) -> list[pathlib.Path]:
    """The sources of one module of csrc."""
    return sorted((ROOT / "csrc" / name).glob("*.cpp"))
