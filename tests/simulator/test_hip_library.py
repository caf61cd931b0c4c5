"""HIP's driver API as the simulator exports it, called the way a HIP program calls it."""

import ctypes
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from fuzz.seeds import KERNEL
from hipkittens import _simulator
from tests.device_compiler import assemble, compile_hip
from tests.offload_bundles import COMPRESSORS, compressed_bundle, offload_bundle
from tests.simulated_device import TARGETS, library, library_path

SUCCESS, INVALID_VALUE, INVALID_CONFIGURATION, BAD_DIRECTION, BAD_FUNCTION, BAD_DEVICE = 0, 1, 9, 21, 98, 101
INVALID_IMAGE, NO_BINARY, INVALID_HANDLE, NOT_FOUND, OUT_OF_RESOURCES, LAUNCH_FAILURE = (
    200,
    209,
    400,
    500,
    701,
    719,
)
ALREADY_REGISTERED, NOT_REGISTERED = 712, 713
TO_DEVICE, TO_HOST, ON_DEVICE, DEFAULT = 1, 2, 3, 4

SOURCE = r"""
extern "C" __device__ uint counter = 41;
extern __shared__ uint dynamic[];

struct Pair { unsigned char first; double second; };
extern "C" __global__ void arguments(uint* out, Pair pair, unsigned short half, float real) {
    if (thread_id() == 0) {
        out[0] = pair.first; out[1] = (uint)pair.second; out[2] = half; out[3] = (uint)real;
    }
}

extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(1, 256))) void implicit(uint* out) {
    auto words = (const uint*)__builtin_amdgcn_implicitarg_ptr();
    auto halves = (const unsigned short*)__builtin_amdgcn_implicitarg_ptr();
    if (thread_id() != 0 || workgroup_id() != 0) return;
    for (uint i = 0; i < 3; ++i) out[i] = words[i];
    for (uint i = 0; i < 6; ++i) out[3 + i] = halves[6 + i];
    out[9] = words[10] + words[12] + words[14];
    out[10] = halves[32];
    out[11] = __builtin_amdgcn_workgroup_size_y();
    out[12] = __builtin_amdgcn_grid_size_z();
}

extern "C" __global__ void count(uint* out) { out[thread_id()] = ++counter; }

extern "C" __global__ void last_dynamic(uint* out, uint words) {
    dynamic[words - 1 - thread_id()] = thread_id();
    __builtin_amdgcn_s_barrier();
    out[thread_id()] = dynamic[words - 64 + thread_id()];
}

extern "C" __global__ void add_one(uint* data) { data[workgroup_id() * 64 + thread_id()] += 1; }
"""


class Hip:
    """The library with converted arguments, and every status checked unless `fails` is used."""

    def __init__(self):
        self.c = ctypes.CDLL(str(library_path()))
        self.c.hipkittens_last_error.restype = ctypes.c_char_p
        self.c.hipGetErrorName.restype = ctypes.c_char_p

    def __getattr__(self, name):
        function = getattr(self.c, name)

        def call(*arguments):
            status = function(*arguments)
            assert status == SUCCESS, (name, status, self.text())
            self.c.hipGetLastError()

        return call

    def text(self):
        return self.c.hipkittens_last_error().decode()

    def fails(self, name, expected, *arguments):
        assert getattr(self.c, name)(*arguments) == expected, self.text()
        assert self.text().startswith(name + ": ")
        assert self.c.hipGetLastError() == expected and self.c.hipGetLastError() == SUCCESS
        return self.text()

    def malloc(self, size):
        pointer = ctypes.c_void_p()
        self.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer

    def load(self, code):
        module = ctypes.c_void_p()
        self.hipModuleLoadData(ctypes.byref(module), code)
        return module

    def function(self, module, name):
        function = ctypes.c_void_p()
        self.hipModuleGetFunction(ctypes.byref(function), module, name.encode())
        return function

    def read(self, pointer, count, dtype=np.uint32):
        out = np.empty(count, dtype)
        self.hipMemcpy(out.ctypes.data_as(ctypes.c_void_p), pointer, ctypes.c_size_t(out.nbytes), TO_HOST)
        return out


