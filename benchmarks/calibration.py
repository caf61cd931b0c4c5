#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the cycle model with measured times: AITER's own code objects, run in the model at the shapes of its tuning logs.

    python benchmarks/calibration.py --rows FILE.csv [--per-class N] [--fitted FILE] [--results FILE] [--json]
    python benchmarks/calibration.py --rows FILE.csv --fit FILE [--per-class N] [--results FILE]
    python benchmarks/calibration.py --rows FILE.csv --fitted FILE --published GFLOP --write docs/calibration.md
        --plot docs/images/calibration.png --errors hipkittens/profiling/model_error.json

--fit splits the rows by a hash of symbol and shape, runs the part to fit on and writes the fitted numbers with the names of their
rows. A report (--fitted, --write, --errors) runs the rows that were not set apart for fitting, and its errors are of these only.
Without any of these options every row of the file is run, whatever its source: each record states whether it is held out, and
"mape_held_out" in the JSON covers only those that are. --published adds AITER's attention, for which only published tables exist;
--choices adds the kernels that a log did not choose. --results stores the model's result for each row, one JSON object per line, and
reuses the results that the same build of the simulator has stored there.

Rows that cannot be run are listed by line number on standard error; the exit code is 1 if none can. Needs AITER's wheel,
see tests/oracles/aiter/wheel.py.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import calibration_baselines as baselines
import calibration_choice
import calibration_errors
import calibration_launch
import calibration_plot
import calibration_published
import calibration_report
import calibration_rows
from calibration_fit import Fit, fit
from calibration_launch import Launch
from calibration_rows import CannotRun, LeftOut, Row

from hipkittens._simulator import SIMULATOR
from tests.oracles.aiter import wheel

Prepared = list[tuple[Row, Launch]]
FIT = Path(__file__).with_name("calibration_fit.json")
BEFORE = Path(__file__).with_name("calibration_before.json")


def prepare(rows: Iterable[Row], left_out: LeftOut) -> Prepared:
    """Rows with their launches; the reasons why others have none are counted in `left_out`."""
    result = []
    for row in rows:
        try:
            launch = calibration_launch.prepare(row)
        except CannotRun as error:
            left_out.add(f"{row.family}: {error}", row.line)
            continue
        if baselines.is_impossible(row, launch):
            left_out.add("its operations exceed the chip's peak rate: no such time can be", row.line)
        else:
            result.append((row, launch))
    return result


class Model:
    """The cycle model with the settings of this run, and the stored results of this build of the simulator."""

    def __init__(self, settings: Mapping[str, Any], results: Path | None):
        self.settings, self._path, self._known = dict(settings), results, {}
        self._build = hashlib.sha256(SIMULATOR.read_bytes()).hexdigest()[:16]
        if results and results.exists():
            for line in results.read_text().splitlines():
                entry = json.loads(line)
                if entry["settings"] == self.settings and entry["build"] == self._build:
                    self._known[entry["key"]] = entry["modelled"]

    def __call__(
        self, key: str, ask: Callable[[Mapping[str, float]], dict[str, float]]
    ) -> Mapping[str, float]:
        """The result of `ask`, called with this run's parameters, for the row `key`."""
        if key not in self._known:
            self._keep(key, _ask(ask, self.settings["parameters"]))
        return self._known[key]

    def prepare(
        self, asked: Iterable[tuple[str, Callable[[Mapping[str, float]], dict[str, float]]]], jobs: int
    ) -> None:
        """Computes the results that are not stored yet in `jobs` processes. Failures are not stored: they recur when the row is run."""
        left = [(key, ask) for key, ask in dict(asked).items() if key not in self._known]
        if jobs == 1 or not left:
            return
        # Not forked: the simulator has threads.
        with concurrent.futures.ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
            running = {pool.submit(_ask, ask, self.settings["parameters"]): key for key, ask in left}
            for index, future in enumerate(concurrent.futures.as_completed(running)):
                if future.exception() is None:
                    self._keep(running[future], future.result())
                _progress(index + 1, len(left), "rows in processes")

    def _keep(self, key: str, modelled: dict[str, float]) -> None:
        self._known[key] = modelled
        if self._path:
            entry = {"key": key, "build": self._build, "settings": self.settings, "modelled": modelled}
            with self._path.open("a") as file:
                file.write(json.dumps(entry) + "\n")


