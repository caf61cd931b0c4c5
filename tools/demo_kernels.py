#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes csrc/kernels/demo_kernels.txt: the kernels that `hipkittens demo` launches, in the format of tools/kernel_variants.py.

./run demo compiles these first, so that its table can be shown long before the other kernels are built. tests/test_cli.py checks
that the file is up to date.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hipkittens import _installation

LIST = Path(__file__).resolve().parent.parent / "csrc" / "kernels" / "demo_kernels.txt"


def main() -> int:
    demo = subprocess.run(
        [sys.executable, "-m", "hipkittens", "demo", "--json"],
        env=os.environ | {"HIPKITTENS_LOG": "debug"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    if demo.returncode:
        print(demo.stderr, file=sys.stderr)
        return demo.returncode
    rows = []
    for symbol, target in set(re.findall(r"loading (\S+) for (\w+):", demo.stderr)):
        entry = _installation.pack(target).entry(symbol)
        rows.append(f"{target} {entry['operation']} {entry['variant']}\n")
    LIST.write_text("".join(sorted(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