def uints(*values):
    return [ctypes.c_uint(value) for value in values]


def shape(grid=(1, 1, 1), block=(64, 1, 1), shared=0, stream=None):
    return [*uints(*grid, *block, shared), stream]


def params(*values):
    """hipModuleLaunchKernel's kernelParams for ctypes values; they live as long as the result."""
    array = (ctypes.c_void_p * max(1, len(values)))(*[ctypes.addressof(value) for value in values])
    array.values = values
    return array


def extra(data):
    """hipModuleLaunchKernel's extra with HIP_LAUNCH_PARAM_BUFFER_POINTER and _SIZE."""
    buffer, size = ctypes.create_string_buffer(data, max(1, len(data))), ctypes.c_size_t(len(data))
    array = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(size), 3)
    array.values = (buffer, size)
    return array


@pytest.fixture
def hip():
    api = Hip()
    api.hipSetDevice(0)
    return api


@pytest.fixture(params=TARGETS)
def target(request, hip):
    hip.hipSetDevice(TARGETS.index(request.param))
    return request.param


@pytest.fixture
def module(hip, target):
    module = hip.load(compile_hip(SOURCE, target))
    yield module
    hip.hipModuleUnload(module)


# --- devices ------------------------------------------------------------------------------------------------


def test_devices(hip):
    count, name, value = ctypes.c_int(), ctypes.create_string_buffer(64), ctypes.c_int()
    hip.hipInit(0)
    hip.hipGetDeviceCount(ctypes.byref(count))
    assert count.value == 2
    facts = {
        0: ("MI300X", b"gfx942:sramecc+:xnack-", 304, 65536, 4),
        1: ("MI355X", b"gfx950:sramecc+:xnack-", 256, 163840, 5),
    }
    for device, (product, arch, compute_units, lds, minor) in facts.items():
        hip.hipDeviceGetName(name, 64, device)
        assert product in name.value.decode()
        got = {}
        for key, attribute in {
            "units": 63,
            "xccs": 10018,
            "lds": 74,
            "wave": 87,
            "threads": 56,
            "major": 23,
            "minor": 61,
        }.items():
            hip.hipDeviceGetAttribute(ctypes.byref(value), attribute, device)
            got[key] = value.value
        assert got == {
            "units": compute_units,
            "xccs": 8,
            "lds": lds,
            "wave": 64,
            "threads": 1024,
            "major": 9,
            "minor": minor,
        }
        properties = ctypes.create_string_buffer(b"\xff" * 1472, 1480)
        properties[1472:1480] = b"sentinel"
        hip.hipGetDevicePropertiesR0600(properties, device)
        assert properties.raw[1160 : 1160 + len(arch) + 1] == arch + b"\0"
        assert struct.unpack_from("<i", properties.raw, 388) == (compute_units,)
        assert struct.unpack_from("<Q", properties.raw, 296) == (lds,)
        assert properties.raw[1472:1480] == b"sentinel"
    hip.hipDeviceGetName(name, 5, 0)
    assert name.value == b"AMD "


def test_wrong_devices_and_attributes_are_refused(hip):
    value = ctypes.c_int()
    assert "device 2 does not exist; there are 2" in hip.fails("hipSetDevice", BAD_DEVICE, 2)
    hip.fails("hipSetDevice", BAD_DEVICE, -1)
    hip.fails("hipDeviceGetAttribute", BAD_DEVICE, ctypes.byref(value), 63, 7)
    assert "attribute 86" in hip.fails("hipDeviceGetAttribute", INVALID_VALUE, ctypes.byref(value), 86, 0)
    hip.fails("hipGetDeviceCount", INVALID_VALUE, None)
    hip.fails("hipInit", INVALID_VALUE, 1)


