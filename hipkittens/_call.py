# SPDX-License-Identifier: MIT
"""A fast path to an operator: `call("gemm", a, b, ...)` is `torch.ops.hipkittens.gemm(a, b, ...)` in less time.

An operator's derivative is Python, and the dispatcher that finds it converts every argument there and back: 6 of 12 microseconds of a call
that requires no gradient, 20 of 32 of one that does (benchmarks/launch.py). In plain eager mode only autograd matters, so `call` does its
part here and enters the dispatcher below it. Under torch.compile, a transform of torch.func, forward-mode AD, a mode, or with a subclass
of torch.Tensor, and for operators that write to their arguments, it goes through the full dispatcher.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as forward_ad

from . import _namespace

# Types of arguments that cannot have a mode or subclass.
_PLAIN = {
    torch.Tensor,
    torch.nn.Parameter,
    torch.Size,
    torch.dtype,
    float,
    int,
    bool,
    str,
    list,
    tuple,
    type(None),
}


class _Short(NamedTuple):
    operator: torch._ops.OpOverload
    record: Callable[..., Any] | None  # the same with its derivative recorded


_short: dict[str, _Short] = {}


def register(
    name: str, backward: Callable[..., Any] | None, setup_context: Callable[..., None] | None
) -> None:
    """Enables the fast path to torch.ops.hipkittens.<name> with this derivative, as in torch.library.register_autograd."""
    operator = getattr(_namespace.OPERATORS, name).default
    if not operator._schema.is_mutable:
        record = None if backward is None else _recording(operator, backward, setup_context)
        _short[name] = _Short(operator, record)


def call(name: str, *arguments: Any) -> Any:
    """torch.ops.hipkittens.<name>(*arguments)."""
    if torch.compiler.is_compiling() or not _is_plain(arguments) or name not in _short:
        return getattr(_namespace.OPERATORS, name)(*arguments)
    operator, record = _short[name]
    if record is not None and torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
        return record(*arguments)
    with torch._C._AutoDispatchBelowAutograd():
        return operator(*arguments)


def _is_plain(arguments: tuple[Any, ...]) -> bool:
    return (
        _PLAIN.issuperset(map(type, arguments))
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
    )


def _recording(
    operator: torch._ops.OpOverload,
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None,
) -> Callable[..., Any]:
    defaults = tuple(argument.default_value for argument in operator._schema.arguments)

    def forward(ctx, *arguments):
        with torch._C._AutoDispatchBelowAutograd():
            output = operator(*arguments)
        if setup_context is not None:
            setup_context(ctx=ctx, inputs=arguments + defaults[len(arguments) :], output=output)
        return output

    function = type(
        f"{operator._opname}_called",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )
    # The part of `apply` that does not concern transforms of torch.func; none is active when this is called.
    return super(torch.autograd.Function, function).apply
