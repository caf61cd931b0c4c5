"""Every atomic of LDS, buffers, global and flat memory, against Python integers and numpy floats in lane order."""

import numpy as np
import pytest
import torch

from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.memory_kernels import (
    ALL,
    HOST_LEVELS,
    LOAD_ARGUMENTS,
    Body,
    aligned,
    around,
    descriptor_of,
    lanes_of,
    load,
    old_rows,
    run,
)

rng = np.random.default_rng(13)


def signed(value, bits):
    return value - (1 << bits) if value >> (bits - 1) else value


def as_float(value, bits):
    return np.array(value, f"u{bits // 8}").view(f"f{bits // 8}")[()]


def bits_of(value):
    return int(np.array(value).view(f"u{value.dtype.itemsize}"))


def half(value, index):
    return value >> 32 * index & 0xFFFFFFFF


def packed(kind):
    def add(old, data, *_):
        halves = (
            torch.tensor([[old & 0xFFFF, old >> 16], [data & 0xFFFF, data >> 16]], dtype=torch.int32)
            .to(torch.int16)
            .view(kind)
        )
        low, high = ((halves[0].double() + halves[1].double()).to(kind)).view(torch.int16).tolist()
        return (low & 0xFFFF) | (high & 0xFFFF) << 16

    return add


# f(old, data, second data, bits) -> what memory holds afterwards
MEANINGS = {
    "add": lambda o, d, s, b: o + d,
    "sub": lambda o, d, s, b: o - d,
    "rsub": lambda o, d, s, b: d - o,
    "inc": lambda o, d, s, b: 0 if o >= d else o + 1,
    "dec": lambda o, d, s, b: d if o == 0 or o > d else o - 1,
    "smin": lambda o, d, s, b: min(o, d, key=lambda v: signed(v, b)),
    "smax": lambda o, d, s, b: max(o, d, key=lambda v: signed(v, b)),
    "umin": lambda o, d, s, b: min(o, d),
    "umax": lambda o, d, s, b: max(o, d),
    "and": lambda o, d, s, b: o & d,
    "or": lambda o, d, s, b: o | d,
    "xor": lambda o, d, s, b: o ^ d,
    "mskor": lambda o, d, s, b: o & ~d | s,
    "swap": lambda o, d, s, b: d,
    "cmpswap": lambda o, d, s, b: d if o == s else o,
    "cmpst": lambda o, d, s, b: s if o == d else o,
    "cmpst_f": lambda o, d, s, b: s if as_float(o, b) == as_float(d, b) else o,
    "condxchg32": lambda o, d, s, b: sum(
        (half(d, i) & 0x7FFFFFFF if half(d, i) >> 31 else half(o, i)) << 32 * i for i in range(2)
    ),
    "wrap": lambda o, d, s, b: o - d if o >= d else o + s,
    "add_f": lambda o, d, s, b: bits_of(as_float(o, b) + as_float(d, b)),
    "min_f": lambda o, d, s, b: d if as_float(d, b) < as_float(o, b) else o,
    "max_f": lambda o, d, s, b: d if as_float(d, b) > as_float(o, b) else o,
    "pk_add_f16": packed(torch.float16),
    "pk_add_bf16": packed(torch.bfloat16),
}
LDS = {f"{a}_{t}32": (m, 32) for a, t, m in (
    ("add", "u", "add"), ("sub", "u", "sub"), ("rsub", "u", "rsub"), ("inc", "u", "inc"), ("dec", "u", "dec"), ("min", "i", "smin"),
    ("max", "i", "smax"), ("min", "u", "umin"), ("max", "u", "umax"), ("and", "b", "and"), ("or", "b", "or"), ("xor", "b", "xor"),
    ("mskor", "b", "mskor"), ("cmpst", "b", "cmpst"), ("cmpst", "f", "cmpst_f"), ("min", "f", "min_f"), ("max", "f", "max_f"),
)} | {"add_f32": ("add_f", 32), "pk_add_f16": ("pk_add_f16", 32), "pk_add_bf16": ("pk_add_bf16", 32)}  # fmt: skip
LDS |= {name.replace("32", "64"): (meaning, 64) for name, (meaning, _) in LDS.items() if name.endswith("32")}
LDS_RETURNING_ONLY = {
    "wrxchg_b32": ("swap", 32),
    "wrxchg_b64": ("swap", 64),
    "wrap_b32": ("wrap", 32),
    "condxchg32_b64": ("condxchg32", 64),
}
MEMORY = {
    name: (name, 32)
    for name in (
        "swap",
        "cmpswap",
        "add",
        "sub",
        "smin",
        "umin",
        "smax",
        "umax",
        "and",
        "or",
        "xor",
        "inc",
        "dec",
    )
}
MEMORY |= {name + "_x2": (name, 64) for name in MEMORY} | {
    "add_f32": ("add_f", 32), "pk_add_f16": ("pk_add_f16", 32), "pk_add_bf16": ("pk_add_bf16", 32),
    "add_f64": ("add_f", 64), "min_f64": ("min_f", 64), "max_f64": ("max_f", 64)}  # fmt: skip
