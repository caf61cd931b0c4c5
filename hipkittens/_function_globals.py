# SPDX-License-Identifier: MIT
"""Copies of functions that see other values for some of their module's names, and the names that a function uses."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


def with_globals(function: Callable, replaced: dict[str, Any]) -> Callable | None:
    """A copy of `function` that sees the values in `replaced` instead of its module's; None if it uses none of these names.

    Functions wrapped by a decorator are looked for in its closure. The code object, defaults and all other names are the current ones of
    the original.
    """
    copies: dict[int, Callable] = {}
    using = [inner for inner in _nested(function) if replaced.keys() & set(inner.__code__.co_names)]
    return _copied(function, replaced, {id(inner) for inner in using}, copies) if using else None


def names_in(function: Any) -> set[str]:
    """The global names that a function uses, including those of functions wrapped by decorators."""
    return {name for inner in _nested(function) for name in inner.__code__.co_names}


def global_of(function: Any, name: str) -> Any:
    """The value that `name` has in the module of a function that uses it, including functions wrapped by decorators; None if there is none."""
    for inner in _nested(function):
        if name in inner.__code__.co_names and name in inner.__globals__:
            return inner.__globals__[name]
    return None


def _contents(function: types.FunctionType) -> list[Any]:
    """The contents of the cells of its closure, None for an empty one."""
    held = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            held.append(None)
    return held


def _nested(function: Any) -> list[types.FunctionType]:
    """The function, and recursively the functions in its closure."""
    found: list[types.FunctionType] = []
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, types.FunctionType) and all(one is not other for other in found):
            found.append(one)
            waiting += _contents(one)
    return found


def _copied(function: Any, replaced: dict[str, Any], using: set[int], copies: dict[int, Callable]) -> Any:
    """`function` with new globals if it is in `using`, and new cells if they lead to one of those functions."""
    if id(function) in copies:
        return copies[id(function)]
    if not any(id(inner) in using for inner in _nested(function)):
        return function
    cells = [types.CellType() for _ in function.__closure__ or ()]
    names = function.__globals__
    if id(function) in using:
        # Without __name__, since torch.compile would look names up in the module of that name.
        names = {name: value for name, value in names.items() if name != "__name__"} | replaced
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    copies[id(function)] = copy
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    del copy.__wrapped__  # the copy is not a wrapper
    copy.__dict__.update(function.__dict__)
    for cell, theirs, held in zip(cells, function.__closure__ or (), _contents(function), strict=True):
        try:
            theirs.cell_contents  # noqa: B018
        except ValueError:
            continue
        cell.cell_contents = _copied(held, replaced, using, copies)
    return copy
