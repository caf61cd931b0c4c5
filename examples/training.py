# SPDX-License-Identifier: MIT
"""The loop that the training programs share: arguments, processes, steps, validation, checkpoints.

A run is a folder: settings.json, tokenizer.json, losses.jsonl, checkpoints/, loss.png. With --resume it continues after its
last checkpoint, and every loss is bitwise equal to that of an uninterrupted run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import checkpoints
import corpus
import loss_log
import operators
import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import hipkittens

TARGETS = ("gfx942", "gfx950")
LONG_SIMULATION = 3600.0  # seconds; longer runs only start with --yes


class TrainingError(RuntimeError):
    """The run cannot start, or cannot resume."""


@dataclass(frozen=True)
class Defaults:
    """Defaults of one model size."""

    steps: int
    batch: int
    micro_batch: int
    learning_rate: float
    warmup: int


# What determines the losses: a run is resumed with the same values, or not at all.
DECISIVE = (
    "model", "size", "text", "vocabulary", "length", "steps", "batch", "micro_batch", "learning_rate", "warmup",
    "weight_decay", "clip", "dropout", "seed", "validate_every", "validation",
)  # fmt: skip
# What determines their rounding: it may change, and the change is reported.
ROUNDING = (
    "attention",
    "norm",
    "rotary",
    "linear",
    "experts",
    "device",
    "arch",
    "processes",
    "fsdp",
    "compile",
)


# Arguments


def argument_parser(
    description: str, sizes: dict[str, Defaults], operations: tuple[str, ...]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description.splitlines()[0], allow_abbrev=False)
    of_size, shown = "the size's own", "(default: %(default)s)"
    run = parser.add_argument_group("run")
    run.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder of the run")
    run.add_argument(
        "--resume", action="store_true", help="go on after the run's last checkpoint, if it has one"
    )
    run.add_argument("--checkpoint-every", type=positive, default=50, metavar="STEPS", help=shown)
    run.add_argument("--keep", type=positive, default=3, metavar="N", help=f"checkpoints to keep {shown}")
    run.add_argument("--validate-every", type=positive, default=50, metavar="STEPS", help=shown)
    run.add_argument("--validation", type=positive, default=4, metavar="N", help=f"its micro-batches {shown}")

    what = parser.add_argument_group("model and text")
    what.add_argument("--size", choices=sizes, default="tiny", help=shown)
    what.add_argument(
        "--text", type=Path, metavar="FILE", help="UTF-8; without it, the help texts in pydoc_data"
    )
    what.add_argument("--length", type=positive, help=f"tokens of a sequence (default: {of_size})")
    what.add_argument(
        "--vocabulary", type=positive, help=f"tokens of the tokenizer, at most (default: {of_size})"
    )

    steps = parser.add_argument_group("optimization (AdamW, cosine schedule)")
    steps.add_argument("--steps", type=positive, help=f"(default: {of_size})")
    steps.add_argument(
        "--batch", type=positive, help=f"sequences of a step, over all processes (default: {of_size})"
    )
    steps.add_argument(
        "--micro-batch",
        type=positive,
        help=f"sequences that one process takes at once; gradients of the rest of its share add up (default: {of_size})",
    )
    steps.add_argument("--learning-rate", type=number, help=f"highest (default: {of_size}); falls to a tenth")
    steps.add_argument("--warmup", type=count, help=f"steps in which it rises from 0 (default: {of_size})")
    steps.add_argument("--weight-decay", type=number, default=0.1, help=f"of matrices {shown}")
    steps.add_argument("--clip", type=number, default=1.0, help=f"largest norm of the gradient {shown}")
    steps.add_argument("--seed", type=int, default=0, help=shown)

    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help=f"cpu: a simulated GPU {shown}"
    )
    where.add_argument(
        "--arch", choices=TARGETS, help="the simulated GPU (default: HIPKITTENS_ARCH, or gfx942)"
    )
    where.add_argument(
        "--operators", choices=operators.SOURCES, default="hipkittens", help=f"all of these {shown}:"
    )
    for name in operations:
        where.add_argument(f"--{name}", choices=operators.SOURCES, help="(default: as --operators)")
    where.add_argument(
        "--fsdp", action="store_true", help="shard the parameters over the processes of torchrun (FSDP2)"
    )
    where.add_argument("--compile", action="store_true", help="torch.compile the model")
    where.add_argument("--yes", action="store_true", help="begin a simulation that takes long")
    parser.set_defaults(
        sizes=sizes, operations=operations, dropout=0.0, **dict.fromkeys(operators.OPERATIONS)
    )
    return parser


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is not 0 or more")
    return value


def number(text: str) -> float:
    value = float(text)
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return value


def fraction(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not in [0, 1)")
    return value


def complete(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> argparse.Namespace:
    """Fill in the arguments that depend on others, and end the program if they are inconsistent."""
    for field, value in dataclasses.asdict(arguments.sizes[arguments.size]).items():
        if getattr(arguments, field) is None:
            setattr(arguments, field, value)
    for operation in arguments.operations:
        if getattr(arguments, operation) is None:
            setattr(arguments, operation, arguments.operators)
    ours = [operation for operation in arguments.operations if getattr(arguments, operation) == "hipkittens"]
    arguments.simulated = bool(ours) and arguments.device == "cpu"
    arguments.processes = int(os.environ.get("WORLD_SIZE", "1"))

    if arguments.arch and arguments.device == "cuda":
        parser.error("--arch names a simulated GPU, and --device cuda runs on a real one; leave one out")
    if arguments.arch and not ours:
        parser.error("--arch names a simulated GPU, and PyTorch's operators run on the CPU; leave it out")
    if arguments.simulated and not arguments.arch:
        arguments.arch = hipkittens.simulate().arch
    if arguments.device == "cuda":
        _check_gpu(parser, ours)
    if arguments.warmup >= arguments.steps:
        parser.error(f"--warmup {arguments.warmup} is not less than --steps {arguments.steps}")
    share = arguments.micro_batch * arguments.processes
    if arguments.batch % share:
        parser.error(
            f"--batch {arguments.batch} is not a multiple of {share} = --micro-batch {arguments.micro_batch} x "
            f"{arguments.processes} processes"
        )
    if arguments.fsdp and "WORLD_SIZE" not in os.environ:
        parser.error("--fsdp shards over processes: start them with torchrun --nproc-per-node N")
    if arguments.fsdp and arguments.compile:
        parser.error("--compile and --fsdp together are not supported; leave one out")
    if not arguments.resume and (arguments.folder / "losses.jsonl").exists():
        parser.error(
            f"--folder {arguments.folder} has a run already; add --resume to go on with it, or name another folder"
        )
    try:
        import matplotlib  # noqa: F401
        import tokenizers  # noqa: F401
    except ImportError as error:
        parser.error(
            f"{error.name} is missing: pip install matplotlib tokenizers (what hipkittens[examples] names)"
        )
    return arguments


def _local_rank() -> int:
    """The local GPU that a process of torchrun uses."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def _check_gpu(parser: argparse.ArgumentParser, ours: list[str]) -> None:
    if not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no GPU; --device cpu simulates one")
    if not ours:
        return
    try:
        hipkittens.load("mul_add", device=torch.device("cuda", _local_rank()))
    except (ValueError, RuntimeError) as error:
        parser.error(f"--device cuda, --{ours[0]} hipkittens: {error}; or use --operators torch")


