# SPDX-License-Identifier: MIT
"""Our GEMM and attention are as exact as AITER's own code objects, run on the same inputs in the same simulator. Decoding from 8-bit
caches, for which AITER's kernels round queries and weights to 8 bits as well, is four times as exact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles.aiter.wheel import needs_wheel

pytestmark = needs_wheel
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import parity_aiter  # noqa: E402

CASES = list(parity_aiter.cases())


def check(case) -> None:
    rows = case.run(case)
    assert len(rows) == (3 if case.op == "attention backward" else 1)
    of_8_bits = any(each in case.name for each in ("Fp8", "Int8", "a8w8"))
    for row in rows:
        assert 0 < row["aiter_error"] < (4e-2 if of_8_bits else 4e-3)
        assert row["our_instructions"] > 0 and row["aiter_instructions"] > 0
        assert row["our_error"] <= (0.25 if of_8_bits else parity_aiter.BAR) * row["aiter_error"], row


@pytest.mark.parametrize(
    "case", [case for case in CASES if not case.slow], ids=lambda c: f"{c.op} {c.name} {c}"
)
def test_error_is_at_most_aiters(case):
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in CASES if case.slow], ids=lambda c: f"{c.op} {c.name} {c}")
def test_error_is_at_most_aiters_at_length(case):
    check(case)


@pytest.mark.slow
def test_the_command_prints_every_case_as_json():
    command = [
        sys.executable,
        str(BENCHMARKS / "parity.py"),
        "--against",
        "aiter",
        "--target",
        "gfx950",
        "--json",
    ]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {row["op"] for row in report["rows"]} >= {
        "gemm",
        "attention forward",
        "attention backward dq",
        "paged attention",
        "latent attention",
    }
    assert report["worst"] <= report["bar"]
