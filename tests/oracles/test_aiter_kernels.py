# SPDX-License-Identifier: MIT
"""AITER's own code objects run in the simulator and give the right numbers.

They were written and compiled independently of this project, so they cannot share a wrong assumption with our kernels.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.oracles.aiter import survey, wheel
from tests.oracles.aiter.catalog import cases
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = needs_wheel
EVERY = cases()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "foreign_kernels.md"


@pytest.mark.parametrize("case", [case for case in EVERY if case.sample], ids=str)
def test_one_of_every_kind_matches_float64(case):
    case.action().check()


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in EVERY if not case.sample], ids=str)
def test_every_other_object_matches_float64(case):
    case.action().check()


def test_the_page_counts_every_object_and_no_disagreement():
    """Its numbers come from a survey; those that need no run are recounted here."""
    text = PAGE.read_text()
    total = re.search(r"^\| \*\*all\*\* \|.*$", text, re.MULTILINE)[0]
    files, run, agree, deviate, disagree, left = (
        int(part) for part in re.findall(r"\*\*(\d+)\*\*", total)[:6]
    )
    assert files == len(wheel.objects()) == run + left
    assert disagree == 0 and agree + deviate == run
    assert deviate == len({case.name for case in EVERY if case.deviations})
    for line in survey.deviations(EVERY):
        assert line in text
    readme = (PAGE.parents[1] / "README.md").read_text()
    for number in (run, files, agree, deviate, left):
        assert f"{number:,}" in readme
