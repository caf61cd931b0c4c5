# SPDX-License-Identifier: MIT
"""The section of docs/support.md on head sizes."""

from __future__ import annotations

import itertools

import torch

from .._supported import supported
from ._markdown import table
from ._record import Rows


def _meta(size: int) -> torch.Tensor:
    return torch.empty(1, 32, 4, size, dtype=torch.bfloat16, device="meta")


def section(rows: Rows) -> str:
    """Dedicated kernels, or those of the next larger size."""
    text = "## Attention: head sizes\n\n"
    columns = [(kind, dropout) for kind in ("forward", "backward") for dropout in ("false", "true")]
    cells: dict[int, list[str]] = {}
    for size in range(1, 265):
        answers = {supported("attention", *[_meta(size)] * 3, target=target) for target in rows}
        (answer,) = answers
        if not answer.ok:
            cells[size] = ["refused"] * (len(columns) * 2)
            continue
        cells[size] = []
        for (kind, dropout), name in itertools.product(columns, ("bf16", "f16")):
            owns, schedules = set(), {}
            for target in rows:
                have = [
                    row
                    for row in rows[target]
                    if row["kind"] == kind and row.get("dropout") == dropout and row["input"] == name
                ]
                larger = [int(row["head_dim"]) for row in have if int(row["head_dim"]) >= size]
                if not larger:
                    raise SystemExit(
                        f"attention {kind} {name} {size} {target}: allowed, and no kernel is in the pack"
                    )
                names = {
                    row["schedule"].replace("_", "-")
                    for row in have
                    if "schedule" in row and int(row["head_dim"]) == min(larger)
                }
                schedules[target] = ", ".join(sorted(names))
                owns.add("dedicated" if min(larger) == size else f"through {min(larger)}")
            (own,) = owns  # the targets have the same sizes; otherwise this page needs a table each
            each = dict.fromkeys(schedules.values())
            if own == "dedicated" and len(each) > 1:
                own += f" ({'; '.join(f'{target}: {names}' for target, names in schedules.items())})"
            elif own == "dedicated" and any(each):
                own += f" ({next(iter(each))})"
            cells[size].append(own)
    multiples = [size for size in cells if size % 8 == 0]
    groups = [
        (list(group), value) for value, group in itertools.groupby(multiples, key=lambda size: cells[size])
    ]
    others = {tuple(cells[size]) for size in cells if size % 8}
    if others != {("refused",) * (len(columns) * 2)}:
        raise SystemExit("a head size that is no multiple of 8 is allowed: this page says they are refused")
    body = [
        [str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}", *value]
        for sizes, value in groups
        if value[0] != "refused"
    ]
    body.append(["all others", *["refused"] * (len(columns) * 2)])
    head = [
        f"{kind}{', dropout' if dropout == 'true' else ''}, {name}"
        for (kind, dropout), name in itertools.product(columns, ("bf16", "f16"))
    ]
    text += table(["head size", *head], body)
    text += (
        f"\nBoth targets: {', '.join(rows)}. \"through 128\" runs the kernel of size 128 on the tensors as they are, "
        "without a copy.\nOn gfx942, the interleaved schedule is used when there is a large tile for every compute unit. "
        "`hipkittens.flash_attn` pads other sizes up to 256 with zeros, as flash-attn does.\n"
    )  # fmt: skip
    narrower = {
        (int(row["head_dim"]), int(row["value_dim"]))
        for row in itertools.chain.from_iterable(rows.values())
        if row["kind"] in ("forward", "backward") and int(row["value_dim"]) < int(row["head_dim"])
    }
    for size, value_size in sorted(narrower):
        text += (
            f"Kernels of size {size} are for V with up to {value_size} elements per head; with a longer V, q and k of that size "
            "run through the next larger one.\n"
        )
    return text
