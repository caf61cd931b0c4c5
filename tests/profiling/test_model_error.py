# SPDX-License-Identifier: MIT
"""The error reported with a modelled figure: that of the most similar class of measured rows."""

import pytest

from hipkittens.profiling import model_error
from hipkittens.profiling.model_error import Cell, bound_of, error_for, error_of, unknown_problem
from hipkittens.profiling.problems import parse_shapes


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
    assert error.text == "±20 % (bias -5 %) on 8 measured rows: f4gemm, MI355X, memory-bound"


def test_of_few_rows_those_of_another_bound_help(measured):
    measured(cell(rows=3, error=1.0), cell(bound="memory", rows=3, error=3.0), cell(chip="MI300X", error=9.0))
    error = error_for("gemm", "MI355X", "matrix")
    assert (error.percent, error.rows) == (2.0, 6)
    assert error.like == "f4gemm, MI355X, matrix-bound and memory-bound"


def test_each_family_counts_alike(measured):
    measured(cell(rows=90, error=10.0), cell(family="i8gemm", rows=4, error=30.0, bias=15.0))
    error = error_for("gemm", "MI355X", "matrix")
    assert (error.percent, error.bias, error.rows) == (20.0, 5.0, 94)


@pytest.mark.parametrize(
    "operation, device", [("layer_norm", "MI355X"), ("gemm", "MI300X"), ("scaled_matmul_int8", "MI355X")]
)
def test_another_operation_or_chip_says_nothing(measured, operation, device):
    measured(cell(rows=90), cell(operation, "few", "MI355X" if operation != "gemm" else device, rows=3))
    error = error_for(operation, device, "matrix")
    assert error.percent is None and error.bias is None and error.short == "not calibrated"
    assert error.text.startswith("not calibrated: fewer than 4 measured rows of ")


def test_chips_that_rows_do_not_tell_apart_are_one(measured):
    measured(cell(), cell(chip="MI300X", error=30.0))
    assert error_for("gemm", "MI350X", "matrix") == error_for("gemm", "MI355X", "matrix")
    assert error_for("gemm", "MI325X", "matrix").percent == 30.0
    measured(cell("attention", "fmha_v3_fwd"))
    assert error_for("attention", "MI355X", "matrix").percent == 10.0
    assert error_for("attention", "MI350X", "matrix").percent is None  # the table names its chips


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


def test_the_table_of_the_package_is_of_measured_operations():
    for operation in ("attention", "attention_backward"):
        for device in ("MI300X", "MI355X"):
            assert 0 < error_for(operation, device, "matrix").percent < 100
    for operation in ("layer_norm", "rms_norm", "rotary"):
        assert error_for(operation, "MI355X", "memory").percent is None
    assert error_for("gemm", "MI355X", "matrix").percent is None  # the measured products are of other formats
    assert error_for("scaled_matmul_mxfp4", "MI355X", "matrix").rows >= 4


def test_a_launch_of_no_known_problem_is_not_calibrated():
    assert unknown_problem("MI355X").short == "not calibrated"
