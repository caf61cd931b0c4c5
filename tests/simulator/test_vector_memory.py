"""Global, flat, scratch and buffer accesses against numpy, for every width, address form, EXEC mask and host level."""

import numpy as np
import pytest

from tests.simulated_device import SimulatorError
from tests.simulator.memory_kernels import (
    ALL,
    HOST_LEVELS,
    MASKS,
    aligned,
    around,
    descriptor_of,
    lanes_of,
    load,
    old_rows,
    run,
)

rng = np.random.default_rng(11)
WORDS = 1024
POISON = 0x7FA5A5A5

LOADS = {  # suffix: bytes, signed, half of the register
    "ubyte": (1, False, None), "sbyte": (1, True, None), "ushort": (2, False, None), "sshort": (2, True, None),
    "ubyte_d16": (1, False, 0), "ubyte_d16_hi": (1, False, 1), "sbyte_d16": (1, True, 0), "sbyte_d16_hi": (1, True, 1),
    "short_d16": (2, False, 0), "short_d16_hi": (2, False, 1),
    "dword": (4, False, None), "dwordx2": (8, False, None), "dwordx3": (12, False, None), "dwordx4": (16, False, None),
}  # fmt: skip
STORES = {"byte": (1, 0), "byte_d16_hi": (1, 2), "short": (2, 0), "short_d16_hi": (2, 2),
          "dword": (4, 0), "dwordx2": (8, 0), "dwordx3": (12, 0), "dwordx4": (16, 0)}  # fmt: skip
LDS_LOADS = {"ubyte": (1, False), "sbyte": (1, True), "ushort": (2, False), "sshort": (2, True), "dword": (4, False),
             "dwordx3": (12, False), "dwordx4": (16, False)}  # fmt: skip
# How each form spells its address; SCRATCH goes to a private segment and is tested by itself.
FORMS = {"vector": ("global", "v[26:27], off offset:-12"), "scalar": ("global", "v16, s[8:9] offset:20"),
         "flat": ("flat", "v[26:27] offset:12"), "buffer": ("buffer", "v16, s[12:15], s16 offen offset:40")}  # fmt: skip
DISTANCE = {"vector": -12, "scalar": 20, "flat": 12, "buffer": 40 + 100}


def registers(size, first=32):
    count = (size + 3) // 4
    return f"v{first}" if count == 1 else f"v[{first}:{first + count - 1}]"


def access(kind, form, suffix, data):
    encoding, address = FORMS[form]
    if kind == "load" or encoding == "buffer":
        return f"{encoding}_{kind}_{suffix} {data}, {address}"
    register, _, rest = address.partition(",")
    if encoding == "flat":
        register, _, rest = address.partition(" ")
        return f"flat_store_{suffix} {register}, {data} {rest}"
    return f"global_store_{suffix} {register}, {data},{rest}"