def refuse_long_simulation(parser, arguments, build, tokens_per_sequence: int) -> None:
    """End the program, unless --yes was given, if the simulated run would take over an hour.

    build makes the model. The estimate is a lower bound: six operations for each parameter and token, at the speed at
    which the simulator does a matrix product here.
    """
    if not arguments.simulated:
        return
    with torch.device("meta"):
        parameters = sum(value.numel() for value in build().parameters())
    size = 512
    a, b = (torch.randn(size, size, dtype=torch.bfloat16) for _ in range(2))
    with hipkittens.simulate(arguments.arch):
        hipkittens.matmul(a, b)  # loads and translates the kernel
        started = time.perf_counter()
        hipkittens.matmul(a, b)
        rate = 2 * size**3 / (time.perf_counter() - started)
    seconds = 6 * parameters * arguments.steps * arguments.batch * tokens_per_sequence / rate
    if seconds <= LONG_SIMULATION:
        return
    memory = 16 * parameters / 2**30
    estimate = (
        f"{arguments.steps} steps of {parameters:,} parameters on the simulated {arguments.arch} take at least "
        f"{_duration(seconds)} here and {memory:.1f} GiB for parameters, gradients and AdamW's moments"
    )
    if not arguments.yes:
        parser.error(f"{estimate}; add --yes to begin anyway, or use a smaller --size, or --device cuda")
    print(f"warning: {estimate}", file=sys.stderr)


