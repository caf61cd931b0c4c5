# SPDX-License-Identifier: MIT
"""Measured rows of AITER's tuning logs: which can be compared with the cycle model, and which may be fitted on.

A CSV has the columns ver, hw, arch, co, symbol, us, M, N, K, splitK, token, model_dim, inter_dim, expert, topk, act,
q_type, block_m and run_1stage, in any order. Columns that do not apply to a kernel are empty or absent, and other columns are
ignored.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import hashlib
import itertools
import math
import statistics
from collections.abc import Callable, Container, Hashable, Iterable, Mapping
from pathlib import Path

from hipkittens import _timing

# The share of the rows of every family on every chip that may be fitted on; errors are reported on the rest.
FIT_SHARE = 0.35
# The logs do not distinguish these pairs of chips; both of a pair are modelled as the one named here.
CHIPS = {"MI300X/MI325X": "MI300X", "MI350X/MI355X": "MI355X"} | {name: name for name in _timing.DEVICES}
_COLUMNS = ("hw", "arch", "co", "symbol", "us")
_PRODUCT = ("M", "N", "K", "splitK")
_EXPERTS = ("token", "model_dim", "inter_dim", "expert", "topk", "block_m", "run_1stage")
_LINES_NAMED = 10  # line numbers that a message lists for one reason


class CannotRun(ValueError):
    """A row that is incomplete or contradictory, or names a kernel that does not exist."""


class LeftOut(collections.Counter[str]):
    """The number of rows that were left out, by reason."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[str, list[int]] = {}
        self.repeats: list[
            float
        ] = []  # of kernels measured more than once at a shape: longest over shortest time

    def add(self, why: str, line: int) -> None:
        """Counts one more row, in this line of the file."""
        self[why] += 1
        self.lines.setdefault(why, []).append(line)

    def messages(self) -> list[str]:
        """Messages such as "line 3: us is 'abc'", for all reasons that were recorded with lines."""
        return [
            f"line{'s' * (len(lines) > 1)} {', '.join(map(str, sorted(lines)[:_LINES_NAMED]))}"
            + f" and {len(lines) - _LINES_NAMED} more" * (len(lines) > _LINES_NAMED)
            + f": {why}"
            for why, lines in self.lines.items()
        ]


@dataclasses.dataclass(frozen=True)
class Row:
    """One kernel at one shape on one chip. `shape` has M, N, K, splitK of a matrix product, or the columns of a mixture of experts."""

    name: str  # of the code object, as in tests/oracles/aiter/wheel.py
    symbol: str
    arch: str
    hw: str
    measured_us: float
    shape: tuple[tuple[str, int], ...]
    activation: str = ""
    quantisation: str = ""
    line: int = dataclasses.field(default=0, compare=False)  # of the file

    @property
    def family(self) -> str:
        return self.name.split("/")[1]

    @property
    def chip(self) -> str:
        return CHIPS[self.hw]

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
        """M, N, K; for a mixture of experts its tokens, inner width and model width."""
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
        """A hash of symbol and shape: rows are split and sampled in this order, regardless of their order in the file."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]


def _number(text: str, name: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise CannotRun(f"{name} is {text!r}; it must be a number")
    return number


def _whole(text: str, name: str) -> int:
    number = _number(text, name)
    if number != int(number) or number < 0:
        raise CannotRun(f"{name} is {text!r}; it must be a count")
    return int(number)


def _row(record: Mapping[str, str], line: int) -> Row:
    shape = tuple(
        (name, _whole(record.get(name) or ("0" if name == "splitK" else ""), name))
        for name in (_EXPERTS if record.get("token") else _PRODUCT)
    )
    if record.get("token") and dict(shape)["run_1stage"] > 1:
        raise CannotRun("its columns are shifted: run_1stage is neither 0 nor 1")
    measured = _number(record["us"], "us")
    if not measured > 0:
        raise CannotRun(f"us is {record['us']!r}; it must be positive")
    name, arch, hw = record["co"], record["arch"], record["hw"]
    if hw not in CHIPS:
        raise CannotRun(f"hw is {hw!r}; known: {', '.join(CHIPS)}")
    if name.count("/") < 2:
        raise CannotRun(f"co is {name!r}; it must be as in the wheel, such as gfx950/f4gemm/NAME.co")
    if not arch == name.partition("/")[0] == _timing.DEVICES[CHIPS[hw]]:
        raise CannotRun(f"arch is {arch!r}, hw {hw!r} and co {name!r}: these are different targets")
    return Row(
        name,
        record["symbol"],
        arch,
        hw,
        measured,
        shape,
        record.get("act", "").rpartition(".")[2].lower(),
        record.get("q_type", "").rpartition(".")[2],
        line,
    )


def read(path: Path) -> tuple[list[Row], LeftOut]:
    """The distinct rows of `path`, and the number of rows left out by reason. Raises OSError, or ValueError if columns are missing."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, restkey="", restval="")
        columns = reader.fieldnames
        records = [(reader.line_num, record) for record in reader]
    if not columns:
        raise ValueError(
            f"{path} is empty; needed are the columns of AITER's tuning logs and at least one row"
        )
    needed = list(_COLUMNS)
    if any(record.get("token") for _, record in records):
        needed += _EXPERTS
    if any(not record.get("token") for _, record in records):
        needed += [name for name in _PRODUCT if name != "splitK"]
    if missing := [name for name in needed if name not in columns]:
        raise ValueError(
            f"{path}: no column {', '.join(missing)}; needed are those of AITER's tuning logs: {', '.join(needed)}"
        )
    rows, left_out = [], LeftOut()
    for line, record in records:
        try:
            rows.append(_row({name: value.strip() for name, value in record.items() if name}, line))
        except CannotRun as error:
            left_out.add(str(error), line)
    return _distinct(rows, left_out), left_out


