# SPDX-License-Identifier: MIT
"""Every operation and its gradients against float64, next to PyTorch's own: the cases of benchmarks/parity.py.

The default run uses the covering arrays. `-m slow` adds the same in `exact` arithmetic, which rounds sums as the matrix cores do,
and random cases; it prints their seed, and HIPKITTENS_TEST_SEED repeats them. A case that exceeds the error bound is kept as JSON in
pytest's temporary directory; copied into tests/regressions, it runs every time.
"""

import dataclasses
import itertools
import math
import os
import random
from pathlib import Path

import parity
import parity_covering
import parity_operation
import pytest
import torch
from parity_operation import TARGETS, Case, Operation, Result

import hipkittens
from hipkittens._accuracy import BAR, compare
from hipkittens._backend import ARITHMETIC
from hipkittens.delta_rule import LARGEST_KEY_WITH_GRADIENT
from hipkittens.operations import _gated_delta_rule_checks

HERE = Path(__file__).resolve().parent

# For these, each case runs on one target, and each value on both; the others cost little.
ON_EITHER_TARGET = ("matmul", "linear", "addmm_", "attention", "attention_varlen", "linear_cross_entropy")
ON_EACH_TARGET = tuple(name for name in parity.OPERATIONS if name not in ON_EITHER_TARGET)


# Out of a hundred results, so many may exceed the bound in their first draw of values and be judged by further draws.
REDRAWN = 3


def check(cases, folder):
    """Check that no result exceeds the error bound, and that few were drawn again."""
    rows = parity.run_all(cases, folder)
    assert not parity.over_the_bar(rows)
    first = [max(row["first_max"], row["first_rms"]) for row in rows]
    missed = sum(ratio > BAR for ratio in first)
    again = sum(row["redrawn"] for row in rows)
    print(
        f"{missed} of {len(rows)} results missed the bar first, by {max(first):.2f} at most; {again} were drawn again"
    )
    assert missed <= max(REDRAWN, REDRAWN * len(rows) / 100)


def pairs_of_longest(operation):
    """Pairs of values of the two factors with the most values."""
    *_, second, first = sorted(map(len, parity.OPERATIONS[operation].factors.values()))
    return first * second


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", ON_EACH_TARGET)
def test_the_covering_array(operation, target, tmp_path):
    cases = list(parity.OPERATIONS[operation].cases((target,)))
    assert len(cases) >= pairs_of_longest(operation)
    check(cases, tmp_path)


