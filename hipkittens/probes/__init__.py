# SPDX-License-Identifier: MIT
"""`hipkittens probe`: small kernels that query a GPU for facts that kernels or the simulator assume and no document settles.

A fact is a row (`_fact.Fact`): what is stated, where it is relied on, how a device is queried, what is expected. The simulator satisfies
the expectation by construction; a GPU agrees or differs. Some facts are numbers that only a GPU can provide.
"""

from __future__ import annotations

import functools

from ._fact import Fact


@functools.cache
def every() -> dict[str, Fact]:
    """Every fact by name, in the order in which they are queried."""
    from . import _arithmetic, _clocks, _conversions, _lds, _memory, _waves

    facts = [
        fact for each in (_memory, _lds, _arithmetic, _conversions, _waves, _clocks) for fact in each.FACTS
    ]
    found = {fact.name: fact for fact in facts}
    assert len(found) == len(facts), "two facts share a name"
    return found
