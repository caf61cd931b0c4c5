# SPDX-License-Identifier: MIT
"""Batches are a function of the step, use every sample once per epoch, and never contain held-out text."""

import corpus
import pytest
import torch
from tiny_run import text_file


@pytest.fixture
def text(tmp_path):
    return text_file(tmp_path).read_text()


@pytest.fixture
def tokenizer(text, tmp_path):
    return corpus.train_tokenizer(text, 300, tmp_path / "tokenizer.json")


def test_the_tokenizer_is_saved_and_gives_text_back(text, tokenizer, tmp_path):
    assert tokenizer.get_vocab_size() <= 300
    assert tokenizer.decode(tokenizer.encode("naïve ★ one cats").ids) == "naïve ★ one cats"
    again = corpus.train_tokenizer("other text", 400, tmp_path / "tokenizer.json")  # read, not trained anew
    assert again.get_vocab() == tokenizer.get_vocab()
    fresh = corpus.train_tokenizer(text, 300, tmp_path / "fresh.json")
    assert fresh.get_vocab() == tokenizer.get_vocab()


def test_an_epoch_has_every_sample_once():
    samples = corpus.Samples(10, seed=3)
    steps = [samples.of_step(step, 4) for step in range(1, 6)]
    drawn = [index for step in steps for index in step]
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10] != drawn[10:]
    assert corpus.Samples(10, seed=3).of_step(4, 4) == steps[3]  # whatever was asked before
    assert corpus.Samples(10, seed=4).of_step(1, 4) != steps[0]


def test_targets_are_the_next_tokens_of_text_that_is_not_held_out(text, tokenizer):
    batches = corpus.NextTokenBatches(text, tokenizer, 16, 4, 2, 0, 1)
    trained = {tuple(window.tolist()) for window in batches.windows}
    micro_batches = batches.step(1)
    assert len(micro_batches) == 2
    for batch in micro_batches:
        assert batch["tokens"].shape == batch["targets"].shape == (2, 16)
        assert torch.equal(batch["tokens"][:, 1:], batch["targets"][:, :-1])
    whole = torch.cat([batches.validation[0]["tokens"], batches.validation[0]["targets"][:, -1:]], 1)
    assert not [row for row in whole.tolist() if tuple(row) in trained]


def test_masked_batches(text, tokenizer):
    batches = corpus.MaskedTokenBatches(text, tokenizer, 16, 8, 8, 0, 1)
    end, mask = tokenizer.token_to_id(corpus.END), tokenizer.token_to_id(corpus.MASK)
    chosen = masked = tokens = 0
    for step in range(1, 60):
        (batch,) = batches.step(step)
        ends = batch["cu_seqlens"].tolist()
        lengths = batch["cu_seqlens"].diff().tolist()
        assert ends[0] == 0 and ends[-1] == len(batch["tokens"]) and batch["longest"] == max(lengths) <= 16
        assert batch["positions"].tolist() == [place for length in lengths for place in range(length)]
        assert all(batch["tokens"][last - 1] == end for last in ends[1:])
        assert not (batch["targets"] == end).any()
        restored = batch["tokens"].clone()
        restored[batch["masked"]] = batch["targets"]
        originals = [batches.sequences[index] for index in batches.samples.of_step(step, 8)]
        assert torch.equal(restored, torch.cat(originals))
        chosen += len(batch["masked"])
        masked += int((batch["tokens"] == mask).sum())
        tokens += len(restored)
    assert chosen / tokens == pytest.approx(0.15 * (1 - 59 * 8 / tokens), abs=0.02)
    assert masked / chosen == pytest.approx(0.8, abs=0.05)
    again = corpus.MaskedTokenBatches(text, tokenizer, 16, 8, 8, 0, 1).step(59)[0]
    assert all(torch.equal(torch.as_tensor(again[name]), torch.as_tensor(batch[name])) for name in batch)


def test_a_batch_always_has_a_target(text, tokenizer, monkeypatch):
    monkeypatch.setattr(corpus.MaskedTokenBatches, "CHOSEN", 0.0)
    for batch in corpus.MaskedTokenBatches(text, tokenizer, 16, 4, 1, 0, 1).step(1):
        assert len(batch["targets"]) == 1
