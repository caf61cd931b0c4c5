"""Instructions issued by the hot loops of the prebuilt GEMM kernels, from the index of the packs and the simulator's counters."""

import re

import pytest

from hipkittens._installation import pack
from tests.kernels.gemm_plan import ROWS, VARIANTS, Gemm
from tests.simulated_device import TARGETS

BUILT = [
    (target, row) for row, (targets, *_) in ROWS.items() for target in TARGETS if targets in ("both", target)
]


def is_ping_pong(row: str) -> bool:
    return "256x256" in row


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_spilled(target):
    kernels = [
        kernel
        for entry in pack(target).entries
        if entry["operation"] == "gemm"
        for kernel in entry["kernels"]
    ]
    assert len(kernels) == len(re.findall(rf"^ROW\(\w+, \w+, (?:both|{target})\b", VARIANTS, re.M))
    for kernel in kernels:
        assert kernel["scratch_bytes"] == kernel["vgpr_spills"] == kernel["sgpr_spills"] == 0, kernel[
            "symbol"
        ]


def loop_of(target, row, tiles=8):
    """Counters per `tiles` K tiles: the difference between a longer K and one that has run the whole loop."""
    _, orientation, element, tile_m, tile_n, tile_k = ROWS[row]
    reports = [
        Gemm(target, orientation, element, tile_m, tile_n, (6 + extra) * tile_k).run(
            row, count_lds_conflicts=1
        )[1][0]
        for extra in (0, tiles)
    ]
    names = [name for name, _ in type(reports[0])._fields_ if name not in ("seconds", "workgroups", "waves")]
    waves = reports[0].waves
    return {name: (getattr(reports[1], name) - getattr(reports[0], name)) / (waves * tiles) for name in names}


# Least share of matrix instructions among all issued, and the vector ALU instructions per wave and K tile: none where
# operands are read in place; where gfx942 transposes on the way into LDS, the permutations and their addresses.
LEAST_SHARE = {
    "gfx942": {"nt": 0.6, "nn": 0.53, "tt": 0.53, "tn": 0.46},
    "gfx950": {"nt": 0.48, "nn": 0.45, "tt": 0.43, "tn": 0.4},
}
MOST_VECTOR = {
    "gfx942": {"nt": 0, "nn": 20, "tt": 20, "tn": 48},
    "gfx950": {"nt": 0, "nn": 0, "tt": 0, "tn": 0},
}


@pytest.mark.parametrize(("target", "row"), [(target, row) for target, row in BUILT if is_ping_pong(row)])
def test_the_ping_pong_loop(target, row):
    orientation = ROWS[row][1]
    loop = loop_of(target, row)
    # 128 x 64 x 64 of a wave in steps of 16 x 16 x 32 (gfx942: 16).
    assert loop["mfma_instructions"] == (64 if target == "gfx950" else 128)
    assert loop["lds_conflict_cycles"] == 0
    assert loop["mfma_instructions"] >= LEAST_SHARE[target][orientation] * loop["instructions"], loop
    assert loop["valu_instructions"] <= MOST_VECTOR[target][orientation], loop


@pytest.mark.parametrize(
    ("target", "row"),
    [(target, row) for target, row in BUILT if row.startswith("nt_bf16") and not is_ping_pong(row)],
)
def test_other_loops_meet_no_bank_twice(target, row):
    loop = loop_of(target, row)
    assert loop["lds_conflict_cycles"] == 0 and loop["mfma_instructions"] > 0