ENCODINGS = ("buffer", "global", "flat")


def exists(encoding, name, target):
    return not (encoding == "buffer" and name == "pk_add_bf16" and target == "gfx942")


def registers(bits, first):
    return f"v{first}" if bits == 32 else f"v[{first}:{first + bits // 32 - 1}]"


def returning(name):
    operation, kind = name.rsplit("_", 1)
    return f"ds_{operation}_rtn_{kind}"


def bodies(target):
    table = {}
    for name, (meaning, bits) in (LDS | LDS_RETURNING_ONLY).items():
        data = registers(bits, 18) + (
            ", " + registers(bits, 22) if meaning in ("mskor", "cmpst", "cmpst_f", "wrap") else ""
        )
        if name in LDS:
            table[f"ds_{name}"] = around(f"ds_{name} v16, {data} offset:8", lds=True)
        table[f"ds_rtn_{name}"] = around(
            f"{returning(name)} {registers(bits, 32)}, v16, {data} offset:8", lds=True
        )
    for name, (meaning, bits) in MEMORY.items():
        width = 2 * bits if meaning == "cmpswap" else bits
        data = registers(width, 18)
        result = registers(bits, 32)
        for encoding in ENCODINGS:
            if not exists(encoding, name, target):
                continue
            mnemonic = f"{encoding}_atomic_{name}"
            if encoding == "buffer":
                # The old value comes back in the data registers.
                moves = "".join(f"\nv_mov_b32_e32 v{32 + i}, v{18 + i}" for i in range(bits // 32))
                table[mnemonic] = around(f"{mnemonic} {data}, v16, s[12:15], 0 offen offset:8")
                table[mnemonic + "_rtn"] = around(
                    f"{mnemonic} {data}, v16, s[12:15], 0 offen offset:8 sc0\ns_waitcnt vmcnt(0){moves}"
                )
            else:
                address = "v16, {}, s[8:9] offset:8" if encoding == "global" else "v[26:27], {} offset:8"
                table[mnemonic] = around(f"{mnemonic} {address.format(data)}")
                table[mnemonic + "_rtn"] = around(f"{mnemonic} {result}, {address.format(data)} sc0")
    table["count"] = Body(
        LOAD_ARGUMENTS
        + "v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 1\n"
        + "global_atomic_add v2, v3, s[8:9]\n" * 20
    )
    return table


@pytest.fixture(scope="module", params=TARGETS)
def target(request):
    return request.param


@pytest.fixture(scope="module")
def module(target):
    return load(bodies(target), target)


def values(meaning, bits, shape):
    """Values that distinguish outcomes of the operation: small integers, or floats of a few magnitudes."""
    if meaning.startswith("pk_add"):
        halves = rng.standard_normal((*shape, 2)).astype(np.float32) * 2.0 ** rng.integers(
            -20, 14, (*shape, 2)
        )
        kind = torch.float16 if meaning == "pk_add_f16" else torch.bfloat16
        raw = (
            torch.from_numpy(halves.astype(np.float32))
            .to(kind)
            .view(torch.int16)
            .numpy()
            .view(np.uint16)
            .astype(np.uint64)
        )
        return raw[..., 0] | raw[..., 1] << np.uint64(16)
    if meaning.endswith("_f"):
        floats = rng.integers(-6, 7, shape) * 0.7 ** rng.integers(0, 9, shape)
        return floats.astype(f"f{bits // 8}").view(f"u{bits // 8}").astype(np.uint64)
    mixed = rng.integers(0, 2**bits, shape, dtype=np.uint64)
    return np.where(rng.random(shape) < 0.5, rng.integers(0, 6, shape, dtype=np.uint64), mixed)


def check(
    module, kernel, meaning, bits, returns, mask, level, memory_rows, arguments, second_after_first=False
):
    words, cells = bits // 32, 24
    memory = aligned(1024)
    cell = memory.view(f"u{bits // 8}")
    cell[: cells + 64] = values(meaning, bits, (cells + 64,))
    place = rng.integers(0, cells, 64)
    data, second = values(meaning, bits, (64,)), values(meaning, bits, (64,))
    for lane in range(0, 64, 3):  # comparisons shall succeed too
        if meaning in ("cmpst", "cmpst_f"):
            data[lane] = cell[place[lane] + 8 * 8 // bits]
        if meaning == "cmpswap":
            second[lane] = cell[place[lane] + 8 * 8 // bits]
    rows = np.zeros((12, 64), np.uint32)
    rows[0] = place * bits // 8
    address = rows[0].astype(np.uint64) + np.uint64(memory.ctypes.data)
    rows[10], rows[11] = address & np.uint64(0xFFFFFFFF), address >> np.uint64(32)
    second_row = 2 + words if second_after_first else 6
    for word in range(words):
        rows[2 + word] = data >> np.uint64(32 * word) & np.uint64(0xFFFFFFFF)
        rows[second_row + word] = second >> np.uint64(32 * word) & np.uint64(0xFFFFFFFF)
    expected_memory, expected = memory.copy(), old_rows()
    expected_cell = expected_memory.view(cell.dtype)
    for lane in np.flatnonzero(lanes_of(mask)):
        index = place[lane] + 8 * 8 // bits
        old = int(expected_cell[index])
        if returns:
            for word in range(words):
                expected[word, lane] = old >> 32 * word & 0xFFFFFFFF
        new = MEANINGS[meaning](old, int(data[lane]), int(second[lane]), bits)
        expected_cell[index] = int(new) & (1 << bits) - 1
    out = run(module, kernel, rows, memory, mask=mask, host_level=level, **arguments(memory))
    np.testing.assert_array_equal(memory, expected_memory)
    if returns or "buffer" not in kernel:
        active = lanes_of(mask)
        np.testing.assert_array_equal(out[:, active], expected[:, active])
        if "buffer" not in kernel:
            np.testing.assert_array_equal(out, expected)


LEVELS_AND_MASKS = [
    (level, ALL if level != HOST_LEVELS[-1] else 0x0FF0_1234_8001_FFFF) for level in HOST_LEVELS
]


@pytest.mark.parametrize("name", [*LDS, *LDS_RETURNING_ONLY])
def test_lds_atomics(module, name):
    meaning, bits = (LDS | LDS_RETURNING_ONLY)[name]
    for level, mask in LEVELS_AND_MASKS:
        for returns in (False, True) if name in LDS else (True,):
            check(
                module,
                f"ds_rtn_{name}" if returns else f"ds_{name}",
                meaning,
                bits,
                returns,
                mask,
                level,
                None,
                lambda memory: {},
            )


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", MEMORY)
def test_memory_atomics(target, module, encoding, name):
    if not exists(encoding, name, target):
        pytest.skip("gfx950 only")
    meaning, bits = MEMORY[name]
    for level, mask in LEVELS_AND_MASKS:
        for returns in (False, True):
            kernel = f"{encoding}_atomic_{name}" + ("_rtn" if returns else "")
            check(module, kernel, meaning, bits, returns, mask, level, None,
                  lambda memory: {"descriptor": descriptor_of(memory, 4096)}, second_after_first=True)  # fmt: skip


def test_buffer_atomic_out_of_range_does_nothing_and_returns_zero(module):
    memory = aligned(1024)
    memory[:] = np.arange(1024)
    rows = np.zeros((12, 64), np.uint32)
    rows[0], rows[2] = np.arange(64) * 4, 100
    out = run(module, "buffer_atomic_add_rtn", rows, memory, descriptor=descriptor_of(memory, 8 + 40 * 4))
    np.testing.assert_array_equal(out[0], np.where(np.arange(64) < 40, np.arange(64) + 2, 0))
    np.testing.assert_array_equal(memory[2:66], np.where(np.arange(64) < 40, 102, 2) + np.arange(64))


def test_misaligned_atomics_trap(module):
    rows = np.zeros((12, 64), np.uint32)
    rows[0][20] = 2
    memory = aligned(1024)
    for kernel in ("global_atomic_add", "ds_add_u32", "buffer_atomic_add"):
        with pytest.raises(SimulatorError, match=r"(?s)aligned to its size.*lane 20"):
            run(module, kernel, rows, memory, descriptor=descriptor_of(memory, 4096))
    rows[0][20] = 4
    for kernel in ("global_atomic_add_x2", "ds_add_u64"):
        with pytest.raises(SimulatorError, match="aligned to its size"):
            run(module, kernel, rows, memory)


def test_workgroups_on_two_threads_lose_no_addition(module):
    memory, unused = aligned(1024), np.zeros(1, np.uint32)
    arguments = np.array(
        [unused.ctypes.data, unused.ctypes.data, memory.ctypes.data, ALL], np.uint64
    ).tobytes() + bytes(32)
    module.kernel("count").launch(arguments, {"memory": memory, "unused": unused}, grid=[500], block=[64], threads=2,
                                  host_level=HOST_LEVELS[-1])  # fmt: skip
    assert memory[0] == 500 * 64 * 20
