# SPDX-License-Identifier: MIT
"""Matmul and its gradients beside PyTorch's own, against float64: the cases of benchmarks/parity.py.

The default run takes every case of one target in five and all the integer and gradient ones; `-m slow` takes them all.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from hipkittens._accuracy import BAR, compare

_FILE = Path(__file__).resolve().parent.parent / "benchmarks" / "parity.py"
_SPEC = importlib.util.spec_from_file_location("parity", _FILE)
parity = importlib.util.module_from_spec(_SPEC)
import sys  # noqa: E402

sys.modules["parity"] = parity
_SPEC.loader.exec_module(parity)
CASES = list(parity.cases())


def misses(cases):
    return [
        row
        for case in cases
        for row in parity.run(case)
        if not max(row["ratio_max"], row["ratio_rms"]) <= BAR
    ]


def test_there_are_enough_cases():
    assert len(CASES) >= 400
    assert len({(case.target, str(case)) for case in CASES}) == len(CASES)
    for target in parity.TARGETS:
        for layout in parity.LAYOUTS:
            for dtype in ("bf16", "f16"):
                for out in ("bf16", "f16", "f32"):
                    assert any(
                        (case.target, case.layout, case.dtype, case.out) == (target, layout, dtype, out)
                        for case in CASES
                    )


@pytest.mark.parametrize("target", parity.TARGETS)
@pytest.mark.parametrize("layout", parity.LAYOUTS)
def test_a_fifth_of_the_cases(target, layout):
    assert not misses([case for case in CASES if (case.target, case.layout) == (target, layout)][::5])


@pytest.mark.parametrize("target", parity.TARGETS)
def test_integers_are_exact(target):
    cases = [case for case in CASES if case.target == target and case.values == "integers"]
    assert len(cases) >= 20
    assert not misses(cases)


@pytest.mark.parametrize("target", parity.TARGETS)
def test_gradients(target):
    assert not misses([case for case in CASES if case.target == target and case.gradient])


@pytest.mark.slow
@pytest.mark.parametrize("target", parity.TARGETS)
def test_every_case(target):
    assert not misses([case for case in CASES if case.target == target])


def test_the_bar_sees_a_wrong_result():
    a, b = torch.randn(64, 64, dtype=torch.bfloat16), torch.randn(64, 64, dtype=torch.bfloat16)
    reference, theirs = a.double() @ b.double(), a @ b
    magnitude = (a.double().abs() @ b.double().abs()).max().item()
    assert compare(theirs.clone(), theirs, reference, magnitude).passes
    truncated = (theirs.view(torch.int16) - 2).view(torch.bfloat16)
    assert not compare(truncated, theirs, reference, magnitude).passes
    missing = theirs.clone()
    missing[3, 5] = float("nan")
    assert not compare(missing, theirs, reference, magnitude).passes
