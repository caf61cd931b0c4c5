# SPDX-License-Identifier: MIT
"""Plots of rows: modelled rates with the model's error, next to published rates."""

import pytest

from hipkittens.profiling.bench import Row

pytest.importorskip("matplotlib")


def row(size, tflops, error):
    return Row(
        "gemm", f"{size}x{size}x{size}", size, "MI355X", "hipkittens", "modelled" if error else "measured",
        microseconds=1.0, tflops=tflops, error_percent=error, error_of="a class" if error else "",
    )  # fmt: skip


@pytest.mark.parametrize(("error", "bands"), [(10.0, 1), (None, 0)])
def test_a_band_shows_the_error_of_the_model(error, bands):
    from matplotlib.figure import Figure

    from hipkittens.profiling import plot

    axes = Figure().add_subplot()
    plot.draw(axes, [row(1024, 110.0, error), row(2048, 220.0, error)], "TFLOP/s")
    assert len(axes.collections) == bands
    for band in axes.collections:
        values = band.get_paths()[0].vertices[:, 1]
        assert values.min() == pytest.approx(110 / 1.1) and values.max() == pytest.approx(220 / 0.9)
