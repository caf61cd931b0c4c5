# SPDX-License-Identifier: MIT
"""flash-linear-attention's Triton kernels for `hipkittens bench --compare triton`: its functions as its layers call them, unmodified,
with the configurations that its own autotuning selects, by times in the cycle model if there is no GPU.

Its autotuning keys do not include lengths: as for its users, a sequence uses the configurations selected for the first sequence,
which is a short one here and is not counted.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import hipkittens
from hipkittens.integrations import rocm
from hipkittens.profiling.peers import Candidate, Unavailable
from hipkittens.profiling.problems import Problem
from tests.oracles import fla_packages

_TUNED_AT = 1024  # tokens

Call = Callable[[], object]


def _zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device="cuda")


def _inputs(problem: Problem, batch: int, tokens: int, by_channel: bool) -> dict[str, Any]:
    heads, size = problem["heads"], problem["size"]
    q, k = (_zeros(batch, tokens, problem["key_heads"], size) for _ in range(2))
    gate = batch, tokens, heads
    g = _zeros(*gate, size) if by_channel else _zeros(*gate, dtype=torch.float32)
    return {
        "q": q,
        "k": k,
        "v": _zeros(batch, tokens, heads, size),
        "g": g,
        "beta": _zeros(*gate, dtype=torch.float32),
        "use_qk_l2norm_in_kernel": True,
    }


def _name(name: str) -> str:
    return f"{name} of {fla_packages.DISTRIBUTION} {fla_packages.VERSION}"


def _tuned(name: str, of: Callable[[int], Call], tokens: int) -> list[Candidate]:
    few = min(tokens, _TUNED_AT)
    return [Candidate(f"{_name(name)}, tuned at {few} tokens", of(tokens), prepare=of(few))]


def _chunks(problem: Problem, module: str, name: str, by_channel: bool) -> list[Candidate]:
    rule = getattr(importlib.import_module(module), name)

    def of(tokens: int) -> Call:
        inputs = _inputs(problem, problem["batch"], tokens, by_channel)
        return lambda: rule(**inputs)

    return _tuned(name, of, problem["tokens"])


def _step(problem: Problem, module: str, name: str, by_channel: bool) -> list[Candidate]:
    """A state comes in and a state goes out, as from layers of fla that decode; its functions have none in place."""
    rule = getattr(importlib.import_module(module), name)
    sequences, heads, size = problem["tokens"], problem["heads"], problem["size"]
    inputs = _inputs(problem, sequences, 1, by_channel)
    inputs["initial_state"] = _zeros(sequences, heads, size, size, dtype=torch.float32)

    def call() -> object:
        return rule(**inputs, output_final_state=True)

    return [Candidate(_name(name), call, prepare=call)]


def _gated_delta_rule(problem: Problem) -> list[Candidate]:
    return _chunks(problem, "fla.ops.gated_delta_rule", "chunk_gated_delta_rule", False)


def _gated_delta_step(problem: Problem) -> list[Candidate]:
    return _step(problem, "fla.ops.gated_delta_rule", "fused_recurrent_gated_delta_rule", False)


def _kimi_delta_attention(problem: Problem) -> list[Candidate]:
    return _chunks(problem, "fla.ops.kda", "chunk_kda", True)


def _kimi_delta_step(problem: Problem) -> list[Candidate]:
    return _step(problem, "fla.ops.kda", "fused_recurrent_kda", True)


def _causal_conv1d(problem: Problem) -> list[Candidate]:
    convolution = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d
    channels = problem["channels"]
    weight, bias = _zeros(channels, problem["width"]), _zeros(channels)

    def of(tokens: int) -> Call:
        x = _zeros(problem["batch"], tokens, channels)
        return lambda: convolution(x, weight, bias, activation="silu", backend="triton")

    return _tuned("causal_conv1d", of, problem["tokens"])


def _causal_conv1d_update(problem: Problem) -> list[Candidate]:
    """Its states have as many columns as the convolution, one more than ours."""
    update = importlib.import_module("fla.modules.causal_conv1d").causal_conv1d_update
    channels = problem["channels"]
    x = _zeros(problem["tokens"], channels)
    state = _zeros(problem["tokens"], channels, problem["width"])
    weight, bias = _zeros(channels, problem["width"]), _zeros(channels)

    def call() -> object:
        return update(x, state, weight=weight, bias=bias, activation="silu")

    return [Candidate(_name("causal_conv1d_update"), call, prepare=call)]


_FUNCTIONS = {
    "gated_delta_rule": _gated_delta_rule,
    "gated_delta_step": _gated_delta_step,
    "kimi_delta_attention": _kimi_delta_attention,
    "kimi_delta_step": _kimi_delta_step,
    "causal_conv1d": _causal_conv1d,
    "causal_conv1d_update": _causal_conv1d_update,
}
OPERATIONS = tuple(_FUNCTIONS)
# What was imported stays for functions that are called on a GPU.
_kept = contextlib.ExitStack()


def _require() -> None:
    if what := fla_packages.missing():
        raise Unavailable(what)


def modelled(problem: Problem, target: str) -> Iterator[Candidate]:
    """Unavailable where it is not installed. Its modules look at the GPU when they are imported, and so at the simulated one."""
    _require()
    with fla_packages.importable(), rocm.active():
        with hipkittens.simulate(target):
            candidates = _FUNCTIONS[problem.operation](problem)
        yield from candidates


def measured(problem: Problem) -> Call:
    _require()
    _kept.enter_context(fla_packages.importable())
    (candidate,) = _FUNCTIONS[problem.operation](problem)
    candidate.prepare()
    return candidate.call
