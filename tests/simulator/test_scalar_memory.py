"""Scalar loads: widths, addresses, buffer range check, clocks, and what is refused."""

import itertools

import numpy as np
import pytest

from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.memory_kernels import LOAD_ARGUMENTS, Body, aligned, descriptor_of, load, run
from tests.simulator.scalar_reference import signed

WIDTHS = {"dword": 1, "dwordx2": 2, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}
rng = np.random.default_rng(3)


def scalars(text, count=16, first=32):
    """A kernel that runs `text` and stores s[first..] as consecutive dwords."""
    store = "".join(
        f"  v_mov_b32_e32 v3, s{first + i}\n  global_store_dword v2, v3, s[6:7] offset:{4 * i}\n"
        for i in range(count)
    )
    old = "".join(f"  s_mov_b32 s{first + i}, {0x500 + i}\n" for i in range(count))
    return Body(LOAD_ARGUMENTS + old + text + "\n  s_waitcnt lgkmcnt(0)\n  v_mov_b32_e32 v2, 0\n" + store)


def registers(count):
    return "s32" if count == 1 else f"s[32:{31 + count}]"


BODIES = {}
for name, width in WIDTHS.items():
    BODIES["load_" + name] = scalars(f"s_load_{name} {registers(width)}, s[8:9], 0x14")
    BODIES["offset_" + name] = scalars(
        f"s_add_u32 s8, s8, 64\ns_addc_u32 s9, s9, 0\ns_load_{name} {registers(width)}, s[8:9], s16 offset:-4"
    )
    BODIES["buffer_" + name] = scalars(f"s_buffer_load_{name} {registers(width)}, s[12:15], 0x14")
    BODIES["buffer_offset_" + name] = scalars(
        f"s_buffer_load_{name} {registers(width)}, s[12:15], s16 offset:0x8"
    )
BODIES["vcc"] = scalars("s_load_dwordx2 vcc, s[8:9], 8\ns_waitcnt lgkmcnt(0)\ns_mov_b64 s[32:33], vcc")
BODIES["clocks"] = scalars(
    "s_memtime s[32:33]\ns_waitcnt lgkmcnt(0)\ns_memtime s[34:35]\ns_memrealtime s[36:37]"
)
BODIES["caches"] = scalars("s_dcache_inv\ns_dcache_wb\ns_load_dword s32, s[8:9], 0")
BODIES["scratch"] = Body(LOAD_ARGUMENTS + "s_scratch_load_dword s32, s[8:9], 0")
BODIES["probe"] = scalars("s_atc_probe 1, s[8:9], 0\ns_dcache_discard s[8:9], 0\ns_load_dword s32, s[8:9], 0")
for name in ("dword", "dwordx2", "dwordx4"):
    BODIES["store_" + name] = scalars(f"s_store_{name} {registers(WIDTHS[name])}, s[8:9], s16 offset:4")
    BODIES["buffer_store_" + name] = scalars(f"s_buffer_store_{name} {registers(WIDTHS[name])}, s[12:15], 8")
# What memory holds afterwards, given the old value, the data and what it is compared with, of `bits` bits.
ATOMICS = {
    "swap": lambda old, data, expected, bits: data,
    "cmpswap": lambda old, data, expected, bits: data if old == expected else old,
    "add": lambda old, data, expected, bits: old + data,
    "sub": lambda old, data, expected, bits: old - data,
    "smin": lambda old, data, expected, bits: min(old, data, key=lambda x: signed(x, bits)),
    "umin": lambda old, data, expected, bits: min(old, data),
    "smax": lambda old, data, expected, bits: max(old, data, key=lambda x: signed(x, bits)),
    "umax": lambda old, data, expected, bits: max(old, data),
    "and": lambda old, data, expected, bits: old & data,
    "or": lambda old, data, expected, bits: old | data,
    "xor": lambda old, data, expected, bits: old ^ data,
    "inc": lambda old, data, expected, bits: 0 if old >= data else old + 1,
    "dec": lambda old, data, expected, bits: data if old == 0 or old > data else old - 1,
}
FIRST_WORDS = "s_load_dwordx4 s[32:35], s[8:9], 64\ns_waitcnt lgkmcnt(0)\n"
for name in ATOMICS:
    for suffix, width in (("", 1), ("_x2", 2)):
        data = registers(width * (2 if name == "cmpswap" else 1))
        for kind, base in (("atomic_", "s[8:9]"), ("buffer_atomic_", "s[12:15]")):
            for flag in ("", " glc"):
                BODIES[f"{kind}{name}{suffix}{flag.strip()}"] = scalars(
                    FIRST_WORDS + f"s_{kind}{name}{suffix} {data}, {base}, 16{flag}"
                )
