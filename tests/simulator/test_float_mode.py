"""s_setreg on MODE while a kernel runs: rounding and denormals of f32 follow it, per wave. Other hardware registers."""

import numpy as np
import pytest

from tests.simulated_device import SimulatorError
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

FAST_LEVELS = [level for level in LEVELS if level != "portable"]
ONE, TINY = 0x3F800000, 0x33000000  # 1 and 2^-25
KERNELS = {
    f"round_{mode}": RegisterKernel(
        "v_mov_b32 v20, 1.0\nv_mov_b32 v21, 0x33000000\n"
        f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), {mode}\n"
        "v_add_f32 v64, v20, v21\nv_sub_f32 v65, -v20, v21\nv_fma_f32 v66, v20, v20, v21\n"
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0\nv_add_f32 v67, v20, v21",
        outputs=4,
    )
    for mode in range(4)
}
KERNELS |= {
    f"denormals_{mode}": RegisterKernel(
        "v_mov_b32 v20, 0x00000100\nv_mov_b32 v21, 0x00800000\n"
        f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), {mode}\n"
        "v_add_f32 v64, v20, v20\nv_mul_f32 v65, 0.5, v21\n"
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 4, 2), 3\nv_add_f32 v66, v20, v20",
        outputs=3,
    )
    for mode in range(4)
}
KERNELS["indexing"] = RegisterKernel(
    "v_mov_b32 v20, 7\nv_mov_b32 v22, 9\ns_mov_b32 m0, 0x1002\n"
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 27, 1), 1\nv_mov_b32 v64, v20\n"
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 27, 1), 0\nv_mov_b32 v65, v20",
    outputs=2,
)
KERNELS["skipping"] = RegisterKernel(
    "v_mov_b32 v64, 1\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 28, 1), 1\nv_mov_b32 v64, 2\n"
    "s_getreg_b32 s20, hwreg(HW_REG_MODE, 28, 1)\n"
    "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 28, 1), 0\nv_mov_b32 v65, s20",
    outputs=2,
)
KERNELS["registers"] = RegisterKernel(
    "s_mov_b64 vcc, 0\ns_cmp_eq_u32 s4, s4\ns_getreg_b32 s20, hwreg(HW_REG_STATUS)\nv_mov_b32 v64, s20\n"
    "s_getreg_b32 s20, hwreg(HW_REG_TRAPSTS)\nv_mov_b32 v65, s20\n"
    "s_getreg_b32 s20, hwreg(HW_REG_GPR_ALLOC, 8, 6)\nv_mov_b32 v66, s20\n"
    "s_getreg_b32 s20, hwreg(HW_REG_LDS_ALLOC)\nv_mov_b32 v67, s20\n"
    "s_getreg_b32 s20, hwreg(HW_REG_SH_MEM_BASES)\nv_mov_b32 v68, s20\n"
    "s_mov_b64 s[20:21], src_shared_base\ns_lshr_b32 s21, s21, 16\nv_mov_b32 v69, s21\n"
    "s_setreg_imm32_b32 hwreg(HW_REG_TRAPSTS, 0, 4), 0\ns_getreg_b32 s20, hwreg(HW_REG_IB_STS)\nv_mov_b32 v70, s20",
    outputs=7,
)
SATURATED = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), {}\ns_nop 1\n"
KERNELS["half_overflow"] = RegisterKernel(
    "v_mov_b32 v20, 0x47ffe000\nv_mov_b32 v21, 0xff800000\nv_mov_b32 v22, 0x7bff7bff\nv_mov_b32 v23, 0x7c00fbff\n"
    + SATURATED.format(1)
    + "v_cvt_f16_f32 v64, v20\nv_cvt_f16_f32 v65, v21\nv_mul_f16 v66, v22, -v22\nv_pk_add_f16 v67, v22, v22\n"
    "v_pk_add_f16 v68, v23, v23\n"
    + SATURATED.format(0)
    + "v_cvt_f16_f32 v69, v20\nv_pk_add_f16 v70, v22, v22",
    outputs=7,
)
NO_ROWS = np.zeros((0, 64), np.uint32)


@pytest.fixture(scope="module")
def kernels():
    return RegisterKernels(KERNELS, "gfx942")


@pytest.mark.parametrize("level", FAST_LEVELS)
def test_rounding_of_f32_follows_mode(kernels, level):
    above, below = ONE + 1, ONE - 1
    # Nearest, up, down, toward zero: of 1 + 2^-25 and of -(1 + 2^-25).
    want = {0: (ONE, ONE), 1: (above, ONE), 2: (ONE, above), 3: (ONE, ONE)}
    assert below < ONE
    for mode, (plus, minus) in want.items():
        out = kernels.run(f"round_{mode}", NO_ROWS, host_level=level)
        assert [int(row[5]) for row in out] == [plus, minus | 1 << 31, plus, ONE], mode


def test_rounding_is_refused_where_the_host_cannot(kernels):
    with pytest.raises(SimulatorError, match="rounding mode, which is not simulated at this host level"):
        kernels.run("round_1", NO_ROWS, host_level="portable")


@pytest.mark.parametrize("level", LEVELS)
def test_denormals_of_f32_follow_mode(kernels, level):
    for mode in range(4):
        kept_in, kept_out = mode & 1, mode >> 1 & 1
        out = kernels.run(f"denormals_{mode}", NO_ROWS, host_level=level)
        assert int(out[0, 0]) == (0x200 if kept_in and kept_out else 0), mode
        assert int(out[1, 0]) == (0x00400000 if kept_out else 0), mode
        assert int(out[2, 0]) == 0x200


def test_indexing_and_skipping_can_be_set_in_mode(kernels):
    out = kernels.run("indexing", NO_ROWS)
    assert int(out[0, 0]) == 9 and int(out[1, 0]) == 7
    out = kernels.run("skipping", NO_ROWS)
    assert int(out[0, 0]) == 1 and int(out[1, 0]) == 1


def test_other_hardware_registers(kernels):
    status, traps, vgprs, lds, bases, shared, counts = (
        int(row[0]) for row in kernels.run("registers", NO_ROWS)
    )
    assert status == 1 | 1 << 10 | 1 << 16  # SCC, VCCZ, valid
    assert traps == 0 and lds == 0 and counts == 0
    assert (vgprs + 1) * 8 == 256
    assert bases >> 16 == shared


@pytest.mark.parametrize("level", LEVELS)
def test_f16_results_stay_finite_where_mode_says_so(kernels, level):
    out = kernels.run("half_overflow", NO_ROWS, host_level=level)
    assert [int(row[5]) & (0xFFFF if number in (0, 1, 2, 5) else 0xFFFFFFFF) for number, row in enumerate(out)] == [
        0x7BFF, 0xFC00, 0xFBFF, 0x7BFF7BFF, 0x7C00FBFF, 0x7C00, 0x7C007C00,
    ]  # fmt: skip
