# SPDX-License-Identifier: MIT
"""Checks of an indexer's logits: problems for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

import dataclasses

import torch

from ..indexer_logits import SCALE_BYTES, mqa_logits, mqa_logits_paged
from ..quantization import dtype_of
from ._mqa_logits_problems import draw_logits, draw_paged_logits
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Trial


def _dtype(name: str) -> torch.dtype:
    return dtype_of("fp8", torch.device("cpu")) if name == "fp8" else DTYPES[name]


def _trial(kernel: Kernel) -> Trial:
    """Several iterations of a workgroup, the last of which ends inside a wave's keys, and heads that fill no tile, for tokens with separate
    ranges; more heads than LDS has room for.
    """
    row, size = kernel.row, int(kernel.row["head_dim"])

    def run():
        dtype, results = _dtype(row["element"]), []  # 8-bit floats are those of the target that runs
        for heads in (20, 276):
            if row["paged"] == "true":
                problem = draw_paged_logits([300, 0, 33], 2, heads=heads, size=size, page=24, dtype=dtype)
                logits = mqa_logits_paged(*problem.arguments())
            else:
                problem = draw_logits([(0, 300), (70, 90), (3, 3)], 310, heads=heads, size=size, dtype=dtype)
                logits = mqa_logits(*problem.arguments())
            results.append(logits.clamp(min=-1e30))  # -inf where no key is seen
        return results

    pages = " in pages" if row["paged"] == "true" else ""
    return Trial(f"logits of 300 keys{pages} D{size} {row['element']}", run, workgroups=4)


def _ours_of_rows(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    ends = torch.full((len(q),), len(k), dtype=torch.int32, device=q.device)
    return mqa_logits(q, k, None, weights, torch.zeros_like(ends), ends)


def _theirs_of_rows(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return torch.einsum("mhn,mh->mn", torch.einsum("mhd,nd->mhn", q, k).relu(), weights)


def _example_weights(q: torch.Tensor) -> torch.Tensor:
    """The weights of heads in an example, whose inputs have a single dtype: taken from q's first feature."""
    return q[..., 0].float().contiguous()


_FACTORS = {
    "dtype": ("bf16", "f16", "fp8"),
    "size": (128, 64),
    "heads": (64, 1, 3, 17, 32, 150),
    "tokens": (2, 1, 5, 17),
    "keys": (257, 1, 2, 17, 255, 700),
    "ranges": ("causal", "all", "none", "ragged"),
    "scaled": (True, False),
}


def _ranges(case, generator) -> list[tuple[int, int]]:
    tokens, keys = case["tokens"], case["keys"]
    if case["ranges"] == "all":
        return [(0, keys)] * tokens
    if case["ranges"] == "none":
        return [(keys, 0)] * tokens
    if case["ranges"] == "causal":
        return [(0, keys - tokens + 1 + token) for token in range(tokens)]
    drawn = torch.randint(-3, keys + 4, (tokens, 2), generator=generator).sort(1).values
    return [tuple(each) for each in drawn.tolist()]


def _finite(logits: torch.Tensor) -> torch.Tensor:
    """-inf as a number that both results contain."""
    return logits.masked_fill(logits == float("-inf"), 0.0)


def _parity_problem(case, generator) -> ParityProblem:
    options = {"heads": case["heads"], "size": case["size"], "dtype": _dtype(case["dtype"])}
    problem = draw_logits(
        _ranges(case, generator), case["keys"], scaled=case["scaled"], generator=generator, **options
    )
    return _parity(problem, lambda each: mqa_logits(*each.arguments()))


_PAGED_FACTORS = {
    "dtype": ("bf16", "f16", "fp8"),
    "size": (128, 64),
    "heads": (64, 1, 3, 17, 32, 150),
    "tokens": (1, 2, 5),
    "length": (257, 0, 1, 2, 17, 255, 700),
    "page": (64, 1, 16, 5, 256),
    "room": (5, 0, 300, -20),
}


def _paged_problem(case, generator) -> ParityProblem:
    problem = draw_paged_logits(
        [case["length"], 70, 0, case["page"] + 1],
        case["tokens"],
        heads=case["heads"],
        size=case["size"],
        page=case["page"],
        dtype=_dtype(case["dtype"]),
        room=case["room"],
        generator=generator,
    )
    return _parity(problem, lambda each: mqa_logits_paged(*each.arguments()))


def _parity(problem, ours) -> ParityProblem:
    def with_weights(weights):
        return dataclasses.replace(problem, weights=weights.detach())

    def theirs(weights):
        if weights.dtype == torch.float64:
            return _finite(with_weights(weights).in_torch(torch.float64))
        return _finite(with_weights(weights).in_torch(torch.float32, summed=32))

    return ParityProblem(
        inputs={"weights": problem.weights},
        ours=lambda weights: _finite(ours(with_weights(weights))),
        theirs=theirs,
        baseline="PyTorch's float32 products, 32 of K at a time",
        outputs=("logits",),
        summed_exactly=True,
    )


# An ordinary number: 1 of gfx950's codes, a half of gfx942's.
_CODE = 0x38


def _codes(device, *shape):
    return torch.full(shape, _CODE, dtype=torch.uint8, device=device)


