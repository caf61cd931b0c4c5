# SPDX-License-Identifier: MIT
"""Checks of grouped matrix products: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

from functools import partial

import torch

from .._backend import partitioned
from .._gated_experts import gated_groups
from ..activation import GATES
from ..grouped import MOST_GROUPS, grouped_matmul
from . import _scaled_grouped_checks as scaled_checks
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Trial
from ._tensors import draw, ends_of, even_ends, long_enough, with_gaps


def in_groups(a, b, offs):
    """The same as consecutive PyTorch products; what is past the last group is zero."""
    if a.dim() == 3:
        return in_groups(b.mT, a.mT, offs).mT
    ends = offs.tolist()
    ranges = list(zip([0, *ends], ends, strict=False))
    if b.dim() == 2:
        return torch.stack([a[:, begin:end] @ b[begin:end] for begin, end in ranges])
    parts = [a[begin:end] @ b[group] for group, (begin, end) in enumerate(ranges)]
    return torch.cat([*parts, a.new_zeros(a.shape[0] - ends[-1], b.shape[-1])])


# Sizes of groups, n and k at which the plan for a single XCD selects a tile, on both targets; three more rows follow the last group. Loops have
# several iterations, and K a tail of more than half a tile.
_SIZES = {
    (256, 256): ((1500, 0, 1497), 512, 360),
    (128, 128): ((100, 0, 110), 1024, 616),
    (64, 64): ((30, 28) * 3 + (58, 0), 256, 1000),
    (32, 64): ((28, 20) * 15 + (48, 0), 264, 1000),
    (16, 64): ((5, 0, 20), 512, 1960),
    (16, 128): ((5, 0, 20), 1024, 1960),
}
_UNALIGNED = ((20, 0, 45), 67, 621)
# For gates: columns are those that are multiplied.
_GATED_SIZES = {
    256: ((1500, 0, 1497), 512, 1000),
    128: ((900, 700), 256, 1000),
    64: ((64, 0, 40, 64), 512, 1960),
    16: ((5, 0, 20), 512, 1960),
}
_GATED_UNALIGNED = ((20, 0, 45), 66, 621)
# For groups of K: the same with sizes of M, N and of the groups.
_SIZES_OF_K = {(256, 256): (256, 2304, (1000, 0, 810)), (128, 128): (128, 1024, (700, 0, 561))}
_UNALIGNED_OF_K = (67, 35, (1301, 0, 645))


@partitioned("CPX")
def _rows(sizes, n, k, orientation, dtype, behind=3):
    with torch.no_grad():
        a = draw(sum(sizes) + behind, k, dtype=dtype)
        b = (
            draw(len(sizes), n, k, dtype=dtype).mT
            if orientation[1] == "t"
            else draw(len(sizes), k, n, dtype=dtype)
        )
        return [grouped_matmul(a, b, ends_of(sizes))]


@partitioned("CPX")
def _of_k(m, n, sizes, dtype, behind=3):
    with torch.no_grad():
        k = sum(sizes) + behind
        return [grouped_matmul(draw(k, m, dtype=dtype).mT, draw(k, n, dtype=dtype), ends_of(sizes))]


@partitioned("CPX")
def _gated(sizes, n, k, dtype, every=False, behind=3):
    with torch.no_grad():
        rows, w = draw(sum(sizes) + behind, k, dtype=dtype), draw(len(sizes), n, k, dtype=dtype) * k**-0.5
        bias, ends = draw(len(sizes), n, dtype=dtype), ends_of(sizes)
        found = []
        if k % 2 == 0:  # first: only the first launch of a kernel is recorded
            entries = torch.arange(len(rows) - 1, -1, -1, dtype=torch.int32)
            found.append(gated_groups(rows[::2], w, ends, bias, GATES[0], False, None, entries, 2))
        found += [gated_groups(rows, w, ends, bias, kind, False, None) for kind in GATES[: 6 if every else 1]]
        if every:
            found.append(gated_groups(rows, w, ends, bias, "swiglu", True, 2.0))
        return found


def trial(kernel: Kernel) -> Trial:
    if kernel.kind == "scaled_grouped":
        return scaled_checks.trial(kernel)
    row = kernel.row
    if kernel.kind == "gated_grouped":
        aligned = row["row_start"] == "vector"
        shape = _GATED_SIZES[int(row["tile_m"])] if aligned else _GATED_UNALIGNED
        return Trial(
            f"gated groups {shape} {row['a']}",
            partial(_gated, *shape, DTYPES[row["a"]]),
            workgroups=3,
            skip=True,
        )
    tile, name, orientation = (int(row["tile_m"]), int(row["tile_n"])), row["a"], row["orientation"]
    aligned = row["row_start"] == "vector"
    if orientation == "tn":
        m, n, sizes = _SIZES_OF_K[tile] if aligned else _UNALIGNED_OF_K
        run = partial(_of_k, m, n, sizes, DTYPES[name])
    else:
        sizes, n, k = _SIZES[tile] if aligned else _UNALIGNED
        run = partial(_rows, sizes, n, k, orientation, DTYPES[name])
    title = f"grouped_matmul {orientation} {'x'.join(map(str, tile))}{'' if aligned else ' unaligned'} {name}"
    return Trial(title, run, workgroups=3, skip=True)


def _representative():
    """With a K whose loop dominates the rest of a workgroup's tiles."""
    for name in ("bf16", "f16"):
        for orientation in ("nn", "nt"):
            for sizes, n, k in (*_SIZES.values(), _UNALIGNED):
                yield Trial(f"grouped_matmul {sizes} {orientation} {name}",
                            partial(_rows, sizes, n, long_enough(k), orientation, DTYPES[name]))  # fmt: skip
        for m, n, sizes in (*_SIZES_OF_K.values(), _UNALIGNED_OF_K):
            sizes = (sizes[0] + 1024, *sizes[1:])
            yield Trial(f"grouped_matmul of K {sizes} {name}", partial(_of_k, m, n, sizes, DTYPES[name]))
        for sizes, n, k in (*_GATED_SIZES.values(), _GATED_UNALIGNED):
            shape = sizes, n, long_enough(k)
            title = f"gated groups {shape} {name}"
            yield Trial(title, partial(_gated, *shape, DTYPES[name], every=sizes is _GATED_UNALIGNED[0]))
    yield from scaled_checks.representative()


