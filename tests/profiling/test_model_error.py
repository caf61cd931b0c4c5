# SPDX-License-Identifier: MIT
"""The error that a modelled figure carries: the class of measured rows that is most like it."""

import pytest

from hipkittens import _timing
from hipkittens.profiling import model_error
from hipkittens.profiling.model_error import Cell, bound_of, error_for, error_of, error_of_launch
from hipkittens.profiling.problems import OPERATIONS, parse_shapes


@pytest.fixture
def measured(monkeypatch):
    def use(*cells):
        monkeypatch.setattr(model_error, "cells", lambda: cells)

    return use


def cell(operation="gemm", family="f4gemm", chip="MI355X", bound="matrix", rows=8, error=10.0, bias=-5.0):
    return Cell(operation, family, chip, bound, rows, error, bias, 2 * error)


def test_the_same_operation_device_and_bound_come_first(measured):
    measured(cell(), cell(bound="memory", error=20.0), cell(chip="MI300X", error=30.0))
    error = error_for("gemm", "MI355X", "memory")
    assert (error.percent, error.rows) == (20.0, 8)
    assert error.text == "±20 % on 8 measured rows: f4gemm, MI355X, memory-bound"


def test_few_rows_are_no_class(measured):
    few = cell(rows=3, error=1.0)
    measured(few, cell(chip="MI300X", rows=3, error=3.0), cell("attention", "fmha", rows=9, error=40.0))
    error = error_for("gemm", "MI355X", "matrix")
    assert (error.percent, error.rows) == (2.0, 6)
    assert error.like == "f4gemm, MI355X and MI300X, matrix-bound"


def test_each_family_counts_alike(measured):
    measured(cell(rows=90, error=10.0), cell("attention", "fmha", rows=4, error=30.0, bias=15.0))
    error = error_for("layer_norm", "MI355X", "matrix")
    assert (error.percent, error.bias, error.rows) == (20.0, 5.0, 94)


def test_chips_that_rows_do_not_tell_apart_are_one(measured):
    measured(cell(), cell(chip="MI300X", error=30.0))
    assert error_for("gemm", "MI350X", "matrix") == error_for("gemm", "MI355X", "matrix")
    assert error_for("gemm", "MI325X", "matrix").percent == 30.0


def test_without_any_row_like_it_all_rows_count(measured):
    measured(cell(rows=2))
    assert error_for("rotary", "MI300X", "small").rows == 2


@pytest.mark.parametrize(
    "device, bound, why", [("MI100", "matrix", "MI100"), ("MI300X", "lds", "bound is 'lds'")]
)
def test_what_is_unknown_is_named(device, bound, why):
    with pytest.raises(ValueError, match=why):
        error_for("gemm", device, bound)


@pytest.mark.parametrize(
    "operation, shape, bound",
    [
        ("gemm", "8192x8192x8192", "matrix"),
        ("gemm", "16x16384x16384", "memory"),
        ("gemm", "512x512x512", "small"),
    ],
)
def test_the_data_sheet_says_what_a_problem_is_bound_by(operation, shape, bound):
    (problem,) = parse_shapes(operation, shape)
    assert bound_of(problem, "MI355X") == bound
    assert error_of(problem, "MI355X") == error_for(operation, "MI355X", bound)


def test_the_table_of_the_package_has_an_error_for_every_operation():
    for operation in OPERATIONS:
        for bound in model_error.BOUNDS:
            error = error_for(operation, "MI300X", bound)
            assert 0 < error.percent < 100 and error.rows >= 4, (operation, bound)


def test_a_launch_of_no_known_problem(measured):
    measured(cell(rows=4), cell(bound="memory", error=20.0), cell(bound="small", error=30.0))

    def error(microseconds, matrix):
        report = {"busy": {"matrix": matrix, "vector": 0.5}}
        return error_of_launch(_timing.ModelledLaunch("k", "MI355X", 1.0, microseconds, 2.6, report, ()))

    assert [error(50.0, 0.9).percent, error(50.0, 0.1).percent, error(2.0, 0.9).percent] == [10.0, 20.0, 30.0]
