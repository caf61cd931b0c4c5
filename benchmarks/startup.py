#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cost of starting: `import hipkittens` on top of `import torch`, and the first call of each operation.

    python benchmarks/startup.py [--json] [--repeat 7] [--only softmax]

Each figure is the minimum over several processes, in milliseconds of processor time of all threads, which does not depend on
other load of the machine. A first call opens the simulator, unpacks a pack and translates the kernel; the time of a second
call of the same operation is subtracted, since that is the computation. Exit code 1 over IMPORT_MS or FIRST_MS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from hipkittens import operations

IMPORT_MS = 50.0
FIRST_MS = 100.0

IMPORT = """
import time, torch
started = time.process_time()
import hipkittens
print((time.process_time() - started) * 1e3)
"""

FIRST = """
import sys, time, torch, hipkittens
from hipkittens import operations
(function,) = (f for o in operations.every() for f in o.functions if f.name == sys.argv[1])
arguments = function.arguments(lambda *shape, dtype: torch.ones(shape, dtype=dtype), torch.bfloat16)
times = []
for _ in range(2):
    started = time.process_time()
    function.function(*arguments, **function.options)
    times.append((time.process_time() - started) * 1e3)
print(times[0] - times[1])
"""


def least(program: str, repeat: int, *arguments: str) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(repeat)
    ]
    return min(map(float, outputs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    names = [operation.functions[0].name for operation in operations.every()]
    parser.add_argument("--only", choices=names, help="the first call of this function alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {"import hipkittens": (least(IMPORT, arguments.repeat), IMPORT_MS)}
    for name in [arguments.only] if arguments.only else names:
        rows[f"first {name}"] = (least(FIRST, arguments.repeat, name), FIRST_MS)
    if arguments.json:
        print(
            json.dumps(
                {name: {"ms": took, "budget_ms": budget} for name, (took, budget) in rows.items()}, indent=1
            )
        )
    else:
        for name, (took, budget) in rows.items():
            print(f"{name:<20} {took:7.1f} ms of {budget:.0f}")
    return int(any(took > budget for took, budget in rows.values()))


if __name__ == "__main__":
    raise SystemExit(main())
