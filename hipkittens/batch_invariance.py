# SPDX-License-Identifier: MIT
"""Batch invariance: results that do not depend on what else is in a batch."""

from __future__ import annotations

import contextlib
from types import TracebackType

from . import _library


def set_batch_invariant(enabled: bool) -> bool:
    """Enable or disable batch-invariant results; returns the previous setting.

    While `enabled`, results of a row, a token or a sequence have the same bits whatever else a call computes. The setting applies to the
    whole process, from now on and in every thread, since autograd launches from its own. While it is enabled, no GEMM along K and no
    attention over keys is split by the number of workgroups: GEMMs and attention are never split, and attention to paged caches splits by
    each sequence's own length. This is slower for small batches. docs/batch_invariance.md lists what is covered.

    Raises TypeError unless `enabled` is a bool.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"hipkittens.set_batch_invariant: enabled is {enabled!r}; it must be True or False")
    return bool(_library.operators().hipkittens_torch_set_batch_invariant(int(enabled)))


def is_batch_invariant() -> bool:
    """Return the current setting of `set_batch_invariant` or `batch_invariant`."""
    return bool(_library.operators().hipkittens_torch_is_batch_invariant())


class batch_invariant(contextlib.ContextDecorator):
    """Context manager and decorator: `set_batch_invariant(enabled)` inside, and the previous setting afterwards.

        with hipkittens.batch_invariant():
            alone = hipkittens.linear(x[:1], weight)
            among = hipkittens.linear(x, weight)  # among[:1] has the bits of alone

    A backward pass that is to be batch-invariant has to run inside the block as well. Raises TypeError unless `enabled` is a bool.
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
