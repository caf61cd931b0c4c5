"""How items of work are distributed over the slots of a loop body, in the order of their placements."""

import numpy as np
import pytest

from tests.simulated_device import TARGETS
from tests.tiles.tile_kernels import run

SLOTS = 12
# What interleave_kernels.cpp places, by hand: work -> the slot of each item.
PLACED = {
    0: list(range(SLOTS)),
    1: [2, 3, 4, 6, 7, 9, 10],  # seven items over ten slots, each as early as may be
    2: [2, 4, 7, 9, 11],  # five over twelve, each as late
    3: [4],
    4: [],
    5: [11, 10, 9],
    6: [9, 9, 10, 10],
}


def logged(kernel, target, count):
    out = np.full(64, -1, np.int32)
    run("interleave_kernels", kernel, target, out=out, poison=0)
    assert (out[count:] == -1).all()
    return out[:count].tolist()


def in_order(placed):
    return [
        1000 * work + item
        for slot in range(SLOTS)
        for work, slots in placed.items()
        for item, at in enumerate(slots)
        if at == slot
    ]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", ["in_one_piece", "in_three_pieces"])
def test_items_run_by_slot_then_work_then_number(kernel, target):
    expected = in_order(PLACED)
    assert len(expected) == sum(map(len, PLACED.values()))
    assert logged(kernel, target, len(expected)) == expected


@pytest.mark.parametrize("target", TARGETS)
def test_phases_move_data_before_they_multiply(target):
    # Eight products over three phases: 3, 3, 2.
    expected = [1000, 0, 1, 2, 1001, 2000, 3, 4, 5, 1002, 6, 7]
    assert logged("phases", target, len(expected)) == expected
