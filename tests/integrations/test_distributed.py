# SPDX-License-Identifier: MIT
"""FSDP2, DDP, tensor parallelism, DTensors and activation checkpointing around the package's operators."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

pytest.importorskip("torch.distributed.fsdp")

import hipkittens
from tests.integrations import two_processes

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = torch.ops.hipkittens
# Roundings to bfloat16 of a value, of the gradient it comes from, and of partial sums; relative to the largest value.
TOLERANCE = 4 * 2.0**-8


def run_both(command, environment):
    """Run two processes, distinguished by RANK, to completion."""
    running = [
        subprocess.Popen(
            command, cwd=ROOT, env={**environment, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=240)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0, 0], said[0] + said[1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_processes")
    command = [sys.executable, "-m", "tests.integrations.two_processes", folder / "store", folder / "results"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    run_both(command, environment)
    return torch.load(folder / "results")


@pytest.fixture(scope="module")
def alone():
    return two_processes.train(two_processes.make(), *two_processes.batch())


def near(found, expected):
    return bool((found.float() - expected.float()).abs().max() <= TOLERANCE * expected.float().abs().max())


@pytest.mark.parametrize("way", ["ddp", "fsdp", "tensor parallel"])
def test_two_processes_train_as_one(way, saved, alone):
    losses, gradients, parameters = saved[way]
    if way == "tensor parallel":  # the others see half of the batch each
        assert torch.allclose(losses, alone[0], rtol=0.01)
    assert alone[0][-1] < alone[0][0]
    for found, expected in zip([*gradients, *parameters], [*alone[1], *alone[2]], strict=True):
        assert expected.abs().max() > 0 and near(found, expected)
    assert len(parameters) == len(gradients) == 16


def test_every_operator_takes_dtensors(saved):
    assert len(saved["operators"]) == 13
    for name, (sharded, plain) in saved["operators"].items():
        for found, expected in zip(sharded, plain, strict=True):
            assert found.shape == expected.shape and near(found, expected), name


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 40, 2, 32, generator=generator).to(torch.bfloat16) for _ in range(3)]


def layer(q, k, v, weight):
    out = hipkittens.attention(q, k, v, causal=True, dropout_p=0.5)
    return hipkittens.linear(out.flatten(-2), weight).float().square().sum()


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function.namespace == "hipkittens":
            self.operators.append(function)
        return function(*args, **(kwargs or {}))


def gradients(run):
    values = [value.requires_grad_() for value in (*inputs(), torch.eye(64, dtype=torch.bfloat16))]
    torch.manual_seed(7)
    with Counted() as counted:
        run(*values).backward()
    return [value.grad for value in values], counted.operators.count(OPERATORS.attention_forward.default)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint_draws_the_same_dropout_again(use_reentrant):
    expected, once = gradients(layer)
    found, twice = gradients(partial(checkpoint, layer, use_reentrant=use_reentrant))
    assert (once, twice) == (1, 2)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_selective_checkpoint_keeps_what_a_policy_names():
    keep = {OPERATORS.attention_forward.default}

    def policy(context, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operator in keep else CheckpointPolicy.PREFER_RECOMPUTE

    expected, _ = gradients(layer)
    contexts = partial(create_selective_checkpoint_contexts, policy)
    found, computed = gradients(partial(checkpoint, layer, use_reentrant=False, context_fn=contexts))
    assert computed == 1
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