BODIES["atomic_late"] = scalars(FIRST_WORDS + "s_atomic_add s32, s[8:9], 16 glc\ns_mov_b32 s36, s32")
BODIES["waits_for_one"] = scalars("s_load_dword s32, s[8:9], 0\ns_load_dword s33, s[8:9], 4\ns_waitcnt lgkmcnt(1)\ns_mov_b32 s34, s32\n"
                                  "s_mov_b32 s35, s33\ns_waitcnt lgkmcnt(0)\ns_mov_b32 s36, s32")  # fmt: skip


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


def image(words=64):
    memory = aligned(words)
    memory[:] = rng.integers(0, 2**32, words, dtype=np.uint32)
    return memory


OLD = 0x500 + np.arange(16, dtype=np.uint32)


@pytest.mark.parametrize("name", WIDTHS)
def test_loads(module, name):
    width, memory = WIDTHS[name], image()
    expected = OLD.copy()
    expected[:width] = memory[5 : 5 + width]
    np.testing.assert_array_equal(run(module, "load_" + name, memory=memory)[0][:16], expected)
    for offset in (24, 26):  # the two low bits are ignored
        expected[:width] = memory[16 - 1 + 6 :][:width]
        np.testing.assert_array_equal(
            run(module, "offset_" + name, memory=memory, offset=offset)[0][:16], expected
        )


