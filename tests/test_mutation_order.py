# SPDX-License-Identifier: MIT
"""What the replay of a recorded run concludes about a wait or a barrier: small programs and the recorded events of their waves."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from mutation_code import Line, Mutant
from mutation_lanes import sides_of_branches
from mutation_order import Order

_KINDS = {"s_barrier": 0, "s_waitcnt": 1, "global": 2, "ds": 4}


def program(*texts):
    """Lines of four bytes each; "-> n" names the line that a branch goes to."""
    lines = []
    for index, text in enumerate(texts):
        text, _, target = text.partition(" -> ")
        distance = int(target) - index - 1 if target else 0
        lines.append(Line(4 * index, struct.pack("<hh", distance, 0), text))
    return lines


def order(lines, waves, reads_what_it_writes=False):
    """waves: for each wave the lines with events, in order; (line, LDS address) for LDS."""
    words = []
    for wave, events in enumerate(waves):
        for event in events:
            index, *addresses = event if isinstance(event, tuple) else (event,)
            kind = _KINDS[next(name for name in _KINDS if lines[index].text.startswith(name))]
            words += [wave, 4 * index, kind << 16 | len(addresses), 4, *addresses]
    executed = frozenset(line.address for line in lines)
    mutations = SimpleNamespace(lines=lines, executed=executed)
    return Order(np.array(words, np.uint32).tobytes(), mutations, reads_what_it_writes)


def deleted(kind, lines, index, **relaxed):
    return Mutant(kind, "deleted", 4 * index, lines[index].text, b"", tuple(relaxed.items()))


def weakened(lines, index, **relaxed):
    return Mutant("wait", "weakened", 4 * index, lines[index].text, b"", tuple(relaxed.items()))


LOADS = program(
    "s_cbranch_scc1 0 -> 2",
    "s_nop 0",
    "global_load_dword v1, v[8:9], off",
    "s_cbranch_scc1 0 -> 5",
    "global_load_dword v2, v[8:9], off",
    "s_waitcnt vmcnt(0)",
    "v_mov_b32_e32 v3, v1",
    "s_waitcnt vmcnt(0)",
    "s_endpgm",
)


@pytest.mark.parametrize(("events", "is_safe"), [([2, 4, 5, 7], True), ([2, 5, 7], False)])
def test_registers_on_the_path_that_a_wave_took(events, is_safe):
    """With the second load issued after it, the first one has completed when one may be outstanding."""
    assert order(LOADS, [events]).keeps(weakened(LOADS, 5, vmcnt=0)) == is_safe
    assert not order(LOADS, [events]).keeps(deleted("wait", LOADS, 5, vmcnt=0))


@pytest.mark.parametrize(
    ("modifiers", "is_read"),
    [("", True), (" op_sel_hi:[0,1]", False), (" op_sel:[1,0] op_sel_hi:[0,1]", True), (" op_sel_hi:[1,0]", True),
     (" neg_lo:[0,1] neg_hi:[0,1]", True), (" op_sel_hi:[0,1] neg_lo:[0,1] neg_hi:[0,1]", False)],
)  # fmt: skip
def test_packed_arithmetic_that_takes_one_register_of_a_pair_twice(modifiers, is_read):
    lines = program(
        "global_load_dword v17, v[8:9], off", "s_waitcnt vmcnt(0)",
        f"v_pk_mul_f32 v[54:55], v[16:17], v[54:55]{modifiers}", "s_waitcnt vmcnt(0)", "s_endpgm",
    )  # fmt: skip
    assert order(lines, [[0, 1, 3]]).keeps(deleted("wait", lines, 1, vmcnt=0)) != is_read


MEETING = program(
    "global_store_dword v[8:9], v1, off",
    "s_waitcnt vmcnt(0)",
    "s_barrier",
    "s_barrier",
    "global_load_dword v2, v[8:9], off",
    "s_waitcnt vmcnt(0)",
    "s_endpgm",
)


def test_a_store_that_another_wave_may_read_stays_ordered():
    waves = [[0, 1, 2, 3], [2, 3, 4, 5]]
    assert not order(MEETING, waves, True).keeps(deleted("wait", MEETING, 1, vmcnt=0))
    assert order(MEETING, waves, False).keeps(deleted("wait", MEETING, 1, vmcnt=0))
    # Either of the two barriers suffices, and the wait after the last access orders nothing with another wave.
    assert order(MEETING, waves, True).keeps(deleted("barrier", MEETING, 3))
    assert order(MEETING, waves, True).keeps(deleted("wait", MEETING, 5, vmcnt=0))


def test_the_only_barrier_between_a_store_and_a_load_is_needed():
    lines = program(*(line.text for line in MEETING if line.address != 8))
    assert not order(lines, [[0, 1, 2], [2, 3, 4]], True).keeps(deleted("barrier", lines, 2))
    # Kernels with accesses that other workgroups see are not judged.
    coherent = program(*(line.text.replace("v1, off", "v1, off sc1") for line in MEETING))
    assert not order(coherent, [[0, 1, 2, 3], [2, 3, 4, 5]], True).keeps(deleted("barrier", coherent, 3))


@pytest.mark.parametrize(("atomic", "is_ordered"), [("ds_add_u32", True), ("ds_write_b32", False)])
def test_sums_in_lds_commute(atomic, is_ordered):
    lines = program(f"{atomic} v1, v2", "s_waitcnt lgkmcnt(0)", "s_barrier", f"{atomic} v1, v2", "s_endpgm")
    waves = [[(0, 64), 1, 2], [1, 2, (3, 64)]]
    assert order(lines, waves).keeps(deleted("barrier", lines, 2)) == is_ordered


BRANCH = (
    "s_and_saveexec_b64 s[2:3], vcc",
    "s_xor_b64 s[0:1], exec, s[2:3]",
    "s_cbranch_execz 0 -> 4",
    "global_load_dword v1, v[8:9], off",
    "s_andn2_saveexec_b64 s[0:1], s[0:1]",
    "s_cbranch_execz 0 -> 11",
    "s_waitcnt vmcnt(0)",
    "v_mov_b32_e32 v1, 0",
    "s_and_saveexec_b64 s[4:5], vcc",
    "v_mov_b32_e32 v2, 0",
    "s_or_b64 exec, exec, s[4:5]",
    "s_or_b64 exec, exec, s[0:1]",
    "s_waitcnt vmcnt(0)",
    "s_endpgm",
)


def test_lanes_of_the_other_side_of_a_branch():
    lines = program(*BRANCH)
    (sides,) = sides_of_branches(lines)
    assert (sides.then, sides.other, sides.end) == (1, 4, 11)
    assert sides.separate(3, 7) and not sides.separate(3, 11) and not sides.separate(7, 3)
    assert order(lines, [[3, 6, 12]]).keeps(deleted("wait", lines, 6, vmcnt=0))


@pytest.mark.parametrize(
    ("at", "text"),
    [
        (9, "s_mov_b64 exec, -1"),  # all lanes
        (8, "s_or_b64 exec, exec, s[6:7]"),  # lanes that were taken away before
        (9, "s_mov_b64 s[4:5], s[6:7]"),  # the restored mask differs
        (7, "s_mov_b64 s[0:1], -1"),
        (9, "s_cbranch_scc0 0 -> 1"),  # a loop: the load may be from an earlier iteration
        (9, "s_cbranch_scc0 0 -> 0"),
    ],
)
def test_sides_that_may_share_lanes(at, text):
    texts = list(BRANCH)
    texts[at] = text
    assert not sides_of_branches(program(*texts))
