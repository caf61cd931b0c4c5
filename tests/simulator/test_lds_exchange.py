"""Two exchanges in one LDS instruction, and LDS accesses by lane number."""

import numpy as np
import pytest

from tests.simulated_device import TARGETS, SimulatorError
from tests.simulator.memory_kernels import MASKS, aligned, around, lanes_of, load, old_rows, run

BODIES = {}
for dwords, suffix in ((1, "b32"), (2, "b64")):
    destination = "v[32:33]" if dwords == 1 else "v[32:35]"
    first, second = ("v18", "v20") if dwords == 1 else ("v[18:19]", "v[20:21]")
    for stride in ("", "st64"):
        for offsets in ((1, 3), (3, 1)):
            BODIES[f"two{stride}_{suffix}_{offsets[0]}"] = around(
                f"ds_wrxchg2{stride}_rtn_{suffix} {destination}, v16, {first}, {second} "
                f"offset0:{offsets[0]} offset1:{offsets[1]}",
                lds=True,
            )
BODIES["read"] = around("s_mov_b32 m0, 64\nds_read_addtid_b32 v32 offset:256", lds=True)
BODIES["write"] = around("s_mov_b32 m0, 64\nds_write_addtid_b32 v16 offset:256", lds=True)
BODIES["beyond"] = around("s_mov_b32 m0, 0xf000\nds_read_addtid_b32 v32", lds=True)
BODIES["global_wave_sync"] = around("ds_gws_barrier v16 gds", lds=True)


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return load(BODIES, request.param)


def image():
    memory = aligned(1024)
    memory[:] = np.random.default_rng(2).integers(0, 2**32, 1024, dtype=np.uint32)
    return memory


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dwords", [1, 2])
@pytest.mark.parametrize("offsets", [(1, 3), (3, 1)])
def test_two_exchanges(module, offsets, dwords, mask):
    suffix, enabled = ("b32", "b64")[dwords - 1], lanes_of(mask)
    for kernel, scale in ((f"two_{suffix}_{offsets[0]}", 1), (f"twost64_{suffix}_{offsets[0]}", 64)):
        memory, generator = image(), np.random.default_rng(4)
        # Every lane has its own addresses.
        step = 8 * dwords
        address = (
            np.arange(64, dtype=np.uint32) * (16 if scale > 1 else step * 2) % (256 if scale > 1 else 4000)
        )
        if scale > 1:
            address = np.arange(64, dtype=np.uint32) * 4 * dwords
        rows = [address, 0, *generator.integers(0, 2**32, (4, 64), dtype=np.uint32)]
        wanted, results = memory.copy(), old_rows()
        for lane in np.flatnonzero(enabled):
            for which, offset in enumerate(offsets):
                at = (int(address[lane]) + offset * scale * 4 * dwords) // 4
                for i in range(dwords):
                    results[which * dwords + i, lane] = wanted[at + i]
                    wanted[at + i] = rows[2 + 2 * which + i][lane]
        out = run(module, kernel, rows, memory, mask=mask)
        np.testing.assert_array_equal(out, results)
        np.testing.assert_array_equal(memory, wanted)


@pytest.mark.parametrize("mask", MASKS)
def test_accesses_by_lane_number(module, mask):
    enabled, memory = lanes_of(mask), image()
    start = (64 + 256) // 4
    out = run(module, "read", memory=memory, mask=mask)
    np.testing.assert_array_equal(out[0], np.where(enabled, memory[start : start + 64], old_rows()[0]))
    wanted, row = memory.copy(), np.arange(64, dtype=np.uint32) * 17
    wanted[start : start + 64] = np.where(enabled, row, wanted[start : start + 64])
    run(module, "write", [row], memory, mask=mask)
    np.testing.assert_array_equal(memory, wanted)


def test_outside_the_allocation_and_global_wave_sync(module):
    with pytest.raises(SimulatorError, match="outside the workgroup's allocation"):
        run(module, "beyond", memory=image())
    with pytest.raises(SimulatorError, match=r"(?s)ds_gws_barrier.*no meaning for this instruction"):
        run(module, "global_wave_sync", memory=image())
