# SPDX-License-Identifier: MIT
"""flash-attn's source distribution as `./run test --slow` unpacks it: its wheel has no tests, and `flash_attn` is our module there."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from hipkittens import flash_attn
from hipkittens.flash_attn import bert_padding, flash_attn_interface
from tests.oracles.packages_apart import importable_from, versions

PACKAGES = Path(sys.prefix) / "flash_attn_packages"
VERSION = "2.8.3"
SOURCE = PACKAGES / f"flash_attn-{VERSION}"
TESTS = SOURCE / "tests" / "test_flash_attn.py"


def missing() -> str:
    """What has to be present, or ""."""
    if TESTS.is_file() and "einops" in versions(PACKAGES):
        return ""
    return f"the source of flash-attn {VERSION} and einops are not in {PACKAGES}: ./run test --slow puts them there"


def factors(test: str) -> Mapping[str, list[Any]]:
    """The parameters of flash-attn's test: values by parameter name, with names such as "a,b" for several at once."""
    (function,) = (
        node
        for node in ast.parse(TESTS.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == test
    )
    found = {}
    for mark in function.decorator_list:
        name, values = (
            eval(compile(ast.Expression(each), str(TESTS), "eval"), {"torch": torch}) for each in mark.args
        )
        found[name] = list(values)
    return found


def arguments(case: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by single names."""
    return dict(
        itertools.chain.from_iterable(
            zip(names.split(","), values, strict=True) if "," in names else [(names, values)]
            for names, values in case.items()
        )
    )


@contextlib.contextmanager
def importable() -> Iterator[types.ModuleType]:
    """The unchanged module of flash-attn's tests, with hipkittens.flash_attn as `flash_attn`. The one thing without a counterpart here,
    which is not attention, is flash-attn's own: the rotary embedding of its references, a Triton kernel."""
    package = types.ModuleType("flash_attn")
    package.__path__ = [str(SOURCE / "flash_attn")]
    vars(package).update({name: getattr(flash_attn, name) for name in flash_attn.__all__})
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    # Private, has the size of flash-attn's tiles, and is called only by its dropout tests, which are not run here.
    vars(interface).update(vars(flash_attn_interface) | {"_get_block_size_n": None})
    with importable_from(PACKAGES, "flash_attn", "einops"):
        sys.modules |= {
            "flash_attn": package,
            "flash_attn.bert_padding": bert_padding,
            "flash_attn.flash_attn_interface": interface,
        }
        spec = importlib.util.spec_from_file_location("test_flash_attn_of_flash_attn", TESTS)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
