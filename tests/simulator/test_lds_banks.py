"""Modelled LDS bank conflicts: published cases, and an independent count over random addresses."""

import ctypes

import numpy as np
import pytest

from tests.simulated_device import TARGETS, Report, library
from tests.simulator.memory_kernels import ALL, MASKS, aligned, around, lanes_of, load, run

rng = np.random.default_rng(17)
SIZES = {"b32": 4, "b64": 8, "b96": 12, "b128": 16}


def registers(size, first):
    return f"v{first}" if size == 4 else f"v[{first}:{first + size // 4 - 1}]"


BODIES = {
    f"read_{kind}": around(f"ds_read_{kind} {registers(size, 32)}, v16", lds=True)
    for kind, size in SIZES.items()
}
BODIES |= {
    f"write_{kind}": around(f"ds_write_{kind} v16, {registers(size, 18)}", lds=True)
    for kind, size in SIZES.items()
}
BODIES["pair"] = around("ds_read2_b64 v[32:35], v16 offset0:0 offset1:16", lds=True)
TRANSPOSED = {"transposed": around("ds_read_b64_tr_b16 v[32:33], v16", lds=True)}


def consecutive(width):
    return [range(start, start + width) for start in range(0, 64, width)]


def twice(*low):
    return [*low, *([lane + 32 for lane in group] for group in low)]


# Lanes served together and banks. Where it is published: gfx950 read_b64, read_b96, read_b128 and write_b64
# (HipKittens' measurements), gfx942 read_b128 and write_b128 (AMD's blog on LDS bank conflicts).
EIGHT = twice([*range(0, 4), *range(20, 24)], [*range(4, 8), *range(16, 20)], [*range(8, 12), *range(28, 32)],
              [*range(12, 16), *range(24, 28)])  # fmt: skip
SIXTEEN = twice(
    [*range(0, 4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]
)
PHASES = {
    "gfx942": {"read_b32": (32, consecutive(32)), "read_b64": (32, consecutive(16)), "read_b96": (32, EIGHT), "read_b128": (32, EIGHT),
               "write_b32": (32, consecutive(32)), "write_b64": (32, consecutive(16)), "write_b96": (32, consecutive(8)),
               "write_b128": (32, consecutive(8))},
    "gfx950": {"read_b32": (64, consecutive(32)), "read_b64": (64, consecutive(32)), "read_b96": (32, EIGHT), "read_b128": (64, SIXTEEN),
               "write_b32": (32, consecutive(32)), "write_b64": (32, consecutive(16)), "write_b96": (32, consecutive(8)),
               "write_b128": (32, consecutive(8))},
}  # fmt: skip


def expected_cycles(target, name, address, mask):
    banks, phases = PHASES[target][name]
    words, active = SIZES[name.split("_")[1]] // 4, lanes_of(mask)
    extra = 0
    for group in phases:
        wanted = {int(address[lane]) // 4 + word for lane in group if active[lane] for word in range(words)}
        per_bank = np.bincount([word % banks for word in wanted], minlength=banks)
        extra += max(int(per_bank.max()), 1) - 1
    return extra


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    return request.param


@pytest.fixture(scope="module")
def module(target):
    return load(BODIES | (TRANSPOSED if target == "gfx950" else {}), target)


def cycles(module, name, address, mask=ALL):
    run(module, name, [address], aligned(1024), mask=mask, count_lds_conflicts=1)
    report = Report()
    library().hipkittens_last_report(ctypes.byref(report))
    return report.lds_conflict_cycles


@pytest.mark.parametrize("name", [*PHASES["gfx942"]])
def test_random_addresses(target, module, name):
    size = SIZES[name.split("_")[1]]
    for mask in MASKS:
        for span in (1024, 4096):
            address = rng.integers(0, span // size, 64) * size
            assert cycles(module, name, address, mask) == expected_cycles(target, name, address, mask)


def test_same_address_and_consecutive_addresses_are_free(module):
    for name, size in ((name, SIZES[name.split("_")[1]]) for name in PHASES["gfx942"]):
        assert cycles(module, name, np.full(64, 2 * size)) == 0
        # The measured groups of a 96-bit read are 16 lanes apart: a stride of 12 bytes makes them conflict.
        assert cycles(module, name, np.arange(64) * size) == (8 if name == "read_b96" else 0)


def test_a_column_of_one_bank_is_the_worst_case(target, module):
    expected = 31 + 31
    assert cycles(module, "write_b32", np.arange(64) % 32 * 128) == expected
    assert cycles(module, "read_b32", np.arange(64) % 32 * 128) == (
        expected if target == "gfx942" else 15 + 15
    )


# Tiles of the upstream project (16-bit elements) and the conflict degree its swizzles have on gfx950.
LANE = np.arange(64)
ROW_16X32 = LANE % 16 * 64 + LANE // 16 * 16
ROW_32X16 = LANE % 32 * 32 + LANE // 32 * 16
ROW_16X16 = LANE % 16 * 32 + LANE // 16 * 8


@pytest.mark.parametrize(("name", "address", "degree", "phases"), [
    ("read_b128", ROW_16X32, 2, 4),
    ("read_b128", ROW_16X32 ^ (ROW_16X32 % 1024 >> 9) << 5, 1, 4),
    ("read_b128", ROW_32X16 ^ (ROW_32X16 % 1024 >> 9) << 4, 1, 4),
    ("write_b64", ROW_16X16, 4, 4),
    ("read_b64", ROW_16X16, 2, 2),
    ("write_b64", ROW_16X16 ^ (ROW_16X16 % 512 >> 7) << 3, 1, 4),
    ("read_b64", ROW_16X16 ^ (ROW_16X16 % 512 >> 7) << 3, 1, 2),
])  # fmt: skip
def test_published_conflict_degrees(target, module, name, address, degree, phases):
    if target == "gfx942":
        pytest.skip("measured on gfx950")
    assert cycles(module, name, address) == (degree - 1) * phases


def test_transposed_reads_count_like_reads_of_64_bits(target, module):
    if target == "gfx942":
        pytest.skip("gfx950 only")
    address = rng.integers(0, 256, 64) * 8
    assert cycles(module, "transposed", address) == expected_cycles("gfx950", "read_b64", address, ALL)


def test_a_pair_counts_as_two_accesses(target, module):
    address = rng.integers(0, 128, 64) * 8
    expected = sum(expected_cycles(target, "read_b64", address + distance, ALL) for distance in (0, 128))
    assert cycles(module, "pair", address) == expected


def test_nothing_is_counted_unless_asked(module):
    run(module, "write_b32", [np.arange(64) % 32 * 128], aligned(1024))
    report = Report()
    library().hipkittens_last_report(ctypes.byref(report))
    assert report.lds_conflict_cycles == 0
