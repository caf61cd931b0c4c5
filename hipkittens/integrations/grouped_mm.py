# SPDX-License-Identifier: MIT
"""Redirects torch.nn.functional.grouped_mm of unmodified programs to hipkittens.grouped_matmul.

    from hipkittens.integrations import grouped_mm

    with grouped_mm.active():          # or grouped_mm.activate() ... grouped_mm.restore()
        model(x).sum().backward()      # Transformers' experts_implementation="grouped_mm", TorchTitan's experts, ...

While active, aten::_grouped_mm has a kernel of ours for CPU tensors and, on a ROCm build of PyTorch, for GPU tensors. It is registered
below autograd: PyTorch's derivative is kept, which calls grouped products again, and these are redirected as well. torch.compile keeps
the operator in its graph and calls it when the graph runs.

Calls that no kernel supports, such as those in float32, fall back to the previous kernel, with one line per reason to
logging.getLogger("hipkittens"), level WARNING; `passed_on` lists the reasons. Rows past the last group are zeros, where PyTorch leaves them
unwritten.

Requires PyTorch 2.10 or later. The state belongs to the process, not to a thread; see `sdpa`.
"""

from __future__ import annotations

import contextlib

import torch

from ..grouped import grouped_matmul
from ._passing_on import Reasons, taking_over

_reasons = Reasons("hipkittens.integrations.grouped_mm")


def activate() -> None:
    """From now on grouped_mm of this process uses hipkittens where possible. Repeated calls have no effect."""
    _switch.activate()


def restore() -> None:
    """Restores PyTorch's own grouped_mm, at once or, inside `active`, when that ends."""
    _switch.restore()


def active() -> contextlib.AbstractContextManager[None]:
    """Context manager for activate(); may be nested."""
    return _switch.active()


def is_active() -> bool:
    return _switch.is_active()


def passed_on() -> list[str]:
    """Why calls fell back to PyTorch's own implementation since the last activation; each reason once."""
    return _reasons()


def _grouped_mm(a, b, offs=None, bias=None, out_dtype=None):
    # Like PyTorch's, so that what torch.compile has inferred about the result holds.
    return grouped_matmul(a, b, offs, bias=bias, out_dtype=out_dtype).contiguous()


_switch = taking_over(torch.ops.aten._grouped_mm.default, "grouped_mm", _grouped_mm, _reasons)
