# SPDX-License-Identifier: MIT
"""The pytest fixture `checked_simulation`: every launch of the test is checked, and a finding fails the test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from . import simulate


@pytest.fixture
def checked_simulation(request: pytest.FixtureRequest) -> Iterator[simulate]:
    """An active `hipkittens.simulate(checks="all")`; parametrize it indirectly with a target to choose one.

    A test that examines expected `findings` itself calls `checked_simulation.forget()`.
    """
    from . import simulate

    with simulate(getattr(request, "param", None), checks="all") as run:
        yield run
    if run.findings:
        pytest.fail("\n".join(str(finding) for finding in run.findings), pytrace=False)
