# SPDX-License-Identifier: MIT
"""docs/performance.md is what its rows say, and the rows say what they were made from."""

import dataclasses
import warnings

import performance_page
import performance_rows
import performance_tables
import performance_traces
import pytest

from hipkittens.operations._tables import DEVICES
from hipkittens.profiling import bench
from tests.oracles.aiter import wheel


@pytest.fixture(scope="module")
def entries():
    return performance_rows.read()


def test_the_page_is_what_its_rows_say(entries):
    assert performance_page.PAGE.read_text() == performance_page.page(entries), (
        "docs/performance.md is out of date: run benchmarks/performance_tables.py --page"
    )


def test_rows_survive_reading_and_writing(entries, tmp_path):
    assert {entry.row.device for entry in entries.values()} == set(DEVICES)
    performance_rows.write(entries, tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text() == performance_rows.ROWS.read_text()
    assert performance_rows.read(tmp_path / "rows.csv") == entries


def test_rows_are_of_the_kernels_there_are(entries):
    """A warning, since modelling them all again takes minutes: benchmarks/performance_tables.py does it for those named."""
    here = [
        entry
        for entry in entries.values()
        if entry.row.library == bench.OURS or (entry.row.library == "aiter" and wheel.objects())
    ]
    old = performance_rows.out_of_date(here)
    if old:
        first = " ".join(old[0].key)
        warnings.warn(
            f"docs/performance.csv: {len(old)} of {len(here)} rows were made with other kernels, such as {first}; "
            "run benchmarks/performance_tables.py",
            stacklevel=1,
        )


@pytest.fixture
def ours():
    row = bench.Row("rms_norm", "4x128", 128, "MI355X", bench.OURS, "modelled", ("kernel",))
    return performance_rows.Entry(row, None, "", "")


def test_what_makes_a_row_out_of_date(ours, monkeypatch):
    objects = {"kernel": "1234"}
    monkeypatch.setattr(performance_rows, "_code_objects", lambda target: objects)

    def digest(device="MI355X", operation="rms_norm"):
        return performance_rows.made_from(operation, device, bench.OURS, ("kernel",))

    fresh = dataclasses.replace(ours, made_from=digest())
    assert performance_rows.out_of_date([fresh]) == []
    assert len({digest(), digest("MI350X"), digest(operation="gemm")}) == 3  # other parameters, another plan
    objects["kernel"] = "5678"
    assert performance_rows.out_of_date([fresh]) == [fresh]
    objects.clear()
    assert performance_rows.out_of_date([fresh]) == [fresh]


def test_a_row_is_run_once(ours, monkeypatch, tmp_path):
    """What is fresh stays, and the largest are left to a later run."""
    family = performance_rows.Family(
        "rms_norm", "A norm", "rms_norm", "{N}x128", {"MI355X": (4, 8)}, {"triton": {"MI355X": 4}}
    )
    ran = []

    def run(problem, device, library):
        ran.append((problem.shape, library))
        row = dataclasses.replace(ours.row, shape=problem.shape, library=library, kernels=())
        made_from = performance_rows.made_from("rms_norm", device, library, ())
        return dataclasses.replace(ours, row=row, made_from=made_from)

    monkeypatch.setattr(performance_rows, "FAMILIES", (family,))
    monkeypatch.setattr(performance_rows, "run", run)
    monkeypatch.setattr(performance_rows.write, "__defaults__", (tmp_path / "rows.csv",))
    chosen = {"only": ["rms_norm"], "devices": ["MI355X"], "libraries": [bench.OURS]}
    entries = {}
    performance_tables.run_all(entries, chosen, 4, 60.0)
    assert ran == [("4x128", bench.OURS)]
    pytest.importorskip("triton")
    chosen["libraries"].append("triton")
    performance_tables.run_all(entries, chosen, 8, 60.0)
    assert ran[1:] == [("4x128", "triton"), ("8x128", bench.OURS)]
    performance_tables.run_all(entries, chosen, 8, 60.0)
    assert len(ran) == 3
    assert list(performance_rows.read(tmp_path / "rows.csv")) == [
        ("rms_norm", "MI355X", shape, library)
        for shape, library in (("4x128", bench.OURS), ("4x128", "triton"), ("8x128", bench.OURS))
    ]


def test_a_tiny_row_through_the_model():
    (problem,) = performance_rows.parse_shapes("gemm", "256x256x512")
    entry = performance_rows.run(problem, "MI355X", bench.OURS)
    assert entry.row.kind == "modelled" and entry.bottleneck and entry.row.error_of
    assert entry.made_from == performance_rows.made_from("gemm", "MI355X", bench.OURS, entry.row.kernels)


def test_traces_are_of_the_kernels_that_their_section_names():
    text = performance_traces.section()
    for trace in performance_traces.TRACES:
        assert trace.command in text and performance_traces.load(trace)["otherData"]["kernel"] in text
        assert trace.picture.is_file()
