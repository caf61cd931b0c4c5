#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a Llama in bfloat16 and with torchao's recipes of 8-bit products, and sets the loss curves on each other.

    python examples/compare_float8.py --arch gfx950 --folder runs/float8
    python examples/compare_float8.py --figure-of docs/images/float8_gfx950.json

The model is Transformers' Llama and its linear layers are torchao's Float8Linear, both as installed. Under
hipkittens.integrations.scaled_mm their matrix products run on a simulated GPU. Text, batches and initial parameters are the same in
all runs, parameters are bfloat16, and everything other than linear layers runs on PyTorch's operators. To separate rounding from the
kernels' own error, each recipe is trained a second time with torchao's emulation: PyTorch's products of the same quantized values.
The program prints the differences, and writes losses.json and losses.png into the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import platform
import sys
from pathlib import Path

import corpus
import torch
from checkpoints import write_atomically

import hipkittens
from hipkittens.integrations import scaled_mm

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
BASELINE = "bfloat16"
VOCABULARY, LENGTH, BATCH, WARMUP, LEARNING_RATE = 512, 64, 8, 5, 3e-3
_OF_GFX942 = {torch.float8_e4m3fn: torch.float8_e4m3fnuz, torch.float8_e5m2: torch.float8_e5m2fnuz}


def build(vocabulary: int):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary, hidden_size=128, intermediate_size=352, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=LENGTH, attn_implementation="eager", tie_word_embeddings=False,
        )
    )  # fmt: skip
    return model.bfloat16()


def recipe_of(name: str, arch: str, emulate: bool):
    """torchao's recipe. torchao asks the GPU which 8-bit formats it has, and there is no GPU to ask here."""
    from torchao.float8 import Float8LinearConfig

    config = Float8LinearConfig.from_recipe_name(name)
    casts = {}
    for field in dataclasses.fields(config):
        cast = getattr(config, field.name)
        if field.name.startswith("cast_config") and arch == "gfx942":
            dtype = _OF_GFX942.get(cast.target_dtype, cast.target_dtype)
            casts[field.name] = dataclasses.replace(cast, target_dtype=dtype)
    return dataclasses.replace(config, emulate=emulate, **casts)


