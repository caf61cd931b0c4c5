# SPDX-License-Identifier: MIT
"""The record of sampling a column of each row; the function is in hipkittens/sampling.py."""

from __future__ import annotations

import torch

from ..sampling import in_torch, sample
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Function,
    Kernel,
    Operation,
    Operator,
    Parity,
    ParityProblem,
    Table,
    Trial,
)
from ._tables import DECODED_SIZES
from ._tensors import draw, with_gaps


def _fake(logits, exponentials, temperatures, eps):
    return logits.new_empty(logits.shape[:-1], dtype=torch.int64)


def _drawn(shape, seed=0):
    return torch.empty(shape).exponential_(generator=torch.Generator().manual_seed(seed))


def _trial(kernel: Kernel) -> Trial:
    """Rows that are whole vectors, and others; shared rows, and the loop's second iteration in one of the most workgroups; vectors past the
    end; greedy and randomly drawn rows.
    """
    element = kernel.row.get("element", "bf16")  # the kernel that combines shared rows has none
    dtype = DTYPES[element]

    def run():
        results = []
        for columns in (16384 + 8192 + 8, 1027):
            # In steps, so that the largest is not alone.
            x = (draw(6, columns, dtype=dtype).detach() * 4).round() / 4
            temperature = torch.tensor([0.0, 1.0, 0.7, 0.0, 1e-7, 3.0])
            results += [
                sample(x, temperature=temperature, exponentials=_drawn(x.shape)),
                sample(x, temperature=0),
            ]
        long = draw(1, 64 * 16384 + 8200, dtype=dtype).detach()
        long[0, 63 * 16384 + 9] = 9  # in the last part, which is combined with the first in all steps
        return [*results, sample(long, temperature=0)]

    return Trial(f"sample 6x24584 {element}", run)


def _chosen_value(x, exponentials, choose):
    """The value of the column is compared, since equal values may have different columns."""
    return x.gather(-1, choose(x.detach(), exponentials)[..., None])[..., 0]


def _parity(case, generator) -> ParityProblem:
    x = torch.randn(case["rows"], case["columns"], generator=generator) * 4
    x = with_gaps(x.to(DTYPES[case["dtype"]]), *case["gaps"])
    exponentials = torch.empty(x.shape).exponential_(generator=generator)
    temperature = torch.full(x.shape[:-1], case["temperature"])

    def ours(x):
        return _chosen_value(x, exponentials, lambda x, e: sample(x, temperature=temperature, exponentials=e))

    def theirs(x):
        def choose(x, e):
            e, t = e.to(torch.promote_types(x.dtype, torch.float32)), temperature.double()
            if case["temperature"] == 0:
                return x.argmax(-1)
            return ((x.double() / t[..., None]).softmax(-1) / (e.double() + 1e-10)).argmax(-1)

        return _chosen_value(x, exponentials, choose)

    return ParityProblem(
        inputs={"x": x},
        ours=ours,
        theirs=theirs,
        baseline="argmax of PyTorch's softmax over exponentials, in float64",
    )


def _example(x):
    e = _drawn(x.shape).to(x.device)
    return _chosen_value(x, e, lambda x, e: sample(x, exponentials=e))


def _example_in_torch(x):
    e = _drawn(x.shape)
    return _chosen_value(x, e, lambda x, e: in_torch(x, e, torch.ones(x.shape[:-1]), 1e-10))


def _call(problem, device):
    x = problem.tensor(device, problem["rows"], problem["columns"])
    exponentials = torch.empty(x.shape, device=device).exponential_()
    temperature = torch.ones(x.shape[0], device=device)
    return lambda: sample(x, temperature=temperature, exponentials=exponentials)


def _calls(tensor):
    x = tensor(4, 96)
    return [
        ("greedy", "sample", (x,), {"temperature": 0.0}),
        ("top-k and top-p", "sample", (x,), {"top_k": 50, "top_p": 0.9}),
        ("top-k above 2048", "sample", (tensor(4, 8192),), {"top_k": 4096}),
    ]


def _exercise(draw):
    x = draw(5, 130).detach()
    yield sample(x, temperature=0.0)
    yield sample(x, exponentials=_drawn(x.shape), top_k=9)


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(Example("sample", {"x": (8, 32000)}, _example, _example_in_torch, gradients=False),),
        parity=(
            Parity(
                "sample",
                {
                    "dtype": tuple(DTYPES),
                    "columns": (1024, 1, 2, 7, 111, 8193, 32000),
                    "rows": (3, 1, 5),
                    "temperature": (1.0, 0.0, 0.6),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=_calls,
        sizes=lambda rows: "Sampling: rows of any length; top_k up to 2048.",
        exercise=_exercise,
        benchmarks=(
            Benchmark(
                "sample",
                example="64x151936",
                extents=("rows", "columns"),
                shapes="1x128256,64x128256,64x151936",
                heading="Sampling",
                bytes=lambda problem: 6.0 * problem["rows"] * problem["columns"],
                call=_call,
                tables=(Table("Sampling from a vocabulary of 128,256", "{N}x128256", DECODED_SIZES),),
            ),
        ),
    )


OPERATION = Operation(
    name="sample",
    folder="sample",
    functions=(Function(sample, lambda tensor, dtype: (tensor(8, 128, dtype=dtype),)),),
    operators=(Operator("sample", _fake, first_option=3),),
    checks=_checks,
    order=25,
)
