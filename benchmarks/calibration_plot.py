# SPDX-License-Identifier: MIT
"""The plots of the calibration: modelled times against measured ones and against published ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import calibration_baselines as baselines
import calibration_published
from calibration_report import Report, published_plot


def draw(report: Report, path: Path) -> None:
    """Predicted against measured µs with the band of the mean error, one panel for each cycle model; and, in a file next to
    it, modelled against published times."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    models = [model for model in report.models if model.startswith("cycle")]
    figure, panels = pyplot.subplots(
        1, len(models), figsize=(5.5 * len(models), 5), squeeze=False, layout="constrained"
    )
    for panel, model in zip(panels[0], models, strict=True):
        ends = _diagonal(
            panel, [record["measured_us"] for record in report.records], report.errors(model)["mape"]
        )
        for chip in sorted({record["chip"] for record in report.records}):
            for family in sorted({record["family"] for record in report.records if record["chip"] == chip}):
                points = [
                    (record["measured_us"], record["predictions"][model])
                    for record in report.records
                    if (record["chip"], record["family"]) == (chip, family)
                ]
                panel.scatter(*zip(*points, strict=True), s=12, label=f"{family}, {chip}")
        panel.set(xlim=ends, ylim=ends, xlabel="measured µs", ylabel="modelled µs", title=model)
        panel.legend(fontsize=7)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    if report.published:
        figure, panel = pyplot.subplots(figsize=(6.5, 6), layout="constrained")
        _draw_published(report, panel)
        figure.savefig(published_plot(path), dpi=110)
        pyplot.close(figure)


def _draw_published(report: Report, panel: Any) -> None:
    """Bars span the published times of one problem, where there are several."""
    records = report.by_aiter
    error = baselines.errors((record["predicted_us"], record["measured_us"]) for record in records)["mape"]
    ends = _diagonal(panel, [record["measured_us"] for record in report.published], error)
    chips = sorted({record["chip"] for record in report.published})
    for index, chip in enumerate(chips):
        for marker, operation, causal in (
            ("o", "attention", False), ("v", "attention", True), ("s", "attention_backward", False), ("^", "attention_backward", True),
        ):  # fmt: skip
            label = f"{operation.replace('_', ' ')}{', causal' * causal}, {chip}"
            same = [
                r
                for r in report.published
                if (r["chip"], r["operation"], r["causal"]) == (chip, operation, causal)
            ]
            own = [r for r in same if r["publisher"] == calibration_published.AITER]
            others = [r for r in same if r not in own]
            _bars(panel, own, label, fmt=marker, color=f"C{index}")
            _bars(
                panel,
                others,
                f"{label}, calls from Python",
                fmt=marker,
                color=f"C{index}",
                markerfacecolor="none",
            )
    panel.set(
        xlim=ends,
        ylim=ends,
        xlabel="published µs",
        ylabel="modelled µs",
        title="Kernels of published tables",
    )
    panel.legend(fontsize=6)


def _diagonal(panel: Any, times: list[float], error: float) -> tuple[float, float]:
    """Logarithmic axes, the line on which a model is exact, and a band of the mean error; returns the ends of both axes."""
    ends = min(times) / 1.5, max(times) * 1.5
    panel.set(xscale="log", yscale="log")
    panel.plot(ends, ends, color="black", linewidth=0.8)
    panel.fill_between(
        ends,
        [end * max(0.01, 1 - error / 100) for end in ends],
        [end * (1 + error / 100) for end in ends],
        color="black",
        alpha=0.08,
        label=f"± mean error, {error:.0f} %",
    )
    return ends


def _bars(panel: Any, records: list[dict[str, Any]], label: str, **style: Any) -> None:
    if not records:
        return
    times, slowest, predicted = (
        [record[name] for record in records] for name in ("measured_us", "slowest_us", "predicted_us")
    )
    spread = [[0.0] * len(times), [slow - fast for slow, fast in zip(slowest, times, strict=True)]]
    panel.errorbar(times, predicted, xerr=spread, markersize=4, elinewidth=0.8, label=label, **style)