def train(batches, vocabulary: int, arch: str, steps: int, recipe: str | None, emulate: bool) -> list[float]:
    """Train, and return the loss of each step."""
    model = build(vocabulary)
    if recipe is not None:
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(
            model, config=recipe_of(recipe, arch, emulate), module_filter_fn=lambda _, name: name != "lm_head"
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    with contextlib.ExitStack() as stack:
        if recipe is not None and not emulate:
            stack.enter_context(hipkittens.simulate(arch, threads=torch.get_num_threads()))
            stack.enter_context(scaled_mm.active())
        for step in range(1, steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(step / WARMUP, 1.0)
            (batch,) = batches.step(step)
            logits = model(batch["tokens"], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        if reasons := scaled_mm.passed_on():
            raise RuntimeError(f"products went on to PyTorch's kernels: {'; '.join(reasons)}")
    return losses


def compare(arguments: argparse.Namespace) -> dict:
    """The losses of all runs, and what they were trained on."""
    text = corpus.read_text(arguments.text)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = corpus.train_tokenizer(text, VOCABULARY, arguments.folder / "tokenizer.json")
    batches = corpus.NextTokenBatches(text, tokenizer, LENGTH, BATCH, BATCH, 0, 1)
    vocabulary = tokenizer.get_vocab_size()
    losses = {}
    for name, recipe, emulate in (
        (BASELINE, None, False),
        *((name, name, False) for name in RECIPES),
        *((f"{name}, emulated", name, True) for name in RECIPES),
    ):
        losses[name] = train(batches, vocabulary, arguments.arch, arguments.steps, recipe, emulate)
        print(f"{name}: {losses[name][0]:.4f} ... {losses[name][-1]:.4f}", file=sys.stderr)
    return {
        "arch": arguments.arch,
        "parameters": sum(value.numel() for value in build(vocabulary).parameters()),
        "python": platform.python_version(),  # whose help texts are the text, unless --text names one
        "losses": losses,
    }


def root_mean_square(one: list[float], other: list[float]) -> float:
    return (sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) / len(one)) ** 0.5


def differences(losses: dict[str, list[float]]) -> dict[str, tuple[float, float, float]]:
    """For each recipe, root mean squares over the steps: hipkittens minus the emulation, and both minus bfloat16."""
    found = {}
    for name in RECIPES:
        ours, emulated = losses[name], losses[f"{name}, emulated"]
        found[name] = (
            root_mean_square(ours, emulated),
            root_mean_square(ours, losses[BASELINE]),
            root_mean_square(emulated, losses[BASELINE]),
        )
    return found


def report(result: dict) -> str:
    losses = result["losses"]
    lines = [
        f"Llama, {result['arch']} (simulated), {len(losses[BASELINE])} steps; root mean square of differences of the loss",
        f"  {'recipe':<20} {'from emulation':>15} {'from bfloat16':>15} {'emulation from bfloat16':>24} {'last loss':>10}",
        f"  {BASELINE:<20} {'':>15} {'':>15} {'':>24} {losses[BASELINE][-1]:>10.4f}",
    ]
    for name, (first, second, third) in differences(losses).items():
        lines.append(f"  {name:<20} {first:>15.5f} {second:>15.5f} {third:>24.5f} {losses[name][-1]:>10.4f}")
    return "\n".join(lines)


def plot(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    losses = result["losses"]
    steps = range(1, len(losses[BASELINE]) + 1)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(6.4, 4.8), sharex=True, height_ratios=(3, 1.6), layout="constrained"
    )
    above.plot(steps, losses[BASELINE], color="#f2a65a", linewidth=4, label="bfloat16, PyTorch (CPU)")
    for name, color in zip(RECIPES, ("#1b3a6b", "#7a1f3d", "#2f7d4f"), strict=True):
        above.plot(steps, losses[name], color=color, linewidth=1, label=f"torchao {name}, hipkittens")
        for other, style in ((BASELINE, "-"), (f"{name}, emulated", ":")):
            apart = [max(abs(a - b), 1e-6) for a, b in zip(losses[name], losses[other], strict=True)]
            below.semilogy(steps, apart, style, color=color, linewidth=1)
    above.set_ylabel("loss (nats per token)")
    above.set_title(
        f"Llama, {result['parameters'] / 1e6:.1f} M parameters, {result['arch']} (simulated), {len(steps)} steps",
        fontsize=10,
    )
    below.plot([], [], "-", color="gray", label="recipe - bfloat16")
    below.plot([], [], ":", color="gray", label="hipkittens - torchao's emulation")
    below.set(xlabel="step", ylabel="difference")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="best")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--arch", choices=("gfx942", "gfx950"), default="gfx950", help="the simulated GPU")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="where losses.json and losses.png go")
    parser.add_argument("--steps", type=int, default=30, help="(default: %(default)s)")
    parser.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8; without it, the help texts in pydoc_data"
    )
    parser.add_argument(
        "--figure-of",
        type=Path,
        metavar="JSON",
        help="draw the figure of a losses.json beside it; train nothing",
    )
    arguments = parser.parse_args(argv)
    if bool(arguments.figure_of) == bool(arguments.folder):
        parser.error("name --folder DIR to train, or --figure-of JSON to draw")
    if arguments.steps < 1:
        parser.error(f"--steps is {arguments.steps}; 1 or more")
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.figure_of:
        result = json.loads(arguments.figure_of.read_text())
        plot(result, arguments.figure_of.with_suffix(".png"))
    else:
        try:
            result = compare(arguments)
        except ImportError as error:
            print(
                f"compare_float8.py: {error.name} is missing: pip install torchao transformers tokenizers matplotlib",
                file=sys.stderr,
            )
            return 1
        except corpus.CorpusError as error:
            print(f"compare_float8.py: {error}", file=sys.stderr)
            return 1
        write_atomically(arguments.folder / "losses.json", (json.dumps(result) + "\n").encode())
        plot(result, arguments.folder / "losses.png")
    print(report(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
