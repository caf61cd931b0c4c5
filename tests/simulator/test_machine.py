"""Launching grids: ids, barriers, calls, scratch, and what happens when a kernel misbehaves."""

import functools
import re

import numpy as np
import pytest

from tests.device_compiler import PREAMBLE, assemble, compile_hip
from tests.simulated_device import TARGETS, Module, SimulatorError, pointers

SOURCE = r"""
extern "C" __global__ void add(const float* a, const float* b, float* c, uint n) {
    uint i = workgroup_id() * 256 + thread_id();
    if (i < n) c[i] = a[i] + b[i];
}

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 1024))) void ids(uint* out) {
    uint gx = __builtin_amdgcn_workgroup_id_x(), gy = __builtin_amdgcn_workgroup_id_y(), gz = __builtin_amdgcn_workgroup_id_z();
    uint x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y(), z = __builtin_amdgcn_workitem_id_z();
    uint group = gx + 2 * (gy + 3 * gz), item = x + 5 * (y + 6 * z);
    out[group * 210 + item] = x | y << 4 | z << 8 | gx << 12 | gy << 16 | gz << 20;
}

extern "C" __global__ void reverse_in_lds(const uint* in, uint* out) {
    __shared__ uint values[512];
    uint i = thread_id();
    values[i] = in[workgroup_id() * 512 + i];
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    out[workgroup_id() * 512 + i] = values[511 - i];
}

// Workgroup 0 waits for the last one: with one thread and in-order workgroups this needs workgroups that make way.
extern "C" __global__ void wait_for_last(uint* flag, uint* out, uint count) {
    uint group = workgroup_id();
    if (group == count - 1) __hip_atomic_store(flag, 7u, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
    if (group == 0) while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) != 7u) {}
    out[group * 64 + thread_id()] = group + 1;
}

extern "C" __global__ void never_ends(volatile uint* flag) { while (*flag == 0) {} }

__device__ __attribute__((noinline)) uint collatz(uint n, uint depth) {
    return n == 1 || depth == 0 ? depth : collatz(n & 1 ? 3 * n + 1 : n >> 1, depth - 1);
}
extern "C" __global__ void calls(uint* out) { out[thread_id()] = collatz(thread_id() + 1, 12); }

extern "C" __global__ void scratch(const uint* order, uint* out) {
    volatile uint table[32];
    for (uint i = 0; i < 32; ++i) table[i] = i * i + thread_id();
    out[thread_id()] = table[order[thread_id()] & 31];
}
"""


@pytest.fixture(scope="module", params=TARGETS)
def module(request):
    return Module(compile_hip(SOURCE, request.param), request.param)


@pytest.mark.parametrize(
    "settings",
    [
        {"threads": 1},
        {"threads": 2},
        {"poison": 1},
        {"wave_order_seed": 5, "threads": 2, "poison": 1},
        {"wave_turn": 7},
    ],
)
def test_result_does_not_depend_on_threads_or_wave_order(module, settings):
    n = 10_000
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, n), dtype=np.float32)
    c = np.full(n, np.nan, np.float32)
    report = module.kernel("add").launch(
        pointers(a, b, c, n), {"a": a, "b": b, "c": c}, grid=[40], block=[256], **settings
    )
    np.testing.assert_array_equal(c, a + b)
    assert (report.workgroups, report.waves) == (40, 160)
    assert report.instructions > 160 * 5


def test_ids_of_a_three_dimensional_grid(module):
    out = np.zeros((4, 3, 2, 7, 6, 5), np.uint32)
    module.kernel("ids").launch(pointers(out), {"out": out}, grid=[2, 3, 4], block=[5, 6, 7])
    gz, gy, gx, z, y, x = np.indices(out.shape, dtype=np.uint32)
    np.testing.assert_array_equal(out, x | y << 4 | z << 8 | gx << 12 | gy << 16 | gz << 20)


ORDERS = [
    {},
    {"wave_order_seed": 1},
    {"wave_order_seed": 2},
    {"wave_turn": 1},
    {"wave_turn": 16},
    {"wave_turn": 16, "workgroups_side_by_side": 3},
]


@pytest.mark.parametrize("order", ORDERS)
def test_barrier_orders_lds_accesses(module, order):
    data = np.arange(3 * 512, dtype=np.uint32) * 2654435761 % 1000003
    data = data.astype(np.uint32)
    out = np.zeros_like(data)
    module.kernel("reverse_in_lds").launch(
        pointers(data, out), {"in": data, "out": out}, grid=[3], block=[512], poison=1, **order
    )
    np.testing.assert_array_equal(out.reshape(3, 512), data.reshape(3, 512)[:, ::-1])


@pytest.mark.parametrize("order", ORDERS)
def test_workgroups_that_wait_for_each_other_make_progress(module, order):
    flag, out = np.zeros(1, np.uint32), np.zeros((50, 64), np.uint32)
    module.kernel("wait_for_last").launch(
        pointers(flag, out, 50), {"flag": flag, "out": out}, grid=[50], threads=1, **order
    )
    np.testing.assert_array_equal(out, np.arange(1, 51, dtype=np.uint32)[:, None] * np.ones(64, np.uint32))