def _call_paged(problem, device):
    """Blocks of 64 keys in random order."""
    e = problem.extents
    pages = -(-e["L"] // 64)
    cache = _codes(device, e["B"] * pages, 64 * (e["D"] + SCALE_BYTES))
    cache[:, 64 * e["D"] :].view(torch.float32).fill_(1.0)
    order = torch.randperm(e["B"] * pages, generator=torch.Generator().manual_seed(0)).to(torch.int32)
    table = order.reshape(e["B"], pages).to(device)
    q, weights = (
        _codes(device, e["B"], e["N"], e["H"], e["D"]),
        torch.ones(e["B"] * e["N"], e["H"], device=device),
    )
    lengths = torch.full((e["B"],), e["L"], dtype=torch.int32, device=device)
    cache = cache.view(-1, 64, 1, e["D"] + SCALE_BYTES)
    return lambda: mqa_logits_paged(q, cache, weights, lengths, table, e["L"])


def _call_causal(problem, device):
    """Tokens of one prompt, each of which sees those before it."""
    e = problem.extents
    q, k = _codes(device, e["N"], e["H"], e["D"]), _codes(device, e["L"], e["D"])
    scale, weights = torch.ones(e["L"], device=device), torch.ones(e["N"], e["H"], device=device)
    ends = torch.arange(e["L"] - e["N"] + 1, e["L"] + 1, dtype=torch.int32, device=device)
    return lambda: mqa_logits(q, k, scale, weights, torch.zeros_like(ends), ends)


def _seen(problem) -> float:
    """Keys that tokens of a prompt see."""
    return problem["N"] * (problem["L"] - (problem["N"] - 1) / 2)


def _calls(tensor):
    weights, limits = tensor(3, 64, dtype=torch.float32), tensor(3, dtype=torch.int32)
    scale, table = tensor(96, dtype=torch.float32), tensor(3, 4, dtype=torch.int32)
    q, k = tensor(3, 64, 128, dtype=torch.uint8), tensor(96, 128, dtype=torch.uint8)
    cache = tensor(9, 64, 1, 132, dtype=torch.uint8)
    return [
        ("fp8", "mqa_logits", (q, k, scale, weights, limits, limits), {}),
        ("16 bits, without scales", "mqa_logits", (tensor(3, 64, 64), tensor(96, 64), None, weights, limits, limits), {}),
        ("head size 96", "mqa_logits", (tensor(3, 64, 96), tensor(96, 96), None, weights, limits, limits), {}),
        ("fp8, paged keys", "mqa_logits_paged", (q.unsqueeze(1), cache, weights, limits, table, 200), {}),
        ("16 bits, pages of one key", "mqa_logits_paged",
         (tensor(3, 1, 64, 128), tensor(9, 1, 128), weights, limits, table, 4), {"clean": False}),
    ]  # fmt: skip


def _exercise(draw):
    dtype = draw(1).dtype
    dtype = torch.bfloat16 if dtype == torch.float32 else dtype
    problem = draw_logits([(0, 40), (3, 9)], 40, heads=4, dtype=dtype)
    paged = draw_paged_logits([40, 3], 2, heads=4, dtype=dtype)
    return [
        _finite(mqa_logits(*problem.arguments())),
        _finite(mqa_logits_paged(*paged.arguments())),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "mqa_logits",
            {"q": (5, 64, 128), "k": (300, 128)},
            lambda q, k: _ours_of_rows(q, k, _example_weights(q)),
            lambda q, k: _theirs_of_rows(q, k, q[..., 0]),
            gradients=False,
        ),
    ),
    parity=(
        Parity("mqa_logits", _FACTORS, _parity_problem),
        Parity("mqa_logits_paged", _PAGED_FACTORS, _paged_problem),
    ),
    calls=_calls,
    exercise=_exercise,
    benchmarks=(
        Benchmark(
            "mqa_logits",
            example="H64N4096L4096D128",
            letters="NLHD",
            shapes="H64N4096L4096D128",
            heading="Indexer logits, prefill",
            # 8-bit floats, scales, and logits of all pairs, which are written as -inf where a token sees none.
            bytes=lambda problem: (
                problem["N"] * problem["H"] * (problem["D"] + 4.0)
                + problem["L"] * (problem["D"] + 4.0)
                + 4.0 * problem["N"] * problem["L"]
            ),
            flops=lambda problem: 2.0 * problem["H"] * problem["D"] * _seen(problem),
            bits=8,
            call=_call_causal,
        ),
        Benchmark(
            "mqa_logits_paged",
            example="B64H64N1L65536D128",
            letters="BNLHD",
            # DeepSeek V3.2's indexer.
            shapes="B64H64N1L65536D128",
            heading="Indexer logits, decoding, paged keys",
            bytes=lambda problem: (
                problem["B"] * problem["L"] * (problem["D"] + 4.0 + 4.0 * problem["N"])
                + problem["B"] * problem["N"] * problem["H"] * (problem["D"] + 4.0)
            ),
            flops=lambda problem: (
                2.0 * problem["B"] * problem["N"] * problem["L"] * problem["H"] * problem["D"]
            ),
            bits=8,
            call=_call_paged,
        ),
    ),
)
