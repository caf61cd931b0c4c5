# SPDX-License-Identifier: MIT
"""The trials of quantize's kernels."""

from __future__ import annotations

from functools import partial

import torch

from .._call import call
from ..activation import GATES
from ..quantization import QuantSpec, gated_activation_quantize, quantize
from ..routing import expert_sort
from ..scaled_gemm import banded_shape, shuffled
from ._record import DTYPES, Kernel, Trial
from ._tensors import draw, ends_of

# Each trial runs every way in which a kernel computes codes and scales.
_SPECS = {
    "row": (
        QuantSpec("fp8"),
        QuantSpec("bf8"),
        QuantSpec("int8"),
        QuantSpec("int8", rounding="truncate", floor=2.0),
        QuantSpec("fp8", scale_rule="round_up"),
        QuantSpec("fp6"),
        QuantSpec("bf6"),
    ),
    "group": (
        QuantSpec("fp8", 128),
        QuantSpec("int8", 64, layout="columns"),
        QuantSpec("mxfp4"),
        QuantSpec("mxfp4", scale_rule="round_up", rounding="away", layout="shuffled"),
        QuantSpec("mxfp6", layout="shuffled"),
        QuantSpec("mxbf6"),
    ),
    "block": (QuantSpec("fp8", (128, 128)), QuantSpec("int8", (128, 128), rounding="truncate")),
    "tensor": (
        QuantSpec("fp8", "tensor"),
        QuantSpec("int8", "tensor", scale_bound=1.5),
        QuantSpec("fp8", "tensor", scale_rule="round_up"),
        QuantSpec("fp6", "tensor"),
    ),
}


# Columns that the largest rows of variants.def hold.
_MOST_HELD = 8192


