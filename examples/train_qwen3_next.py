#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Qwen3-Next of Transformers, gated delta nets and experts, to continue text, on an AMD GPU or on a simulated one.

    python examples/train_qwen3_next.py --folder runs/qwen3_next --steps 30                # simulated gfx942

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

from model_mixture import Size, program

SIZES = {
    "tiny": Size(
        vocabulary=384,
        length=80,
        configuration="Qwen3NextConfig",
        options={
            "hidden_size": 64,
            "intermediate_size": 96,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 32,
            "num_hidden_layers": 2,
            "layer_types": ["linear_attention", "full_attention"],
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "initializer_range": 0.05,
        },
    ),
}
PROGRAM = program("qwen3_next", "Qwen3-Next", __doc__, SIZES)
train, parse, main = PROGRAM.train, PROGRAM.parse, PROGRAM.main

if __name__ == "__main__":
    raise SystemExit(main())
