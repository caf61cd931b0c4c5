# SPDX-License-Identifier: MIT
"""Measured rows of AITER's tuning logs: which can be compared with the cycle model, and which may be fitted on.

A CSV has the columns ver, hw, arch, co, symbol, us, M, N, K, splitK, token, model_dim, inter_dim, expert, topk, act,
q_type, block_m and run_1stage; those that a kernel does not have stay empty, and further ones are ignored.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import hashlib
import itertools
import statistics
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path

# The share of every family on every chip whose rows may be fitted on; on the rest errors are reported.
FIT_SHARE = 0.35
# The logs do not say which of two chips it was; both of a pair are modelled as the one that is named.
CHIPS = {"MI300X/MI325X": "MI300X", "MI308X": "MI308X", "MI350X/MI355X": "MI355X"}
_COLUMNS = ("hw", "arch", "co", "symbol", "us")
_EXPERTS = ("token", "model_dim", "inter_dim", "expert", "topk", "block_m", "run_1stage")


class CannotRun(ValueError):
    """A row that says too little, contradicts itself, or names a kernel that is not there."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One kernel at one shape on one chip. `shape` has M, N, K, splitK of a matrix product, or what a mixture of experts has."""

    name: str  # of the code object, as in tests/oracles/aiter/wheel.py
    symbol: str
    arch: str
    hw: str
    measured_us: float
    shape: tuple[tuple[str, int], ...]
    activation: str = ""
    quantisation: str = ""

    @property
    def family(self) -> str:
        return self.name.split("/")[1]

    @property
    def chip(self) -> str:
        try:
            return CHIPS[self.hw]
        except KeyError:
            raise CannotRun(f"hw is {self.hw!r}; known: {', '.join(CHIPS)}") from None

    def __getitem__(self, what: str) -> int:
        for key, value in self.shape:
            if key == what:
                return value
        raise CannotRun(f"no {what}")

    @property
    def is_mixture(self) -> bool:
        return self.family.startswith("fmoe")

    @property
    def dimensions(self) -> tuple[int, int, int]:
        """M, N, K; of a mixture of experts its tokens, inner width and model width."""
        names = ("token", "inter_dim", "model_dim") if self.is_mixture else ("M", "N", "K")
        return self[names[0]], self[names[1]], self[names[2]]

    @property
    def problem(self) -> tuple:
        """Equal for kernels that do the same work on the same chip."""
        return (
            self.hw,
            self.family.startswith("fmoe_2"),
            self.activation,
            self.quantisation,
            *(pair for pair in self.shape if pair[0] not in ("block_m", "run_1stage", "splitK")),
        )

    @property
    def key(self) -> str:
        values = ",".join(f"{name}={value}" for name, value in self.shape)
        extra = "".join(f",{text}" for text in (self.activation, self.quantisation) if text)
        return f"{self.hw} {self.symbol} {values}{extra}"

    @property
    def order(self) -> str:
        """A hash of symbol and shape: in this order rows are split and sampled, whatever their order in the file."""
        return hashlib.sha256(self.key.encode()).hexdigest()


def _whole(text: str, name: str) -> int:
    try:
        number = float(text)
    except ValueError:
        raise CannotRun(f"{name} is {text!r}") from None
    if number != int(number) or number < 0:
        raise CannotRun(f"{name} is {text!r}")
    return int(number)


def _row(record: dict[str, str]) -> Row:
    names = _EXPERTS if record.get("token") else ("M", "N", "K", "splitK")
    shape = tuple(
        (name, _whole(record.get(name) or ("0" if name == "splitK" else ""), name)) for name in names
    )
    if record.get("token") and dict(shape)["run_1stage"] > 1:
        raise CannotRun("its columns are shifted: run_1stage is neither 0 nor 1")
    measured = float(record["us"])
    if not measured > 0:
        raise CannotRun(f"us is {record['us']}")
    return Row(
        record["co"],
        record["symbol"],
        record["arch"],
        record["hw"],
        measured,
        shape,
        (record.get("act") or "").rpartition(".")[2].lower(),
        (record.get("q_type") or "").rpartition(".")[2],
    )


def read(path: Path) -> tuple[list[Row], collections.Counter[str]]:
    """The distinct rows of `path`, and how many were left out for which reason. ValueError: columns are missing."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise ValueError(
                f"{path}: no column {', '.join(missing)}; needed are those of AITER's tuning logs"
            )
        records = list(reader)
    rows, left_out = [], collections.Counter[str]()
    for record in records:
        try:
            rows.append(_row(record))
        except CannotRun as error:
            left_out[str(error)] += 1
    return _distinct(rows, left_out), left_out


def _distinct(rows: list[Row], left_out: collections.Counter[str]) -> list[Row]:
    def copied_key(row: Row) -> tuple:
        return row.hw, row.symbol, row.measured_us, *(pair for pair in row.shape if pair[0] != "token")

    tokens = collections.defaultdict(set)
    for row in rows:
        if row.is_mixture:
            tokens[copied_key(row)].add(row["token"])
    repeated = collections.defaultdict(list)
    for row in rows:
        if row.is_mixture and len(tokens[copied_key(row)]) > 1:
            left_out[
                "one time is given for several token counts: for which it was measured is not known"
            ] += 1
        else:
            repeated[row.key].append(row)
    result = []
    for same in repeated.values():
        left_out["measured more than once: the median is taken"] += len(same) - 1
        time = statistics.median(row.measured_us for row in same)
        result.append(dataclasses.replace(same[0], measured_us=time))
    return result


def strata(rows: Iterable[Row], of: Callable[[Row], Hashable]) -> list[list[Row]]:
    """The rows by `of`, each group in the order of the rows' hashes."""
    groups: dict[Hashable, list[Row]] = collections.defaultdict(list)
    for row in sorted(rows, key=lambda row: row.order):
        groups[of(row)].append(row)
    return [groups[key] for key in sorted(groups, key=str)]


def split(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """Rows to fit on and rows to report on: of each family on each chip the first rows by hash, and the others. Problems that
    several kernels were measured at are reported on whole, since they are few and a ranking needs all of their kernels."""
    rows = list(rows)
    ranked = set(with_several_kernels(rows))
    fit, held_out = [], []
    for group in strata(rows, lambda row: (row.family, row.hw)):
        allowed = [row for row in group if row not in ranked]
        chosen = set(allowed[: round(len(group) * FIT_SHARE)])
        fit += [row for row in group if row in chosen]
        held_out += [row for row in group if row not in chosen]
    return fit, held_out


def balanced_sample(
    rows: Iterable[Row], per_class: int, of: Callable[[Row], Hashable], kind: Callable[[Row], Hashable]
) -> list[Row]:
    """Up to `per_class` rows of every class by `of`, so that none swamps the others: its kinds in turn, each by hash."""
    chosen = []
    for group in strata(rows, of):
        columns = strata(group, kind)
        rounds = itertools.zip_longest(*columns)
        chosen += [row for turn in rounds for row in turn if row is not None][:per_class]
    return chosen


def with_several_kernels(rows: Iterable[Row]) -> list[Row]:
    """Those rows at whose problem another kernel was measured as well."""
    problems = collections.defaultdict(list)
    for row in rows:
        problems[row.problem].append(row)
    return [row for same in problems.values() if len({row.symbol for row in same}) > 1 for row in same]
