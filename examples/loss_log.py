# SPDX-License-Identifier: MIT
"""The log of a run, one JSON object per step and line, and a plot of it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from checkpoints import write_atomically


class LossLog:
    """A log of steps. Each step is on disk when `append` returns, and appears exactly once, even after a crash."""

    def __init__(self, path: Path, last_step: int) -> None:
        """Continue after last_step: entries of later steps, which will be repeated, are dropped from the file."""
        kept = [entry for entry in read(path) if entry["step"] <= last_step] if path.exists() else []
        if [entry["step"] for entry in kept] != list(range(1, last_step + 1)):
            raise ValueError(
                f"{path} does not have the steps 1 to {last_step} of the checkpoint; the run cannot be resumed"
            )
        write_atomically(path, "".join(_line(entry) for entry in kept).encode())
        self._file = open(path, "a")  # noqa: SIM115

    def append(self, entry: dict) -> None:
        self._file.write(_line(entry))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(entry: dict) -> str:
    return json.dumps(entry) + "\n"


def read(path: Path) -> list[dict]:
    """The entries of all complete lines; a line truncated by a crash is ignored."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def plot(entries: list[dict], title: str, path: Path) -> None:
    """Plot training and validation loss as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    axes.plot([entry["step"] for entry in entries], [entry["loss"] for entry in entries], label="training")
    validated = [entry for entry in entries if "validation_loss" in entry]
    if validated:
        steps = [entry["step"] for entry in validated]
        axes.plot(steps, [entry["validation_loss"] for entry in validated], "o-", ms=3, label="validation")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
