#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What starting costs: `import hipkittens` over `import torch`, and the first call of each operation.

    python benchmarks/startup.py [--json] [--repeat 7]

Each figure is the least of several processes of their own, in milliseconds of processor time of all threads: what the work
takes, whatever else the machine does. A first call opens the simulator, unpacks a pack and translates the kernel; the second
call of the same operation is taken off it, since that is what computing costs. Exit code 1 over IMPORT_MS or FIRST_MS.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

IMPORT_MS = 50.0
FIRST_MS = 100.0

IMPORT = """
import time, torch
started = time.process_time()
import hipkittens
print((time.process_time() - started) * 1e3)
"""

FIRST = """
import time, torch, hipkittens
bf16 = torch.bfloat16
x, w, q = torch.ones(8, 64, dtype=bf16), torch.ones(64, dtype=bf16), torch.ones(1, 8, 1, 64, dtype=bf16)
table = torch.ones(8, 32)
call = lambda: {call}
times = []
for _ in range(2):
    started = time.process_time()
    call()
    times.append((time.process_time() - started) * 1e3)
print(times[0] - times[1])
"""

CALLS = {
    "matmul": "hipkittens.matmul(x, x.mT)",
    "attention": "hipkittens.attention(q, q, q)",
    "layer_norm": "hipkittens.layer_norm(x, w, w)",
    "rms_norm": "hipkittens.rms_norm(x, w)",
    "rotary": "hipkittens.rotary(q, table, table)",
}


def least(program: str, repeat: int) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(repeat)
    ]
    return min(map(float, outputs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = {"import hipkittens": (least(IMPORT, arguments.repeat), IMPORT_MS)}
    for name, call in CALLS.items():
        rows[f"first {name}"] = (least(FIRST.replace("{call}", call), arguments.repeat), FIRST_MS)
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
