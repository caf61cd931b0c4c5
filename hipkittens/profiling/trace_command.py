# SPDX-License-Identifier: MIT
"""`hipkittens trace`: a timeline of an operation, or of a launch of a program, in the cycle model."""

from __future__ import annotations

import argparse
import json
import sys

from .. import _timing
from .._output_file import require_writable
from . import options
from .bench import modelled_launches
from .model_error import error_of
from .program import modelled_program
from .timeline import trace, write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_or_program(parser, "trace")
    parser.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="file for ui.perfetto.dev (.json or .json.gz)"
    )
    parser.add_argument(
        "--compute-units",
        type=int,
        default=1,
        metavar="N",
        help="number of compute units of XCD 0 whose events are kept (default 1)",
    )
    parser.add_argument(
        "--launch",
        type=int,
        default=0,
        metavar="I",
        help="index of the launch, if there are several (default 0)",
    )


def main(arguments: argparse.Namespace) -> int:
    device, of_operation = options.device(arguments), options.names_operation(arguments)
    problem = options.problem(arguments) if of_operation else None
    most = next(row["value"] for row in _timing.parameters(device) if row["name"] == "compute_units_per_xcd")
    if not 1 <= arguments.compute_units <= most:
        raise ValueError(f"--compute-units is {arguments.compute_units}; allowed: 1 to {most:.0f} ({device})")
    require_writable("--output", arguments.output)
    status = 0
    if problem:
        launches = modelled_launches(device, problem.call(), arguments.compute_units, problem.chained)
    else:
        status, launches = modelled_program(
            arguments.operation, device, arguments.json, arguments.compute_units
        )
        if not launches:
            raise ValueError(
                f"the program ended with status {status} and launched no kernel that is modelled for {device}"
            )
    if not 0 <= arguments.launch < len(launches):
        raise ValueError(f"--launch is {arguments.launch}; allowed: 0 to {len(launches) - 1}")
    timeline = trace(launches[arguments.launch], error_of(problem, device) if problem else None)
    write(timeline, arguments.output)
    said = timeline["otherData"] | {"events": len(timeline["traceEvents"]), "file": arguments.output}
    if arguments.json:
        json.dump(said, sys.stdout, indent=2)
        print()
        return status
    if len(launches) > 1:
        print(f"Launch {arguments.launch} of {len(launches)}, which --launch chooses from:")
        for index, launch in enumerate(launches):
            print(f"  {index:4}  {launch.kernel}, modelled: {launch.microseconds:,.2f} us")
    print(f"{said['kernel']} on {said['device']}: {said['events']:,} events in {arguments.output}")
    print(
        f"Modelled at {said['clock_mhz']:.0f} MHz, {said['cycles']:,.0f} cycles, {said['error']}; "
        "open it in ui.perfetto.dev."
    )
    if said["compute_units"] < arguments.compute_units:
        print(f"Of the {arguments.compute_units} compute units {said['compute_units']} had workgroups.")
    if not said["complete"]:
        print("The timeline was full before the launch ended; trace fewer compute units or a smaller shape.")
    return status
