# SPDX-License-Identifier: MIT
"""Writes hipkittens/profiling/model_error.json: the errors on held-out rows that the commands report with modelled figures."""

from __future__ import annotations

import collections
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hipkittens.profiling.model_error import Cell

# The names in `hipkittens bench`; products of other number formats have separate benchmarks.
OPERATIONS = {
    "f4gemm": "scaled_matmul_mxfp4",
    "bf16gemm": "gemm",
    "i8gemm": "scaled_matmul_int8",
    "fmoe": "mixture_of_experts",
    "fmoe_2stages": "mixture_of_experts",
    "fmha_v3_fwd": "attention",
    "fmha_v3_bwd": "attention_backward",
}


def cells(records: Iterable[Mapping[str, Any]]) -> list[Cell]:
    """One for each family, chip and bound, of records with family, chip, bound, measured_us and the unfitted predicted_us."""
    groups = collections.defaultdict(list)
    for record in records:
        key = OPERATIONS[record["family"]], record["family"], record["chip"], record["bound"]
        groups[key].append(100 * (record["predicted_us"] / record["measured_us"] - 1))
    return [
        Cell(
            *key,
            len(errors),
            round(statistics.fmean(map(abs, errors)), 2),
            round(statistics.fmean(errors), 2),
            round(max(map(abs, errors)), 2),
        )
        for key, errors in sorted(groups.items())
    ]


def read(path: Path) -> list[Cell]:
    """Reads the output of `write`."""
    return [Cell(**entry) for entry in json.loads(path.read_text())["cells"]]


def write(records: Iterable[Mapping[str, Any]], path: Path) -> None:
    text = {
        "written by": "benchmarks/calibration.py --errors, from rows that the model was not fitted on; never edited by hand",
        "error, bias, worst": "per cent: mean of |modelled / measured - 1|, mean of modelled / measured - 1, largest of the first",
        "cells": [asdict(cell) for cell in cells(records)],
    }
    path.write_text(json.dumps(text, indent=1) + "\n")
