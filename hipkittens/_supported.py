# SPDX-License-Identifier: MIT
"""Whether a call has a kernel, and why not: runs the operation itself on tensors without data.

There are no separate rules that could disagree with the operations: their own checks answer.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree

from . import _installation, operations

OPERATIONS = tuple(operations.functions())


@dataclass(frozen=True)
class Support:
    """The answer of `supported`: ok, and if not, reason is the error message of the call. Its truth value is ok."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def supported(op: str, /, *arguments: Any, target: str | None = None, **options: Any) -> Support:
    """Whether hipkittens.<op>(*arguments, **options) works, and if not, the error message it raises.

    `op` is the name of a function of this package: "attention", "matmul", "flash_attn.flash_attn_func", ... Tensors may be real, fake or on
    the meta device; nothing is computed and nothing is written. `target` asks about a GPU by name ("gfx950"); otherwise the answer is about
    where the call would run. Conditions on the values of positions and of cu_seqlens of rotations (an id past the last row of a table) are
    not checked, nor are the size limits near 2**31 elements, which the launch enforces.
    """
    function = _function(op)
    if target is not None and target not in _installation.TARGETS:
        return Support(
            False, f"hipkittens: no kernels for {target!r}; allowed: {', '.join(_installation.TARGETS)}"
        )
    mode = detect_fake_mode((arguments, options)) or FakeTensorMode(allow_non_fake_inputs=True)

    def without_data(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            return value
        if value.dtype == torch.int32 and value.device.type == "cpu" and mode.allow_non_fake_inputs:
            return value  # attention_varlen reads cu_seqlens
        return mode.from_tensor(value)

    arguments, options = _pytree.tree_map(without_data, (arguments, options))
    try:
        with mode:
            function(*arguments, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        return Support(False, str(error))
    return Support(True)


def _function(op: str) -> Any:
    package = importlib.import_module(__package__)

    if op in OPERATIONS:
        return getattr(package, op)
    name = op.removeprefix("flash_attn.") if isinstance(op, str) else op
    if name != op and name in package.flash_attn.__all__:
        return getattr(package.flash_attn, name)
    raise ValueError(
        f"hipkittens.supported: no operation {op!r}; there are {', '.join(OPERATIONS)}, flash_attn.flash_attn_func, ..."
    )
