# SPDX-License-Identifier: MIT
"""docs/performance.md matches its rows, and the rows record what they were made from."""

import dataclasses
import importlib.util

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


def _is_here(library):
    """Whether the packages from which that library's rows are made are installed."""
    if library == "aiter":
        return bool(wheel.objects())
    return library != "triton" or importlib.util.find_spec("triton") is not None


def test_rows_are_of_the_kernels_and_the_model_there_are(entries):
    here = [entry for entry in entries.values() if _is_here(entry.row.library)]
    old = performance_rows.out_of_date(here)
    assert not old, (
        f"docs/performance.csv: {len(old)} of {len(here)} rows were made with other kernels, plans or another model, such as "
        f"{' '.join(old[0].key)}; run benchmarks/performance_tables.py --jobs N"
    )


@pytest.fixture
def ours():
    row = bench.Row("rms_norm", "4x128", 128, "MI355X", bench.OURS, "modelled", ("kernel",))
    return performance_rows.Entry(row, None, "", "")


def test_a_peer_s_row_depends_on_the_function_of_its_operation_alone():
    source = "SIZE = 4\nOTHER = 5\n\ndef _shared():\n    return SIZE\n\ndef _gemm():\n    return _shared()\n\ndef _topk():\n    return OTHER\n"
    of_gemm = performance_rows.of_operation(source, "gemm")
    for changed, stays in (
        ("OTHER = 5", True),
        ("return OTHER", True),
        ("SIZE = 4", False),
        ("return SIZE", False),
    ):
        again = performance_rows.of_operation(source.replace(changed, changed + " + 1"), "gemm")
        assert (again == of_gemm) == stays, changed
    assert performance_rows.of_operation(source, "softmax") == source


def test_what_makes_a_row_out_of_date(ours, monkeypatch):
    """Another kernel or model, other parameters, or another launch; not a plan that launches the same."""
    problems = {shape: performance_rows.parse_shapes("rms_norm", shape)[0] for shape in ("4x128", "5x128")}
    (launch,) = performance_rows._launches(problems["4x128"], "MI355X", bench.OURS)
    objects = {launch["kernel"]: "1234"}
    monkeypatch.setattr(performance_rows, "_code_objects", lambda target: objects)

    def digest(shape="4x128", device="MI355X"):
        return performance_rows.made_from(problems[shape], device, bench.OURS)

    fresh = dataclasses.replace(ours, made_from=digest())
    assert performance_rows.out_of_date([fresh]) == []
    assert len({digest(), digest(device="MI350X"), digest("5x128")}) == 3
    objects[launch["kernel"]] = "5678"
    assert performance_rows.out_of_date([fresh]) == [fresh]
    objects[launch["kernel"]] = "1234"
    assert performance_rows.out_of_date([fresh]) == []
    with monkeypatch.context() as another:
        another.setattr(performance_rows, "_model", lambda: "another model")
        assert performance_rows.out_of_date([fresh]) == [fresh]
    with monkeypatch.context() as another:
        changed = {**launch, "grid": [2, 1, 1]}
        another.setattr(performance_rows, "_launches", lambda *problem: [changed])
        assert performance_rows.out_of_date([fresh]) == [fresh]
    monkeypatch.setattr(performance_rows, "_code_objects", lambda target: {})
    assert performance_rows.out_of_date([fresh]) == [fresh]


def test_the_models_digest_is_of_its_code():
    """Covers what the code does, not comments and layout."""
    names = {path.name for path in performance_rows.MODEL_SOURCES}
    assert {"chip.cpp", "memory_system.cpp", "static_cost.cpp", "lds_banks.cpp", "hazards.def"} <= names
    code = performance_rows._code_of
    assert code("int a;  // one\n") == code("int a;\n/* two */") != code("int b;")
    assert code('auto s = "//";') != code('auto s = "";')


def test_rows_run_in_several_processes(ours, monkeypatch, tmp_path):
    """The smallest row on two devices, each in a separate process."""
    family = performance_rows.Family(
        "rms_norm", "A norm", "rms_norm", "{N}x128", {"MI355X": (4,), "MI300X": (4,)}, {}
    )
    monkeypatch.setattr(performance_rows, "FAMILIES", (family,))
    monkeypatch.setattr(performance_rows.write, "__defaults__", (tmp_path / "rows.csv",))
    chosen = {"only": ["rms_norm"], "devices": list(DEVICES), "libraries": [bench.OURS]}
    entries = {}
    performance_tables.run_all(entries, chosen, 4, 600.0, jobs=2)
    assert {entry.row.device for entry in entries.values()} == {"MI300X", "MI355X"}
    assert performance_rows.out_of_date(entries.values()) == []


def test_a_published_time_is_corrected_by_the_error_on_the_same_publishers_peer():
    def row(library, modelled, published, source="HazyResearch/HipKittens@1:f", operation="attention"):
        return bench.Row(
            operation, "B1H1N1024D128", 1024, "MI355X", library, "modelled", ("k",), microseconds=modelled,
            published_microseconds=published, published_source=source,
        )  # fmt: skip

    launch = performance_page._launching(row("aiter", 1.0, 1.0))
    assert launch > 1
    rows = {
        (1024, bench.OURS): row(bench.OURS, 80.0 - launch, None, None),
        (1024, "aiter"): row("aiter", 75.0 - launch, 100.0),
        (1024, "triton"): row("triton", None, 160.0),
        (1024, "torch"): row("torch", None, 160.0, "ROCm/other@1:f"),
    }
    assert performance_page.corrected(rows, 1024, "triton") == pytest.approx(160 / 80 * 0.75)
    assert performance_page.corrected(rows, 1024, "aiter") == pytest.approx(75 / 80)
    assert performance_page.corrected(rows, 1024, "torch") is None  # measured by somebody else
    del rows[1024, "aiter"]
    assert performance_page.corrected(rows, 1024, "triton") is None
    gemm = {key: dataclasses.replace(each, operation="gemm") for key, each in rows.items()}
    assert performance_page.corrected(gemm, 1024, "triton") is None


def test_a_row_is_run_once(ours, monkeypatch, tmp_path):
    """Up-to-date rows are kept, and the largest are left to a later run."""
    family = performance_rows.Family(
        "rms_norm", "A norm", "rms_norm", "{N}x128", {"MI355X": (4, 8)}, {"triton": {"MI355X": 4}}
    )
    ran = []

    def run(problem, device, library):
        ran.append((problem.shape, library))
        row = dataclasses.replace(ours.row, shape=problem.shape, library=library, kernels=())
        made_from = performance_rows.made_from(problem, device, library)
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
    assert entry.made_from == performance_rows.made_from(problem, "MI355X", bench.OURS)


def test_traces_are_of_the_kernels_that_their_section_names():
    text = performance_traces.section()
    for trace in performance_traces.TRACES:
        assert trace.command in text and performance_traces.load(trace)["otherData"]["kernel"] in text
        assert trace.picture.is_file()
