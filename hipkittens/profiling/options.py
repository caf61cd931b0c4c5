# SPDX-License-Identifier: MIT
"""The arguments that bench, profile and trace share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .. import _timing
from .problems import DEFAULT_SHAPES, OPERATIONS, Problem, parse_shapes

FIRST_DEVICE = {"gfx942": "MI300X", "gfx950": "MI355X"}


def add(parser: argparse.ArgumentParser, several_shapes: bool) -> None:
    parser.add_argument("operation", metavar="OP", help=", ".join(OPERATIONS))
    add_where(parser, several_shapes)


def add_where(parser: argparse.ArgumentParser, several_shapes: bool) -> None:
    form = "MxNxK (gemm), ROWSxCOLUMNS (norms; :training), or letters such as B16H64K8N2048D128:causal"
    parser.add_argument(
        "--shapes" if several_shapes else "--shape",
        dest="shapes",
        metavar="SHAPES" if several_shapes else "SHAPE",
        help=form + ", with commas between" * several_shapes,
    )
    parser.add_argument("--device", metavar="DEVICE", help=f"what to model: {', '.join(_timing.DEVICES)}")
    parser.add_argument(
        "--arch", choices=tuple(FIRST_DEVICE), help="instead: the first device of that target"
    )


def operation(name: str) -> str:
    if name not in OPERATIONS:
        raise ValueError(f"OP is {name!r}; allowed: {', '.join(OPERATIONS)}")
    return name


def device(arguments: argparse.Namespace) -> str:
    """The device that --device or --arch names, by default MI355X. ValueError if there is none, or if they contradict."""
    if arguments.device is None:
        return FIRST_DEVICE[arguments.arch or "gfx950"]
    name = arguments.device.upper()
    if name not in _timing.DEVICES:
        raise ValueError(f"--device is {arguments.device!r}; allowed: {', '.join(_timing.DEVICES)}")
    if arguments.arch and _timing.DEVICES[name] != arguments.arch:
        raise ValueError(f"--device {name} is a {_timing.DEVICES[name]}, and --arch says {arguments.arch}")
    return name


def require_writable(option: str, path: str) -> None:
    """ValueError for a file that could not be written, before what shall be written there has taken its time."""
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise ValueError(f"{option}: there is no folder {str(folder)!r}; make it first")
    if Path(path).is_dir():
        raise ValueError(f"{option}: {path!r} is a folder; name a file")
    if not os.access(path if Path(path).exists() else folder, os.W_OK):
        raise ValueError(f"{option}: {path!r} cannot be written; name a file that can")


def problems(arguments: argparse.Namespace) -> list[Problem]:
    name = operation(arguments.operation)
    return parse_shapes(name, arguments.shapes or DEFAULT_SHAPES[name])


def problem(arguments: argparse.Namespace) -> Problem:
    name = operation(arguments.operation)
    (first, *others) = parse_shapes(name, arguments.shapes or DEFAULT_SHAPES[name].split(",")[0])
    if others:
        raise ValueError(f"--shape is {arguments.shapes!r}; allowed: one shape")
    return first
