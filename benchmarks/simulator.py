#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speed of the simulated GPUs, as a ratio to PyTorch's own bf16 matmul on the same cores in the same run.

    python benchmarks/simulator.py [--target gfx950] [--large] [--quick] [--json]

gemm rows: hipkittens.matmul and torch.matmul take turns; the shortest time of each counts. valu and dispatch rows: one
wave runs a loop of v_fma_f32 (64 lanes) or s_mov_b32; gflops then means 10^9 instructions' worth of lanes' operations, and
`nanoseconds` is per instruction. checks rows: a product with every checker on against off. --host-level holds PyTorch to the same host instructions (oneDNN's ONEDNN_MAX_CPU_ISA).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch

import hipkittens
from hipkittens import _library
from hipkittens._backend import HOST_LEVELS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

TARGETS = ("gfx942", "gfx950")
GEMMS = {"fast": (2048, 4096), "strict": (1024,), "exact": (512,)}

ONEDNN_ISA = {"avx2": "AVX2", "avx512": "AVX512_CORE", "avx512_bf16": "AVX512_CORE_BF16"}

LOOP = """
extern "C" __global__ void loop(unsigned count) {{
    float value = 1.0f;  // from a denormal, the host's own assist would be measured
    for (unsigned i = 0; i < count; ++i)
        asm volatile(".rept 256\\n\\t{instruction}\\n\\t.endr" : "+v"(value)::"s20");
}}
"""


def seconds_of(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def gemm_row(target: str, size: int, mode: str, threads: int, host_level: str, seconds: float) -> dict:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    torch.set_num_threads(threads)
    with hipkittens.simulate(target, arithmetic=mode, threads=threads, host_level=host_level):
        hipkittens.matmul(a[:64], b.t())  # translated, loaded
        ours = native = float("inf")
        started, turns = time.perf_counter(), 0
        while turns < 3 or time.perf_counter() - started < seconds:
            ours = min(ours, seconds_of(lambda: hipkittens.matmul(a, b.t())))
            native = min(native, seconds_of(lambda: torch.matmul(a, b.t())))
            turns += 1
        kernel = _library.last_kernel()
    flops = 2.0 * size**3
    return {
        "name": f"gemm_nt_bf16_{size}",
        "target": target,
        "mode": mode,
        "threads": threads,
        "gflops": flops / ours / 1e9,
        "native_gflops": flops / native / 1e9,
        "ratio_to_native": native / ours,
        "kernel": kernel,
    }


def checked_row(target: str, size: int, host_level: str, seconds: float) -> dict:
    """The same product with every checker on and off, in turns, on one thread."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    best = {False: float("inf"), "all": float("inf")}
    started, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - started < seconds:
        for checks in best:
            with hipkittens.simulate(target, checks=checks, threads=1, host_level=host_level):
                hipkittens.matmul(a[:64], b.t())  # translated, loaded
                best[checks] = min(best[checks], seconds_of(lambda: hipkittens.matmul(a, b.t())))
        turns += 1
    flops = 2.0 * size**3
    return {
        "name": f"checks_nt_bf16_{size}",
        "target": target,
        "mode": "fast",
        "threads": 1,
        "gflops": flops / best["all"] / 1e9,
        "unchecked_gflops": flops / best[False] / 1e9,
        "ratio_to_unchecked": best["all"] / best[False],
    }


def instruction_row(name: str, instruction: str, target: str, host_level: str, native_gflops: float) -> dict:
    import device_compiler
    import simulated_device

    code = device_compiler.compile_hip(LOOP.format(instruction=instruction), target)
    kernel = simulated_device.Module(code, target).kernel("loop")
    count, best = 4000, float("inf")
    for _ in range(5):
        report = kernel.launch(count.to_bytes(4, "little"), threads=1, host_level=host_level)
        best = min(best, report.seconds / report.instructions)
    gflops = 128 / best / 1e9 if name == "valu" else 0.0
    return {
        "name": name,
        "target": target,
        "mode": "fast",
        "threads": 1,
        "gflops": gflops,
        "native_gflops": native_gflops,
        "ratio_to_native": gflops / native_gflops,
        "nanoseconds": best * 1e9,
    }


def measure(targets: tuple[str, ...], large: bool, quick: bool, host_level: str) -> list[dict]:
    rows = []
    before = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    try:
        for target in targets:
            for mode, sizes in GEMMS.items():
                for size in (*sizes, *((8192,) if large and mode == "fast" else ())):
                    if quick and size > 2048:
                        continue
                    for threads in (1, 2) if cores > 1 else (1,):
                        rows.append(gemm_row(target, size, mode, threads, host_level, 0.5 if quick else 4.0))
                        print_row(rows[-1], sys.stderr)
            rows.append(checked_row(target, 1024, host_level, 0.5 if quick else 4.0))
            print_row(rows[-1], sys.stderr)
            native = next(row["native_gflops"] for row in rows if row["threads"] == 1)
            rows.append(instruction_row("valu", "v_fma_f32 %0, %0, %0, %0", target, host_level, native))
            print_row(rows[-1], sys.stderr)
            rows.append(instruction_row("dispatch", "s_mov_b32 s20, s20", target, host_level, native))
            print_row(rows[-1], sys.stderr)
    finally:
        torch.set_num_threads(before)
    return rows


def print_row(row: dict, file) -> None:
    if "ratio_to_unchecked" in row:
        print(
            f"{row['target']} {row['name']:<18} every checker on: {row['gflops']:.1f} GFLOP/s, off: "
            f"{row['unchecked_gflops']:.1f}; {row['ratio_to_unchecked']:.2f} times slower",
            file=file,
            flush=True,
        )
        return
    tail = (
        f"{row['nanoseconds']:.2f} ns" if "nanoseconds" in row else f"{row['ratio_to_native']:.2f} of PyTorch"
    )
    print(
        f"{row['target']} {row['name']:<18} {row['mode']:<6} {row['threads']} threads "
        f"{row['gflops']:9.1f} GFLOP/s (PyTorch {row['native_gflops']:.1f})  {tail}",
        file=file,
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--large", action="store_true", help="also 8192")
    parser.add_argument("--quick", action="store_true", help="2048 at most, half a second per row")
    parser.add_argument("--host-level", choices=HOST_LEVELS, default="best")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.host_level in ONEDNN_ISA:  # read at the first product
        os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN_ISA[arguments.host_level]
    targets = (arguments.target,) if arguments.target else TARGETS
    rows = measure(targets, arguments.large, arguments.quick, arguments.host_level)
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