def _duration(seconds: float) -> str:
    for unit, length in (("years", 31557600), ("days", 86400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds / 60:.0f} minutes"


# Processes and the run's folder


@dataclass
class Session:
    rank: int
    device: torch.device
    console: Console  # of process 0; the others' is silent


@contextlib.contextmanager
def session(arguments: argparse.Namespace) -> Iterator[Session]:
    """Context with seeds, torch's deterministic algorithms, the processes of torchrun, and the simulated GPU."""
    rank = int(os.environ.get("RANK", "0"))
    device = torch.device("cuda", _local_rank()) if arguments.device == "cuda" else torch.device("cpu")
    with contextlib.ExitStack() as stack:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
            stack.callback(dist.destroy_process_group)
        stack.enter_context(_deterministic())
        if arguments.simulated:
            stack.enter_context(hipkittens.simulate(arguments.arch, threads=torch.get_num_threads()))
        torch.manual_seed(arguments.seed)
        yield Session(rank, device, Console(stderr=True, quiet=rank > 0))


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it on CUDA
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs a write of every new tensor
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.utils.deterministic.fill_uninitialized_memory = before[1]


def prepare_run(arguments: argparse.Namespace, model_name: str, text: str, place: Session) -> None:
    """Create the folder and write settings.json, or check the settings against those that the run began with."""
    settings = {
        name: getattr(arguments, name) for name in (*DECISIVE, *ROUNDING) if name not in ("model", "text")
    }
    settings |= {"model": model_name, "text": corpus.digest(text), "torch": torch.__version__}
    path = arguments.folder / "settings.json"
    if path.exists():
        before = json.loads(path.read_text())
        for name in DECISIVE:
            if before.get(name) != settings[name]:
                raise TrainingError(
                    f"the run in {arguments.folder} began with {name} {before.get(name)} and would go on with "
                    f"{settings[name]}; resume it with the same, or name another folder"
                )
        changed = [name for name in (*ROUNDING, "torch") if before.get(name) != settings[name]]
        if changed:
            place.console.print(
                "The run goes on with other rounding: "
                + ", ".join(f"{name} {before.get(name)} -> {settings[name]}" for name in changed)
            )
    if place.rank == 0:
        arguments.folder.mkdir(parents=True, exist_ok=True)
        checkpoints.write_atomically(path, (json.dumps(settings, indent=1) + "\n").encode())


def prepare_tokenizer(arguments: argparse.Namespace, text: str, place: Session):
    """The tokenizer, trained by process 0 and read by the others."""
    path = arguments.folder / "tokenizer.json"
    if place.rank == 0:
        tokenizer = corpus.train_tokenizer(text, arguments.vocabulary, path)
    if dist.is_initialized():
        dist.barrier()
    return tokenizer if place.rank == 0 else corpus.train_tokenizer(text, arguments.vocabulary, path)


# The loop


def learning_rate(step: int, arguments: argparse.Namespace) -> float:
    """The learning rate of step 1, 2, ...: linear warm-up, then cosine decay to a tenth in the last step."""
    if step <= arguments.warmup:
        return arguments.learning_rate * step / arguments.warmup
    done = (step - arguments.warmup) / (arguments.steps - arguments.warmup)
    return arguments.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * done)))


