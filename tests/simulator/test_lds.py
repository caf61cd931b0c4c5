"""Every LDS instruction against its meaning written out in numpy, under several EXEC masks and at every host level."""

import numpy as np
import pytest

from tests.simulated_device import SimulatorError
from tests.simulator.memory_kernels import (
    ALL,
    HOST_LEVELS,
    MASKS,
    Body,
    around,
    lanes_of,
    load,
    old_rows,
    run,
)

LDS_BYTES = 4096
rng = np.random.default_rng(7)

READS = {  # name: bytes, signed, half of the register
    "ds_read_u8": (1, False, None), "ds_read_i8": (1, True, None), "ds_read_u16": (2, False, None), "ds_read_i16": (2, True, None),
    "ds_read_u8_d16": (1, False, 0), "ds_read_u8_d16_hi": (1, False, 1), "ds_read_i8_d16": (1, True, 0),
    "ds_read_i8_d16_hi": (1, True, 1), "ds_read_u16_d16": (2, False, 0), "ds_read_u16_d16_hi": (2, False, 1),
    "ds_read_b32": (4, False, None), "ds_read_b64": (8, False, None), "ds_read_b96": (12, False, None),
    "ds_read_b128": (16, False, None),
}  # fmt: skip
WRITES = {"ds_write_b8": (1, 0), "ds_write_b16": (2, 0), "ds_write_b8_d16_hi": (1, 2), "ds_write_b16_d16_hi": (2, 2),
          "ds_write_b32": (4, 0), "ds_write_b64": (8, 0), "ds_write_b96": (12, 0), "ds_write_b128": (16, 0)}  # fmt: skip
PAIRS = {"2_b32": (4, 1), "2st64_b32": (4, 64), "2_b64": (8, 1), "2st64_b64": (8, 64)}
SWIZZLES = (
    0x041F,
    0x7C1F,
    0x0803,
    0x80E4,
    0x801B,
    0x8055,
    0xC020,
    0xC420,
    0xC0E3,
    0xC7E1,
    0xE000,
    0xE010,
    0xE01F,
    0xE005,
)


def registers(count, first=32):
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def bodies(target):
    table = {}
    for name, (size, _, _) in READS.items():
        table[name] = around(f"{name} {registers((size + 3) // 4)}, v16 offset:24", lds=True)
    for name, (size, _) in WRITES.items():
        table[name] = around(f"{name} v16, {registers((size + 3) // 4, 18)} offset:24", lds=True)
    for name, (size, stride) in PAIRS.items():
        offsets = "offset0:3 offset1:1" if stride == 64 else "offset0:7 offset1:100"
        table["ds_read" + name] = around(f"ds_read{name} {registers(2 * size // 4)}, v16 {offsets}", lds=True)
        n = size // 4
        table["ds_write" + name] = around(
            f"ds_write{name} v16, {registers(n, 18)}, {registers(n, 22)} {offsets}", lds=True
        )
    table["contiguous"] = around("v_lshlrev_b32_e32 v16, 2, v0\nds_read_b32 v32, v16 offset:8", lds=True)
    for name in ("ds_bpermute_b32", "ds_permute_b32"):
        table[name] = around(f"{name} v32, v16, v18 offset:12", lds=True)
    for offset in SWIZZLES:
        table[f"swizzle_{offset:x}"] = around(f"ds_swizzle_b32 v32, v18 offset:{offset:#x}", lds=True)
    table["ds_append"] = around("ds_append v32 offset:8", lds=True)
    table["ds_consume"] = around("ds_consume v32 offset:8", lds=True)
    table["accumulator"] = around(
        "ds_read_b128 a[4:7], v16\ns_waitcnt lgkmcnt(0)\nds_write_b64 v17, a[6:7]", lds=True
    )
    if target == "gfx950":
        for name, dwords in (("b64_tr_b16", 2), ("b64_tr_b8", 2), ("b64_tr_b4", 2), ("b96_tr_b6", 3)):
            table[name] = around(f"ds_read_{name} {registers(dwords)}, v16 offset:64", lds=True)
    return table


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def target(request):
    return request.param


@pytest.fixture(scope="module")
def module(target):
    return load(bodies(target), target)


