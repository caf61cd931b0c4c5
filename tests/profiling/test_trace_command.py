# SPDX-License-Identifier: MIT
"""`hipkittens trace`: its file against the Trace Event Format, and against the launch that it shows."""

import json

import pytest

from hipkittens import cli

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
    assert timeline["displayTimeUnit"] in ("ms", "ns") and isinstance(timeline["otherData"], dict)
    for event in timeline["traceEvents"]:
        check(event)
    named = {(event["pid"], event["tid"]) for event in of(timeline, "M")}
    assert {(event["pid"], event["tid"]) for event in of(timeline, "X")} <= named


def test_it_says_that_it_is_modelled(timeline):
    said = timeline["otherData"]
    assert (
        "modelled" in said["modelled"]
        and "measured row" in said["error"]
        and said["clock_mhz"] > 0
        and said["complete"] is True
    )
    (process,) = {event["args"]["name"] for event in of(timeline, "M") if event["name"] == "process_name"}
    assert process.startswith("XCD 0 CU 0") and "modelled at" in process


def test_slices_of_a_track_nest(timeline):
    """Instructions lie inside their wave, and begin one after the other."""
    waves = {}
    for event in of(timeline, "X"):
        waves.setdefault((event["pid"], event["tid"]), []).append(event)
    for events in waves.values():
        lives = [event for event in events if event["cat"] == "wave"]
        assert len(lives) >= 1
        starts = [event["ts"] for event in events if event["cat"] != "wave"]
        assert starts == sorted(starts)
        assert lives[0]["ts"] <= starts[0] and starts[-1] <= lives[-1]["ts"] + lives[-1]["dur"] + 1e-6


def test_classes_and_counters(timeline):
    kinds = {event["cat"] for event in of(timeline, "X")}
    assert {"MFMA", "VALU", "SALU", "VMEM", "LDS", "wait", "wave"} <= kinds
    counters = {}
    for event in of(timeline, "C"):
        counters.setdefault(event["name"], []).append((event["ts"], event["args"]["value"]))
    assert {"outstanding VMEM", "outstanding LDS", "MFMA busy"} <= counters.keys()
    for name, steps in counters.items():
        assert steps == sorted(steps) and min(value for _, value in steps) >= 0
        assert name == "LDS conflict cycles" or steps[-1][1] == 0
    # One compute unit has four matrix cores.
    assert max(value for _, value in counters["MFMA busy"]) <= 4


def test_bad_arguments_are_named(tmp_path):
    for arguments, text in (
        (["--compute-units", "0"], "--compute-units is 0"),
        (["--launch", "1", "--shape", "64x64x64"], "--launch is 1; allowed: 0 to 0"),
    ):
        with pytest.raises(SystemExit, match="hipkittens trace: ") as error:
            cli.main(["trace", "gemm", "-o", str(tmp_path / "trace.json"), *arguments])
        assert text in str(error.value)
