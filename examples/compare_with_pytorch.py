#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains one model twice, by hipkittens and by PyTorch, and sets the loss curves on each other.

    python examples/compare_with_pytorch.py llama --arch gfx950 --folder runs/llama_gfx950
    python examples/compare_with_pytorch.py --figure-of docs/images/llama_gfx950.json

Text, batches and initial parameters are the same; attention, norms, rotary embeddings and linear layers differ. In bfloat16 two runs
drift apart through rounding alone. To measure how far, PyTorch trains the model a third time with a different summation order.
The program prints the differences, and writes losses.json and losses.png into the run's folder. An interrupted comparison resumes
where it stopped.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import operators
import torch
import torch.nn.functional as F
import train_bert
import train_llama
import train_mixtral
import train_qwen3_moe
import train_qwen3_next
from checkpoints import write_atomically

NAMES = {
    "llama": "Llama",
    "bert": "BERT",
    "mixtral": "Mixtral",
    "qwen3_moe": "Qwen3-MoE",
    "qwen3_next": "Qwen3-Next",
}
SCRIPTS = {
    "llama": train_llama,
    "bert": train_bert,
    "mixtral": train_mixtral,
    "qwen3_moe": train_qwen3_moe,
    "qwen3_next": train_qwen3_next,
}


# PyTorch's operations with float32 sums in another order: scores, weights and products written out.


def _attention(q, k, v):
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, 2) for tensor in (k, v))
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    return _weighted(q, k, v, hidden)


def _packed_attention(q, k, v, cu_seqlens, longest, dropout_p):
    seen = operators.places_seen(cu_seqlens, longest)
    q, k, v = (operators.padded(tensor, seen) for tensor in (q, k, v))
    return _weighted(q, k, v, ~seen[:, None, None, :])[seen]


def _weighted(q, k, v, hidden):
    q, k, v = (tensor.float().transpose(1, 2) for tensor in (q, k, v))
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return (weights @ v).transpose(1, 2).bfloat16()


def _linear(x, weight, bias):
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


OTHER_ORDER = operators.Operators(
    attention=_attention,
    attention_varlen=_packed_attention,
    rms_norm=operators.TORCH.rms_norm,
    layer_norm=operators.TORCH.layer_norm,
    rotary=operators.TORCH.rotary,
    linear=_linear,
)

RUNS = {
    "hipkittens": ("hipkittens", operators.HIPKITTENS),
    "pytorch": ("torch", operators.TORCH),
    "pytorch_other_order": ("torch", OTHER_ORDER),
}


def compare(arguments: argparse.Namespace) -> dict:
    """Train the runs that are not trained yet; return the losses of all three runs, and what they were trained on."""
    script = SCRIPTS[arguments.model]
    losses = {}
    for name, (source, ops) in RUNS.items():
        options = [
            "--resume",
            "--folder",
            str(arguments.folder / name),
            "--operators",
            source,
            *arguments.training,
        ]
        if source == "hipkittens":
            options += ["--arch", arguments.arch]
        if arguments.model != "bert":
            options += ["--sample", "0"]
        run = script.parse(options)
        losses[name] = [entry["loss"] for entry in script.train(run, ops)]
    settings = json.loads((arguments.folder / "hipkittens" / "settings.json").read_text())
    settings["python"] = platform.python_version()  # whose help texts are the text, unless --text names one
    parameters = sum(
        value.numel()
        for value in torch.load(
            max((arguments.folder / "hipkittens" / "checkpoints").glob("step-*.pt")), weights_only=True
        )["model"].values()
    )
    return {"model": arguments.model, "arch": arguments.arch, "parameters": parameters} | {
        "settings": settings,
        "losses": losses,
    }


def differences(losses: dict[str, list[float]]) -> dict[str, list[float]]:
    """Per step: hipkittens minus PyTorch, and PyTorch minus itself with another summation order."""

    def apart(one: str, other: str) -> list[float]:
        return [abs(a - b) for a, b in zip(losses[one], losses[other], strict=True)]

    return {"hipkittens": apart("hipkittens", "pytorch"), "noise": apart("pytorch_other_order", "pytorch")}


def report(result: dict) -> str:
    found = differences(result["losses"])
    lines = [f"{NAMES[result['model']]}, {result['arch']} (simulated), {len(found['noise'])} steps"]
    for name, text in (
        ("hipkittens", "hipkittens - PyTorch"),
        ("noise", "PyTorch in another order - PyTorch"),
    ):
        values = found[name]
        mean_square = (sum(value**2 for value in values) / len(values)) ** 0.5
        lines.append(f"  {text:<36} largest {max(values):.4f}, root mean square {mean_square:.5f}")
    for name in RUNS:
        last = result["losses"][name][-20:]
        lines.append(f"  mean loss of the last {len(last)} steps, {name:<20} {sum(last) / len(last):.4f}")
    return "\n".join(lines)


def plot(result: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    losses, found = result["losses"], differences(result["losses"])
    steps = range(1, len(losses["pytorch"]) + 1)
    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(6.4, 4.8), sharex=True, height_ratios=(3, 1.4), layout="constrained"
    )
    above.plot(steps, losses["pytorch"], color="#f2a65a", linewidth=4, label="PyTorch (CPU)")
    above.plot(
        steps, losses["hipkittens"], color="#1b3a6b", linewidth=1, label=f"hipkittens ({result['arch']})"
    )
    above.set_ylabel("loss (nats per token)")
    above.set_title(
        f"{NAMES[result['model']]}, {result['parameters'] / 1e6:.1f} M parameters, {result['arch']} (simulated), "
        f"{len(steps)} steps",
        fontsize=10,
    )
    below.semilogy(
        steps, found["noise"], color="#f2a65a", linewidth=1, label="PyTorch in another order - PyTorch"
    )
    below.semilogy(steps, found["hipkittens"], color="#1b3a6b", linewidth=1, label="hipkittens - PyTorch")
    below.set(xlabel="step", ylabel="difference")
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="best")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        allow_abbrev=False,
        epilog="Further arguments go to the model's training program: --size small, --steps 300, --text FILE, ...",
    )
    parser.add_argument("model", nargs="?", choices=NAMES)
    parser.add_argument("--arch", choices=("gfx942", "gfx950"), default="gfx942", help="the simulated GPU")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="folder of the three runs")
    parser.add_argument(
        "--figure-of",
        type=Path,
        metavar="JSON",
        help="draw the figure of a losses.json beside it; train nothing",
    )
    arguments, arguments.training = parser.parse_known_args(argv)
    if arguments.figure_of and (arguments.model or arguments.folder or arguments.training):
        parser.error("--figure-of trains nothing and takes no other argument")
    if not arguments.figure_of and not (arguments.model and arguments.folder):
        parser.error("name a model and --folder DIR, or --figure-of JSON")
    for option in (
        "--device",
        "--operators",
        "--attention",
        "--norm",
        "--rotary",
        "--linear",
        "--experts",
        "--resume",
    ):
        if any(given.split("=")[0] == option for given in arguments.training):
            parser.error(f"{option} is what the three runs differ in, or share; leave it out")
    if any(given.split("=")[0] == "--dropout" for given in arguments.training):
        parser.error(
            "--dropout: hipkittens and PyTorch drop different elements, so their losses would differ"
        )
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.figure_of:
        result = json.loads(arguments.figure_of.read_text())
        plot(result, arguments.figure_of.with_suffix(".png"))
    else:
        result = compare(arguments)
        write_atomically(arguments.folder / "losses.json", (json.dumps(result) + "\n").encode())
        plot(result, arguments.folder / "losses.png")
    print(report(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