def _ask(
    ask: Callable[[Mapping[str, float]], dict[str, float]], parameters: Mapping[str, float]
) -> dict[str, float]:
    started = time.perf_counter()
    modelled = ask(parameters)
    return modelled | {"seconds": time.perf_counter() - started}


def _progress(done: int, of: int, what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} {what}", end="\n" * (done == of), file=sys.stderr, flush=True)


def run(prepared: Prepared, model: Model, left_out: LeftOut, seconds: float) -> list[dict[str, Any]]:
    """One record for each row that the model can run, in the order of the file; no row is started after this many seconds."""
    records, started = [], time.perf_counter()
    for index, (row, launch) in enumerate(prepared):
        if time.perf_counter() - started > seconds:
            left_out[f"not reached within --seconds {seconds:g}"] += 1
            continue
        try:
            modelled = model(row.key, functools.partial(calibration_launch.modelled, row, launch))
        except Exception as error:  # a failure of one row must not hide the others
            left_out.add(f"{row.family}: {str(error).splitlines()[0][:120]}", row.line)
            continue
        (m, n, k), bound = row.dimensions, baselines.bound(row, launch)
        records.append(
            {
                "symbol": row.symbol,
                "arch": row.arch,
                "M": m,
                "N": n,
                "K": k,
                "measured_us": row.measured_us,
                **modelled,
                "line": row.line,
                "key": row.key,
                "chip": row.chip,
                "hw": row.hw,
                "family": row.family,
                "bound": bound,
                "shape_class": baselines.CLASSES[bound],
                "matrix_format": launch.matrix_format,
                "shape": dict(row.shape),
            }
        )
        _progress(index + 1, len(prepared), "rows")
    return sorted(records, key=lambda record: record["line"])


def published(figures: list[calibration_published.Figure], model: Model) -> list[dict[str, Any]]:
    """One record for each figure of AITER's attention."""
    records = []
    for index, figure in enumerate(figures):
        said = model(figure.key, functools.partial(calibration_published.modelled, figure))
        records.append(calibration_published.record(figure, said))
        _progress(index + 1, len(figures), "published figures")
    return records


def streams(model: Model) -> list[dict[str, Any]]:
    """One record for each published rate of memory."""
    return [stream.record(model(stream.key, stream.modelled)) for stream in calibration_published.streams()]


def compare(
    records: list[dict[str, Any]],
    prepared: Prepared,
    fit_rows: Prepared,
    used: set[str],
    fitted: Fit | None,
) -> None:
    """Adds to each record the predictions of the fitted model and the baselines ("predictions"); "measured_cycles", the measured time
    at the clock that was fitted for its class, or None; and whether it is held out. `used` are the keys of the fit rows that
    were run. A baseline makes no prediction for the rows that it is fitted on."""
    set_apart = {row.key for row, _ in fit_rows}
    launches = {row.key: (row, launch) for row, launch in prepared}
    two_parameters = baselines.TwoParameters(pair for pair in fit_rows if pair[0].key in used)
    of_all_rows = baselines.TwoParameters(fit_rows)
    for record in records:
        row, launch = launches[record["key"]]
        record["predictions"] = {
            "cycle model": record["predicted_us"],
            "roofline": baselines.roofline(row, launch),
            "Origami's formulas": baselines.origami(row, launch),
            "two parameters per kernel": None if row.key in set_apart else two_parameters(row, launch),
            "two parameters, of all fit rows": None if row.key in set_apart else of_all_rows(row, launch),
        }
        record["held_out"] = row.key not in set_apart
        clock = fitted and fitted.clock(row.family, row.chip, record["bound"])
        record["measured_cycles"] = clock and clock * row.measured_us
        if fitted:
            record["predictions"]["cycle model, fitted"] = fitted.predict(
                row.chip, launch.matrix_format, record["predicted_us"]
            )


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    parameters = {}
    for text in arguments.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise SystemExit(f"calibration.py: --set {text}: write NAME=VALUE, as --set hbm_bandwidth=5500")
        if name not in calibration_launch.chip_parameters("MI355X"):
            raise SystemExit(
                f"calibration.py: --set {text}: the model has no {name}; docs/timing_model.md says where its names are"
            )
        try:
            parameters[name] = float(value)
        except ValueError:
            raise SystemExit(f"calibration.py: --set {text}: {value!r} is no number") from None
    return {"parameters": parameters}


