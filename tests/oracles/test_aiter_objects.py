# SPDX-License-Identifier: MIT
"""Every code object of AITER's wheel decodes, and the simulator can run every instruction in it."""

from __future__ import annotations

import collections
import pathlib

import pytest

from hipkittens import _coverage
from tests.oracles.aiter import wheel
from tests.oracles.aiter.wheel import needs_wheel

pytestmark = needs_wheel

# What LLVM's disassembler (llvm-objdump 22.1.8) counts in all of them, with no word left undecoded.
LLVM_INSTRUCTIONS = 12_190_244


def one_per_folder() -> list[pathlib.Path]:
    groups = collections.defaultdict(list)
    for name, path in sorted(wheel.objects().items()):
        groups[name.rpartition("/")[0]].append(path)
    return [paths[len(paths) // 2] for paths in groups.values()]


def test_a_sample_is_implemented():
    coverage = _coverage.measure(one_per_folder())
    assert coverage.code_objects > 15 and not coverage.skipped
    assert coverage.missing == {}


@pytest.mark.slow
def test_all_are_implemented_and_decode_to_as_many_instructions_as_llvm_sees():
    coverage = _coverage.measure(wheel.objects().values())
    assert coverage.code_objects == 2501 and not coverage.skipped
    assert coverage.missing == {}
    assert coverage.instructions == LLVM_INSTRUCTIONS


def test_metadata_is_what_the_launchers_take_it_for():
    for path in one_per_folder():
        metadata = wheel.metadata(path.read_bytes())
        assert metadata.arguments and len(metadata.workgroup) == 3
        last = metadata.arguments[-1]
        assert last.offset + last.bytes <= metadata.argument_bytes
