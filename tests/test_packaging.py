# SPDX-License-Identifier: MIT
"""What is installed: the packs of code objects, the shared libraries, and the effects of importing."""

import fnmatch
import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import hipkittens
from hipkittens import _installation
from hipkittens._pack import Pack, PackError
from tests.worker_files import made_once

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("gfx942", "gfx950")


def tool(name):
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


@pytest.mark.parametrize("target", TARGETS)
def test_every_variant_is_in_the_pack(target):
    wanted = {
        f"{operation}.{row['name']}"
        for chosen, operation, row in tool("kernel_variants").all_variants()
        if chosen == target
    }
    pack = _installation.pack(target)
    assert {entry["name"] for entry in pack.entries} == wanted
    assert pack.verify() == len(wanted) > 0


# Known spills, by patterns of kernels, or of kernels and targets: (VGPRs, SGPRs, bytes of scratch) at most. Scalars of the longest
# backward rows are kept in lanes of a VGPR.
KNOWN_SPILLS = {
    "norm.backward_bf16_65536 gfx942": (0, 2, 0),
    "norm.odd_layer_bf16_4096 gfx942": (5, 0, 24),
    # Sixteen waves hold a row of 131072 elements in half of their registers, and the rest is too small.
    "softmax.forward_bf16_131072": (68, 0, 276),
    "softmax.forward_f16_131072": (48, 0, 100),
    "quantize.gated_row_f32_*": (0, 10, 0),
    "router.experts_256 gfx942": (0, 10, 0),
    "router.experts_256 gfx950": (0, 6, 0),
    "router.experts_1536 gfx942": (0, 52, 0),
    "router.experts_1536 gfx950": (0, 50, 0),
    # Base addresses and strides of their many tensors.
    "delta_rule.step_*": (0, 13, 0),
    "delta_rule.channel_step_*": (0, 12, 0),
    "delta_rule.scan_*": (0, 86, 0),
    "delta_rule.channel_scan_*": (0, 55, 0),
    "delta_rule.reverse_*": (0, 97, 0),
    "delta_rule.gradient_*16_128": (0, 18, 0),
    "delta_rule.gradient_*16_256": (0, 48, 0),
    "delta_rule.gradient_f32_*": (0, 4, 0),
    "delta_rule.channel_prepare_f16_*": (0, 5, 0),
    "delta_rule.channel_prepare_bf16_* gfx950": (0, 5, 0),
    "cache.shared_scale_*": (0, 52, 0),
    # Lane masks for as many pairs as are in flight.
    "expert_sort.all": (0, 13, 0),
}


