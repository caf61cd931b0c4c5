# SPDX-License-Identifier: MIT
"""Checks of feed-forward blocks: a problem for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .._backend import partitioned
from ..activation import GATES, gated_in_torch, in_torch
from ..feed_forward import feed_forward, gated_linear
from ..gemm import ACTIVATIONS_OF_SUMS, linear
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Trial
from ._tensors import draw, long_enough, with_gaps

# m, rows of the weight and k at which the plan for a single XCD selects a tile, on both targets. Loops have several iterations, and K a tail of more than half
# a tile, so that every read of it finds nonzero values.
_SHAPES = {
    (256, 256): (4864, 512, 488),
    (128, 128): (256, 2048, 360),
    (64, 64): (64, 2048, 296),
    (32, 64): (64, 512, 296),
    (16, 128): (16, 4096, 616),
}
_UNALIGNED = (257, 130, 515)
_DEFAULT = GATES[0]


@partitioned("CPX")
def _run(gated: bool, m: int, n: int, k: int, dtype: torch.dtype, every: bool = False) -> list[torch.Tensor]:
    with torch.no_grad():
        x, weight, bias = draw(m, k, dtype=dtype), draw(n, k, dtype=dtype) * k**-0.5, draw(n, dtype=dtype)
        if not gated:
            kinds = ACTIVATIONS_OF_SUMS if every else ACTIVATIONS_OF_SUMS[:1]
            return [linear(x, weight, bias, activation=kind) for kind in kinds]
        results = [gated_linear(x, weight, bias, kind) for kind in (GATES if every else GATES[:1])]
        if every:
            results.append(gated_linear(x, weight, bias, "swiglu", interleaved=True, limit=2.0))
        return results


def _trial(kernel: Kernel) -> Trial:
    row = kernel.row
    tile, gated = (int(row["tile_m"]), int(row["tile_n"])), kernel.kind == "gated"
    shape = _SHAPES[tile] if row["row_start"] == "vector" else _UNALIGNED
    title = f"{'gated_linear' if gated else 'linear, activated'} {'x'.join(map(str, shape))} {row['a']}"
    return Trial(title, partial(_run, gated, *shape, DTYPES[row["a"]]), workgroups=3, skip=True)


def _each_tile(long: bool = False, every: bool = False) -> Iterator[Trial]:
    for name in ("bf16", "f16"):
        for gated in (False, True):
            for tile, (m, n, k) in (*_SHAPES.items(), ((), _UNALIGNED)):
                if tile == ((32, 64) if gated else (16, 128)):
                    continue
                shape = m, n, long_enough(k) if long else k
                title = f"{'gated' if gated else 'activated'} {'x'.join(map(str, shape))} {name}"
                yield Trial(title, partial(_run, gated, *shape, DTYPES[name], every=every and not tile))


def _representative() -> Iterator[Trial]:
    """With a K whose loop dominates the epilogue."""
    return _each_tile(long=True)


def _every_kernel() -> Iterator[Trial]:
    return _each_tile(every=True)


def _whole(x, w_up, w_down, bias=None, *, kind=_DEFAULT, gated=True, interleaved=False):
    """In float32 or float64, with the hidden values rounded to x's dtype."""
    wide = (lambda value: value) if x.dtype == torch.float64 else torch.Tensor.float
    sums = wide(x) @ wide(w_up).mT
    if bias is not None:
        sums = sums + wide(bias)
    if not gated:
        hidden = in_torch(sums, kind)
    elif interleaved:
        hidden = gated_in_torch(sums[..., ::2], kind, other=sums[..., 1::2])
    else:
        hidden = gated_in_torch(sums, kind)
    return (wide(hidden.to(x.dtype)) @ wide(w_down).mT).to(x.dtype)


def _torch_block(x, w_up, w_down, bias=None, *, kind=_DEFAULT, gated=True, interleaved=False):
    """The operations of a program: a GEMM, its gate or activation, a GEMM, each rounded."""
    if x.dtype == torch.float64:
        return _whole(x, w_up, w_down, bias, kind=kind, gated=gated, interleaved=interleaved)
    sums = F.linear(x, w_up, bias)
    if interleaved:
        hidden = gated_in_torch(sums[..., ::2].float(), kind, other=sums[..., 1::2].float())
    else:
        hidden = gated_in_torch(sums.float(), kind) if gated else in_torch(sums.float(), kind)
    return F.linear(hidden.to(x.dtype), w_down)


