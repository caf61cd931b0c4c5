# SPDX-License-Identifier: MIT
"""train_llama.py: it learns, and neither a killed process nor another number of processes changes the losses."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
import train_llama
from tiny_run import EXAMPLES, log, options, results

SCRIPT = str(EXAMPLES / "train_llama.py")


def refused(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        train_llama.parse([*arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_it_learns_and_leaves_a_complete_run(tmp_path, capsys):
    assert train_llama.main(options(tmp_path, "run", "--arch", "gfx950", "--sample", "4")) == 0
    run = tmp_path / "run"
    entries = log(run)
    assert [entry["step"] for entry in entries] == list(range(1, 13))
    assert entries[-1]["loss"] < entries[0]["loss"] - 0.3
    assert [entry["step"] for entry in entries if "validation_loss" in entry] == [6, 12]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == [
        "step-00000005.pt", "step-00000010.pt", "step-00000012.pt",
    ]  # fmt: skip
    assert (run / "loss.png").read_bytes().startswith(b"\x89PNG")
    sample = (run / "sample.txt").read_text()
    assert sample.startswith("The ") and len(sample) > 4
    assert sample in capsys.readouterr().out


def test_a_killed_run_goes_on_to_the_same_losses(tmp_path):
    """With real processes and a real SIGKILL: one uninterrupted run, and one that is killed and resumed."""
    tail = ("--sample", "0", "--arch", "gfx950")

    def start(run, *more):
        command = [sys.executable, SCRIPT, *options(tmp_path, run, *tail, *more, steps=14)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    killed = start("killed")
    path = tmp_path / "killed" / "losses.jsonl"
    deadline = time.monotonic() + 300
    while not path.exists() or path.read_bytes().count(b"\n") < 7:
        assert killed.poll() is None, killed.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL
    before = results(tmp_path / "killed")
    assert 7 <= len(before) < 14

    whole, resumed = start("whole"), start("killed", "--resume")
    for process in (whole, resumed):
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert "Going on after step " in errors
    assert results(tmp_path / "killed") == results(tmp_path / "whole")
    assert results(tmp_path / "killed")[: len(before)] == before


@pytest.fixture
def one_process(monkeypatch, tmp_path):
    """The environment that torchrun --nproc-per-node 1 sets."""
    for name, value in {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    yield
    assert not dist.is_initialized()


@pytest.mark.parametrize("sharded", (False, True), ids=("ddp", "fsdp"))
def test_distributed_wrappers_change_nothing(tmp_path, one_process, monkeypatch, sharded):
    quick = ("--sample", "0", "--operators", "torch")
    more = ("--fsdp",) if sharded else ()
    assert train_llama.main(options(tmp_path, "wrapped", *quick, *more, steps=6)) == 0
    monkeypatch.undo()
    assert train_llama.main(options(tmp_path, "plain", *quick, steps=6)) == 0
    wrapped, plain = results(tmp_path / "wrapped"), results(tmp_path / "plain")
    if not sharded:
        assert wrapped == plain
    for one, other in zip(wrapped, plain, strict=True):  # FSDP rounds the norms' weights, too
        assert one["loss"] == pytest.approx(other["loss"], abs=5e-3)
    states = [
        torch.load(tmp_path / run / "checkpoints" / "step-00000006.pt", weights_only=True)
        for run in ("wrapped", "plain")
    ]
    assert states[0]["model"].keys() == states[1]["model"].keys()
    assert states[0]["optimizer"]["state"].keys() == states[1]["optimizer"]["state"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("more", ((), ("--fsdp",)), ids=("ddp", "fsdp"))
def test_two_processes_train_as_one(tmp_path, more):
    """Each process takes half of every batch; an interrupted run resumes with the same losses."""
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        SCRIPT,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def run(name, *further):
        command = [*torchrun, *options(tmp_path, name, "--sample", "0", *more, *further)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    run("two")
    assert train_llama.main(options(tmp_path, "one", "--sample", "0")) == 0
    two, one = log(tmp_path / "two"), log(tmp_path / "one")
    for a, b in zip(two, one, strict=True):
        assert a["loss"] == pytest.approx(b["loss"], abs=2e-2)
    assert two[0]["loss"] == pytest.approx(one[0]["loss"], abs=1e-3)

    cut = tmp_path / "cut"
    cut.mkdir()
    for name in ("settings.json", "tokenizer.json", "losses.jsonl"):
        (cut / name).write_bytes((tmp_path / "two" / name).read_bytes())
    (cut / "checkpoints").mkdir()
    saved = "checkpoints/step-00000005.pt"
    (cut / saved).write_bytes((tmp_path / "two" / saved).read_bytes())
    run("cut", "--resume")
    assert results(cut) == results(tmp_path / "two")


@pytest.mark.slow
def test_compiled(tmp_path):
    quick = ("--sample", "0", "--arch", "gfx950")
    assert train_llama.main(options(tmp_path, "compiled", "--compile", *quick, steps=4)) == 0
    assert train_llama.main(options(tmp_path, "eager", *quick, steps=4)) == 0
    for one, other in zip(log(tmp_path / "compiled"), log(tmp_path / "eager"), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-2)


def test_a_run_is_resumed_with_its_own_settings(tmp_path, capsys):
    quick = ("--sample", "0", "--operators", "torch")
    assert train_llama.main(options(tmp_path, "run", *quick, steps=3)) == 0
    assert "add --resume" in refused(capsys, *options(tmp_path, "run", *quick, steps=3))
    assert train_llama.main(options(tmp_path, "run", "--resume", "--seed", "1", *quick, steps=3)) == 1
    assert "began with seed 0 and would go on with 1" in capsys.readouterr().err
    before = log(tmp_path / "run")
    assert (
        train_llama.main(options(tmp_path, "run", "--resume", *quick, steps=3)) == 0
    )  # nothing is left to do
    assert log(tmp_path / "run") == before


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path, capsys):
    wild = ("--sample", "0", "--operators", "torch", "--learning-rate", "1e30", "--clip", "1e30")
    assert train_llama.main(options(tmp_path, "run", *wild)) == 1
    assert "the gradient's norm" in capsys.readouterr().err
    assert len(log(tmp_path / "run")) < 12


def test_what_cannot_work_is_refused_first(tmp_path, capsys, monkeypatch):
    def given(*more):
        return refused(capsys, *options(tmp_path, "run", *more))

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "this torch sees no GPU" in given("--device", "cuda")
    assert "leave one out" in given("--device", "cuda", "--arch", "gfx950")
    assert "PyTorch's operators run on the CPU" in given("--operators", "torch", "--arch", "gfx950")
    assert "not a multiple of 3 = --micro-batch 3 x 1 processes" in given("--micro-batch", "3")
    assert "not less than --steps 12" in given("--warmup", "12")
    assert "start them with torchrun" in given("--fsdp")
    assert "--keep: 0 is not 1 or more" in given("--keep", "0")
    assert "add --yes" in refused(capsys, "--folder", str(tmp_path / "run"), "--size", "1b")
    assert not (tmp_path / "run").exists()


def test_an_nvidia_gpu_is_refused_by_our_kernels(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    message = refused(
        capsys, *options(tmp_path, "run", "--device", "cuda", "--operators", "torch", "--norm", "hipkittens")
    )
    assert (
        "--norm hipkittens: hipkittens.load: device is cuda" in message
        and "an AMD GPU; or use --operators" in message
    )


def test_texts_that_are_too_short_or_missing(tmp_path, capsys):
    quick = ("--sample", "0", "--operators", "torch")
    (tmp_path / "text.txt").write_text("a few words")
    assert train_llama.main(options(tmp_path, "short", *quick)) == 1
    assert "give a longer text" in capsys.readouterr().err
    missing = options(tmp_path, "missing", *quick)
    missing[missing.index("--text") + 1] = str(tmp_path / "nothing.txt")
    assert train_llama.main(missing) == 1
    assert "No such file" in capsys.readouterr().err
    small = options(tmp_path, "small", *quick)
    small[small.index("--vocabulary") + 1] = "100"
    assert train_llama.main(small) == 1
    assert "needs 258 tokens or more" in capsys.readouterr().err