def _ends_of_rows(a) -> torch.Tensor:
    """Groups of a third, nothing, and half of them."""
    rows = a.shape[-2]
    return ends_of([rows // 3, 0, rows // 2]).to(a.device)


def _ours(a, b):
    return grouped_matmul(a, b, _ends_of_rows(a))


def _theirs(a, b):
    return in_groups(a, b, _ends_of_rows(a))


def _magnitude(a, b) -> float:
    return (a.abs() @ b.abs()).max().item()


def _example(title, m, n, k, gradients=False, **options):
    inputs = {"a": (m, k), "b": (3, k, n)}
    return Example(
        title, inputs, _ours, _theirs, gradients=gradients, magnitude=_magnitude, shape=(m, n, k), **options
    )


def _parity(case, generator) -> ParityProblem:
    dtype, (m, n, k) = DTYPES[case["dtype"]], case["shape"]
    grouped = {"rows": m, "columns": n, "inner": k}[case["kind"]]
    ends = torch.tensor(case["shares"]).cumsum(0) * grouped
    groups, offs = len(ends), ends.round().clamp(max=grouped).to(torch.int32)

    def values(*shape):
        if case["values"] == "integers":
            return torch.randint(-4, 5, shape, generator=generator).to(dtype)
        return torch.randn(shape, generator=generator).to(dtype)

    def stored(matrix, transposed):
        matrix = matrix.mT if transposed else matrix
        matrix = with_gaps(matrix.contiguous(), 0, case["gap"])
        return matrix.mT if transposed else matrix

    a_transposed, b_transposed = (letter == "t" for letter in case["layout"])
    a = values(groups, m, k) if case["kind"] == "columns" else values(m, k)
    b = values(groups, k, n) if case["kind"] == "rows" else values(k, n)
    return ParityProblem(
        inputs={"a": stored(a, a_transposed), "b": stored(b, b_transposed)},
        ours=lambda a, b: grouped_matmul(a, b, offs),
        theirs=lambda a, b: in_groups(a, b, offs),
        baseline="PyTorch's products, group by group, like its own grouped_mm on a CPU",
        magnitude=(a.double().abs() @ b.double().abs()).max().item(),
    )


def _calls(tensor):
    ends = tensor(3, dtype=torch.int32)
    a, b = tensor(32, 64), tensor(3, 64, 96)
    return [
        ("groups along K", "grouped_matmul", (tensor(64, 32).mT, tensor(64, 96), ends), {}),
        ("groups along N", "grouped_matmul", (tensor(3, 32, 64), tensor(64, 96), ends), {}),
        ("one matrix per group", "grouped_matmul", (tensor(3, 32, 64), b), {}),
        ("one bias per group", "grouped_matmul", (a, b, ends), {"bias": tensor(3, 96)}),
        ("int64 offs", "grouped_matmul", (a, b, tensor(3, dtype=torch.int64)), {}),
        ("float32", "grouped_matmul", (a.float(), b.float(), ends), {}),
        *scaled_checks.calls(tensor),
    ]


def _sizes(rows: Rows) -> str:
    tiles = sorted({
        (int(row["tile_m"]), int(row["tile_n"])) for of in rows.values() for row in of if "grouped" in row["kind"]
    }, reverse=True)  # fmt: skip
    named = ", ".join("x".join(map(str, tile)) for tile in tiles)
    return (
        f"Grouped GEMM: any M, N, K and group sizes, up to {MOST_GROUPS} groups of rows. With scales, only groups of rows: fp8, "
        f"bfloat16 with MXFP4, and on gfx950 MXFP4, MXFP8 and fp8 with MXFP4. Tiles (M x N): {named}."
    )


def _rows_of(e) -> int:
    """Every token is routed to k of G experts."""
    return e["tokens"] * e["k"]


def _touched(e) -> int:
    return min(e["G"], _rows_of(e))


def _operands(problem, device):
    e = problem.extents
    rows, groups = _rows_of(e), e["G"]
    a, b = problem.tensor(device, rows, e["K"]), problem.tensor(device, groups, e["N"], e["K"])
    return a, b.mT, even_ends(rows, groups, device)


def _call(problem, device):
    operands = _operands(problem, device)
    return lambda: grouped_matmul(*operands)


def _call_torch(problem):
    operands = _operands(problem, "cuda")
    return lambda: torch.nn.functional.grouped_mm(operands[0], operands[1], offs=operands[2])


def _exercise(draw):
    a, b, ends = draw(20, 64), draw(2, 64, 48, seed=1), ends_of([9, 7])
    gated = gated_groups(a, b.mT.contiguous(), ends, None, GATES[0], False, None)
    return [grouped_matmul(a, b, ends), gated, scaled_checks.as_codes(a.detach(), b.detach(), ends)]


CHECKS = Checks(
    trial=trial,
    examples=(
        _example("groups of rows", 700, 512, 512),
        _example("integers", 100, 96, 130, integers=True),
        _example("trained", 384, 256, 320, gradients=True),
        Example(
            "fp8 with a scale for each row",
            {"a": (100, 130), "b": (3, 130, 96)},
            lambda a, b: scaled_checks.as_codes(a, b, _ends_of_rows(a)),
            _theirs,
            gradients=False,
            integers=True,
            shape=(100, 96, 130),
        ),
    ),
    parity=(
        Parity(
            "grouped_matmul",
            {
                "kind": ("rows", "inner", "columns"),
                "dtype": ("bf16", "f16"),
                "shape": ((96, 72, 160), (67, 257, 17), (300, 136, 264), (1, 8, 40), (40, 1, 35)),
                "shares": ((0.3, 0.0, 0.4), (1.0,), (0.0, 1.0, 0.0), (0.1, 0.2, 0.1, 0.3, 0.3)),
                "layout": ("nt", "nn", "tn", "tt"),
                "values": ("normal", "integers"),
                "gap": (0, 3, 8),
            },
            _parity,
        ),
        "parity_scaled_grouped:SCALED_GROUPED_MATMUL",
        "parity_scaled_grouped:SCALED_GROUPED_MATMUL_FEW_BITS",
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "grouped_matmul",
            example="1024x8x2x28672x4096",
            extents=("tokens", "G", "k", "N", "K"),
            shapes="1024x8x2x28672x4096,1024x128x8x3072x4096",
            heading="Grouped GEMM",
            flops=lambda e: 2.0 * _rows_of(e) * e["N"] * e["K"],
            bytes=lambda e: 2.0 * (_rows_of(e) * (e["K"] + e["N"]) + _touched(e) * e["K"] * e["N"]),
            call=_call,
            torch=_call_torch,
        ),
        *scaled_checks.BENCHMARKS,
    ),
    representative=_representative,
    every_kernel=_representative,
    exercise=_exercise,
)
