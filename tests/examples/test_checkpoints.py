# SPDX-License-Identifier: MIT
"""Checkpoints and the log: complete or absent, and every step once."""

import json
import os

import checkpoints
import loss_log
import pytest
import torch


class Crash(Exception):
    pass


def test_a_crash_while_saving_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    checkpoints.save(tmp_path, 5, {"step": 5, "x": torch.arange(3)}, keep=2)

    def crash_midway(state, file):
        file.write(b"half of it")
        file.flush()
        raise Crash

    for module, name, crash in (
        (torch, "save", crash_midway),
        (os, "replace", _crash),
        (os, "fsync", _crash),
    ):
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(module, name, crash)
            checkpoints.save(tmp_path, 6, {"step": 6}, keep=2)
        assert checkpoints.load(checkpoints.latest(tmp_path))["step"] == 5
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".unfinished")]
    checkpoints.save(tmp_path, 7, {"step": 7}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000005.pt", "step-00000007.pt"]


def _crash(*_arguments):
    raise Crash


def test_the_name_counts_after_the_content_is_durable(tmp_path, monkeypatch):
    order = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (order.append("fsync"), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda *paths: (order.append("replace"), replace(*paths)))
    checkpoints.write_atomically(tmp_path / "file", b"content")
    assert order == ["fsync", "replace", "fsync"]
    assert (tmp_path / "file").read_bytes() == b"content"


def test_the_last_ones_are_kept(tmp_path):
    for step in (8, 9, 10, 100):
        checkpoints.save(tmp_path, step, {"step": step}, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-00000009.pt", "step-00000010.pt", "step-00000100.pt",
    ]  # fmt: skip
    assert checkpoints.latest(tmp_path / "nowhere") is None


def test_the_log_has_every_step_once(tmp_path):
    path = tmp_path / "losses.jsonl"
    log = loss_log.LossLog(path, 0)
    for step in range(1, 6):
        log.append({"step": step, "loss": 1 / step})
    log.close()
    path.write_bytes(path.read_bytes() + b'{"step": 6, "lo')  # killed in the middle of a line
    log = loss_log.LossLog(path, 3)
    log.append({"step": 4, "loss": 0.25})
    log.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": step, "loss": 1 / step} for step in range(1, 5)
    ]
    with pytest.raises(ValueError, match="does not have the steps 1 to 9"):
        loss_log.LossLog(path, 9)
