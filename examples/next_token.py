# SPDX-License-Identifier: MIT
"""The training program for next-token models that train_llama.py, train_mixtral.py and train_qwen3_moe.py share."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import corpus
import loss_log
import operators
import torch
import training
from torch import nn
from training import Defaults


@dataclass(frozen=True)
class Program:
    """A program that trains a next-token model.

    name        of the program, without train_ and .py
    title       of the model, in figures
    about       the first line of --help
    sizes       dataclasses with `vocabulary` and `length`, among what `build` needs
    defaults    of each size
    operations  that can be hipkittens' or PyTorch's
    build       (one of sizes, operators) -> a model called with (tokens, targets=None), like Llama's forward
    shards      whether --fsdp can shard it, by its `layers`
    """

    name: str
    title: str
    about: str
    sizes: dict[str, Any]
    defaults: dict[str, Defaults]
    operations: tuple[str, ...]
    build: Callable[[Any, operators.Operators], nn.Module]
    shards: bool = True

    def train(self, arguments: argparse.Namespace, ops: operators.Operators) -> list[dict]:
        """The entries of the run's log."""
        with training.session(arguments) as place:
            text = corpus.read_text(arguments.text)
            training.prepare_run(arguments, self.name, text, place)
            tokenizer = training.prepare_tokenizer(arguments, text, place)
            batches = corpus.NextTokenBatches(
                text, tokenizer, arguments.length, arguments.batch, arguments.micro_batch, arguments.seed,
                arguments.validation,
            )  # fmt: skip
            size = self._size(arguments, tokenizer.get_vocab_size())
            model = self.build(size, ops)
            entries = training.Trainer(model, batches, arguments, place).train()
            sample = continue_text(model, size, tokenizer, arguments, place) if arguments.sample else ""
            if place.rank == 0:
                title = f"{self.title} {arguments.size}, {training.device_name(arguments)}, {arguments.steps} steps"
                loss_log.plot(entries, title, arguments.folder / "loss.png")
                if arguments.sample:
                    (arguments.folder / "sample.txt").write_text(sample, encoding="utf-8")
                    print(sample)
            return entries

    def parse(self, argv: list[str] | None = None) -> argparse.Namespace:
        parser = training.argument_parser(self.about, self.defaults, self.operations)
        parser.add_argument(
            "--sample",
            type=int,
            default=60,
            metavar="TOKENS",
            help="to write in the end; 0: none (default: %(default)s)",
        )
        parser.add_argument(
            "--prompt", default="The ", help="what the sample continues (default: %(default)r)"
        )
        arguments = parser.parse_args(argv)
        size = self.sizes[arguments.size]
        arguments.length = arguments.length or size.length
        arguments.vocabulary = arguments.vocabulary or size.vocabulary
        if arguments.sample and not arguments.prompt:
            parser.error("--prompt is empty; give it a character or more, or --sample 0")
        if arguments.fsdp and not self.shards:
            parser.error(
                f"--fsdp: {self.title} is not sharded here; leave it out for whole copies in each process"
            )
        training.complete(parser, arguments)
        training.refuse_long_simulation(
            parser,
            arguments,
            lambda: self.build(self._size(arguments, arguments.vocabulary), operators.HIPKITTENS),
            arguments.length,
        )
        return arguments

    def main(self, argv: list[str] | None = None) -> int:
        arguments = self.parse(argv)
        sources = (getattr(arguments, operation) or "torch" for operation in operators.OPERATIONS)
        try:
            self.train(arguments, operators.from_sources(*sources))
        except (corpus.CorpusError, training.TrainingError) as error:
            print(f"train_{self.name}.py: {error}", file=sys.stderr)
            return 1
        return 0

    def _size(self, arguments: argparse.Namespace, vocabulary: int) -> Any:
        return dataclasses.replace(self.sizes[arguments.size], vocabulary=vocabulary, length=arguments.length)


@torch.no_grad()
def continue_text(
    model: nn.Module, size: Any, tokenizer, arguments: argparse.Namespace, place: training.Session
) -> str:
    """The prompt and --sample further tokens, drawn at temperature 0.8 from the 50 most likely."""
    model.eval()
    generator = torch.Generator().manual_seed(arguments.seed)
    tokens = tokenizer.encode(arguments.prompt).ids
    for _ in range(arguments.sample):
        seen = torch.tensor([tokens[-size.length :]], device=place.device)
        likeliest, which = model(seen)[0].cpu().topk(min(50, size.vocabulary))
        drawn = torch.multinomial((likeliest / 0.8).softmax(-1), 1, generator=generator)
        tokens.append(int(which[drawn]))
    return tokenizer.decode(tokens)