def _sample(arguments: argparse.Namespace) -> dict[str, float | None]:
    return {"per class": arguments.per_class, "largest GFLOP": arguments.largest}


def chosen(
    part: list[Row],
    launches: Mapping[str, Launch],
    arguments: argparse.Namespace,
    left_out: LeftOut,
    also: Iterable[Row] = (),
) -> Prepared:
    """The rows of this run, in the order of their hashes: for each family, chip and bound --per-class rows of at most --largest GFLOP,
    alternating between its kernels, and those of `also` that are no larger."""
    small = [row for row in part if launches[row.key].operations <= arguments.largest * 1e9]
    left_out[f"more than --largest {arguments.largest:g} GFLOP"] += len(part) - len(small)
    rows = calibration_rows.balanced_sample(
        small,
        arguments.per_class or len(small),
        lambda row: (row.family, row.hw, baselines.bound(row, launches[row.key])),
        lambda row: row.symbol,
    )
    rows = sorted({*rows, *(row for row in also if row in small)}, key=lambda row: row.order)
    left_out[f"not among the {arguments.per_class} of each class"] += len(small) - len(rows)
    return [(row, launches[row.key]) for row in rows]


def _of_rows(prepared: Prepared) -> list[tuple[str, Callable[[Mapping[str, float]], dict[str, float]]]]:
    return [
        (row.key, functools.partial(calibration_launch.modelled, row, launch)) for row, launch in prepared
    ]


def _name_lines(file: Path, left_out: LeftOut) -> None:
    for message in left_out.messages():
        print(f"calibration.py: {file}, {message}", file=sys.stderr)


