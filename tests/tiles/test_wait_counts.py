"""How many loads may be in flight at a wait, compared with a simulated queue of loads."""

import ctypes
import random

import pytest

from tests.host_build import build

ANY = 63


@pytest.fixture(scope="module")
def in_flight(tmp_path_factory):
    path = build(tmp_path_factory.mktemp("waits") / "libwaits.so", ["tests/tiles/wait_probe.cpp"], "-shared")
    function = ctypes.CDLL(str(path)).probe_in_flight

    def call(slots, wait, until_next, stages):
        stages = [*stages, *[(0, 0, 0, 0)] * (4 - len(stages))]
        numbers = [number for stage in stages for number in stage]
        return function(slots, wait, until_next, (ctypes.c_int * 16)(*numbers))

    return call


def queued(slots, wait, until_next, stages):
    """The same count from a queue: loads are issued iteration by iteration, and return in order."""
    queue, turn = [], 40
    for time in range(turn * slots + wait + 1):
        for stage, (issued, needed, ahead, loads) in enumerate(stages):
            if time % slots == issued:
                queue += [(stage, (time // slots + ahead) * slots + needed)] * loads
    now = turn * slots + wait
    needed_now = range(now + 1, now + until_next + 1)
    wanted = [
        (stage, time)
        for stage, (issued, needed, ahead, loads) in enumerate(stages)
        for time in needed_now
        if loads and (time - needed) % slots == 0
    ]
    if not wanted:
        return ANY
    if any(entry not in queue for entry in wanted):
        return -1
    last = max(len(queue) - 1 - queue[::-1].index(entry) for entry in wanted)
    return len(queue) - 1 - last


def test_known_pipelines(in_flight):
    # Before phase 0 of a tile its two first halves must have arrived. Issued after them: its two second halves and three
    # halves of the next tile.
    halves = [(1, 0, 2, 2), (2, 0, 2, 2), (3, 1, 2, 2), (0, 2, 1, 2)]
    assert [in_flight(4, phase, 1, halves) for phase in range(4)] == [10, 10, ANY, 10]
    assert in_flight(1, 0, 1, [(0, 0, 1, 4)]) == 0
    assert in_flight(1, 0, 1, [(0, 0, 3, 4)]) == 8
    assert in_flight(2, 0, 1, [(1, 1, 0, 4)]) == -1  # needed before it is issued


def test_random_pipelines(in_flight):
    draw = random.Random(5)
    seen = set()
    for _ in range(2000):
        slots = draw.randint(1, 6)
        stages = [
            (draw.randrange(slots), draw.randint(-1, slots - 1), draw.randint(0, 3), draw.randint(1, 4))
            for _ in range(draw.randint(1, 4))
        ]
        wait, until_next = draw.randrange(slots), draw.randint(1, slots)
        expected = queued(slots, wait, until_next, stages)
        seen.add(min(expected, 1))
        assert in_flight(slots, wait, until_next, stages) == expected, (slots, wait, until_next, stages)
    assert seen == {-1, 0, 1}
