# SPDX-License-Identifier: MIT
"""Errors of the cycle model and of the baselines by family, chip and shape class: as text, JSON, a page and a plot."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import calibration_baselines as baselines
from calibration_fit import Fit
from calibration_rows import FIT_SHARE, Row

MODELS = (
    "cycle model",
    "cycle model, fitted",
    "two parameters per kernel",
    "Origami's formulas",
    "roofline",
)

BEGIN, END = "<!-- known errors: written by hand, kept -->", "<!-- end of known errors -->"


@dataclasses.dataclass
class Report:
    """`records` as benchmarks/calibration.py makes them, of held-out rows only."""

    records: list[dict[str, Any]]
    rows: Mapping[str, Row]
    left_out: Mapping[str, int]
    counts: Mapping[str, int | None]
    settings: Mapping[str, Any]
    fitted: Fit | None

    @property
    def models(self) -> list[str]:
        return [name for name in MODELS if any(name in record["predictions"] for record in self.records)]

    def errors(self, model: str, of: Callable[[dict], bool] = lambda record: True) -> Mapping[str, float]:
        pairs = (
            (record["predictions"][model], record["measured_us"])
            for record in self.records
            if of(record) and record["predictions"].get(model) is not None
        )
        return baselines.errors(pairs)

    def rank_correlation(self, model: str) -> tuple[float | None, int]:
        return baselines.rank_correlation_at_same_problem(
            (self.rows[record["key"]], record["predictions"][model])
            for record in self.records
            if record["predictions"].get(model) is not None
        )

    def groups(self) -> list[tuple[str, Callable[[dict], bool]]]:
        found = [("all", lambda record: True)]
        for name in ("chip", "family", "shape_class"):
            for value in sorted({record[name] for record in self.records}):
                found.append((value, lambda record, name=name, value=value: record[name] == value))
        return found

    def table(self) -> str:
        """Mean absolute relative errors; after the cycle models the median signed error."""
        lines = ["| held-out rows | number |", "|---|---|"]
        for model in self.models:
            signed = model.startswith("cycle")
            lines[0] += f" {model} |" + " its bias |" * signed
            lines[1] += "---|" * (1 + signed)
        for name, of in self.groups():
            line = f"| {name} | {sum(map(of, self.records))} |"
            for model in self.models:
                error = self.errors(model, of)
                figure = f"{error['mape']:.1f} %" if error["rows"] else "none"
                line += f" {figure} |" + f" {error['bias']:+.1f} % |" * model.startswith("cycle")
            lines.append(line)
        return "\n".join(lines)

    def rank_table(self) -> str:
        lines = ["| | rank correlation of kernels at the same problem | problems |", "|---|---|---|"]
        for model in self.models:
            value, count = self.rank_correlation(model)
            lines.append(f"| {model} | {'not defined' if value is None else f'{value:.2f}'} | {count} |")
        return "\n".join(lines)

    def fitted_table(self) -> str:
        if not self.fitted:
            return "Nothing was fitted for this run."
        lines = ["| chip | format | fixed_us | time_scale | fitted on |", "|---|---|---|---|---|"]
        lines += [
            f"| {entry.chip} | {entry.matrix_format} | {entry.fixed_us:.2f} | {entry.time_scale:.3f} | {entry.rows} rows |"
            for entry in self.fitted.fitted
        ]
        return "\n".join(lines)

    def left_out_table(self) -> str:
        lines = ["| rows | why |", "|---|---|"]
        return "\n".join(
            lines
            + [
                f"| {count} | {why} |"
                for why, count in sorted(self.left_out.items(), key=lambda item: -item[1])
                if count
            ]
        )

    def worst(self, count: int = 12) -> str:
        def distance(record: dict) -> float:
            ratio = record["predicted_us"] / record["measured_us"]
            return max(ratio, 1 / ratio)

        lines = [
            "| kernel | chip | M, N, K | measured µs | modelled µs | MFMA busy |",
            "|---|---|---|---|---|---|",
        ]
        for record in sorted(self.records, key=distance, reverse=True)[:count]:
            name = self.rows[record["key"]].name.rsplit("/", 1)[1].removesuffix(".co")
            lines.append(
                f"| {name} | {record['chip']} | {record['M']}, {record['N']}, {record['K']} "
                f"| {record['measured_us']:.1f} | {record['predicted_us']:.1f} | {record['matrix_busy']:.2f} |"
            )
        return "\n".join(lines)

    def text(self) -> str:
        return "\n\n".join(
            (
                f"{len(self.records)} held-out rows; times are modelled",
                self.table(),
                self.rank_table(),
                self.fitted_table(),
                self.left_out_table(),
            )
        )

    def as_json(self) -> dict[str, Any]:
        model = "cycle model, fitted" if self.fitted else "cycle model"
        by_group = {
            name: {model: dict(self.errors(model, of)) for model in self.models} for name, of in self.groups()
        }
        rows = [
            {
                **{key: value for key, value in record.items() if key != "predictions"},
                "predicted_us": record["predictions"][model],
                "modelled_us": record["predicted_us"],
                "predictions": record["predictions"],
            }
            for record in self.records
        ]
        return {
            "mape": self.errors(model)["mape"],
            "predicted_by": model,
            "rows": rows,
            "errors": by_group,
            "rank_correlation": {name: self.rank_correlation(name)[0] for name in self.models},
            "rows_cannot_run": {why: count for why, count in self.left_out.items() if count},
            "counts": dict(self.counts),
            "settings": dict(self.settings),
            "fitted": dataclasses.asdict(self.fitted) if self.fitted else None,
        }

    def plot(self, path: Path) -> None:
        """Predicted over measured µs with the band of the mean error, one panel for each cycle model."""
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot

        models = [model for model in self.models if model.startswith("cycle")]
        figure, panels = pyplot.subplots(
            1, len(models), figsize=(5.5 * len(models), 5), squeeze=False, layout="constrained"
        )
        times = [record["measured_us"] for record in self.records]
        ends = min(times) / 1.5, max(times) * 1.5
        for panel, model in zip(panels[0], models, strict=True):
            error = self.errors(model)["mape"]
            panel.plot(ends, ends, color="black", linewidth=0.8)
            panel.fill_between(
                ends,
                [end * max(0.01, 1 - error / 100) for end in ends],
                [end * (1 + error / 100) for end in ends],
                color="black",
                alpha=0.08,
                label=f"± mean error, {error:.0f} %",
            )
            for chip in sorted({record["chip"] for record in self.records}):
                for family in sorted({record["family"] for record in self.records if record["chip"] == chip}):
                    points = [
                        (record["measured_us"], record["predictions"][model])
                        for record in self.records
                        if (record["chip"], record["family"]) == (chip, family)
                    ]
                    panel.scatter(*zip(*points, strict=True), s=12, label=f"{family}, {chip}")
            panel.set(
                xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured µs", ylabel="modelled µs", title=model
            )  # fmt: skip
            panel.legend(fontsize=7)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        pyplot.close(figure)

    def page(self, plot: Path | None, before: str = "") -> str:
        """docs/calibration.md: tables of this run; paragraphs on known errors are kept from the page as it was `before`."""
        known = before.partition(BEGIN)[2].partition(END)[0].strip()
        overridden = ", ".join(f"{name} = {value:g}" for name, value in self.settings["parameters"].items())
        picture = ""
        if plot:
            where = os.path.relpath(plot, "docs")
            picture = f"![Modelled over measured times of held-out rows]({where})\n\n"
        sampled = f", of which a sample of {len(self.records)} was run" if self.counts["sample"] else ""
        return _PAGE.format(
            distinct=self.counts["in the file"],
            fitting=self.counts["for fitting"],
            held_out=self.counts["held out"],
            sampled=sampled,
            share=f"{FIT_SHARE:.0%}",
            overridden=overridden or "none",
            table=self.table(),
            picture=picture,
            ranks=self.rank_table(),
            fitted=self.fitted_table(),
            worst=self.worst(),
            left_out=self.left_out_table(),
            known=known,
            begin=BEGIN,
            end=END,
        )


_PAGE = """# How far the cycle model is off

