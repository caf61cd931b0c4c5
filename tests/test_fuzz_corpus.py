# SPDX-License-Identifier: MIT
"""Every input that fuzzing kept, and every one that once caused a crash, through the fuzz targets again."""

import importlib.util
import shutil
import subprocess

import pytest

from fuzz import pack_reader
from tests.host_build import ROOT, SANITIZERS, build, sources_of
from tests.simulated_device import library_path

spec = importlib.util.spec_from_file_location("fuzz_tool", ROOT / "tools" / "fuzz.py")
tool = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tool)


def inputs(target, folder):
    """The committed corpus unpacked into `folder`, and the regression files next to it."""
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


# Replaces the loader: what a fuzz target would print and find, an input in the first run of a process and a crash in the next.
FAKE = """#!/bin/bash
echo "$*" >>"$(dirname "$0")/../arguments"
for word; do case $word in -artifact_prefix=*) crashes=${word#*=} ;; esac; done
echo "stat::number_of_executed_units: 40"
echo "stat::new_units_added: 3"
echo found >"${!#}/input-$$"
echo crashed >"$crashes/crash-$$"
sleep 1
"""


def test_what_another_machine_found_is_taken_in(tmp_path, monkeypatch):
    there, out, here = tmp_path / "there", tmp_path / "out", tmp_path / "here"
    (there / "lib").mkdir(parents=True)
    (there / "corpus" / "instruction_decoder").mkdir(parents=True)
    (there / "corpus" / "instruction_decoder" / "known").write_bytes(b"known")
    tool.write_options(there / "options")
    script = shutil.copy2(tool.FUZZ / "elsewhere.sh", there)
    loader = there / "lib" / "ld-linux-x86-64.so.2"
    loader.write_text(FAKE)
    loader.chmod(0o755)
    done = subprocess.run(
        [script, "instruction_decoder", "7", "2", out], capture_output=True, text=True, check=True
    )
    runs = len((there / "arguments").read_text().splitlines())
    assert runs >= 4 and f"{40 * runs} executions" in done.stdout and f"{runs} crashes" in done.stdout
    assert "-max_len=256 " in (there / "arguments").read_text()

    monkeypatch.setattr(tool, "RUNS", tmp_path / "runs.json")
    monkeypatch.setattr(tool, "build", lambda folder, target: [])
    monkeypatch.setattr(tool, "coverage", lambda *arguments: {"csrc/isa": [1, 2]})
    assert tool.take_in(here, "instruction_decoder", out) == 1
    entry = tool.read_runs()["instruction_decoder"]
    assert (entry["runs"], entry["executions"], entry["crashes"]) == (1, 40 * runs, runs)
    assert entry["corpus_found"] == runs + 1
    assert len(list((here / "crashes" / "instruction_decoder").iterdir())) == runs

    log = sorted((out / "logs" / "instruction_decoder").iterdir())[0]
    log.write_text(log.read_text().replace("processor seconds", ""))
    with pytest.raises(SystemExit, match="logs of runs that have not ended"):
        tool.take_in(here, "instruction_decoder", out)
