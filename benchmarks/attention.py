#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Wall time of attention forward and backward in the simulator, compared with PyTorch's own on the same cores.

    python benchmarks/attention.py [--target gfx950] [--length 2048] [--batch 1] [--json]

The shape is that of the published HipKittens figures, 64 query heads and 8 key heads of size 128, with a batch of 1 instead of 16.
The figures do not predict GPU performance: they are times of the simulator, and of PyTorch on a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import _library


def seconds_of(function) -> tuple[float, object]:
    started = time.perf_counter()
    result = function()
    return time.perf_counter() - started, result


def row(target: str, causal: bool, arguments: argparse.Namespace) -> dict:
    generator = torch.Generator().manual_seed(0)

    def draw(heads: int) -> torch.Tensor:
        shape = (arguments.batch, arguments.length, heads, arguments.size)
        return torch.randn(shape, generator=generator).bfloat16()

    leaves = [
        draw(heads).requires_grad_() for heads in (arguments.heads, arguments.key_heads, arguments.key_heads)
    ]
    grad = draw(arguments.heads)

    def theirs():
        q, k, v = (value.transpose(1, 2) for value in leaves)
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)

    with hipkittens.simulate(target):
        hipkittens.attention(
            *(value[:, :64] for value in leaves), causal=causal
        ).sum().backward()  # loaded, translated
        forward, out = seconds_of(lambda: hipkittens.attention(*leaves, causal=causal))
        kernel = _library.last_kernel()
        backward, ours = seconds_of(lambda: torch.autograd.grad(out, leaves, grad))
    torch_forward, expected = seconds_of(theirs)
    torch_backward, gradients = seconds_of(lambda: torch.autograd.grad(expected, leaves, grad))
    flops = (
        4 * arguments.batch * arguments.heads * arguments.length**2 * arguments.size / (2 if causal else 1)
    )
    return {
        "target": target,
        "causal": causal,
        "kernel": kernel,
        "forward_seconds": forward,
        "backward_seconds": backward,
        "forward_gflops": flops / forward / 1e9,
        "backward_gflops": 2.5 * flops / backward / 1e9,
        "torch_forward_seconds": torch_forward,
        "torch_backward_seconds": torch_backward,
        # The difference of two bfloat16 results: a sanity check, not parity.
        "largest_difference": max(
            (one.double() - other.double()).abs().max().item()
            for one, other in zip((out, *ours), (expected, *gradients), strict=True)
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=("gfx942", "gfx950"), action="append", help="default: both")
    for name, default in (("batch", 1), ("length", 2048), ("heads", 64), ("key-heads", 8), ("size", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    for target in arguments.target or ("gfx942", "gfx950"):
        for causal in (False, True):
            rows.append(row(target, causal, arguments))
            print(
                "{target} {mask:<9} forward {forward_seconds:6.2f} s ({forward_gflops:.0f} GFLOP/s), backward "
                "{backward_seconds:6.2f} s ({backward_gflops:.0f}); PyTorch {torch_forward_seconds:.2f} and "
                "{torch_backward_seconds:.2f} s".format(mask="causal" if causal else "full", **rows[-1]),
                file=sys.stderr,
                flush=True,
            )
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
