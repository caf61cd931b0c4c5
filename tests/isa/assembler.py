"""LLVM's assembler (the clang inside the ziglang wheel): the reference for encodings and text."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence

ERROR = re.compile(r"^<stdin>:(\d+):\d+: error: (.*)$", re.MULTILINE)
INSTRUCTION = re.compile(r"^\t(.*?)\s*; encoding: \[([^\]]*)\]", re.MULTILINE)


def assemble(lines: Sequence[str], target: str) -> list[tuple[str, bytes] | str]:
    """One entry per line: (canonical text, bytes), or the assembler's error message."""
    command = [sys.executable, "-m", "ziglang", "clang", "-cc1as", "-triple", "amdgcn-amd-amdhsa"]
    command += ["-target-cpu", target, "-filetype", "asm", "-show-encoding", "-", "-o", "-"]
    result = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True)
    complaints: dict[int, str] = {}
    for line, message in ERROR.findall(result.stderr):
        complaints.setdefault(int(line) - 1, message)
    assembled = iter(INSTRUCTION.findall(result.stdout))
    answers: list[tuple[str, bytes] | str] = []
    for number in range(len(lines)):
        if number in complaints:
            answers.append(complaints[number])
        else:
            text, encoding = next(assembled)
            answers.append((text, bytes(int(byte, 16) for byte in encoding.split(","))))
    assert next(assembled, None) is None, result.stderr
    return answers
