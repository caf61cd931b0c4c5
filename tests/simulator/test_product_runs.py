# SPDX-License-Identifier: MIT
"""Matrix products are merged into runs only where the instructions between them are independent, and their results do not change."""

import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from hipkittens import _disassembly, _pack
from tests.simulated_device import TARGETS, library
from tests.simulator.register_kernels import LEVELS, RegisterKernel, RegisterKernels

if "avx512_bf16" not in LEVELS:
    pytest.skip("products are brought together for processors with AVX512_BF16", allow_module_level=True)

PACKS = Path(_pack.__file__).parent / "_kernels"


def product(d, a, b, c):
    return f"v_mfma_f32_16x16x16_bf16 v[{d}:{d + 3}], v[{a}:{a + 1}], v[{b}:{b + 1}], v[{c}:{c + 3}]"


# Inputs: A and B of three products in v16 to v27, accumulators in v64 to v75. The number of runs of products, and why.
BODIES = {
    "passes_others": ([product(64, 16, 18, 64), "v_add_u32_e32 v80, v1, v1", "s_nop 7", "s_waitcnt lgkmcnt(0)",
                       product(68, 20, 22, 68), "s_add_u32 s20, s20, 1", product(72, 24, 26, 72)], 1),
    "keeps_chains": ([product(84, 16, 18, 64), "v_add_u32_e32 v80, v1, v1", product(64, 20, 22, 84)], 1),
    "stops_at_a_reader": ([product(64, 16, 18, 64), "s_nop 7", "v_add_f32_e32 v72, v64, v68", product(68, 20, 22, 68)], 2),
    "stops_at_a_writer_of_an_operand": ([product(64, 16, 18, 64), "v_mov_b32_e32 v17, 0", product(68, 20, 22, 68)], 2),
    "stops_at_a_writer_of_the_sum": ([product(72, 16, 18, 64), "v_mov_b32_e32 v65, 0", product(68, 20, 22, 68)], 2),
    "stops_at_a_writer_of_the_result": ([product(64, 16, 18, 68), "s_nop 7", "v_mov_b32_e32 v65, 0", product(68, 20, 22, 68)], 2),
    "stops_at_a_load_and_passes_its_wait": ([product(64, 16, 18, 64), "s_nop 7", "global_load_dwordx2 v[16:17], v1, s[4:5]",
                         product(68, 20, 22, 68), "s_waitcnt vmcnt(0)", product(72, 16, 18, 72)], 2),
    "stops_at_a_store": ([product(64, 16, 18, 64), "s_nop 7", "global_store_dwordx4 v1, v[64:67], s[6:7]",
                          product(68, 20, 22, 68)], 2),
    "stops_at_a_block": ([product(64, 16, 18, 64), "s_cbranch_scc0 .L{name}", product(68, 20, 22, 68), ".L{name}:",
                          product(72, 24, 26, 72)], 3),
    "stops_at_a_mode": ([product(64, 16, 18, 64), "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 0", product(68, 20, 22, 68)], 2),
}  # fmt: skip


def runs(code: bytes) -> tuple[int, int]:
    """The number of products of a code object, and of uninterrupted runs of them."""
    products, found = ctypes.c_uint64(), ctypes.c_uint64()
    error = library().hipkittens_product_runs(
        code, ctypes.c_size_t(len(code)), ctypes.byref(products), ctypes.byref(found)
    )
    assert error == 0
    return products.value, found.value


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", BODIES)
def test_products_move_past_what_does_not_concern_them(target, name):
    lines, expected = BODIES[name]
    text = "\n".join([line.replace("{name}", name) for line in lines] + ["s_nop 15"])
    kernel = RegisterKernel(text, first_input=16, inputs=60, first_output=16, outputs=60)
    kernels = RegisterKernels({name: kernel}, target)
    assert runs(kernels.code) == (sum("mfma" in line for line in lines), expected)
    rng = np.random.default_rng(3)
    rows = np.zeros((60, 64), np.uint32)
    halves = rng.integers(-4, 5, (12, 64, 2)).astype(np.float32).view(np.uint32) >> 16
    rows[:12] = halves[..., 0] | halves[..., 1] << 16
    rows[48:] = rng.integers(-8, 9, (12, 64)).astype(np.float32).view(np.uint32)
    results = [kernels.run(name, rows, host_level=level) for level in LEVELS]
    assert (results[0][48:52] != rows[48:52]).any()
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


# One rearranged operand serves several products of a run in the tile unit: longer runs are better.
LEAST_MEAN = {
    ("gfx942", "gemm.nt_bf16_256x224x32"): 6,
    ("gfx942", "gemm.nt_bf16_256x256x64"): 16,
    ("gfx942", "gemm.nn_bf16_128x128x64"): 6,
    ("gfx950", "gemm.nt_bf16_256x256x64"): 16,
    ("gfx950", "gemm.nn_bf16_128x128x64"): 5,
}


@pytest.mark.parametrize(("target", "name"), LEAST_MEAN)
def test_products_of_the_main_loops_stand_together(target, name):
    pack = _pack.Pack(PACKS / f"{target}.hkpack")
    image = pack.image(pack.entry(name))
    products, found = runs(image)
    text = "\n".join(
        line
        for address, code in _disassembly.code(image)
        for _, _, line in _disassembly.disassembled(target, address, code)
    )
    as_written = len(re.findall(r"(?:^v_mfma.*\n)+", text, re.MULTILINE))
    assert products / found >= LEAST_MEAN[target, name]
    assert found * 2 <= as_written
