# SPDX-License-Identifier: MIT
"""Results that do not depend on what else is in a batch."""

from __future__ import annotations

import contextlib
from types import TracebackType

from . import _library


def set_batch_invariant(enabled: bool) -> bool:
    """Whether results of a row, a token or a sequence are to have the same bits whatever else a call computes; returns what held before.

    It holds for the process and for calls from now on, in every thread, since autograd launches from its own. While it does,
    no product along K and no attention over keys is split by how many workgroups there are: matrix products are never split,
    attention is not, and attention to caches in pages has splits of each sequence's own length. That costs time where a batch is
    small. docs/batch_invariance.md lists what it holds for.

    Raises TypeError unless `enabled` is a bool.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"hipkittens.set_batch_invariant: enabled is {enabled!r}; it must be True or False")
    return bool(_library.operators().hipkittens_torch_set_batch_invariant(int(enabled)))


def is_batch_invariant() -> bool:
    """What `set_batch_invariant` or `batch_invariant` last said."""
    return bool(_library.operators().hipkittens_torch_is_batch_invariant())


class batch_invariant(contextlib.ContextDecorator):
    """`set_batch_invariant(enabled)` for a block or a function, and what held before after it.

        with hipkittens.batch_invariant():
            alone = hipkittens.linear(x[:1], weight)
            among = hipkittens.linear(x, weight)  # among[:1] has the bits of alone

    A backward that is to be batch-invariant has to run inside the block as well. Raises TypeError unless `enabled` is a bool.
    """

    def __init__(self, enabled: bool = True) -> None:
        if not isinstance(enabled, bool):
            raise TypeError(f"hipkittens.batch_invariant: enabled is {enabled!r}; it must be True or False")
        self._enabled = enabled
        self._before: list[bool] = []

    def __enter__(self) -> batch_invariant:
        self._before.append(set_batch_invariant(self._enabled))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        set_batch_invariant(self._before.pop())