class Trainer:
    """Trains a model on batches. The model's forward returns the sum of the losses of a micro-batch's targets."""

    def __init__(self, model: nn.Module, batches, arguments: argparse.Namespace, place: Session) -> None:
        self.arguments, self.place, self.batches = arguments, place, batches
        self.model = model.to(place.device)
        self.parallel = self._distributed()
        matrices = [value for value in model.parameters() if value.dim() >= 2]
        others = [value for value in model.parameters() if value.dim() < 2]
        groups = [
            {"params": matrices, "weight_decay": arguments.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        fused = place.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=arguments.learning_rate, betas=(0.9, 0.95), fused=fused)
        self.folder = arguments.folder / "checkpoints"

    def _distributed(self) -> nn.Module:
        """The model wrapped for all processes."""
        if self.arguments.compile:
            self.model.compile()
        if not dist.is_initialized():
            return self.model
        if not self.arguments.fsdp:
            return nn.parallel.DistributedDataParallel(self.model)
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        # A layer's result may be a view; nothing here writes into it.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        # Parameters are communicated in bfloat16, gradients in float32. Rotary's tables stay float32.
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        mesh = dist.device_mesh.init_device_mesh(self.place.device.type, (dist.get_world_size(),))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(self.model, mesh=mesh, mp_policy=policy)

    def train(self) -> list[dict]:
        """Train the remaining steps; return the log entries of the whole run."""
        done = self._restore()
        path = self.arguments.folder / "losses.jsonl"
        log = loss_log.LossLog(path, done) if self.place.rank == 0 else None
        with self._progress() as bar:
            task = bar.add_task("", total=self.arguments.steps, completed=done)
            for step in range(done + 1, self.arguments.steps + 1):
                entry = self._step(step)
                last = step == self.arguments.steps
                if last or step % self.arguments.validate_every == 0:
                    entry["validation_loss"] = self._validate()
                if log:
                    log.append(entry)
                if last or step % self.arguments.checkpoint_every == 0:
                    self._save(step)
                bar.update(task, advance=1, description=self._describe(entry))
                if "validation_loss" in entry and not self.place.console.is_terminal:
                    self.place.console.print(f"step {step}/{self.arguments.steps}: {self._describe(entry)}")
        if log:
            log.close()
        return loss_log.read(path) if log else []

    def _step(self, step: int) -> dict:
        started = time.perf_counter()
        rate = learning_rate(step, self.arguments)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        whole = self.batches.step(step)
        targets = sum(batch["targets"].numel() for batch in whole)
        tokens = sum(batch["tokens"].numel() for batch in whole)
        processes = self.arguments.processes
        mine = whole[self.place.rank :: processes]
        total = torch.zeros((), device=self.place.device)
        for number, batch in enumerate(mine):
            with self._synchronized(number == len(mine) - 1):
                loss = self.parallel(**self._moved(batch))
                # Every target of the step has the same weight, in whichever micro-batch it is. Gradients of processes are
                # averaged, hence the factor.
                (loss * (processes / targets)).backward()
            total += loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.arguments.clip)
        norm = (norm.full_tensor() if self.arguments.fsdp else norm).item()
        loss = self._sum(total).item() / targets
        if not (math.isfinite(loss) and math.isfinite(norm)):
            last = checkpoints.latest(self.folder)
            raise TrainingError(
                f"step {step}: the loss is {loss} and the gradient's norm {norm}; nothing was changed since "
                f"{last if last else 'the beginning was not saved'}"
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {
            "step": step,
            "loss": loss,
            "gradient_norm": norm,
            "learning_rate": rate,
            "tokens_per_second": round(tokens / (time.perf_counter() - started), 1),
        }

    @contextlib.contextmanager
    def _synchronized(self, last: bool) -> Iterator[None]:
        """Context in which processes exchange gradients only once per step, in the last micro-batch."""
        if self.arguments.fsdp:
            self.model.set_requires_gradient_sync(last)
        waits = dist.is_initialized() and not self.arguments.fsdp and not last
        with self.parallel.no_sync() if waits else contextlib.nullcontext():
            yield

    @torch.no_grad()
    def _validate(self) -> float:
        """Loss per target on the held-out text."""
        self.model.eval()
        held_out, processes = self.batches.validation, self.arguments.processes
        total = torch.zeros((), device=self.place.device)
        for first in range(
            0, len(held_out), processes
        ):  # equally often in every process: with --fsdp they need each other
            index = first + self.place.rank
            loss = self.model(**self._moved(held_out[min(index, len(held_out) - 1)]))
            total += loss * (index < len(held_out))
        self.model.train()
        return self._sum(total).item() / sum(batch["targets"].numel() for batch in held_out)

    def _moved(self, batch: dict) -> dict:
        return {
            name: value.to(self.place.device) if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        if dist.is_initialized():
            dist.all_reduce(value)
        return value

    # Checkpoints

    def _save(self, step: int) -> None:
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimizer = get_state_dict(self.model, self.optimizer, options=options)
        random = {"cpu": torch.get_rng_state()}
        if self.place.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.place.device)
        randoms: list = [random]
        if dist.is_initialized():
            randoms = [None] * self.arguments.processes
            dist.all_gather_object(randoms, random)
        if self.place.rank == 0:
            # The schedule and the position in the text are functions of the step.
            state = {"step": step, "model": model, "optimizer": optimizer, "random": randoms}
            checkpoints.save(self.folder, step, state, self.arguments.keep)
        if dist.is_initialized():
            dist.barrier()

    def _restore(self) -> int:
        """Load the last checkpoint; return the number of completed steps."""
        path = checkpoints.latest(self.folder)
        if path is None:
            return 0
        state = checkpoints.load(path)
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=options,
        )
        random = state["random"][self.place.rank % len(state["random"])]
        torch.set_rng_state(random["cpu"])
        if self.place.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.place.device)
        self.place.console.print(f"Going on after step {state['step']}, from {path}")
        return state["step"]

    # What is shown

    def _describe(self, entry: dict) -> str:
        validation = f", validation {entry['validation_loss']:.4f}" if "validation_loss" in entry else ""
        return f"loss {entry['loss']:.4f}{validation}, {entry['tokens_per_second']:,.0f} tokens/s"

    def _progress(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.place.console,
            disable=not self.place.console.is_terminal,
            transient=True,
        )


def device_name(arguments: argparse.Namespace) -> str:
    """The device that the run's operators ran on, for titles."""
    if arguments.simulated:
        return f"{arguments.arch} (simulated)"
    return torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
