# SPDX-License-Identifier: MIT
"""Grouped GEMMs by AITER's names: rows with one matrix per group, columns with rows, and a batch with some rows used. Group sizes stay
on the device, without synchronization. config only chooses among AITER's own kernels.
"""

from __future__ import annotations

import torch

from .. import grouped_matmul
from .._arguments import check_dtype_and_device, check_tensor
from ._operands import FP8_DTYPES, check_operands, check_output, ends_of, panels_of_shuffled, with_elements
from ._results import check_place, placed


def gmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: torch.Tensor | None = None,
    config: dict | None = None,
    *,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows of lhs (M, K) times rhs (G, K, N): the first group_sizes[0] rows times rhs[0], and so on; into existing_out (M, N) of
    preferred_element_type if it is passed. bias (G, N), which AITER's main branch has as its fourth argument, is added before the one
    rounding. group_sizes is int32 (G,). Rows past the last group are zeros; AITER leaves them unchanged.
    """
    name = "gmm"
    ends = _ends(name, lhs, rhs, group_sizes, (2, 3))
    if rhs.shape[0] != ends.shape[0] or lhs.shape[1] != rhs.shape[1]:
        _raise_shapes(name, lhs, rhs, group_sizes, "lhs (M, K), rhs (G, K, N), group_sizes (G,)")
    bias = with_elements(name, "bias", bias, rhs.shape[0], rhs.shape[2])
    _check_out(name, existing_out, preferred_element_type, lhs.shape[0], rhs.shape[2])
    result = grouped_matmul(lhs, rhs, ends, bias=bias, out_dtype=preferred_element_type)
    return placed(name, "existing_out", existing_out, result)


def ptgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: torch.Tensor | None = None,
    config: dict | None = None,
    *,
    bias_grad: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """(G, K, N) of lhs (K, M) and rhs (M, N): the first group_sizes[0] columns of lhs times as many rows of rhs, and so on; zeros for an
    empty group. Into existing_out of preferred_element_type if it is passed, or with accumulate, in float32, added to its contents.
    bias_grad, float32 (G, K), receives the sums of each group's columns of lhs, by a separate launch. accumulate and bias_grad are from
    AITER's main branch, which has bias_grad as its fourth argument.
    """
    return _transposed(
        "ptgmm", lhs, rhs, group_sizes, preferred_element_type, existing_out, bias_grad, accumulate
    )


def nptgmm(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    preferred_element_type: torch.dtype = torch.bfloat16,
    existing_out: torch.Tensor | None = None,
    config: dict | None = None,
    *,
    bias_grad: torch.Tensor | None = None,
    accumulate: bool = False,
) -> torch.Tensor:
    """ptgmm."""
    return _transposed(
        "nptgmm", lhs, rhs, group_sizes, preferred_element_type, existing_out, bias_grad, accumulate
    )


def deepgemm(
    XQ: torch.Tensor,
    WQ: torch.Tensor,
    Y: torch.Tensor,
    group_layout: torch.Tensor,
    x_scale: torch.Tensor | None = None,
    w_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Y[g, :group_layout[g]] = XQ[g] @ WQ[g].T, of XQ (G, M, K) and WQ (G, N, K) shuffled by shuffle_weight(w, layout=(16, 16)), both
    bfloat16, float16, or 8-bit floats of the target with x_scale of G M elements and w_scale of G N; None is 1. Rows of Y past
    group_layout[g], int32 (G,), are unchanged. All M rows are multiplied.
    """
    name = "deepgemm"
    check_operands(name, {"XQ": XQ, "WQ": WQ}, 3)
    (groups, m, k), n = XQ.shape, WQ.shape[1]
    _check_sizes(name, "group_layout", group_layout, XQ)
    if group_layout.shape[0] != groups:
        raise ValueError(
            f"hipkittens.aiter.{name}: group_layout has {group_layout.shape[0]} elements and XQ {groups} groups; they must be equal"
        )
    if not isinstance(Y, torch.Tensor):
        raise TypeError(f"hipkittens.aiter.{name}: Y is {type(Y).__name__}; it must be a torch.Tensor")
    check_place(name, "Y", Y, groups, m, n)
    check_output(name, Y.dtype)
    scales = {"x_scale": x_scale, "w_scale": w_scale}
    w = panels_of_shuffled(name, "WQ", WQ)
    if XQ.dtype not in FP8_DTYPES:
        for argument, scale in scales.items():
            if scale is not None:
                raise ValueError(
                    f"hipkittens.aiter.{name}: {argument} is given and XQ is {XQ.dtype}, which has no scales; leave it None"
                )
        rows = XQ.reshape(groups * m, k)
        result = grouped_matmul(rows, w, ends_of(groups, m, XQ.device), out_dtype=Y.dtype).view(Y.shape)
    else:
        shapes = {"x_scale": (groups * m, 1), "w_scale": (groups, 1, n)}
        ones = torch.ones((), device=XQ.device)
        first, second = (
            ones.expand(shapes[argument])
            if scale is None
            else with_elements(name, argument, scale, *shapes[argument])
            for argument, scale in scales.items()
        )
        rows = XQ.reshape(groups * m, k)
        result = grouped_matmul(
            rows, w, ends_of(groups, m, XQ.device), scale_a=first, scale_b=second, recipe="row", out_dtype=Y.dtype
        ).view(Y.shape)  # fmt: skip
    counts = torch.arange(m, device=XQ.device) < group_layout.unsqueeze(1)
    return placed(name, "Y", Y, torch.where(counts.unsqueeze(2), result, Y.detach()))