@pytest.mark.parametrize("operation", ON_EITHER_TARGET)
def test_the_covering_array_over_targets(operation, tmp_path):
    cases = list(parity.OPERATIONS[operation].cases_over_targets())
    assert len(cases) >= pairs_of_longest(operation) and {case.target for case in cases} == set(TARGETS)
    check(cases, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", ON_EITHER_TARGET)
def test_the_covering_array_on_each_target(operation, target, tmp_path):
    check(parity.OPERATIONS[operation].cases((target,)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", parity.OPERATIONS)
def test_the_covering_array_in_the_arithmetic_of_the_matrix_cores(operation, target, tmp_path):
    cases = parity.OPERATIONS[operation].cases((target,))
    check((dataclasses.replace(case, arithmetic="exact") for case in cases), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("operation", parity.OPERATIONS)
def test_random_cases(operation, tmp_path):
    seed = int(os.environ.get("HIPKITTENS_TEST_SEED", random.randrange(1 << 30)))
    print(f"HIPKITTENS_TEST_SEED={seed}")
    check(parity.OPERATIONS[operation].random_cases(200, seed), tmp_path)


@pytest.mark.parametrize("path", sorted((HERE / "regressions").glob("*.json")), ids=lambda path: path.stem)
def test_what_once_failed(path):
    assert not parity.over_the_bar(parity.run(Case.from_json(path.read_text())))


def test_every_case_of_a_generator_runs():
    cases = list(parity.OPERATIONS["mul_add"].cases(("gfx950",)))[:3]
    found = {row["case"] for row in parity.run_all(case for case in cases)}
    assert found == {str(case) for case in cases}


def test_a_failing_case_is_kept_and_runs_again(tmp_path, monkeypatch):
    factors = parity.OPERATIONS["rms_norm"].factors
    case = Case("rms_norm", "gfx950", {name: values[0] for name, values in factors.items()}, 3)
    right = hipkittens.rms_norm
    monkeypatch.setattr("hipkittens.rms_norm", lambda x, w, eps, **o: right(x, w, eps + 0.05, **o))
    assert parity.over_the_bar(parity.run_all([case], tmp_path))
    (path,) = tmp_path.iterdir()
    again = Case.from_json(path.read_text())
    assert parity.over_the_bar(parity.run(again))
    monkeypatch.undo()
    assert not parity.over_the_bar(parity.run(again))


@pytest.mark.parametrize(
    ("unlucky", "largest", "redrawn", "passes"),
    [
        ((0,), 3e-3, True, True),
        (range(10**6), 3e-3, True, False),
        ((0,), 5e-3, False, False),
        ((), 0.0, False, True),
    ],
)
def test_one_large_error_of_one_draw_is_judged_with_others(unlucky, largest, redrawn, passes, monkeypatch):
    def results(target, case, seed):
        ours, theirs = torch.full((2, 64, 64), 1e-3)
        if seed in unlucky:
            ours[0, 0] = largest
        return [Result("", ours, theirs, torch.zeros(64, 64, dtype=torch.float64), 0.0, "a constant")]

    monkeypatch.setitem(parity.OPERATIONS, "made_up", Operation("made_up", {}, results))
    case = Case("made_up", "gfx942", {}, 0)
    (first,) = parity_operation.compare_case(parity.OPERATIONS["made_up"], case)
    (row,) = parity.run(case)
    assert (row["first_max"], row["first_rms"]) == (first["ratio_max"], first["ratio_rms"])
    assert row["redrawn"] == redrawn and (first["ratio_max"] > BAR) == bool(unlucky)
    assert bool(parity.over_the_bar([row])) != passes
    (group,) = parity.summary([row])
    assert group["redrawn"] == redrawn and group["worst_first"] == max(row["first_max"], row["first_rms"])
    assert group["baseline"] == "a constant"


def test_a_case_runs_in_its_arithmetic(monkeypatch):
    seen = []

    def results(target, case, seed):
        seen.append(parity_operation.simulated(target).settings["arithmetic"])
        return [Result("", torch.zeros(256), torch.zeros(256), torch.zeros(256).double(), 0.0, "zeros")]

    monkeypatch.setitem(parity.OPERATIONS, "made_up", Operation("made_up", {}, results))
    fast, exact = (Case("made_up", "gfx942", {}, 0, arithmetic) for arithmetic in parity_operation.ARITHMETIC)
    for case in (fast, exact, Case.from_json(exact.to_json()), fast):
        parity.run(case)
    assert seen == [ARITHMETIC["fast"], ARITHMETIC["exact"], ARITHMETIC["exact"], ARITHMETIC["fast"]]
    assert str(exact).endswith("arithmetic=exact")


def test_every_pair_of_values_occurs():
    factors = {"a": (1, 2, 3), "b": ("x", "y"), "c": (0, 1, 2, 3, 4), "d": (True, False)}
    for seed in range(5):
        cases = parity_covering.pairwise(factors, seed)
        assert 15 <= len(cases) <= 22
        for first, second in itertools.combinations(factors, 2):
            pairs = {(case[first], case[second]) for case in cases}
            assert pairs == set(itertools.product(factors[first], factors[second]))


def operation_with(ours, reference, baseline, exact=False):
    return Operation(
        "made_up",
        {},
        lambda target, case, seed: [Result("", ours, baseline, reference, 1.0, "made up", exact)],
    )


def ratio_of(operation):
    (row,) = parity_operation.compare_case(operation, Case("made_up", "gfx942", {}))
    return parity.ratio(row)


def test_a_case_shows_what_runs(monkeypatch):
    """Sizes that a dtype does not support are excluded from the cases, rather than reduced where the problem is drawn."""
    rule = parity.OPERATIONS["gated_delta_rule"]
    drawn = [*rule.cases(), *rule.cases_over_targets(), *rule.random_cases(200, 1)]
    largest = {}
    for case in drawn:
        dtype, key = case.properties["dtype"], case.properties["key"]
        largest[dtype] = max(largest.get(dtype, 0), key)
        assert f"key={key} " in str(case)
    assert largest == {
        name: LARGEST_KEY_WITH_GRADIENT[dtype] for name, dtype in parity_operation.DTYPES.items()
    }
    case = next(case for case in drawn if case.properties["dtype"] == "f32" and case.properties["key"] == 128)
    keys, right = [], _gated_delta_rule_checks.gated_delta_rule
    monkeypatch.setattr(
        _gated_delta_rule_checks,
        "gated_delta_rule",
        lambda q, *given, **options: keys.append(q.shape[3]) or right(q, *given, **options),
    )
    parity.run(case)
    assert set(keys) == {128}


def test_the_bar_sees_a_wrong_result():
    torch.manual_seed(0)
    reference = torch.randn(64, 64, dtype=torch.float64)
    theirs = reference.bfloat16()
    assert ratio_of(operation_with(theirs, reference, theirs)) <= 1
    one_off = (theirs.view(torch.int16) - 2).view(torch.bfloat16)
    assert ratio_of(operation_with(one_off, reference, theirs)) > BAR
    missing = theirs.clone()
    missing[3, 5] = float("nan")
    assert not ratio_of(operation_with(missing, reference, theirs)) <= BAR
    exact = theirs.clone()
    exact[0, 0] *= 1.0078125
    assert ratio_of(operation_with(theirs, reference, theirs, exact=True)) == 0
    assert not ratio_of(operation_with(exact, reference, theirs, exact=True)) <= BAR
    assert compare(theirs.clone(), theirs, reference, 1.0).passes


def test_what_is_reported():
    reference = torch.tensor([[3.0, 4.0], [0.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    assert parity_operation.row_error(reference * 1.5, reference) == 0.5
    assert parity_operation.row_error(reference + 1e-9, reference) == math.inf
    assert parity_operation.bias(reference * 0.75, reference) == -0.25
    assert parity_operation.bias(reference + 1, reference) == pytest.approx(2 / 9)