def test_the_current_device_belongs_to_a_thread(hip):
    hip.hipSetDevice(1)
    seen = ctypes.c_int(-1)
    thread = threading.Thread(target=lambda: hip.hipGetDevice(ctypes.byref(seen)))
    thread.start()
    thread.join()
    assert seen.value == 0
    hip.hipGetDevice(ctypes.byref(seen))
    assert seen.value == 1


def test_error_names(hip):
    names = {
        0: b"hipSuccess",
        1: b"hipErrorInvalidValue",
        209: b"hipErrorNoBinaryForGpu",
        719: b"hipErrorLaunchFailure",
    }
    assert {code: hip.c.hipGetErrorName(code) for code in names} == names


# --- memory -------------------------------------------------------------------------------------------------


def test_memory_goes_there_and_back(hip):
    data = np.arange(1000, dtype=np.uint32)
    first, second = hip.malloc(4000), hip.malloc(4000)
    size = ctypes.c_size_t(4000)
    hip.hipMemcpy(first, data.ctypes.data_as(ctypes.c_void_p), size, TO_DEVICE)
    hip.hipMemcpyAsync(second, first, size, ON_DEVICE, None)
    np.testing.assert_array_equal(hip.read(second, 1000), data)
    hip.hipMemsetAsync(second, 0xAB, ctypes.c_size_t(2000), None)
    got = hip.read(second, 1000)
    assert (got[:500] == 0xABABABAB).all() and (got[500:] == data[500:]).all()
    hip.hipFree(first)
    hip.hipFree(second)


def test_misused_memory_is_refused(hip):
    host = np.zeros(100, np.uint8).ctypes.data_as(ctypes.c_void_p)
    pointer = hip.malloc(100)
    inside = ctypes.c_void_p(pointer.value + 8)
    hundred = ctypes.c_size_t(100)
    assert "has 92 bytes from there" in hip.fails(
        "hipMemcpy", INVALID_VALUE, inside, host, hundred, TO_DEVICE
    )
    hip.fails("hipMemcpy", INVALID_VALUE, host, inside, hundred, DEFAULT)
    assert "no device memory" in hip.fails("hipMemcpy", INVALID_VALUE, host, pointer, hundred, TO_DEVICE)
    hip.fails("hipMemcpy", BAD_DIRECTION, pointer, host, hundred, 5)
    hip.fails("hipMemcpy", INVALID_VALUE, None, host, hundred, TO_DEVICE)
    hip.fails("hipMemsetAsync", INVALID_VALUE, host, 0, hundred, None)
    hip.fails("hipFree", INVALID_VALUE, inside)
    hip.hipFree(pointer)
    assert "did not come from hipMalloc, or was freed before" in hip.fails("hipFree", INVALID_VALUE, pointer)
    hip.hipFree(None)
    huge = ctypes.c_void_p()
    hip.fails("hipMalloc", 2, ctypes.byref(huge), ctypes.c_size_t(1 << 60))


@pytest.mark.parametrize("offset", [-1, 1024])
def test_the_host_cannot_touch_what_is_beside_an_allocation(offset):
    program = f"""
import ctypes
hip, pointer = ctypes.CDLL({str(library_path())!r}), ctypes.c_void_p()
assert hip.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(1024)) == 0
ctypes.memset(pointer.value, 1, 1024)
print("inside is fine", flush=True)
# In front of the first byte lies the rest of its page, behind the last one nothing.
ctypes.memset(pointer.value // 4096 * 4096 - 1 if {offset} < 0 else pointer.value + {offset}, 1, 1)
"""
    # tools/sanitized_tests.py: the sanitizer would end it in its own way.
    environment = os.environ | {
        name: os.environ.get(name, "") + ":handle_segv=0" for name in ("ASAN_OPTIONS", "TSAN_OPTIONS")
    }
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.stdout == "inside is fine\n" and done.returncode == -11


