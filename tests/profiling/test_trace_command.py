# SPDX-License-Identifier: MIT
"""`hipkittens trace`: its file against the Trace Event Format, and against the launch that it shows.

Perfetto's own importer (trace_processor) is not part of its Python package, which downloads it on first use. So this file checks what the
importer requires of a JSON trace: the fields of each phase, whole nanoseconds, slices that nest, counters in order of time.
"""

import gzip
import itertools
import json
import sys
from pathlib import Path

import pytest
import torch

import hipkittens
from hipkittens import cli
from hipkittens.profiling.timeline import trace

TRACES = Path(__file__).resolve().parents[2] / "docs" / "traces"
NUMBER = (int, float)
# Field: types, by phase, as the Trace Event Format document has them: "X" complete events, "C" counters, "M" metadata.
FIELDS = {
    "X": {
        "name": str,
        "cat": str,
        "ph": str,
        "ts": NUMBER,
        "dur": NUMBER,
        "pid": int,
        "tid": int,
        "args": dict,
    },
    "C": {"name": str, "ph": str, "ts": NUMBER, "pid": int, "tid": int, "args": dict},
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
}
METADATA = {
    "process_name": {"name": str},
    "thread_name": {"name": str},
    "thread_sort_index": {"sort_index": int},
}


def check(event):
    fields = FIELDS[event["ph"]]
    assert event.keys() == fields.keys()
    assert all(isinstance(event[name], types) for name, types in fields.items())
    if event["ph"] == "X":
        assert event["ts"] >= 0 and event["dur"] >= 0
    elif event["ph"] == "C":
        assert event["args"] and all(isinstance(value, NUMBER) for value in event["args"].values())
    else:
        assert {key: type(value) for key, value in event["args"].items()} == METADATA[event["name"]]


