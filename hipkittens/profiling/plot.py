# SPDX-License-Identifier: MIT
"""The plot of `hipkittens bench`: a line for each library over the sizes, dots for what was published."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .bench import Row

_LINES = {"hipkittens": "C1", "aiter": "C0", "triton": "C2", "torch": "C3"}


def require(path: str) -> None:
    """ValueError without matplotlib, or for an ending that is no picture's; before anything runs."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    allowed = sorted(FigureCanvasAgg.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in allowed:
        raise ValueError(f"--plot: {path!r} does not end as a picture; allowed: {', '.join(allowed)}")


def write(rows: list[Row], path: str) -> None:
    """Writes a picture in the format of the file's ending. ValueError if there is nothing to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    timed = [row for row in rows if row.microseconds is not None]
    if not timed:
        raise ValueError("--plot: no library ran")
    by_flops = timed[0].tflops is not None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for library in dict.fromkeys(row.library for row in rows):
        of_library = sorted((row for row in rows if row.library == library), key=lambda row: row.size)
        ran = [row for row in of_library if row.microseconds is not None]
        colour = _LINES[library]
        if ran:
            values = [(row.tflops if by_flops else row.gbps) for row in ran]
            axes.plot(
                [row.size for row in ran], values, "o-", color=colour, label=f"{library}, {ran[0].kind}"
            )
        known = [row for row in of_library if row.published_tflops is not None]
        if known and by_flops:
            axes.plot(
                [row.size for row in known],
                [row.published_tflops for row in known],
                "x:",
                color=colour,
                alpha=0.6,
                label=f"{library}, published",
            )
    first = timed[0]
    axes.set_title(f"{first.operation}, bfloat16, {first.device}: {first.kind}")
    sizes = sorted({row.size for row in rows})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.minorticks_off()
    axes.set_xlabel("columns" if "norm" in first.operation else "N")
    axes.set_ylabel("TFLOP/s" if by_flops else "GB/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    # No date and no version in the file: the same rows give the same picture.
    figure.savefig(path, metadata={"Date": None} if path.endswith((".svg", ".svgz")) else {"Software": None})
