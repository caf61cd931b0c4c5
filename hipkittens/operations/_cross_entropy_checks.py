# SPDX-License-Identifier: MIT
"""Checks of cross_entropy and linear_cross_entropy: problems for each kernel, examples, benchmarks."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..loss import cross_entropy, in_torch, linear_cross_entropy
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Kernel,
    Parity,
    ParityProblem,
    Table,
    Trial,
)
from ._tables import DEVICES
from ._tensors import draw, with_gaps

_IGNORED = -100


def _targets(rows: int, classes: int, ignored: int = 1) -> torch.Tensor:
    """Classes in a fixed pseudo-random order, with the last `ignored` of them ignored."""
    target = torch.arange(rows) * 7919 % classes
    target[rows - ignored :] = _IGNORED
    return target


def _trial(kernel: Kernel) -> Trial:
    element, plain = kernel.row["element"], kernel.row["plain"] == "true"
    # More than the workgroup has in flight, and an end inside it.
    narrow = plain and kernel.row["waves"] == "4"
    rows, columns = 3, 4096 + 808 if narrow else 4 * 4096 + 808 if plain else 4096 + 811
    options = {} if plain else {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 20.0}

    def run():
        logits = draw(rows, columns, dtype=DTYPES[element])
        results = cross_entropy(
            logits, _targets(rows, columns), reduction="none", return_entropy=not plain, **options
        )
        results = (results,) if plain else results
        total = sum((result * torch.arange(1.0, rows + 1)).sum() for result in results)
        return *results, *torch.autograd.grad(total, logits)

    return Trial(f"cross_entropy {rows}x{columns} {element}", run)


def _example_target(logits: torch.Tensor) -> torch.Tensor:
    return _targets(logits.shape[0], logits.shape[-1]).to(logits.device)


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(
        F.linear(x, weight, bias).to(torch.promote_types(x.dtype, torch.float32)),
        _linear_target(x, weight),
    )


def _linear_target(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return _targets(x.shape[0], weight.shape[0]).to(x.device)


def _parity(case, generator) -> ParityProblem:
    rows, classes = case["rows"], case["classes"]
    logits = (torch.randn(rows, classes, generator=generator) * case["magnitude"]).to(DTYPES[case["dtype"]])
    target = torch.randint(classes, (rows,), generator=generator)
    if case["ignored"]:
        target[:: case["ignored"]] = _IGNORED
    options = {
        "label_smoothing": case["label_smoothing"],
        "z_loss": case["z_loss"],
        "softcap": case["softcap"],
    }

    def theirs(x):
        return in_torch(x, target, ignore_index=_IGNORED, **options)

    return ParityProblem(
        inputs={"logits": with_gaps(logits, *case["gaps"])},
        ours=lambda x: cross_entropy(x, target, reduction="none", return_entropy=True, **options),
        theirs=theirs,
        baseline="PyTorch's operations in float32",
        outputs=("loss", "entropy"),
    )


def _linear_parity(case, generator) -> ParityProblem:
    rows, features, classes = case["rows"], case["features"], case["classes"]
    dtype = DTYPES[case["dtype"]]
    x = torch.randn(rows, features, generator=generator).to(dtype)
    weight = (torch.randn(classes, features, generator=generator) / features**0.5).to(dtype)
    bias = torch.randn(classes, generator=generator).to(dtype)
    target = torch.randint(classes, (rows,), generator=generator)
    target[1 :: case["ignored"]] = _IGNORED
    options = {"label_smoothing": case["label_smoothing"], "softcap": case["softcap"]}
    counted = int((target != _IGNORED).sum())

    def theirs(x, weight, bias):
        losses, _ = in_torch(F.linear(x, weight, bias), target, ignore_index=_IGNORED, z_loss=0.0, **options)
        return (losses.sum() / counted).reshape(1) if case["reduction"] == "mean" else losses

    # Kept gradients are those of a mean or a sum of bfloat16.
    kept = case["kept"] and case["reduction"] == "mean" and dtype == torch.bfloat16

    def ours(x, weight, bias):
        loss = linear_cross_entropy(
            x, weight, target, bias, reduction=case["reduction"], recompute=not kept, **options
        )
        return loss.reshape(-1)

    return ParityProblem(
        inputs={"x": x, "weight": weight, "bias": bias},
        ours=ours,
        theirs=theirs,
        baseline="PyTorch's product in the same dtype, its loss in float32",
        outputs=("loss",),
    )


def _call(problem, device):
    logits = problem.tensor(device, problem["rows"], problem["columns"]).requires_grad_(problem.training)
    target = torch.zeros(problem["rows"], dtype=torch.int64, device=device)
    return lambda: cross_entropy(logits, target, reduction="none")


def _call_backward(problem, device):
    logits = problem.tensor(device, problem["rows"], problem["columns"])
    target = torch.zeros(problem["rows"], dtype=torch.int64, device=device)
    zeros = torch.zeros(problem["rows"], device=device)
    return lambda: torch.ops.hipkittens.cross_entropy_backward(
        zeros, None, logits, target, zeros, zeros, None, _IGNORED, 0.0, 0.0, 0.0
    )


def _call_linear(problem, device):
    x, weight = (
        problem.tensor(device, problem[of], problem["features"]).requires_grad_()
        for of in ("rows", "classes")
    )
    target = torch.zeros(problem["rows"], dtype=torch.int64, device=device)
    return lambda: torch.autograd.grad(linear_cross_entropy(x, weight, target), (x, weight))


_SIZES = dict.fromkeys(DEVICES, (32000, 128256))
_BACKWARD_SIZES = {"MI325X": (32000,), "MI355X": (32000,)}

CROSS_ENTROPY = Checks(
    trial=_trial,
    examples=(
        Example(
            "cross entropy",
            {"logits": (64, 4096)},
            lambda logits: cross_entropy(logits, _example_target(logits)),
            lambda logits: F.cross_entropy(
                logits.to(torch.promote_types(logits.dtype, torch.float32)), _example_target(logits)
            ),
        ),
    ),
    parity=(
        Parity(
            "cross_entropy",
            {
                "dtype": tuple(DTYPES),
                "classes": (1000, 1, 2, 17, 255, 257, 4096, 4104, 32000, 50257),
                "rows": (5, 1, 33),
                "magnitude": (1.0, 10.0),
                "ignored": (0, 2, 1),
                "label_smoothing": (0.0, 0.1),
                "z_loss": (0.0, 1e-3),
                "softcap": (None, 30.0),
                "gaps": ((0, 0), (2, 2), (1, 0)),
            },
            _parity,
        ),
    ),
    calls=lambda tensor: [
        (
            "softcap, smoothing, entropy",
            "cross_entropy",
            (tensor(4, 96), tensor(4, dtype=torch.int64)),
            {"softcap": 30.0, "label_smoothing": 0.1, "return_entropy": True},
        ),
        (
            "class probabilities",
            "cross_entropy",
            (tensor(4, 96), tensor(4, dtype=torch.float32)),
            {},
        ),
    ],
    benchmarks=(
        Benchmark(
            "cross_entropy",
            example="8192x128256",
            extents=("rows", "columns"),
            shapes="8192x32000,8192x128256",
            heading="Cross entropy",
            bytes=lambda problem: 2.0 * problem["rows"] * problem["columns"],
            call=_call,
            tables=(Table("Cross entropy of 8192 rows", "8192x{N}", _SIZES),),
        ),
        Benchmark(
            "cross_entropy_backward",
            example="8192x128256",
            extents=("rows", "columns"),
            shapes="8192x32000,8192x128256",
            heading="Cross entropy backward",
            bytes=lambda problem: 4.0 * problem["rows"] * problem["columns"],
            call=_call_backward,
            tables=(Table("Cross entropy backward of 8192 rows", "8192x{N}", _BACKWARD_SIZES),),
        ),
    ),
)
LINEAR_CROSS_ENTROPY = Checks(
    examples=(
        Example(
            "linear cross entropy",
            {"x": (512, 256), "weight": (1024, 256), "bias": (1024,)},
            lambda x, weight, bias: linear_cross_entropy(x, weight, _linear_target(x, weight), bias),
            _linear,
        ),
    ),
    parity=(
        Parity(
            "linear_cross_entropy",
            {
                "dtype": ("bf16", "f16"),
                "rows": (300, 1, 17, 1100),
                "features": (64, 40, 257),
                "classes": (640, 17, 1000),
                "ignored": (3, 2),
                "label_smoothing": (0.0, 0.1),
                "softcap": (None, 30.0),
                "reduction": ("mean", "none"),
                "kept": (False, True),
            },
            _linear_parity,
        ),
    ),
    benchmarks=(
        Benchmark(
            "linear_cross_entropy",
            example="8192x4096x128256",
            extents=("rows", "features", "classes"),
            shapes="8192x4096x128256",
            heading="Linear cross entropy with its gradients",
            bytes=lambda problem: 4.0 * problem["features"] * (problem["rows"] + problem["classes"]),
            flops=lambda problem: 6.0 * problem["rows"] * problem["features"] * problem["classes"],
            call=_call_linear,
        ),
    ),
)
