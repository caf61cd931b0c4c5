"""racecheck and initcheck on LDS: unordered waves, copies that stay pending across barriers, unwritten bytes."""

import dataclasses
import itertools
import random
import re

import numpy as np
import pytest

from tests.kernels.packed_gemm import PackedGemm
from tests.simulated_device import ALL_CHECKS, CHECKERS, TARGETS, take_findings
from tests.simulator.checked_kernels import findings_of, only
from tests.simulator.listing import listing
from tests.simulator.memory_kernels import LOAD_ARGUMENTS, Body, aligned, load

# v0 is the work-item, v1 its dword in LDS, v2 the dword of the same lane of the other wave; s20 the wave.
SETUP = (
    LOAD_ARGUMENTS
    + """
  v_readfirstlane_b32 s20, v0
  s_lshr_b32 s20, s20, 6
  v_xor_b32_e32 v2, 0x100, v1
  v_mov_b32_e32 v3, 7
"""
)
WRITE = "ds_write_b32 v1, v3"
READ = "ds_read_b32 v32, v2"
DRAIN = "s_waitcnt vmcnt(0) lgkmcnt(0)"
COPY = "s_lshl_b32 s21, s20, 8\ns_mov_b32 m0, s21\ns_nop 0\nglobal_load_lds_dword v1, s[8:9]"


def body(*lines):
    return Body(SETUP + "\n".join(lines) + "\n" + DRAIN, 1024)


BODIES = {
    "ordered": body(WRITE, "s_waitcnt lgkmcnt(0)", "s_barrier", READ),
    "no_barrier": body(WRITE, "s_waitcnt lgkmcnt(0)", READ),
    "no_wait": body(WRITE, "s_barrier", READ),
    "late_wait": body(WRITE, "s_barrier", "s_waitcnt lgkmcnt(0)", READ),
    "read_then_write": body(WRITE, DRAIN, "s_barrier", READ, DRAIN, WRITE),
    "read_barrier_write": body(WRITE, DRAIN, "s_barrier", READ, DRAIN, "s_barrier", WRITE),
    "pending_read": body(WRITE, DRAIN, "s_barrier", READ, "s_barrier", WRITE),
    "both_write": body(WRITE, "ds_write_b32 v2, v0"),
    "both_write_the_same": body(WRITE, "ds_write_b32 v2, v3"),
    "copied": body(COPY, "s_waitcnt vmcnt(0)", "s_barrier", READ),
    "copy_pending": body(COPY, "s_barrier", "s_waitcnt vmcnt(0)", READ),
    "copy_read_by_itself": body(COPY, "ds_read_b32 v32, v1"),
    "copy_waited_by_itself": body(COPY, "s_waitcnt vmcnt(0)", "ds_read_b32 v32, v1"),
    "write_then_read_by_itself": body(WRITE, "ds_read_b32 v32, v1"),
    "read_under_copy": body(WRITE, DRAIN, "ds_read_b32 v32, v1", COPY),
    "atomics": body(WRITE, DRAIN, "s_barrier", "ds_add_u32 v1, v3", "ds_add_u32 v2, v3"),
    "atomic_and_read": body(WRITE, DRAIN, "s_barrier", "ds_add_u32 v1, v3", READ),
    "halves": body(WRITE, DRAIN, "s_barrier", "ds_write_b16 v1, v3", "ds_read_u16 v32, v2 offset:2"),
    "same_half": body(WRITE, DRAIN, "s_barrier", "ds_write_b16 v1, v3", "ds_read_u16 v32, v2"),
    "unwritten": body("ds_read_b32 v32, v1"),
    "half_written": body("ds_write_b16 v1, v3", "ds_read_b32 v32, v1"),
}


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


@pytest.mark.parametrize(
    "name",
    ["ordered", "read_barrier_write", "copied", "copy_waited_by_itself", "write_then_read_by_itself", "atomics", "halves"],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 3])
def test_ordered_accesses(module, name, seed):
    assert findings_of(module, name, waves=2, wave_order_seed=seed) == ([], None)


def test_equal_writes_are_a_note(module):
    assert findings_of(module, "both_write_the_same", waves=2) == ([], None)
    findings, _ = findings_of(module, "both_write_the_same", checks="racecheck,notes", waves=2)
    assert {finding["checker"] for finding in findings} == {"notes"}
    places = {finding["place"] for finding in findings if finding["kind"] == "equal_lds_writes"}
    assert places == {"LDS bytes 0x0 to 0x3", "LDS bytes 0x100 to 0x103"}


