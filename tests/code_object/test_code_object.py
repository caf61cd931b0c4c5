"""The code object reader, compared with what the compiler was told to emit."""

import json
import re
import struct
import subprocess

import pytest

from hipkittens import _code_object
from tests.device_compiler import assemble, compile_hip
from tests.host_build import SANITIZERS, build, sources_of

TARGETS = ("gfx942", "gfx950")

SOURCE = r"""
extern "C" __device__ int table[4] = {1, 2, 3, 4};
extern "C" __device__ int* pointer = &table[2];
extern __shared__ char dynamic[];

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 256)))
void plain(float* out, const float* in, int n) {
    __shared__ float buffer[64];
    int t = thread_id();
    buffer[t & 63] = in[t];
    __builtin_amdgcn_s_barrier();
    float sum = buffer[63 - (t & 63)] + n + ((float*)dynamic)[t] + pointer[t & 1];
    out[t + __builtin_amdgcn_workgroup_id_y()] = sum;
}

struct Mixed { int first; double second; };
extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 128)))
void hidden(Mixed value, int* out, unsigned short half) {
    auto implicit = (const unsigned short*)__builtin_amdgcn_implicitarg_ptr();
    int sum = value.first + (int)value.second + half + __builtin_amdgcn_grid_size_x() + implicit[6];
    out[__builtin_amdgcn_workitem_id_z()] = sum;
    volatile int scratch[100];
    scratch[out[0] & 63] = 1;
    out[1] = scratch[out[2] & 63];
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    output = tmp_path_factory.mktemp("code_object") / "inspect_code_object"
    return build(
        output, [*sources_of("code_object"), "tests/code_object/inspect_code_object.cpp"], "-O1", *SANITIZERS
    )


@pytest.fixture
def inspect(program, tmp_path):
    def run(code: bytes, expect_error: bool = False):
        path = tmp_path / "kernel.co"
        path.write_bytes(code)
        done = subprocess.run([program, "show", path], capture_output=True, text=True)
        if expect_error:
            assert done.returncode == 1, (done.returncode, done.stderr)
            return done.stderr.strip()
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.mark.parametrize("target", TARGETS)
def test_plain_kernel(inspect, target):
    found = inspect(compile_hip(SOURCE, target))
    assert (found["target"], found["abi_version"]) == (target, 4)
    kernel = {k["name"]: k for k in found["kernels"]}["plain"]
    assert [(a["offset"], a["bytes"], a["kind"], a["address_space"]) for a in kernel["arguments"]] == [
        (0, 8, "global_buffer", "global"),
        (8, 8, "global_buffer", "global"),
        (16, 4, "by_value", ""),
    ]
    assert (kernel["kernarg_bytes"], kernel["explicit_kernarg_bytes"], kernel["kernarg_align"]) == (20, 20, 8)
    assert kernel["lds_bytes"] == 256
    assert kernel["private_bytes"] == 0 and not kernel["private_segment"]
    assert kernel["max_flat_workgroup_size"] == 256
    assert kernel["wavefront_size"] == 64
    assert kernel["user_sgprs"] == [["kernarg_segment_ptr", 0, 2]] and kernel["user_sgpr_count"] == 2
    assert (kernel["workgroup_id_x"], kernel["workgroup_id_y"], kernel["workgroup_id_z"]) == (1, 1, 0)
    assert kernel["workitem_id_mode"] == 0
    assert kernel["float_mode"] == 0xF0 and kernel["ieee_mode"] and kernel["dx10_clamp"]
    assert kernel["allocated_vgprs"] % 8 == 0 and kernel["allocated_vgprs"] >= kernel["vgprs"] > 0
    assert kernel["accum_offset"] % 4 == 0 and kernel["sgprs"] > 0
    assert kernel["vgpr_spills"] == kernel["sgpr_spills"] == 0
    assert kernel["start_address"] == kernel["entry_address"] == found["symbols"]["plain"][0]
    assert kernel["code_bytes"] == found["symbols"]["plain"][1]


@pytest.mark.parametrize("target", TARGETS)
def test_hidden_arguments_and_scratch(inspect, target):
    found = inspect(compile_hip(SOURCE, target))
    kernel = {k["name"]: k for k in found["kernels"]}["hidden"]
    hidden = {
        a["kind"]: (a["offset"], a["bytes"]) for a in kernel["arguments"] if a["kind"].startswith("hidden_")
    }
    assert hidden["hidden_block_count_x"] == (32, 4)
    assert hidden["hidden_group_size_z"] == (48, 2)
    assert hidden["hidden_remainder_x"] == (50, 2)
    assert hidden["hidden_global_offset_x"] == (72, 8)
    assert hidden["hidden_grid_dims"] == (96, 2)
    assert all(a["known"] for a in kernel["arguments"])
    assert kernel["explicit_kernarg_bytes"] == 26 and kernel["kernarg_bytes"] == 288
    assert kernel["max_flat_workgroup_size"] == 128 and kernel["reqd_workgroup_size"] == []
    assert kernel["private_bytes"] >= 400 and kernel["private_segment"]
    assert kernel["user_sgprs"] == [["dispatch_ptr", 0, 2], ["kernarg_segment_ptr", 2, 2]]
    assert kernel["workitem_id_mode"] == 2


@pytest.mark.parametrize("target", TARGETS)
def test_preloaded_arguments(inspect, target):
    source = (
        'extern "C" __global__ void preload(float* out, float* in, int n) { out[thread_id()] = in[0] + n; }'
    )
    (kernel,) = inspect(compile_hip(source, target, ("-mllvm", "-amdgpu-kernarg-preload-count=8")))["kernels"]
    assert (kernel["preload_dwords"], kernel["preload_offset"]) == (5, 0)
    assert kernel["user_sgprs"] == [["kernarg_segment_ptr", 0, 2], ["kernarg_preload", 2, 5]]
    assert kernel["user_sgpr_count"] == 7
    assert kernel["start_address"] == kernel["entry_address"] + 256


@pytest.mark.parametrize("target", TARGETS)
def test_image_is_loaded_and_relocated(inspect, target):
    found = inspect(compile_hip(SOURCE, target))
    image = bytes.fromhex(found["image"])

    def at(symbol):
        address, size = found["symbols"][symbol]
        begin = address - found["image_address"]
        return image[begin : begin + size]

    assert struct.unpack("<4i", at("table")) == (1, 2, 3, 4)
    table = found["run_address"] + found["symbols"]["table"][0] - found["image_address"]
    assert struct.unpack("<Q", at("pointer")) == (table + 8,)
    assert found["relocations"] == 1


ASSEMBLY = """
.amdgcn_target "amdgcn-amd-amdhsa--TARGET"
.text
.globl k
.p2align 8
.type k,@function
k:
  s_endpgm
