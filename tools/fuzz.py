# SPDX-License-Identifier: MIT
"""Builds and runs one fuzz target with libFuzzer, starting from the committed corpus, and records the run.

    python tools/fuzz.py simulated_launch --seconds 900     # fuzz; a crash is kept, and ends the run
    python tools/fuzz.py simulated_launch --minimise        # rebuild the committed corpus from everything that was found
    python tools/fuzz.py --table                            # fuzz/README.md's table from fuzz/runs.json
    python tools/fuzz.py simulated_launch --portable DIR    # what fuzz/elsewhere.sh needs on a machine without a compiler
    python tools/fuzz.py simulated_launch --from OUT        # import the inputs and counts of a run of fuzz/elsewhere.sh

Inputs that were found, and crashes, stay in build-fuzz/. See fuzz/README.md for the rest.
"""

from __future__ import annotations

import argparse
import datetime
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "fuzz"
RUNS = FUZZ / "runs.json"
README = FUZZ / "README.md"
BEGIN, END = "<!-- table: tools/fuzz.py --table -->\n", "<!-- end of table -->\n"
# target: (longest input in bytes, the sources whose basic blocks count as its coverage)
TARGETS = {
    "code_object_reader": (32768, ("csrc/code_object/",)),
    "instruction_decoder": (256, ("csrc/isa/",)),
    "simulated_launch": (16384, ("csrc/simulator/", "csrc/isa/", "csrc/code_object/")),
    "pack_reader": (4096, ()),  # Python: atheris counts
}
OPTIONS = {
    # A size that a damaged file requests is refused by the allocator, as when memory is exhausted, and must become an error.
    "ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1:max_allocation_size_mb=4096",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",  # so that libFuzzer detects it, and keeps the input
}


def build(folder: Path, target: str) -> list[str]:
    """Builds the target and returns the command that starts it."""
    if target == "pack_reader":
        return [sys.executable, str(FUZZ / "pack_reader.py")]
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *launcher, f"-DPython_EXECUTABLE={sys.executable}",
         "-DHIPKITTENS_KERNELS=OFF", "-DHIPKITTENS_TORCH=OFF", "-DHIPKITTENS_HOST_LEVELS=avx2", "-DHIPKITTENS_FUZZ=ON",
         "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1", "-DHIPKITTENS_SANITIZE=address;undefined",
         f"-DHIPKITTENS_OUTPUT_DIR={folder / 'hipkittens'}"],
        check=True, stdout=subprocess.DEVNULL,
        env=os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"})  # fmt: skip
    subprocess.run(["cmake", "--build", folder, "--target", target], check=True)
    return [str(folder / target)]


def corpus_archive(target: str) -> Path:
    return FUZZ / "corpus" / f"{target}.tar.xz"


def unpack(archive: Path, folder: Path) -> None:
    if archive.exists():
        with tarfile.open(archive) as source:
            for member in source:
                (folder / Path(member.name).name).write_bytes(source.extractfile(member).read())


def pack(folder: Path, archive: Path) -> int:
    """Packs all files of `folder` into an archive that depends on nothing else; returns how many."""
    archive.parent.mkdir(exist_ok=True)
    # By size, then name: inputs derived from one another are then close together.
    paths = sorted(folder.iterdir(), key=lambda path: (path.stat().st_size, path.name))
    with tarfile.open(archive, "w:xz", preset=9) as out:
        for path in paths:
            member = tarfile.TarInfo(path.name)
            member.size = path.stat().st_size
            out.addfile(member, io.BytesIO(path.read_bytes()))
    return len(paths)


