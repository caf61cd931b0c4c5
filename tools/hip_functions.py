#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the table of HIP functions in docs/hip_programs.md, from the functions that csrc/simulator exports.

With --check it writes nothing, and fails if the committed table is out of date.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hipkittens.operations._markdown import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "hip_programs.md"
BEGIN, END = "<!-- tools/hip_functions.py -->", "<!-- end -->"
_FUNCTION = re.compile(r"HIPKITTENS_EXPORT\s+[\w\s*]+?[\s*](\w*hip[A-Z]\w+)\(")


def functions() -> dict[str, list[str]]:
    """The functions in each source, by the description that the source gives of them."""
    found = {}
    for path in sorted((ROOT / "csrc" / "simulator").glob("hip_*.cpp")):
        text = path.read_text()
        if names := _FUNCTION.findall(text):
            about = re.match(r"// \S+: (.*)", text)[1].removesuffix(".")
            found[re.sub("^HIP's functions? (that |for )?", "", about)] = sorted(set(names), key=str.lower)
    return found


def written() -> str:
    """The page with its table up to date."""
    rows = [[about, ", ".join(f"`{name}`" for name in names)] for about, names in functions().items()]
    return re.sub(
        f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})",
        lambda _: f"\n{table(['', 'functions'], rows)}\n",
        PAGE.read_text(),
        flags=re.S,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the committed table is another")
    if not parser.parse_args().check:
        PAGE.write_text(written())
    elif PAGE.read_text() != written():
        raise SystemExit(f"{PAGE.relative_to(ROOT)} is out of date: run tools/hip_functions.py")


if __name__ == "__main__":
    main()
