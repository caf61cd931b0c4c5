# SPDX-License-Identifier: MIT
"""The rows of docs/performance.csv: their list, how each is made, the inputs it was made from, and whether it is out of date."""

from __future__ import annotations

import ast
import csv
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gemm_model
import peer_fla

from hipkittens import _backend, _code_object, _installation, _simulator, _timing, operations
from hipkittens.operations._tables import DEVICES
from hipkittens.profiling import bench
from hipkittens.profiling.listing import listing
from hipkittens.profiling.model_error import error_of
from hipkittens.profiling.peers import Candidate, Unavailable, peer
from hipkittens.profiling.problems import Problem, parse_shapes
from tests.kernels.gemm_plan import ROWS as GEMM_VARIANTS
from tests.oracles import fla_packages
from tests.oracles.aiter import wheel

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs" / "performance.csv"
# The model's own code, besides its parameters: the traces, the costs of instructions, and the chip.
MODEL_SOURCES = tuple(
    sorted(
        path
        for pattern in (
            "timing/*.cpp",
            "timing/*.h",
            "timed_launches.*",
            "memory/lds_banks.*",
            "checks/hazards.def",
        )
        for path in (ROOT / "csrc" / "simulator").glob(pattern)
    )
)
# The other sources of a library's rows; Triton's rows of flash-linear-attention have separate ones.
_PEER_SOURCES = {
    "triton": ("benchmarks/peer_triton.py", "tests/oracles/triton_kernels.py"),
    "aiter": ("benchmarks/peer_aiter.py",),
}
_FLA_SOURCES = ("benchmarks/peer_fla.py",)
# Our GEMM without alternate loads, LoadOrder::plain of csrc/kernels/gemm/config.h: shows the gain that the model attributes to that
# order of loads, which is not measured. The largest size of N x N x N by device.
PLAIN_LOADS = "plain_loads"
_PLAIN_LOADS_TO = {"MI350X": 8192, "MI355X": 8192}


@dataclasses.dataclass(frozen=True)
class Family:
    """One table of the page: an operation at shapes that differ in one size.

    shape  with {N} for the size, and {rows} for 16 N rows
    sizes  our sizes by device; peers: the largest size of each library that is run, by device
    """

    table: str
    title: str
    operation: str
    shape: str
    sizes: Mapping[str, tuple[int, ...]]
    peers: Mapping[str, Mapping[str, int]]

    def problem(self, size: int) -> Problem:
        (problem,) = parse_shapes(self.operation, self.shape.format(N=size, rows=16 * size))
        return problem

    def wanted(self, device: str) -> Iterable[tuple[int, str]]:
        """Sizes and libraries to run."""
        for size in self.sizes.get(device, ()):
            yield size, bench.OURS
            yield from ((size, name) for name, most in self.peers.items() if size <= most.get(device, 0))


FAMILIES = tuple(
    Family(
        name,
        table.title,
        name,
        table.shape,
        table.sizes,
        {**table.peers, **({PLAIN_LOADS: _PLAIN_LOADS_TO} if name == "gemm" else {})},
    )
    for name, benchmark in operations.benchmarks().items()
    for table in benchmark.tables
)
TABLES = tuple(dict.fromkeys(family.table for family in FAMILIES))


@dataclasses.dataclass(frozen=True)
class Entry:
    """A row of bench and, for our rows, the bottleneck of its longest launch.

    main_loop_mfma_busy, bottleneck  as in `hipkittens profile`
    made_from                        digest of the inputs it was made from
    """

    row: bench.Row
    main_loop_mfma_busy: float | None
    bottleneck: str
    made_from: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.row.operation, self.row.device, self.row.shape, self.row.library


@functools.cache
def _code_objects(target: str) -> dict[str, str]:
    """sha256 of the part of each kernel's code object that a GPU loads: renaming in the source changes only line tables."""
    pack = _installation.pack(target)
    return {
        kernel["symbol"]: _code_object.loaded_sha256(pack.image(entry))
        for entry in pack.entries
        for kernel in entry["kernels"]
    }


@functools.cache
def _parameters(device: str) -> str:
    return repr([(row["name"], row["value"]) for row in _timing.parameters(device)])


def _code_of(source: str) -> str:
    """C++ without comments and layout: changes to these do not make a row stale."""
    text = re.sub(
        r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', lambda found: found[1] or " ", source, flags=re.DOTALL
    )
    return " ".join(text.split())


@functools.cache
def _model() -> str:
    """Digest of the model's code, without its parameters."""
    named = (f"{path.name}\n{_code_of(path.read_text())}" for path in MODEL_SOURCES)
    return hashlib.sha256("\n".join(named).encode()).hexdigest()


def of_operation(source: str, operation: str) -> str:
    """The part of a source that belongs to one operation: its function, `_gemm` for gemm, and everything that it refers to. A
    source without such a function is used as a whole."""
    nodes = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            nodes[node.name] = node
        elif isinstance(node, ast.Assign):
            nodes |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    if f"_{operation}" not in nodes:
        return source
    found: dict[str, str] = {}
    waiting = [f"_{operation}"]
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in found:
            found[name] = ast.unparse(nodes[name])
            waiting += [each.id for each in ast.walk(nodes[name]) if isinstance(each, ast.Name)]
    return "\n".join(found[name] for name in sorted(found))