def _parity(case: dict[str, Any], generator: torch.Generator) -> ParityProblem:
    dtype, (m, inner, k, out) = DTYPES[case["dtype"]], case["shape"]
    gated, interleaved = case["form"] != "no gates", case["form"] == "alternate"
    kind = case["kind"]
    if not gated and kind not in ACTIVATIONS_OF_SUMS:
        kind = _DEFAULT
    rows = inner * 2 if gated else inner

    def values(*shape, scale=1.0):
        return with_gaps((torch.randn(shape, generator=generator) * scale).to(dtype), 0, case["gap"])

    inputs = {
        "x": values(m, k),
        "w_up": values(rows, k, scale=k**-0.5),
        "w_down": values(out, inner, scale=inner**-0.5),
    }
    if case["bias"]:
        inputs["bias"] = torch.randn(rows, generator=generator).to(dtype)
    options = {"kind": kind, "gated": gated, "interleaved": interleaved}

    def ours(x, w_up, w_down, bias=None):
        with torch.set_grad_enabled(case["gradients"]):
            return feed_forward(
                x, w_up, w_down, bias_up=bias, activation=kind, gated=gated, interleaved=interleaved
            )

    if case["gradients"]:
        return ParityProblem(inputs=inputs, ours=ours, theirs=partial(_torch_block, **options))
    return ParityProblem(
        inputs={name: value.detach() for name, value in inputs.items()},
        ours=ours,
        theirs=lambda *tensors: _whole(*map(torch.Tensor.detach, tensors), **options),
        baseline="PyTorch's operations in float32, the gated values and the result rounded once each",
    )


def _calls(tensor):
    x, w_up, w_down = tensor(4, 96), tensor(256, 96), tensor(96, 128)
    return [
        ("gated", "feed_forward", (x, w_up, w_down), {"activation": "gelu_tanh"}),
        (
            "gpt-oss: interleaved gate and up rows, biases",
            "feed_forward",
            (x, w_up, w_down),
            {"activation": "swiglu", "interleaved": True, "bias_up": tensor(256), "bias_down": tensor(96)},
        ),
        ("not gated", "feed_forward", (x, w_down.mT, w_down), {"gated": False, "activation": "relu"}),
        (
            "tanh, not gated",
            "feed_forward",
            (x, w_down.mT, w_down),
            {"gated": False, "activation": "tanh"},
        ),
        ("float32", "feed_forward", (x.float(), w_up.float(), w_down.float()), {}),
    ]


def _magnitude(x, w_up, w_down) -> float:
    return (_whole(x, w_up, w_down).abs()).max().item()


def _exercise(draw):
    x, weight = draw(20, 64), draw(96, 64, seed=5)
    with torch.no_grad():
        found = [gated_linear(x, weight), linear(x, weight, activation="gelu")]
    return [*found, feed_forward(x, weight, draw(32, 48, seed=6))]


def _call(problem, device):
    e = problem.extents
    x, w_up = problem.tensor(device, e["M"], e["K"]), problem.tensor(device, 2 * e["N"], e["K"])
    w_down = problem.tensor(device, e["K"], e["N"])

    def call():
        with torch.no_grad():
            return feed_forward(x, w_up, w_down)

    return call


def _call_torch(problem):
    e = problem.extents
    x, w_up = problem.tensor("cuda", e["M"], e["K"]), problem.tensor("cuda", 2 * e["N"], e["K"])
    w_down = problem.tensor("cuda", e["K"], e["N"])
    return lambda: _torch_block(x, w_up, w_down)


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "feed-forward block, SwiGLU",
            {"x": (64, 256), "w_up": (1024, 256), "w_down": (256, 512)},
            feed_forward,
            _torch_block,
        ),
        Example(
            "gated linear, in one launch",
            {"x": (200, 256), "w_up": (1024, 256), "w_down": (256, 512)},
            torch.no_grad()(feed_forward),
            _whole,
            gradients=False,
        ),
    ),
    parity=(
        Parity(
            "feed_forward",
            {
                "dtype": ("bf16", "f16"),
                "form": ("halves", "alternate", "no gates"),
                "kind": GATES,
                "gradients": (False, True),
                "bias": (False, True),
                "shape": (
                    (64, 96, 64, 40),
                    (1, 128, 256, 64),
                    (2, 17, 40, 8),
                    (17, 255, 33, 17),
                    (257, 64, 160, 255),
                    (300, 257, 515, 33),
                    (1, 1, 1, 1),
                ),
                "gap": (0, 8, 1),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=lambda rows: (
        "Linear layers with an activation or a gate fused into the GEMM: any M, N and K, bfloat16 and float16, with rows of x and of "
        "the weight along K."
    ),
    benchmarks=(
        Benchmark(
            "feed_forward",
            example="4096x14336x4096",
            shapes="4096x14336x4096,16x14336x4096",
            extents=("M", "N", "K"),
            flops=lambda e: 6.0 * e["M"] * e["N"] * e["K"],
            bytes=lambda e: 2.0 * (2 * e["M"] * e["K"] + 2 * e["M"] * e["N"] + 3 * e["N"] * e["K"]),
            call=_call,
            torch=_call_torch,
            heading="Feed-forward blocks",
        ),
    ),
    representative=_representative,
    every_kernel=_every_kernel,
    exercise=_exercise,
)
