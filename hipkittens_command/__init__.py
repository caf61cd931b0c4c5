# SPDX-License-Identifier: MIT
"""The program `hipkittens`. A package of its own, so that it can explain why `import hipkittens` fails when it does."""

from __future__ import annotations

import json
import platform
import sys


def main() -> int:
    """The command line of hipkittens.cli; or, when that cannot be imported, the reason, and 1."""
    try:
        from hipkittens.cli import main as command_line
    except (ImportError, ValueError) as error:
        return _explain(error, sys.argv[1:])
    return command_line()


def _explain(error: Exception, arguments: list[str]) -> int:
    if arguments[:1] != ["doctor"]:
        print(f"hipkittens: {error}", file=sys.stderr)
        return 1
    facts = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "torch": _torch(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, glibc {platform.libc_ver()[1]}",
    }
    if "--json" in arguments:
        finding = {"subject": "import", "status": "problem", "text": str(error), "remedy": ""}
        report = {"verdict": "broken", "text": f"BROKEN: {error}", "facts": facts, "findings": [finding]}
        print(json.dumps(report, indent=2))
    else:
        for name, value in facts.items():
            print(f"{name:<8} {value}")
        print(f"BROKEN: {error}")
    return 1


def _torch() -> str:
    """Its version and place without importing it."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        found = distribution("torch")
    except PackageNotFoundError:
        return "not installed"
    return f"{found.version}, {found.locate_file('torch')}"
