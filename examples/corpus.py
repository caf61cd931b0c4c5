# SPDX-License-Identifier: MIT
"""Text, a tokenizer trained on it, and the batches of every step.

The data of a step is a pure function of the text, the seed and the step number. A run that resumes after a crash therefore needs
only its step number, and the batch is the same for any number of processes sharing it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from checkpoints import write_atomically
from torch import Tensor

END, MASK = "<|end|>", "<|mask|>"
Batch = dict[
    str, "Tensor | int"
]  # arguments of the model's forward; `targets` has one entry for each term of the loss


class CorpusError(ValueError):
    """The text, or the data made from it, cannot be trained on."""


def read_text(path: Path | None) -> str:
    """The file's text (UTF-8), or by default the help texts on the Python language that come with Python (460,000 characters)."""
    if path is None:
        try:
            from pydoc_data.topics import topics
        except ImportError:
            raise CorpusError(
                "this Python comes without pydoc_data; name a text to train on with --text FILE"
            ) from None
        return "\n\n".join(topics[name] for name in sorted(topics))
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"--text {path}: {error}") from None


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def train_tokenizer(text: str, vocabulary: int, path: Path):
    """Train a byte-level BPE of at most `vocabulary` tokens and save it as path; an existing file there is loaded instead."""
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError:
        raise CorpusError("the tokenizer needs a package: pip install tokenizers") from None
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    smallest = len(alphabet) + 2
    if vocabulary < smallest:
        raise CorpusError(
            f"--vocabulary is {vocabulary}; a byte-level tokenizer needs {smallest} tokens or more"
        )
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END, MASK],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_paragraphs(text), trainer)
    write_atomically(path, tokenizer.to_str(pretty=True).encode())
    return tokenizer


def _paragraphs(text: str) -> list[str]:
    return [part for part in re.split(r"\n[ \t]*\n", text) if part.strip()]


class Samples:
    """An endless sequence of samples: consecutive permutations of 0 .. count - 1, each drawn from (seed, epoch)."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._epoch, self._order = -1, []

    def __getitem__(self, index: int) -> int:
        epoch, place = divmod(index, self.count)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._epoch, self._order = epoch, torch.randperm(self.count, generator=generator).tolist()
        return self._order[place]

    def of_step(self, step: int, batch: int) -> list[int]:
        """The samples of step 1, 2, ...; every sample of an epoch is used."""
        return [self[(step - 1) * batch + place] for place in range(batch)]


def _held_out(items: list, smallest: int, what: str) -> tuple[list, list]:
    """Split into training and validation: the last twentieth is held out."""
    validation = max(len(items) // 20, smallest)
    if len(items) < 2 * smallest or len(items) <= validation:
        raise CorpusError(
            f"the text has {len(items)} {what}, and a batch takes {smallest}; give a longer text, or a smaller --batch"
        )
    return items[:-validation], items[-validation:]


class NextTokenBatches:
    """Windows of `length` tokens, with the next token of each as its target."""

    def __init__(
        self, text: str, tokenizer, length: int, batch: int, micro_batch: int, seed: int, validation: int
    ) -> None:
        """validation: micro-batches of text that is never trained on."""
        end = tokenizer.token_to_id(END)
        encoded = tokenizer.encode_batch(_paragraphs(text))
        tokens = torch.tensor([token for part in encoded for token in (*part.ids, end)])
        windows = list(tokens.unfold(0, length + 1, length)) if len(tokens) > length else []
        self.windows, held_out = _held_out(windows, batch, f"windows of {length} tokens")
        self.batch, self.micro_batch = batch, micro_batch
        self.samples = Samples(len(self.windows), seed)
        self.validation = list(self._batches(held_out[: validation * micro_batch]))

    def step(self, step: int) -> list[Batch]:
        """The step's micro-batches, of all processes."""
        chosen = [self.windows[index] for index in self.samples.of_step(step, self.batch)]
        return list(self._batches(chosen))

    def _batches(self, windows: list[Tensor]) -> Iterator[Batch]:
        for first in range(0, len(windows), self.micro_batch):
            rows = torch.stack(windows[first : first + self.micro_batch])
            yield {"tokens": rows[:, :-1].contiguous(), "targets": rows[:, 1:].contiguous()}


class MaskedTokenBatches:
    """Paragraphs, each with an end token, packed without padding; some tokens are masked and have to be predicted."""

    CHOSEN, MASKED, REPLACED = (
        0.15,
        0.8,
        0.1,
    )  # of all tokens; of the chosen: masked, replaced (the rest stay)

    def __init__(
        self, text: str, tokenizer, length: int, batch: int, micro_batch: int, seed: int, validation: int
    ) -> None:
        self.end, self.mask = tokenizer.token_to_id(END), tokenizer.token_to_id(MASK)
        self.vocabulary, self.seed = tokenizer.get_vocab_size(), seed
        sequences = []
        for part in tokenizer.encode_batch(_paragraphs(text)):
            for first in range(0, len(part.ids), length - 1):
                sequences.append(torch.tensor([*part.ids[first : first + length - 1], self.end]))
        self.sequences, held_out = _held_out(sequences, batch, "paragraphs")
        self.batch, self.micro_batch = batch, micro_batch
        self.samples = Samples(len(self.sequences), seed)
        # Step 0 is not a training step: its masks are those of validation.
        self.validation = list(self._batches(held_out[: validation * micro_batch], 0))

    def step(self, step: int) -> list[Batch]:
        """The step's micro-batches, of all processes."""
        chosen = [self.sequences[index] for index in self.samples.of_step(step, self.batch)]
        return list(self._batches(chosen, step))

    def _batches(self, sequences: list[Tensor], step: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        for first in range(0, len(sequences), self.micro_batch):
            yield self._packed(sequences[first : first + self.micro_batch], generator)

    def _packed(self, sequences: list[Tensor], generator: torch.Generator) -> Batch:
        tokens = torch.cat(sequences)
        lengths = [len(sequence) for sequence in sequences]
        masked = (
            (torch.rand(len(tokens), generator=generator) < self.CHOSEN) & (tokens != self.end)
        ).nonzero()
        masked = masked.flatten()
        if not len(masked):  # a few tokens, by chance: without any there is nothing to learn from
            masked = (tokens != self.end).nonzero()[0]
        targets = tokens[masked]
        draw = torch.rand(len(masked), generator=generator)
        other = torch.randint(self.vocabulary, (len(masked),), generator=generator)
        seen = torch.where(draw < self.MASKED + self.REPLACED, other, targets)
        tokens[masked] = torch.where(draw < self.MASKED, self.mask, seen)
        return {
            "tokens": tokens,
            "positions": torch.cat([torch.arange(length) for length in lengths]),
            "cu_seqlens": torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
            "longest": max(lengths),
            "masked": masked,
            "targets": targets,
        }
