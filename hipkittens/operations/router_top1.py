# SPDX-License-Identifier: MIT
"""The record of the router of one expert with its matrix product; the function is in hipkittens/routing.py."""

from __future__ import annotations

import torch

from .. import _backend
from .._call import call
from ..routing import router_top1
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
from ._sharding import rowwise
from ._tables import TOKEN_PEERS, TOKEN_SIZES
from ._tensors import draw, with_gaps


def _fake(x, w, shared):
    weights = x.new_empty((x.shape[0], 1 + shared), dtype=torch.float32)
    return weights, weights.new_empty(weights.shape, dtype=torch.int32), weights.new_empty(x.shape[:1])


def _setup(ctx, inputs, output) -> None:
    x, w, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(x, w, *output)


@_backend.interruptible
def _backward(ctx, grad_weights, _, grad_logits):
    """The derivative with the selection held fixed, as that of a product whose other logits are not used; differentiable again."""
    x, w, weights, ids, logits = ctx.saved_tensors
    slope = weights[:, 0] * (-logits).sigmoid()
    chosen = grad_weights[:, 0] * slope + grad_logits
    grad = chosen.new_zeros(x.shape[0], w.shape[1]).scatter(1, ids[:, :1].long(), chosen[:, None]).to(x.dtype)
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = call("gemm", grad, w.mT, None, x.dtype, False)
    if ctx.needs_input_grad[1]:
        dw = call("gemm", x.mT, grad, None, w.dtype, False)
    return dx, dw, None


def _in_torch(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).max(-1, keepdim=True).values.sigmoid()


# Compute units of one XCD, of the devices that determine their kernels' share: MI300X's.
_MOST_COMPUTE_UNITS = 38


def _trial(kernel: Kernel) -> Trial:
    """Each wave loads twice as many units of features as it has room for and one more, the last of which is partial; experts and the tokens
    of the last workgroup do not fill their tiles. A share of more tokens than the smaller kernels have room for uses the larger one.
    """
    row = kernel.row
    experts, tiles = 12, int(row["token_tiles"])
    features = (2 * int(row["depth"]) + 1) * 16 * 64 + 2
    tokens = (2 if tiles == 1 else 16) * _MOST_COMPUTE_UNITS + 5

    @_backend.partitioned("CPX")
    def run():
        dtype = DTYPES[row["element"]]
        x = draw(tokens, features, dtype=dtype)
        w = draw(features, experts, dtype=dtype)
        if row["experts_together"] == "false":
            w = w.T.contiguous().T
        return list(router_top1(x.detach(), w.detach(), shared=2))

    layout = "experts together" if row["experts_together"] == "true" else "features together"
    return Trial(f"router_top1 {tokens}x{features}x{experts} {row['element']}, {layout}", run, workgroups=2)


def _parity(case, generator) -> ParityProblem:
    dtype = DTYPES[case["dtype"]]
    x = torch.randn(case["tokens"], case["features"], generator=generator).to(dtype)
    w = torch.randn(case["features"], case["experts"], generator=generator) / case["features"] ** 0.5
    return ParityProblem(
        inputs={"x": with_gaps(x, *case["gaps"]), "w": w.to(dtype)},
        ours=lambda x, w: router_top1(x, w, shared=case["shared"])[0][..., :1],
        theirs=_in_torch,
        baseline="PyTorch's product in the inputs' dtype, and sigmoid",
        outputs=("weights",),
    )


def _call(problem, device):
    e = problem.extents
    x = problem.tensor(device, e["tokens"], e["features"])
    w = problem.tensor(device, e["features"], e["experts"])
    return lambda: router_top1(x, w)


def _bytes(problem) -> float:
    e = problem.extents
    return 2.0 * e["features"] * (e["tokens"] + e["experts"]) + 8.0 * e["tokens"]


def _checks() -> Checks:
    return Checks(
        trial=_trial,
        examples=(
            Example(
                "router_top1", {"x": (32, 256), "w": (256, 16)}, lambda x, w: router_top1(x, w)[0], _in_torch
            ),
        ),
        parity=(
            Parity(
                "router_top1",
                {
                    "dtype": tuple(name for name, dtype in DTYPES.items() if dtype.itemsize == 2),
                    "tokens": (5, 1, 17, 255),
                    "features": (256, 1, 17, 130, 2048),
                    "experts": (16, 1, 2, 60, 128),
                    "shared": (0, 1),
                    "gaps": ((0, 0), (2, 2), (1, 0)),
                },
                _parity,
            ),
        ),
        calls=lambda tensor: [
            ("Llama 4, a shared expert", "router_top1", (tensor(4, 64), tensor(64, 16)), {"shared": 1}),
            ("more experts than fit in a wave", "router_top1", (tensor(4, 64), tensor(64, 2048)), {}),
        ],
        benchmarks=(
            Benchmark(
                "router_top1",
                example="8192x5120x128",
                extents=("tokens", "features", "experts"),
                shapes="64x5120x16,8192x5120x16,8192x5120x128",
                heading="Top-1 router, including its GEMM",
                bytes=_bytes,
                call=_call,
                tables=(
                    Table(
                        "Top-1 router, 16 experts, 5120 features",
                        "{N}x5120x16",
                        TOKEN_SIZES,
                        TOKEN_PEERS,
                    ),
                ),
            ),
        ),
    )


OPERATION = Operation(
    name="router_top1",
    folder="router",
    kinds=("top1",),
    functions=(
        Function(
            router_top1, lambda tensor, dtype: (tensor(8, 64, dtype=dtype), tensor(64, 16, dtype=dtype))
        ),
    ),
    operators=(
        Operator(
            "router_top1",
            _fake,
            _backward,
            _setup,
            lambda x, w, shared, out_shape=None: 2 * x[0] * x[1] * w[1],
            sharding=rowwise(1, 3),
            first_option=2,
        ),
    ),
    checks=_checks,
    uses=("gemm", "router"),
)
