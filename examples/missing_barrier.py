# SPDX-License-Identifier: MIT
"""A kernel with a bug, for docs/debugger.md: hipkittens sim debug --checks all -- python examples/missing_barrier.py"""

from pathlib import Path

import torch

import hipkittens

reverse_blocks = hipkittens.kernel.compile(
    Path(__file__).with_suffix(".cpp"), targets="gfx942", options=["-g", "-O1"]
)

with hipkittens.simulate("gfx942"):
    x = torch.arange(256.0)
    out = torch.full_like(x, float("nan"))
    reverse_blocks(x, out, 0.5, grid=2, block=128)

expected = 0.5 * x.reshape(2, 128).flip(1).flatten()
print("wrong:", int((out != expected).sum()), "of", out.numel())