def test_registered_host_memory(hip, module):
    data = np.arange(128, dtype=np.uint32)
    host, size = data.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(data.nbytes)
    function = hip.function(module, "add_one")
    pointer = ctypes.c_void_p(host.value)
    launch = (function, *shape((2, 1, 1)), params(pointer), None)
    assert "outside the memory" in hip.fails("hipModuleLaunchKernel", LAUNCH_FAILURE, *launch)
    hip.hipHostRegister(host, size, 0)
    assert "overlaps hipHostRegister" in hip.fails(
        "hipHostRegister", ALREADY_REGISTERED, ctypes.c_void_p(host.value + 4), size, 0
    )
    hip.hipModuleLaunchKernel(*launch)
    np.testing.assert_array_equal(data, np.arange(1, 129))
    hip.fails("hipFree", INVALID_VALUE, host)
    hip.hipHostUnregister(host)
    hip.fails("hipHostUnregister", NOT_REGISTERED, host)
    hip.fails("hipModuleLaunchKernel", LAUNCH_FAILURE, *launch)


# --- modules ------------------------------------------------------------------------------------------------


def test_a_code_object_of_the_other_target_is_refused(hip, target):
    other = TARGETS[1 - TARGETS.index(target)]
    handle = ctypes.c_void_p()
    text = hip.fails("hipModuleLoadData", NO_BINARY, ctypes.byref(handle), compile_hip(SOURCE, other))
    assert f"the code object is for {other}" in text and f"is a {target}" in text


@pytest.mark.parametrize(
    "start", [b"\x7fELF" + b"\1" * 100, b"CCOB", b"__CLANG_OFFLOAD_BUNDLE__", b"nonsense"]
)
def test_what_is_no_code_object_is_refused(hip, start):
    handle = ctypes.c_void_p()
    hip.fails("hipModuleLoadData", INVALID_IMAGE, ctypes.byref(handle), start + bytes(4096))


def add_one_runs(hip, module):
    data = hip.malloc(256)
    hip.hipMemset(data, 0, ctypes.c_size_t(256))
    hip.hipModuleLaunchKernel(hip.function(module, "add_one"), *shape(), params(data), None)
    return hip.read(data, 64).tolist() == [1] * 64


@pytest.mark.parametrize("method", COMPRESSORS)
def test_a_compressed_bundle_is_loaded(hip, target, method, tmp_path):
    bundle = offload_bundle({target: compile_hip(SOURCE, target)})
    for version in (2, 3):
        # HIP does not know where the image ends: other bytes follow.
        assert add_one_runs(hip, hip.load(compressed_bundle(bundle, version, method) + b"\xff" * 64))
    (tmp_path / "first").write_bytes(compressed_bundle(bundle, 1, method))
    module = ctypes.c_void_p()
    hip.hipModuleLoad(ctypes.byref(module), str(tmp_path / "first").encode())
    assert add_one_runs(hip, module)


def test_what_is_wrong_with_a_compressed_bundle_is_said(hip, target, tmp_path):
    bundle = offload_bundle({target: compile_hip(SOURCE, target)})
    handle, path = ctypes.c_void_p(), tmp_path / "bundle"
    whole = compressed_bundle(bundle, 3, 1)
    other = offload_bundle({"gfx90a": b"\x7fELF"})
    for image, says in (
        (compressed_bundle(bundle, 4, 1), "version 4 (at byte 0x4); allowed: 1 to 3"),
        (compressed_bundle(bundle, 3, 2), "compressed by method 2 (at byte 0x6); allowed: 0 (zlib), 1 (zstd)"),
        (compressed_bundle(bundle, 3, 1, said=1 << 40), "counts 1099511627776 bytes"),
        (compressed_bundle(bundle, 3, 1, said=len(bundle) + 1), f"has {len(bundle)} bytes, its header says"),
        (compressed_bundle(bundle, 3, 0, said=64), "cannot be uncompressed: zlib: "),
        (compressed_bundle(bundle, 3, 1, said=64), "cannot be uncompressed: zstd: "),
        (compressed_bundle(bundle, 2, 0, said=0), "the sizes in the header of the compressed offload bundle are wrong"),
        (compressed_bundle(other, 3, 1), f"has no code object for {target}; it has: hipv4-amdgcn-amd-amdhsa--gfx90a"),
        (whole[:-1], "the compressed offload bundle is cut off"),
        (whole[:20], "the compressed offload bundle is cut off"),
    ):  # fmt: skip
        path.write_bytes(image)
        assert says in hip.fails("hipModuleLoad", INVALID_IMAGE, ctypes.byref(handle), str(path).encode())
    first = compressed_bundle(bundle, 1, 1)
    text = hip.fails("hipModuleLoadData", INVALID_IMAGE, ctypes.byref(handle), first)
    assert "version 1 does not say how long it is" in text


