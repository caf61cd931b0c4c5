#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The host time of a call, in microseconds, through a HIP library whose calls return at once (idle_hip.cpp).

    python benchmarks/launch.py [--device cuda] [--json] [--repeat 7]

Tensors are as small as possible; the path from the public function to hipModuleLaunchKernel is that of a GPU. `operator` is
torch.ops alone, `backward` adds a gradient to the whole call. Each is compared with PyTorch's own function on the same tensors. On
the CPU, which is the default, PyTorch's function also computes the result, on one thread: at these sizes that is a fraction of its
time. With --device cuda, on a machine with any GPU that PyTorch supports, tensors, allocator, streams and guards are that GPU's;
PyTorch's function then includes the driver's launch, which ours lacks. Every figure is the minimum of several runs.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
CALLS = 1000


def idle_library(folder: str) -> pathlib.Path:
    path = pathlib.Path(folder) / "libamdhip64.so"
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, "-std=c++20", "-O1", "-fPIC", "-shared", f"-I{ROOT / 'csrc'}", "-o", path, ROOT / "benchmarks" / "idle_hip.cpp"],
        check=True,
    )  # fmt: skip
    return path


def microseconds(call: Callable[[], object], repeat: int, synchronize: Callable[[], object]) -> float:
    """Time of one call out of CALLS consecutive ones. A GPU is synchronized between those batches, not within: its queue holds a batch."""
    call()
    best = float("inf")
    for _ in range(repeat):
        synchronize()
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - started)
    return best / CALLS * 1e6


def rows(repeat: int, device: str) -> list[dict[str, object]]:
    import torch
    import torch.nn.functional as F

    import hipkittens
    from hipkittens import _backend, _library

    torch.set_num_threads(1)
    if device == "cuda":
        _backend.has_amd_gpus = lambda: True  # or another vendor's: nothing is launched on it
        synchronize = torch.cuda.synchronize
    else:
        _library.operators().hipkittens_torch_set_gpu_of_cpu_tensors(0)

        def synchronize() -> None: ...

    bf16 = torch.bfloat16
    operators = torch.ops.hipkittens

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=bf16, device=device)

    q = draw(1, 1, 1, 64)
    a, w = draw(8, 8), draw(8)
    cos, sin = torch.ones(1, 32, device=device), torch.zeros(1, 32, device=device)
    cases: list[tuple[str, tuple[torch.Tensor, ...], Callable, Callable, Callable]] = [
        ("attention", (q, q.clone(), q.clone()), hipkittens.attention, F.scaled_dot_product_attention,
         lambda q, k, v: operators.attention_forward(q, k, v, 0.125, False, -1, -1, 0.0, None)),
        ("matmul", (a, a.clone()), hipkittens.matmul, torch.matmul,
         lambda a, b: operators.gemm(a, b, None, bf16, False)),
        ("linear", (a, a.clone(), w), hipkittens.linear, F.linear,
         lambda x, weight, bias: operators.gemm(x, weight.t(), bias, bf16, False)),
        ("rms_norm", (a, w), hipkittens.rms_norm, lambda x, w: F.rms_norm(x, (8,), w), None),
        ("rotary", (q,), lambda x: hipkittens.rotary(x, cos, sin), None, None),
        ("gated_activation", (a,), hipkittens.gated_activation, lambda x: F.silu(x[:, :4]) * x[:, 4:], None),
    ]  # fmt: skip
    found = []
    for name, tensors, ours, theirs, operator in cases:

        def forward(function: Callable, tensors=tensors) -> float:
            return microseconds(lambda: function(*tensors), repeat, synchronize)

        def trained(function: Callable, tensors=tensors) -> float:
            leaves = [tensor.clone().requires_grad_() for tensor in tensors]
            gradient = torch.ones_like(function(*leaves))
            return microseconds(
                lambda: torch.autograd.grad(function(*leaves), leaves, gradient), repeat, synchronize
            )

        found.append(
            {
                "call": name,
                "us": forward(ours),
                "operator_us": forward(operator) if operator else None,
                "torch_us": forward(theirs) if theirs else None,
                "backward_us": trained(ours),
                "torch_backward_us": trained(theirs) if theirs else None,
            }
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HIPKITTENS_LIBHIP_PATH"] = str(idle_library(folder))
        found = rows(arguments.repeat, arguments.device)
    if arguments.json:
        print(json.dumps(found))
        return 0
    columns = ["us", "operator_us", "torch_us", "backward_us", "torch_backward_us"]
    print(f"{'call':18}" + "".join(f"{column:>19}" for column in columns))
    for row in found:
        cells = ("" if row[column] is None else f"{row[column]:.1f}" for column in columns)
        print(f"{row['call']:18}" + "".join(f"{cell:>19}" for cell in cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
