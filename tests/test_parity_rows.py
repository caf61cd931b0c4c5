# SPDX-License-Identifier: MIT
"""layer_norm, rms_norm and rotary beside PyTorch's own, against float64: the cases of benchmarks/parity_rows.py."""

import importlib.util
import sys
from pathlib import Path

import pytest

from hipkittens._accuracy import BAR

_FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "parity_rows.py"
_SPEC = importlib.util.spec_from_file_location("parity_rows", _FILE)
parity_rows = importlib.util.module_from_spec(_SPEC)
sys.modules["parity_rows"] = parity_rows
_SPEC.loader.exec_module(parity_rows)


def cases_of(operation, target):
    cases = list(parity_rows.cases(operation, (target,)))
    assert len(cases) >= 60 and len({str(case) for case in cases}) == len(cases)
    return cases


def misses(cases):
    rows = [row for case in cases for row in parity_rows.run(case)]
    return [row for row in rows if not max(row["ratio_max"], row["ratio_rms"]) <= BAR]


@pytest.mark.parametrize("target", parity_rows.TARGETS)
@pytest.mark.parametrize("operation", parity_rows.OPERATIONS)
def test_a_quarter_of_the_cases(operation, target):
    """The other target takes another quarter."""
    cases = cases_of(operation, target)[2 * parity_rows.TARGETS.index(target) :: 4]
    assert not misses(cases)


@pytest.mark.slow
@pytest.mark.parametrize("target", parity_rows.TARGETS)
@pytest.mark.parametrize("operation", parity_rows.OPERATIONS)
def test_every_case(operation, target):
    assert not misses(cases_of(operation, target))


def test_the_bar_sees_a_wrong_epsilon(monkeypatch):
    right = parity_rows.hipkittens.rms_norm
    monkeypatch.setattr(
        parity_rows.hipkittens, "rms_norm", lambda x, w, eps, **o: right(x, w, eps + 0.05, **o)
    )
    case = parity_rows.Case("rms_norm", "gfx950", "bf16", (5, 256))
    assert max(row["ratio_rms"] for row in parity_rows.run(case)) > BAR
