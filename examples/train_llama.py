#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Llama to continue text, on an AMD GPU or on a simulated one.

    python examples/train_llama.py --folder runs/llama --steps 200                         # simulated gfx942
    python examples/train_llama.py --folder runs/llama --device cuda --size 1b --text book.txt
    torchrun --nproc-per-node 8 examples/train_llama.py --folder runs/llama --device cuda --size 1b --fsdp --text book.txt

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

from model_llama import SIZES, Llama
from next_token import Program
from training import Defaults

DEFAULTS = {
    "tiny": Defaults(steps=100, batch=8, micro_batch=8, learning_rate=3e-3, warmup=10),
    "small": Defaults(steps=300, batch=8, micro_batch=8, learning_rate=2e-3, warmup=20),
    "1b": Defaults(steps=10000, batch=256, micro_batch=8, learning_rate=4e-4, warmup=500),
}
PROGRAM = Program(
    name="llama",
    title="Llama",
    about=__doc__,
    sizes=SIZES,
    defaults=DEFAULTS,
    operations=("attention", "norm", "rotary", "linear"),
    build=Llama,
)
train, parse, main = PROGRAM.train, PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
