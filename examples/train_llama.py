#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Llama to continue text, on an AMD GPU or on a simulated one.

    python examples/train_llama.py --folder runs/llama --steps 200                         # simulated gfx942
    python examples/train_llama.py --folder runs/llama --device cuda --size 1b --text book.txt
    torchrun --nproc-per-node 8 examples/train_llama.py --folder runs/llama --device cuda --size 1b --fsdp --text book.txt

examples/README.md says what a run leaves, and what it does after a crash.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

import corpus
import loss_log
import operators
import torch
import training
from model_llama import SIZES, Llama
from training import Defaults

DEFAULTS = {
    "tiny": Defaults(steps=100, batch=8, micro_batch=8, learning_rate=3e-3, warmup=10),
    "small": Defaults(steps=300, batch=8, micro_batch=8, learning_rate=2e-3, warmup=20),
    "1b": Defaults(steps=10000, batch=256, micro_batch=8, learning_rate=4e-4, warmup=500),
}


def train(arguments: argparse.Namespace, ops: operators.Operators) -> list[dict]:
    """The entries of the run's log."""
    with training.session(arguments) as place:
        text = corpus.read_text(arguments.text)
        training.prepare_run(arguments, "llama", text, place)
        tokenizer = training.prepare_tokenizer(arguments, text, place)
        batches = corpus.NextTokenBatches(
            text, tokenizer, arguments.length, arguments.batch, arguments.micro_batch, arguments.seed,
            arguments.validation,
        )  # fmt: skip
        config = dataclasses.replace(
            SIZES[arguments.size], vocabulary=tokenizer.get_vocab_size(), length=arguments.length
        )
        model = Llama(config, ops)
        entries = training.Trainer(model, batches, arguments, place).train()
        sample = continue_text(model, tokenizer, arguments, place) if arguments.sample else ""
        if place.rank == 0:
            title = f"Llama {arguments.size}, {training.device_name(arguments)}, {arguments.steps} steps"
            loss_log.plot(entries, title, arguments.folder / "loss.png")
            if arguments.sample:
                (arguments.folder / "sample.txt").write_text(sample, encoding="utf-8")
                print(sample)
        return entries


@torch.no_grad()
def continue_text(model: Llama, tokenizer, arguments: argparse.Namespace, place: training.Session) -> str:
    """The prompt and --sample further tokens, drawn at temperature 0.8 from the 50 likeliest."""
    model.eval()
    generator = torch.Generator().manual_seed(arguments.seed)
    tokens = tokenizer.encode(arguments.prompt).ids
    for _ in range(arguments.sample):
        seen = torch.tensor([tokens[-model.config.length :]], device=place.device)
        likeliest, which = model(seen)[0].cpu().topk(min(50, model.config.vocabulary))
        drawn = torch.multinomial((likeliest / 0.8).softmax(-1), 1, generator=generator)
        tokens.append(int(which[drawn]))
    return tokenizer.decode(tokens)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training.argument_parser(__doc__, DEFAULTS, ("attention", "norm", "rotary", "linear"))
    parser.add_argument(
        "--sample",
        type=int,
        default=60,
        metavar="TOKENS",
        help="to write in the end; 0: none (default: %(default)s)",
    )
    parser.add_argument("--prompt", default="The ", help="what the sample continues (default: %(default)r)")
    arguments = parser.parse_args(argv)
    config = SIZES[arguments.size]
    arguments.length = arguments.length or config.length
    arguments.vocabulary = arguments.vocabulary or config.vocabulary
    if arguments.sample and not arguments.prompt:
        parser.error("--prompt is empty; give it a character or more, or --sample 0")
    training.complete(parser, arguments)
    config = dataclasses.replace(config, vocabulary=arguments.vocabulary, length=arguments.length)
    training.refuse_long_simulation(
        parser, arguments, lambda: Llama(config, operators.HIPKITTENS), arguments.length
    )
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    ops = operators.from_sources(arguments.attention, arguments.norm, arguments.rotary, arguments.linear)
    try:
        train(arguments, ops)
    except (corpus.CorpusError, training.TrainingError) as error:
        print(f"train_llama.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
