# SPDX-License-Identifier: MIT
"""hipkittens.kernel: user-supplied kernels."""

from __future__ import annotations

import ctypes
import gc
import threading
import zipfile

import pytest
import torch

import hipkittens
from hipkittens import kernel

SOURCE = """
#include "tiles/tiles.h"
using namespace kittens;
struct Line { float factor, offset; };
extern "C" __attribute__((global)) void line(const float* x, float* out, Line line, long count, bool negate) {
    const long i = workgroup_id_x() * 64 + thread_id();
    if (i < count) out[i] = (negate ? -1.0f : 1.0f) * (line.factor * x[i] + line.offset);
}
"""


class Line(ctypes.Structure):
    _fields_ = (("factor", ctypes.c_float), ("offset", ctypes.c_float))


@pytest.fixture(scope="module")
def line():
    return kernel.compile(SOURCE)


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks="all"):
        yield request.param


def call(line, x, out, *, structure=None, count=None, negate=False, **shape):
    structure = Line(2.0, 1.0) if structure is None else structure
    count = x.numel() if count is None else count
    line(x, out, structure, count, negate, **({"grid": -(-x.numel() // 64), "block": 64} | shape))


def test_every_kind_of_argument(line, target):
    x, out = torch.arange(100.0), torch.full((100,), float("nan"))
    call(line, x, out, negate=True)
    assert torch.equal(out, -(2 * x + 1))
    call(line, x, out, structure=bytes(Line(0.5, 0.0)))
    assert torch.equal(out, x / 2)


@pytest.mark.parametrize("numbers", range(1, 16))
def test_any_number_of_argument_bytes_can_be_read(target, numbers):
    """Of seven dwords, Clang loads eight."""
    names = [f"a{index}" for index in range(numbers)]
    launched = kernel.compile(
        f"""
        extern "C" __attribute__((global)) void sum(int* out, {", ".join("int " + name for name in names)}) {{
            out[0] = {" + ".join(names)};
        }}""",
        targets=target,
    )
    out = torch.zeros(1, dtype=torch.int32)
    launched(out, *range(1, numbers + 1), grid=1, block=1)
    assert out.item() == numbers * (numbers + 1) // 2


def test_a_strided_view_may_be_touched_to_its_end(line, target):
    storage = torch.zeros(1000)
    view = storage[10:110]
    call(line, torch.ones(100), view)
    assert storage.sum() == 300 and view.sum() == 300


def test_a_launch_touches_nothing_else(line, target):
    storage = torch.zeros(1000)
    with pytest.raises(RuntimeError, match=r"source.cpp:7.*store outside.*nearest allocation 'out'"):
        call(line, torch.ones(200), storage[:100], count=200, grid=4)
    assert storage[100:].sum() == 0


def test_a_mangled_kernel_is_refused_with_what_to_do():
    for source in (
        "__attribute__((global)) void one(float* x) { *x = 1; }\n",
        "template <int N> __attribute__((global)) void many(float* x) { *x = N; }\n"
        "template __attribute__((global)) void many<3>(float*);\n",
    ):
        with pytest.raises(kernel.CompileError, match=r'has a C\+\+ symbol; declare it extern "C"'):
            kernel.compile(source, targets="gfx950")


def test_no_path_of_the_machine_is_in_the_code_object(tmp_path, monkeypatch):
    text = (
        '#include "tiles/tiles.h"\n' + 'extern "C" __attribute__((global)) void one(float* x) { *x = 1; }\n'
    )
    (tmp_path / "one.cpp").write_text(text)
    monkeypatch.chdir(tmp_path)
    near = kernel.compile("one.cpp", targets=["gfx950"]).images["gfx950"]
    far = kernel.compile(tmp_path / "one.cpp", targets=["gfx950"]).images["gfx950"]
    for image in (near, far):
        assert str(tmp_path).encode() not in image and str(kernel.include_directory()).encode() not in image


def test_a_const_pointer_is_read_only(target):
    source = """extern "C" __attribute__((global)) void cheat(const int* x) { *const_cast<int*>(x) = 1; }\n"""
    with pytest.raises(RuntimeError, match=r"read-only.*'x'|'x'.*read-only"):
        kernel.compile(source)(torch.zeros(4, dtype=torch.int32), grid=1, block=1)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"x": torch.zeros(4, dtype=torch.float64)}, TypeError, "x (const float *) is a tensor of torch.float64; it must be torch.float32"),
        ({"x": [1.0]}, TypeError, "x (const float *) is list; it must be a torch.Tensor or None"),
        ({"x": torch.zeros(4, requires_grad=True)}, ValueError, "x requires grad"),
        ({"x": torch.zeros(4).to_sparse()}, TypeError, "x is sparse"),
        ({"x": torch.zeros(4, device="meta")}, ValueError, "meta"),
        ({"count": 4.0}, TypeError, "count (long) is 4.0 (float); it must be a Python int"),
        ({"count": 2**63}, ValueError, "does not fit 8 bytes"),
        ({"negate": 1}, TypeError, "negate (bool) is 1 (int); it must be a Python bool"),
        ({"structure": bytes(4)}, TypeError, "line (Line) is 4 bytes; it must be bytes or a ctypes.Structure of 8 bytes"),
        ({"structure": 1.0}, TypeError, "line (Line) is float"),
        ({"grid": 1.0}, ValueError, "grid is 1.0; it must be one to three positive integers"),
        ({"grid": 0}, ValueError, "grid is 0; it must be one to three positive integers"),
        ({"grid": (1, 1, 1, 1)}, ValueError, "grid"),
        ({"block": (64.0,)}, ValueError, "block"),
        ({"shared_bytes": -1}, ValueError, "shared_bytes is -1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(line, target, change, error, text):
    change = dict(change)
    x = change.pop("x", torch.zeros(4))
    with pytest.raises(error) as raised:
        if isinstance(x, list):
            line(x, torch.zeros(4), Line(), 4, False, grid=1, block=64)
        else:
            call(line, x, torch.zeros(4), **change)
    assert text in str(raised.value) and str(raised.value).startswith("hipkittens.kernel: line: ")


def test_the_number_of_arguments(line):
    with pytest.raises(
        TypeError, match=r"line: 1 arguments; it has 5: const float \*x, float \*out, Line line"
    ):
        line(torch.zeros(4), grid=1, block=64)
    with pytest.raises(ValueError, match="no argument is a tensor"):
        line(None, None, Line(), 0, False, grid=1, block=64)


def test_saving_and_loading(line, tmp_path, target):
    line.save(tmp_path / "a.hkkernel")
    kernel.compile(SOURCE).save(tmp_path / "b.hkkernel")
    assert (tmp_path / "a.hkkernel").read_bytes() == (tmp_path / "b.hkkernel").read_bytes()
    loaded = kernel.load(tmp_path / "a.hkkernel")
    assert (loaded.name, loaded.images, loaded.parameters) == (line.name, line.images, line.parameters)
    out = torch.zeros(4)
    call(loaded, torch.ones(4), out)
    assert torch.equal(out, torch.full((4,), 3.0))


def test_broken_files_are_explained(line, tmp_path):
    path = tmp_path / "line.hkkernel"
    with pytest.raises(kernel.KernelFileError, match="No such file"):
        kernel.load(path)
    path.write_bytes(b"no zip")
    with pytest.raises(kernel.KernelFileError, match=r"not a kernel that hipkittens\.kernel saved"):
        kernel.load(path)
    line.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for change, text in (
        ({"gfx942.co": members["gfx942.co"][:-1] + b"x"}, "does not have the sha256"),
        ({"kernel.json": members["kernel.json"].replace(b'"format": 1', b'"format": 2')}, "format 2"),
        ({"kernel.json": b"{}"}, "not a kernel"),
    ):
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in (members | change).items():
                archive.writestr(name, data)
        with pytest.raises(kernel.KernelFileError, match=text):
            kernel.load(path)


def test_what_cannot_be_compiled(tmp_path):
    with pytest.raises(kernel.CompileError, match="undeclared identifier 'nothing'"):
        kernel.compile("int x = nothing;\n")
    with pytest.raises(kernel.CompileError, match="has 0 kernels"):
        kernel.compile("int x = 1;\n")
    with pytest.raises(kernel.CompileError, match="there is no file"):
        kernel.compile(tmp_path / "nothing.cpp")
    two = """
extern "C" __attribute__((global)) void one(int* x) { *x = 1; }
extern "C" __attribute__((global)) void two(int* x) { *x = VALUE; }
"""
    with pytest.raises(kernel.CompileError, match=r"has 2 kernels \(one, two\); choose one with name="):
        kernel.compile(two, targets=("gfx942",), defines={"VALUE": 2})
    with pytest.raises(kernel.CompileError, match=r"no kernel three \(have one, two\)"):
        kernel.compile(two, name="three", targets=("gfx942",), defines={"VALUE": 2})
    with pytest.raises(ValueError, match="targets is"):
        kernel.compile(two, targets=("gfx90a",))
    second = kernel.compile(two, name="two", targets=("gfx942",), defines={"VALUE": 2})
    x = torch.zeros(1, dtype=torch.int32)
    with hipkittens.simulate("gfx942"):
        second(x, grid=1, block=1)
    assert x.item() == 2
    with (
        hipkittens.simulate("gfx950"),
        pytest.raises(ValueError, match="compiled for gfx942, and this is a gfx950"),
    ):
        second(x, grid=1, block=1)


def test_settings_hold_in_every_thread():
    source = """extern "C" __attribute__((global)) void both(unsigned* x) { *x = __builtin_amdgcn_workitem_id_x(); }\n"""
    both = kernel.compile(source, targets=("gfx942",))
    x = torch.zeros(1, dtype=torch.int32).view(torch.uint32)
    with hipkittens.simulate("gfx942", checks="racecheck") as run:
        thread = threading.Thread(target=both, args=(x,), kwargs={"grid": 1, "block": 128})
        thread.start()
        thread.join()
    assert [finding.checker for finding in run.findings] == ["racecheck"]


def test_two_kernels_of_one_name_live_side_by_side():
    source = """extern "C" __attribute__((global)) void same(int* x) { *x = VALUE; }\n"""
    kernels = [kernel.compile(source, targets=("gfx942",), defines={"VALUE": value}) for value in (1, 2)]
    x = torch.zeros(1, dtype=torch.int32)
    with hipkittens.simulate("gfx942"):
        for made, value in zip(kernels, (1, 2), strict=True):
            made(x, grid=1, block=1)
            assert x.item() == value
        del made, kernels[0]
        gc.collect()
        kernels[0](x, grid=1, block=1)
    assert x.item() == 2


def test_listing_and_resources(line):
    assert "s_endpgm" in line.disassembly("gfx942")
    assert line.resources("gfx950")["lds_bytes"] == 0
    with pytest.raises(ValueError, match="not compiled for 'gfx90a'"):
        line.resources("gfx90a")
