# SPDX-License-Identifier: MIT
"""`hipkittens sim check`: runs a program with the simulator's checkers on and reports what they found."""

from __future__ import annotations

import json
import os
import sys
import tempfile

from . import _findings
from ._program import run_program, simulated_hip


def main(program: list[str], checks: str, as_json: bool, with_notes: bool) -> int:
    """The program's exit status if it is not 0, otherwise 1 if there are findings."""
    _findings.chosen(checks)  # refuses an invalid name before anything runs
    with tempfile.TemporaryDirectory() as folder, simulated_hip() as environment:
        path = os.path.join(folder, "findings.json")
        environment |= {"HIPKITTENS_CHECKS": checks, "HIPKITTENS_CHECKS_FILE": path}
        status = run_program(program, environment, output_to_stderr=as_json)
        found = []
        was_checked = os.path.exists(path)
        if was_checked:
            with open(path) as file:
                found = _findings.merged(_findings.from_json(file.read()))
    errors, notes = _findings.errors(found), _findings.notes(found)
    if as_json:
        rows = {"findings": errors, "notes": notes}
        json.dump(
            {"exit_status": status} | {name: [row.to_dict() for row in part] for name, part in rows.items()},
            sys.stdout,
            indent=2,
        )
        print()
    else:
        for finding in [*errors, *(notes if with_notes else ())]:
            print(finding)
        print(
            f"hipkittens: {len(errors)} findings, {len(notes)} notes; the program ended with status {status}"
            + ("" if was_checked else "; no launch of it was checked")
        )
    return status or int(bool(errors))