def test_names_and_handles_that_do_not_exist(hip, module):
    handle = ctypes.c_void_p()
    text = hip.fails("hipModuleGetFunction", NOT_FOUND, ctypes.byref(handle), module, b"nothing")
    assert "no kernel nothing; it has: " in text and "add_one" in text
    hip.fails(
        "hipModuleGetFunction", INVALID_HANDLE, ctypes.byref(handle), ctypes.c_void_p(0x1234), b"add_one"
    )
    hip.fails("hipModuleGetGlobal", NOT_FOUND, None, None, module, b"add_one")
    hip.fails("hipModuleLaunchKernel", INVALID_HANDLE, None, *shape(), None, None)
    assert hip.function(module, "add_one").value == hip.function(module, "add_one").value


def test_functions_end_with_their_module(hip, target):
    module = hip.load(compile_hip(SOURCE, target))
    function = hip.function(module, "add_one")
    # Otherwise programs kept from other launches would be evicted to make room for this one.
    _simulator.limit_kept_programs(_simulator.limit_kept_programs(0))
    before, data = _simulator.kept_program_bytes(), hip.malloc(256)
    hip.hipModuleLaunchKernel(function, *shape(), params(data, ctypes.c_uint(64)), None)
    assert _simulator.kept_program_bytes() > before
    hip.hipModuleUnload(module)
    assert _simulator.kept_program_bytes() == before
    hip.fails("hipModuleUnload", INVALID_HANDLE, module)
    text = hip.fails("hipModuleLaunchKernel", INVALID_HANDLE, function, *shape(), None, None)
    assert "the function handle is unknown or was destroyed" in text


