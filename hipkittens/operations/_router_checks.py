# SPDX-License-Identifier: MIT
"""Checks of router: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

from functools import partial

import torch

from ..routing import MOST_EXPERTS, MOST_GROUPS, SCORES, choice_in_torch, router, weights_in_torch
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._tables import TOKEN_PEERS, TOKEN_SIZES
from ._tensors import draw, with_gaps


def _in_torch(logits, k, score="softmax", bias=None, groups=1, topk_groups=1, renormalize=False, scale=1.0):
    """Weights in float32, or in float64 for such logits."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    # Experts are chosen in float32: float64 would distinguish scores that float32 does not.
    ids = choice_in_torch(logits.detach().float(), bias, k, SCORES.index(score), groups, topk_groups)
    return weights_in_torch(wide, ids, SCORES.index(score), renormalize, scale)


def _experts(row) -> int:
    return 8 * int(row["lanes"]) * int(row["chunks"])


def _trial(kernel: Kernel) -> Trial:
    """Experts that do not fill the last of a lane's, in many groups, and all experts of half of them: nearly every logit matters for some
    token.
    """
    experts = _experts(kernel.row) - 24
    groups = max(each for each in range(1, MOST_GROUPS + 1) if experts % each == 0)
    options = {"groups": groups, "topk_groups": groups // 2, "renormalize": True, "scale": 2.5, "shared": 1}
    k = experts // groups * (groups // 2)

    def run():
        logits = draw(5, experts, dtype=torch.float32)
        weights, ids = router(logits, k, score="sigmoid", **options)
        return weights, ids, *torch.autograd.grad(weights.square().sum(), logits)

    return Trial(f"router 5x{experts} k {k}", run, workgroups=2)


_EXAMPLES = {
    "router": {"k": 8},
    "router, renormalised": {"k": 8, "renormalize": True},
    "router, sigmoid": {"k": 8, "score": "sigmoid", "renormalize": True, "scale": 2.5},
}


def _parity(case, generator) -> ParityProblem:
    logits = torch.randn(case["tokens"], case["experts"], generator=generator) * case["magnitude"]
    logits = with_gaps(logits.to(DTYPES[case["dtype"]]), *case["gaps"])
    groups = case["groups"] if case["experts"] % case["groups"] == 0 else 1
    chosen = (groups + 1) // 2
    options = {
        "k": min(case["k"], case["experts"] // groups * chosen), "score": case["score"], "groups": groups,
        "topk_groups": chosen, "renormalize": case["renormalize"], "scale": 2.5,
    }  # fmt: skip
    # Steps wide enough that float32's rounding of a score does not decide.
    options["bias"] = torch.arange(case["experts"]).flip(0) * 2.0 if case["bias"] else None
    return ParityProblem(
        inputs={"logits": logits},
        ours=lambda logits: router(logits, **options)[0],
        theirs=partial(_in_torch, **options),
        baseline="PyTorch's operations in float32",
        magnitude=2.5,
        outputs=("weights",),
    )


def _call(problem, device):
    e = problem.extents
    generator = torch.Generator(device).manual_seed(0)
    logits = torch.randn(e["tokens"], e["experts"], device=device, generator=generator).bfloat16()
    return lambda: router(logits, e["k"], renormalize=True)


def _call_torch(problem):
    logits, k = problem.tensor("cuda", problem["tokens"], problem["experts"]), problem["k"]
    return lambda: logits.float().topk(k)[0].softmax(-1)


def refuse_experts(extents):
    """What is wrong with the experts and k of a benchmark's shape, or None."""
    if extents["experts"] > MOST_EXPERTS:
        return f"{extents['experts']} experts; allowed: up to {MOST_EXPERTS}"
    return (
        f"k is {extents['k']}; there are {extents['experts']} experts"
        if extents["k"] > extents["experts"]
        else None
    )


def _sizes(rows: Rows) -> str:
    most = max(_experts(row) for of_target in rows.values() for row in of_target if row["kind"] == "route")
    return f"Routers: 1 to {most} experts in up to {MOST_GROUPS} groups, any k."


def _calls(tensor):
    logits, bias = tensor(4, 256), tensor(256, dtype=torch.float32)
    deepseek = {
        "score": "sigmoid",
        "bias": bias,
        "groups": 8,
        "topk_groups": 4,
        "renormalize": True,
        "scale": 2.5,
    }
    return [
        ("DeepSeek-V3", "router", (logits, 8), deepseek),
        ("512 experts, top 10", "router", (tensor(4, 512), 10), {"renormalize": True}),
        ("sqrtsoftplus, a shared expert", "router", (logits, 6), {"score": "sqrtsoftplus", "shared": 1}),
        ("more experts than fit in a wave", "router", (tensor(4, 2048), 8), {}),
    ]


CHECKS = Checks(
    trial=_trial,
    examples=tuple(
        Example(
            title,
            {"logits": (32, 128)},
            lambda logits, options=options: router(logits, **options)[0],
            partial(_in_torch, **options),
            magnitude=lambda logits: 2.5,
        )
        for title, options in _EXAMPLES.items()
    ),
    parity=(
        Parity(
            "router",
            {
                "dtype": tuple(DTYPES),
                "experts": (128, 1, 8, 60, 160, 256, 512, 1500),
                "tokens": (5, 1, 9),
                "k": (8, 1, 2, 10, 70),
                "score": SCORES,
                "bias": (False, True),
                "groups": (1, 4, 8),
                "renormalize": (False, True),
                "magnitude": (1.0, 8.0),
                "gaps": ((0, 0), (2, 2), (1, 0)),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "router",
            example="8192x256x8",
            extents=("tokens", "experts", "k"),
            shapes="64x128x8,8192x128x8,8192x256x8,8192x512x10",
            heading="Mixture-of-experts router",
            bytes=lambda problem: problem["tokens"] * (2.0 * problem["experts"] + 8.0 * problem["k"]),
            call=_call,
            torch=_call_torch,
            refuse=refuse_experts,
            tables=(Table("Router, 256 experts, top 8", "{N}x256x8", TOKEN_SIZES, TOKEN_PEERS),),
        ),
    ),
)
