# SPDX-License-Identifier: MIT
"""Calls of an operator whose meaning no kernel of ours has: they go on to the kernel that was there before, and say why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from .. import _backend
from ._operator_switch import OperatorSwitch

log = logging.getLogger("hipkittens")
# What our functions raise before anything has run.
REFUSALS = (NotImplementedError, TypeError, ValueError)


class PassOn(Exception):
    """Why a call goes to the former kernel. The text names no sizes but those that decide."""


class Reasons:
    """Those of one integration since it was last activated, each once, in the order in which they came up.

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
    """A switch of the operator, below autograd. What `ours` refuses goes to the kernel that was there when it was activated.

    An overload "out" gets what `ours` returns in its argument of that name. Where PyTorch has no kernel of its own, which is so of
    CPU tensors and grouped products of 8-bit floats, NotImplementedError says what `ours` refuses.
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
