#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Gives a wheel the manylinux tag that its libraries allow, prints it, and refuses a wheel that does not serve every Python.

    python tools/tag_wheel.py dist/*.whl --into dist

auditwheel finds the oldest glibc and libstdc++ that provide every symbol the libraries need. torch's own libraries and
HIP's are the user's, and are not bundled. Exit code 1 for a wheel that is tied to a version of Python, is larger than
MAX_BYTES, or requires a newer glibc than NEWEST_GLIBC.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

MAX_BYTES = 20_000_000
NEWEST_GLIBC = (2, 34)  # provided by RHEL 9, Ubuntu 22.04 and later
NOT_OURS = ("libtorch*.so*", "libc10*.so*", "libamdhip64.so*")


def tag(wheel: Path, into: Path) -> Path:
    """Writes the wheel under its new name into `into`."""
    exclude = [word for pattern in NOT_OURS for word in ("--exclude", pattern)]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "auditwheel", "repair", *exclude, "--wheel-dir", folder, str(wheel)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        (tagged,) = Path(folder).glob("*.whl")
        into.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(tagged, into / tagged.name))


def objections(wheel: Path) -> list[str]:
    """Reasons why the wheel does not serve every version of Python and torch; empty if it does."""
    python, abi, platforms = wheel.stem.split("-")[-3:]
    found = []
    if (python, abi) != ("py3", "none"):
        found.append(f"it is for {python}-{abi}, not for py3-none")
    with zipfile.ZipFile(wheel) as archive:
        found += [f"{name} is made for one Python" for name in archive.namelist() if ".cpython-" in name]
    glibc = [tuple(map(int, pair)) for pair in re.findall(r"manylinux_(\d+)_(\d+)_", platforms)]
    if not glibc or min(glibc) > NEWEST_GLIBC:
        found.append(
            f"it is for {platforms}; manylinux_{NEWEST_GLIBC[0]}_{NEWEST_GLIBC[1]} is the newest allowed"
        )
    if wheel.stat().st_size > MAX_BYTES:
        found.append(f"it has {wheel.stat().st_size} bytes; {MAX_BYTES} are allowed")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--into", type=Path, help="folder for the result; default: beside the wheel")
    arguments = parser.parse_args()
    tagged = tag(arguments.wheel, arguments.into or arguments.wheel.parent)
    print(f"{tagged.name}: {tagged.stat().st_size / 1e6:.1f} MB")
    found = objections(tagged)
    for text in found:
        print(f"{tagged.name}: {text}", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
