# SPDX-License-Identifier: MIT
"""A debugging session: launches of a program stop, step and continue."""

from __future__ import annotations

import re
import struct
import sys
import threading
import time

import pytest
import torch
from debugged_kernels import expected, line_of, write

from hipkittens.debugging.process import DebuggedProcess
from hipkittens.debugging.session import Exit, Session

pytest.importorskip("elftools")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return [sys.executable, *map(str, write(tmp_path_factory.mktemp("session")))]


@pytest.fixture
def session(program, tmp_path):
    with open(tmp_path / "output", "w+") as output:
        process = DebuggedProcess(program, output=output)
        session = Session(process)
        session.printed = lambda: (tmp_path / "output").read_text().split()
        yield session
        process.kill()


def test_a_program_without_breakpoints_runs_to_its_end(session):
    assert session.go_on() == Exit(0)
    assert session.printed() == ["right", "right"]


def test_a_kernel_stops_once_a_launch(session):
    session.set_breakpoint("scale")
    stops = [session.go_on() for _ in range(2)]
    assert [(stop.reason, stop.launch.number, stop.wave, stop.address - stop.launch.entry) for stop in stops] == [
        ("breakpoint", 1, 0, 0), ("breakpoint", 2, 0, 0)]  # fmt: skip
    assert session.go_on() == Exit(0)


def test_a_wave_of_a_workgroup_has_its_own_breakpoint(session):
    session.set_breakpoint("scale wave 1 workgroup 1")
    stop = session.go_on()
    assert (stop.workgroup, stop.wave, stop.launch.number) == ((1, 0, 0), 1, 1)


def test_a_condition_looks_at_registers_and_memory(session):
    place = f"scale.cpp:{line_of('the store')}"
    # The first wave's store has completed by the end of that wave.
    session.set_breakpoint(f"{place} workgroup 0 if tensor('out')[0] == 9 and exec & 1")
    stop = session.go_on()
    assert (stop.wave, stop.launch.number) == (1, 1)
    session.delete_breakpoint(1)
    session.set_breakpoint(f"{place} if tensor('output')[0] == 9")
    with pytest.raises(ValueError, match="no memory called 'output'; it has"):
        session.go_on()
    session.delete_breakpoint(2)
    session.set_breakpoint(f"{place} if isinstance")
    with pytest.raises(ValueError, match="'isinstance' is no register"):
        session.go_on()


def test_lines_steps_and_frames(session):
    session.set_breakpoint(f"scale.cpp:{line_of('in the inlined call')} wave 0")
    stop = session.go_on()
    assert [frame.function for frame in stop.frames] == ["scaled", "scale"]
    assert stop.frames[0].line.line == line_of("in the inlined call")
    after = session.step_instruction()
    assert after.address == stop.instruction.end and after.wave == stop.wave
    stop = session.finish()
    assert stop.reason in ("step", "breakpoint")
    assert [frame.function for frame in stop.frames][-1] == "scale"
    line = stop.frames[0].line
    assert session.step_line().frames[0].line != line


def test_the_end_of_a_stepped_wave_is_a_stop(session):
    session.set_breakpoint("instruction s_endpgm wave 0 workgroup 0")
    session.go_on()
    stop = session.step_instruction()
    assert (stop.reason, stop.wave) == ("ended", 0)
    # By the end of the wave its stores have completed.
    assert session.waves()[0]["status"] == "ended"
    assert torch.equal(~session.evaluate("tensor('out')").isnan(), torch.arange(256) < 64)


def test_registers_are_those_of_the_selected_wave(session):
    session.set_breakpoint("scale wave 1")
    session.go_on()
    # v0 holds the work-item's number in its lowest ten bits.
    assert torch.equal(session.evaluate("v0.i32 & 0x3ff"), torch.arange(64, 128, dtype=torch.int32))
    session.select_wave(0)
    assert session.evaluate("exec") == (1 << 64) - 1
    with pytest.raises(ValueError, match="wave 2; the workgroup has waves 0 to 1"):
        session.select_wave(2)


def test_a_variable_has_a_value_in_each_lane(session):
    session.set_breakpoint("instruction global_store_dword wave 1")
    session.go_on()
    stored = session.launch.symbols.instruction(session.stop.address).text.split(", ")[1]
    assert torch.equal(session.evaluate(f"{stored}.f32"), expected(2.0)[64:128])


def test_a_register_that_is_set_changes_the_result(session):
    session.set_breakpoint("instruction global_store_dword wave 0 workgroup 0")
    session.go_on()
    stored = session.launch.symbols.instruction(session.stop.address).text.split(", ")[1]
    session.assign(f"{stored}[5]", "1.5")
    assert session.evaluate(f"{stored}.f32[5]") == 1.5
    session.assign("exec", "0xff")
    session.assign(stored, "2.5")
    assert session.evaluate(f"{stored}.f32").tolist()[:8] == [2.5] * 8
    session.delete_breakpoint(1)
    assert session.go_on() == Exit(0)
    assert session.printed() == ["wrong", "right"]


def test_memory_is_watched(session):
    session.set_breakpoint("scale")
    session.go_on()
    session.delete_breakpoint(1)
    session.watch("out 0 4")
    stop = session.go_on()
    assert (stop.reason, stop.workgroup) == ("watch", (0, 0, 0))
    assert stop.text == f"out 0 4: bytes from 0: 0000c07f became {struct.pack('<f', expected(2.0)[0]).hex()}"
    session.watch("")
    assert session.go_on() == Exit(0)