def test_function_attributes_and_occupancy(hip, target, module):
    value = ctypes.c_int()
    function = hip.function(module, "implicit")
    got = []
    for attribute in (0, 1, 3, 8):
        hip.hipFuncGetAttribute(ctypes.byref(value), attribute, function)
        got.append(value.value)
    lds = {"gfx942": 65536, "gfx950": 163840}[target]
    assert got == [256, 0, 0, lds]
    occupancy = "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor"

    def blocks(size, shared=0):
        getattr(hip, occupancy)(ctypes.byref(value), function, size, ctypes.c_size_t(shared))
        return value.value

    # Eight waves on each of four SIMDs; LDS shared by all.
    assert (blocks(64), blocks(256), blocks(1024)) == (32, 8, 2)
    assert (blocks(256, lds), blocks(256, lds // 2), blocks(256, lds // 2 + 1)) == (1, 2, 1)
    hip.fails(occupancy, INVALID_VALUE, ctypes.byref(value), function, 2048, ctypes.c_size_t(0))


def test_variables_of_a_module(hip, module):
    pointer, size = ctypes.c_void_p(), ctypes.c_size_t()
    hip.hipModuleGetGlobal(ctypes.byref(pointer), ctypes.byref(size), module, b"counter")
    assert size.value == 4 and ctypes.c_uint.from_address(pointer.value).value == 41
    out = hip.malloc(4)
    hip.hipModuleLaunchKernel(hip.function(module, "count"), *shape(block=(1, 1, 1)), params(out), None)
    assert hip.read(out, 1)[0] == 42 and ctypes.c_uint.from_address(pointer.value).value == 42
    hip.hipFree(out)


# --- launches -----------------------------------------------------------------------------------------------


class Pair(ctypes.Structure):
    _fields_ = [("first", ctypes.c_ubyte), ("second", ctypes.c_double)]


def test_arguments_by_pointer_and_by_buffer(hip, module):
    function, out = hip.function(module, "arguments"), hip.malloc(16)
    values = params(out, Pair(200, 3e9), ctypes.c_ushort(65535), ctypes.c_float(7.0))
    hip.hipModuleLaunchKernel(function, *shape(), values, None)
    np.testing.assert_array_equal(hip.read(out, 4), [200, 3_000_000_000, 65535, 7])
    buffer = struct.pack("<QB7xdH2xf", out.value, 100, 5.0, 77, 9.0)
    hip.hipModuleLaunchKernel(function, *shape(), None, extra(buffer))
    np.testing.assert_array_equal(hip.read(out, 4), [100, 5, 77, 9])

    name = "hipModuleLaunchKernel"
    assert "31 bytes of arguments" in hip.fails(
        name, INVALID_VALUE, function, *shape(), None, extra(buffer[:31])
    )
    long = extra(buffer + bytes(1024))
    assert "argument segment ends at" in hip.fails(name, INVALID_VALUE, function, *shape(), None, long)
    assert "both" in hip.fails(name, INVALID_VALUE, function, *shape(), values, extra(buffer))
    assert "argument 0 is null" in hip.fails(name, INVALID_VALUE, function, *shape(), None, None)
    strange = (ctypes.c_void_p * 3)(9, 9, 3)
    assert "HIP_LAUNCH_PARAM" in hip.fails(name, INVALID_VALUE, function, *shape(), None, strange)
    hip.hipFree(out)


@pytest.mark.parametrize("way", ["pointers", "buffer"])
def test_hidden_arguments(hip, module, way):
    function, out = hip.function(module, "implicit"), hip.malloc(64)
    how = (params(out), None) if way == "pointers" else (None, extra(struct.pack("<Q", out.value)))
    hip.hipModuleLaunchKernel(function, *shape((5, 3, 2), (32, 4, 2)), *how)
    counts, sizes, remainders = [5, 3, 2], [32, 4, 2], [0, 0, 0]
    np.testing.assert_array_equal(hip.read(out, 13), [*counts, *sizes, *remainders, 0, 3, 4, 4])
    hip.hipFree(out)


def test_preloaded_arguments(hip, target):
    """The first argument words are in SGPRs when a wave starts; the code that would load them is skipped."""
    source = """extern "C" __global__ void scaled(uint* out, uint factor, uint offset) {
        out[workgroup_id() * 64 + thread_id()] = thread_id() * factor + offset + workgroup_id();
    }"""
    module = hip.load(compile_hip(source, target, ("-mllvm", "-amdgpu-kernarg-preload-count=8")))
    out = hip.malloc(512)
    arguments = params(out, ctypes.c_uint(3), ctypes.c_uint(1000))
    hip.hipModuleLaunchKernel(hip.function(module, "scaled"), *shape((2, 1, 1)), arguments, None)
    expected = np.arange(64) * 3 + 1000 + np.array([[0], [1]])
    np.testing.assert_array_equal(hip.read(out, 128).reshape(2, 64), expected)
    hip.hipFree(out)
    hip.hipModuleUnload(module)


def test_dynamic_lds(hip, target, module):
    function, out = hip.function(module, "last_dynamic"), hip.malloc(256)
    size = {"gfx942": 65536, "gfx950": 163840}[target]
    arguments = params(out, ctypes.c_uint(size // 4))
    hip.hipModuleLaunchKernel(function, *shape(shared=size), arguments, None)
    np.testing.assert_array_equal(hip.read(out, 64), np.arange(64)[::-1])
    text = hip.fails(
        "hipModuleLaunchKernel", OUT_OF_RESOURCES, function, *shape(shared=size + 4), arguments, None
    )
    assert f"0 bytes of static and {size + 4} of dynamic LDS; {target} has {size}" in text
    hip.hipFree(out)


def test_a_kernel_of_more_lds_than_there_is_leaves_none(hip, target):
    size = 1 << 31
    text = KERNEL.format(target=target, body="")
    for word in ("group_segment_fixed_size ", "group_segment_fixed_size: "):
        text = text.replace(f"{word}2048", f"{word}{size}")
    module, left = hip.load(assemble(text, target)), ctypes.c_int(-1)
    function = hip.function(module, "kernel")
    max_dynamic_shared_size_bytes = 8
    hip.hipFuncGetAttribute(ctypes.byref(left), max_dynamic_shared_size_bytes, function)
    assert left.value == 0
    arguments = params(*(ctypes.c_uint64(0) for _ in range(3)), ctypes.c_uint(0))
    text = hip.fails("hipModuleLaunchKernel", OUT_OF_RESOURCES, function, *shape(), arguments, None)
    assert f"{size} bytes of static and 0 of dynamic LDS" in text
    hip.hipModuleUnload(module)


@pytest.mark.parametrize(
    ("grid", "block", "text"),
    [
        ((0, 1, 1), (64, 1, 1), "a grid of 0 x 1 x 1"),
        ((1, 65536, 1), (64, 1, 1), "a grid of 1 x 65536 x 1"),
        ((1 << 31, 1, 1), (64, 1, 1), "a grid of"),
        ((1 << 30, 1, 1), (8, 1, 1), "work-items in one dimension"),
        ((1, 1, 1), (64, 0, 1), "a workgroup of 64 x 0 x 1"),
        ((1, 1, 1), (257, 1, 1), "a workgroup of 257 x 1 x 1 work-items; the kernel allows 1 to 256"),
        ((1, 1, 1), (1 << 16, 1 << 16, 1), "a workgroup of"),
    ],
)
def test_impossible_shapes_are_refused(hip, module, grid, block, text):
    function, out = hip.function(module, "implicit"), hip.malloc(64)
    launch = (function, *shape(grid, block), params(out), None)
    assert text in hip.fails("hipModuleLaunchKernel", INVALID_CONFIGURATION, *launch)
    hip.hipFree(out)


def test_a_fault_is_reported_and_everything_still_works(hip, module):
    function, data = hip.function(module, "add_one"), hip.malloc(4 * 64)
    hip.hipMemset(data, 0, ctypes.c_size_t(256))
    hip.fails("hipModuleLaunchKernel", LAUNCH_FAILURE, function, *shape((2, 1, 1)), params(data), None)
    text = hip.text()
    assert "kernel add_one, workgroup (1, 0, 0)" in text and "hipMalloc #" in text and "of 256 bytes" in text
    hip.hipModuleLaunchKernel(function, *shape((1, 1, 1)), params(data), None)
    assert hip.read(data, 64).min() >= 1
    hip.hipFree(data)
    hip.fails("hipModuleLaunchKernel", LAUNCH_FAILURE, function, *shape((1, 1, 1)), params(data), None)


def test_a_kernel_runs_on_the_device_it_was_loaded_on(hip, target, module):
    function, stream, data = hip.function(module, "add_one"), ctypes.c_void_p(), hip.malloc(256)
    other = 1 - TARGETS.index(target)
    hip.hipSetDevice(other)
    hip.hipStreamCreate(ctypes.byref(stream))
    launch = "hipModuleLaunchKernel"
    assert "was loaded on device" in hip.fails(launch, BAD_FUNCTION, function, *shape(), params(data), None)
    text = hip.fails(launch, INVALID_HANDLE, function, *shape(stream=stream), params(data), None)
    assert f"the stream belongs to device {other}" in text
    hip.hipStreamDestroy(stream)
    hip.hipFree(data)


def test_launches_and_frees_from_many_threads(hip, module):
    function, errors = hip.function(module, "add_one"), []
    device = ctypes.c_int()
    hip.hipGetDevice(ctypes.byref(device))

    def work():
        try:
            api = Hip()
            api.hipSetDevice(device)
            for _ in range(20):
                data = api.malloc(1024)
                api.hipMemset(data, 0, ctypes.c_size_t(1024))
                api.hipModuleLaunchKernel(function, *shape((4, 1, 1)), params(data), None)
                assert (api.read(data, 256) == 1).all()
                api.hipFree(data)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


# --- streams and events -------------------------------------------------------------------------------------


def test_streams_and_events(hip):
    stream, start, stop = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    elapsed = ctypes.c_float(-1)
    hip.hipStreamCreate(ctypes.byref(stream))
    hip.hipEventCreate(ctypes.byref(start))
    hip.hipEventCreate(ctypes.byref(stop))
    assert "not recorded" in hip.fails(
        "hipEventElapsedTime", INVALID_HANDLE, ctypes.byref(elapsed), start, stop
    )
    hip.hipEventRecord(start, stream)
    hip.hipEventRecord(stop, None)
    hip.hipEventSynchronize(stop)
    hip.hipEventElapsedTime(ctypes.byref(elapsed), start, stop)
    assert 0 <= elapsed.value < 1000
    for default in (None, ctypes.c_void_p(1), ctypes.c_void_p(2)):
        hip.hipStreamSynchronize(default)
    hip.hipStreamSynchronize(stream)
    hip.hipDeviceSynchronize()
    hip.fails("hipStreamSynchronize", INVALID_HANDLE, start)
    hip.hipStreamDestroy(stream)
    hip.fails("hipStreamDestroy", INVALID_HANDLE, stream)
    hip.fails("hipEventRecord", INVALID_HANDLE, start, stream)
    for event in (start, stop):
        hip.hipEventDestroy(event)
        hip.fails("hipEventSynchronize", INVALID_HANDLE, event)


def test_settings_are_checked():
    from tests.simulated_device import Settings

    settings = Settings()
    library().hipkittens_get_settings(ctypes.byref(settings))
    before = Settings.from_buffer_copy(settings)
    best = library().hipkittens_best_host_level()
    for field, value in {"arithmetic": 3, "host_level": best + 1, "threads": 5000}.items():
        wrong = Settings.from_buffer_copy(before)
        setattr(wrong, field, value)
        assert library().hipkittens_set_settings(ctypes.byref(wrong)) == INVALID_VALUE
        assert f"{field} is {value}; allowed are" in library().hipkittens_last_error().decode()
    library().hipkittens_get_settings(ctypes.byref(settings))
    assert bytes(settings) == bytes(before)


def test_what_a_pool_reserves_is_filled_on_first_touch():
    """Under checks, fresh memory holds a pattern; a library that reserves most of the device must not use up the host's memory."""
    program = """
import ctypes, resource
from tests.simulated_device import Settings, library
lib, settings, pointer = library(), Settings(), ctypes.c_void_p()
lib.hipkittens_get_settings(ctypes.byref(settings))
settings.poison = 1
assert lib.hipkittens_set_settings(ctypes.byref(settings)) == 0
size = 150 << 30
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert lib.hipMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
word = ctypes.c_uint32.from_address
fresh = {word(pointer.value + at).value for at in (0, 4, (64 << 20) - 4, 64 << 20, size // 2, size - 4)}
assert len(fresh) == 1 and fresh != {0}, fresh
word(pointer.value + size // 2).value = 7
assert word(pointer.value + size // 2).value == 7 and word(pointer.value + size // 2 + (64 << 20)).value in fresh
assert lib.hipFree(pointer) == 0
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, "MiB")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) < 1024
