#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speed of the simulated GPUs, as a ratio to PyTorch's own bf16 matmul on the same cores in the same run.

    python benchmarks/simulator.py [--target gfx950] [--large] [--quick] [--json]
    python benchmarks/simulator.py --scaling [--target gfx950] [--large] [--json]
    python benchmarks/simulator.py --baseline-library PATH [--tolerance 0.05] [--json]

gemm rows: hipkittens.matmul and torch.matmul alternate; the minimum time of each counts. aiter rows: AITER's code objects,
named by `object`, compared with torch.matmul of bf16 (fp8 and fp4 products use AITER's objects);
a row that cannot run has `skipped`. valu and dispatch rows: one wave runs a loop of v_fma_f32 (64 lanes) or s_mov_b32; gflops
then counts 10^9 lane operations per second, and `nanoseconds` is per instruction. checks rows: a product with
every checker on, compared with all off. --host-level limits PyTorch to the same host instructions (oneDNN's ONEDNN_MAX_CPU_ISA).

--scaling runs only the products, on 1, 2, 4, ... threads up to the number of cores, and reports the speedup of each over
one thread, ours and PyTorch's.

--baseline-library names another build of libhipkittens_simulator.so, with the same structures in simulator.h: both run the
same launches alternately, in this process, and the minimum times are compared. These are CPU times, so that other programs disturb
them less. Exit code 1 if this build is slower in a row by more than the tolerance.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import simulator_workloads as workloads
import torch

import hipkittens
from hipkittens import _library
from hipkittens._backend import HOST_LEVELS

TARGETS = ("gfx942", "gfx950")
GEMMS = {"fast": (2048, 4096), "strict": (1024,), "exact": (512,)}

ONEDNN_ISA = {"avx2": "AVX2", "avx512": "AVX512_CORE", "avx512_bf16": "AVX512_CORE_BF16"}


def seconds_of(function) -> float:
    started = time.perf_counter()
    function()
    return time.perf_counter() - started


def gemm_row(target: str, size: int, mode: str, threads: int, host_level: str, seconds: float) -> dict:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    torch.set_num_threads(threads)
    with hipkittens.simulate(target, arithmetic=mode, threads=threads, host_level=host_level):
        hipkittens.matmul(a[:64], b.t())  # translates and loads the kernel
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
    """The same product with every checker on and off, alternating, on one thread."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).bfloat16() for _ in range(2))
    best = {False: float("inf"), "all": float("inf")}
    started, turns = time.perf_counter(), 0
    while turns < 3 or time.perf_counter() - started < seconds:
        for checks in best:
            with hipkittens.simulate(target, checks=checks, threads=1, host_level=host_level):
                hipkittens.matmul(a[:64], b.t())  # translates and loads the kernel
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


def instruction_row(name: str, target: str, host_level: str, native_gflops: float) -> dict:
    workload, best = workloads.loop(name, target), float("inf")
    for _ in range(5):
        report = workload.run(threads=1, host_level=host_level)
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


def aiter_rows(target: str, size: int, host_level: str, seconds: float) -> Iterator[dict]:
    """AITER's products on one thread, compared with a bf16 matmul of that size."""
    made = workloads.aiter_products(target, size)
    why = workloads.why_no_aiter()
    a, b = (torch.randn(size, size).bfloat16() for _ in range(2))
    torch.set_num_threads(1)
    for name, make in made.items():
        row = {"name": name, "target": target, "mode": "fast", "threads": 1}
        if why:
            yield row | {"skipped": why}
            continue
        workload = make()
        ours = native = float("inf")
        started, turns = time.perf_counter(), 0
        while turns < 3 or time.perf_counter() - started < seconds:
            ours = min(ours, workload.run(threads=1, host_level=host_level).seconds)
            native = min(native, seconds_of(lambda: torch.matmul(a, b.t())))
            turns += 1
        yield row | {
            "gflops": workload.flops / ours / 1e9,
            "native_gflops": 2.0 * size**3 / native / 1e9,
            "ratio_to_native": workload.flops / ours / (2.0 * size**3 / native),
            "object": workload.object,
        }


def paired_rows(target: str, baseline: Path, host_level: str, seconds: float) -> Iterator[dict]:
    """This build and the other alternate; which one goes first changes."""
    for workload, settings in workloads.paired(target):
        best: dict[Path | None, float] = {None: float("inf"), baseline: float("inf")}
        started, turns = time.perf_counter(), 0
        while turns < 6 or time.perf_counter() - started < seconds:
            for library in list(best)[:: 1 if turns % 2 else -1]:
                before = time.process_time()
                workload.run(library, threads=1, host_level=host_level, **settings)
                best[library] = min(best[library], time.process_time() - before)
            turns += 1
        yield {
            "name": workload.name + ("_checks" if settings.get("checks") else ""),
            "target": target,
            "mode": settings.get("arithmetic", "fast"),
            "threads": 1,
            "turns": turns,
            "seconds": best[None],
            "baseline_seconds": best[baseline],
            "ratio_to_baseline": best[None] / best[baseline],
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
            for name in workloads.INSTRUCTIONS:
                rows.append(instruction_row(name, target, host_level, native))
                print_row(rows[-1], sys.stderr)
            for row in aiter_rows(target, 512 if quick else 1024, host_level, 0.5 if quick else 4.0):
                rows.append(row)
                print_row(row, sys.stderr)
    finally:
        torch.set_num_threads(before)
    return rows


def scaling(targets: tuple[str, ...], large: bool, host_level: str) -> list[dict]:
    rows = []
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    counts = [*(2**power for power in range(cores.bit_length()) if 2**power < cores), cores]
    try:
        for target in targets:
            for size in (4096, *((8192,) if large else ())):
                alone = None
                for threads in counts:
                    row = gemm_row(target, size, "fast", threads, host_level, 2.0)
                    alone = alone or row
                    row["speedup"] = row["gflops"] / alone["gflops"]
                    row["native_speedup"] = row["native_gflops"] / alone["native_gflops"]
                    rows.append(row)
                    print_row(row, sys.stderr)
    finally:
        torch.set_num_threads(before)
    return rows


def print_row(row: dict, file) -> None:
    if "skipped" in row:
        print(f"{row['target']} {row['name']:<18} not run: {row['skipped']}", file=file, flush=True)
        return
    if "ratio_to_baseline" in row:
        print(
            f"{row['target']} {row['name']:<42} {row['mode']:<6} {row['seconds'] * 1e3:9.2f} ms, baseline "
            f"{row['baseline_seconds'] * 1e3:9.2f} ms: {row['ratio_to_baseline']:.3f}",
            file=file,
            flush=True,
        )
        return
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
    if "speedup" in row:
        tail += f", {row['speedup']:.1f} times one thread (PyTorch {row['native_speedup']:.1f})"
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
    parser.add_argument("--scaling", action="store_true", help="products alone, on more and more threads")
    parser.add_argument("--host-level", choices=HOST_LEVELS, default="best")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--baseline-library", type=Path, metavar="PATH", help="compare with this simulator")
    parser.add_argument("--tolerance", type=float, default=0.05, help="how much slower is allowed")
    arguments = parser.parse_args()
    if arguments.baseline_library and not arguments.baseline_library.is_file():
        parser.error(f"--baseline-library: no such file: {arguments.baseline_library}")
    if arguments.scaling and (arguments.quick or arguments.baseline_library):
        parser.error("--scaling takes neither --quick nor --baseline-library")
    if arguments.host_level in ONEDNN_ISA:  # read at the first product
        os.environ["ONEDNN_MAX_CPU_ISA"] = ONEDNN_ISA[arguments.host_level]
    targets = (arguments.target,) if arguments.target else TARGETS
    if arguments.baseline_library:
        rows = []
        for target in targets:
            seconds = 0.5 if arguments.quick else 4.0
            for row in paired_rows(
                target, arguments.baseline_library.resolve(), arguments.host_level, seconds
            ):
                rows.append(row)
                print_row(row, sys.stderr)
    elif arguments.scaling:
        rows = scaling(targets, arguments.large, arguments.host_level)
    else:
        rows = measure(targets, arguments.large, arguments.quick, arguments.host_level)
    if arguments.json:
        json.dump({"rows": rows}, sys.stdout, indent=1)
        print()
    slower = [row for row in rows if row.get("ratio_to_baseline", 0) > 1 + arguments.tolerance]
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
