# SPDX-License-Identifier: MIT
"""The main loop of a modelled launch, and the utilization of the matrix cores in it."""

from types import SimpleNamespace

import pytest

from hipkittens import _timing
from hipkittens._simulator import UNITS
from hipkittens.profiling import problems
from hipkittens.profiling.bench import modelled_launches
from hipkittens.profiling.main_loop import main_loop

# Two instructions, a loop of three with eight iterations, an end. Eight bytes each, except for branches and the end.
CODE = (
    (0, "v_mov_b32 v0, 0", "valu", 2),
    (8, "s_load_dwordx2 s[0:1], s[2:3], 0", "smem", 2),
    (16, "v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[18:19], v[0:15]", "matrix", 16),
    (24, "s_waitcnt vmcnt(0)", "internal", 16),
    (28, "s_cbranch_scc1 -4", "branch", 16),
    (32, "s_endpgm", "internal", 2),
)


def event(address, begin, duration=4.0, wave=0, simd=0, compute_unit=0):
    unit = {row[0]: UNITS.index(row[2]) for row in CODE}.get(address, 0)
    place = {"wave": wave, "simd": simd, "compute_unit": compute_unit, "workgroup": 7}
    return SimpleNamespace(
        address=address, begin=begin, duration=duration, unit=unit, is_wave=address is None, **place
    )


def launch_of(*events, code=CODE):
    rows = [
        {"address": a, "text": t, "unit": u, "issues": i, "stalls": {}, "source": "", "called_from": ""}
        for a, t, u, i in code
    ]
    return _timing.ModelledLaunch("kernel", "MI355X", 1e3, 1.0, 2.6, {"instructions": rows}, events)


def test_the_loop_is_found_without_sizes():
    loop = main_loop(launch_of())
    assert (loop.first, loop.last, loop.instructions, loop.mfma_instructions) == (16, 28, 3, 1)
    assert loop.issue_share == pytest.approx(48 / 54)
    assert loop.mfma_busy is None and loop.clocks_share is None


def test_no_loop():
    assert main_loop(launch_of(code=CODE[:3] + CODE[5:])) is None


def test_matrix_cores_in_the_time_of_the_loop():
    """One SIMD: a wave is in the loop from 100 to 180, another from 140 to 200; four products of 16 clocks."""
    events = [
        event(None, 0.0, 400.0),
        event(None, 0.0, 400.0, wave=1),
        event(0, 4.0),
        event(16, 100.0, 16.0),
        event(16, 140.0, 16.0, wave=1),
        event(16, 164.0, 16.0),  # until 180
        event(16, 184.0, 16.0, wave=1),  # until 200
        event(32, 300.0),
        event(32, 300.0, wave=1),
        event(16, 0.0, 1000.0, compute_unit=1),  # another compute unit's
    ]
    loop = main_loop(launch_of(*events))
    assert loop.mfma_busy == pytest.approx(64 / 100) and loop.clocks_share == pytest.approx(100 / 400)


def test_a_stay_ends_with_the_first_instruction_outside():
    events = [
        event(None, 0.0, 400.0),
        event(16, 0.0, 16.0),
        event(28, 36.0),
        event(0, 40.0),
        event(16, 200.0, 16.0),
    ]
    loop = main_loop(launch_of(*events))
    assert loop.clocks_share == pytest.approx((36 + 16) / 400) and loop.mfma_busy == pytest.approx(32 / 52)


def test_a_product_spends_its_time_there():
    (problem,) = problems.parse_shapes("gemm", "1024x1024x512")
    launch = modelled_launches("MI355X", problem.call(), timeline=1)[0]  # followed by a sum of the parts of K
    loop = main_loop(launch)
    assert loop.mfma_instructions and 0 < loop.issue_share < 1 and 0 < loop.clocks_share < 1
    assert launch.busy["matrix"] < loop.mfma_busy < 1  # nothing multiplies outside