def bodies(target):
    table = {}
    for form in FORMS:
        for suffix, (size, _, _) in LOADS.items():
            table[f"load_{form}_{suffix}"] = around(access("load", form, suffix, registers(size)))
        for suffix, (size, _) in STORES.items():
            table[f"store_{form}_{suffix}"] = around(access("store", form, suffix, registers(size, 18)))
    for suffix, (size, _) in LDS_LOADS.items():
        if size > 4 and target == "gfx942":
            continue
        table[f"lds_buffer_{suffix}"] = around(
            f"buffer_load_{suffix} v16, s[12:15], s16 offen offset:16 lds", lds=True
        )
        table[f"lds_global_{suffix}"] = around(f"global_load_lds_{suffix} v16, s[8:9] offset:16", lds=True)
    table["buffer_both"] = around("buffer_load_dwordx2 v[32:33], v[16:17], s[12:15], 0 idxen offen offset:4")
    table["buffer_index"] = around("buffer_load_dword v32, v16, s[12:15], s16 idxen offset:8")
    table["buffer_neither"] = around("buffer_load_dword v32, off, s[12:15], 64 offset:8")
    table["buffer_m0"] = around("buffer_load_dword v32, v16, s[12:15], m0 offen")
    table["buffer_cache"] = around(
        "buffer_wbl2 sc1\nbuffer_inv sc1\nbuffer_load_dword v32, v16, s[12:15], 0 offen sc0 nt"
    )
    table["scratch"] = around(
        "v_lshlrev_b32_e32 v16, 4, v16\nscratch_store_dwordx4 v16, v[18:21], off offset:8\ns_mov_b32 s20, 40\n"
        "scratch_store_dword off, v22, s20 offset:4\nscratch_store_short v16, v23, s20\ns_waitcnt vmcnt(0)\n"
        "scratch_load_dwordx3 v[32:34], v16, off offset:12\nscratch_load_dword v35, off, s20 offset:4",
        private_bytes=128,
    )
    table["scratch_outside"] = around("scratch_load_dword v32, v16, off", private_bytes=128)
    # The apertures are 64-bit operands; v17 selects LDS (0), scratch (1) or memory (2) for each lane.
    table["apertures"] = around(
        "s_mov_b64 s[20:21], src_shared_base\ns_mov_b64 s[22:23], src_private_base\n"
        "v_mov_b32_e32 v40, s20\nv_mov_b32_e32 v41, s21\nv_cmp_eq_u32_e32 vcc, 1, v17\n"
        "v_mov_b32_e32 v42, s22\nv_mov_b32_e32 v43, s23\nv_cndmask_b32_e32 v40, v40, v42, vcc\n"
        "v_cndmask_b32_e32 v41, v41, v43, vcc\nv_add_u32_e32 v40, v40, v16\nv_cmp_eq_u32_e32 vcc, 2, v17\n"
        "v_cndmask_b32_e32 v40, v40, v26, vcc\nv_cndmask_b32_e32 v41, v41, v27, vcc\n"
        "flat_store_dwordx2 v[40:41], v[18:19]\nflat_load_dword v32, v[40:41] offset:4\n"
        "flat_atomic_add v33, v[40:41], v20 sc0\ns_waitcnt vmcnt(0) lgkmcnt(0)\nflat_load_dword v34, v[40:41]",
        lds=True,
        private_bytes=256,
    )
    return table  # fmt: skip


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def target(request):
    return request.param


@pytest.fixture(scope="module")
def module(target):
    return load(bodies(target), target)


def image():
    memory = aligned(WORDS)
    memory[:] = rng.integers(0, 2**32, WORDS, dtype=np.uint32)
    return memory


def rows_for(memory, offset, data=()):
    """v16 = offset, v[26:27] = memory + offset; data from v18."""
    rows = np.zeros((12, 64), np.uint32)
    rows[0] = offset
    address = (np.asarray(offset, np.uint64) + np.uint64(memory.ctypes.data)).astype(np.uint64)
    rows[10], rows[11] = address & np.uint64(0xFFFFFFFF), address >> np.uint64(32)
    for index, row in enumerate(data):
        rows[2 + index] = row
    return rows


def buffer_arguments(form, memory):
    return {"descriptor": descriptor_of(memory, memory.nbytes), "offset": 100} if form == "buffer" else {}


def sweep(check):
    for level in HOST_LEVELS:
        for mask in MASKS if level == HOST_LEVELS[-1] else MASKS[:2]:
            check(mask, level)


def element(memory, start, size):
    return bytes(memory.view(np.uint8)[start : start + size])


