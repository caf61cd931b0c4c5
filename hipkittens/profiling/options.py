# SPDX-License-Identifier: MIT
"""The arguments that bench, profile and trace share."""

from __future__ import annotations

import argparse

from .. import _timing
from .problems import OPERATIONS, SYNTAX, Problem, parse_shapes


def add(parser: argparse.ArgumentParser, several_shapes: bool) -> None:
    parser.add_argument("operation", metavar="OP", help=", ".join(OPERATIONS))
    add_where(parser, several_shapes)


def add_where(parser: argparse.ArgumentParser, several_shapes: bool) -> None:
    form = "MxNxK (gemm), ROWSxCOLUMNS (norms; :training), or letters such as B16H64K8N2048D128:causal"
    parser.add_argument(
        "--shapes" if several_shapes else "--shape",
        dest="shapes",
        metavar="SHAPES" if several_shapes else "SHAPE",
        help=form + ", comma-separated" * several_shapes,
    )
    parser.add_argument(
        "--device", metavar="DEVICE", help=f"device to model: {', '.join(_timing.DEVICES)} (default MI355X)"
    )
    parser.add_argument(
        "--arch",
        choices=tuple(_timing.USUAL_DEVICES),
        help="instead of a device: "
        + ", ".join(f"{device} for {arch}" for arch, device in _timing.USUAL_DEVICES.items()),
    )


def add_or_program(parser: argparse.ArgumentParser, command: str) -> None:
    """An operation with --shape, or a program after --: `names_operation` tells which."""
    parser.usage = f"hipkittens {command} [-h] [OPTION ...] OP | -- PROGRAM [ARGUMENT ...]"
    add_where(parser, several_shapes=False)
    parser.add_argument(
        "operation",
        nargs="+",
        metavar="OP",
        help=", ".join(OPERATIONS) + "; or a program, for example: -- python script.py",
    )


def names_operation(arguments: argparse.Namespace) -> bool:
    """Whether arguments.operation is an operation, rather than a program. ValueError if it is neither."""
    first, *others = arguments.operation
    if first in OPERATIONS and others:
        raise ValueError(f"{others[0]!r} follows the operation; allowed: one operation, or -- PROGRAM")
    if not others and first not in OPERATIONS:
        allowed = f"{', '.join(OPERATIONS)}; or a program with arguments, as -- python script.py"
        raise ValueError(f"OP is {first!r}; allowed: {allowed}")
    if others and arguments.shapes:
        raise ValueError("--shape belongs to an operation, and a program has shapes of its own")
    if not others:
        arguments.operation = first
    return not others


def operation(name: str) -> str:
    if name not in OPERATIONS:
        raise ValueError(f"OP is {name!r}; allowed: {', '.join(OPERATIONS)}")
    return name


def device(arguments: argparse.Namespace) -> str:
    """The device selected by --device or --arch, by default MI355X. ValueError if there is none, or if they contradict."""
    if arguments.device is None:
        return _timing.USUAL_DEVICES[arguments.arch or "gfx950"]
    name = arguments.device.upper()
    if name not in _timing.DEVICES:
        raise ValueError(f"--device is {arguments.device!r}; allowed: {', '.join(_timing.DEVICES)}")
    if arguments.arch and _timing.DEVICES[name] != arguments.arch:
        raise ValueError(f"--device {name} is a {_timing.DEVICES[name]}, and --arch says {arguments.arch}")
    return name


def problems(arguments: argparse.Namespace) -> list[Problem]:
    name = operation(arguments.operation)
    return parse_shapes(name, SYNTAX[name].shapes if arguments.shapes is None else arguments.shapes)


def problem(arguments: argparse.Namespace) -> Problem:
    name = operation(arguments.operation)
    shape = SYNTAX[name].shapes.partition(",")[0] if arguments.shapes is None else arguments.shapes
    (first, *others) = parse_shapes(name, shape)
    if others:
        raise ValueError(f"--shape is {arguments.shapes!r}; allowed: one shape")
    return first
