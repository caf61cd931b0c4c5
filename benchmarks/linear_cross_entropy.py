#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/linear_cross_entropy.md: a linear layer's loss and gradients without storing its logits, compared with its matrix products alone.

    python benchmarks/linear_cross_entropy.py --jobs 16                # five minutes on as many cores
    python benchmarks/linear_cross_entropy.py --devices MI355X --json

Identical parts of the loss are modelled once and counted as often as they occur: a launch starts with none of its operands
in a cache.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from hipkittens import _backend, _timing, loss
from hipkittens.profiling.bench import modelled_launches

PAGE = Path(__file__).resolve().parent.parent / "docs" / "linear_cross_entropy.md"
DEVICES = ("MI300X", "MI325X", "MI355X")
# Tokens, features and classes of the last layer of Llama 3 8B, which the page reports.
LLAMA = (8192, 4096, 128256)
BF16 = torch.bfloat16
# A call: its name and its arguments, with tensors as (shape, strides, dtype).
Called = tuple[str, tuple[Any, ...], tuple[tuple[str, Any], ...]]


def described(value: Any) -> Any:
    return (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value


def made(value: Any) -> Any:
    """A tensor of this description whose memory is never accessed."""
    if not (isinstance(value, tuple) and len(value) == 3 and isinstance(value[2], torch.dtype)):
        return value
    shape, strides, dtype = value
    reach = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return torch.empty(reach, dtype=dtype).as_strided(shape, strides)


def calls(device: str, tokens: int, features: int, classes: int) -> Counter[Called]:
    """The calls that linear_cross_entropy and its backward make, without launching anything."""
    found: Counter[Called] = Counter()

    def note(what: str, arguments, options) -> None:
        found[what, tuple(map(described, arguments)), tuple(options.items())] += 1

    def matmul(a, b, **options):
        note("matmul", (a, b), {name: value for name, value in options.items() if value is not None})
        return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)

    def addmm_(sums, a, b):
        note("addmm_", (sums, a, b), {})
        return sums

    def call(name, *arguments):
        note(name, arguments, {})
        of_each_row = torch.zeros(arguments[0].shape[0])
        returned = {"cross_entropy": (of_each_row,) * 3, "cross_entropy_in_place": of_each_row}
        return returned.get(name)

    x, weight = (torch.zeros(size, features, dtype=BF16, requires_grad=True) for size in (tokens, classes))
    with (
        _backend.simulate(_timing.DEVICES[device]),
        mock.patch.multiple(loss, matmul=matmul, addmm_=addmm_, call=call),
    ):
        value = loss.linear_cross_entropy(x, weight, torch.zeros(tokens, dtype=torch.int64))
        torch.autograd.grad(value, (x, weight))
    return found


def microseconds(device: str, called: Called) -> float:
    what, arguments, options = called
    given = [made(value) for value in arguments]

    def again() -> None:
        if what.startswith("cross_entropy"):
            loss.call(what, *given)
        else:
            getattr(loss, what)(*given, **dict(options))

    with torch.no_grad():
        launches = modelled_launches(device, again)
    return sum(launch.microseconds for launch in launches)


def products(tokens: int, features: int, classes: int) -> dict[str, Called]:
    """The layer's three matrix products, each as a single GEMM."""

    def of(m, n, k, a_columns, b_columns):
        a = ((m, k), (1, m) if a_columns else (k, 1), BF16)
        b = ((k, n), (1, k) if b_columns else (n, 1), BF16)
        return "matmul", (a, b), ()

    return {
        "logits": of(tokens, classes, features, False, True),
        "gradient of x": of(tokens, features, classes, False, False),
        "gradient of weight": of(classes, features, tokens, True, False),
    }