def _nothing_ran(file: Path, left_out: LeftOut) -> int:
    _name_lines(file, left_out)
    others = "; ".join(why for why, count in left_out.items() if count and why not in left_out.lines)
    print(f"calibration.py: {file}: no row was run" + (f": {others}" if others else ""), file=sys.stderr)
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=Path, required=True, help="CSV with the columns of AITER's tuning logs"
    )
    parser.add_argument(
        "--per-class",
        type=int,
        metavar="N",
        help="run N rows of each family, chip and bound, its kernels in turn",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the model"
    )
    parser.add_argument(
        "--largest",
        type=float,
        default=float("inf"),
        metavar="GFLOP",
        help="leave out rows with more operations",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="model so many rows at a time, default: %(default)s"
    )
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after so long")
    parser.add_argument(
        "--published",
        type=float,
        default=0,
        metavar="GFLOP",
        help="run AITER's attention up to this size as well",
    )
    parser.add_argument(
        "--choices",
        type=int,
        default=0,
        metavar="N",
        help="run all kernels of the family at N products of each bound, and see where the model ranks the one of the log",
    )
    parser.add_argument("--results", type=Path, help="keep what the model said here, and do not ask it twice")
    parser.add_argument(
        "--fit", type=Path, help="set a part of the rows apart, fit on these and write the numbers here"
    )
    parser.add_argument("--fitted", type=Path, help="apply the numbers of a --fit before to the other rows")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--plot", type=Path, help="draw predicted over measured times")
    parser.add_argument("--write", type=Path, help="write the report as a page of the documentation")
    parser.add_argument(
        "--errors", type=Path, help="write the errors that the package prints beside modelled figures"
    )
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error(f"--jobs: {arguments.jobs}; allowed: 1 and more")
    settings = _settings(arguments)
    if not wheel.objects():
        raise SystemExit(
            f"calibration.py: needs AITER's code objects: pip install --no-deps {wheel.DISTRIBUTION}=={wheel.VERSION}"
        )
    try:
        rows, left_out = calibration_rows.read(arguments.rows)
    except (OSError, ValueError) as error:
        raise SystemExit(f"calibration.py: {error}") from None
    # Rows once set apart for fitting stay so: numbers may be fitted again, but never on rows for which errors were reported.
    split = arguments.fitted or arguments.fit or FIT
    set_apart = Fit.load(split).set_apart if split.exists() else None
    for_fit, held_out = calibration_rows.split(rows, set_apart)
    set_apart = [row.order for row in for_fit]
    prepared = prepare(rows, left_out)
    if not prepared:
        return _nothing_ran(arguments.rows, left_out)
    launches = {row.key: launch for row, launch in prepared}
    for_fit, held_out = ([row for row in part if row.key in launches] for part in (for_fit, held_out))
    model = Model(settings, arguments.results)
    if arguments.fit:
        sample = chosen(for_fit, launches, arguments, left_out)
        model.prepare(_of_rows(sample), arguments.jobs)
        records = run(sample, model, left_out, arguments.seconds)
        result = fit(records, settings, _sample(arguments), set_apart)
        result.save(arguments.fit)
        for entry in result.fitted:
            print(
                f"{entry.chip} {entry.matrix_format}: fixed {entry.fixed_us:.2f} µs, scale {entry.time_scale:.3f}, "
                f"fitted on {entry.rows} rows"
            )
        for entry in result.clocks:
            print(
                f"{entry.family} {entry.chip} {entry.bound}: {entry.mhz:.0f} MHz, fitted on {entry.rows} rows"
            )
        return 0
    fitted = Fit.load(arguments.fitted) if arguments.fitted else None
    if fitted and fitted.settings != settings:
        parser.error(f"--fitted: was made with {fitted.settings}, this run has {settings}; make both alike")
    used = set(fitted.rows) if fitted else {row.key for row in for_fit}
    is_report = arguments.fitted or arguments.write or arguments.errors
    wanted = held_out if is_report else [*held_out, *for_fit]
    several = calibration_rows.with_several_kernels(held_out)
    sample = chosen(wanted, launches, arguments, left_out, several)
    figures = [
        figure
        for figure in calibration_published.figures()
        if figure.problem.flops <= arguments.published * 1e9
    ]
    others = calibration_choice.launches([(row, launches[row.key]) for row in held_out], arguments.choices)
    model.prepare(
        [
            *_of_rows(sample),
            *_of_rows(others),
            *((figure.key, functools.partial(calibration_published.modelled, figure)) for figure in figures),
            *(
                (stream.key, stream.modelled)
                for stream in calibration_published.streams()
                if arguments.published
            ),
        ],
        arguments.jobs,
    )
    records = run(sample, model, left_out, arguments.seconds)
    if not records:
        return _nothing_ran(arguments.rows, left_out)
    _name_lines(arguments.rows, left_out)
    compare(records, prepared, [(row, launches[row.key]) for row in for_fit], used, fitted)
    report = calibration_report.Report(
        records,
        {row.key: row for row, _ in prepared},
        dict(left_out),
        {
            "in the file": len(rows),
            "for fitting": len(for_fit),
            "held out": len(held_out),
            "published GFLOP": arguments.published,
            "choices": arguments.choices,
            **_sample(arguments),
        },
        settings,
        fitted,
        published(figures, model),
        calibration_choice.choices(
            [(row, launches[row.key]) for row in held_out],
            arguments.choices,
            model,
            baselines.TwoParameters((row, launches[row.key]) for row in for_fit),
        ),
        left_out.repeats,
        streams(model) if arguments.published else [],
        calibration_errors.read(BEFORE),
    )
    if arguments.plot:
        calibration_plot.draw(report, arguments.plot)
    if arguments.errors:
        calibration_errors.write([*report.records, *report.by_aiter], arguments.errors)
    if arguments.write:
        before = arguments.write.read_text() if arguments.write.exists() else ""
        arguments.write.write_text(report.page(arguments.plot, before))
    if arguments.json:
        json.dump(report.as_json(), sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print(report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
