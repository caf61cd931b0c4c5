# SPDX-License-Identifier: MIT
"""FlashMLA's decoding tests, from a checkout of its repository, with hipkittens.integrations.flash_mla as `flash_mla`.

FLASH_MLA_SOURCE names the checkout, of github.com/deepseek-ai/FlashMLA at COMMIT: no package contains these files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import hipkittens
from hipkittens.integrations import flash_mla, rocm

COMMIT = "9241ae3ef9bac614dd25e45e507e089f888280e0"
FILES = "79c41e362b4bb82a"  # the beginning of the digest of the files that are run
SOURCE = Path(os.environ.get("FLASH_MLA_SOURCE", "not-named")) / "tests"
DENSE, SPARSE = "test_flash_mla_dense_decoding", "test_flash_mla_sparse_decoding"
OF_THEM = (DENSE, SPARSE, "lib", "quant", "ref", "kernelkit")


def digest() -> str:
    files = [SOURCE / f"{name}.py" for name in OF_THEM[:-1]] + sorted(SOURCE.glob("kernelkit/*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files if file.is_file())).hexdigest()


def missing() -> str:
    """What has to be present, or ""."""
    if digest().startswith(FILES):
        return ""
    return f"FLASH_MLA_SOURCE names no checkout of github.com/deepseek-ai/FlashMLA at {COMMIT}"


@contextlib.contextmanager
def importable() -> Iterator[dict[str, types.ModuleType]]:
    """FlashMLA's two unchanged modules, by their names."""
    with (
        mock.patch.dict(sys.modules, {"flash_mla": flash_mla}),
        mock.patch.object(sys, "path", [str(SOURCE), *sys.path]),
        rocm.active(),
        hipkittens.simulate("gfx950"),
    ):
        try:
            yield {name: importlib.import_module(name) for name in (DENSE, SPARSE)}
        finally:
            for name in list(sys.modules):
                if name.partition(".")[0] in OF_THEM:
                    del sys.modules[name]


@contextlib.contextmanager
def defaults(dtype: torch.dtype) -> Iterator[None]:
    """The defaults that FlashMLA's programs set for all of their tensors; only within `rocm.active`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_device("cuda:0")
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


def dense_cases(module: types.ModuleType) -> list[Any]:
    """The cases of its program, which begins by querying an NVIDIA GPU of the Hopper architecture."""
    found: list[Any] = []
    with (
        mock.patch.object(module, "test_flash_mla", found.append),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)),
        defaults(torch.bfloat16),
    ):
        module.main(torch.bfloat16)
    return found


def sparse_cases(module: types.ModuleType) -> list[Any]:
    return [case.to_test_param() for case in module.gen_testcase()]


def values(case: Any) -> tuple[tuple[str, Any], ...]:
    """The values of all parameters of a case."""
    flat = dataclasses.asdict(case)
    flat |= flat.pop("decode", None) or {}
    return tuple((name, value) for name, value in flat.items() if name != "seed")


def chosen(cases: Sequence[Any], takes: Callable[[Any], bool]) -> list[int]:
    """Indices of affordable cases, as few as possible, that cover every pair of values of two parameters that occurs in any affordable
    case. Greedy: the next one is the first of those that add most pairs."""
    pairs = {
        place: set(itertools.combinations(values(case), 2)) for place, case in enumerate(cases) if takes(case)
    }
    wanted = set().union(*pairs.values())
    found = []
    while wanted:
        place = max(pairs, key=lambda each: (len(pairs[each] & wanted), -each))
        wanted -= pairs[place]
        found.append(place)
    return sorted(found)
