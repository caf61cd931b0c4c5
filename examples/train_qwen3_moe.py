#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Qwen3-MoE of Transformers to continue text, on an AMD GPU or on a simulated one.

    python examples/train_qwen3_moe.py --folder runs/qwen3_moe --steps 30                  # simulated gfx942

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

from model_mixture import Size, program

SIZES = {
    "tiny": Size(
        vocabulary=384,
        length=64,
        configuration="Qwen3MoeConfig",
        options={
            "hidden_size": 64,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "initializer_range": 0.05,
        },
    ),
}
PROGRAM = program("qwen3_moe", "Qwen3-MoE", __doc__, SIZES)
train, parse, main = PROGRAM.train, PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