@pytest.mark.parametrize(
    ("name", "parties", "fix"),
    [
        ("no_barrier", {WRITE, READ}, "s_waitcnt lgkmcnt in wave {first}, then s_barrier, between the two"),
        ("no_wait", {WRITE, READ},
         "s_waitcnt lgkmcnt in wave {first} before the barrier between the two, which does not wait for memory"),
        ("late_wait", {WRITE, READ},
         "s_waitcnt lgkmcnt in wave {first} before the barrier between the two, which does not wait for memory"),
        ("read_then_write", {READ, WRITE}, "s_waitcnt lgkmcnt in wave {first}, then s_barrier, between the two"),
        ("pending_read", {READ, WRITE},
         "s_waitcnt lgkmcnt in wave {first} before the barrier between the two, which does not wait for memory"),
        ("both_write", {WRITE, "ds_write_b32 v2, v0"}, "s_waitcnt lgkmcnt in wave {first}, then s_barrier, between the two"),
        ("copy_pending", {"global_load_lds_dword v1, s[8:9]", READ},
         "s_waitcnt vmcnt in wave {first} before the barrier between the two, which does not wait for memory"),
        ("atomic_and_read", {"ds_add_u32 v1, v3", READ}, "s_waitcnt lgkmcnt in wave {first}, then s_barrier, between the two"),
        ("same_half", {"ds_write_b16 v1, v3", "ds_read_u16 v32, v2"},
         "s_waitcnt lgkmcnt in wave {first}, then s_barrier, between the two"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seed", [0, 3])
def test_waves_that_nothing_orders(module, name, parties, fix, seed):
    findings, _ = findings_of(module, name, checks="racecheck", waves=2, wave_order_seed=seed)
    assert findings
    for finding in findings:
        first, second = finding["first"], finding["second"]
        assert finding["checker"] == "racecheck"
        assert {first["text"], second["text"]} <= parties
        assert {first["wave"], second["wave"]} == {0, 1}
        assert finding["fix"] in {fix.format(first=wave) for wave in (0, 1)}
        assert finding["place"].startswith("LDS bytes 0x")
        assert f"`{second['text']}` at entry+{second['offset']:#x}" in finding["message"]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("copy_read_by_itself", "s_waitcnt vmcnt between the two"),
        ("read_under_copy", "s_waitcnt lgkmcnt between the two"),
    ],
)
def test_two_queues_of_one_wave(module, name, fix):
    finding = only(findings_of(module, name, checks="racecheck")[0])
    assert (finding["first"]["wave"], finding["second"]["wave"], finding["fix"]) == (0, 0, fix)


@pytest.mark.parametrize(
    ("name", "second", "place"),
    [
        ("unwritten", "ds_read_b32 v32, v1", "LDS bytes 0x0 to 0xf"),
        ("half_written", "ds_read_b32 v32, v1", "LDS bytes 0x2 to 0x3"),
    ],
)
def test_bytes_are_written_before_they_are_read(module, name, second, place):
    finding = only(findings_of(module, name)[0])
    assert (finding["checker"], finding["kind"]) == ("initcheck", "uninitialised_lds")
    assert (finding["first"], finding["second"]["text"]) == (None, second)
    assert finding["place"] == place or name == "unwritten"


@dataclasses.dataclass(frozen=True)
class Access:
    """One instruction of a program that all waves run, on the part of LDS that belongs to the wave with number own ^ `other`."""

    kind: str  # "read", "write" or "copy", a write in vector memory's queue
    other: int
    epoch: int  # barriers before it is issued
    place: int
    completed_epoch: int  # and before the first wait that covers it
    completed_place: int

    def is_ordered_before(self, later: "Access", is_same_wave: bool) -> bool:
        if not is_same_wave:
            return self.completed_epoch < later.epoch
        same_queue = (self.kind == "copy") == (later.kind == "copy")
        return self.place < later.place if same_queue else self.completed_place < later.place


COUNTERS = {"copy": "vmcnt(0)", "read": "lgkmcnt(0)", "write": "lgkmcnt(0)"}
WAVES = 4


def drawn_program(number: int) -> list[tuple[str, int]]:
    """A random program, mostly ordered, so that the ordering matters: accesses, many followed by a wait and a barrier."""
    draw = random.Random(number)
    program = []
    for _ in range(draw.randint(2, 5)):
        kind = draw.choice(("read", "write", "copy", "copy"))
        program.append((kind, draw.randrange(3)))
        if draw.random() < 0.75:
            program.append((f"s_waitcnt {COUNTERS[draw.choice((kind, kind, 'copy'))]}", 0))
        if draw.random() < 0.75:
            program.append(("s_barrier", 0))
    return program


def accesses(program) -> list[Access]:
    made = []
    for place, (kind, other) in enumerate(program):
        if kind not in COUNTERS:
            continue
        waits = (at for at in range(place, len(program)) if program[at][0] == f"s_waitcnt {COUNTERS[kind]}")
        completed = next(waits, len(program))
        epochs = (sum(what == "s_barrier" for what, _ in program[:at]) for at in (place, completed))
        made.append(Access(kind, other, next(epochs), place, next(epochs), completed))
    return made


def has_race(program) -> bool:
    for (wave, one), (other_wave, two) in itertools.combinations(
        itertools.product(range(WAVES), accesses(program)), 2
    ):
        if wave ^ one.other != other_wave ^ two.other or one.kind == two.kind == "read":
            continue
        same = wave == other_wave
        if not (one.is_ordered_before(two, same) or two.is_ordered_before(one, same)):
            return True
    return False


def text_of(kind: str, other: int) -> str:
    address = ("v1", "v2", "v4")[other]
    if kind == "copy":
        slot = f"s_lshl_b32 s21, s20, 8\ns_xor_b32 m0, s21, {256 * other:#x}\ns_nop 0\n"
        return slot + "global_load_lds_dword v1, s[8:9]"
    # A different value for every wave: equal writes are no race.
    write = f"v_add_u32_e32 v3, v0, v3\nds_write_b32 {address}, v3"
    return {"read": f"ds_read_b32 v32, {address}", "write": write}.get(kind, kind)


PROGRAMS = {f"drawn_{number}": drawn_program(number) for number in range(160)}


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("target", TARGETS)
def test_drawn_programs_race_where_nothing_orders_them(target, seed):
    """Compared with a reference that models waits, barriers and queues, and executes nothing."""
    begin = ("v_xor_b32_e32 v4, 0x200, v1", WRITE, DRAIN, "s_barrier")
    module = load(
        {
            name: body(*begin, *itertools.starmap(text_of, program), DRAIN, "s_barrier")
            for name, program in PROGRAMS.items()
        },
        target,
    )
    expected = {name for name, program in PROGRAMS.items() if has_race(program)}
    memory = aligned(1024)
    memory[:] = 977 * np.arange(1024) + 5  # no two copies write the same
    launch = {"memory": memory, "waves": WAVES, "wave_order_seed": seed}
    found = {name for name in PROGRAMS if findings_of(module, name, checks="racecheck", **launch)[0]}
    assert 20 < len(expected) < len(PROGRAMS) - 20
    assert found == expected


def test_the_missing_first_barrier_of_an_eight_wave_product_is_found():
    """Real silicon computes the right numbers without it."""
    gemm = PackedGemm("gfx950", "nt_bf16_256x256x64", 256, 256, 448)
    take_findings()
    gemm.run(checks=ALL_CHECKS)
    assert [finding for finding in take_findings() if finding["checker"] != "notes"] == []

    # The barrier after the first wait that leaves copies in flight.
    lines = listing(gemm.image, "gfx950")
    wait = next(i for i, line in enumerate(lines) if re.search(r"s_waitcnt vmcnt\([1-9]", line.text))
    barrier = next(line for line in lines[wait:] if line.mnemonic == "s_barrier")
    s_nop = (0xBF800000).to_bytes(4, "little")
    gemm.run(
        gemm.image[: barrier.offset] + s_nop + gemm.image[barrier.offset + 4 :], checks=CHECKERS["racecheck"]
    )
    races = take_findings()
    assert {race["checker"] for race in races} == {"racecheck"}
    parties = {race[party]["text"].split()[0] for race in races for party in ("first", "second")}
    assert any(name.startswith("ds_read") for name in parties)
    assert all(race[party]["source"] for race in races for party in ("first", "second"))