@pytest.mark.parametrize("order", ORDERS)
def test_watchdog_ends_an_endless_kernel_with_a_report(module, order):
    flag = np.zeros(1, np.uint32)
    with pytest.raises(
        SimulatorError, match=r"(?s)watchdog.*kernel never_ends, workgroup \(0, 0, 0\), wave 0, at entry\+0x"
    ):
        module.kernel("never_ends").launch(pointers(flag), {"flag": flag}, instruction_limit=100_000, **order)
    flag[0] = 1
    module.kernel("never_ends").launch(pointers(flag), {"flag": flag})


def test_calls_and_returns(module):
    def collatz(n, depth):
        return depth if n == 1 or depth == 0 else collatz(3 * n + 1 if n & 1 else n >> 1, depth - 1)

    out = np.zeros(64, np.uint32)
    module.kernel("calls").launch(pointers(out), {"out": out}, poison=1)
    np.testing.assert_array_equal(out, [collatz(i + 1, 12) for i in range(64)])


def test_scratch_memory_is_private_to_a_lane(module):
    order = np.random.default_rng(1).integers(0, 32, 64, dtype=np.uint32)
    out = np.zeros(64, np.uint32)
    module.kernel("scratch").launch(pointers(order, out), {"order": order, "out": out}, poison=1)
    np.testing.assert_array_equal(out, order * order + np.arange(64, dtype=np.uint32))


def test_access_outside_is_reported_with_its_place_and_the_next_launch_works(module):
    n = 1000
    a, b, c = (np.ones(n, np.float32) for _ in range(3))
    short = c[: n - 8]
    regions = {"a": a, "b": b, "c": short}
    with pytest.raises(SimulatorError) as caught:
        module.kernel("add").launch(pointers(a, b, c, n), regions, grid=[4], block=[256], threads=1)
    text = str(caught.value)
    assert re.search(
        r"kernel add, workgroup \(3, 0, 0\), wave 3, at entry\+0x[0-9a-f]+: `(global|flat|buffer)_store_dword ",
        text,
    ), text
    assert "lane 32" in text and "'c'" in text and "0 bytes past its end" in text, text
    assert (c[n - 8 :] == 1).all()
    c[:] = 0
    module.kernel("add").launch(pointers(a, b, c, n), {"a": a, "b": b, "c": c}, grid=[4], block=[256])
    assert (c == 2).all()


def test_store_to_a_read_only_argument_is_refused(module):
    a, b, c = (np.ones(64, np.float32) for _ in range(3))
    with pytest.raises(SimulatorError, match="read-only"):
        module.kernel("add").launch(
            pointers(a, b, c, 64), {"a": a, "b": b, "c": c}, block=[256], read_only=["c"]
        )


def test_too_few_argument_bytes_are_refused(module):
    with pytest.raises(SimulatorError, match="bytes of arguments"):
        module.kernel("add").launch(b"\0" * 8, {}, block=[256])


# Eight vector registers: v0 to v3 and, from accum_offset on, a0 to a3.
FEW_REGISTERS = """
.amdgcn_target "amdgcn-amd-amdhsa--{target}"
.text
.globl small
.type small,@function
small:
  s_nop 0
  {instruction}
  s_waitcnt vmcnt(0) lgkmcnt(0)
  s_endpgm
.rodata
.p2align 6
.amdhsa_kernel small
  .amdhsa_next_free_vgpr 8
  .amdhsa_next_free_sgpr 8
  .amdhsa_accum_offset {accum_offset}
  .amdhsa_private_segment_fixed_size {private_bytes}
  .amdhsa_enable_private_segment 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: small
    .symbol: small.kd
    .kernarg_segment_size: 0
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: {private_bytes}
    .wavefront_size: 64
    .sgpr_count: 8
    .vgpr_count: 8
    .max_flat_workgroup_size: 64
.end_amdgpu_metadata
"""


def small_kernel(target: str, instruction: str, *, accum_offset: int = 8, private_bytes: int = 0):
    text = FEW_REGISTERS.format(
        target=target, instruction=instruction, accum_offset=accum_offset, private_bytes=private_bytes
    )
    return Module(assemble(text, target), target).kernel("small")