def image():
    return rng.integers(0, 2**32, LDS_BYTES // 4, dtype=np.uint32)


def data_rows(address):
    return [address, 0, *rng.integers(0, 2**32, (8, 64), dtype=np.uint32)]


def sweep(check):
    """Call check(mask, host_level) for all masks at the last level, and for two of them at the others."""
    for level in HOST_LEVELS:
        for mask in MASKS if level == HOST_LEVELS[-1] else MASKS[:2]:
            check(mask, level)


def element(memory, address, size):
    return bytes(memory.view(np.uint8)[address : address + size])


@pytest.mark.parametrize("name", READS)
def test_reads(module, name):
    size, signed, half = READS[name]

    def check(mask, level):
        memory = image()
        before = memory.copy()
        # Any byte address: the machine runs in unaligned mode.
        address = rng.integers(0, LDS_BYTES - 24 - size + 1, 64).astype(np.uint32)
        address[5], address[6] = LDS_BYTES - 24 - size, 0
        expected = old_rows()
        for lane in np.flatnonzero(lanes_of(mask)):
            raw = element(memory, address[lane] + 24, size)
            if size >= 4:
                expected[: size // 4, lane] = np.frombuffer(raw, np.uint32)
                continue
            value = int.from_bytes(raw, "little", signed=signed)
            if half is None:
                expected[0, lane] = value & 0xFFFFFFFF
            else:
                expected[0, lane] = (value & 0xFFFF) << 16 * half | (
                    expected[0, lane] & (0xFFFF0000 >> 16 * half)
                )
        out = run(module, name, [address], memory, mask=mask, host_level=level)
        np.testing.assert_array_equal(out, expected)
        np.testing.assert_array_equal(memory, before)

    sweep(check)


def test_consecutive_dwords(module):
    for level in HOST_LEVELS:
        memory = image()
        out = run(module, "contiguous", memory=memory, host_level=level)
        np.testing.assert_array_equal(out[0], memory[2:66])


@pytest.mark.parametrize("name", WRITES)
def test_writes(module, name):
    size, skip = WRITES[name]

    def check(mask, level):
        memory, rows = image(), data_rows(rng.permutation(200)[:64] * 17)
        expected = memory.copy()
        for lane in np.flatnonzero(lanes_of(mask)):
            start = rows[0][lane] + 24
            raw = np.array([row[lane] for row in rows[2:6]], np.uint32).view(np.uint8)
            expected.view(np.uint8)[start : start + size] = raw[skip : skip + size]
        out = run(module, name, rows, memory, mask=mask, host_level=level)
        np.testing.assert_array_equal(memory, expected)
        np.testing.assert_array_equal(out, old_rows())

    sweep(check)


def pair_offsets(stride, size):
    first, second = (3, 1) if stride == 64 else (7, 100)
    return first * stride * size, second * stride * size


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(module, name):
    size, stride = PAIRS[name]
    first, second = pair_offsets(stride, size)
    words = size // 4

    def check_read(mask, level):
        memory = image()
        address = (rng.integers(0, (LDS_BYTES - max(first, second)) // size, 64) * size).astype(np.uint32)
        expected = old_rows()
        for lane in np.flatnonzero(lanes_of(mask)):
            raw = element(memory, address[lane] + first, size) + element(memory, address[lane] + second, size)
            expected[: 2 * words, lane] = np.frombuffer(raw, np.uint32)
        np.testing.assert_array_equal(
            run(module, "ds_read" + name, [address], memory, mask=mask, host_level=level), expected
        )

    def check_write(mask, level):
        memory = image()
        rows = data_rows(
            rng.permutation(min(64, (LDS_BYTES - max(first, second)) // size))[np.arange(64) % 64] * size
        )
        expected = memory.copy()
        for data, distance in ((2, first), (6, second)):
            for lane in np.flatnonzero(lanes_of(mask)):
                start = (rows[0][lane] + distance) // 4
                expected[start : start + words] = [row[lane] for row in rows[data : data + words]]
        run(module, "ds_write" + name, rows, memory, mask=mask, host_level=level)
        np.testing.assert_array_equal(memory, expected)

    sweep(check_read)
    sweep(check_write)


@pytest.mark.parametrize("name", ["ds_bpermute_b32", "ds_permute_b32"])
def test_permutes(module, name):
    def check(mask, level):
        rows = data_rows(rng.integers(0, 2**32, 64, dtype=np.uint32))
        active, expected = lanes_of(mask), old_rows()
        other = (rows[0] + np.uint32(12)) // 4 % 64
        result = np.zeros(64, np.uint32)
        for lane in range(64):
            if name == "ds_bpermute_b32":
                result[lane] = rows[2][other[lane]] if active[other[lane]] else 0
            elif active[lane]:
                result[other[lane]] = rows[2][lane]
        expected[0, active] = result[active]
        np.testing.assert_array_equal(run(module, name, rows, image(), mask=mask, host_level=level), expected)

    sweep(check)


def swizzled_lane(lane, offset):
    group, low = lane & 32, lane & 31
    if offset >= 0xE000:
        keep = offset & 31
        reverse = int(f"{low:05b}"[::-1], 2)
        return group | reverse >> keep.bit_count() | low & keep
    if offset >= 0xC000:
        keep, distance = offset & 31, offset >> 5 & 31
        moved = (low - distance if offset >> 10 & 1 else low + distance) % 32
        return group | low & keep | moved & ~keep & 31
    if offset >= 0x8000:
        return lane & ~3 | offset >> 2 * (lane & 3) & 3
    return group | ((low & offset & 31) | offset >> 5 & 31) ^ (offset >> 10 & 31)


@pytest.mark.parametrize("offset", SWIZZLES)
def test_swizzle(module, offset):
    def check(mask, level):
        rows, active, expected = data_rows(0), lanes_of(mask), old_rows()
        for lane in np.flatnonzero(active):
            source = swizzled_lane(int(lane), offset)
            expected[0, lane] = rows[2][source] if active[source] else 0
        name = f"swizzle_{offset:x}"
        np.testing.assert_array_equal(run(module, name, rows, image(), mask=mask, host_level=level), expected)

    sweep(check)


# The ISA manual's own examples, lanes counted from 1.
@pytest.mark.parametrize(("offset", "first"), [(0xE000, "1,11,9,19,5,15,d,1d"), (0xE010, "1,9,5,d,3,b,7,f"), (0xE01F, "1,2,3,4,5,6"),
                                               (0xC020, "2,3,4,5,6"), (0xC420, "20,1,2,3,4")])  # fmt: skip
def test_swizzle_examples_of_the_manual(module, offset, first):
    out = run(module, f"swizzle_{offset:x}", [0, 0, np.arange(1, 65)], image())
    assert [f"{value:x}" for value in out[0][: first.count(",") + 1]] == first.split(",")


@pytest.mark.parametrize(("name", "sign"), [("ds_append", 1), ("ds_consume", -1)])
def test_append_and_consume(module, name, sign):
    for mask in MASKS:
        memory = image()
        before, expected = int(memory[3]), old_rows()
        expected[0, lanes_of(mask)] = before
        out = run(module, name, memory=memory, mask=mask, m0=4)
        np.testing.assert_array_equal(out, expected)
        assert memory[3] == (before + sign * mask.bit_count()) & 0xFFFFFFFF


def test_accumulation_registers_hold_lds_data(module):
    memory = image()
    before = memory.copy()
    run(module, "accumulator", [np.arange(64) * 16, 2048 + np.arange(64) * 8], memory)
    np.testing.assert_array_equal(memory[512:640].reshape(64, 2), before[:256].reshape(64, 4)[:, 2:])


def unpack(raw, bits):
    value = int.from_bytes(raw, "little")
    return [value >> bits * i & (1 << bits) - 1 for i in range(len(raw) * 8 // bits)]


@pytest.mark.parametrize(
    ("name", "bits", "size"),
    [("b64_tr_b16", 16, 8), ("b64_tr_b8", 8, 8), ("b64_tr_b4", 4, 8), ("b96_tr_b6", 6, 12)],
)
def test_transposed_reads(target, module, name, bits, size):
    """In each group of 16 lanes the lanes' runs, concatenated, are a matrix with 16 columns; lane i gets column i."""
    if target == "gfx942":
        pytest.skip("gfx950 only")
    for level in HOST_LEVELS:
        memory = image()
        address = (rng.integers(0, (LDS_BYTES - 80) // 8, 64) * 8).astype(np.uint32)
        out = run(module, name, [address], memory, host_level=level)
        for group in range(4):
            lanes = range(16 * group, 16 * group + 16)
            elements = [e for lane in lanes for e in unpack(element(memory, address[lane] + 64, size), bits)]
            columns = np.array(elements).reshape(-1, 16).T
            for lane in lanes:
                got = unpack(np.ascontiguousarray(out[: size // 4, lane]).tobytes(), bits)
                np.testing.assert_array_equal(got, columns[lane % 16])


def test_transposed_read_needs_all_lanes_and_alignment(target, module):
    if target == "gfx942":
        pytest.skip("gfx950 only")
    with pytest.raises(SimulatorError, match="all 64 lanes active"):
        run(module, "b64_tr_b16", [np.arange(64) * 8], image(), mask=ALL >> 1)
    with pytest.raises(SimulatorError, match="aligned"):
        run(module, "b64_tr_b16", [np.arange(64) * 8 + 4], image())


@pytest.mark.parametrize("name", ["ds_read_u8", "ds_read_b32", "ds_read_b64", "ds_read_b96", "ds_read_b128", "ds_write_b128",
                                  "ds_read2_b32", "ds_write2st64_b64", "ds_write_b16"])  # fmt: skip
def test_outside_of_lds_is_reported_with_lane_and_address(module, name):
    size = (
        READS.get(name, WRITES.get(name, (0,)))[0]
        or PAIRS[name.removeprefix("ds_read").removeprefix("ds_write")][0]
    )
    reach = 24
    if name.startswith(("ds_read2", "ds_write2")):
        reach = max(pair_offsets(PAIRS[name.removeprefix("ds_read").removeprefix("ds_write")][1], size))
    last = LDS_BYTES - size - reach
    for bad in (last + 1, 2**31):
        address = np.full(64, last, np.uint32)
        address[41] = bad
        with pytest.raises(
            SimulatorError, match=r"(?s)LDS access outside the workgroup's allocation.*lane 41"
        ):
            run(module, name, [address], image())
        run(module, name, [address], image(), mask=ALL & ~(1 << 41))  # a masked lane may hold anything


def test_negative_base_with_offset_wraps_as_the_compiler_assumes(module):
    memory = image()
    out = run(module, "ds_read_b32", [np.full(64, -24 & 0xFFFFFFFF, np.uint32)], memory)
    assert (out[0] == memory[0]).all()


def test_lds_of_a_kernel_without_any_traps():
    body = {"none": Body("v_mov_b32_e32 v2, 0\nds_read_b32 v3, v2\ns_waitcnt lgkmcnt(0)")}
    with pytest.raises(SimulatorError, match="LDS access outside"):
        run(load(body, "gfx950"), "none")