def _transposed(name, lhs, rhs, group_sizes, dtype, existing_out, bias_grad, accumulate):
    ends = _ends(name, lhs, rhs, group_sizes, (2, 2))
    groups, (k, m), n = ends.shape[0], lhs.shape, rhs.shape[1]
    if rhs.shape[0] != m:
        _raise_shapes(name, lhs, rhs, group_sizes, "lhs (K, M), rhs (M, N), group_sizes (G,)")
    _check_out(name, existing_out, dtype, groups, k, n)
    check_place(name, "bias_grad", bias_grad, groups, k)
    if bias_grad is not None and bias_grad.dtype != torch.float32:
        raise TypeError(f"hipkittens.aiter.{name}: bias_grad is {bias_grad.dtype}; allowed: torch.float32")
    if accumulate and existing_out is None:
        raise ValueError(
            f"hipkittens.aiter.{name}: accumulate is True and existing_out is None; give what is added to"
        )
    result = grouped_matmul(lhs, rhs, ends, out_dtype=torch.float32 if accumulate else dtype)
    if accumulate:
        result = existing_out.detach().float() + result
    if bias_grad is not None:
        ones = rhs.new_ones((m, 1))
        placed(name, "bias_grad", bias_grad, grouped_matmul(lhs, ones, ends, out_dtype=torch.float32)[..., 0])
    return placed(name, "existing_out", existing_out, result)


def _ends(name, lhs, rhs, group_sizes, dims) -> torch.Tensor:
    """The end of each group."""
    where = f"hipkittens.aiter.{name}"
    for (argument, value), count in zip((("lhs", lhs), ("rhs", rhs)), dims, strict=True):
        check_tensor(where, argument, value)
        if value.dim() != count:
            raise ValueError(
                f"{where}: {argument} has shape {tuple(value.shape)}; it needs {count} dimensions"
            )
    _check_sizes(name, "group_sizes", group_sizes, lhs)
    return group_sizes.cumsum(0, dtype=torch.int32)


def _check_sizes(name: str, argument: str, sizes: torch.Tensor, beside: torch.Tensor) -> None:
    where = f"hipkittens.aiter.{name}"
    check_tensor(where, argument, sizes)
    check_dtype_and_device(where, argument, sizes, (torch.int32,), "lhs", beside)
    if sizes.dim() != 1:
        raise ValueError(f"{where}: {argument} has shape {tuple(sizes.shape)}; it needs 1 dimension")


def _raise_shapes(name, lhs, rhs, group_sizes, allowed) -> None:
    raise ValueError(
        f"hipkittens.aiter.{name}: lhs has shape {tuple(lhs.shape)}, rhs {tuple(rhs.shape)} and group_sizes "
        f"{tuple(group_sizes.shape)}; they must be {allowed}"
    )


def _check_out(name, out, dtype, *shape) -> None:
    check_output(name, dtype)
    check_place(name, "existing_out", out, *shape)
    if out is not None and out.dtype != dtype:
        raise TypeError(
            f"hipkittens.aiter.{name}: existing_out is {out.dtype} and preferred_element_type {dtype}; they must be equal"
        )
