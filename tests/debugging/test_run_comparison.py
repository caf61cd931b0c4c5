# SPDX-License-Identifier: MIT
"""Two programs compared side by side, up to the first launch after which their memory differs."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from hipkittens.debugging.process import DebuggedProcess
from hipkittens.debugging.run_comparison import RunComparison, difference_of
from hipkittens.debugging.session import Exit, Session

pytest.importorskip("elftools")

KERNEL = """\
#include "tiles/tiles.h"
using namespace kittens;

extern "C" __attribute__((global)) void scale(const float* x, float* out, float factor, int special, float more) {
    const int item = static_cast<int>(workgroup_id_x()) * 128 + static_cast<int>(thread_id());
    out[item] = x[item] * factor + (item == special ? more : 0.0f);
}
"""

# Each word after the kernel is a launch: FACTOR,SPECIAL,MORE,ITEMS.
PROGRAM = """\
import sys
from pathlib import Path

import torch

import hipkittens

scale = hipkittens.kernel.compile(Path(sys.argv[1]), targets="gfx942")
for launch in sys.argv[2:]:
    factor, special, more, items = launch.split(",")
    x = torch.arange(float(items))
    out = torch.full_like(x, float("nan"))
    with hipkittens.simulate("gfx942"):
        scale(x, out, float(factor), int(special), float(more), grid=int(items) // 128, block=128)
"""
SAME = "2,-1,0,256"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "program.py").write_text(textwrap.dedent(PROGRAM))
    (folder / "scale.cpp").write_text(KERNEL)
    return [sys.executable, str(folder / "program.py"), str(folder / "scale.cpp")]


@pytest.fixture
def compared(program):
    """A comparison of two runs of the program, each with its launches."""
    comparisons = []

    def comparison(here: list[str], there: list[str]) -> RunComparison:
        def start() -> tuple[DebuggedProcess, DebuggedProcess]:
            return tuple(DebuggedProcess([*program, *launches]) for launches in (here, there))

        first = start()
        made = RunComparison(Session(first[0]), Session(first[1]), start)
        comparisons.append(made)
        return made

    yield comparison
    for each in comparisons:
        each.session.process.kill()
        each.other.process.kill()


def test_equal_runs_end_together(compared):
    outcome = compared([SAME] * 2, [SAME] * 2).run()
    assert (outcome.launch, outcome.differences, outcome.reached) == (2, [], (Exit(0), Exit(0)))


def test_the_first_different_element_and_who_wrote_it(compared):
    comparison = compared([SAME, "2,200,1,256", SAME], [SAME, SAME, "3,-1,0,256"])
    outcome = comparison.run("out", "f32")
    assert outcome.launch == 2
    [found] = outcome.differences
    assert (found.tensor, found.is_written, found.elements, found.count, found.index) == (
        "out", True, 256, 1, 200)  # fmt: skip
    assert (found.here, found.there, found.largest) == (401.0, 400.0, 1.0)
    for stop in comparison.writer():
        assert (stop.reason, stop.launch.number, stop.workgroup, stop.wave) == ("watch", 2, (1, 0, 0), 1)
    assert comparison.session.evaluate("tensor('out')")[200] == 401
    # It continues from there: the same launch again, then the next one.
    assert comparison.run().launch == 2
    outcome = comparison.run(dtype="f32")
    assert (outcome.launch, outcome.differences[0].count) == (3, 255)
    assert comparison.run().reached == (Exit(0), Exit(0))


def test_without_a_type_elements_are_dwords(compared):
    [found] = compared(["2,200,1,256"], [SAME]).run().differences
    assert (found.here, found.there, found.largest) == (
        *(struct.unpack("<I", struct.pack("<f", value))[0] for value in (401.0, 400.0)), None)  # fmt: skip
    assert found.text == "out: 1 of 256 elements differ; the first is 200: 0x43c88000, there 0x43c80000"


def difference(here: torch.Tensor, there: torch.Tensor, tolerance: float = 0.0):
    def raw(tensor: torch.Tensor) -> bytes:
        return bytes(tensor.view(torch.uint8).tolist())

    return difference_of("out", True, raw(here), raw(there), here.dtype, tolerance)


@pytest.mark.parametrize(("tolerance", "count"), [(0.0, 1), (0.9 / 510, 1), (1.1 / 510, 0)])
def test_a_tolerance_is_relative_to_the_largest_magnitude(tolerance, count):
    there = torch.arange(256.0) * 2
    here = there.clone()
    here[200] += 1
    found = difference(here, there, tolerance)
    assert (found.count if found else 0) == count


@pytest.mark.parametrize(("here", "there", "differs"), [("nan", "nan", False), ("nan", "0", True), ("inf", "inf", False), ("inf", "-inf", True), ("inf", "1", True), ("0", "-0.0", False)])  # fmt: skip
def test_nan_equals_nan_alone_within_any_tolerance(here, there, differs):
    here, there = (torch.tensor([1.0, float(value)]) for value in (here, there))
    assert (difference(here, there, 0.5) is not None) == differs


def test_bytes_that_are_no_whole_elements_are_compared_one_by_one():
    found = difference_of("out", True, b"\1\2\3", b"\1\2\4", torch.float32, 1.0)
    assert (found.elements, found.count, found.index, found.here, found.there, found.itemsize) == (
        3,
        1,
        2,
        3,
        4,
        1,
    )


def test_memory_of_another_size_is_named(compared):
    comparison = compared([SAME, SAME], ["2,-1,0,384", SAME])
    outcome = comparison.run()
    assert (outcome.launch, outcome.differences, sorted(outcome.unmatched)) == (1, [], ["out", "x"])
    assert comparison.run().launch == 2


def test_a_run_that_ends_first_is_told(compared):
    outcome = compared([SAME], [SAME, SAME]).run()
    assert outcome.reached[0] == Exit(0)
    assert outcome.reached[1].launch.number == 2


def test_a_tensor_that_no_launch_has_is_refused(compared):
    with pytest.raises(ValueError, match="no launch had memory called 'output'"):
        compared([SAME], [SAME]).run("output")


def test_writer_wants_a_difference(compared):
    with pytest.raises(ValueError, match="has found no written tensor"):
        compared([SAME], [SAME]).writer()


def test_the_commands(program):
    here, there = [*program, SAME, "2,200,1,256"], [*program, SAME, SAME]
    lines = ["compare out f32 x", "compare out f32 1 2", "compare out f32", "writer", "other launch", "other next", "compare"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "hipkittens", "sim", "debug", "--json", "--against", " ".join(there), "--", *here],
        input="\n".join(lines), capture_output=True, text=True, timeout=120, cwd=Path(__file__).resolve().parents[2],
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert "the tolerance is no number" in answers[0]["error"]
    assert "wanted: [TENSOR] [DTYPE [TOLERANCE]]" in answers[1]["error"]
    assert answers[2]["result"]["differences"][0]["index"] == 200
    assert answers[3]["result"]["here"]["wave"] == answers[3]["result"]["there"]["wave"] == 1
    assert answers[4]["result"]["kernel"] == "scale"
    assert "`next` moves" in answers[5]["error"]
    assert answers[6]["result"]["launch"] == 2