def test_several_places_are_watched_and_conditions_hold(session):
    session.set_breakpoint("instruction global_store_dword wave 0 workgroup 0")
    session.go_on()
    session.delete_breakpoint(1)
    session.watch("v0[3], out 0 4,out 256 4")
    register, first, second = session.watches.values()
    assert (register.bytes, register.workgroup, first.workgroup) == (4, 0, None)
    session.delete_watch(first.number)
    session.add_watch(session.watch_of("out 1020 4", "workgroup[0] == 0"))
    stop = session.go_on()
    assert (stop.reason, stop.watches, stop.wave) == ("watch", (second.number,), 1)
    assert stop.text.startswith("out 256 4: bytes from 0: 0000c07f became ")
    # out[255] belongs to the other workgroup, so its condition is false there. A watch ends with its launch.
    session.set_breakpoint("scale")
    stop = session.go_on()
    assert (stop.reason, stop.launch.number, session.watches) == ("breakpoint", 2, {})
    with pytest.raises(ValueError, match="launch 1, whose bytes these are, has ended"):
        session.add_watch(second)
    session.watch("v[0:2]")
    session.select_wave(1)
    session.watch("v0")
    for place, said in {
        "s4": "'s4' cannot be watched; allowed: v3",
        "out 1020 8": "out has 1024 bytes",
        "v0[64]": "lane 64; a wave has 0 to 63",
        "lds 0 4": "4 bytes of LDS at 0; the workgroup has 0",
        "lds 0 0": "at least one byte",
        "v[2:2]": "cannot be watched",
    }.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            session.watch(place)


def test_a_breakpoint_behind_a_change_that_no_one_wants_still_stops(session):
    session.set_breakpoint("scale")
    session.go_on()
    session.watch("v[0:8]")
    changed = session.go_on()
    assert (changed.reason, changed.wave) == ("watch", 0)
    session.watch("")
    assert session.go_on().launch.number == 2
    session.add_watch(session.watch_of("v[0:8]", "wave == 7"))
    there = session.set_breakpoint(f"entry+{changed.address - changed.launch.entry}")
    stop = session.go_on()
    assert (stop.reason, stop.address, stop.breakpoints, stop.watches) == (
        "breakpoint", changed.address, (there.number,), ())  # fmt: skip


def test_an_operation_in_flight_is_named_by_its_instruction(session):
    session.set_breakpoint("instruction s_waitcnt.vmcnt wave 0 workgroup 0")
    session.go_on()
    symbols = session.launch.symbols
    flying = [symbols.instruction(each["address"]).text for each in session.waves()[0]["in_flight"]]
    assert flying and all(text.startswith("global_load_dword") for text in flying)
    session.step_instruction()
    assert session.waves()[0]["in_flight"] == []


def test_a_launch_that_runs_can_be_stopped(session):
    """The second launch's loops are made endless, so that there is time to stop it."""
    session.set_breakpoint("scale workgroup 0 wave 0")
    session.go_on()
    session.delete_breakpoint(1)
    session.set_breakpoint("instruction s_cmp wave 0")
    session.go_on()
    counter = session.launch.symbols.instruction(session.stop.address).text.split()[1].rstrip(",")
    session.delete_breakpoint(2)
    session.assign(counter, "0x7fffffff")
    stopped = []
    waiting = threading.Thread(target=lambda: stopped.append(session.go_on()))
    waiting.start()
    time.sleep(0.3)
    session.pause()
    waiting.join(timeout=30)
    assert [stop.reason for stop in stopped] == ["pause"]
    # A breakpoint that is set during the run takes effect at once.
    waiting = threading.Thread(target=lambda: stopped.append(session.go_on()))
    waiting.start()
    time.sleep(0.3)
    session.set_breakpoint("instruction s_cmp wave 0")
    waiting.join(timeout=30)
    assert [stop.reason for stop in stopped] == ["pause", "breakpoint"]


def test_an_end_shows_the_memory_that_was_written(session):
    session.stops_at_ends = True
    stop = session.go_on()
    assert (stop.reason, stop.text) == ("end", "")
    assert torch.equal(session.evaluate("tensor('out')"), expected(2.0))


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("vector 0 0 600", "vector registers 0 to 599; the kernel has"),
        ("vector 2 0 1", "wave 2; the workgroup has 2"),
        ("scalar 0 120 20", "scalar register 128; allowed: 0 to 127"),
        ("lds 0 4", "4 bytes of LDS at 0; the workgroup has 0"),
        ("memory 4096 4", "in no memory of the launch"),
        ("breakpoints 3", "no instruction begins at address 3"),
        ("set_vector 0 0 00", "a value of other than 512 hexadecimal digits"),
        ("vector 0", "`vector` lacks a word"),
        ("vector 0 x 1", "'x' is no decimal number"),
        ("jump", "'jump' is no command"),
    ],
)
def test_the_simulator_refuses_what_is_not_there(session, command, words):
    session.set_breakpoint("scale")
    session.go_on()
    with pytest.raises(ValueError, match=words):
        session.process.request(command)


def test_a_finding_stops_the_wave_that_made_it(tmp_path):
    program = [sys.executable, "examples/missing_barrier.py"]
    with open(tmp_path / "output", "w") as output:
        process = DebuggedProcess(program, checks="racecheck,initcheck", output=output)
        try:
            session = Session(process)
            stop = session.go_on()
            assert stop.reason == "finding"
            assert "reads LDS bytes 0x1fc to 0x1ff" in stop.text and "no wave has written them" in stop.text
            session.stops_at_findings = False
            assert session.go_on() == Exit(0)
        finally:
            process.kill()


def test_a_program_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="cannot run '/nowhere/program'"):
        DebuggedProcess(["/nowhere/program"])
