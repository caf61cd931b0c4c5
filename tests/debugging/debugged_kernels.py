# SPDX-License-Identifier: MIT
"""A program to debug, and the kernel that it launches twice."""

from __future__ import annotations

import textwrap

import torch

# Tests look up the line of each comment by its words, so that they need no line numbers.
KERNEL = """\
#include "tiles/tiles.h"
using namespace kittens;

__attribute__((device, always_inline)) static inline float scaled(float value, float factor) {
    float product = value * factor;  // in the inlined call
    return product + 1.0f;
}

extern "C" __attribute__((global)) void scale(const float* x, float* out, float factor, int rounds) {
    const int item = static_cast<int>(workgroup_id_x()) * 128 + static_cast<int>(thread_id());
    float sum = 0;
    for (int round = 0; round < rounds; ++round) {
        sum += scaled(x[(item + round) % 256], factor);  // in the loop
    }
    out[item] = sum;  // the store
}
"""

PROGRAM = """\
import sys
from pathlib import Path

import torch

import hipkittens

scale = hipkittens.kernel.compile(Path(sys.argv[1]), targets="gfx942", options=["-g"])
with hipkittens.simulate("gfx942"):
    for factor in (2.0, 3.0):
        x = torch.arange(256.0)
        out = torch.full_like(x, float("nan"))
        scale(x, out, factor, 3, grid=2, block=128)
        right = sum(factor * x.roll(-round) + 1 for round in range(3))
        print("right" if torch.equal(out, right) else "wrong", flush=True)
"""


def expected(factor: float) -> torch.Tensor:
    """The values that the kernel stores."""
    x = torch.arange(256.0)
    return sum(factor * x.roll(-round) + 1 for round in range(3))


def line_of(words: str) -> int:
    return next(number for number, line in enumerate(KERNEL.splitlines(), 1) if words in line)


def write(folder):
    """Write (program, kernel) as files into the folder."""
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "scale.cpp").write_text(KERNEL)
    return folder / "program.py", folder / "scale.cpp"
