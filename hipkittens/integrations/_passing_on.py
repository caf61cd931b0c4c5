# SPDX-License-Identifier: MIT
"""Fallback for calls that none of our kernels supports: they are passed to the previously registered kernel, and the reason is logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from .. import _backend
from ._operator_switch import OperatorSwitch

log = logging.getLogger("hipkittens")
# The exceptions that our functions raise before anything has run.
REFUSALS = (NotImplementedError, TypeError, ValueError)


class PassOn(Exception):
    """Why a call falls back to the previous kernel. The text contains only those sizes that are decisive."""


class Reasons:
    """The reasons of one integration since it was last activated, each once, in the order of their first occurrence.

    where   the integration's name, for messages
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self._known: dict[str, None] = {}

    def __call__(self) -> list[str]:
        return list(self._known)

    def clear(self) -> None:
        self._known = {}

    def note(self, operator: str, reason: str) -> None:
        if reason not in self._known:
            self._known[reason] = None
            log.warning("%s goes on to PyTorch: %s", operator, reason)


def taking_over(
    operator: torch._ops.OpOverload, title: str, ours: Callable[..., Any], reasons: Reasons
) -> OperatorSwitch:
    """A switch for the operator, below autograd. Calls that `ours` refuses fall back to the kernel that was registered at activation.

    An overload "out" gets the result of `ours` in its argument of that name. Where PyTorch has no kernel of its own (CPU tensors with
    grouped products of 8-bit floats), NotImplementedError states why `ours` refused.
    """
    writes = operator._overloadname == "out"
    former: dict[str, torch.library.SafeKernelFunction] = {}

    def enter() -> None:
        reasons.clear()
        name = operator._schema.name
        former.update(
            (key, torch.library.get_kernel(operator, key))
            for key in _backend.dispatch_keys()
            if torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, key)
        )

    def kernel(*arguments, out=None):
        if _backend.uses_torch():
            reason = "HIPKITTENS_BACKEND is torch"
        else:
            try:
                with torch.no_grad():  # autograd has recorded the call
                    result = ours(*arguments)
            except (PassOn, *REFUSALS) as error:
                reason = str(error)
            else:
                return _written(reasons.where, result, out) if writes else result
        reasons.note(title, reason)
        key = "CPU" if arguments[0].device.type == "cpu" else "CUDA"
        if key not in former:
            raise NotImplementedError(
                f"{reasons.where}: {reason}. PyTorch has no {title} of its own for {key} tensors"
            )
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        return former[key].call_boxed(keys, *arguments, **({"out": out} if writes else {}))

    return OperatorSwitch(operator, kernel, enter, with_autograd=False)


def _written(where: str, result: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != result.dtype:
        raise ValueError(f"{where}: out is {out.dtype} and the result {result.dtype}; they must be the same")
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)
