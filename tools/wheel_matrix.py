#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests one built wheel with several versions of torch and Python, and writes docs/wheel_matrix.md.

    python tools/wheel_matrix.py dist/hipkittens-*.whl --scratch DIR [--torch 2.10.0] [--python 3.12]

Each combination gets a virtual environment below DIR, installed from the wheel and the package index, in which
tools/wheel_probe.py runs; afterwards it is removed. The report of each combination is kept in DIR as JSON, so that an interrupted
run can resume. PyPI's torch for Linux is a CUDA build, which needs NVIDIA's libraries to be imported even without a
GPU: they are installed once per version of torch, and linked. DIR needs 15 GB.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "wheel_matrix.md"
TORCHES = ("2.10.0", "2.13.0", "2.15.0")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
# Packages that torch imports besides NVIDIA's libraries, and that hipkittens needs besides torch.
PURE = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "setuptools", "rich")


class NotRun(Exception):
    """Why a combination could not be tried."""


def interpreter(version: str) -> Path:
    """An installed Python of that version, from the PATH or from pyenv."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin"))
    for folder in folders:
        python = folder / f"python{version}"
        if (
            python.exists()
            and subprocess.run([python, "-c", "import venv"], capture_output=True).returncode == 0
        ):
            return python
    raise NotRun(f"no Python {version} on the machine")


def pip(*words: str | Path, python: Path | None = None) -> str:
    where = ["--python", str(python)] if python else []
    command = [sys.executable, "-m", "pip", *where, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise NotRun(_reason(done.stderr))
    return done.stdout


def _reason(complaint: str) -> str:
    if "Requires-Python" in complaint or "No matching distribution" in complaint:
        return "PyTorch publishes no wheel of this version for this Python"
    return complaint.strip().splitlines()[-1]


def gpu_libraries(torch: str, python: Path, scratch: Path) -> Path:
    """A folder with the NVIDIA libraries that this build of torch requires."""
    folder = scratch / f"runtime-{torch}"
    if not folder.exists():
        from_metadata = "import importlib.metadata as m; print('\\n'.join(m.requires('torch') or []))"
        required = subprocess.run(
            [python, "-c", from_metadata], capture_output=True, text=True, check=True
        ).stdout
        names = [line for line in required.splitlines() if re.match("nvidia-|cuda-toolkit", line)]
        if not names:
            return folder
        partial = folder.with_suffix(".partial")
        pip("install", "--quiet", "--no-compile", "--target", partial, *names)
        partial.rename(folder)
    return folder


def try_combination(wheel: Path, torch: str, version: str, scratch: Path, cases: int) -> dict[str, Any]:
    """The report of tools/wheel_probe.py."""
    environment = scratch / f"torch-{torch}-python-{version}"
    shutil.rmtree(environment, ignore_errors=True)
    try:
        subprocess.run([interpreter(version), "-m", "venv", "--without-pip", environment], check=True)
        python = environment / "bin" / "python"
        pip("install", "--quiet", "--no-compile", "--no-deps", f"torch=={torch}", python=python)
        pip("install", "--quiet", "--no-compile", *PURE, python=python)
        (packages,) = (environment / "lib").glob("python3.*/site-packages")
        libraries = gpu_libraries(torch, python, scratch)
        if (libraries / "nvidia").exists():
            (packages / "nvidia").symlink_to(libraries / "nvidia")
        pip("install", "--quiet", "--no-deps", wheel, python=python)
        probe = [python, ROOT / "tools" / "wheel_probe.py", "--cases", str(cases)]
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HIPKITTENS", "PYTHON"))
        }
        done = subprocess.run(probe, capture_output=True, text=True, cwd=scratch, env=clean)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1]}
        return json.loads(done.stdout)
    finally:
        shutil.rmtree(environment, ignore_errors=True)


def good(report: dict[str, Any]) -> bool:
    return (
        "failed" not in report
        and report["parity"]["passed"] == report["parity"]["results"]
        and set(report["opcheck"].values()) == {"SUCCESS"}
        and report["compile"]["ok"]
        and report["doctor"] != "broken"
    )


def _row(torch: str, version: str, report: dict[str, Any]) -> str:
    wheel = f"`{report['wheel'][:8]}`"
    if "not_run" in report:
        return f"| {torch} | {version} | not run: {report['not_run']} | | | | |"
    if "failed" in report:
        return f"| {torch} | {version} | **failed**: {report['failed']} | | | | {wheel} |"
    parity, opcheck, compiled = report["parity"], report["opcheck"], report["compile"]
    success = sum(result == "SUCCESS" for result in opcheck.values())
    step = "ok" if compiled["ok"] else f"**{compiled.get('error', 'differs from eager')}**"
    return (
        f"| {report['torch']} | {report['python']} | {parity['passed']} of {parity['results']}, worst {parity['worst']:.2f} "
        f"| {success} of {len(opcheck)} | {step} | {report['doctor']} | {wheel} |"
    )


def page(wheel: Path, digest: str, reports: dict[tuple[str, str], dict[str, Any]]) -> str:
    run = {key: report for key, report in reports.items() if "not_run" not in report}
    cases = {report["parity"]["cases"] for report in run.values() if "failed" not in report}
    rows = [_row(*key, report) for key, report in reports.items()]
    return f"""# One wheel for all torch and Python versions