.size k, 4
.rodata
.p2align 6
.amdhsa_kernel k
  .amdhsa_next_free_vgpr 300
  .amdhsa_next_free_sgpr 40
  .amdhsa_accum_offset 128
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_user_sgpr_dispatch_id 1
  .amdhsa_system_sgpr_workgroup_id_z 1
  .amdhsa_system_vgpr_workitem_id 1
  .amdhsa_float_denorm_mode_32 0
  .amdhsa_ieee_mode 0
  .amdhsa_dx10_clamp 0
  .amdhsa_tg_split 1
.end_amdhsa_kernel
.amdgpu_metadata
amdhsa.version: [1, 2]
amdhsa.kernels:
  - .name: k
    .symbol: k.kd
    .kernarg_segment_size: 16
    .kernarg_segment_align: 8
    .group_segment_fixed_size: 0
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 46
    .vgpr_count: 300
    .agpr_count: 172
    .max_flat_workgroup_size: 64
    .reqd_workgroup_size: [32, 2, 1]
    .args:
      - {.name: x, .size: 8, .offset: 8, .value_kind: by_value}
.end_amdgpu_metadata
"""


def hand_written(target="gfx950"):
    return assemble(ASSEMBLY.replace("TARGET", target), target)


@pytest.mark.parametrize("target", TARGETS)
def test_descriptor_bits(inspect, target):
    (kernel,) = inspect(hand_written(target))["kernels"]
    assert (kernel["allocated_vgprs"], kernel["accum_offset"], kernel["vgprs"], kernel["agprs"]) == (
        304,
        128,
        300,
        172,
    )
    assert kernel["user_sgprs"] == [["kernarg_segment_ptr", 0, 2], ["dispatch_id", 2, 2]]
    assert kernel["workgroup_id_x"] and not kernel["workgroup_id_y"] and kernel["workgroup_id_z"]
    assert kernel["workitem_id_mode"] == 1 and kernel["tg_split"]
    assert kernel["float_mode"] == 0xC0 and not kernel["ieee_mode"] and not kernel["dx10_clamp"]
    assert kernel["reqd_workgroup_size"] == [32, 2, 1] and kernel["max_flat_workgroup_size"] == 64
    assert kernel["arguments"][0]["name"] == "x" and kernel["explicit_kernarg_bytes"] == 16


def test_an_unknown_kind_of_argument_keeps_its_word(inspect):
    (kernel,) = inspect(hand_written().replace(b"by_value", b"by_vapor"))["kernels"]
    assert kernel["arguments"][0]["kind"] == "by_vapor" and not kernel["arguments"][0]["known"]


def changed(code: bytes, offset: int, new: bytes) -> bytes:
    return code[:offset] + new + code[offset + len(new) :]


REFUSED = {
    "empty": (lambda code: b"", "no ELF file"),
    "bundle": (lambda code: b"__CLANG_OFFLOAD_BUNDLE__" + code, "no ELF file.*pass the raw code object"),
    "cut in the header": (
        lambda code: code[:40],
        "the ELF header of 64 bytes reaches beyond the file's 40 bytes",
    ),
    "cut in the middle": (lambda code: code[: len(code) // 2], "reaches beyond the file's"),
    "32 bits": (lambda code: changed(code, 4, b"\1"), "no 64-bit little-endian"),
    "another machine": (lambda code: changed(code, 18, b"\x3e\0"), "machine 62, not AMDGPU"),
    "another processor": (
        lambda code: changed(code, 48, b"\x3f"),
        r"flags 0x53f name another processor \(at byte 0x30\)",
    ),
    "another system": (lambda code: changed(code, 7, b"\0"), "OS ABI 0"),
    "a future ABI": (lambda code: changed(code, 8, b"\x09"), "ABI version 9 is unknown"),
    "not linked": (lambda code: changed(code, 16, b"\1\0"), "not linked.*ld.lld -shared"),
    "no metadata": (lambda code: code.replace(b"AMDGPU\0", b"AMDGPX\0"), "no metadata note"),
    "no symbol": (lambda code: code.replace(b"k.kd\0", b"k.kx\0"), "kernel k has no descriptor symbol k.kd"),
    "no name": (lambda code: code.replace(b"\xa5.name", b"\xa5.nome"), "has no .name"),
    "argument outside": (
        lambda code: code.replace(b"\xa7.offset\x08", b"\xa7.offset\x09"),
        "offset 9 of 8 bytes lies beyond",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_with_a_reason(inspect, case):
    damage, message = REFUSED[case]
    before = hand_written()
    after = damage(before)
    assert after != before
    text = inspect(after, expect_error=True)
    assert text.startswith("code object: ")
    assert re.search(message, text), text


def test_seventeen_user_sgprs_are_refused(inspect):
    code = hand_written()
    word = inspect(code)["kernels"][0]["descriptor_address"]
    # In the first segment addresses are file offsets. kernel_code_properties: everything on; preload 9.
    assert code[word + 56 : word + 58] == struct.pack("<H", 1 << 3 | 1 << 4)
    text = inspect(changed(code, word + 56, struct.pack("<HH", 0x7F, 9)), expect_error=True)
    assert "kernel k: the descriptor" in text


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("seed", range(2))
def test_damaged_files_never_crash(program, tmp_path, target, seed):
    path = tmp_path / "kernel.co"
    path.write_bytes(compile_hip(SOURCE, target))
    done = subprocess.run([program, "mutate", path, str(seed), "20000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    counts = json.loads(done.stdout)
    assert counts["refused"] > 5000 and counts["accepted"] > 1000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 105))
def test_damaged_files_never_crash_for_long(program, tmp_path, seed):
    path = tmp_path / "kernel.co"
    path.write_bytes(compile_hip(SOURCE, "gfx950") if seed % 2 else hand_written())
    done = subprocess.run([program, "mutate", path, str(seed), "200000"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


def test_what_is_loaded_does_not_know_the_lines():
    """Two sources that differ in empty lines give different files with the same loaded code; another constant gives different code."""

    def build(before: str, constant: int) -> bytes:
        source = before + f'extern "C" __global__ void scale(uint* x) {{ x[thread_id()] *= {constant}; }}'
        return compile_hip(source, "gfx942", ("-gline-tables-only", "-fuse-cuid=none"))

    plain, moved, other = build("", 3), build("\n\n\n", 3), build("", 5)
    assert plain != moved
    assert _code_object.loaded_sha256(plain) == _code_object.loaded_sha256(moved)
    assert _code_object.loaded_sha256(plain) != _code_object.loaded_sha256(other)
