# SPDX-License-Identifier: MIT
"""Runs tests with host libraries that are built with a sanitizer of g++.

    python tools/sanitized_tests.py address tests/isa tests/simulator -q
    python tools/sanitized_tests.py thread tests/simulator/test_concurrent_launches.py

`address` is AddressSanitizer with UndefinedBehaviorSanitizer, `undefined` the latter alone, `thread` ThreadSanitizer.
All further arguments are passed to pytest. The sanitized libraries, and a copy of the tree that imports them, are
in build-sanitized/NAME; the checkout's own libraries are not changed, and its kernel packs are used. The native probes
that tests compile are sanitized too (tests/host_build.py).

A sanitizer report fails the run, even if the test that caused it does not check for one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {"address": "address;undefined", "undefined": "undefined", "thread": "thread"}
RUNTIMES = {
    "address": ("libasan.so", "libubsan.so"),
    "undefined": ("libubsan.so",),
    "thread": ("libtsan.so",),
}
# AddressSanitizer looks for __cxa_throw when it starts; without libstdc++ loaded, the first exception ends it.
ALSO_PRELOADED = ("libstdc++.so.6",)
# Leaks are not checked here: the stack of a block that Python's own modules never free looks like that of one of ours, which they
# call. The fuzz targets and their replay check for leaks, in programs that contain only our code.
OPTIONS = {
    "address": {
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:strict_string_checks=1:detect_stack_use_after_return=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
    },
    "undefined": {"UBSAN_OPTIONS": "print_stacktrace=1"},
    "thread": {"TSAN_OPTIONS": "history_size=4"},
}
# Thread-local variables of a library opened with dlopen: when another thread reuses the stack of one that has ended, glibc frees
# them, ordered by an internal lock that ThreadSanitizer does not see.
THREAD_SUPPRESSIONS = "race:_dl_deallocate_tls\n"


def run(*command: str | Path, **options) -> None:
    subprocess.run([str(word) for word in command], check=True, **options)


def compiler_file(name: str) -> str:
    path = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    if os.sep not in path.stdout:
        sys.exit(f"g++ has no {name}: install its sanitizer libraries")
    return path.stdout.strip()


def copy_tree(tree: Path) -> None:
    """Copies the files that git tracks or does not ignore, where the tests find the sanitized package next to them."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    ).stdout.decode().split("\0")  # fmt: skip
    for folder in ("csrc", "tests", "tools", "benchmarks", "fuzz"):
        shutil.rmtree(tree / folder, ignore_errors=True)
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    packs = tree / "hipkittens" / "_kernels"
    if not packs.exists():
        packs.symlink_to(ROOT / "hipkittens" / "_kernels")


def build(name: str, folder: Path, tree: Path, host_level: str) -> None:
    launcher = ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
    # One host level and -O1: otherwise half an hour of compilation, for code that differs in instructions only.
    run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *launcher, f"-DPython_EXECUTABLE={sys.executable}",
        "-DHIPKITTENS_KERNELS=OFF", f"-DHIPKITTENS_HOST_LEVELS={host_level}", "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-O1", f"-DHIPKITTENS_SANITIZE={SANITIZERS[name]}",
        f"-DHIPKITTENS_OUTPUT_DIR={tree / 'hipkittens'}",
        env=os.environ | {"CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1"})  # fmt: skip
    run("cmake", "--build", folder)


def environment(name: str, tree: Path, report: Path) -> dict[str, str]:
    preload = [compiler_file(library) for library in (*RUNTIMES[name], *ALSO_PRELOADED)]
    result = os.environ | {
        "LD_PRELOAD": ":".join(preload),
        "PYTHONPATH": str(tree),
        "SANITIZE_HOST_BUILDS": SANITIZERS[name].replace(";", ","),
    }
    # Reports go to files, since pytest captures what a test prints, and a finding ends the process. Together with AddressSanitizer, which
    # has functions of the same names, UndefinedBehaviorSanitizer writes to stderr regardless of its log_path: main() searches there.
    for variable, text in OPTIONS[name].items():
        result[variable] = f"{text}:log_path={report}"
    if name == "thread":
        suppressions = tree.parent / "suppressions"
        suppressions.write_text(THREAD_SUPPRESSIONS)
        result["TSAN_OPTIONS"] += f":suppressions={suppressions}"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("sanitizer", choices=SANITIZERS)
    parser.add_argument(
        "--host-level",
        default="portable",
        help="the level that is built (default: %(default)s, which tests ask for)",
    )
    parser.add_argument("--build-folder", type=Path, help="default: build-sanitized/SANITIZER")
    arguments, pytest_arguments = parser.parse_known_args()

    folder = (arguments.build_folder or ROOT / "build-sanitized" / arguments.sanitizer).resolve()
    tree, reports = folder / "tree", folder / "reports"
    copy_tree(tree)
    build(arguments.sanitizer, folder, tree, arguments.host_level)
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    # ThreadSanitizer's shadow memory needs the addresses that a process has without randomization.
    unrandomised = ["setarch", "-R"] if arguments.sanitizer == "thread" and shutil.which("setarch") else []
    stderr = reports / "stderr"
    with stderr.open("wb") as stream:
        status = subprocess.run(
            [*unrandomised, sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--capture=sys",
             *pytest_arguments],
            cwd=tree, env=environment(arguments.sanitizer, tree, reports / "report"), stderr=stream,
        ).returncode  # fmt: skip
    if b"runtime error:" not in stderr.read_bytes():
        print(stderr.read_text(errors="replace"), end="", file=sys.stderr)
        stderr.unlink()
    found = sorted(reports.iterdir())
    for path in found:
        print(f"\n== {path}\n{path.read_text(errors='replace')}", flush=True)
    print(f"{len(found)} sanitizer reports; pytest ended with {status}")
    return 1 if found else status


if __name__ == "__main__":
    sys.exit(main())