@pytest.mark.parametrize("name", WIDTHS)
def test_buffer_loads_check_the_range_by_dword(module, name):
    width, memory = WIDTHS[name], image()
    for kernel, start, offset in (("buffer_", 5, 0), ("buffer_offset_", 2 + 9, 36)):
        for records in (0, 28, 60, 256):
            words = np.arange(start, start + width)
            expected = OLD.copy()
            expected[:width] = np.where(words * 4 + 4 <= records, memory[words], 0)
            descriptor = descriptor_of(memory, records)
            out = run(module, kernel + name, memory=memory, descriptor=descriptor, offset=offset)
            np.testing.assert_array_equal(out[0][:16], expected)
            out = run(
                module,
                kernel + name,
                memory=memory,
                descriptor=descriptor_of(memory, records // 4, stride=4),
                offset=offset,
            )
            np.testing.assert_array_equal(out[0][:16], expected)


def test_vcc_can_be_loaded(module):
    memory = image()
    np.testing.assert_array_equal(run(module, "vcc", memory=memory)[0][:2], memory[2:4])


def test_clocks_go_forward_and_repeat(module):
    first, second = (run(module, "clocks")[0][:6].view(np.uint64) for _ in range(2))
    assert first[0] < first[1] < first[2]
    np.testing.assert_array_equal(first, second)


def test_cache_operations_do_nothing(module):
    memory = image()
    assert run(module, "caches", memory=memory)[0][0] == memory[0]


@pytest.mark.parametrize("kernel", ["load_dwordx16", "buffer_dwordx16"])
def test_outside_traps(module, kernel):
    memory = image(16)
    with pytest.raises(SimulatorError, match=r"(?s)scalar load outside the memory of this launch.*'memory'"):
        run(module, kernel, memory=memory, descriptor=descriptor_of(memory, 4096))


def test_what_has_no_meaning_is_refused_by_name(module):
    with pytest.raises(SimulatorError, match=r"(?s)s_scratch_load_dword.*no meaning for this instruction"):
        run(module, "scratch")


def test_probes_and_discards_do_nothing(module):
    memory = image()
    assert run(module, "probe", memory=memory)[0][0] == memory[0]


@pytest.mark.parametrize("name", ["dword", "dwordx2", "dwordx4"])
def test_stores(module, name):
    width, memory = WIDTHS[name], image()
    expected = memory.copy()
    expected[7 : 7 + width] = OLD[:width]
    run(module, "store_" + name, memory=memory, offset=24)
    np.testing.assert_array_equal(memory, expected)
    memory = image()
    expected = memory.copy()
    expected[2 : min(2 + width, 4)] = OLD[:2][:width]
    run(module, "buffer_store_" + name, memory=memory, descriptor=descriptor_of(memory, 16))
    np.testing.assert_array_equal(memory, expected)


@pytest.mark.parametrize("suffix", ["", "_x2"])
@pytest.mark.parametrize("name", ATOMICS)
def test_atomics(module, name, suffix):
    bits, dtype = (64, np.uint64) if suffix else (32, np.uint32)
    for old, data in itertools.product((0, 5, (1 << bits) - 1), (0, 5, 1 << (bits - 1))):
        memory = image().view(dtype)
        words = memory.view(np.uint32)
        memory[16 * 8 // bits], memory[64 * 8 // bits] = old, data
        memory[64 * 8 // bits + 1] = 5
        new = ATOMICS[name](old, data, 5, bits) % (1 << bits)
        start = words.copy()
        for kind in ("atomic_", "buffer_atomic_"):
            for flag in ("", " glc"):
                words[:] = start
                out = run(
                    module,
                    f"{kind}{name}{suffix}{flag.strip()}",
                    memory=words,
                    descriptor=descriptor_of(words, 256),
                )[0]
                assert memory[16 * 8 // bits] == new, (kind, hex(old), hex(data))
                result = out[: bits // 32].view(dtype)[0]
                assert result == (old if flag else data), (kind, hex(old), hex(data))
                words[4 : 4 + bits // 32] = start[4 : 4 + bits // 32]
                np.testing.assert_array_equal(words, start)
                short = descriptor_of(words, 16)
                if kind == "buffer_atomic_":
                    out = run(module, f"{kind}{name}{suffix}{flag.strip()}", memory=words, descriptor=short)[
                        0
                    ]
                    np.testing.assert_array_equal(words, start)
                    assert out[: bits // 32].view(dtype)[0] == (0 if flag else data)


def test_an_atomic_answers_at_its_wait(module):
    memory = image()
    old, data = memory[4], memory[16]
    out = run(module, "atomic_late", memory=memory)[0]
    assert out[0] == old and out[4] == data and memory[4] == (int(old) + int(data)) & 0xFFFFFFFF


def test_stores_to_read_only_memory_are_refused(module):
    for kernel in ("store_dword", "atomic_add"):
        with pytest.raises(SimulatorError, match="scalar store or atomic to read-only memory"):
            run(module, kernel, memory=image(), read_only=("memory",))


def test_scalar_loads_complete_only_at_zero(module):
    """They may return in any order, so lgkmcnt(1) guarantees nothing about either."""
    memory = image()
    out = run(module, "waits_for_one", memory=memory)[0]
    np.testing.assert_array_equal(out[:5], [memory[0], memory[1], 0x500, 0x501, memory[0]])
    poisoned = run(module, "waits_for_one", memory=memory, poison=1)[0]
    np.testing.assert_array_equal(poisoned[:5], [memory[0], memory[1], 0x7FA5A5A5, 0x7FA5A5A5, memory[0]])
