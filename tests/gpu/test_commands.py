# SPDX-License-Identifier: MIT
"""Commands and training scripts as users start them, each in its own process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu.conftest import TARGET

ROOT = Path(__file__).resolve().parents[2]
CONNECT = """
from tests.gpu import connection
connection.connect_as_parent()
"""


@pytest.fixture(scope="module")
def started(library, tmp_path_factory):
    """The output of a command. Python runs sitecustomize before it, which substitutes the GPUs."""
    folder = tmp_path_factory.mktemp("sitecustomize")
    (folder / "sitecustomize.py").write_text(CONNECT)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (folder, ROOT, *filter(None, sys.path)))),
    }

    def run(*command, status=0):
        done = subprocess.run(
            [sys.executable, *map(str, command)],
            capture_output=True,
            text=True,
            timeout=240,
            env=environment,
            cwd=folder,
        )
        assert status is None or done.returncode == status, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run


def test_doctor(started):
    report = json.loads(started("-m", "hipkittens", "doctor", "--json"))
    kernels = [row for row in report["kernels"] if row["device"] == "cuda:0"]
    assert kernels and all(row["ok"] for row in kernels)


# Depends on a GPU's clock, which a simulated kernel lacks, or on sums in the order of the matrix cores, which is a setting.
OTHERS = ("clock", "latency", "interval", "lds_banks", "matrix")


def test_probe(started):
    (run,) = json.loads(started("-m", "hipkittens", "probe", "--json", status=None))["runs"]
    assert run["device"]["arch"] == TARGET and not run["device"]["simulated"]
    answers = {fact["name"]: fact["verdict"] for fact in run["facts"] if not fact["name"].startswith(OTHERS)}
    assert len(answers) > 15 and {name: each for name, each in answers.items() if each != "agree"} == {}


TRAINING = ("--device", "cuda", "--size", "tiny", "--steps", "4", "--warmup", "1")


def losses(folder):
    lines = (folder / "losses.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def test_training(started, tmp_path):
    started(ROOT / "examples" / "train_llama.py", "--folder", tmp_path / "one", *TRAINING)
    found = losses(tmp_path / "one")
    assert len(found) >= 4 and found[-1] < found[0]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_training_on_two_gpus(started, tmp_path):
    started(ROOT / "examples" / "train_llama.py", "--folder", tmp_path / "one", *TRAINING)
    script = ("-m", "torch.distributed.run", "--nproc-per-node", "2", ROOT / "examples" / "train_llama.py")
    started(*script, "--folder", tmp_path / "two", "--fsdp", "--micro-batch", "4", *TRAINING)
    for alone, shared in zip(losses(tmp_path / "one"), losses(tmp_path / "two"), strict=True):
        assert abs(alone - shared) < 0.02
