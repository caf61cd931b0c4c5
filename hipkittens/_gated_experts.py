# SPDX-License-Identifier: MIT
"""The first layer of experts in one launch: a grouped GEMM, half of whose columns gates the other half."""

from __future__ import annotations

import torch

from . import _backend
from ._call import call
from ._panels import as_b
from .activation import GATES, constants_of, gate_and_other, gated_activation
from .gemm import records
from .grouped import gathers_rows_of, grouped_matmul


def gated_groups(
    rows: torch.Tensor,
    w: torch.Tensor,
    ends: torch.Tensor,
    bias: torch.Tensor | None,
    kind: str,
    interleaved: bool,
    limit: float | None,
    entries: torch.Tensor | None = None,
    choices: int = 1,
) -> torch.Tensor:
    """gated_activation(grouped_matmul(rows, w.mT, ends, bias=bias)) of w (G, 2 I, K), without a rounding in between. If columns of w are
    contiguous instead of rows, the two are separate calls: no kernel gates such products, and copying all experts would cost more. The same
    holds for preshuffled w (G, 2 I / 16, chunks, 16, 8) where the gate and the other half share a panel.

    With entries, where takes_tokens is true, rows are tokens: row i of the product is that of token entries[i] // choices.
    """
    if _backend.uses_torch() or 0 in (*rows.shape, *w.shape) or not _reads_pairs(w, interleaved):
        sums = grouped_matmul(rows, as_b(w), ends, bias=bias)
        gate, other = gate_and_other(sums, interleaved)
        return gated_activation(gate, kind, other=other, limit=limit)
    result, _ = call(
        "grouped_gated",
        rows,
        as_b(w),
        ends.contiguous(),
        None if bias is None else bias.contiguous(),
        entries,
        choices,
        GATES.index(kind),
        interleaved,
        *constants_of(kind, limit, None),
        records(rows, w, bias),
        rows.dtype,
    )
    return result


def takes_tokens(
    x: torch.Tensor, w: torch.Tensor, places: torch.Tensor, bias: torch.Tensor | None, interleaved: bool
) -> bool:
    """Whether gated_groups takes tokens x (T, K) with the entries of their choices: where nothing is differentiated, and the kernels that
    gather rows while they load them reach those of all tokens. They load whole dwords: weights whose rows are an odd number of elements
    apart would be copied.
    """
    return (
        not _backend.uses_torch()
        and 0 not in (*x.shape, *w.shape, *places.shape)
        and x.shape[1] % 2 == 0
        and all(stride % 2 == 0 for stride in w.stride()[:-1])
        and gathers_rows_of(x)
        and _reads_pairs(w, interleaved)
        and not records(x, w, bias)
    )


def _reads_pairs(w: torch.Tensor, interleaved: bool) -> bool:
    return w.stride(-1) == 1 if w.dim() == 3 else not interleaved and w.shape[1] % 2 == 0