*Written by `python tools/wheel_matrix.py`; do not edit.*

`{wheel.name}` ({wheel.stat().st_size / 1e6:.1f} MB, sha256 `{digest[:8]}...`), installed into a fresh virtual environment for
each row. {sum(map(good, run.values()))} of the {len(run)} combinations that were run passed.

| torch | Python | parity with PyTorch | opcheck | compiled step | doctor | wheel |
|---|---|---|---|---|---|---|
{chr(10).join(rows)}

* **parity**: {" or ".join(map(str, sorted(cases)))} cases of `benchmarks/parity.py`, spread evenly over the covering array of every
  operation on both targets; the number of tensors (outputs and gradients) whose error relative to float64 is at
  most twice that of the same torch version in the same dtype, and the worst ratio.
* **opcheck**: operators of `torch.ops.hipkittens` that pass all of `torch.library.opcheck`.
* **compiled step**: a block of layer_norm, linear, attention and rms_norm, forward and backward, under
  `torch.compile(fullgraph=True, dynamic=True)` with inductor, for two lengths, compared with eager.
* **doctor**: the result of `hipkittens doctor`. The machine had no AMD GPU.
* **wheel**: the first digits of the sha256 of the wheel tested in this row; if they differ from those above, it is an earlier build.
* torch from PyPI is a CUDA build (`+cu...`) or a CPU build (`+cpu`). No ROCm build of torch has been tested: PyPI has none.
"""


def kept_report(
    folder: Path, torch: str, version: str, digest: str, *, any_wheel: bool
) -> dict[str, Any] | None:
    """The report of a combination for this wheel or, with any_wheel, for the wheel it was last tried with."""
    files = sorted(folder.glob(f"*-{torch}-{version}.json"), key=lambda path: path.stat().st_mtime)
    reports = [json.loads(path.read_text()) for path in files]
    of_this = [report for report in reports if report["wheel"] == digest]
    return next(iter([*of_this, *(reversed(reports) if any_wheel else ())]), None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--torch", choices=TORCHES, action="append", help="default: all of them")
    parser.add_argument("--python", choices=PYTHONS, action="append", help="default: all of them")
    parser.add_argument("--cases", type=int, default=8, help="parity cases of each operation and target")
    parser.add_argument(
        "--page-only", action="store_true", help="run nothing; write the page from earlier reports"
    )
    arguments = parser.parse_args()
    wheel, scratch = arguments.wheel.resolve(), arguments.scratch.resolve()
    scratch.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    reports = {}
    for torch in arguments.torch or TORCHES:
        for version in arguments.python or PYTHONS:
            report = kept_report(scratch, torch, version, digest, any_wheel=arguments.page_only)
            if report is None and arguments.page_only:
                report = {"wheel": digest, "not_run": "not tried yet"}
            elif report is None:
                try:
                    report = try_combination(wheel, torch, version, scratch, arguments.cases)
                except NotRun as reason:
                    report = {"not_run": str(reason)}
                report["wheel"] = digest
                (scratch / f"{digest[:16]}-{torch}-{version}.json").write_text(json.dumps(report, indent=1))
            reports[torch, version] = report
            print(_row(torch, version, report), flush=True)
    if not (arguments.torch or arguments.python):
        PAGE.write_text(page(wheel, digest, reports))
    return int(not all(good(report) for report in reports.values() if "not_run" not in report))


if __name__ == "__main__":
    raise SystemExit(main())
