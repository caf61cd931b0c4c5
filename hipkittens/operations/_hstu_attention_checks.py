# SPDX-License-Identifier: MIT
"""Checks of HSTU attention: problems for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

from functools import partial

import torch

from ..hstu import hstu_attention, in_torch
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Trial
from ._tensors import draw


def _ends(lengths) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def _run(dtype: torch.dtype, size: int, backward: bool) -> list[torch.Tensor]:
    """Two sequences with all masks and an empty one, with several tiles and a partial one; two heads that share a key head."""
    # A tile of the forward's rows is the longer one.
    longest = 390 if backward else 900
    lengths = longest, 0, 70
    q = draw(sum(lengths), 2, size, dtype=dtype)
    k, v = (draw(sum(lengths), 1, size, dtype=dtype) for _ in range(2))
    targets = torch.tensor([70, 0, 9], dtype=torch.int32)
    with torch.set_grad_enabled(backward):
        out = hstu_attention(
            q, k, v, _ends(lengths), longest + 10, num_targets=targets, max_attn_len=longest - 90, contextual_seq_len=5
        )  # fmt: skip
    if not backward:
        return [out]
    return [out, *torch.autograd.grad(out, (q, k, v), draw(*out.shape, dtype=dtype).detach())]


def _trial(kernel: Kernel) -> Trial:
    name, size = kernel.row["input"], int(kernel.row["head_dim"])
    backward = kernel.kind == "pointwise_backward"
    title = f"hstu_attention T{460 if backward else 970} H2 Hkv1 D{size} {name}{' backward' * backward}"
    return Trial(title, partial(_run, DTYPES[name], size, backward), workgroups=8)


_EXAMPLE_ENDS = 0, 100, 100, 257


def _options(of) -> dict:
    ends = torch.tensor(_EXAMPLE_ENDS, dtype=torch.int32, device=of.device)
    targets = torch.tensor([7, 0, 20], dtype=torch.int32, device=of.device)
    return {"cu_seqlens": ends, "num_targets": targets, "max_seqlen": 157, "contextual_seq_len": 4}


def _example(q, k, v):
    return hstu_attention(q, k, v, max_attn_len=64, **_options(q))


def _example_in_torch(q, k, v):
    return in_torch(q, k, v, scale=q.shape[2] ** -0.5, causal=True, max_attn_len=64, **_options(q))


def _parity_problem(case, generator) -> ParityProblem:
    lengths, (heads, key_heads) = case["lengths"], case["heads"]
    dtype, size, value_size = DTYPES[case["dtype"]], case["size"], case["value_size"] or case["size"]

    def drawn(count, width):
        return torch.randn(sum(lengths), count, width, generator=generator).to(dtype)

    targets = None
    if case["targets"] is not None:
        shares = [int(length * case["targets"]) for length in lengths]
        targets = torch.tensor(shares, dtype=torch.int32)
    scale = size**-0.5 if case["scale"] is None else case["scale"]
    longest = max(*lengths, 1) + case["slack"]
    options = case["causal"], case["max_attn_len"], case["contextual_seq_len"]

    def ours(q, k, v):
        causal, max_attn_len, contextual_seq_len = options
        return hstu_attention(
            q,
            k,
            v,
            _ends(lengths),
            longest,
            causal=causal,
            scale=case["scale"],
            num_targets=targets,
            max_attn_len=max_attn_len,
            contextual_seq_len=contextual_seq_len,
        )

    def theirs(q, k, v):
        return in_torch(q, k, v, _ends(lengths), targets, longest, scale, *options)

    return ParityProblem(
        inputs={"q": drawn(heads, size), "k": drawn(key_heads, size), "v": drawn(key_heads, value_size)},
        ours=ours,
        theirs=theirs,
        baseline="PyTorch in float32; weights, their gradients and results rounded to the inputs' dtype",
        outputs=("out",),
    )


_PARITY = Parity(
    "hstu_attention",
    {
        "lengths": ((5, 17, 1), (1,), (130, 0, 70), (257,), (2, 255), (64, 128, 64)),
        "heads": ((2, 2), (1, 1), (4, 1)),
        "size": (64, 128, 8, 40, 136, 256),
        "value_size": (None, 64, 128),
        "dtype": ("bf16", "f16"),
        "causal": (True, False),
        "targets": (None, 0.0, 0.25, 1.0),
        "max_attn_len": (0, 1, 20, 100),
        "contextual_seq_len": (0, 1, 6, 70),
        "scale": (None, 1.0, -0.3),
        "slack": (0, 70),
    },
    _parity_problem,
    draws={
        # At least one row: there is nothing to compare without any.
        "lengths": lambda choose: (
            choose.randint(1, 300),
            *(choose.randint(0, 300) for _ in range(choose.randint(0, 3))),
        ),
        "size": lambda choose: 8 * choose.randint(1, 32),
        "max_attn_len": lambda choose: choose.randint(0, 200),
        "contextual_seq_len": lambda choose: choose.randint(0, 100),
        "targets": lambda choose: choose.uniform(0, 1),
    },
)


def _operands(problem, device):
    e = problem.extents
    rows = e["B"] * e["N"]
    q, k, v = (problem.tensor(device, rows, e["H"], e[size]) for size in "DDV")
    ends = torch.arange(e["B"] + 1, dtype=torch.int32, device=device) * e["N"]
    targets = torch.full((e["B"],), e["T"], dtype=torch.int32, device=device) if e["T"] else None
    return q, k, v, ends, targets


def _call(problem, device):
    *tensors, targets = _operands(problem, device)
    n, context = problem.extents["N"], problem.extents["C"]
    return lambda: hstu_attention(
        *tensors, n, causal=problem.causal, num_targets=targets, contextual_seq_len=context
    )


def _call_backward(problem, device):
    e = problem.extents
    q, *tensors = _operands(problem, device)
    grad_out = problem.tensor(device, *q.shape[:2], e["V"])
    options = e["N"], e["D"] ** -0.5, problem.causal, 0, e["C"]
    return lambda: torch.ops.hipkittens.hstu_attention_backward(grad_out, q, *tensors, *options)


def _flops(problem) -> float:
    """2 B H N N (D + V), half of that under a causal mask."""
    e = problem.extents
    return 2.0 * e["B"] * e["H"] * e["N"] ** 2 * (e["D"] + e["V"]) * (0.5 if problem.causal else 1)


def _backward_flops(problem) -> float:
    """Three GEMMs of width D and two of width V."""
    e = problem.extents
    return _flops(problem) / (e["D"] + e["V"]) * (3 * e["D"] + 2 * e["V"])


def _bytes(times: int):
    """`times` q, k, v and out."""
    return lambda problem: (
        4.0 * times * problem["B"] * problem["N"] * problem["H"] * (problem["D"] + problem["V"])
    )


_SYNTAX = {
    "example": "B16H8N1024D128:causal",
    "letters": "BHND",
    "optional": {"V": "D", "T": 0, "C": 0},
    "causal": True,
    "refuse": lambda extents: (
        None
        if extents["T"] <= extents["N"]
        else f"T is {extents['T']}; a sequence of N rows, {extents['N']}, cannot have more targets"
    ),
}


def _calls(tensor):
    rows, ends = tensor(40, 4, 64), tensor(3, dtype=torch.int32)
    targets = tensor(2, dtype=torch.int32)
    usual = rows, rows, rows, ends, 30
    return [
        ("targets and context", "hstu_attention", usual, {"num_targets": targets, "contextual_seq_len": 3}),
        ("the last 16 positions", "hstu_attention", usual, {"max_attn_len": 16}),
        ("fewer key heads", "hstu_attention", (rows, rows[:, :2], rows[:, :2], ends, 30), {}),
        (
            "different numbers of rows of q and k",
            "hstu_attention",
            (rows, rows[:30], rows[:30], ends, 30),
            {},
        ),
        ("int64 targets", "hstu_attention", usual, {"num_targets": targets.long()}),
    ]


def _sizes(rows: Rows) -> str:
    return "HSTU attention: head sizes that are multiples of 8 up to 256, one for q and k and one for v, with all masks and with gradients."


def _exercise(draw):
    q, k, v = draw(20, 4, 32), draw(20, 2, 32, seed=1), draw(20, 2, 32, seed=2)
    ends, targets = (torch.tensor(values, dtype=torch.int32) for values in ([0, 7, 20], [2, 3]))
    return [hstu_attention(q, k, v, ends, 13, num_targets=targets, contextual_seq_len=2)]


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example("hstu attention", dict.fromkeys("qkv", (257, 4, 64)), _example, _example_in_torch),
    ),
    parity=(_PARITY,),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "hstu_attention",
            shapes="B16H8N1024D128:causal",
            flops=_flops,
            bytes=_bytes(1),
            call=_call,
            heading="HSTU attention",
            **_SYNTAX,
        ),
        Benchmark(
            "hstu_attention_backward",
            shapes="B16H8N1024D128:causal",
            flops=_backward_flops,
            bytes=_bytes(2),  # and their gradients
            call=_call_backward,
            heading="HSTU attention backward",
            **_SYNTAX,
        ),
    ),
    exercise=_exercise,
)  # fmt: skip
