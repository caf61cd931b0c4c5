# SPDX-License-Identifier: MIT
"""The package grouped_gemm, whose gmm is called by Megatron Core's GroupedMLP, on hipkittens.grouped_matmul.

grouped_gemm (github.com/fanshiqing/grouped_gemm) is compiled for CUDA. Before Megatron is imported:

    from hipkittens.integrations import grouped_gemm

    grouped_gemm.install()                 # now moe_grouped_gemm=True finds it

`ops.gmm` is that of grouped_gemm 1.1.4, with its gradients. `ops.permute`, `ops.unpermute` and `ops.sinkhorn_kernel`, which Megatron Core
0.16 does not call, raise NotImplementedError. GroupedMLP of Megatron Core 0.16.1 has been run with it, on the CPU with the simulator and
one process (tests/oracles/test_megatron.py); nothing has been run on a GPU.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

import torch

from .._arguments import check_tensor
from ..grouped import grouped_matmul
from ._stand_in_modules import put

MODULE = "grouped_gemm"
OPERATORS = f"{MODULE}.ops"
_WHERE = f"{OPERATORS}.gmm"


def install() -> None:
    """Makes `import` find a module named MODULE. Raises ImportError if another one is imported or installed."""
    package, operators = (_module(name) for name in (MODULE, OPERATORS))
    package.__path__ = []
    package.ops = operators
    for function in (gmm, permute, unpermute, sinkhorn_kernel):
        setattr(operators, function.__name__, function)
    put("hipkittens.integrations.grouped_gemm", {MODULE: package, OPERATORS: operators}, _is_ours())


def uninstall() -> None:
    """Removes it again; does nothing if `install` was not called. Megatron, once imported, keeps the functions that it found."""
    if _is_ours():
        del sys.modules[MODULE], sys.modules[OPERATORS]


def _is_ours() -> bool:
    return getattr(getattr(sys.modules.get(MODULE), "ops", None), "gmm", None) is gmm


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name, __doc__)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    return module


def gmm(a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_b: bool = False) -> torch.Tensor:
    """Grouped GEMM, (rows, N): the first batch_sizes[0] rows of a times b[0], the next batch_sizes[1] rows times b[1], and so on.

    a (rows, K), b (G, K, N), or (G, N, K) with trans_b, both bfloat16 or both float16. batch_sizes is int64 (G,). On the CPU, where
    Megatron has it, it must sum to the rows of a. On a's device it is not synchronized: rows past the last group are zeros, and sums larger
    than the number of rows give a meaningless result. Differentiable in a and b; groups may be empty, even all of them.

    Raises TypeError or ValueError, before anything is launched, for dtypes, shapes or devices that do not match.
    """
    for name, value, dimensions in (("a", a, 2), ("b", b, 3), ("batch_sizes", batch_sizes, 1)):
        check_tensor(_WHERE, name, value)
        if value.dim() != dimensions:
            raise ValueError(
                f"{_WHERE}: {name} has shape {tuple(value.shape)}; it needs {dimensions} dimensions"
            )
    if batch_sizes.dtype != torch.int64:
        raise TypeError(f"{_WHERE}: batch_sizes is {batch_sizes.dtype}; allowed: torch.int64")
    if len(batch_sizes) != len(b):
        raise ValueError(
            f"{_WHERE}: batch_sizes has {len(batch_sizes)} groups and b {len(b)}; they must be equal"
        )
    if batch_sizes.device.type == "cpu":
        _check_sizes(batch_sizes, a.shape[0])
    elif batch_sizes.device != a.device:
        raise ValueError(
            f"{_WHERE}: batch_sizes is on {batch_sizes.device} and a on {a.device}; allowed: a's device, and the CPU"
        )
    ends = batch_sizes.cumsum(0, dtype=torch.int32).to(a.device, non_blocking=True)
    return grouped_matmul(a, b.mT if trans_b else b, ends)


def _check_sizes(batch_sizes: torch.Tensor, rows: int) -> None:
    sizes = batch_sizes.tolist()
    if min(sizes, default=0) < 0 or sum(sizes) != rows:
        raise ValueError(
            f"{_WHERE}: batch_sizes is {sizes}, with the sum {sum(sizes)}; its numbers must not be negative, and sum to the {rows} rows of a"
        )


def _absent(name: str, instead: str):
    def absent(*args: object, **options: object) -> None:
        raise NotImplementedError(
            f"hipkittens.integrations.grouped_gemm: {OPERATORS}.{name} is not there; {instead}"
        )

    absent.__name__ = absent.__qualname__ = name
    return absent


_SORTED = "sort tokens with hipkittens.expert_sort and expert_gather, and add them with expert_combine"
permute = _absent("permute", _SORTED)
unpermute = _absent("unpermute", _SORTED)
sinkhorn_kernel = _absent("sinkhorn_kernel", "megatron.core.transformer.moe.moe_utils.sinkhorn computes it")
