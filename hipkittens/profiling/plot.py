# SPDX-License-Identifier: MIT
"""The plot of `hipkittens bench`: a line for each library over the sizes, dots for published figures."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .bench import Row
from .problems import Problem

# The other axis: the members of a Row for figures that were run and for published ones.
RATES = {"TFLOP/s": ("tflops", "published_tflops"), "GB/s": ("gbps", "published_gbps")}
COLOURS = {
    "hipkittens": "C1",
    "aiter": "C0",
    "triton": "C2",
    "torch": "C3",
    "hipkittens-upstream": "C4",
    "composable_kernel": "C5",
    "hipblaslt": "C6",
    "torch_compile": "C8",
    "flydsl": "C9",
}


def require(path: str, problems: Sequence[Problem]) -> None:
    """ValueError, before anything runs, without matplotlib, for a file ending that is not a picture format, or if a line would have two
    points at one size.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    allowed = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in allowed:
        raise ValueError(f"--plot: {path!r} does not end as a picture; allowed: {', '.join(allowed)}")
    size, times = Counter(problem.size for problem in problems).most_common(1)[0]
    if times > 1:
        raise ValueError(
            f"--plot: {times} of the shapes have the size {size}, which is along the axis; plot one family of shapes at a time"
        )


def draw(axes: Any, rows: Sequence[Row], rate: str) -> None:
    """Draws one operation on one device into `axes`: figures that were run as lines, the model's mean error as a band around them,
    published figures as dotted lines.
    """
    ran_rate, published_rate = RATES[rate]
    for library in dict.fromkeys(row.library for row in rows):
        of_library = sorted((row for row in rows if row.library == library), key=lambda row: row.size)
        ran = [row for row in of_library if row.microseconds is not None]
        style = {"color": COLOURS.get(library, "C7"), "linewidth": 2 if library == "hipkittens" else 1.2}
        if ran:
            values = [getattr(row, ran_rate) for row in ran]
            axes.plot([row.size for row in ran], values, "o-", label=f"{library}, {ran[0].kind}", **style)
            if all(row.error_percent is not None for row in ran):
                # The error is in time, which is in the denominator of the rate.
                low, high = (
                    [
                        value / (1 + sign * row.error_percent / 100)
                        for value, row in zip(values, ran, strict=True)
                    ]
                    for sign in (1, -1)
                )
                axes.fill_between(
                    [row.size for row in ran], low, high, color=style["color"], alpha=0.12, linewidth=0
                )
        known = [row for row in of_library if getattr(row, published_rate) is not None]
        if known:
            values = [getattr(row, published_rate) for row in known]
            axes.plot(
                [row.size for row in known], values, "x:", alpha=0.6, label=f"{library}, published", **style
            )
    sizes = sorted({row.size for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("columns" if "norm" in rows[0].operation else "N")
    axes.set_ylabel(rate)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)


def save(figure: Any, path: str) -> None:
    """Saves without date or version: the same rows give the same picture."""
    figure.savefig(path, metadata={"Date": None} if path.endswith((".svg", ".svgz")) else {"Software": None})


def _errors(rows: Sequence[Row]) -> list[str]:
    """The error of every modelled point, with the sizes that it applies to if they are of several classes."""
    sizes: dict[str, dict[int, None]] = {}
    for row in rows:
        if row.error_of:
            sizes.setdefault(row.error_of, {})[row.size] = None
    if len(sizes) == 1:
        return list(sizes)
    return [f"{', '.join(map(str, of))}: {text}" for text, of in sizes.items()]


def write(rows: Sequence[Row], path: str, rate: str) -> None:
    """Writes a picture in the format of the file's ending. ValueError if there is nothing to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.microseconds is not None]
    if not timed:
        raise ValueError("--plot: no library ran")
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes, rows, rate)
    figure.suptitle(f"{timed[0].operation}, bfloat16, {timed[0].device}: {timed[0].kind}")
    axes.set_title("\n".join(f"error of the model: {text}" for text in _errors(timed)), fontsize="x-small")
    axes.legend(fontsize="small")
    save(figure, path)
