#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cycle model beside measured times: AITER's own code objects, run in the model at the shapes of its tuning logs.

    python benchmarks/calibration.py --rows FILE.csv [--sample N] [--fitted FILE] [--results FILE] [--json]
    python benchmarks/calibration.py --rows FILE.csv --fit FILE [--sample N] [--results FILE]
    python benchmarks/calibration.py --rows FILE.csv --fitted FILE --write docs/calibration.md --plot docs/images/calibration.png

The rows are split by a hash of symbol and shape. --fit runs the one part and writes fitted numbers with the names of
their rows; everything else runs the other part, and errors are of that part alone. --results keeps what the model said
of each row, one JSON object per line, and takes from it what it already has. Needs AITER's wheel, see
tests/oracles/aiter/wheel.py.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import calibration_baselines as baselines
import calibration_launch
import calibration_report
import calibration_rows
from calibration_fit import Fit, fit
from calibration_launch import Launch
from calibration_rows import CannotRun, Row

Prepared = list[tuple[Row, Launch]]


def prepare(rows: Iterable[Row], left_out: collections.Counter[str]) -> Prepared:
    """Rows with their launches; why the others have none is counted in `left_out`."""
    result = []
    for row in rows:
        try:
            result.append((row, calibration_launch.prepare(row)))
        except CannotRun as error:
            left_out[f"{row.family}: {error}"] += 1
    return result


class Model:
    """The cycle model with the settings of this run, and what it has said before."""

    def __init__(self, settings: Mapping[str, Any], results: Path | None):
        self.settings, self._path, self._known = dict(settings), results, {}
        if results and results.exists():
            for line in results.read_text().splitlines():
                entry = json.loads(line)
                if entry["settings"] == self.settings:
                    self._known[entry["key"]] = entry["modelled"]

    def __call__(self, row: Row, launch: Launch) -> Mapping[str, float]:
        if row.key not in self._known:
            started = time.perf_counter()
            modelled = calibration_launch.modelled(row, launch, self.settings["parameters"])
            modelled["seconds"] = time.perf_counter() - started
            self._known[row.key] = modelled
            if self._path:
                with self._path.open("a") as file:
                    entry = {"key": row.key, "settings": self.settings, "modelled": modelled}
                    file.write(json.dumps(entry) + "\n")
        return self._known[row.key]


def run(
    prepared: Prepared, model: Model, left_out: collections.Counter[str], seconds: float
) -> list[dict[str, Any]]:
    """One record for each row that the model can run; none is begun after so many seconds."""
    records, started = [], time.perf_counter()
    for index, (row, launch) in enumerate(prepared):
        if time.perf_counter() - started > seconds:
            left_out[f"not reached within --seconds {seconds:g}"] += 1
            continue
        try:
            modelled = model(row, launch)
        except Exception as error:  # one row's trouble shall not hide the others
            left_out[f"{row.family}: {str(error).splitlines()[0][:120]}"] += 1
            continue
        m, n, k = row.dimensions
        records.append(
            {
                "symbol": row.symbol,
                "arch": row.arch,
                "M": m,
                "N": n,
                "K": k,
                "measured_us": row.measured_us,
                **modelled,
                "key": row.key,
                "chip": row.chip,
                "hw": row.hw,
                "family": row.family,
                "shape_class": baselines.shape_class(row, launch),
                "matrix_format": launch.matrix_format,
                "shape": dict(row.shape),
            }
        )
        print(f"\r{index + 1} of {len(prepared)} rows", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return records


def compare(
    records: list[dict[str, Any]], prepared: Prepared, fit_rows: Prepared, fitted: Fit | None
) -> None:
    """Adds what the fitted model and the baselines say to each record, under "predictions"."""
    launches = {row.key: (row, launch) for row, launch in prepared}
    two_parameters = baselines.TwoParameters(fit_rows)
    for record in records:
        row, launch = launches[record["key"]]
        record["predictions"] = {
            "cycle model": record["predicted_us"],
            "roofline": baselines.roofline(row, launch),
            "Origami's formulas": baselines.origami(row, launch),
            "two parameters per kernel": two_parameters(row, launch),
        }
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
        parameters[name] = float(value)
    return {"parameters": parameters}


def _stratum(prepared: Prepared):
    launches = {row.key: launch for row, launch in prepared}
    return lambda row: (row.family, row.hw, baselines.shape_class(row, launches[row.key]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=Path, required=True, help="CSV with the columns of AITER's tuning logs"
    )
    parser.add_argument(
        "--sample", type=int, help="run about N rows, of each family, chip and shape class its share"
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
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no row after so long")
    parser.add_argument("--results", type=Path, help="keep what the model said here, and do not ask it twice")
    parser.add_argument(
        "--fit", type=Path, help="fit on the other part of the rows and write the numbers here"
    )
    parser.add_argument("--fitted", type=Path, help="apply the numbers of a --fit before")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--plot", type=Path, help="draw predicted over measured times")
    parser.add_argument("--write", type=Path, help="write the report as a page of the documentation")
    arguments = parser.parse_args()
    settings = _settings(arguments)
    rows, left_out = calibration_rows.read(arguments.rows)
    prepared = prepare(rows, left_out)
    small = [pair for pair in prepared if pair[1].operations <= arguments.largest * 1e9]
    left_out[f"more than --largest {arguments.largest:g} GFLOP"] += len(prepared) - len(small)
    prepared = small
    if not prepared:
        print(f"calibration.py: no row can be run: {dict(left_out)}", file=sys.stderr)
        return 1
    stratum, launches = _stratum(prepared), {row.key: launch for row, launch in prepared}
    for_fit, held_out = calibration_rows.split(row for row, _ in prepared)
    model = Model(settings, arguments.results)

    def chosen(part: list[Row]) -> Prepared:
        part = calibration_rows.sample(part, arguments.sample or len(part), stratum)
        part.sort(key=lambda row: row.order)  # so that --seconds cuts every stratum alike
        return [(row, launches[row.key]) for row in part]

    if arguments.fit:
        records = run(chosen(for_fit), model, left_out, arguments.seconds)
        points = (
            tuple(record[name] for name in ("key", "chip", "matrix_format", "predicted_us", "measured_us"))
            for record in records
        )
        result = fit(points, settings)
        result.save(arguments.fit)
        for entry in result.fitted:
            print(
                f"{entry.chip} {entry.matrix_format}: fixed {entry.fixed_us:.2f} µs, scale {entry.time_scale:.3f}, "
                f"fitted on {entry.rows} rows"
            )
        return 0
    fitted = Fit.load(arguments.fitted) if arguments.fitted else None
    if fitted and fitted.settings != settings:
        parser.error(f"--fitted: was made with {fitted.settings}, this run has {settings}; make both alike")
    used = set(fitted.rows) if fitted else {row.key for row in for_fit}
    records = run(
        [pair for pair in chosen(held_out) if pair[0].key not in used], model, left_out, arguments.seconds
    )
    compare(records, prepared, [pair for pair in prepared if pair[0].key in used], fitted)
    report = calibration_report.Report(
        records,
        {row.key: row for row, _ in prepared},
        dict(left_out),
        {
            "in the file": len(rows),
            "for fitting": len(for_fit),
            "held out": len(held_out),
            "sample": arguments.sample,
        },
        settings,
        fitted,
    )
    if arguments.plot:
        report.plot(arguments.plot)
    if arguments.write:
        before = arguments.write.read_text() if arguments.write.exists() else ""
        arguments.write.write_text(report.page(arguments.plot, before))
    if arguments.json:
        json.dump(report.as_json(), sys.stdout, indent=1)
        print()
    else:
        print(report.text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
