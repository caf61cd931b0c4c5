# SPDX-License-Identifier: MIT
"""Tensors on the second of two GPUs, and two ranks under NCCL."""

import os
import sys
import threading

import pytest
import torch

import hipkittens
from hipkittens import _doctor_kernels
from tests.gpu.conftest import drawn
from tests.gpu.test_gpu_operations import EXAMPLES, attend, heads
from tests.integrations import test_distributed, two_processes

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def test_kernels_run_where_the_tensors_are():
    first = attend(*heads(0, "cuda:0"))
    second = attend(*heads(0, "cuda:1"))
    assert torch.cuda.current_device() == 0
    assert all(value.device == torch.device("cuda:1") for value in second)
    assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_where_its_tensors_are(name):
    row = _doctor_kernels.run_family(name, EXAMPLES[name], "cuda:1")
    assert row["error"] is None, row["error"]
    assert row["ok"], row


def test_a_result_is_copied_to_the_other_gpu():
    x, w = drawn(64, 256), drawn(256, seed=1)
    torch.cuda._sleep(100_000_000)
    there = hipkittens.rms_norm(hipkittens.rms_norm(x, w).to("cuda:1"), w.to("cuda:1"))
    assert torch.equal(there.cpu(), hipkittens.rms_norm(hipkittens.rms_norm(x, w), w).cpu())


def test_streams_of_the_second_gpu():
    x, w = drawn(64, 256, device="cuda:1"), drawn(256, seed=1, device="cuda:1")
    expected = hipkittens.rms_norm(x, w)
    torch.cuda.synchronize(1)
    stream = torch.cuda.Stream("cuda:1")
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        found = hipkittens.rms_norm(x.clone(), w)
        assert not stream.query()
    stream.synchronize()
    assert torch.equal(found, expected)


def test_tensors_of_two_gpus_are_refused():
    with pytest.raises(ValueError, match="weight is on cuda:1 and x on cuda:0; move one to the other"):
        hipkittens.rms_norm(drawn(4, 64), drawn(64, device="cuda:1"))


def test_a_thread_for_each_gpu():
    found = {}

    def work(device):
        with torch.cuda.device(device):
            found[device] = [attend(*heads(0, device)) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(f"cuda:{ordinal}",)) for ordinal in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(found["cuda:0"], found["cuda:1"], strict=True):
        assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(a, b, strict=True))


RANK = """
import os, sys
from tests.gpu import connection
from tests.integrations import two_processes
connection.connect_as_parent()
two_processes.main(int(os.environ["RANK"]), sys.argv[1], sys.argv[2], "cuda")
assert connection.failure() == "", connection.failure()
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two_ranks")
    command = [sys.executable, "-c", RANK, folder / "store", folder / "results"]
    test_distributed.run_both(command, dict(os.environ))
    return torch.load(folder / "results")


@pytest.mark.parametrize("way", ["ddp", "fsdp", "tensor parallel"])
def test_two_ranks_train_as_one(way, saved):
    alone = two_processes.train(two_processes.make("cuda"), *(each.cuda() for each in two_processes.batch()))
    test_distributed.test_two_processes_train_as_one(way, saved, alone)


def test_every_operator_takes_dtensors(saved):
    test_distributed.test_every_operator_takes_dtensors(saved)
