# SPDX-License-Identifier: MIT
"""A launch compared with itself under another wave order."""

from __future__ import annotations

import sys
import textwrap

import pytest

from hipkittens.debugging.process import DebuggedProcess
from hipkittens.debugging.run_comparison import RunComparison
from hipkittens.debugging.session import Exit, Session

pytest.importorskip("elftools")

KERNELS = """\
#include "tiles/tiles.h"
using namespace kittens;

// What a wave adds is in its own place: no order of waves changes it.
extern "C" __attribute__((global)) void accumulate(const float* x, float* out) {
    const int item = static_cast<int>(workgroup_id_x()) * 128 + static_cast<int>(thread_id());
    out[item] += x[item] / 1024;
}

// Of two waves, the one that writes last wins: both read the same.
extern "C" __attribute__((global)) void last_one_wins(const float* x, float* out) {
    const int item = static_cast<int>(thread_id());
    out[item % 64] = static_cast<float>(item / 64) + x[0];
}

// A barrier is missing between writing and reading.
extern "C" __attribute__((global)) void reverse_blocks(const float* x, float* out) {
    __attribute__((shared)) static float block[128];
    const int item = static_cast<int>(thread_id());
    const int first = static_cast<int>(workgroup_id_x()) * 128;
    block[item] = x[first + item];
    out[first + item] = block[127 - item];
}

// Wave 1 reads what wave 0 may not have written, and writes far outside if so.
extern "C" __attribute__((global)) void flag(const float* x, float* out) {
    __attribute__((shared)) static volatile int place;
    const int item = static_cast<int>(thread_id());
    if (item < 64) {
        place = 1;
        out[item] = x[item];
    } else {
        out[item + (1 - place) * (1 << 28)] = x[item];
    }
}
"""

PROGRAM = """\
import sys
from pathlib import Path

import torch

import hipkittens

kernels, kernel, grid, launches = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
launched = hipkittens.kernel.compile(kernels, name=kernel, targets="gfx942", options=["-g"])
denormal = torch.tensor([1e-40])
for _ in range(launches):
    x = torch.arange(128.0 * grid) + 1
    out = torch.ones_like(x)
    with hipkittens.simulate("gfx942"):
        launched(x, out, grid=grid, block=128)
    print("right" if torch.equal(out, 1 + x / 1024) else "other", float(denormal * 2) != 0, flush=True)
"""

# Some of the seeds run wave 1 first and some do not; 0 is the order of their numbers, and the launch's own.
SEEDS = range(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "kernels.cpp").write_text(KERNELS)
    return folder


@pytest.fixture
def start(folder, tmp_path):
    """A session of a program that launches a kernel once for each seed."""
    with open(tmp_path / "output", "w+") as output:
        sessions = []

        def session(kernel: str, *, grid: int = 1, checks: str | None = None) -> Session:
            files = [str(folder / "program.py"), str(folder / "kernels.cpp")]
            command = [sys.executable, *files, kernel, str(grid), str(len(SEEDS))]
            sessions.append(Session(DebuggedProcess(command, checks=checks, output=output)))
            sessions[-1].printed = lambda: (tmp_path / "output").read_text().splitlines()
            return sessions[-1]

        yield session
        for each in sessions:
            each.process.kill()


def stops(session: Session):
    """The stops of each launch, by the seed of the order it is compared with, excluding the stop at its end."""
    session.stops_at_ends = True
    found = {}
    for seed in SEEDS:
        session.compares_with_order = seed
        found[seed] = []
        while (reached := session.go_on()).reason != "end":
            found[seed].append(reached)
            if not reached.has_waves and reached.reason == "difference" and "bytes differ" in reached.text:
                break
    session.stops_at_ends = False
    session.compares_with_order = None
    assert session.go_on() == Exit(0)
    return found


@pytest.mark.parametrize("checks", [None, "all"])
def test_an_order_that_does_not_matter_is_no_difference(start, checks):
    """The other run leaves no trace: memory with accumulated values and the host's float mode are as without it."""
    session = start("accumulate", grid=3, checks=checks)
    assert stops(session) == {seed: [] for seed in SEEDS}
    assert session.printed()[: len(SEEDS)] == ["right True"] * len(SEEDS)


def test_memory_that_differs_stops_the_launch_at_its_end(start):
    found = stops(start("last_one_wins"))
    # Wave 1 writes 1 + 1 last, or wave 0 writes 0 + 1: of f32, bytes 2 and 3 tell them apart.
    expected = "out: 128 bytes differ from those under wave order {}; from byte 0: 00000040, there 0000803f"
    for seed, of_launch in found.items():
        assert [stop.text for stop in of_launch] in ([], [expected.format(seed)])
        assert not any(stop.has_waves for stop in of_launch)
    assert found[0] == [] and any(found.values())


def test_a_failure_under_the_other_order_is_told_before_the_launch(start):
    found = stops(start("flag"))
    assert found[0] == [] and any(found.values())
    for seed, of_launch in found.items():
        if not of_launch:
            continue
        failed, parted = of_launch[:2]
        assert failed.text.startswith(f"under wave order {seed} this launch fails: kernel flag")
        assert "global_store_dword" in failed.text
        assert (failed.reason, failed.has_waves) == ("difference", False)
        # In this order the wave finds the flag; volatile LDS is read by flat loads.
        assert (parted.reason, parted.wave) == ("difference", 1)
        assert "0x00000001, under wave order" in parted.text and "written by `flat_load_dword" in parted.text


def test_stops_of_the_other_order_are_no_ends_that_programs_are_compared_at(start):
    """A launch that fails under the other order stops before it begins, and the second program waits where it was."""
    failing = next(seed for seed, of_launch in stops(start("flag")).items() if of_launch)
    comparison = RunComparison(start("flag"), start("flag"), lambda: None)
    comparison.session.compares_with_order = failing
    outcome = comparison.run()
    assert (outcome.launch, outcome.reached[0].moment, outcome.reached[1]) == (0, "begin", None)
    comparison.session.compares_with_order = None  # for the launches after this one
    outcome = comparison.run()
    assert (outcome.launch, outcome.reached[0].moment, outcome.reached[1]) == (0, "wave", None)
    assert f", under wave order {failing} " in outcome.reached[0].text
    outcome = comparison.run()
    assert (outcome.launch, outcome.differences) == (len(SEEDS), [])
    assert outcome.reached == (Exit(0), Exit(0))


def test_each_wave_stops_where_its_values_part(start):
    found = stops(start("reverse_blocks", grid=2))
    assert found[0] == [] and any(found.values())
    waves = {(0, 0), (0, 1), (1, 0), (1, 1)}
    for seed, of_launch in found.items():
        parted = [stop for stop in of_launch if stop.has_waves]
        for stop in parted:
            assert stop.instruction.text.startswith("global_store_dword")
            assert f", under wave order {seed} 0x" in stop.text
            assert "written by `ds_read_b32" in stop.text
        at = [(stop.workgroup[0], stop.wave) for stop in parted]
        assert len(set(at)) == len(at) and set(at) <= waves


def test_the_other_run_can_only_begin_before_the_launch(start):
    session = start("accumulate")
    session.set_breakpoint("accumulate")
    session.go_on()
    with pytest.raises(ValueError, match="`replay` comes before a launch has begun"):
        session.process.request("replay 1")
