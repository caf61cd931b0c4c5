#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the lists of operations in README.md and docs/api.md, between the comments that name this file.

With --check it writes nothing, and fails if a committed list is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable
from pathlib import Path

from hipkittens import operations
from hipkittens.operations._markdown import table

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- tools/operation_lists.py -->", "<!-- end -->"


def functions() -> list[Callable[..., object]]:
    return [each.function for operation in operations.every() for each in operation.functions]


def summary(function: Callable[..., object]) -> str:
    """The first sentence of the function's docstring; if that is long, the part before a semicolon or a colon."""
    paragraph = " ".join(inspect.getdoc(function).partition("\n\n")[0].split())
    sentence = re.split(r"(?<=[^.\s])\. (?=[A-Z`])", paragraph)[0]
    while len(sentence) > 160 and (shorter := re.match(r"(.*)[;:] ", sentence)):
        sentence = shorter[1]
    return sentence.rstrip(".:;")


def readme() -> str:
    body = []
    for function in functions():
        body.append([f"`hipkittens.{function.__name__}`", summary(function).replace("|", "\\|")])
    return table(["function", ""], body)


def api() -> str:
    return "".join(f"::: hipkittens.{function.__name__}\n" for function in functions())


LISTS = {ROOT / "README.md": readme, ROOT / "docs" / "api.md": api}


def written(path: Path) -> str:
    """The file with its list up to date."""
    text, count = re.subn(
        f"(?<={re.escape(BEGIN)}\n).*?(?={re.escape(END)})",
        lambda _: f"\n{LISTS[path]()}\n",
        path.read_text(),
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{path.name} has {count} lists between {BEGIN} and {END}; it needs one")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if a committed list is another")
    check = parser.parse_args().check
    for path in LISTS:
        if not check:
            path.write_text(written(path))
        elif path.read_text() != written(path):
            raise SystemExit(f"{path.relative_to(ROOT)} is out of date: run tools/operation_lists.py")


if __name__ == "__main__":
    main()