def _distinct(rows: list[Row], left_out: LeftOut) -> list[Row]:
    def copied_key(row: Row) -> tuple:  # whichever kernel: the same nanoseconds are not a second measurement
        return row.hw, row.measured_us, *(pair for pair in row.shape if pair[0] != "token")

    tokens = collections.defaultdict(set)
    for row in rows:
        if row.is_mixture:
            tokens[copied_key(row)].add(row["token"])
    repeated = collections.defaultdict(list)
    for row in rows:
        if row.is_mixture and len(tokens[copied_key(row)]) > 1:
            left_out.add(
                "one time is given for several token counts: for which it was measured is not known",
                row.line,
            )
        else:
            repeated[row.key].append(row)
    result = []
    for same in repeated.values():
        for row in same[1:]:
            left_out.add("measured more than once: the median is taken", row.line)
        times = [row.measured_us for row in same]
        if len(times) > 1:
            left_out.repeats.append(max(times) / min(times))
        time = statistics.median(times)
        result.append(dataclasses.replace(same[0], measured_us=time))
    return result


def strata(rows: Iterable[Row], of: Callable[[Row], Hashable]) -> list[list[Row]]:
    """The rows grouped by `of`, each group in the order of the rows' hashes."""
    groups: dict[Hashable, list[Row]] = collections.defaultdict(list)
    for row in sorted(rows, key=lambda row: row.order):
        groups[of(row)].append(row)
    return [groups[key] for key in sorted(groups, key=str)]


def split(rows: Iterable[Row], set_apart: Container[str] | None = None) -> tuple[list[Row], list[Row]]:
    """The rows to fit on, and the others, to report on.

    `set_apart` has the orders of the rows that were set apart for fitting earlier: exactly these are used again. Without it a new
    part is set apart: the first rows by hash of each family on each chip. All rows of a problem at which several kernels were measured
    are reported on, since such problems are few and a ranking needs all of their kernels.
    """
    rows = list(rows)
    if set_apart is not None:
        return [row for row in rows if row.order in set_apart], [
            row for row in rows if row.order not in set_apart
        ]
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
    """Up to `per_class` rows of every class by `of`, so that none dominates the others: its kinds alternate, each in hash order."""
    chosen = []
    for group in strata(rows, of):
        columns = strata(group, kind)
        rounds = itertools.zip_longest(*columns)
        chosen += [row for turn in rounds for row in turn if row is not None][:per_class]
    return chosen


def with_several_kernels(rows: Iterable[Row]) -> list[Row]:
    """The rows at whose problem another kernel was measured as well."""
    problems = collections.defaultdict(list)
    for row in rows:
        problems[row.problem].append(row)
    return [row for same in problems.values() if len({row.symbol for row in same}) > 1 for row in same]
