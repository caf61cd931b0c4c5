# SPDX-License-Identifier: MIT
"""Checks of expert_sort: a problem for each kernel, an example, benchmarks."""

from __future__ import annotations

import torch

from ..routing import MOST_EXPERTS, expert_sort
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._router_checks import refuse_experts
from ._tables import TOKEN_PEERS, TOKEN_SIZES
from ._tensors import draw


def draw_ids(tokens: int, k: int, experts: int, seed: int = 0) -> torch.Tensor:
    """Random ids, some of them not those of an expert."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-1, experts + 1, (tokens, k), generator=generator, dtype=torch.int32)


def _in_torch(weights, ids, experts, block):
    """Weights by a stable sort, each expert's padded with zeros; then zeros to the capacity."""
    flat, rows = ids.reshape(-1), []
    for expert in range(experts):
        mine = weights.reshape(-1)[flat == expert]
        rows.append(torch.nn.functional.pad(mine, (0, -len(mine) % block)))
    row = torch.cat(rows)
    size = flat.numel() + min(flat.numel(), experts) * (block - 1)
    return torch.nn.functional.pad(row, (0, -(-size // block) * block - len(row)))


def _trial(kernel: Kernel) -> Trial:
    """Waves that all have pairs, the last 64 of one incomplete, in several iterations; experts that fill no block, and more of them than
    threads.
    """
    tokens, experts = (2550, 530) if kernel.kind == "sort_all" else (32800, 530)
    ids = draw_ids(tokens, 2, experts)

    def run():
        weights = draw(tokens, 2, dtype=torch.float32).detach()
        return [*expert_sort(ids, weights, experts, 16), *expert_sort(ids, weights, experts, 16, "packed")]

    return Trial(f"expert_sort {tokens}x2 of {experts}", run, workgroups=10)


def _example(function):
    ids = draw_ids(200, 4, 32)
    return lambda weights: function(weights, ids.to(weights.device))


def _parity(case, generator) -> ParityProblem:
    tokens, k, experts, block = (case[name] for name in ("tokens", "k", "experts", "block"))
    ids = torch.randint(-1, experts + 1, (tokens, k), generator=generator, dtype=torch.int32)
    if case["one_expert"]:
        ids = torch.full_like(ids, experts - 1)
    weights = torch.rand(tokens, k, generator=generator).to(DTYPES[case["dtype"]])

    def theirs(weights):
        return _in_torch(weights, ids, experts, block)

    return ParityProblem(
        inputs={"weights": weights},
        ours=lambda weights: expert_sort(ids, weights, experts, block).weights.to(weights.dtype),
        theirs=theirs,
        baseline="PyTorch's gather by a stable sort of the ids",
    )


EXPERT_BLOCK = 64  # of benchmarks


def drawn_experts(
    tokens: int, experts: int, k: int, device: str, generator: torch.Generator | None = None
) -> torch.Tensor:
    """The experts of each token, drawn uniformly without repetition; the same in each call without a generator."""
    generator = generator or torch.Generator(device).manual_seed(0)
    scores = torch.rand(tokens, experts, device=device, generator=generator)
    return scores.topk(k).indices.to(torch.int32)


def _call(problem, device):
    e = problem.extents
    ids = drawn_experts(e["tokens"], e["experts"], e["k"], device)
    return lambda: expert_sort(ids, None, e["experts"], EXPERT_BLOCK)


def _sizes(rows: Rows) -> str:
    return f"Expert sort: any number of pairs, 1 to {MOST_EXPERTS} experts, block sizes from 1 to 65536."


def _calls(tensor):
    ids, weights = tensor(64, 8, dtype=torch.int32), tensor(64, 8, dtype=torch.float32)
    return [
        ("packed, with weights", "expert_sort", (ids, weights, 256, 32, "packed"), {}),
        ("ragged, without weights", "expert_sort", (ids, None, 256), {"layout": "ragged"}),
        (
            "experts of one device",
            "expert_sort",
            (ids, weights, 32, 64),
            {"expert_map": tensor(256, dtype=torch.int32)},
        ),
        ("no block size", "expert_sort", (ids, weights, 256), {}),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "expert_sort",
            {"weights": (200, 4)},
            _example(lambda weights, ids: expert_sort(ids, weights, 32, 16).weights.to(weights.dtype)),
            _example(lambda weights, ids: _in_torch(weights, ids, 32, 16)),
        ),
    ),
    parity=(
        Parity(
            "expert_sort",
            {
                "dtype": tuple(DTYPES),
                "tokens": (256, 1, 7, 1100, 8200),
                "k": (2, 1, 8),
                "experts": (48, 1, 8, 128, 512),
                "block": (16, 1, 64, 128),
                "one_expert": (False, True),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "expert_sort",
            example="8192x256x8",
            extents=("tokens", "experts", "k"),
            shapes="64x256x8,512x128x8,8192x256x8",
            heading="Expert sort",
            bytes=lambda problem: 12.0 * problem["tokens"] * problem["k"],
            call=_call,
            refuse=refuse_experts,
            chained=True,
            tables=(Table("Expert sort, 256 experts, 8 per token", "{N}x256x8", TOKEN_SIZES, TOKEN_PEERS),),
        ),
    ),
)