def expect_load(suffix, expected, lane, raw):
    size, signed, half = LOADS[suffix]
    if size >= 4:
        expected[: size // 4, lane] = np.frombuffer(raw, np.uint32)
        return
    value = int.from_bytes(raw, "little", signed=signed)
    if half is None:
        expected[0, lane] = value & 0xFFFFFFFF
    else:
        expected[0, lane] = (value & 0xFFFF) << 16 * half | (
            int(expected[0, lane]) & (0xFFFF0000 >> 16 * half)
        )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", LOADS)
def test_loads(module, form, suffix):
    size = LOADS[suffix][0]

    def check(mask, level):
        memory, expected = image(), old_rows()
        offset = rng.integers(16, WORDS * 4 - 160 - size, 64).astype(np.uint32)
        if level != "portable" and suffix == "dword":
            offset = 64 + 4 * np.arange(64, dtype=np.uint32)  # consecutive lanes take another path
        for lane in np.flatnonzero(lanes_of(mask)):
            expect_load(suffix, expected, lane, element(memory, int(offset[lane]) + DISTANCE[form], size))
        out = run(module, f"load_{form}_{suffix}", rows_for(memory, offset), memory, mask=mask, host_level=level,
                  **buffer_arguments(form, memory))  # fmt: skip
        np.testing.assert_array_equal(out, expected)

    sweep(check)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", STORES)
def test_stores(module, form, suffix):
    size, skip = STORES[suffix]

    def check(mask, level):
        memory = image()
        expected = memory.copy()
        data = rng.integers(0, 2**32, (4, 64), dtype=np.uint32)
        offset = (16 + rng.permutation(150)[:64] * 17).astype(np.uint32)
        for lane in np.flatnonzero(lanes_of(mask)):
            start = int(offset[lane]) + DISTANCE[form]
            raw = np.ascontiguousarray(data[:, lane]).view(np.uint8)
            expected.view(np.uint8)[start : start + size] = raw[skip : skip + size]
        out = run(module, f"store_{form}_{suffix}", rows_for(memory, offset, data), memory, mask=mask, host_level=level,
                  **buffer_arguments(form, memory))  # fmt: skip
        np.testing.assert_array_equal(memory, expected)
        np.testing.assert_array_equal(out, old_rows())

    sweep(check)


# --- buffers: what is in range -------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", LOADS)
def test_buffer_load_out_of_range_gives_zero_by_dword(module, suffix):
    size, records = LOADS[suffix][0], 2048

    def check(mask, level):
        memory, expected = image(), old_rows()
        unit = min(size, 4)
        offset = (rng.integers(0, (records + 256) // unit, 64) * unit).astype(np.uint32)
        offset[:4] = records - 140 - size, records - 140, 0x80000000, 0xFFFFFFFF - size
        if size > 4:
            offset[4:6] = records - 140 - size + 4, records - 140 - 4
        for lane in np.flatnonzero(lanes_of(mask)):
            start = int(offset[lane]) + 140
            raw = b"".join(
                element(memory, place, unit) if place + unit <= records else bytes(unit)
                for place in range(start, start + size, unit)
            )
            expect_load(suffix, expected, lane, raw)
        out = run(module, f"load_buffer_{suffix}", rows_for(memory, offset), memory, mask=mask, host_level=level, offset=100,
                  descriptor=descriptor_of(memory, records))  # fmt: skip
        np.testing.assert_array_equal(out, expected)

    sweep(check)


@pytest.mark.parametrize("suffix", STORES)
def test_buffer_store_out_of_range_is_dropped_by_dword(module, suffix):
    (size, skip), records = STORES[suffix], 2048

    def check(mask, level):
        memory = image()
        expected = memory.copy()
        data = rng.integers(0, 2**32, (4, 64), dtype=np.uint32)
        unit = min(size, 4)
        offset = (rng.permutation(150)[:64] * 16).astype(np.uint32)
        offset[:2] = 0x80000000, records - 140 - size
        if size > 4:
            offset[2] = records - 140 - size + 4
        for lane in np.flatnonzero(lanes_of(mask)):
            raw = np.ascontiguousarray(data[:, lane]).view(np.uint8)[skip:]
            for part in range(0, size, unit):
                start = int(offset[lane]) + 140 + part
                if start + unit <= records:
                    expected.view(np.uint8)[start : start + unit] = raw[part : part + unit]
        run(module, f"store_buffer_{suffix}", rows_for(memory, offset, data), memory, mask=mask, host_level=level, offset=100,
            descriptor=descriptor_of(memory, records))  # fmt: skip
        np.testing.assert_array_equal(memory, expected)

    sweep(check)


def test_buffer_range_that_ends_within_a_dword(module):
    memory = image()
    offset = np.full(64, 1000, np.uint32)
    for records, kept in ((1001, 1), (1002, 2), (1003, 3)):
        out = run(module, "load_buffer_dwordx2", rows_for(memory, offset), memory, descriptor=descriptor_of(memory, 140 + records),
                  offset=100)  # fmt: skip
        raw = element(memory, 1140, kept) + POISON.to_bytes(4, "little")[kept:]
        assert (out[0] == int.from_bytes(raw, "little")).all() and (out[1] == 0).all()
        with pytest.raises(SimulatorError, match="within a dword"):
            run(module, "store_buffer_dwordx2", rows_for(memory, offset), memory, descriptor=descriptor_of(memory, 140 + records),
                offset=100)  # fmt: skip


def test_buffer_offset_beyond_the_range_and_empty_range(module):
    memory = image()
    for records, offset in ((0, 0), (50, 100), (1000, 2**31), (99, 100)):
        out = run(module, "load_buffer_dword", rows_for(memory, np.zeros(64)), memory, descriptor=descriptor_of(memory, records),
                  offset=offset)  # fmt: skip
        assert (out[0] == 0).all()


def test_buffer_with_index(module):
    memory = image()
    index, offset = rng.integers(0, 40, 64).astype(np.uint32), (rng.integers(0, 8, 64) * 4).astype(np.uint32)
    rows = rows_for(memory, index)
    rows[1] = offset
    descriptor = descriptor_of(memory, 30, stride=48)
    bytes_of = memory.view(np.uint8)

    def word(start):
        return bytes_of[start : start + 4].view(np.uint32)[0]

    start = index * 48 + offset + 4
    expected = old_rows()
    expected[0] = [word(s) if i < 30 else 0 for s, i in zip(start, index, strict=True)]
    expected[1] = [word(s + 4) if i < 30 else 0 for s, i in zip(start, index, strict=True)]
    np.testing.assert_array_equal(run(module, "buffer_both", rows, memory, descriptor=descriptor), expected)
    expected = old_rows()
    expected[0] = [word(i * 48 + 8 + 20) if i < 30 else 0 for i in index]
    np.testing.assert_array_equal(
        run(module, "buffer_index", rows, memory, descriptor=descriptor, offset=20), expected
    )
    # Stride 0: the index adds nothing, and records are bytes again.
    out = run(module, "buffer_index", rows, memory, descriptor=descriptor_of(memory, 64), offset=20)
    assert (out[0] == word(28)).all()


def test_buffer_thread_id_m0_and_constants(module):
    memory = image()
    add_thread_id = 1 << 23
    out = run(
        module,
        "buffer_neither",
        (),
        memory,
        descriptor=descriptor_of(memory, 60 * 4 + 72, stride=4, word3=add_thread_id),
    )
    np.testing.assert_array_equal(out[0], np.where(np.arange(64) < 60, memory[18:82], 0))
    out = run(module, "buffer_neither", (), memory, descriptor=descriptor_of(memory, 4096))
    assert (out[0] == memory[18]).all()
    rows = rows_for(memory, np.arange(64) * 8)
    out = run(module, "buffer_m0", rows, memory, descriptor=descriptor_of(memory, 4096), m0=52)
    np.testing.assert_array_equal(out[0], memory[13 : 13 + 128 : 2])
    out = run(module, "buffer_cache", rows, memory, descriptor=descriptor_of(memory, 4096))
    np.testing.assert_array_equal(out[0], memory[0:128:2])


def test_swizzled_buffer_is_refused(module):
    memory = image()
    words = descriptor_of(memory, 4096)
    with pytest.raises(SimulatorError, match="swizzled buffers"):
        run(
            module,
            "load_buffer_dword",
            rows_for(memory, np.zeros(64)),
            memory,
            descriptor=(words[0], words[1] | 1 << 31, *words[2:]),
        )


def test_descriptor_larger_than_the_tensor_traps(module):
    memory = image()
    offset = np.zeros(64, np.uint32)
    offset[13] = WORDS * 4 - 140 - 12
    with pytest.raises(
        SimulatorError, match=r"(?s)load outside the memory of this launch.*lane 13.*'memory'"
    ):
        run(
            module,
            "load_buffer_dwordx4",
            rows_for(memory, offset),
            memory,
            descriptor=descriptor_of(memory, 1 << 20),
            offset=100,
        )


# --- outside, far away, several regions ----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["vector", "scalar", "flat"])
@pytest.mark.parametrize("kind", ["load", "store"])
def test_access_outside_traps_with_its_lane(module, form, kind):
    memory = image()
    before = memory.copy()
    last = WORDS * 4 - 16 - DISTANCE[form]
    for bad in (last + 1, last + (1 << 31)):
        offset = np.full(64, last, np.uint32)
        offset[63] = bad
        with pytest.raises(SimulatorError, match=rf"(?s){kind} outside the memory of this launch.*lane 63"):
            run(module, f"{kind}_{form}_dwordx4", rows_for(memory, offset), memory)
        np.testing.assert_array_equal(memory, before)
        run(module, f"{kind}_{form}_dwordx4", rows_for(memory, offset), memory, mask=ALL >> 1)
        memory[:] = before


def test_lanes_may_go_to_different_regions(module):
    for level in HOST_LEVELS:
        memory, other = image(), image()
        distance = (other.ctypes.data - memory.ctypes.data) & (1 << 64) - 1
        offset = (
            np.where(np.arange(64) % 3 == 0, distance, 0).astype(np.uint64)
            + np.arange(64, dtype=np.uint64) * 16
            + 12
        )
        out = run(
            module,
            "load_vector_dwordx4",
            rows_for(memory, offset),
            memory,
            regions={"other": other},
            host_level=level,
        )
        expected = np.where(
            np.arange(64)[:, None] % 3 == 0, other[:256].reshape(64, 4), memory[:256].reshape(64, 4)
        )
        np.testing.assert_array_equal(out, expected.T)
        with pytest.raises(SimulatorError, match="outside the memory of this launch"):
            run(module, "load_vector_dwordx4", rows_for(memory, offset), memory, host_level=level)


def test_offsets_beyond_two_to_the_31(module):
    big = np.zeros((3 << 30) // 4, np.uint32)  # lazily mapped: only the pages touched exist
    offset = (np.arange(64, dtype=np.uint64) * 48_000_016 + 16).astype(np.uint32)
    values = rng.integers(0, 2**32, 64, dtype=np.uint32)
    for form in ("vector", "scalar", "buffer"):
        big[(offset.astype(np.int64) + DISTANCE[form]) // 4] = values
        out = run(module, f"load_{form}_dword", rows_for(big, offset), big,
                  **({"descriptor": descriptor_of(big, 3 << 30), "offset": 100} if form == "buffer" else {}))  # fmt: skip
        np.testing.assert_array_equal(out[0], values)


# --- direct to LDS -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["buffer", "global"])
@pytest.mark.parametrize("suffix", LDS_LOADS)
def test_direct_to_lds(target, module, form, suffix):
    size, signed = LDS_LOADS[suffix]
    if size > 4 and target == "gfx942":
        pytest.skip("gfx950 only")
    width = max(size, 4)

    def check(mask, level):
        memory = image()
        source = memory.copy()
        limit = 3000 if form == "buffer" else WORDS * 4
        offset = (rng.integers(0, (4096 - 160) // width, 64) * width).astype(np.uint32)
        distance = 16 + (100 if form == "buffer" else 0)
        expected = source.copy()
        for lane in np.flatnonzero(lanes_of(mask)):
            start = int(offset[lane]) + distance
            unit = min(size, 4)
            raw = b"".join(
                element(source, p, unit) if p + unit <= limit else bytes(unit)
                for p in range(start, start + size, unit)
            )
            if size < 4:
                raw = (int.from_bytes(raw, "little", signed=signed) & 0xFFFFFFFF).to_bytes(4, "little")
            expected.view(np.uint8)[512 + 16 + width * lane :][:width] = np.frombuffer(raw, np.uint8)
        # memory is also the image LDS starts from, so what is not written keeps its bytes
        out = run(module, f"lds_{form}_{suffix}", rows_for(memory, offset), memory, mask=mask, host_level=level, m0=512, offset=100,
                  descriptor=descriptor_of(memory, limit))  # fmt: skip
        np.testing.assert_array_equal(memory, expected)
        np.testing.assert_array_equal(out, old_rows())

    sweep(check)


def test_direct_to_lds_outside_of_lds_traps(module):
    memory = image()
    with pytest.raises(SimulatorError, match="direct-to-LDS load outside"):
        run(module, "lds_global_dword", rows_for(memory, np.zeros(64)), memory, m0=4096 - 16 - 252)
    run(module, "lds_global_dword", rows_for(memory, np.zeros(64)), memory, m0=4096 - 16 - 252, mask=ALL >> 1)


# --- scratch and apertures -----------------------------------------------------------------------------------------


def test_scratch(module):
    for level in HOST_LEVELS:
        memory = image()
        data = rng.integers(0, 2**32, (6, 64), dtype=np.uint32)
        slot = np.array([0, 1, 4, 5])[np.arange(64) % 4]
        out = run(module, "scratch", rows_for(memory, slot, data), memory, host_level=level)
        for lane in range(64):
            private = np.zeros(128, np.uint8)
            known = np.zeros(128, bool)

            def put(start, raw, private=private, known=known):
                private[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
                known[start : start + len(raw)] = True

            put(slot[lane] * 16 + 8, np.ascontiguousarray(data[:4, lane]).tobytes())
            put(44, data[4, lane].tobytes())
            put(slot[lane] * 16 + 40, data[5, lane].tobytes()[:2])
            for row, start in (
                (0, slot[lane] * 16 + 12),
                (1, slot[lane] * 16 + 16),
                (2, slot[lane] * 16 + 20),
                (3, 44),
            ):
                got = np.frombuffer(out[row, lane].tobytes(), np.uint8)
                where = known[start : start + 4]
                np.testing.assert_array_equal(got[where], private[start : start + 4][where])


def test_scratch_outside_traps(module):
    offset = np.zeros(64, np.uint32)
    offset[7] = 125
    with pytest.raises(
        SimulatorError, match=r"(?s)scratch access outside the lane's private segment.*lane 7"
    ):
        run(module, "scratch_outside", rows_for(image(), offset), image())


def test_flat_reaches_lds_scratch_and_memory(module):
    for level in HOST_LEVELS:
        memory = image()
        offset = np.arange(64, dtype=np.uint32) * 8 % 256
        rows = rows_for(
            memory, np.arange(64, dtype=np.uint32) * 8, rng.integers(0, 2**32, (3, 64), dtype=np.uint32)
        )
        rows[0], rows[1] = np.where(np.arange(64) % 3 == 0, np.arange(64) * 8, offset), np.arange(64) % 3
        before = memory.copy()
        out = run(module, "apertures", rows, memory, host_level=level)
        np.testing.assert_array_equal(out[0], rows[3])
        np.testing.assert_array_equal(out[1], rows[2])
        np.testing.assert_array_equal(out[2], rows[2] + rows[4])
        # Lanes with 0 wrote to LDS, whose image came back last over what the lanes with 2 wrote to memory.
        expected = before.copy().reshape(-1, 2)
        expected[:64:3] = np.stack([rows[2] + rows[4], rows[3]], 1)[::3]
        np.testing.assert_array_equal(memory, expected.reshape(-1))


def test_flat_access_outside_an_aperture_traps(module):
    rows = rows_for(image(), np.zeros(64))
    rows[0][9], rows[1] = 4093, 0
    with pytest.raises(SimulatorError, match=r"(?s)LDS access outside.*lane 9"):
        run(module, "apertures", rows, image())
    rows[0][9], rows[1] = 253, 1
    with pytest.raises(SimulatorError, match=r"(?s)scratch access outside.*lane 9"):
        run(module, "apertures", rows, image())
