# SPDX-License-Identifier: MIT
"""`hipkittens demo`: the kernels on real tensors in the simulated GPUs, beside PyTorch and float64."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from . import _backend, _installation, _library, linear, matmul
from ._accuracy import compare
from ._demo_rows import ROW_JOBS, RowJob
from ._demo_rows import run as _run_rows
from ._progress import progress_bar


@dataclass(frozen=True)
class Job:
    title: str
    m: int
    n: int
    k: int
    dtype: torch.dtype
    training: bool = False
    integers: bool = False


JOBS = (
    Job("square", 1024, 1024, 1024, torch.bfloat16),
    Job("large", 4096, 4096, 512, torch.bfloat16),
    Job("one row", 1, 4096, 4096, torch.bfloat16),
    Job("odd sizes", 257, 1001, 515, torch.float16),
    Job("integers", 300, 200, 130, torch.bfloat16, integers=True),
    Job("linear, trained", 384, 768, 512, torch.bfloat16, training=True),
)


def _inputs(job: Job) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        if job.integers:
            return torch.randint(-8, 9, shape, generator=generator).to(job.dtype)
        return torch.randn(shape, generator=generator).to(job.dtype)

    return draw(job.m, job.k), draw(job.n, job.k), draw(job.n)


def _results(
    job: Job, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, function
) -> dict[str, torch.Tensor]:
    if not job.training:
        return {"y": function(x, weight, bias)}
    leaves = [value.detach().requires_grad_() for value in (x, weight, bias)]
    y = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    grad = torch.randn(y.shape, generator=generator).to(job.dtype).to(y.dtype)
    gradients = torch.autograd.grad(y, leaves, grad)
    return {"y": y.detach(), "dx": gradients[0], "dweight": gradients[1], "dbias": gradients[2]}


def _run(target: str, job: Job) -> list[dict[str, Any]]:
    x, weight, bias = _inputs(job)
    with _backend.simulate(target):
        started = time.perf_counter()
        if job.training:
            ours = _results(job, x, weight, bias, linear)
        else:
            ours = {"y": matmul(x, weight.t(), bias=bias)}
        seconds = time.perf_counter() - started
        report = {} if job.training else _library.last_report()
        variant = "" if job.training else _library.last_kernel()
    theirs = _results(job, x, weight, bias, torch.nn.functional.linear)
    reference = _results(job, x.double(), weight.double(), bias.double(), torch.nn.functional.linear)
    magnitude = (x.double().abs() @ weight.double().abs().t()).max().item()
    rows = []
    for name, value in ours.items():
        comparison = compare(value, theirs[name], reference[name], magnitude)
        exact = torch.equal(value.double(), reference[name].to(value.dtype).double())
        rows.append(
            {
                "target": target,
                "job": job.title,
                "result": name,
                "shape": [job.m, job.n, job.k],
                "dtype": str(job.dtype).removeprefix("torch."),
                "variant": variant.removeprefix("hipkittens_gemm_").removesuffix("_" + target),
                **asdict(comparison),
                "exact": exact,
                "ok": comparison.passes and (exact or not job.integers),
                "instructions": report.get("instructions"),
                "seconds": seconds if name == "y" else None,
            }
        )
    return rows


def main(as_json: bool, target: str | None) -> int:
    targets = (target,) if target else _installation.TARGETS
    rows: list[dict[str, Any]] = []
    with progress_bar() as progress:
        task = progress.add_task("simulating", total=len(targets) * len(JOBS + ROW_JOBS))
        for chosen in targets:
            for job in JOBS + ROW_JOBS:
                progress.update(task, description=f"{chosen} {job.title}")
                rows += _run_rows(chosen, job) if isinstance(job, RowJob) else _run(chosen, job)
                progress.advance(task)
    wrong = [row for row in rows if not row["ok"]]
    if as_json:
        json.dump({"ok": not wrong, "rows": rows}, sys.stdout, indent=2)
        print()
    else:
        _print_table(rows, wrong)
    return int(bool(wrong))


def _print_table(rows: list[dict[str, Any]], wrong: list[dict[str, Any]]) -> None:
    table = Table(title="Simulated GPUs beside PyTorch (errors against float64)")
    for heading in ("target", "job", "m, n, k or shape", "variant"):
        table.add_column(heading, no_wrap=True)
    for heading in ("max error", "PyTorch's", "rms ratio", "instructions", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        table.add_row(
            row["target"],
            f"{row['job']}, {row['result']}",
            "x".join(map(str, row["shape"])),
            row["variant"],
            f"{row['max_ours']:.3g}",
            f"{row['max_torch']:.3g}",
            f"{row['ratio_rms']:.2f}",
            f"{row['instructions']:,}" if row["instructions"] else "",
            f"{row['seconds']:.2f}" if row["seconds"] is not None else "",
            "[green]ok[/]" if row["ok"] else "[red]WRONG[/]",
        )
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if wrong:
        print(
            f"{len(wrong)} results are wrong: error more than twice PyTorch's, or integers not exact",
            file=sys.stderr,
        )
    else:
        print(f"All {len(rows)} results are within twice PyTorch's own error, integers bit for bit.")
