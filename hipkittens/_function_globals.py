# SPDX-License-Identifier: MIT
"""Functions that find other values for some of their module's names, and what names a function uses."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


def with_globals(function: Callable, replaced: dict[str, Any]) -> Callable | None:
    """A copy of `function` that finds `replaced` where its module has other values; None if it names none of them.

    Functions that a decorator wraps are looked for in its closure. The code object, defaults and all other names are those
    of the original, as they are now.
    """
    copies: dict[int, Callable] = {}
    using = [inner for inner in _nested(function) if replaced.keys() & set(inner.__code__.co_names)]
    return _copied(function, replaced, {id(inner) for inner in using}, copies) if using else None


def names_in(function: Any) -> set[str]:
    """The global names that a function uses, also behind decorators."""
    return {name for inner in _nested(function) for name in inner.__code__.co_names}


def global_of(function: Any, name: str) -> Any:
    """The value that `name` has in the module of a function that uses it, also behind decorators; None without."""
    for inner in _nested(function):
        if name in inner.__code__.co_names and name in inner.__globals__:
            return inner.__globals__[name]
    return None


def _contents(function: types.FunctionType) -> list[Any]:
    """What the cells of its closure hold, None for an empty one."""
    held = []
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:
            held.append(None)
    return held


def _nested(function: Any) -> list[types.FunctionType]:
    """The function, and the functions in its closure, in theirs, and so on."""
    found: list[types.FunctionType] = []
    waiting = [function]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, types.FunctionType) and all(one is not other for other in found):
            found.append(one)
            waiting += _contents(one)
    return found


def _copied(function: Any, replaced: dict[str, Any], using: set[int], copies: dict[int, Callable]) -> Any:
    """`function` with new globals where it is in `using`, and new cells where one of their functions is behind it."""
    if id(function) in copies:
        return copies[id(function)]
    if not any(id(inner) in using for inner in _nested(function)):
        return function
    cells = [types.CellType() for _ in function.__closure__ or ()]
    names = function.__globals__
    if id(function) in using:
        # Without __name__, for torch.compile would look names up in the module of that name.
        names = {name: value for name, value in names.items() if name != "__name__"} | replaced
    copy = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, tuple(cells) or None
    )
    copies[id(function)] = copy
    copy.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(copy, function)
    del copy.__wrapped__  # it is no wrapper
    copy.__dict__.update(function.__dict__)
    for cell, theirs, held in zip(cells, function.__closure__ or (), _contents(function), strict=True):
        try:
            theirs.cell_contents  # noqa: B018
        except ValueError:
            continue
        cell.cell_contents = _copied(held, replaced, using, copies)
    return copy
