"""Swizzles against the phase tables that were measured on the hardware."""

import ctypes

import numpy as np
import pytest

from tests.host_build import build

# Lanes that one phase of an instruction serves together, and the bytes its banks span. gfx950: HipKittens' measurements
# (analysis/paper_experiments/phases); gfx942: rocm-blogs, LDS bank conflicts.
READ_B128_950 = [[*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]]
READ_B128_942 = [
    [*range(4 * i, 4 * i + 4), *range(20 + 8 * (i // 2) - 4 * (i % 2), 24 + 8 * (i // 2) - 4 * (i % 2))]
    for i in range(4)
]
PHASES = {
    (950, "read_b128"): (READ_B128_950 + [[lane + 32 for lane in p] for p in READ_B128_950], 256),
    (942, "read_b128"): (READ_B128_942 + [[lane + 32 for lane in p] for p in READ_B128_942], 128),
    (950, "read_b64"): ([list(range(32)), list(range(32, 64))], 256),
    (942, "write_b64"): ([list(range(16 * i, 16 * i + 16)) for i in range(4)], 128),
}
LINEAR, ROWS, ROWS_WRITTEN_IN_RUNS, COLUMNS_16, COLUMNS_32 = range(5)
BYTES = {"read_b128": 16, "read_b64": 8, "write_b64": 8}


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    path = build(
        tmp_path_factory.mktemp("swizzle") / "libswizzle.so", ["tests/tiles/swizzle_probe.cpp"], "-shared"
    )
    return ctypes.CDLL(str(path))


def degree(addresses, target, instruction):
    """The most lanes of a phase in one bank; lanes that read the same dword do not conflict."""
    phases, window = PHASES[target, instruction]
    worst = 1
    for phase in phases:
        banks = {}
        for lane in phase:
            for dword in range(addresses[lane] // 4, (addresses[lane] + BYTES[instruction]) // 4):
                banks.setdefault(dword % (window // 4), set()).add(dword)
        worst = max(worst, *(len(dwords) for dwords in banks.values()))
    return worst


def test_phases_serve_every_lane_once():
    for phases, _ in PHASES.values():
        assert sorted(lane for phase in phases for lane in phase) == list(range(64))
    assert READ_B128_942[0] == [0, 1, 2, 3, 20, 21, 22, 23] and READ_B128_942[1] == [
        4,
        5,
        6,
        7,
        16,
        17,
        18,
        19,
    ]


@pytest.mark.parametrize("target", [942, 950])
@pytest.mark.parametrize("row_bytes", [64, 128, 256, 512])
@pytest.mark.parametrize("access", [ROWS, ROWS_WRITTEN_IN_RUNS, COLUMNS_16, COLUMNS_32])
def test_a_swizzle_moves_bytes_inside_their_row_only(probe, target, row_bytes, access):
    for row in range(64):
        found = [probe.probe_offset(access, row_bytes, target, row, byte) for byte in range(0, row_bytes, 4)]
        assert sorted(found) == list(range(row * row_bytes, (row + 1) * row_bytes, 4))


@pytest.mark.parametrize("target", [942, 950])
@pytest.mark.parametrize("access", [ROWS, ROWS_WRITTEN_IN_RUNS])
@pytest.mark.parametrize("row_bytes", [128, 256, 512])
@pytest.mark.parametrize("base_rows", [16, 32])
def test_row_reads_meet_no_bank_twice(probe, target, access, row_bytes, base_rows):
    if access == ROWS_WRITTEN_IN_RUNS and target == 950:
        pytest.skip("gfx950 reads transposed instead of filling transposed")
    for first_row in range(0, 64, base_rows):
        for first_byte in range(0, row_bytes, 16 * 64 // base_rows):
            addresses = [
                probe.probe_offset(
                    access,
                    row_bytes,
                    target,
                    first_row + lane % base_rows,
                    first_byte + 16 * (lane // base_rows),
                )
                for lane in range(64)
            ]
            assert degree(addresses, target, "read_b128") == 1, (first_row, first_byte)


def test_without_a_swizzle_rows_conflict(probe):
    addresses = [probe.probe_offset(LINEAR, 128, 950, lane % 16, 16 * (lane // 16)) for lane in range(64)]
    assert degree(addresses, 950, "read_b128") > 1


@pytest.mark.parametrize(("access", "width"), [(COLUMNS_16, 16), (COLUMNS_32, 32)])
@pytest.mark.parametrize("row_bytes", [64, 128, 256, 512])
def test_transposed_reads_meet_no_bank_twice(probe, access, width, row_bytes):
    for first_row in range(0, 64, 512 // width):
        for first_byte in range(0, row_bytes, 2 * width):
            for half in range(2):
                addresses = []
                for lane in range(64):
                    block, inside = lane // 16, lane % 16
                    row = first_row + 8 * (lane // width) + 4 * half + inside // 4
                    byte = first_byte + (block * 32 if width == 32 else 0) % (2 * width) + inside % 4 * 8
                    addresses.append(probe.probe_offset(access, row_bytes, 950, row, byte))
                assert degree(addresses, 950, "read_b64") == 1, (first_row, first_byte, half)


@pytest.mark.parametrize("row_bytes", [128])
@pytest.mark.parametrize("block_cols", [4, 8])
def test_the_transposing_fill_meets_no_bank_twice(probe, row_bytes, block_cols):
    """Eight column blocks and two neighboring runs of four per sixteen lanes: load_global_to_shared.h."""
    for j in range(block_cols):
        for runs in range(0, row_bytes // 8, 2):
            addresses = np.array(
                [
                    probe.probe_offset(
                        ROWS_WRITTEN_IN_RUNS,
                        row_bytes,
                        942,
                        lane % 8 * block_cols + j,
                        (runs + lane // 8 % 2) * 8,
                    )
                    for lane in range(64)
                ]
            )
            assert degree(addresses, 942, "write_b64") == 1
