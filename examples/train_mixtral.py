#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Mixtral of Transformers to continue text, on an AMD GPU or on a simulated one.

    python examples/train_mixtral.py --folder runs/mixtral --steps 30                      # simulated gfx942

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

from model_mixture import Size, program

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
PROGRAM = program("mixtral", "Mixtral", __doc__, SIZES)
train, parse, main = PROGRAM.train, PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