def report(devices: tuple[str, ...], sizes: tuple[int, int, int], jobs: int) -> dict[str, Any]:
    work: list[tuple[str, Called]] = []
    counted = {device: calls(device, *sizes) for device in devices}
    for device in devices:
        work += [(device, called) for called in (*counted[device], *products(*sizes).values())]
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        times = dict(zip(work, pool.map(microseconds, *zip(*work, strict=True)), strict=True))
    result = {}
    for device in devices:
        parts: dict[str, float] = {}
        launches: Counter[str] = Counter()
        for called, count in counted[device].items():
            parts[called[0]] = parts.get(called[0], 0.0) + count * times[device, called]
            launches[called[0]] += count
        alone = {name: times[device, called] for name, called in products(*sizes).items()}
        result[device] = {"parts": parts, "calls": dict(launches), "alone": alone}
    return result


def page(found: dict[str, Any]) -> str:
    rows = []
    for device, of in found.items():
        total, alone = sum(of["parts"].values()), of["alone"]
        three = sum(alone.values())
        four = three + alone["logits"]
        rows.append(
            f"| {device} | {total / 1000:.2f} | {four / 1000:.2f} | {total / four:.2f} | {three / 1000:.2f} | {total / three:.2f} |"
        )
    names = {
        "matmul": "`matmul`: logits, twice, and the gradient of weight",
        "addmm_": "`addmm_`: the gradient of x",
        "cross_entropy": "`cross_entropy`",
        "cross_entropy_backward_in_place": "its gradient, overwriting the logits",
    }
    parts = [
        f"| {text} | " + " | ".join(f"{of['calls'][name]} | {of['parts'][name] / 1000:.2f}" for of in found.values()) + " |"
        for name, text in names.items()
    ]  # fmt: skip
    heads = " | ".join(f"{device}, calls | ms" for device in found)
    tokens, features, classes = LLAMA
    workspace = loss._workspace(tokens, classes)
    return f"""# Linear cross entropy without storing the logits

`python benchmarks/linear_cross_entropy.py` writes this page: `hipkittens.linear_cross_entropy` and its backward for {tokens} tokens,
{features} features and {classes} classes (the last layer of Llama 3 8B) in bfloat16. Times are from the [cycle model](timing_model.md),
without launch overhead; nothing has run on a GPU. They exclude what PyTorch launches itself: masks of targets, one row of zeros and one
rounding of the gradient of x, about 0.4 GB in total.

Its workspace is {workspace / 2**20:.0f} MiB, an eighth of the logits' {tokens * classes * 2 / 2**20:.0f} MiB (measured by `tests/test_cross_entropy.py`).
The logits are therefore computed twice, for the loss and for its gradients, which makes four matrix products. With all logits in memory
there would be three. *Alone* is the time of these products as one `matmul` each.

| device | ours, ms | four matrix products alone, ms | ours / four | three matrix products alone, ms | ours / three |
|---|---|---|---|---|---|
{chr(10).join(rows)}

| part | {heads} |
|---|{"---|" * 2 * len(found)}
{chr(10).join(parts)}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", default=",".join(DEVICES), help="some of " + ", ".join(DEVICES))
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of processes, default: 1")
    for name, default in zip(("--tokens", "--features", "--classes"), LLAMA, strict=True):
        parser.add_argument(
            name, type=int, default=default, metavar="N", help=f"with --json; default: {default}"
        )
    parser.add_argument("--json", action="store_true", help="print JSON and do not write the page")
    arguments = parser.parse_args()
    devices = tuple(arguments.devices.split(","))
    unknown = [device for device in devices if device not in DEVICES]
    if unknown:
        parser.error(f"--devices has {unknown[0]}; allowed: {', '.join(DEVICES)}")
    sizes = (arguments.tokens, arguments.features, arguments.classes)
    if sizes != LLAMA and not arguments.json:
        parser.error("the page is of the default --tokens, --features and --classes alone; add --json")
    found = report(devices, sizes, arguments.jobs)
    if arguments.json:
        print(json.dumps(found, indent=1))
    else:
        PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