def test_an_instruction_without_meaning_stops_with_its_text_and_place():
    with pytest.raises(SimulatorError, match=r"kernel small.*at entry\+0x4: `ds_gws_barrier"):
        small_kernel("gfx942", "ds_gws_barrier v0 gds").launch(b"")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("accum_offset", "last", "beyond"),
    [
        (8, "v_mov_b32_e32 v7, v0", "v_mov_b32_e32 v8, v0"),
        (8, "v_mov_b32_e32 v0, v7", "v_mov_b32_e32 v0, v8"),
        (8, "v_pk_mul_f32 v[0:1], v[6:7], v[6:7]", "global_load_dwordx3 v[6:8], v[0:1], off"),
        (8, "ds_nop", "v_accvgpr_write_b32 a0, v0"),
        (4, "v_accvgpr_write_b32 a3, v0", "v_accvgpr_write_b32 a4, v0"),
        (4, "v_mov_b32_e32 v7, v0", "v_mfma_f32_4x4x1_16b_f32 a[2:5], v0, v0, 0"),
    ],
)
def test_an_instruction_stays_within_the_registers_of_its_wave(target, accum_offset, last, beyond):
    small_kernel(target, last, accum_offset=accum_offset).launch(b"")
    place = (
        rf"at entry\+0x4: `{beyond.split()[0]}[^`]*`.*names a vector register beyond those that the kernel's"
    )
    with pytest.raises(SimulatorError, match=f"(?s){place}"):
        small_kernel(target, beyond, accum_offset=accum_offset).launch(b"")


@pytest.mark.parametrize("target", TARGETS)
def test_a_wave_has_no_more_scratch_than_the_hardware_counts(target):
    small_kernel(target, "scratch_store_dword off, v0, off offset:4092", private_bytes=131056).launch(b"")
    with pytest.raises(SimulatorError, match=r"hip error 701.*131057 bytes of scratch.* at most 131056"):
        small_kernel(target, "s_nop 1", private_bytes=131057).launch(b"")


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_translated_together_keep_their_names_and_entries(target):
    names = ("first", "second", "third")
    source = "".join(
        f'extern "C" __global__ void {name}(uint* p) {{ p[thread_id() + {wild}] = {number}; }}\n'
        for number, (name, wild) in enumerate(zip(names, (0, 5, 0), strict=True), 1)
    )
    module = Module(compile_hip(source, target), target)
    out = np.zeros(4, np.uint32)
    for number, name in enumerate(names, 1):
        launch = functools.partial(
            module.kernel(name).launch, pointers(out), {"out": out}, grid=[1], block=[4]
        )
        if name == "second":
            with pytest.raises(
                SimulatorError, match=r"kernel second,.*at entry\+0x[0-9a-f]{1,2}: `global_store"
            ):
                launch()
        else:
            launch()
            assert (out == number).all()


@pytest.mark.parametrize("target", TARGETS)
def test_a_fault_names_its_source_line_when_the_line_table_is_there(target):
    source = (
        SOURCE
        + "\n// the line that faults\n"
        + 'extern "C" __global__ void wild(uint* p) {\n    p[thread_id() + 5] = 1;\n}\n'
    )
    code = compile_hip(source, target, ("-gline-tables-only",))
    out = np.zeros(4, np.uint32)
    line = (PREAMBLE + source).split("\n").index("    p[thread_id() + 5] = 1;") + 1
    with pytest.raises(SimulatorError, match=rf"store_dword .*`.*kernel\.cpp:{line}\)"):
        Module(code, target).kernel("wild").launch(pointers(out), {"out": out})


@pytest.mark.parametrize("target", TARGETS)
def test_a_fault_names_the_call_that_was_inlined_from_another_folder(target, tmp_path):
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "inner.h").write_text("static inline __device__ void put(uint* p) { *p = 1; }\n")
    (tmp_path / "words" / "outer.h").write_text(
        '#include "inner.h"\nstatic inline __device__ void put_at(uint* p, int at) {\n    put(p + at);\n}\n'
    )
    # In two pieces of code, so that the call has a list of ranges.
    source = SOURCE + (
        '\n#include "outer.h"\n'
        'extern "C" __global__ void wild(uint* p) {\n    if (thread_id() & 1) p[0] = 2;\n    put_at(p, thread_id() + 5);\n}\n'
    )
    code = compile_hip(source, target, ("-gline-tables-only", f"-I{tmp_path / 'words'}"))
    out = np.zeros(4, np.uint32)
    line = (PREAMBLE + source).split("\n").index("    put_at(p, thread_id() + 5);") + 1
    with pytest.raises(SimulatorError, match=rf"words/inner\.h:1, called from .*kernel\.cpp:{line}\)"):
        Module(code, target).kernel("wild").launch(pointers(out), {"out": out})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("settings", [{"threads": 1}, {"threads": 1, "poison": 1}])
def test_a_kernel_may_have_any_number_of_constants(target, settings):
    """Like kernels that a compiler has unrolled: each literal here is different. The second workgroup finds all of them, too."""
    literals = [0x10000 + 0x3457 * i for i in range(1500)]
    adds = "".join(f'asm volatile("v_add_u32_e32 %0, {literal:#x}, %0" : "+v"(sum));' for literal in literals)
    source = f'extern "C" __global__ void literals(uint* out) {{ uint sum = thread_id(); {adds} out[workgroup_id() * 64 + thread_id()] = sum; }}'
    out = np.zeros(128, np.uint32)
    Module(compile_hip(source, target), target).kernel("literals").launch(
        pointers(out), {"out": out}, grid=[2], block=[64], **settings
    )
    assert (out == np.tile(np.arange(64), 2) + sum(literals) % 2**32).all()
