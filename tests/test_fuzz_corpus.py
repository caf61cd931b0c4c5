# SPDX-License-Identifier: MIT
"""Every input that fuzzing kept, and every one that once crashed something, through the fuzz targets again."""

import importlib.util
import subprocess

import pytest

from fuzz import pack_reader
from tests.host_build import ROOT, SANITIZERS, build, sources_of
from tests.simulated_device import library_path

spec = importlib.util.spec_from_file_location("fuzz_tool", ROOT / "tools" / "fuzz.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def inputs(target, folder):
    """The committed corpus unpacked into `folder`, and the regression files beside it."""
    tool.unpack(tool.corpus_archive(target), folder)
    corpus = list(folder.iterdir())
    regressions = sorted((ROOT / "fuzz" / "regressions" / target).iterdir())
    assert len(corpus) > 10 and regressions
    return [*corpus, *regressions]


def replay(program, paths):
    done = subprocess.run([program, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    assert int(done.stdout) == len(paths)


@pytest.mark.parametrize(
    ("target", "module_name"), [("code_object_reader", "code_object"), ("instruction_decoder", "isa")]
)
def test_readers(tmp_path, target, module_name):
    sources = [*sources_of(module_name), f"fuzz/{target}.cpp", "fuzz/replay.cpp"]
    program = build(tmp_path / "replay", sources, "-O1", *SANITIZERS, f"-I{ROOT}")
    (tmp_path / "corpus").mkdir()
    replay(program, inputs(target, tmp_path / "corpus"))


def test_launches(tmp_path):
    library = library_path()
    sources = [*sources_of("code_object"), "fuzz/simulated_launch.cpp", "fuzz/replay.cpp"]
    program = build(
        tmp_path / "replay", [*sources, library], "-O1", f"-I{ROOT}", f"-Wl,-rpath,{library.parent}"
    )
    (tmp_path / "corpus").mkdir()
    replay(program, inputs("simulated_launch", tmp_path / "corpus"))


def test_packs(tmp_path):
    module = pack_reader.load_pack_module()
    for path in inputs("pack_reader", tmp_path):
        pack_reader.check(module, path.read_bytes())


def test_a_whole_pack_is_read():
    module = pack_reader.load_pack_module()
    for data in pack_reader.seeds().values():
        pack = module.Pack(pack_reader.PackBytes(pack_reader.pack_of(module, data)))
        assert pack.verify() == 1 and pack.entry("a_kernel")["name"] == "a"


def test_a_broken_promise_ends_the_replay(tmp_path):
    source = tmp_path / "target.cpp"
    source.write_text(
        '#include "fuzz/property.h"\n#include <cstdint>\n'
        'extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {\n'
        '    HIPKITTENS_PROPERTY(size == 0 || data[0] != 7, "a seven in %zu bytes", size);\n    return 0;\n}\n'
    )
    program = build(tmp_path / "replay", [source, "fuzz/replay.cpp"], f"-I{ROOT}")
    (tmp_path / "good").write_bytes(b"\6")
    (tmp_path / "bad").write_bytes(b"\7")
    replay(program, [tmp_path / "good"])
    done = subprocess.run([program, tmp_path / "good", tmp_path / "bad"], capture_output=True, text=True)
    assert (
        done.returncode != 0 and "a seven in 1 bytes" in done.stderr and str(tmp_path / "bad") in done.stderr
    )


def test_the_table_is_the_recorded_runs():
    assert tool.README.read_text() == tool.page_with_table(), "run tools/fuzz.py --table"
    assert set(tool.read_runs()) == set(tool.TARGETS)
    size = sum(path.stat().st_size for path in (ROOT / "fuzz" / "corpus").iterdir())
    assert size < 1 << 20
