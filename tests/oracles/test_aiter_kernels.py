# SPDX-License-Identifier: MIT
"""AITER's own code objects run in the simulator and give the right numbers.

Nobody here wrote or compiled them, so they cannot share a wrong belief with our kernels.
"""

from __future__ import annotations

import pytest

from tests.oracles.aiter.catalog import cases
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = needs_wheel
EVERY = cases()


@pytest.mark.parametrize("case", [case for case in EVERY if case.sample], ids=str)
def test_one_of_every_kind_matches_float64(case):
    case.action().check()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in EVERY if not case.sample], ids=str)
def test_every_other_object_matches_float64(case):
    case.action().check()