def _launches(problem: Problem, device: str, library: str) -> list[dict[str, Any]]:
    """Our launches at this shape: kernels, grids and arguments, as selected by the current plans."""
    with _backend.simulate(_timing.DEVICES[device]), _simulator.described_launches() as found:
        for candidate in _candidates(problem, device, library):
            candidate.call()
    return found


def made_from(problem: Problem, device: str, library: str) -> str:
    """Digest of the inputs of a row; "" if some are not available here, which equals no stored digest."""
    parts = [_model(), _parameters(device)]
    if library in (bench.OURS, PLAIN_LOADS):
        here = _code_objects(_timing.DEVICES[device])
        launches = _launches(problem, device, library)
        if not {launch["kernel"] for launch in launches} <= here.keys():
            return ""
        parts += [here[launch["kernel"]] + json.dumps(launch, sort_keys=True) for launch in launches]
    else:
        is_fla = library == "triton" and problem.operation in peer_fla.OPERATIONS
        parts += [
            of_operation((ROOT / name).read_text(), problem.operation)
            for name in (_FLA_SOURCES if is_fla else _PEER_SOURCES[library])
        ]
        parts.append(wheel.VERSION if library == "aiter" else importlib.metadata.version("triton"))
        if is_fla:
            parts.append(fla_packages.VERSION)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def out_of_date(entries: Iterable[Entry]) -> list[Entry]:
    def differs(entry: Entry) -> bool:
        row = entry.row
        (problem,) = parse_shapes(row.operation, row.shape)
        return entry.made_from != made_from(problem, row.device, row.library)

    return [entry for entry in entries if differs(entry)]


def _plain_loads(problem: Problem, target: str) -> Iterator[Candidate]:
    """The variants of our GEMM that load in plain order."""
    for tile in (
        name.removeprefix("nt_bf16_")
        for name in GEMM_VARIANTS
        if name.startswith("nt_bf16_") and name.endswith("_plain")
    ):
        yield Candidate(
            tile,
            lambda tile=tile: gemm_model.launch(target, tile, problem["M"], problem["N"], problem["K"]),
        )


def _candidates(problem: Problem, device: str, library: str) -> Iterable[Candidate]:
    if library == bench.OURS:
        return [Candidate("", problem.call())]
    if library == PLAIN_LOADS:
        return _plain_loads(problem, _timing.DEVICES[device])
    return peer(library).modelled(problem, _timing.DEVICES[device])


def run(problem: Problem, device: str, library: str) -> Entry | None:
    """Makes a row; None if the library has no kernel for it."""
    try:
        row, launches = bench.modelled_row(
            problem, device, library, _candidates(problem, device, library), timeline=1
        )
    except Unavailable as reason:
        print(f"{library} {problem.shape} {device}: {reason}", file=sys.stderr)
        return None
    busy, sentence = None, ""
    if library == bench.OURS:
        longest = max(launches, key=lambda launch: launch.microseconds)
        said = listing(longest, error_of(problem, device))
        loop = said.main_loop
        busy = loop.mfma_busy if loop and loop.mfma_instructions else None
        sentence = said.bottleneck if len(launches) == 1 else f"{longest.kernel}: {said.bottleneck}"
    return Entry(row, busy, sentence, made_from(problem, device, library))


_FIELDS = {field.name: field.type for field in dataclasses.fields(bench.Row)}
_OWN = ("main_loop_mfma_busy", "bottleneck", "made_from")
# Published figures are looked up for the page, and speedups are computed from the rest.
_DERIVED = tuple(name for name in _FIELDS if name.startswith(("published_", "speedup")))
_COLUMNS = (*(name for name in _FIELDS if name not in _DERIVED), *_OWN)


def read(path: Path = ROWS) -> dict[tuple[str, str, str, str], Entry]:
    """Reads the rows, with the model's error as it is known now, not as it was when they ran."""
    if not path.exists():
        return {}

    def value(name: str, text: str) -> Any:
        kind = str(_FIELDS.get(name, "float | None" if name == "main_loop_mfma_busy" else "str"))
        if name == "kernels":
            return tuple(text.split())
        if kind.startswith("float"):
            return float(text) if text else None
        return int(text) if kind == "int" else text

    entries = []
    with path.open(newline="") as file:
        for line in csv.DictReader(file):
            values = {name: value(name, text) for name, text in line.items()}
            own = {name: values.pop(name) for name in _OWN}
            (problem,) = parse_shapes(values["operation"], values["shape"])
            error = error_of(problem, values["device"])
            values |= {"error_percent": error.percent, "error_of": error.text}
            entries.append(Entry(bench.Row(**values), **own))
    return {entry.key: entry for entry in entries}


def write(entries: Mapping[Any, Entry], path: Path = ROWS) -> None:
    """Writes the rows in the order of the page, so that a new figure is a changed line."""

    def text(value: Any) -> Any:
        if isinstance(value, float):
            return f"{value:.5g}"
        if isinstance(value, tuple):
            return " ".join(value)
        return "" if value is None else value

    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        for entry in in_order(entries):
            values = dataclasses.asdict(entry.row) | {name: getattr(entry, name) for name in _OWN}
            writer.writerow([text(values[name]) for name in _COLUMNS])


def in_order(entries: Mapping[Any, Entry]) -> list[Entry]:
    """The rows that the families still request."""
    keys = dict.fromkeys(
        (family.operation, device, family.problem(size).shape, library)
        for family in FAMILIES
        for device in DEVICES
        for size, library in family.wanted(device)
    )
    return [entries[key] for key in keys if key in entries]
