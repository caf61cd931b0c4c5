#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes docs/support.md: which calls have a kernel, from the built packs and from hipkittens.supported.

With --check it writes nothing, and fails if the committed page is out of date.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

import hipkittens
from hipkittens import _installation, operations, supported
from hipkittens.operations import _record
from hipkittens.operations._markdown import table
from hipkittens.operations._record import Checks, Function, Operation, Rows

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "support.md"
ELEMENTS = _record.DTYPES
DTYPES = {**ELEMENTS, "f64": torch.float64}
BF16 = DTYPES["bf16"]

OPENING = """# Supported operations

`python tools/support_matrix.py` writes this page from the kernels in the packs and the answers of `hipkittens.supported`, which are
those of the operations themselves. A test checks that the page is up to date.

**No kernel here has ever run on a GPU.** "Supported" means that it works in the simulator.

`hipkittens.supported("attention", q, k, v, causal=True, target="gfx950")` checks a single call; its `reason` is the text of the
error that the call raises. Tensors may be on the meta device. Unsupported calls raise: nothing falls back to PyTorch unless
`HIPKITTENS_BACKEND=torch` requests it.
"""


def meta(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def rows(target: str, folder: str) -> list[dict[str, str]]:
    return [
        entry["configuration"] for entry in _installation.pack(target).entries if entry["operation"] == folder
    ]


def _elements(row: dict[str, str]) -> set[str]:
    """Dtypes of a kernel's operands, from its row; empty for kernels that multiply two formats, whose dtype is that of the result."""
    if "a" in row and row.get("b", row["a"]) != row["a"]:
        return set()
    return {row[column] for column in ("input", "element", "a") if column in row}


def has_gradient(function: Function, target: str, dtype: torch.dtype) -> bool:
    """Whether a backward pass through the call works, tried without data."""

    def tensor(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
        made = torch.empty(shape, dtype=dtype)
        return made.requires_grad_(made.is_floating_point())

    with hipkittens.simulate(target), FakeTensorMode(allow_non_fake_inputs=True):
        arguments = function.arguments(tensor, dtype)
        inputs = [each for each in tree_leaves(arguments) if torch.is_tensor(each) and each.requires_grad]
        try:
            results = [
                each
                for each in tree_leaves(function.function(*arguments, **function.options))
                if torch.is_tensor(each)
            ]
            results = [each.float().sum() for each in results if each.requires_grad]
            return bool(results) and any(
                gradient is not None
                for gradient in torch.autograd.grad(sum(results), inputs, allow_unused=True)
            )
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return False


def cell(operation: Operation, function: Function, target: str, name: str) -> str:
    """Support for one dtype, "forward, backward" or "refused"; the call and the pack have to agree."""
    of_folder = [
        row for row in rows(target, operation.folder) if operation.owns(operation.folder, row["kind"])
    ]
    # Kernels that are not specific to a dtype are passed it at launch.
    typed = [row for row in of_folder if _elements(row) & set(ELEMENTS)]
    if typed:
        of_dtype = [row["kind"] for row in typed if name in _elements(row)]
    else:
        of_dtype = [row["kind"] for row in of_folder if name in ELEMENTS]
    kinds = {"backward" if "backward" in kind else "forward" for kind in of_dtype}
    # Without a dedicated kernel, the gradient is the operation itself with other operands, or other operations.
    if kinds and has_gradient(function, target, DTYPES[name]):
        kinds.add("backward")
    answer = supported(
        function.name, *function.arguments(meta, DTYPES[name]), target=target, **function.options
    )
    if answer.ok != bool(kinds):
        raise SystemExit(
            f"{function.name} {name} {target}: the call says '{answer.reason}', the pack holds {kinds}"
        )
    return ", ".join(sorted(kinds, reverse=True)) or "refused"


def table_of_operations() -> str:
    body = [
        [f"`{function.name}`", target, *(cell(operation, function, target, name) for name in DTYPES)]
        for operation in operations.every()
        for function in operation.functions
        for target in _installation.TARGETS
    ]
    return "## Operations, dtypes, targets\n\n" + table(["operation", "target", *DTYPES], body)


def of_every_operation(said: Callable[[Checks], Callable[[Rows], str] | None]) -> list[str]:
    texts = []
    for operation in operations.every():
        text = said(operations.checks(operation))
        if text is not None:
            texts.append(text({target: rows(target, operation.folder) for target in _installation.TARGETS}))
    return texts


def sizes() -> str:
    lines = of_every_operation(lambda checks: checks.sizes)
    lines.append(
        "Any strides are accepted, and tensors above 4 GiB. The documentation of each function states which strides cost a copy."
    )
    return "## Sizes\n\n" + "".join(f"* {line}\n" for line in lines)


def options() -> str:
    body = []
    calls = [call for operation in operations.every() for call in operations.checks(operation).calls(meta)]
    for what, op, arguments, keywords in calls:
        (answer,) = {supported(op, *arguments, target=target, **keywords) for target in _installation.TARGETS}
        body.append([f"`{op}`", what, "yes" if answer.ok else answer.reason])
    return "## Options\n\n" + table(["operation", "call", "answer"], body)


def page() -> str:
    with hipkittens.simulate():  # the answers do not depend on this machine
        return "\n".join(
            (
                OPENING,
                table_of_operations(),
                *of_every_operation(lambda checks: checks.section),
                sizes(),
                options(),
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the committed page is out of date")
    if parser.parse_args().check:
        if PAGE.read_text() != page():
            raise SystemExit(f"{PAGE.relative_to(ROOT)} is out of date: run tools/support_matrix.py")
    else:
        PAGE.write_text(page())


if __name__ == "__main__":
    main()
