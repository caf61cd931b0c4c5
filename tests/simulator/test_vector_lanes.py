"""Cross-lane moves: DPP, lane reads and writes, swaps; and how DPP and EXEC decide what is written."""

import numpy as np
import pytest

from tests.simulator.vector_kernels import ALL, HOST_LEVELS, SPARSE, bits_of, load, run

LANES = np.arange(64)


def shifted(lane, place, within):
    return np.where((place >= 0) & (place < within), lane, -1)


ROW, PLACE = LANES // 16 * 16, LANES % 16
# Control text to the lane each lane reads from; -1: none.
CONTROLS = {
    "quad_perm:[3,1,0,2]": LANES // 4 * 4 + np.array([3, 1, 0, 2])[LANES % 4],
    "quad_perm:[1,1,1,1]": LANES // 4 * 4 + 1,
    **{f"row_shl:{n}": shifted(LANES + n, PLACE + n, 16) for n in (1, 7, 15)},
    **{f"row_shr:{n}": shifted(LANES - n, PLACE - n, 16) for n in (1, 4, 15)},
    **{f"row_ror:{n}": ROW + (PLACE - n) % 16 for n in (1, 8, 15)},
    "wave_shl:1": shifted(LANES + 1, LANES + 1, 64),
    "wave_rol:1": (LANES + 1) % 64,
    "wave_shr:1": shifted(LANES - 1, LANES - 1, 64),
    "wave_ror:1": (LANES - 1) % 64,
    "row_mirror": ROW + 15 - PLACE,
    "row_half_mirror": LANES // 8 * 8 + 7 - LANES % 8,
    "row_bcast:15": ROW - 1,
    "row_bcast:31": np.where(LANES >= 32, 31, -1),
    **{f"row_newbcast:{n}": ROW + n for n in (0, 5, 15)},
}
MASKS = {"": (0xF, 0xF), "row_mask:0xa bank_mask:0xf": (0xA, 0xF), "row_mask:0xf bank_mask:0x5": (0xF, 0x5)}


def kernel_name(*parts) -> str:
    return "".join(c if c.isalnum() else "_" for c in "_".join(map(str, parts)))


def assembled(instruction: str, control: str, masks: str, bound: bool) -> str:
    return (
        f"{instruction} {control} {masks or 'row_mask:0xf bank_mask:0xf'}{' bound_ctrl:0' if bound else ''}"
    )


OPERATIONS = {
    "mov": "v_mov_b32_dpp v32, v16",
    "add": "v_add_u32_dpp v32, v16, v18",
    "own": "v_add_u32_dpp v16, v16, v16",
}


@pytest.fixture(scope="module")
def module():
    bodies = {
        kernel_name(name, control, masks, bound): assembled(text, control, masks, bound)
        for name, text in OPERATIONS.items() for control in CONTROLS for masks in MASKS for bound in (False, True)
    }  # fmt: skip
    bodies["float"] = "v_mul_f32_dpp v32, -v16, |v18| row_newbcast:3 row_mask:0xf bank_mask:0xf"
    bodies["carry"] = "v_add_co_u32_dpp v32, vcc, v16, v18 row_shr:1 row_mask:0xf bank_mask:0xf"
    bodies["wide"] = "v_mov_b64_dpp v[32:33], v[16:17] row_newbcast:9 row_mask:0xf bank_mask:0xf"
    bodies["accumulate"] = "v_fmac_f32_dpp v32, v16, v18 row_shr:1 row_mask:0xf bank_mask:0xf"
    return load(bodies)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("control", CONTROLS)
