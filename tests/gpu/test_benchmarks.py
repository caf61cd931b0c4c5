# SPDX-License-Identifier: MIT
"""What `bench` runs on a GPU: every operation's problem, PyTorch's beside it, and the measurement by events."""

import re

import pytest
import torch

from hipkittens.profiling.bench import OURS, row_of
from hipkittens.profiling.problems import SYNTAX, parse_shapes

LARGEST = 128


def small(name):
    """The example that errors quote, with smaller numbers."""
    text = re.sub(r"\d+", lambda number: str(min(int(number[0]), LARGEST)), SYNTAX[name].example)
    return parse_shapes(name, text)[0]


@pytest.mark.parametrize("name", SYNTAX)
def test_a_problem_runs(name):
    with torch.no_grad():
        small(name).call("cuda")()


@pytest.mark.parametrize("name", [name for name, benchmark in SYNTAX.items() if benchmark.torch])
def test_pytorch_runs_beside_it(name):
    SYNTAX[name].torch(small(name))()


def test_a_row_is_measured():
    row = row_of(small("rms_norm"), "MI300X", OURS, on_gpu=True)
    assert row.kind == "measured" and 0 < row.low <= row.microseconds <= row.high