<!-- written by benchmarks/calibration.py, but for the known errors; change that, not this -->

Every time below that is not called measured is **modelled**. Measured times are AITER's: its tuning logs give, for a
kernel and a shape, the time on a GPU. The kernels are in its wheel, so the [cycle model](timing_model.md) runs the same
code objects at the same shapes:

```sh
python benchmarks/calibration.py --rows FILE.csv --largest 60 --sample 60 --seconds 45 --fit benchmarks/calibration_fit.json
python benchmarks/calibration.py --rows FILE.csv --largest 60 --sample 110 --seconds 60 --fitted benchmarks/calibration_fit.json
```

The file holds {distinct} distinct rows that say enough. Within each family and chip {share} of them, the first by a
SHA-256 of symbol and shape, may be fitted on ({fitting} rows); the others are held out ({held_out} rows{sampled}).
**Only held-out rows are counted below.** Parameters replaced: {overridden}.

## Errors

Mean of |predicted / measured - 1|; *bias* is the median of predicted / measured - 1.

{table}

{picture}The baselines see the same rows: a *roofline* of peak matrix rate and achievable HBM bandwidth; *Origami*, AMD's
analytical model for matrix products, from its published formulas and constants, at the peak clock; and *two parameters
per kernel*, rounds x (a + b K), fitted on the rows that the model was fitted on, where a kernel with fewer than three such
rows takes the pair of its family, and none where that has no such row either: those count in the other columns only.

{ranks}

The logs of matrix products keep the fastest kernel of each shape only, so kernels can be ranked for mixtures of experts
alone.

## What is fitted

Beside the model's own numbers (`hipkittens._timing.parameters`, each with its source): measured = fixed_us + time_scale x
modelled, for each chip and matrix format.

{fitted}

## Largest errors

{worst}

## Known errors

{begin}

{known}

{end}

## Left out

{left_out}
"""