def test_dpp(module, operation, control):
    random = np.random.default_rng(3)
    a, b, old = random.integers(0, 1 << 32, (3, 2, 64), dtype=np.uint64)
    source = CONTROLS[control]
    for masks, (row_mask, bank_mask) in MASKS.items():
        for bound in (False, True):
            for exec_mask, levels in ((ALL, HOST_LEVELS), (SPARSE, HOST_LEVELS[:1] + HOST_LEVELS[-1:])):
                enabled = bits_of(exec_mask)
                valid = (source >= 0) & enabled[source]
                moved = np.where(valid, a[:, source], np.uint64(0))
                written = enabled & bits_of(sum(1 << lane for lane in range(64) if row_mask >> lane // 16 & 1
                                                and bank_mask >> lane % 16 // 4 & 1))  # fmt: skip
                if not bound:
                    written = written & valid
                value = {"mov": moved, "add": moved + b, "own": moved + a}[operation] & np.uint64(0xFFFFFFFF)
                before = a if operation == "own" else old
                for level in levels:
                    outcome = run(module, kernel_name(operation, control, masks, bound), [a, b], old=old,
                                  exec_mask=exec_mask, host_level=level)  # fmt: skip
                    got = (outcome.first_source if operation == "own" else outcome.destination) & np.uint64(
                        0xFFFFFFFF
                    )
                    assert (got == np.where(written, value, before)).all(), (
                        masks,
                        bound,
                        hex(exec_mask),
                        level,
                    )
                    assert (outcome.exec == exec_mask).all()


def test_dpp_with_signs(module):
    random = np.random.default_rng(4)
    a, b = (random.standard_normal((2, 2, 64))).astype(np.float32)
    got = (
        run(module, "float", [a.view(np.uint32), b.view(np.uint32)])
        .destination.astype(np.uint32)
        .view(np.float32)
    )
    assert (got == -a[:, CONTROLS["row_newbcast:0"] + 3] * np.abs(b)).all()


def test_dpp_carry_of_unwritten_lanes_is_zero(module):
    a = np.full((1, 64), 0xFFFFFFFF, np.uint64)
    got = run(module, "carry", [a, np.ones((1, 64))], old=9, mask=ALL)
    first_of_row = LANES % 16 == 0
    assert (got.destination[0] == np.where(first_of_row, 9, 0)).all()
    assert (bits_of(got.vcc)[0] == ~first_of_row).all()


def test_dpp_of_64_bits(module):
    a = np.random.default_rng(5).integers(0, 1 << 63, (2, 64), dtype=np.uint64)
    assert (run(module, "wide", [a]).destination == a[:, ROW + 9]).all()


def test_dpp_accumulates(module):
    a, b, old = np.random.default_rng(6).integers(-50, 50, (3, 2, 64)).astype(np.float32)
    got = run(
        module, "accumulate", [a.view(np.uint32), b.view(np.uint32)], old=old.view(np.uint32)
    ).destination
    source = CONTROLS["row_shr:1"]
    want = np.where(source >= 0, a[:, source] * b + old, old)
    assert (got.astype(np.uint32).view(np.float32) == want).all()


@pytest.fixture(scope="module")
def lane_module():
    return load({
        "readfirstlane": "v_readfirstlane_b32 s44, v16",
        "readlane": "v_readlane_b32 s44, v16, s38",
        "readlane_constant": "v_readlane_b32 s44, v16, 37",
        "writelane": "s_mov_b32 m0, s38\ns_nop 4\nv_writelane_b32 v32, s39, m0",
        "writelane_constant": "v_writelane_b32 v32, 19, 63",
        "swap": "v_swap_b32 v32, v16",
        "permlane16": "v_permlane16_swap_b32 v32, v16",
        "permlane32": "v_permlane32_swap_b32 v32, v16",
        "mbcnt": "v_mbcnt_lo_u32_b32 v34, s36, v16\nv_mbcnt_hi_u32_b32 v32, s37, v34",
        "agpr": "v_accvgpr_write_b32 a3, v16\nv_accvgpr_mov_b32 a4, a3\nv_accvgpr_read_b32 v32, a4",
    })  # fmt: skip


VALUES = np.random.default_rng(7).integers(0, 1 << 32, (3, 64), dtype=np.uint64)
PREVIOUS = np.random.default_rng(8).integers(0, 1 << 32, (3, 64), dtype=np.uint64)


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_lane_reads(lane_module, level):
    assert (run(lane_module, "readfirstlane", [VALUES], host_level=level).mask == VALUES[:, 0]).all()
    later = run(lane_module, "readfirstlane", [VALUES], exec_mask=1 << 41 | 1 << 60, host_level=level)
    assert (later.mask == VALUES[:, 41]).all()
    assert (
        run(lane_module, "readfirstlane", [VALUES], exec_mask=0, host_level=level).mask == VALUES[:, 0]
    ).all()
    for lane in (0, 17, 63, 64 + 5):
        got = run(lane_module, "readlane", [VALUES], scalars=(lane, 0, 0), exec_mask=1, host_level=level).mask
        assert (got == VALUES[:, lane & 63]).all()
    assert (run(lane_module, "readlane_constant", [VALUES], host_level=level).mask == VALUES[:, 37]).all()


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_lane_writes(lane_module, level):
    got = run(
        lane_module,
        "writelane",
        [VALUES],
        old=PREVIOUS,
        scalars=(11 | 1234 << 32, 0, 0),
        exec_mask=1,
        host_level=level,
    )
    assert (got.destination == np.where(LANES == 11, 1234, PREVIOUS)).all()
    got = run(lane_module, "writelane_constant", [VALUES], old=PREVIOUS, exec_mask=0, host_level=level)
    assert (got.destination == np.where(LANES == 63, 19, PREVIOUS)).all()


@pytest.mark.parametrize("level", HOST_LEVELS)
@pytest.mark.parametrize("mask", [ALL, SPARSE])
def test_swap(lane_module, level, mask):
    got = run(lane_module, "swap", [VALUES], old=PREVIOUS, exec_mask=mask, host_level=level)
    assert (got.destination == np.where(bits_of(mask), VALUES, PREVIOUS)).all()
    assert (got.first_source == np.where(bits_of(mask), PREVIOUS, VALUES)).all()


@pytest.mark.parametrize("level", HOST_LEVELS)
@pytest.mark.parametrize("group", [16, 32])
def test_permlane_swap(lane_module, level, group):
    got = run(lane_module, f"permlane{group}", [VALUES], old=PREVIOUS, host_level=level)
    odd = LANES & group != 0
    assert (got.destination == np.where(odd, VALUES[:, LANES - group], PREVIOUS)).all()
    assert (got.first_source == np.where(odd, VALUES, PREVIOUS[:, (LANES + group) % 64])).all()


@pytest.mark.parametrize("level", HOST_LEVELS)
def test_bits_below_a_lane(lane_module, level):
    mask = 0x8421_F00F_FFFF_0001
    got = run(lane_module, "mbcnt", [VALUES], mask=mask, host_level=level).destination
    below = np.array([(mask & ((1 << lane) - 1)).bit_count() for lane in range(64)], np.uint64)
    assert (got == (VALUES + below & np.uint64(0xFFFFFFFF))).all()


def test_accumulation_registers(lane_module):
    got = run(lane_module, "agpr", [VALUES], old=PREVIOUS, exec_mask=SPARSE).destination
    assert (got[:, bits_of(SPARSE)] == VALUES[:, bits_of(SPARSE)]).all()