@pytest.fixture(scope="module")
def timeline(tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    assert cli.main(["trace", "gemm", "--shape", "128x128x128", "-o", str(path)]) == 0
    return json.loads(path.read_text())


def of(timeline, phase):
    return [event for event in timeline["traceEvents"] if event["ph"] == phase]


def test_it_is_of_the_format(timeline):
    check_timeline(timeline)
    times = [event.get("ts", -1) for event in timeline["traceEvents"]]  # names have none, and come first
    assert times == sorted(times)


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.json.gz")), ids=lambda path: path.name)
def test_traces_of_the_documentation_are_of_the_format(path):
    assert path.stat().st_size < 300_000
    timeline = json.loads(gzip.decompress(path.read_bytes()))
    check_timeline(timeline)
    assert timeline["otherData"]["complete"] and len(of(timeline, "X")) > 1000


def test_a_launch_of_a_program(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, hipkittens\n"
        "x = torch.ones(64, 64, dtype=torch.bfloat16)\n"
        "hipkittens.rms_norm(x, torch.ones(64))\n"
        "hipkittens.matmul(x, x)\n"
    )
    path = tmp_path / "trace.json"
    arguments = [
        "trace",
        "--device",
        "MI300X",
        "-o",
        str(path),
        "--launch",
        "1",
        "--",
        sys.executable,
        str(script),
    ]
    assert cli.main(arguments) == 0
    assert "gfx942, modelled: " in capsys.readouterr().out
    timeline = json.loads(path.read_text())
    check_timeline(timeline)
    assert "gemm" in timeline["otherData"]["kernel"] and "not calibrated" in timeline["otherData"]["error"]
    assert any(event["name"] == "MFMA" for event in of(timeline, "X"))
    arguments[arguments.index("1")] = "2"
    with pytest.raises(SystemExit, match="--launch is 2; allowed: 0 to 1"):
        cli.main(arguments)


def test_a_launch_without_events_is_refused():
    x = torch.ones(4, 64, dtype=torch.bfloat16)
    with hipkittens.timing("MI355X") as run:
        hipkittens.rms_norm(x, torch.ones(64))
    with pytest.raises(ValueError, match="kept no events; open"):
        trace(run.launches[0])


def test_it_says_that_it_is_modelled(timeline):
    said = timeline["otherData"]
    assert (
        "modelled" in said["modelled"]
        and "calibrated" in said["error"]
        and said["clock_mhz"] > 0
        and said["complete"] is True
    )
    (process,) = {event["args"]["name"] for event in of(timeline, "M") if event["name"] == "process_name"}
    assert process.startswith("XCD 0 CU 0") and "modelled at" in process


def tracks_of(timeline):
    tracks = {}
    for event in of(timeline, "X"):
        tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    return tracks


def nanoseconds(event):
    """Perfetto keeps whole nanoseconds: begin and end have to be whole."""
    begin, end = 1000 * event["ts"], 1000 * (event["ts"] + event["dur"])
    assert begin == pytest.approx(round(begin), abs=1e-3) and end == pytest.approx(round(end), abs=1e-3)
    return round(begin), round(end)


def check_nesting(events):
    """Nesting as Perfetto stacks complete events: of two with the same start the first is the outer one; none ends after its outer one."""
    stack = []
    for event in sorted(events, key=lambda event: nanoseconds(event)[0]):
        begin, end = nanoseconds(event)
        while stack and stack[-1] <= begin:
            stack.pop()
        assert not stack or end <= stack[-1], event
        if end > begin:
            stack.append(end)


def check_timeline(timeline):
    """Everything the format requires of any trace."""
    assert timeline["displayTimeUnit"] in ("ms", "ns") and isinstance(timeline["otherData"], dict)
    for event in timeline["traceEvents"]:
        check(event)
    named = {(event["pid"], event["tid"]) for event in of(timeline, "M")}
    assert {(event["pid"], event["tid"]) for event in of(timeline, "X")} <= named
    for events in tracks_of(timeline).values():
        check_nesting(events)
    counters = {}
    for event in of(timeline, "C"):
        counters.setdefault((event["pid"], event["name"]), []).append((event["ts"], event["args"]["value"]))
    for (_, name), steps in counters.items():
        assert all(early < late for (early, _), (late, _) in itertools.pairwise(steps))
        assert min(value for _, value in steps) >= 0
        assert name == "LDS conflict cycles" or steps[-1][1] == 0


def test_slices_of_a_track_nest(timeline):
    """Instructions lie inside their wave, and begin in order."""
    for events in tracks_of(timeline).values():
        lives = [nanoseconds(event) for event in events if event["cat"] == "wave"]
        slices = [nanoseconds(event) for event in events if event["cat"] != "wave"]
        assert len(lives) >= 1 and slices == sorted(slices)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(slices))
        assert lives[0][0] <= slices[0][0] and slices[-1][1] <= lives[-1][1]


def test_what_does_not_nest_is_found():
    def event(begin, end):
        return {"ts": begin / 1000, "dur": (end - begin) / 1000}

    check_nesting([event(0, 100), event(0, 10), event(10, 20), event(90, 100)])
    with pytest.raises(AssertionError):
        check_nesting([event(0, 100), event(90, 110)])


def test_classes_and_counters(timeline):
    kinds = {event["cat"] for event in of(timeline, "X")}
    assert {"MFMA", "VALU", "SALU", "VMEM", "LDS", "wait", "wave"} <= kinds
    counters = {}
    for event in of(timeline, "C"):
        counters.setdefault(event["name"], []).append((event["ts"], event["args"]["value"]))
    assert {"outstanding VMEM", "outstanding LDS", "MFMA busy"} <= counters.keys()
    # One compute unit has four matrix cores.
    assert max(value for _, value in counters["MFMA busy"]) <= 4


def test_bad_arguments_are_named(tmp_path):
    for arguments, text in (
        (["--compute-units", "0"], "--compute-units is 0"),
        (["--compute-units", "33", "--device", "MI355X"], "--compute-units is 33; allowed: 1 to 32 (MI355X)"),
        (["-o", str(tmp_path)], "is a folder; name a file"),
        (["-o", str(tmp_path / "no" / "trace.json")], "--output: there is no folder "),
        (["--launch", "1", "--shape", "64x64x64"], "--launch is 1; allowed: 0 to 0"),
    ):
        with pytest.raises(SystemExit, match="hipkittens trace: ") as error:
            cli.main(["trace", "gemm", "-o", str(tmp_path / "trace.json"), *arguments])
        assert text in str(error.value)
