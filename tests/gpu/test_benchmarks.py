# SPDX-License-Identifier: MIT
"""`bench` on a GPU: every operation's problem, the PyTorch counterpart, and timing by events."""

import re

import pytest
import torch

import hipkittens
from hipkittens.profiling.bench import OURS, row_of
from hipkittens.profiling.problems import SYNTAX, parse_shapes
from tests.gpu.conftest import TARGET

LARGEST = 128


def small(name):
    """The example quoted by error messages, with smaller numbers."""
    text = re.sub(r"\d+", lambda number: str(min(int(number[0]), LARGEST)), SYNTAX[name].example)
    return parse_shapes(name, text)[0]


def refusal(problem, device):
    """Why the target has no kernel for it, or None."""
    try:
        with torch.no_grad():
            problem.call(device)()
    except (TypeError, ValueError) as reason:
        return str(reason)
    return None


@pytest.mark.parametrize("name", SYNTAX)
def test_a_problem_runs(name):
    """Or it is refused as in the simulator: formats that a target's matrix instructions do not support."""
    reason = refusal(small(name), "cuda")
    if reason is not None:
        with hipkittens.simulate(TARGET):
            assert refusal(small(name), "cpu") == reason
        assert TARGET in reason and ("instruction" in reason or "multiplies" in reason)


@pytest.mark.parametrize("name", [name for name, benchmark in SYNTAX.items() if benchmark.torch])
def test_pytorch_runs_beside_it(name):
    SYNTAX[name].torch(small(name))()


def test_a_row_is_measured():
    row = row_of(small("rms_norm"), "MI300X", OURS, on_gpu=True)
    assert row.kind == "measured" and 0 < row.low <= row.microseconds <= row.high
