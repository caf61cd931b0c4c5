# SPDX-License-Identifier: MIT
"""Sends torch.nn.functional.grouped_mm of unmodified programs to hipkittens.grouped_matmul.

    from hipkittens.integrations import grouped_mm

    with grouped_mm.active():          # or grouped_mm.activate() ... grouped_mm.restore()
        model(x).sum().backward()      # Transformers' experts_implementation="grouped_mm", TorchTitan's experts, ...

While active, aten::_grouped_mm has a kernel of ours for CPU tensors and, on a ROCm build of PyTorch, for GPU tensors. It stands
below autograd: PyTorch's derivative stays, which is products of groups again, and these reach us, too. torch.compile keeps the
operator in its graph and calls it when the graph runs.

A call whose meaning no kernel has, such as one in float32, goes on to the kernel that was there before, with one line per reason
to logging.getLogger("hipkittens"), level WARNING; `passed_on` lists the reasons. Rows behind the last group are zeros, where
PyTorch leaves them unwritten.

PyTorch 2.10 and later. The state belongs to the process, not to a thread; see `sdpa`.
"""

from __future__ import annotations

import contextlib

import torch

from ..grouped import grouped_matmul
from ._passing_on import Reasons, taking_over

_reasons = Reasons("hipkittens.integrations.grouped_mm")


def activate() -> None:
    """From now on grouped_mm of this process runs on hipkittens where it can. Repeated calls do nothing more."""
    _switch.activate()


def restore() -> None:
    """PyTorch's own grouped_mm again, at once or, inside `active`, when that ends."""
    _switch.restore()


def active() -> contextlib.AbstractContextManager[None]:
    """activate() while open. Nests."""
    return _switch.active()


def is_active() -> bool:
    return _switch.is_active()


def passed_on() -> list[str]:
    """Why calls went to PyTorch's own implementation since the last activation; each reason once."""
    return _reasons()


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    # As PyTorch's: what torch.compile has derived of the result holds.
    return grouped_matmul(a, b, offs, bias=bias, out_dtype=out_dtype).contiguous()


_switch = taking_over(torch.ops.aten._grouped_mm.default, "grouped_mm", _grouped_mm, _reasons)
