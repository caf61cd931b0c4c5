#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a BERT to name masked tokens, on an AMD GPU or on a simulated one.

    python examples/train_bert.py --folder runs/bert --steps 200                           # simulated gfx942
    python examples/train_bert.py --folder runs/bert --device cuda --size 110m --text book.txt
    torchrun --nproc-per-node 8 examples/train_bert.py --folder runs/bert --device cuda --size 110m --text book.txt

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import corpus
import loss_log
import operators
import training
from model_bert import SIZES, Bert
from training import Defaults

DEFAULTS = {
    "tiny": Defaults(steps=100, batch=8, micro_batch=8, learning_rate=3e-3, warmup=10),
    "small": Defaults(steps=300, batch=16, micro_batch=16, learning_rate=3e-3, warmup=20),
    "110m": Defaults(steps=20000, batch=256, micro_batch=32, learning_rate=4e-4, warmup=1000),
}


def train(arguments: argparse.Namespace, ops: operators.Operators) -> list[dict]:
    """The entries of the run's log."""
    with training.session(arguments) as place:
        text = corpus.read_text(arguments.text)
        training.prepare_run(arguments, "bert", text, place)
        tokenizer = training.prepare_tokenizer(arguments, text, place)
        batches = corpus.MaskedTokenBatches(
            text, tokenizer, arguments.length, arguments.batch, arguments.micro_batch, arguments.seed,
            arguments.validation,
        )  # fmt: skip
        config = dataclasses.replace(
            SIZES[arguments.size],
            vocabulary=tokenizer.get_vocab_size(),
            length=arguments.length,
            dropout=arguments.dropout,
        )
        entries = training.Trainer(Bert(config, ops), batches, arguments, place).train()
        if place.rank == 0:
            title = f"BERT {arguments.size}, {training.device_name(arguments)}, {arguments.steps} steps"
            loss_log.plot(entries, title, arguments.folder / "loss.png")
        return entries


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training.argument_parser(__doc__, DEFAULTS, ("attention", "norm", "linear"))
    parser.add_argument("--dropout", type=training.fraction, help="probability (default: the size's own)")
    arguments = parser.parse_args(argv)
    config = SIZES[arguments.size]
    arguments.length = arguments.length or config.length
    arguments.vocabulary = arguments.vocabulary or config.vocabulary
    if arguments.dropout is None:
        arguments.dropout = config.dropout
    if arguments.length < 2:
        parser.error("--length is 1; a sequence needs a token and its end")
    training.complete(parser, arguments)
    config = dataclasses.replace(config, vocabulary=arguments.vocabulary, length=arguments.length)
    # Paragraphs may be shorter than the length; the estimate assumes a quarter of it.
    training.refuse_long_simulation(
        parser, arguments, lambda: Bert(config, operators.HIPKITTENS), max(1, arguments.length // 4)
    )
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    # BERT learns its positions: there is no rotation.
    ops = operators.from_sources(arguments.attention, arguments.norm, "torch", arguments.linear)
    try:
        train(arguments, ops)
    except (corpus.CorpusError, training.TrainingError) as error:
        print(f"train_bert.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
