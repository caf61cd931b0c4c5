# SPDX-License-Identifier: MIT
"""train_bert.py: it learns, its sequences do not see each other, and dropout resumes correctly after an interruption."""

import dataclasses

import loss_log
import operators
import pytest
import torch
import train_bert
from model_bert import SIZES, Bert
from tiny_run import log, options, results

import hipkittens


def test_it_learns(tmp_path):
    assert train_bert.main(options(tmp_path, "run", "--arch", "gfx942")) == 0
    entries = log(tmp_path / "run")
    assert [entry["step"] for entry in entries] == list(range(1, 13))
    assert sum(entry["loss"] for entry in entries[-4:]) / 4 < entries[0]["loss"] - 0.3
    assert (tmp_path / "run" / "loss.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("source", operators.SOURCES)
def test_dropout_goes_on_where_it_was(tmp_path, monkeypatch, source):
    more = ("--operators", source, "--dropout", "0.2")
    assert train_bert.main(options(tmp_path, "whole", *more, steps=8)) == 0

    class Lost(Exception):
        pass

    append = loss_log.LossLog.append

    def lost_at_seven(self, entry):
        if entry["step"] == 7:
            raise Lost
        append(self, entry)

    with monkeypatch.context() as patch, pytest.raises(Lost):
        patch.setattr(loss_log.LossLog, "append", lost_at_seven)
        train_bert.main(options(tmp_path, "cut", *more, steps=8))
    assert len(log(tmp_path / "cut")) == 6
    assert train_bert.main(options(tmp_path, "cut", *more, "--resume", steps=8)) == 0
    assert results(tmp_path / "cut") == results(tmp_path / "whole")
    # The masks matter: without dropout the losses are others.
    assert train_bert.main(options(tmp_path, "without", "--operators", source, steps=3)) == 0
    assert log(tmp_path / "without")[0]["loss"] != log(tmp_path / "whole")[0]["loss"]


@pytest.mark.parametrize("ops", (operators.HIPKITTENS, operators.TORCH), ids=operators.SOURCES)
def test_sequences_do_not_see_each_other(ops):
    """A sequence has the same logits alone and packed with others."""
    torch.manual_seed(0)
    model = Bert(dataclasses.replace(SIZES["tiny"], vocabulary=300), ops).eval()
    tokens = torch.randint(300, (12,))
    positions = torch.cat([torch.arange(5), torch.arange(7)])
    together = torch.tensor([0, 5, 12], dtype=torch.int32)
    with hipkittens.simulate("gfx950"), torch.no_grad():
        both = model.logits(tokens, positions, together, 7, torch.arange(12))
        alone = [
            model.logits(
                tokens[part], positions[part], torch.tensor([0, len(positions[part])], dtype=torch.int32),
                len(positions[part]), torch.arange(len(positions[part])),
            )
            for part in (slice(0, 5), slice(5, 12))
        ]  # fmt: skip
    torch.testing.assert_close(both, torch.cat(alone), atol=0.02, rtol=0.02)