def trial(kernel: Kernel) -> Trial:
    if kernel.kind in ("banded_group", "bands"):
        return _trial_of_bands(kernel)
    if kernel.kind in ("token_row", "token_group"):
        return _trial_of_tokens(kernel)
    if kernel.kind == "gated_rows":
        return _trial_of_gated_rows(kernel)
    dtype = DTYPES[kernel.row["element"]]
    rows, columns = 9, 518
    gated = kernel.row.get("gated") == "true"
    if kernel.kind == "row":  # more than its registers hold, where no larger row would be chosen
        capacity = 512 * int(kernel.row["waves"]) * int(kernel.row["chunks"])
        columns = capacity + (582 if capacity == _MOST_HELD else -6)
    rows = {"block": 131, "maximum": 26}.get(kernel.kind, rows)
    specs = _SPECS["tensor" if kernel.kind == "maximum" else kernel.kind]

    def run():
        def values(of: int) -> torch.Tensor:
            return draw(rows, 2 * of if gated else of, dtype=dtype).detach()

        x, whole = values(columns), values(-(-columns // 32) * 32)
        one = torch.tensor(0.01) if gated and kernel.kind == "tensor" else None
        function = partial(gated_activation_quantize, scale=one) if gated else quantize
        if kernel.kind == "maximum":  # in each workgroup: columns that fill no vector, and the first one
            x[range(1, 26, 4), range(-6, 1)] = 9
        results = [value for spec in specs for value in function(whole if "6" in spec.format else x, spec)]
        if gated:
            results += [function(x, specs[0], kind)[0] for kind in GATES]
            results.append(function(x, specs[0], bias=draw(2 * columns, dtype=dtype).detach())[0])
        elif kernel.kind in ("row", "group"):
            smooth, ids = draw(3, columns, dtype=torch.float32).detach(), torch.arange(-1, rows - 1) % 4
            results += quantize(x, specs[0], smooth=smooth, smooth_ids=ids)
        if kernel.kind == "tensor" and not gated:
            results.append(quantize(x, specs[0], torch.tensor(0.01))[0])
        return [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in results]

    title = "gated_activation_quantize" if gated else "quantize"
    return Trial(f"{title} {rows}x{columns} {kernel.kind} {kernel.row['element']}", run, workgroups=7)


def _trial_of_bands(kernel: Kernel) -> Trial:
    """Groups that begin inside bands of x, on one, and empty ones; columns that need padding."""
    sizes, columns = (5, 0, 64, 40), 544
    rows, spec = sum(sizes) + 3, QuantSpec("mxfp4", layout="shuffled")

    def run():
        offs = ends_of(sizes)
        if kernel.kind == "bands":
            results = (call("scales_in_bands", torch.arange(rows * 17).to(torch.uint8).view(rows, 17), offs),)
        else:
            gated = kernel.row["gated"] == "true"
            x = draw(rows, columns * (1 + gated), dtype=DTYPES[kernel.row["element"]]).detach()
            results = (gated_activation_quantize if gated else quantize)(x, spec, offs=offs)
        return [*results[:-1], torch.where(_in_groups(sizes, rows), results[-1], 0)]

    return Trial(f"quantize {rows}x{columns} {kernel.row['name']}", run)


def _trial_of_tokens(kernel: Kernel) -> Trial:
    """Choices of no expert, columns that pad and, in bands, groups that begin inside them. So many rows that the largest element of one is
    among any of a lane's columns."""
    tokens, choices, experts, columns = 9, 3, 4, 544
    if kernel.kind == "token_row":
        tokens = 60
        columns = 512 * int(kernel.row["waves"]) * int(kernel.row["chunks"]) - 32
    dtype = DTYPES[kernel.row["element"]]

    def run():
        x = draw(tokens, columns, dtype=dtype).detach()
        ids = (torch.arange(tokens * choices) * 3 % (experts + 1)).view(tokens, choices)
        order = expert_sort(ids, None, experts, layout="ragged")
        entries = {"entries": order.entries, "choices": choices, "places": order.places}
        specs = _SPECS["row"] if kernel.kind == "token_row" else _SPECS["group"]
        results = [
            value for spec in specs if spec.layout != "shuffled" for value in quantize(x, spec, **entries)
        ]
        if kernel.kind == "token_group":
            spec, offs = QuantSpec("mxfp4", layout="shuffled"), order.offsets[1:]
            codes, scales = quantize(x, spec, offs=offs, **entries)
            sizes = tuple(order.offsets.diff().tolist())
            results += [codes, torch.where(_in_groups(sizes, tokens * choices), scales, 0)]
        results += quantize(x, specs[0], **entries, codes_of_tokens=True)
        return [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in results]

    return Trial(f"quantize {tokens}x{columns} {kernel.row['name']}", run, workgroups=tokens)


def _trial_of_gated_rows(kernel: Kernel) -> Trial:
    """Lanes without columns, and workgroups with two rows and with one."""
    waves = int(kernel.row["waves"])
    columns, dtype = 256 * waves + 8, DTYPES[kernel.row["element"]]
    many = 16384 // waves + 5

    def run():
        few = draw(9, 2 * columns, dtype=dtype).detach()
        specs = [spec for spec in _SPECS["row"] if spec.rounding == "even" and "6" not in spec.format]
        results = [value for spec in specs for value in gated_activation_quantize(few, spec)]
        results += [gated_activation_quantize(few, specs[0], kind, limit=1.5)[0] for kind in GATES]
        results += gated_activation_quantize(few.repeat(-(-many // 9), 1)[:many], specs[0])
        return [value.view(torch.uint8) if value.dtype.itemsize == 1 else value for value in results]

    return Trial(f"gated_activation_quantize {many}x{columns} {kernel.row['name']}", run)


def _in_groups(sizes: tuple[int, ...], rows: int) -> torch.Tensor:
    """Where bands have rows: the others are not written."""
    there = torch.zeros(banded_shape(rows, len(sizes), 17), dtype=torch.uint8)
    begins = [0, *ends_of(sizes).tolist()]
    for group, (begin, end) in enumerate(zip(begins, [*begins[1:], rows], strict=True)):
        place = 32 * (begin // 32 + group)
        there[place : place + end - begin] = 1
    return shuffled(there) == 1
