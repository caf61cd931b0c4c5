# SPDX-License-Identifier: MIT
"""A run of the examples that takes a second or two, and the contents of its log."""

import json
import random
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def text_file(folder: Path) -> Path:
    """Sixty paragraphs of a few words: easy to learn, and all different."""
    path = folder / "text.txt"
    draw = random.Random(0)
    words = ("one", "two", "three", "five", "seven", "eleven", "thirteen")
    path.write_text(
        "\n\n".join(
            " and ".join(f"{draw.choice(words)} cats" for _ in range(draw.randint(3, 12))) for _ in range(60)
        )
    )
    return path


def options(folder: Path, run: str, *more: str, steps: int = 12) -> list[str]:
    """Arguments for either script."""
    path = folder / "text.txt"
    settings = {
        "--folder": folder / run, "--text": path if path.exists() else text_file(folder), "--vocabulary": 300,
        "--length": 16, "--batch": 4, "--micro-batch": 2, "--steps": steps, "--warmup": 2, "--checkpoint-every": 5,
        "--validate-every": 6, "--validation": 1,
    }  # fmt: skip
    return [str(part) for pair in settings.items() for part in pair] + list(more)


def log(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "losses.jsonl").read_text().splitlines()]


def results(run: Path) -> list[dict]:
    """The log without the fields that depend on the clock."""
    return [
        {name: value for name, value in entry.items() if name != "tokens_per_second"} for entry in log(run)
    ]
