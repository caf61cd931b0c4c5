#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Mixtral of Transformers to continue text, on an AMD GPU or on a simulated one.

    python examples/train_mixtral.py --folder runs/mixtral --steps 30                      # simulated gfx942

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

from model_mixture import Mixture, Size
from next_token import Program
from training import Defaults

SIZES = {
    "tiny": Size(
        vocabulary=384,
        length=64,
        configuration="MixtralConfig",
        options={
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "initializer_range": 0.05,
        },
    ),
}
DEFAULTS = {"tiny": Defaults(steps=30, batch=8, micro_batch=8, learning_rate=3e-3, warmup=5)}
PROGRAM = Program(
    name="mixtral",
    title="Mixtral",
    about=__doc__,
    sizes=SIZES,
    defaults=DEFAULTS,
    operations=("attention", "norm", "rotary", "linear", "experts"),
    build=Mixture,
    shards=False,
)
train, parse, main = PROGRAM.train, PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
