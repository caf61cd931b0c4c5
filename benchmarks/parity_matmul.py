# SPDX-License-Identifier: MIT
"""The cases of matmul, linear and addmm_: products, and every gradient of the first two."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from parity_operation import DTYPES, Operation, Result, dense_leaf, leaf, simulated, with_gaps

import hipkittens

# m, n, k, leading dimensions of a and of b: single rows and columns, primes, multiples of a tile and one off them, long and short k
SHAPES = (
    (64, 64, 72, ""), (1, 1, 1, ""), (1, 1, 4099, ""), (1, 128, 64, ""), (128, 1, 64, ""), (2, 3, 5, ""),
    (7, 13, 17, ""), (16, 16, 16, ""), (31, 33, 63, ""), (32, 32, 32, ""), (63, 65, 31, ""), (64, 64, 64, ""),
    (65, 63, 129, ""), (96, 160, 40, ""), (127, 129, 65, ""), (128, 128, 128, ""), (129, 127, 130, ""),
    (1, 512, 512, ""), (5, 300, 1000, ""), (256, 256, 64, ""), (255, 257, 100, ""), (256, 128, 520, ""),
    (17, 1024, 96, ""), (192, 320, 256, ""), (40, 40, 2048, ""), (300, 200, 7, ""), (257, 130, 1, ""),
    (384, 96, 333, ""), (33, 40, 24, "3|3"), (16, 48, 65, "2,3|3"), (64, 64, 64, "4|1"), (9, 70, 31, "2,2|2,2"),
    (5, 17, 40, "2,3|"), (24, 8, 16, "|3"),
)  # fmt: skip
# integers: every product and sum is exact in float32. mean: sums far from zero.
VALUES = ("normal", "integers", "mean")


def _draw_shape(choose):
    return *(int(2 ** choose.uniform(0, 9)) for _ in range(3)), choose.choice(("", "", "2|2", "3|", "2,2|2"))


def _values(generator: torch.Generator, kind: str, shape, dtype: torch.dtype) -> torch.Tensor:
    if kind == "integers":
        return torch.randint(-4, 5, shape, generator=generator).to(dtype)
    return (torch.randn(shape, generator=generator) + (kind == "mean")).to(dtype)


def _matrix(generator, kind, batch, rows, columns, transposed, gap, dtype) -> torch.Tensor:
    shape = (*batch, columns, rows) if transposed else (*batch, rows, columns)
    value = with_gaps(_values(generator, kind, shape, dtype), 0, gap)
    return value.mT if transposed else value


OWN = "PyTorch's own product in the inputs' dtype"
EXPANDED = "PyTorch's own products in the inputs' dtype, batch by batch"
IN_PARTS = "PyTorch's float32 products, 32 of K at a time"


def _compare(
    target, exact, ours, theirs, inputs, grad, out_dtype, names, magnitudes, out=None, theirs_name=OWN
) -> list[Result]:
    """Compares ours(*inputs) and its gradients with those of theirs, which is also evaluated in float64.

    `out` replaces the first result of `theirs` if PyTorch has no product of the inputs' dtype with such a result;
    gradients have the inputs' dtype in any case.
    """

    def results(function, make_leaf, dtype):
        leaves = {name: make_leaf(value, dtype) for name, value in inputs.items()}
        out = function(**leaves)
        found = torch.autograd.grad(out, list(leaves.values()), grad.to(dtype or out_dtype).to(out.dtype))
        return [out.detach(), *found]

    # An f32 result shows every rounding of the sum: it needs the arithmetic of the matrix cores, not that of the host (`fast`).
    with simulated(target, "exact" if out_dtype == torch.float32 else None):
        mine = results(ours, leaf, None)
    baseline = results(theirs, dense_leaf, None)
    baseline_names = [theirs_name] * len(mine)
    if out is not None:
        baseline[0], baseline_names[0] = out, IN_PARTS
    reference = results(theirs, dense_leaf, torch.float64)
    return [
        Result(name, value, other.to(value.dtype), exactly, magnitude, baseline_name, to_the_bit)
        for name, value, other, exactly, magnitude, baseline_name, to_the_bit in zip(
            names, mine, baseline, reference, magnitudes, baseline_names, exact, strict=False
        )
    ]


def _run_matmul(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    layout, dtype_name = case["layout"].split("_")
    dtype, (m, n, k, leading) = DTYPES[dtype_name], case["shape"]
    out_dtype = DTYPES[case["out"]] if case["out"] else dtype
    batch_a, batch_b = (
        tuple(int(size) for size in part.split(",") if size) for part in (leading or "|").split("|")
    )
    kind = case["values"]
    a = _matrix(generator, kind, batch_a, m, k, layout[0] == "t", case["gap"], dtype)
    b = _matrix(generator, kind, batch_b, k, n, layout[1] == "t", case["gap"], dtype)
    inputs = {"a": a, "b": b}
    if case["bias"]:
        inputs["bias"] = _values(
            generator, kind, (n,), DTYPES[dtype_name if case["bias"] == "same" else "f32"]
        )
    batch = torch.broadcast_shapes(batch_a, batch_b)
    grad = _values(generator, kind, (*batch, m, n), dtype)

    def ours(a, b, bias=None):
        return hipkittens.matmul(a, b, bias=bias, out_dtype=out_dtype)

    # PyTorch may fold broadcast operands into one product, whose gradient is summed before it is rounded. For batches that both
    # operands have, and in our kernels, it is rounded first.
    broadcast = batch_a != batch or batch_b != batch

    def own(a, b, bias=None):
        if broadcast:
            a, b = a.expand(*batch, m, k), b.expand(*batch, k, n)
        if bias is None:
            return torch.matmul(a, b)
        if a.dim() == b.dim() == 2:
            return torch.addmm(bias.to(a.dtype), a, b)
        return torch.matmul(a, b) + bias

    narrow = out_dtype == dtype and (not case["bias"] or inputs["bias"].dtype == dtype)
    size_a, size_b, size_grad = (value.double().abs() for value in (a, b, grad))
    product = size_a @ size_b
    copies = (max(1, batch.numel() // max(1, torch.Size(part).numel())) for part in (batch_a, batch_b))
    magnitudes = [
        (product + inputs["bias"].double().abs() if case["bias"] else product).max().item(),
        *(
            count * value.max().item()
            for count, value in zip(copies, (size_grad @ size_b.mT, size_a.mT @ size_grad), strict=True)
        ),
        size_grad.sum(tuple(range(grad.dim() - 1))).max().item(),
    ]
    names = ("", "grad_a", "grad_b", "grad_bias")
    # A gradient that is summed over broadcast dimensions is rounded before that sum, both here and in PyTorch.
    exact = [kind == "integers"] * 4
    exact[1] &= batch_a == batch
    exact[2] &= batch_b == batch or not batch_b
    out = None if narrow else _in_parts(**inputs)
    theirs_name = EXPANDED if broadcast else OWN
    return _compare(target, exact, ours, own, inputs, grad, out_dtype, names, magnitudes, out, theirs_name)


def _in_parts(a, b, bias=None):
    """In float32, summed like matrix cores, a few k at a time: for products without a counterpart in PyTorch."""
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    total = torch.zeros(*batch, a.shape[-2], b.shape[-1])
    for first in range(0, a.shape[-1], 32):
        total = total + a[..., first : first + 32].float() @ b[..., first : first + 32, :].float()
    return total if bias is None else total + bias.float()


def _run_addmm(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    layout, dtype_name = case["layout"].split("_")
    (m, n, k, leading), kind = case["shape"], case["values"]
    batch_a, batch_b = (
        tuple(int(size) for size in part.split(",") if size) for part in (leading or "|").split("|")
    )
    batch = torch.broadcast_shapes(batch_a, batch_b)
    dtype = DTYPES[dtype_name]
    a = _matrix(generator, kind, batch_a, m, k, layout[0] == "t", case["gap"], dtype)
    b = _matrix(generator, kind, batch_b, k, n, layout[1] == "t", case["gap"], dtype)
    before = case["before"] * _values(generator, kind, (*batch, m, n), torch.float32)
    sums = with_gaps(before.clone(), 0, case["gap"])
    with simulated(target, "exact"):
        hipkittens.addmm_(sums, a, b)
    return [
        Result(
            "sums",
            sums,
            before + _in_parts(a, b),
            before.double() + a.double() @ b.double(),
            (before.double().abs() + a.double().abs() @ b.double().abs()).max().item(),
            IN_PARTS,
            kind == "integers",
        )
    ]


def _run_linear(target: str, case: dict, seed: int) -> list[Result]:
    generator = torch.Generator().manual_seed(seed)
    dtype, (m, n, k), kind = DTYPES[case["dtype"]], case["shape"], case["values"]
    rows = {"matrix": (m,), "vector": (), "batch": (2, m), "transposed": (m,), "strided": (3, m)}[case["x"]]
    x = _values(generator, kind, (*rows, k), dtype)
    if case["x"] == "transposed":
        x = x.mT.contiguous().mT
    if case["x"] == "strided":
        x = x.transpose(0, 1).contiguous().transpose(0, 1)
    x = with_gaps(x, 0, case["gap"]) if case["x"] != "transposed" else x
    inputs = {"x": x, "weight": _values(generator, kind, (n, k), dtype)}
    if case["bias"]:
        inputs["bias"] = _values(generator, kind, (n,), dtype)
    grad = _values(generator, kind, (*rows, n), dtype)

    size_x, size_grad = (value.double().abs().reshape(-1, value.shape[-1]) for value in (x, grad))
    size_weight = inputs["weight"].double().abs()
    magnitudes = [
        (size_x @ size_weight.mT).max().item()
        + (inputs["bias"].double().abs().max().item() if case["bias"] else 0.0),
        (size_grad @ size_weight).max().item(),
        (size_grad.mT @ size_x).max().item(),
        size_grad.sum(0).max().item(),
    ]
    names, exact = ("y", "grad_x", "grad_weight", "grad_bias"), [kind == "integers"] * 4
    return _compare(
        target,
        exact,
        hipkittens.linear,
        F.linear,
        inputs,
        grad,
        dtype,
        names,
        magnitudes,
    )


MATMUL = Operation(
    "matmul",
    {
        "shape": SHAPES,
        "layout": tuple(
            "_".join(pair) for pair in itertools.product(("nn", "nt", "tn", "tt"), ("bf16", "f16"))
        ),
        "out": ("", "f32", "bf16", "f16"),
        "bias": ("", "same", "f32"),
        "values": VALUES,
        "gap": (0, 3, 8),
    },
    _run_matmul,
    {"shape": _draw_shape, "gap": lambda choose: choose.randint(0, 9)},
)
ADDMM = Operation(
    "addmm_",
    {
        "shape": SHAPES,
        "layout": MATMUL.factors["layout"],
        "before": (1, 0, 64),
        "values": VALUES,
        "gap": (0, 3, 8),
    },
    _run_addmm,
    MATMUL.draws,
)
LINEAR = Operation(
    "linear",
    {
        "shape": tuple(shape for *shape, batch in SHAPES if not batch),
        "dtype": ("bf16", "f16"),
        "bias": (False, True),
        "values": VALUES,
        "gap": (0, 3, 8),
        "x": ("matrix", "vector", "batch", "transposed", "strided"),
    },
    _run_linear,
    {"shape": lambda choose: _draw_shape(choose)[:3], "gap": lambda choose: choose.randint(0, 9)},
)
