# SPDX-License-Identifier: MIT
"""Reverse-mode derivatives of our operators, in eager autograd and under the transforms of torch.func.

`torch.library.register_autograd` alone registers a kernel that makes `torch.func.grad` fail with "must override the setup_context
staticmethod", and that drops the tangents of forward-mode AD. The kernel registered here is PyTorch's own if no transform is active. Under
a transform it records the operator for the level of that transform, as PyTorch's own derivatives do, and calls it again on the level
below. A tangent is refused: no operator has a forward-mode derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch._functorch.utils import enable_single_level_autograd_function
from torch._library.autograd import Info, make_autograd_impl

from . import _namespace

_registrations = torch.library.Library(_namespace.NAMESPACE, "FRAGMENT")  # lives as long as this object


def register(
    name: str, backward: Callable[..., Any] | None, setup_context: Callable[..., None] | None
) -> None:
    """Gives torch.ops.hipkittens.<name> this derivative; both functions are as in torch.library.register_autograd.

    An operator without one refuses a forward-mode derivative, and is otherwise unchanged.
    """
    operator = getattr(_namespace.OPERATORS, name).default
    if backward is None:
        eager, recorded = _below(operator), None
    else:
        eager = make_autograd_impl(operator, Info(backward, setup_context))
        recorded = _at_one_level(operator, backward, setup_context)

    def kernel(keyset, *arguments):
        refuse_tangents(name, *arguments)
        if (
            recorded is not None
            and torch._C._are_functorch_transforms_active()
            and torch.is_grad_enabled()
            and torch._C._any_requires_grad(*arguments)
        ):
            with enable_single_level_autograd_function():
                return recorded.apply(keyset, *arguments)
        return eager(keyset, *arguments)

    _registrations.impl(name, kernel, "Autograd", with_keyset=True)


def no_forward_mode(name: str) -> NotImplementedError:
    """The error of a function for a tangent."""
    return NotImplementedError(
        f"hipkittens: {name} has no forward-mode derivative (torch.func.jvp, jacfwd, linearize, "
        "torch.autograd.forward_ad); use reverse mode (torch.func.vjp, grad, jacrev), or HIPKITTENS_BACKEND=torch"
    )


def refuse_tangents(name: str, *arguments: Any) -> None:
    """For arguments that a function also passes to its operator as other tensors."""
    if forward_ad._current_level >= 0 and any(map(_has_tangent, arguments)):
        raise no_forward_mode(name)


def _has_tangent(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None


def _below(operator: torch._ops.OpOverload) -> Callable[..., Any]:
    """The operator on the level below that of the active transform, or without a derivative if none is active."""

    def call(keyset, *arguments):
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keyset & torch._C._after_autograd_keyset, *arguments)

    return call


def _at_one_level(operator, backward, setup_context) -> type:
    """The autograd function of one level: saved tensors and gradients belong to that level."""
    below = _below(operator)

    def forward(ctx, keyset, *arguments):
        # autograd functions disable derivatives, which the transforms below may need.
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            output = below(keyset, *arguments)
        if setup_context is not None:
            arguments, _ = torch._library.utils.fill_defaults(operator._schema, arguments, {})
            setup_context(ctx=ctx, inputs=arguments, output=output)
        return output

    def backward_of_level(ctx, *gradients):
        needed = ctx.needs_input_grad
        try:
            ctx.needs_input_grad = needed[1:]  # the first argument is the key set
            found = backward(ctx, *gradients)
        finally:
            ctx.needs_input_grad = needed
        return (None, *found) if isinstance(found, tuple) else (None, found)

    return type(
        f"{operator._opname}_at_one_level",
        (torch.autograd.function._SingleLevelFunction,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward_of_level)},
    )
