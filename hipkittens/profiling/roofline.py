# SPDX-License-Identifier: MIT
"""The picture of `hipkittens profile --roofline`: what a problem reaches, compared with its chip's data sheet limits.

A roofline (Williams, Waterman, Patterson: "Roofline: an insightful visual performance model", 2009) has operations per byte of memory
traffic along one axis and operations per second along the other: memory bandwidth is a slope, the rate of the matrix cores a ceiling.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .limits import MEMORY_BANDWIDTH, peak_flops
from .problems import Problem


def require(path: str, problem: Problem) -> None:
    """ValueError, before anything runs, for a problem without a count of operations, without matplotlib, or for a file ending that is not a
    picture format.
    """
    if not problem.flops:
        raise ValueError(
            f"--roofline: {problem.operation} has no count of operations, memory is its measure; hipkittens bench shows GB/s"
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--roofline needs matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    allowed = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in allowed:
        raise ValueError(f"--roofline: {path!r} does not end as a picture; allowed: {', '.join(allowed)}")


def draw(path: str, problem: Problem, device: str, microseconds: float, error: str) -> None:
    """microseconds: of all launches, modelled; error: the model's known error, as text."""
    from matplotlib.figure import Figure

    ceiling = peak_flops(device) * 16 / problem.bits / 1e12
    slope = MEMORY_BANDWIDTH[device] / 1e12
    intensity = problem.flops / problem.bytes
    reached = problem.flops / microseconds / 1e6
    ridge = ceiling / slope
    left, right = min(intensity, ridge) / 8, max(intensity, ridge) * 8
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.loglog([left, ridge, right], [left * slope, ceiling, ceiling], color="C7", linewidth=1.5)
    axes.annotate(
        f"memory, {slope:.1f} TB/s",
        (left * 1.2, left * 1.2 * slope),
        textcoords="offset points",
        xytext=(8, -6),
    )
    axes.annotate(
        f"matrix cores at peak clock, {ceiling:,.0f} TFLOP/s",
        (right, ceiling),
        textcoords="offset points",
        xytext=(-4, 4),
        ha="right",
    )
    allowed = min(ceiling, intensity * slope)
    axes.plot([intensity, intensity], [reached, allowed], ":", color="C1")
    axes.plot([intensity], [reached], "o", color="C1")
    axes.annotate(
        f"{reached:,.0f} TFLOP/s, {100 * reached / allowed:.0f} % of what is allowed",
        (intensity, reached),
        textcoords="offset points",
        xytext=(8, -12),
    )
    axes.set_xlabel("FLOP for each byte that has to be read or written")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(f"{problem.operation} {problem.shape} on {device}, modelled: {error}", fontsize="medium")
    axes.grid(True, which="major", alpha=0.3)
    figure.savefig(path, dpi=120)
