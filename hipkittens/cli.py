# SPDX-License-Identifier: MIT
"""The command `hipkittens`, also `python -m hipkittens`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from typing import Any

from rich.console import Console
from rich.table import Table

from . import __version__
from ._environment import ARCH, CHECKERS
from ._installation import TARGETS
from ._whole_table import print_whole


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2)
    print()


def _demo(arguments: argparse.Namespace) -> int:
    from . import _demo

    return _demo.main(arguments.json, arguments.target)


def _info(arguments: argparse.Namespace) -> int:
    from ._environment import read_by_package
    from ._info import collect

    report = collect()
    if arguments.json:
        _print_json(report)
        return 0
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("hipkittens", report["hipkittens"])
    table.add_row("python", report["python"])
    table.add_row("torch", f"{report['torch']} (HIP {report['torch_hip'] or 'no'})")
    table.add_row("GPUs", ", ".join(report["gpus"]) or "none: CPU tensors run in the simulator")
    hip = report["hip"]
    table.add_row("HIP", hip["message"] or f"{hip['path']}, {hip['device_count']} devices")
    table.add_row("backend", report["backend"])
    table.add_row("simulated target", report["arch"])
    simulator = report["simulator"]
    table.add_row("simulator", f"{simulator['host_level']} host code, {simulator['cores']} cores")
    for target, pack in report["kernels"].items():
        table.add_row(
            f"{target} kernels",
            f"{pack['code_objects']} code objects, {pack['bytes'] / 1e6:.1f} MB ({pack['packed_bytes'] / 1e6:.2f} MB packed), "
            f"{', '.join(pack['compiler'])}; never run on silicon",
        )
    for row in read_by_package():
        value = report["environment"][row.variable]
        unset = f"not set, {row.default}" if row.default else "not set"
        allowed = f": {', '.join(row.allowed)}" if row.allowed else ""
        table.add_row(row.variable, f"{unset if value is None else value} ({row.meaning}{allowed})")
    if sys.stdout.isatty():  # text, which may be wrapped
        Console().print(table)
    else:
        print_whole(table)
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from . import _doctor_report

    try:
        return _doctor_report.main(arguments.json, arguments.report)
    except ValueError as error:
        raise SystemExit(f"hipkittens doctor: {error}") from None


def _probe(arguments: argparse.Namespace) -> int:
    from .probes import _command

    try:
        return _command.main(
            arguments.json,
            target=arguments.target,
            gpu=arguments.gpu,
            only=arguments.only,
            report=arguments.report,
        )
    except ValueError as error:
        raise SystemExit(f"hipkittens probe: {error}") from None


def _kernels_list(arguments: argparse.Namespace) -> int:
    from . import _installation

    if arguments.folder:
        known = {entry["operation"] for target in TARGETS for entry in _installation.pack(target).entries}
        for folder in set(arguments.folder) - known:
            raise SystemExit(
                f"hipkittens kernels list: --folder {folder}: no kernel is of it; allowed: {', '.join(sorted(known))}"
            )
    if arguments.resources:
        from . import _resource_table

        return _resource_table.main(arguments.json, _chosen(arguments), arguments.folder)
    rows = [
        {
            "target": target,
            "name": entry["name"],
            "symbol": kernel["symbol"],
            "vgprs": kernel["vgprs"],
            "agprs": kernel["agprs"],
            "sgprs": kernel["sgprs"],
            "lds_bytes": kernel["lds_bytes"],
            "scratch_bytes": kernel["scratch_bytes"],
            "bytes": entry["bytes"],
            "sha256": entry["sha256"],
        }
        for target in _chosen(arguments)
        for entry in _installation.pack(target).entries
        if not arguments.folder or entry["operation"] in arguments.folder
        for kernel in entry["kernels"]
    ]
    if arguments.json:
        _print_json(rows)
        return 0
    table = Table()
    for heading in ("target", "name", "VGPRs", "AGPRs", "SGPRs", "LDS", "scratch", "bytes"):
        table.add_column(heading, justify="left" if heading in ("target", "name") else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            *(
                str(row[key])
                for key in (
                    "target",
                    "name",
                    "vgprs",
                    "agprs",
                    "sgprs",
                    "lds_bytes",
                    "scratch_bytes",
                    "bytes",
                )
            )
        )
    print_whole(table)
    return 0


def _chosen(arguments: argparse.Namespace) -> tuple[str, ...]:
    return (arguments.target,) if arguments.target else TARGETS


def _find(arguments: argparse.Namespace):
    from . import _installation

    found = []
    for target in _chosen(arguments):
        try:
            found.append((_installation.pack(target), _installation.pack(target).entry(arguments.name)))
        except KeyError:
            continue
    if not found:
        raise SystemExit(
            f"hipkittens: no kernel is called {arguments.name}; `hipkittens kernels list` names them"
        )
    return found


def _kernels_show(arguments: argparse.Namespace) -> int:
    entries = [entry for _, entry in _find(arguments)]
    if arguments.json:
        _print_json(entries)
        return 0
    for entry in entries:
        Console(soft_wrap=True).print_json(json.dumps(entry))
    return 0


def _kernels_disassemble(arguments: argparse.Namespace) -> int:
    from . import _disassembly

    listings = []
    for pack, entry in _find(arguments):
        lines = [
            {"address": address, "bytes": data.hex(), "text": text}
            for offset, code in _disassembly.code(pack.image(entry))
            for address, data, text in _disassembly.disassembled(entry["target"], offset, code)
        ]
        listings.append({"target": entry["target"], "name": entry["name"], "instructions": lines})
    if arguments.json:
        _print_json(listings)
        return 0
    for listing in listings:
        print(f"{listing['name']} for {listing['target']}")
        for line in listing["instructions"]:
            print(f"  {line['address']:06x}  {line['bytes']:<24}  {line['text']}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from . import _installation
    from ._pack import PackError

    rows = []
    for target in TARGETS:
        try:
            rows.append(
                {"target": target, "code_objects": _installation.pack(target).verify(), "error": None}
            )
        except PackError as error:
            rows.append({"target": target, "code_objects": 0, "error": str(error)})
    if arguments.json:
        _print_json(rows)
    else:
        for row in rows:
            print(
                f"{row['target']}: {row['error'] or str(row['code_objects']) + ' code objects, every sha256 as built'}"
            )
    return int(any(row["error"] for row in rows))


def _sim_coverage(arguments: argparse.Namespace) -> int:
    from . import _coverage

    return _coverage.main(arguments.files, arguments.json)


def _sim_check(arguments: argparse.Namespace) -> int:
    from . import _check_command

    try:
        return _check_command.main(arguments.program, arguments.checks, arguments.json, arguments.notes)
    except ValueError as error:
        raise SystemExit(f"hipkittens sim check: {error}") from None


def _sim_run(arguments: argparse.Namespace) -> int:
    from ._program import run_program, simulated_hip

    try:
        with simulated_hip(arguments.target, arguments.devices) as environment:
            return run_program(arguments.program, environment, output_to_stderr=False)
    except ValueError as error:
        raise SystemExit(f"hipkittens sim run: {error}") from None


def _sim_debug(arguments: argparse.Namespace) -> int:
    try:
        if arguments.adapter:
            from .debugging import debug_adapter

            return debug_adapter.main()
        from .debugging import console

        against = None
        if arguments.against or arguments.against_target:
            against = console.Other(shlex.split(arguments.against), arguments.against_target)
        return console.main(
            arguments.program,
            target=arguments.target,
            checks=arguments.checks,
            commands=arguments.command,
            as_json=arguments.json,
            against=against,
        )
    except ValueError as error:
        raise SystemExit(f"hipkittens sim debug: {error}") from None


def _patch(arguments: argparse.Namespace) -> int:
    from . import _patch_command

    return _patch_command.main(arguments.model, arguments.json, arguments.linear, arguments.dtype)


def _profiling(arguments: argparse.Namespace) -> int:
    try:
        return arguments.main(arguments)
    except ValueError as error:
        raise SystemExit(f"hipkittens {arguments.command_name}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hipkittens", description="AMD GPU kernels for PyTorch, and their simulator"
    )
    parser.add_argument("--version", action="version", version=f"hipkittens {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(group, name: str, function, help: str) -> argparse.ArgumentParser:
        added = group.add_parser(name, help=help, description=help)
        added.add_argument("--json", action="store_true", help="print JSON")
        added.set_defaults(function=function)
        return added

    demo = command(
        commands, "demo", _demo, "run the kernels on real tensors in the simulator and compare with PyTorch"
    )
    demo.add_argument("--target", choices=TARGETS, help="only this target")
    command(commands, "info", _info, "show what is installed and where calls run")
    doctor = command(
        commands, "doctor", _doctor, "check what works on this machine, and how to fix what does not"
    )
    doctor.add_argument(
        "--report", metavar="FILE", help="write the text for a bug report to FILE, or print it (-)"
    )
    probe = command(
        commands,
        "probe",
        _probe,
        "test on the GPU, or on the simulated ones, whether the assumptions of the kernels and the simulator hold",
    )
    probe.add_argument(
        "--target", choices=TARGETS, help="test this simulated GPU, even if there is a real one"
    )
    probe.add_argument("--gpu", type=int, metavar="N", help="index of the GPU to test (default: 0)")
    probe.add_argument("--only", action="append", metavar="NAME", help="only this fact; may be repeated")
    probe.add_argument("--report", metavar="FILE", help="write all results as JSON, to send back")
    from .profiling import bench_command, profile_command, trace_command

    for name, module, help in (
        (
            "bench",
            bench_command,
            "benchmark an operation against other libraries: measured on a GPU, modelled without one",
        ),
        (
            "profile",
            profile_command,
            "show the cost of each instruction in the cycle model, and the bottleneck",
        ),
        ("trace", trace_command, "write a timeline of a modelled launch, for ui.perfetto.dev"),
    ):
        added = command(commands, name, _profiling, help)
        added.set_defaults(main=module.main, command_name=name)
        module.add_arguments(added)
    command(commands, "verify", _verify, "check the sha256 of every code object")
    patch = command(
        commands, "patch", _patch, "show what hipkittens.patch would replace in a model, and why not the rest"
    )
    patch.add_argument(
        "--dry-run",
        action="store_true",
        required=True,
        help="required, since the command has no model to change",
    )
    patch.add_argument("--linear", action="store_true", help="also torch.nn.Linear")
    patch.add_argument(
        "--dtype", choices=("bfloat16", "float16", "float32"), help="dtype of the tensors in a call"
    )
    patch.add_argument(
        "model",
        metavar="MODEL",
        help="a folder with config.json, MODULE:FACTORY, or a Transformers configuration class (LlamaConfig)",
    )
    sim = commands.add_parser("sim", help="the simulator").add_subparsers(required=True, metavar="COMMAND")
    coverage = command(
        sim, "coverage", _sim_coverage, "show which instructions of code objects the simulator can run"
    )
    coverage.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="code objects, offload bundles, or folders, wheels and zip files that contain them",
    )
    run = sim.add_parser("run", help="run a HIP program with the simulator as its libamdhip64")
    run.set_defaults(function=_sim_run)
    run.add_argument(
        "--target",
        choices=TARGETS,
        default=ARCH.read(),
        help="the GPU that the program sees (default: HIPKITTENS_ARCH, or gfx942)",
    )
    run.add_argument("--devices", type=int, default=1, help="number of GPUs (default: 1)")
    run.add_argument("program", nargs="+", metavar="PROGRAM", help="for example: -- ./saxpy")
    run.usage = "hipkittens sim run [-h] [--target TARGET] [--devices N] -- PROGRAM [ARGUMENT ...]"
    check = command(
        sim,
        "check",
        _sim_check,
        "run a program with the simulator's checkers enabled, and report their findings",
    )
    check.add_argument(
        "--checks", default="all", help="all (default), or a comma-separated subset of " + ", ".join(CHECKERS)
    )
    check.add_argument("--notes", action="store_true", help="also print notes about performance")
    check.add_argument("program", nargs="+", metavar="PROGRAM", help="for example: -- python train.py")
    check.usage = "hipkittens sim check [-h] [--json] [--checks CHECKS] [--notes] -- PROGRAM [ARGUMENT ...]"
    debug = command(sim, "debug", _sim_debug, "stop at launches of a program, and inspect waves and memory")
    debug.add_argument(
        "--target", choices=TARGETS, help="the GPU that the program sees (default: the one that it requests)"
    )
    debug.add_argument(
        "--checks", help="stop at findings of all checkers, or of some: " + ", ".join(CHECKERS)
    )
    debug.add_argument(
        "-c",
        "--command",
        action="append",
        default=[],
        metavar="COMMAND",
        help="run this command first; may be repeated",
    )
    debug.add_argument(
        "--against",
        default="",
        metavar="COMMAND",
        help="another program, for `compare`, whose launches are compared with this one's",
    )
    debug.add_argument(
        "--against-target",
        choices=TARGETS,
        help="the GPU that the other program sees (default program: this one)",
    )
    debug.add_argument(
        "--adapter",
        action="store_true",
        help="speak the Debug Adapter Protocol, for editors (docs/debugger.md)",
    )
    debug.add_argument("program", nargs="*", metavar="PROGRAM", help="for example: -- python train.py")
    debug.usage = (
        "hipkittens sim debug [-h] [--json] [--target TARGET] [--checks CHECKS] [-c COMMAND]\n"
        "                            [--against COMMAND] [--against-target TARGET] -- PROGRAM [ARGUMENT ...]\n"
        "       hipkittens sim debug --adapter"
    )
    kernels = commands.add_parser("kernels", help="the kernels in this installation").add_subparsers(
        required=True, metavar="COMMAND"
    )
    listing = command(kernels, "list", _kernels_list, "list the kernels, one per line")
    listing.add_argument(
        "--resources",
        action="store_true",
        help="run each kernel in the simulator, and report its use of a compute unit and its hot loop",
    )
    listing.add_argument(
        "--folder",
        action="append",
        default=[],
        help="only kernels of this folder of csrc/kernels, such as gemm; may be repeated",
    )
    show = command(kernels, "show", _kernels_show, "show the index entry of one kernel")
    disassemble = command(kernels, "disasm", _kernels_disassemble, "show the instructions of one kernel")
    for added in (listing, show, disassemble):
        added.add_argument("--target", choices=TARGETS, help="only this target")
    for added in (show, disassemble):
        added.add_argument("name", metavar="NAME")
    return parser


def main(arguments: list[str] | None = None) -> int:
    parsed = _parser().parse_args(arguments)
    try:
        return parsed.function(parsed)
    except BrokenPipeError:
        return 0
