# SPDX-License-Identifier: MIT
"""Reports errors of the cycle model and of the baselines by family, chip and shape class: as text, JSON, a page and a plot."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import calibration_baselines as baselines
import calibration_errors
import calibration_published
from calibration_choice import Choice
from calibration_fit import Fit
from calibration_page import PAGE
from calibration_rows import FIT_SHARE, Row

from hipkittens.profiling.model_error import Cell

MODELS = (
    "cycle model",
    "cycle model, fitted",
    "two parameters per kernel",
    "two parameters, of all fit rows",
    "Origami's formulas",
    "roofline",
)

# Two measurements of one kernel differ by up to this: below it, measured times do not tell which of two kernels is faster.
APART = 0.03
SAME_ROWS = "rows with a prediction in every column"

BEGIN, END = "<!-- known errors: written by hand, kept -->", "<!-- end of known errors -->"


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def published_plot(path: Path) -> Path:
    """The path of the plot of published times when the others are written to `path`."""
    return path.with_name(f"{path.stem}_published{path.suffix}")


@dataclasses.dataclass
class Report:
    """`records` are those of benchmarks/calibration.py, each of which states whether it is held out; a page contains only held-out ones.
    `published` are AITER's own attention kernels, `choices` the models' ranks of the kernels that logs chose, and `repeats` the factors
    by which repeated measurements of one kernel at one shape differ. `streams` are rates of memory. `before` has the errors of an earlier
    model on the same rows."""

    records: list[dict[str, Any]]
    rows: Mapping[str, Row]
    left_out: Mapping[str, int]
    counts: Mapping[str, int | None]
    settings: Mapping[str, Any]
    fitted: Fit | None
    published: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    choices: list[Choice] = dataclasses.field(default_factory=list)
    repeats: list[float] = dataclasses.field(default_factory=list)
    streams: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    before: Sequence[Cell] = ()

    @property
    def by_aiter(self) -> list[dict[str, Any]]:
        """The published figures that are kernel times, not times of calls from Python."""
        return [record for record in self.published if record["publisher"] == calibration_published.AITER]

    @property
    def _kind(self) -> str:
        return "held-out rows" if all(record["held_out"] for record in self.records) else "rows"

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

    def cycle_errors(self, of: Callable[[dict], bool] = lambda record: True) -> Mapping[str, float]:
        """Errors in cycles at one fitted clock for each family, chip and bound; rows of a class without a fitted clock do not count."""
        return baselines.errors(
            (record["cycles"], record["measured_cycles"])
            for record in self.records
            if of(record) and record["measured_cycles"] is not None
        )

    def mean_over_families(self, model: str) -> tuple[float, int]:
        """The mean over (family, chip) pairs of their mean errors, and the number of pairs: none is weighted by its number of rows."""
        groups = sorted({(record["family"], record["chip"]) for record in self.records})
        found = []
        for group in groups:
            error = self.errors(
                model, lambda record, group=group: (record["family"], record["chip"]) == group
            )
            if error["rows"]:
                found.append(error["mape"])
        return (statistics.fmean(found) if found else float("nan")), len(found)

    def goals(self) -> list[tuple[str, float, float, bool]]:
        """The goals on held-out rows: goal, limit, result, and whether the result is within the limit."""
        if not all(record["held_out"] for record in self.records):
            held_out = [record for record in self.records if record["held_out"]]
            return dataclasses.replace(self, records=held_out).goals() if held_out else []
        found = [("error in time, all rows, %", 15.0, self.errors("cycle model")["mape"])]
        found.append(
            (
                "error in time, mean over (family, chip) pairs, %",
                15.0,
                self.mean_over_families("cycle model")[0],
            )
        )
        for family in sorted({record["family"] for record in self.records}):
            error = self.cycle_errors(lambda record, family=family: record["family"] == family)
            if error["rows"]:
                found.append((f"error in cycles, {family}, %", 10.0, error["mape"]))
        same = dict(self.groups())[SAME_ROWS]
        for model in self.models:
            if not model.startswith("cycle") and self.errors(model, same)["rows"]:
                limit = self.errors(model, same)["mape"]
                found.append(
                    (
                        f"less error than {model} on the same rows, %",
                        limit,
                        self.errors("cycle model", same)["mape"],
                    )
                )
        result = [(name, limit, value, value <= limit) for name, limit, value in found]
        for name, ranked in self.ranked("cycle model").items():
            rank, count = baselines.rank_correlation_at_same_problem(ranked, APART)
            if rank is not None:
                name = f"rank correlation at least, {name}: {count} problems with kernels {APART:.0%} apart"
                result.append((name, 0.95, rank, rank >= 0.95))
        return result

    def goal_table(self) -> str:
        lines = ["| goal | limit | cycle model | |", "|---|---|---|---|"]
        for name, limit, value, reached in self.goals():
            lines.append(f"| {name} | {limit:.2f} | {value:.2f} | {'reached' if reached else 'missed'} |")
        return "\n".join(lines)

    def ranked(self, model: str) -> dict[str, list[tuple[Hashable, float, float]]]:
        """Problem, predicted and measured time of each kernel: in the tuning logs; in AITER's table of attention backward, where
        sums of 16 and of 32 bits are two kernels; and in both. Baselines make no prediction for the second."""
        logs = [
            (self.rows[record["key"]].problem, record["predictions"][model], record["measured_us"])
            for record in self.records
            if record["predictions"].get(model) is not None
        ]
        table = [
            ((record["chip"], record["shape"]), record["predicted_us"], record["measured_us"])
            for record in self.by_aiter
            if record["sums"] and model == "cycle model"
        ]
        return {"tuning logs": logs} | (
            {"attention backward": table, "both": [*logs, *table]} if table else {}
        )

    def groups(self) -> list[tuple[str, Callable[[dict], bool]]]:
        def everywhere(record: dict) -> bool:
            return all(record["predictions"].get(model) is not None for model in self.models)

        found = [("all", lambda record: True), (SAME_ROWS, everywhere)]
        for name in ("chip", "family", "shape_class"):
            for value in sorted({record[name] for record in self.records}):
                found.append((value, lambda record, name=name, value=value: record[name] == value))
        return found

    def table(self) -> str:
        """Mean absolute relative errors; for the cycle models also the median signed error."""
        lines = [f"| {self._kind} | number |", "|---|---|"]
        for model in self.models:
            signed = model.startswith("cycle")
            lines[0] += f" {model} |" + " its bias |" * signed
            lines[1] += "---|" * (1 + signed)
        for name, of in self.groups():
            line = f"| {name} | {sum(map(of, self.records))} |"
            for model in self.models:
                error = self.errors(model, of)
                figure = f"{error['mape']:.1f} %" if error["rows"] else "none"
                bias = f"{error['bias']:+.1f} %" if error["rows"] else ""
                line += f" {figure} |" + f" {bias} |" * model.startswith("cycle")
            lines.append(line)
        line = "| mean over (family, chip) pairs | |"
        for model in self.models:
            mean, count = self.mean_over_families(model)
            line += f" {mean:.1f} % of {count} |" + " |" * model.startswith("cycle")
        lines.insert(3, line)
        return "\n".join(lines)

    def class_table(self) -> str:
        """By family, chip and bound: errors in time, and in cycles at the clock fitted for that class."""
        lines = [
            "| family | chip | bound | rows | error in time | bias | largest | error in cycles | clock MHz, fitted on |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        classes = sorted({(record["family"], record["chip"], record["bound"]) for record in self.records})
        for of_class in classes:

            def of(record: dict, of_class: tuple = of_class) -> bool:
                return (record["family"], record["chip"], record["bound"]) == of_class

            time, cycles = self.errors("cycle model", of), self.cycle_errors(of)
            clocks = (
                [entry for entry in self.fitted.clocks if (entry.family, entry.chip, entry.bound) == of_class]
                if self.fitted
                else []
            )
            lines.append(
                f"| {' | '.join(of_class)} | {time['rows']} | {time['mape']:.1f} % | {time['bias']:+.1f} % | {time['worst']:.0f} % |"
                + (
                    f" {cycles['mape']:.1f} % | {clocks[0].mhz:.0f}, {clocks[0].rows} rows |"
                    if clocks
                    else " none | too few rows |"
                )
            )
        return "\n".join(lines)

    def cycles_text(self) -> str:
        families = []
        for family in sorted({record["family"] for record in self.records}):
            error = self.cycle_errors(lambda record, family=family: record["family"] == family)
            if error["rows"]:
                families.append(f"{family} {error['mape']:.1f} % ({error['rows']} rows)")
        error = self.cycle_errors()
        if not error["rows"]:
            return "No clock was fitted for this run."
        return f"Error in cycles, all rows of classes with a clock: {error['mape']:.1f} % ({error['rows']} rows); {', '.join(families)}."

    @property
    def repeat_spread(self) -> float:
        """The spread that contains nine of ten repeated measurements of one kernel at one shape; 0 if the file has too few."""
        return statistics.quantiles(self.repeats, n=10)[-1] - 1 if len(self.repeats) >= 5 else 0.0

    def rank_table(self) -> str:
        thresholds = sorted({0.0, APART, self.repeat_spread})
        lines = [
            "| | of | rank correlation of kernels for the same problem | problems |"
            + "".join(f" where they are at least {apart:.0%} apart | problems |" for apart in thresholds[1:]),
            "|---|---|" + "---|---|" * len(thresholds),
        ]
        for model in self.models:
            for name, ranked in self.ranked(model).items():
                line = f"| {model} | {name} |"
                for apart in thresholds:
                    value, count = baselines.rank_correlation_at_same_problem(ranked, apart)
                    line += f" {'not defined' if value is None else f'{value:.2f}'} | {count} |"
                lines.append(line)
        return "\n".join(lines)

    def published_table(self) -> str:
        """Errors against published attention times by publisher, operation, mask and chip."""
        lines = [
            "| published by | operation | chip | figures | error | bias | largest | launch overhead | not in the wheel |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        groups: dict[tuple, list[dict]] = {}
        for record in self.published:
            name = record["operation"].replace("_", " ") + f" {record['sums']}" * bool(record["sums"])
            name += ", causal" * record["causal"]
            groups.setdefault((record["publisher"], name, record["chip"]), []).append(record)
        for (publisher, name, chip), records in sorted(groups.items(), reverse=True):
            error = baselines.errors((record["predicted_us"], record["measured_us"]) for record in records)
            launching, missing = (
                statistics.fmean(record[name] / record["predicted_us"] for record in records)
                for name in ("launching_us", "missing_us")
            )
            lines.append(
                f"| {publisher} | {name} | {chip} | {error['rows']} | {error['mape']:.1f} % | {error['bias']:+.1f} % | {error['worst']:.0f} % "
                f"| {launching:.0%} | {missing:.0%} |"
            )
        if self.by_aiter:
            error = baselines.errors(
                (record["predicted_us"], record["measured_us"]) for record in self.by_aiter
            )
            lines.append(
                f"| {calibration_published.AITER} | all | | {error['rows']} | {error['mape']:.1f} % | {error['bias']:+.1f} % "
                f"| {error['worst']:.0f} % | | |"
            )
        return "\n".join(lines)

    def before_table(self) -> str:
        """Mean errors and mean signed errors of each class, compared with those of the model before."""
        before = {(cell.family, cell.chip, cell.bound): cell for cell in self.before}
        lines = [
            "| family | chip | bound | rows | error before | now | bias before | now |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for cell in calibration_errors.cells([*self.records, *self.by_aiter]):
            old = before.get((cell.family, cell.chip, cell.bound))
            was = (f"{old.error:.1f} %", f"{old.bias:+.1f} %") if old and old.rows == cell.rows else ("", "")
            lines.append(
                f"| {cell.family} | {cell.chip} | {cell.bound} | {cell.rows} | {was[0]} | {cell.error:.1f} % "
                f"| {was[1]} | {cell.bias:+.1f} % |"
            )
        return "\n".join(lines)

    def stream_table(self) -> str:
        lines = [
            "| operation | chip | measured TB/s | modelled TB/s | error in time |",
            "|---|---|---|---|---|",
        ]
        for record in self.streams:
            measured, modelled = (
                record["bytes"] / record[name] / 1e6 for name in ("measured_us", "predicted_us")
            )
            lines.append(
                f"| {record['operation'].replace('_', ' ')} {record['shape']} | {record['chip']} | {measured:.2f} | {modelled:.2f} "
                f"| {record['predicted_us'] / record['measured_us'] - 1:+.1%} |"
            )
        return "\n".join(lines)

    def choice_table(self) -> str:
        """The rank that each model gives the log's kernel among all of its family."""
        lines = [
            "| model | bound | problems | kernels at each | same choice as the log | kernels ranked before the log's "
            "| log's kernel longer than the model's choice, mean | largest |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for model in MODELS:
            for bound in (*baselines.CLASSES, None):
                of = [
                    choice
                    for choice in self.choices
                    if model in choice.predictions and bound in (None, choice.bound)
                ]
                if not of:
                    continue
                places, excess = (
                    [getattr(choice, what)(model) for choice in of] for what in ("place", "excess")
                )
                kernels = statistics.fmean(choice.kernels for choice in of)
                lines.append(
                    f"| {model} | {bound or 'all'} | {len(of)} | {kernels:.0f} | {sum(place == 0 for place in places)} "
                    f"| {statistics.fmean(places):.1%} | {statistics.fmean(excess):.1%} | {max(excess):.0%} |"
                )
        return "\n".join(lines)

    def fitted_table(self) -> str:
        if not self.fitted:
            return "Nothing was fitted for this run."
        if not self.fitted.fitted:
            return "There were too few rows to fit on."
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
                f"{len(self.records)} {self._kind}"
                + f", {sum(record['held_out'] for record in self.records)} of them held out"
                * (self._kind == "rows")
                + "; times are modelled",
                self.goal_table(),
                self.table(),
                self.class_table(),
                self.cycles_text(),
                self.rank_table(),
                self.choice_table() if self.choices else "No kernels that logs did not choose were run.",
                self.published_table() if self.published else "No published figures were run.",
                self.fitted_table(),
                self.worst(),
                self.left_out_table(),
            )
        )

    def as_json(self) -> dict[str, Any]:
        """The report as JSON; figures that do not exist are null."""
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
        return _without_nan(
            {
                "mape": self.errors(model)["mape"],
                "mape_held_out": self.errors(model, lambda record: record["held_out"])["mape"],
                "predicted_by": model,
                "rows": rows,
                "errors": by_group,
                "mape_over_families": {model: self.mean_over_families(model)[0] for model in self.models},
                "goals": [
                    dict(zip(("goal", "limit", "value", "reached"), goal, strict=True))
                    for goal in self.goals()
                ],
                "errors_in_cycles": {name: dict(self.cycle_errors(of)) for name, of in self.groups()},
                "rank_correlation": {
                    model: {
                        name: baselines.rank_correlation_at_same_problem(ranked, APART)[0]
                        for name, ranked in self.ranked(model).items()
                    }
                    for model in self.models
                },
                "published": self.published,
                "choices": [dataclasses.asdict(choice) for choice in self.choices],
                "rows_cannot_run": {why: count for why, count in self.left_out.items() if count},
                "counts": dict(self.counts),
                "settings": dict(self.settings),
                "fitted": dataclasses.asdict(self.fitted) if self.fitted else None,
            }
        )

    def commands(self) -> str:
        """The commands that reproduce this page, except for file locations."""

        def command(counts: Mapping[str, Any], *last: str) -> str:
            parts = ["python benchmarks/calibration.py --rows FILE.csv"]
            if counts["per class"]:
                parts.append(f"--per-class {counts['per class']}")
            if counts["largest GFLOP"] != float("inf"):
                parts.append(f"--largest {counts['largest GFLOP']:g}")
            parts += [f"--set {name}={value:g}" for name, value in self.settings["parameters"].items()]
            return " ".join([*parts, *last])

        published = (f"--published {self.counts['published GFLOP']:g}",) if self.published else ()
        published += (f"--choices {self.counts['choices']}",) if self.choices else ()
        if not self.fitted:
            return command(self.counts, *published)
        file = "benchmarks/calibration_fit.json"
        return f"{command(self.fitted.sample, '--fit', file)}\n{command(self.counts, '--fitted', file, *published)}"

    def page(self, plot: Path | None, before: str = "") -> str:
        """docs/calibration.md: tables of this run; paragraphs on known errors are kept from the previous page, `before`."""
        known = before.partition(BEGIN)[2].partition(END)[0].strip()
        overridden = ", ".join(f"{name} = {value:g}" for name, value in self.settings["parameters"].items())
        picture = ""
        if plot:
            where = os.path.relpath(plot, "docs")
            picture = f"![Modelled over measured times of held-out rows]({where})\n\n"
        sampled = f", of which a sample of {len(self.records)} was run" if self.counts["per class"] else ""
        published = "None was run."
        if self.published:
            drawn = (
                f"![Modelled over published times]({os.path.relpath(published_plot(plot), 'docs')})\n\n"
                if plot
                else ""
            )
            published = f"{self.published_table()}\n\n{drawn}".rstrip()
        deviation = [abs(record["predicted_us"] / record["measured_us"] - 1) for record in self.records]
        return PAGE.format(
            commands=self.commands(),
            goals=self.goal_table(),
            uncertainty=f"{100 * statistics.stdev(deviation) / len(deviation) ** 0.5:.1f}",
            distinct=self.counts["in the file"],
            fitting=self.counts["for fitting"],
            held_out=self.counts["held out"],
            sampled=sampled,
            share=f"{FIT_SHARE:.0%}",
            apart=f"{APART:.0%}",
            overridden=overridden or "none",
            table=self.table(),
            classes=self.class_table(),
            cycles=self.cycles_text(),
            published=published,
            picture=picture,
            before=self.before_table() if self.before else "Nothing is known of an earlier model.",
            ranks=self.rank_table(),
            repeats=len(self.repeats),
            spread=f"{self.repeat_spread:.0%}",
            choices=self.choice_table() if self.choices else "None was run.",
            streams=self.stream_table() if self.streams else "None was run.",
            fitted=self.fitted_table(),
            worst=self.worst(),
            left_out=self.left_out_table(),
            known=known,
            begin=BEGIN,
            end=END,
        )
