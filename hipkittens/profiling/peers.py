# SPDX-License-Identifier: MIT
"""Other libraries that `bench` compares ours with.

torch is always available. triton and aiter need a checkout, since the code that compiles and launches their kernels here is part of the
benchmarks and tests and not of the package: benchmarks/peer_triton.py and benchmarks/peer_aiter.py.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from .problems import SYNTAX, Problem

NAMES = ("torch", "triton", "aiter")  # which can be run here, in the model or on a GPU
_BENCHMARKS = Path(__file__).resolve().parent.parent.parent / "benchmarks"


class Candidate(NamedTuple):
    """A kernel of another library, or several that are launched in sequence.

    counts   whether it may represent the library; one that may not, such as a variant that is not its default, is run and listed
             separately
    prepare  is run before it on the same device and not counted: a first call, in which kernels are autotuned
    """

    name: str
    call: Callable[[], object]
    counts: bool = True
    prepare: Callable[[], object] | None = None


class Unavailable(Exception):
    """The peer does not support this problem; the text gives the reason."""


class Peer(Protocol):
    """Both methods raise Unavailable. `modelled` returns every kernel that might be the fastest, to be called inside the cycle model of a
    device; `measured` returns what to call on a GPU.
    """

    def modelled(self, problem: Problem, target: str) -> Iterator[Candidate]: ...

    def measured(self, problem: Problem) -> Callable[[], object]: ...


class TorchPeer:
    """PyTorch's own operators."""

    def modelled(self, problem: Problem, target: str) -> Iterator[Candidate]:
        raise Unavailable(
            "PyTorch's GPU kernels are in ROCm's libraries, which have no code objects here to model"
        )

    def measured(self, problem: Problem) -> Callable[[], object]:
        call = SYNTAX[problem.operation].torch
        if call is None:
            raise Unavailable(f"PyTorch has no {problem.operation}")
        return call(problem)


def peer(name: str) -> Peer:
    """Raises Unavailable if this installation cannot provide that peer."""
    if name == "torch":
        return TorchPeer()
    if name not in NAMES:
        raise Unavailable(f"{name} is known from what was published of it; nothing here runs it")
    file = _BENCHMARKS / f"peer_{name}.py"
    if not file.is_file():
        raise Unavailable(f"needs a checkout of hipkittens (benchmarks/{file.name})")
    module_name = f"hipkittens_benchmarks_peer_{name}"
    if module_name not in sys.modules:
        specification = importlib.util.spec_from_file_location(module_name, file)
        assert specification and specification.loader
        module = importlib.util.module_from_spec(specification)
        try:
            specification.loader.exec_module(module)
        except ImportError as error:
            raise Unavailable(f"{error}: pip install {error.name or name}") from None
        sys.modules[module_name] = module
    return sys.modules[module_name].peer()