def basic_blocks(program: Path, sources: tuple[str, ...]) -> dict[int, str]:
    """The address at which each instrumented block of a program or library reports itself, with the file of `sources` it is from."""
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", program], capture_output=True, text=True, check=True
    )
    # The address in the report is the return address: the instruction after the call.
    calls = re.findall(r"call .*<__sanitizer_cov_trace_pc(?:@plt)?>\n\s*([0-9a-f]+):", text.stdout)
    lines = subprocess.run(
        ["addr2line", "-a", "-i", "-e", program],
        input="\n".join(f"{int(address, 16) - 1:x}" for address in calls),
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    found: dict[int, str] = {}
    address = 0
    for line in lines.splitlines():
        if re.fullmatch(r"0x[0-9a-f]+", line):
            address = int(line, 16) + 1
        elif address not in found and (at := line.find("csrc/")) >= 0:
            source = line[at:].split(":")[0]
            if source.startswith(sources):
                found[address] = source
    return found


def coverage(folder: Path, command: list[str], target: str, corpus: Path) -> dict[str, list[int]]:
    """Blocks reached when all of `corpus` runs, and the total number of blocks, by folder."""
    sources = TARGETS[target][1]
    if not sources:
        return {}
    seen_path = folder / f"{target}.blocks"
    subprocess.run(
        [*command, "-runs=0", "-timeout=60", "-rss_limit_mb=4096", "-detect_leaks=0", corpus],
        env=os.environ | OPTIONS | {"HIPKITTENS_FUZZ_BLOCKS": str(seen_path)}, capture_output=True,
    )  # fmt: skip
    seen: dict[str, set[int]] = {"0": set(), "1": set()}
    for line in seen_path.read_text().splitlines():
        module, address = line.split()
        seen[module].add(int(address, 16))
    programs = [folder / target]
    if target == "simulated_launch":
        # The target's own copies of isa and code_object, used for mutations, do not count: the library's do.
        programs = [folder / "hipkittens" / "lib" / "libhipkittens_simulator.so"]
    result: dict[str, list[int]] = {}
    for program in programs:
        visited = seen["0" if program.name == target else "1"]
        for address, source in basic_blocks(program, sources).items():
            counts = result.setdefault("/".join(source.split("/")[:2]), [0, 0])
            counts[0] += address in visited
            counts[1] += 1
    return dict(sorted(result.items()))


def processor_seconds() -> float:
    """Processor time of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def number(pattern: str, text: str) -> int:
    found = re.findall(pattern, text)
    return int(found[-1]) if found else 0


def fuzz(folder: Path, target: str, seconds: int, extra: list[str]) -> int:
    command = build(folder, target)
    corpus, crashes = folder / "corpus" / target, folder / "crashes" / target
    for path in (corpus, crashes):
        path.mkdir(parents=True, exist_ok=True)
    unpack(corpus_archive(target), corpus)
    subprocess.run([sys.executable, FUZZ / "seeds.py", target, corpus], check=True)
    before = {path.name for path in crashes.iterdir()}
    begin = processor_seconds()
    process = subprocess.Popen(
        [*command, f"-max_total_time={seconds}", f"-max_len={TARGETS[target][0]}", "-timeout=60", "-rss_limit_mb=4096",
         "-print_final_stats=1", "-reload=0", f"-artifact_prefix={crashes}{os.sep}", *extra, corpus],
        env=os.environ | OPTIONS, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, errors="replace")  # fmt: skip
    lines = []
    for line in process.stdout:
        lines.append(line)
        if not re.match(r"#\d+\s+(NEW|REDUCE)|\t?NEW_FUNC|###### |\"", line):
            print(line, end="", flush=True)
    process.wait()
    text = "".join(lines)
    # Slow inputs are kept there too; they are not crashes.
    new = sorted(
        path.name
        for path in crashes.iterdir()
        if path.name not in before and not path.name.startswith("slow-unit")
    )
    run = {
        "processor_seconds": round(processor_seconds() - begin),
        "executions": number(r"stat::number_of_executed_units: +(\d+)", text) or number(r"#(\d+)", text),
        "new_inputs": number(r"stat::new_units_added: +(\d+)", text),
        "crashes": len(new),
    }
    covered = coverage(folder, command, target, corpus) or {"edges": number(r"\bcov: (\d+)", text)}
    write_down(target, run, covered, corpus, [crashes / name for name in new])
    return 1 if new else 0


def write_down(target: str, run: dict, covered: dict, corpus: Path, crashes: list[Path]) -> None:
    run["executions_per_second"] = round(run["executions"] / max(run["processor_seconds"], 1))
    record = read_runs()
    entry = record.setdefault(
        target,
        {"runs": 0, "executions": 0, "processor_seconds": 0, "crashes": 0, "coverage": {}, "corpus": 0},
    )
    entry["runs"] += 1
    for key in ("executions", "processor_seconds", "crashes"):
        entry[key] += run[key]
    entry["corpus_found"] = len(list(corpus.iterdir()))
    entry["coverage"] = covered
    entry["last"] = datetime.date.today().isoformat()
    write_runs(record)
    print(f"\n{target}: " + ", ".join(f"{value:,} {key.replace('_', ' ')}" for key, value in run.items()))
    print("coverage: " + coverage_text(entry["coverage"]))
    for path in crashes:
        print(f"CRASH: {path}; fix it, and keep it as fuzz/regressions/{target}/WHAT_IT_WAS")


def portable(folder: Path, target: str, into: Path) -> None:
    """Copies the target, its libraries including the C library, its corpus, and fuzz/elsewhere.sh, which runs it."""
    (program,) = build(folder, target)
    corpus = into / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    (into / "lib").mkdir(exist_ok=True)
    own = folder / "hipkittens" / "lib"
    listed = subprocess.run(
        ["ldd", program], env=os.environ | {"LD_LIBRARY_PATH": str(own)}, capture_output=True, text=True, check=True
    )  # fmt: skip
    libraries = re.findall(r"(/\S+) \(0x", listed.stdout)
    for source, there in [(program, into), *((library, into / "lib") for library in libraries)]:
        shutil.copy2(source, there)
        if str(source).startswith(str(folder)):  # crashes are analyzed on this machine, with source lines
            subprocess.run(["strip", "--strip-debug", there / Path(source).name], check=True)
    unpack(corpus_archive(target), corpus)
    for known in (FUZZ / "regressions" / target).iterdir():
        shutil.copy(known, corpus)
    subprocess.run([sys.executable, FUZZ / "seeds.py", target, corpus], check=True)
    shutil.copy2(FUZZ / "elsewhere.sh", into)
    write_options(into / "options")


def write_options(path: Path) -> None:
    """Writes the options that fuzz() uses, in a form that fuzz/elsewhere.sh reads."""
    lines = [f"longest_{name}={length}" for name, (length, _) in TARGETS.items()]
    lines += [f"export {name}={text}" for name, text in OPTIONS.items()]
    path.write_text("\n".join(lines) + "\n")


def take_in(folder: Path, target: str, out: Path) -> int:
    """Imports the inputs, crashes and counts of fuzz/elsewhere.sh as one run."""
    command = build(folder, target)
    logs = [path.read_text(errors="replace") for path in sorted((out / "logs" / target).iterdir())]
    times = [re.findall(r"^processor seconds: (\S+) (\S+)$", log, re.M) for log in logs]
    if not logs or not all(times):
        sys.exit(f"{out / 'logs' / target}: logs of runs that have not ended")
    for kind in ("corpus", "crashes"):
        (folder / kind / target).mkdir(parents=True, exist_ok=True)
        for path in (out / kind / target).iterdir():
            shutil.copy(path, folder / kind / target)
    corpus = folder / "corpus" / target
    found = sorted((out / "crashes" / target).iterdir())
    crashes = [path for path in found if not path.name.startswith("slow-unit")]
    run = {
        "processor_seconds": round(sum(float(word) for time in times for word in time[-1])),
        "executions": sum(number(r"stat::number_of_executed_units: +(\d+)", log) for log in logs),
        "new_inputs": sum(number(r"stat::new_units_added: +(\d+)", log) for log in logs),
        "crashes": len(crashes),
    }
    write_down(target, run, coverage(folder, command, target, corpus), corpus, crashes)
    return 1 if crashes else 0


def minimise(folder: Path, target: str) -> None:
    command = build(folder, target)
    found, kept = folder / "corpus" / target, folder / "minimised" / target
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    found.mkdir(parents=True, exist_ok=True)
    unpack(corpus_archive(target), found)
    subprocess.run([*command, "-merge=1", f"-max_len={TARGETS[target][0]}", "-timeout=60", "-rss_limit_mb=4096", kept, found],
                   env=os.environ | OPTIONS, check=True, stderr=subprocess.DEVNULL)  # fmt: skip
    if not any(kept.iterdir()):
        sys.exit("the merge kept no input: the target did not start")
    count = pack(kept, corpus_archive(target))
    record = read_runs()
    if target in record:
        record[target]["corpus"] = count
        write_runs(record)
    print(f"{corpus_archive(target)}: {count} inputs, {corpus_archive(target).stat().st_size:,} bytes")


def read_runs() -> dict:
    return json.loads(RUNS.read_text()) if RUNS.exists() else {}


def write_runs(record: dict) -> None:
    RUNS.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")


def coverage_text(folders: dict) -> str:
    parts = []
    for folder, count in folders.items():
        if isinstance(count, list):
            parts.append(f"{folder} {count[0] / count[1]:.0%} of {count[1]:,} blocks")
        else:
            parts.append(f"{count:,} {folder}")
    return ", ".join(parts)


def table() -> str:
    lines = [
        "| target | executions | processor minutes | executions a second | crashes found | corpus | coverage |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for target, entry in read_runs().items():
        lines.append(
            f"| {target} | {entry['executions']:,} | {entry['processor_seconds'] / 60:,.0f} | "
            f"{entry['executions'] / max(entry['processor_seconds'], 1):,.0f} | {entry['crashes']} | {entry['corpus']:,} | "
            f"{coverage_text(entry['coverage'])} |"
        )
    return "\n".join(lines) + "\n"


def page_with_table() -> str:
    before, rest = README.read_text().split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=TARGETS, nargs="?")
    parser.add_argument("--seconds", type=int, default=60, help="of fuzzing (default: %(default)s)")
    parser.add_argument("--minimise", action="store_true", help="write the committed corpus anew")
    parser.add_argument("--portable", type=Path, metavar="DIR", help="write what another machine needs")
    parser.add_argument(
        "--from", type=Path, metavar="OUT", dest="out", help="take in what another machine found"
    )
    parser.add_argument(
        "--table", action="store_true", help="write the table of fuzz/README.md; needs no target"
    )
    parser.add_argument("--build-folder", type=Path, default=ROOT / "build-fuzz")
    parser.add_argument("options", nargs="*", help="for libFuzzer, behind --")
    arguments = parser.parse_intermixed_args()
    if not arguments.target and not arguments.table:
        parser.error("name a target, or --table")
    folder = arguments.build_folder.resolve()
    status = 0
    if arguments.target == "pack_reader" and (arguments.portable or arguments.out):
        parser.error("pack_reader needs Python and atheris; --portable and --from are for programs")
    if arguments.target and arguments.minimise:
        minimise(folder, arguments.target)
    elif arguments.target and arguments.portable:
        portable(folder, arguments.target, arguments.portable)
    elif arguments.target and arguments.out:
        status = take_in(folder, arguments.target, arguments.out)
    elif arguments.target:
        status = fuzz(folder, arguments.target, arguments.seconds, arguments.options)
    if README.exists():
        README.write_text(page_with_table())
    return status


if __name__ == "__main__":
    sys.exit(main())