def known_spills(name, target):
    found = [
        spills
        for pattern, spills in KNOWN_SPILLS.items()
        if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(f"{name} {target}", pattern)
    ]
    return found[0] if found else (0, 0, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_index_says_what_a_kernel_is(target):
    for entry in _installation.pack(target).entries:
        assert entry["target"] == target
        assert entry["compiler"].startswith("clang version")
        assert entry["configuration"]["name"] == entry["variant"]
        assert "csrc/kernels/" + entry["operation"] + "/kernels.h" in entry["sources"]
        assert len(entry["sha256"]) == len(entry["source_sha256"]) == 64
        (kernel,) = entry["kernels"]
        fields = entry["arguments"]
        assert len({field["name"] for field in fields}) == len(fields)
        assert all(
            a["offset"] + a["size"] <= b["offset"] or "bit" in b for a, b in itertools.pairwise(fields)
        )
        passed = max(
            argument["offset"] + argument["size"]
            for argument in kernel["arguments"]
            if not argument["value_kind"].startswith("hidden")
        )
        assert (
            0 <= passed - fields[-1]["offset"] - fields[-1]["size"] < 8
        )  # the struct ends on a multiple of 8
        assert kernel["symbol"].endswith(target)
        assert kernel["argument_bytes"] > 0 and kernel["arguments"]
        assert kernel["vgprs"] > 0 and kernel["lds_bytes"] <= {"gfx942": 65536, "gfx950": 163840}[target]
        # A spilled SGPR goes to a lane of a VGPR, a VGPR to an AGPR; scratch memory is what costs.
        found = tuple(kernel[key] for key in ("vgpr_spills", "sgpr_spills", "scratch_bytes"))
        known = known_spills(entry["name"], target)
        assert all(a <= b for a, b in zip(found, known, strict=True)), (entry["name"], found)
        assert any(found) == any(known), f"{entry['name']} spills no more: take it off the list"


# LLVM AMDGPUUsage, "Header": 64-bit, little-endian, ELFOSABI_AMDGPU_HSA, ELFABIVERSION_AMDGPU_HSA_V5.
CODE_OBJECT_5 = b"\x7fELF\x02\x01\x01\x40\x03"


@pytest.mark.parametrize("target", TARGETS)
def test_every_object_is_of_code_object_version_5(target):
    """ROCm before 6.3 refuses version 6, which clang writes by default: docs/install.md."""
    pack = _installation.pack(target)
    for entry in pack.entries:
        assert pack.image(entry)[:9] == CODE_OBJECT_5, entry["name"]
        assert "-mcode-object-version=5" in entry["flags"]


def test_so_are_kernels_that_users_compile():
    one = hipkittens.kernel.compile(
        'extern "C" __attribute__((global)) void one(int* out) {\n    *out = 1;\n}\n'
    )
    assert {target: image[:9] for target, image in one.images.items()} == dict.fromkeys(
        TARGETS, CODE_OBJECT_5
    )


def smallest(target):
    return min(_installation.pack(target).entries, key=lambda entry: entry["bytes"])


@pytest.mark.parametrize("target", TARGETS)
def test_rebuilding_gives_the_same_bytes(target, tmp_path):
    build = tool("build_kernels")
    entry = smallest(target)
    compiler = build.DeviceCompiler()
    if compiler.version() != entry["compiler"]:
        pytest.skip(f"built with {entry['compiler']}, here is {compiler.version()}")
    headers = tmp_path / "headers.pch"
    build.precompile_headers(compiler, target, entry["operation"], headers)
    images, packed = [], []
    for place, precompiled in (("one", headers), ("another/place", None)):
        output = tmp_path / place / f"{entry['name']}.co"
        sources = build.compile_kernel(
            compiler, target, entry["operation"], entry["configuration"], output, precompiled
        )
        description = build.describe(compiler, target, entry["operation"], entry["configuration"], sources)
        assert description["source_sha256"] == entry["source_sha256"], (
            "the pack is older than the sources: build again"
        )
        output.with_suffix(".json").write_text(json.dumps(description))
        images.append(output.read_bytes())
        packed.append(tool("pack_kernels").pack(target, [output]))
    assert hashlib.sha256(images[0]).hexdigest() == entry["sha256"]
    assert images[0] == images[1]
    assert packed[0] == packed[1]
    (tmp_path / "packed").write_bytes(packed[0])
    again = Pack(tmp_path / "packed")
    assert again.image(again.entries[0]) == images[0]


def test_a_source_of_a_kernel_is_in_its_depfile(tmp_path):
    """The build follows the depfile: touching one kernel's device code rebuilds that kernel and no other operation's."""
    output = tmp_path / "kernel.co"
    command = [
        sys.executable,
        ROOT / "tools" / "build_kernels.py",
        "--target",
        "gfx942",
        "--operation",
        "gemm",
    ]
    command += ["--variant", "reduce", "--output", output, "--depfile", tmp_path / "kernel.d"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"gfx942 gemm\.reduce: \d+\.\d s, \d+ bytes\n", printed)
    listed = (tmp_path / "kernel.d").read_text()
    for name in ("device.cpp", "gemm/reduce.h", "gemm/variants.def"):
        assert str(ROOT / "csrc" / "kernels" / name) in listed


def damaged(tmp_path, target, at):
    data = bytearray(_installation.pack(target).path.read_bytes())
    data[at] ^= 0x10
    path = tmp_path / f"{target}.hkpack"
    path.write_bytes(data)
    return Pack(path)


@pytest.mark.parametrize(
    "place", ["magic", "length", "index hash", "index", "stream start", "stream", "stream end"]
)
def test_a_flipped_bit_is_found(tmp_path, place):
    size = _installation.pack("gfx950").path.stat().st_size
    stream = 48 + int.from_bytes(_installation.pack("gfx950").path.read_bytes()[8:16], "little")
    at = {
        "magic": 3,
        "length": 9,
        "index hash": 20,
        "index": 500,
        "stream start": stream + 2,
        "stream": (stream + size) // 2,
        "stream end": size - 3,
    }[place]
    with pytest.raises(PackError, match=r"gfx950\.hkpack"):
        damaged(tmp_path, "gfx950", at).verify()


def test_a_cut_pack_is_found(tmp_path):
    data = _installation.pack("gfx942").path.read_bytes()
    for size in (0, 20, 60, len(data) // 2, len(data) - 1):
        path = tmp_path / "cut.hkpack"
        path.write_bytes(data[:size])
        with pytest.raises(PackError):
            Pack(path).verify()
    with pytest.raises(PackError, match="No such file"):
        Pack(tmp_path / "absent.hkpack").verify()


def test_a_pack_of_another_format_is_named(tmp_path):
    data = _installation.pack("gfx942").path.read_bytes()
    length = int.from_bytes(data[8:16], "little")
    index = json.dumps(json.loads(data[48 : 48 + length]) | {"format": 2}).encode()
    path = tmp_path / "gfx942.hkpack"
    header = data[:8] + len(index).to_bytes(8, "little") + hashlib.sha256(index).digest()
    path.write_bytes(header + index + data[48 + length :])
    with pytest.raises(
        PackError, match=r"gfx942\.hkpack: format 2, this version reads 1; reinstall hipkittens"
    ):
        Pack(path).verify()


def test_a_damaged_kernel_is_not_launched(tmp_path):
    """In a separate process, since kernels stay loaded."""
    size = _installation.pack("gfx942").path.stat().st_size
    pack = damaged(tmp_path, "gfx942", size * 3 // 4)
    code = (
        "import pathlib, torch, hipkittens\n"
        "from hipkittens import _installation, _pack\n"
        f"_installation.pack = lambda target: _pack.Pack(pathlib.Path({str(pack.path)!r}))\n"
        "hipkittens.matmul(*[torch.ones(64, 64, dtype=torch.bfloat16)] * 2)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode != 0
    assert "reinstall hipkittens" in result.stderr.splitlines()[-1]


def symbols(library, *options):
    command = ["nm", "-D", *options, library]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1] for line in lines]


# glibc, libstdc++ and libgcc name the version of each symbol; the linker's own optional ones are weak.
OF_THE_SYSTEM = re.compile(r"\w+@(GLIBC|GLIBCXX|CXXABI|GCC)_[\d.]+|__gmon_start__|_ITM_\w+TMCloneTable")


@pytest.mark.parametrize(
    ("library", "others"),
    [(_installation.OPERATORS, r"(aoti_torch|torch)_\w+"), (_installation.SIMULATOR, None)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_libraries_want_only_the_system_and_the_stable_abi(library, others):
    """No C++ symbol of torch (c10::, at::), which changes with every version, and none of Python."""
    wanted = [name for name in symbols(library, "--undefined-only") if not OF_THE_SYSTEM.fullmatch(name)]
    assert bool(wanted) == (others is not None)
    assert not [name for name in wanted if not re.fullmatch(others, name)]


def test_a_symbol_of_libtorch_would_be_seen():
    assert not OF_THE_SYSTEM.fullmatch("_ZN3c106detail14torchCheckFailEPKcS2_jS2_")
    assert not re.fullmatch(r"(aoti_torch|torch)_\w+", "_ZNK2at6Tensor3addERKS0_")
    assert OF_THE_SYSTEM.fullmatch("_ZSt9terminatev@GLIBCXX_3.4")


def test_operators_show_only_their_doors():
    exported = symbols(_installation.OPERATORS, "--defined-only", "--extern-only")
    assert exported and all(name.startswith("hipkittens_") for name in exported)


def needed(path):
    text = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(r"NEEDED.*\[(.+)\]", text)


def test_shared_libraries_need_little():
    system = {
        "libstdc++.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "ld-linux-x86-64.so.2",
        "libpthread.so.0",
        "libdl.so.2",
    }
    assert set(needed(_installation.OPERATORS)) - system == {"libtorch.so"}
    assert set(needed(_installation.SIMULATOR)) <= system


@pytest.mark.parametrize(
    "library", [_installation.OPERATORS, _installation.SIMULATOR], ids=lambda path: path.name
)
def test_shared_libraries_run_on_older_systems(library):
    text = subprocess.run(["readelf", "-V", library], capture_output=True, text=True, check=True).stdout
    newest = max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBCXX_([\d.]+)", text))
    assert newest <= (3, 4, 29)  # GCC 11: RHEL 9 and Ubuntu 22.04


def test_our_declarations_agree_with_torch(tmp_path):
    """Two declarations of one C function with different types do not compile."""
    include = Path(torch.__file__).parent / "include"
    source = tmp_path / "both.cpp"
    source.write_text(
        "#include <torch/csrc/stable/c/shim.h>\n"
        '#include "torch/stable_abi.h"\n'
        "static_assert(hipkittens::torch_binding::stable_abi_version == TORCH_VERSION_2_10_0);\n"
        "static_assert(sizeof(StableIValue) == 8);\n"
    )
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'csrc'}", "-isystem", include, source]
    # csrc/torch/ and torch's own include/torch/ do not conflict: both are searched for each name.
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    declarations = (ROOT / "csrc" / "torch" / "stable_abi.h").read_text()
    source.write_text(source.read_text().replace('"torch/stable_abi.h"', '"changed.h"'))
    (tmp_path / "changed.h").write_text(
        declarations.replace("aoti_torch_zero_(AtenTensorHandle", "aoti_torch_zero_(int32_t")
    )
    assert subprocess.run([*command, f"-I{tmp_path}"], capture_output=True).returncode != 0


AUDIT = """
import sys
import torch
seen = []
def hook(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        seen.append(arguments[0])
    if event in ("socket.connect", "subprocess.Popen", "os.system", "os.mkdir", "os.rename", "os.remove"):
        seen.append(event)
sys.addaudithook(hook)
before = set(sys.modules)
import hipkittens
assert not seen, seen
assert not torch.cuda.is_initialized()
maps = open("/proc/self/maps").read()
assert "_ops.so" in maps and "hipkittens_simulator" not in maps and "amdhip" not in maps
others = {name.split(".")[0] for name in set(sys.modules) - before} - {"hipkittens"} - sys.stdlib_module_names
assert not others, others
"""


def test_importing_loads_only_ourselves_and_leaves_no_trace():
    """benchmarks/startup.py measures how long it takes."""
    run = subprocess.run([sys.executable, "-B", "-c", AUDIT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_first_run_without_numpy_warns_of_nothing():
    """As in the environment that ./run demo makes."""
    call = "import sys; sys.modules['numpy'] = None; import hipkittens_command; sys.argv[1:] = ['info']; hipkittens_command.main()"
    run = subprocess.run(
        [sys.executable, "-W", "always::UserWarning", "-c", call], capture_output=True, text=True
    )
    assert (run.returncode, run.stderr) == (0, "") and "simulated target" in run.stdout


def test_version_is_the_projects():
    assert f'version = "{hipkittens.__version__}"' in (ROOT / "pyproject.toml").read_text()
    assert (Path(hipkittens.__file__).parent / "py.typed").exists()


def test_licence_and_metadata_are_where_they_belong():
    assert "[metadata]" not in (ROOT / "setup.cfg").read_text()
    assert "hipkittens authors" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize(
    ("name", "member", "size", "objection"),
    [
        ("py3-none-manylinux_2_34_x86_64", "lib/_ops.so", 10, None),
        ("py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64", "lib/_ops.so", 10, None),
        ("cp311-cp311-manylinux_2_34_x86_64", "lib/_ops.so", 10, "it is for cp311-cp311, not for py3-none"),
        ("py3-none-manylinux_2_39_x86_64", "lib/_ops.so", 10, "it is for manylinux_2_39_x86_64"),
        ("py3-none-linux_x86_64", "lib/_ops.so", 10, "it is for linux_x86_64"),
        ("py3-none-manylinux_2_34_x86_64", "lib/_ops.so", 20_000_000, "it has 20000"),
        (
            "py3-none-manylinux_2_34_x86_64",
            "_C.cpython-311-x86_64.so",
            10,
            "_C.cpython-311-x86_64.so is made",
        ),
    ],
)
def test_a_wheel_that_is_not_for_all_is_refused(tmp_path, name, member, size, objection):
    wheel = tmp_path / f"hipkittens-0.1.0-{name}.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(member, bytes(size))
    found = tool("tag_wheel").objections(wheel)
    assert len(found) == (objection is not None) and all(text.startswith(objection) for text in found)


@pytest.fixture(scope="module")
def source_tree(tmp_path_factory):
    """The contents of an sdist."""
    backend = pytest.importorskip("scikit_build_core.build")

    def make(folder):
        code = f"from {backend.__name__} import build_sdist; print(build_sdist({str(folder)!r}))"
        name = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        shutil.unpack_archive(folder / name, folder)
        (folder / name).unlink()

    (tree,) = made_once(tmp_path_factory, "sdist", make).iterdir()
    return tree


# The build's own tools are next to Python, and may be newer than the system's.
TOOLS = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))


def configure(source, build, **environment):
    """Run CMake for the kernels alone, with `import ziglang` failing."""
    missing = build.parent / "missing"
    missing.mkdir(exist_ok=True)
    (missing / "ziglang.py").write_text("raise ImportError\n")
    command = [
        shutil.which("cmake", path=TOOLS),
        "-S",
        source,
        "-B",
        build,
        "-DHIPKITTENS_HOST=OFF",
        f"-DPython_EXECUTABLE={sys.executable}",
    ]
    return subprocess.run(
        command,
        env={**os.environ, "PATH": TOOLS, "PYTHONPATH": str(missing), **environment},
        capture_output=True,
        text=True,
    )


needs_cmake = pytest.mark.skipif(not shutil.which("cmake", path=TOOLS), reason="no cmake on this machine")


@needs_cmake
def test_an_sdist_needs_no_device_compiler(source_tree, tmp_path):
    assert not list(source_tree.glob("hipkittens/lib/*"))
    done = configure(source_tree, tmp_path / "build")
    assert done.returncode == 0, done.stderr
    assert "the prebuilt packs, whose sources are those here" in done.stdout


@needs_cmake
@pytest.mark.parametrize("change", ["another source", "no packs", "a damaged pack", "a new variant"])
def test_packs_of_other_sources_are_refused(source_tree, tmp_path, change):
    source = tmp_path / "source"
    shutil.copytree(source_tree, source)
    pack = source / "hipkittens" / "_kernels" / "gfx950.hkpack"
    if change == "another source":
        with (source / "csrc" / "tiles" / "mask.h").open("a") as file:
            file.write("// changed\n")
        text = "was made from other sources than those here"
    elif change == "no packs":
        pack.unlink()
        text = "No such file"
    elif change == "a damaged pack":
        pack.write_bytes(pack.read_bytes()[:-1])
        text = "reinstall"
    else:
        rows = source / "csrc" / "kernels" / "rotary" / "variants.def"
        last = [line for line in rows.read_text().splitlines() if re.match(r"[A-Z_]+\(", line)][-1]
        rows.write_text(rows.read_text() + re.sub(r"\((\w+), \w+", r"(\1, another", last) + "\n")
        text = "has no rotary.another"
    done = configure(source, tmp_path / "build")
    complaint = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "pip install ziglang==0.17.0" in complaint and text in complaint


@pytest.mark.slow
def test_an_sdist_builds_in_isolation(source_tree, tmp_path):
    """pip creates the environment that [build-system] requests, from the package index. The host libraries are left out."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, source_tree]
    command += ["-C", "cmake.define.HIPKITTENS_HOST=OFF", "-C", "cmake.define.HIPKITTENS_KERNELS=PREBUILT"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("hipkittens-*-py3-none-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {
        "hipkittens/__init__.py",
        "hipkittens/py.typed",
        "hipkittens_command/__init__.py",
        "hipkittens/include/tiles/tiles.h",
        *(f"hipkittens/_kernels/{target}.hkpack" for target in TARGETS),
    } <= names
