# SPDX-License-Identifier: MIT
"""The parts of an operation's record. The docstring of hipkittens.operations describes how to write one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from typing import Protocol

    class Problem(Protocol):
        """One shape of a benchmark: hipkittens.profiling.problems.Problem."""

        extents: Mapping[str, int]
        causal: bool
        training: bool

        def __getitem__(self, extent: str) -> int: ...

        def tensor(self, device: str, *shape: int) -> torch.Tensor: ...


Rows = Mapping[str, Sequence[Mapping[str, str]]]
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def _refusal(message: str) -> Callable[..., Any]:
    def refuse(ctx: Any, *_gradients: Any) -> Any:
        raise NotImplementedError(message)

    return refuse


def no_double_backward(name: str, instead: str = "torch.nn.functional") -> Callable[..., Any]:
    """`backward` for an operator that computes the gradient of `name`."""
    return _refusal(
        f"hipkittens: the gradient of {name} cannot be differentiated again; "
        f"use {instead} where double backward is needed"
    )


def no_derivative(name: str, instead: str) -> Callable[..., Any]:
    """`backward` for an operator without a derivative."""
    return _refusal(f"hipkittens: {name} has no derivative; call it on x.detach(), or use {instead}")


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of torch.ops.hipkittens, whose schema and kernel are in csrc/torch.

    fake           its results without data, for torch.compile and `hipkittens.supported`
    backward       its autograd formula, as in torch.library.register_autograd, which is also used for torch.func (_autograd.py);
                   setup_context may be absent if it saves nothing
    flops          a formula of torch.utils.flop_counter; of tensors instead of shapes if flops_of_tensors
    sharding       a DTensor strategy as in torch's register_sharding: `replicated` and `rowwise` of _sharding.py
    first_option   the position of its first argument that is not a tensor, for DTensor's cache
    """

    name: str
    fake: Callable[..., Any]
    backward: Callable[..., Any] | None = None
    setup_context: Callable[..., None] | None = None
    flops: Callable[..., int] | None = None
    flops_of_tensors: bool = False
    sharding: Callable[..., Any] | None = None
    first_option: int = 0


@dataclass(frozen=True, eq=False)
class Function:
    """A public function with typical arguments, whose tensors `tensor(*shape, dtype=...)` creates. options: those without a default."""

    function: Callable[..., Any]
    arguments: Callable[[Callable[..., torch.Tensor], torch.dtype], tuple[Any, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True, eq=False)
class Example:
    """A call on normal random values, whose results and gradients are compared with PyTorch's.

    inputs     shapes by name, in the order in which both functions accept them
    theirs     the same in PyTorch; float64 tensors give the reference
    gradients  whether every input gets one
    integers   small integers instead, for which the result must be exact
    magnitude  for the inputs in float64: the largest sum of absolute values that makes up a result (_accuracy.py); by default the largest
               absolute value of the reference
    shape      what a table shows; by default the shape of the first input
    """

    title: str
    inputs: Mapping[str, tuple[int, ...]]
    ours: Callable[..., torch.Tensor]
    theirs: Callable[..., torch.Tensor]
    dtype: torch.dtype = torch.bfloat16
    gradients: bool = True
    integers: bool = False
    magnitude: Callable[..., float] | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Trial:
    """A small problem that runs a kernel.

    run          returns the tensors that it computed
    workgroups   this many of the launch are enough for mutation testing
    skip         the problem is too large to be run as a whole: only its launches are recorded
    shared_by    the name of an argument, the number of waves that share the rows: a mutated launch gets so few that each of them loops
    """

    title: str
    run: Callable[[], Any]
    workgroups: int = 4
    skip: bool = False
    shared_by: str = ""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A prebuilt kernel as described in the index of its pack.

    row        the columns of its row in variants.def, as text: row["element"] == "bf16"
    arguments  name, offset and size of every argument, members of structs by dotted names
    """

    symbol: str
    target: str
    folder: str
    kind: str
    row: Mapping[str, str]
    arguments: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, eq=False)
class ParityProblem:
    """One case of parity.

    inputs     each gets a gradient, if the results have one; both functions accept them in this order
    theirs     PyTorch's: in the inputs' dtype the single baseline that ours is compared with, in float64 the reference
    baseline   its name in tables: PyTorch's own operation, or what was written out and where it is rounded
    outputs    names of the functions' results
    gradients  of the outputs; drawn if they are None
    magnitude  the largest sum of absolute values that makes up a result; by default the largest value of the reference
    summed_exactly  results in float32 show every rounding of a sum: ours is summed as by the matrix cores, not by the host as in `fast`
    """

    inputs: Mapping[str, torch.Tensor]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    baseline: str = "PyTorch's own operation in the same dtype"
    outputs: tuple[str, ...] = ("y",)
    gradients: Sequence[torch.Tensor] | None = None
    magnitude: float | None = None
    summed_exactly: bool = False


@dataclass(frozen=True, eq=False)
class Parity:
    """The cases in which a function is compared with PyTorch: a covering array of `factors`, whose values are JSON values.

    problem  of one case, which has a value for each factor, and a generator
    draws    replaces the values of a factor in random sweeps
    extra    cases added to the covering array; factors that they omit have their first value
    adapt    for a case the one that is run and shown, if a value does not go with the others: a size that a dtype does not have
    """

    function: str
    factors: Mapping[str, Sequence[Any]]
    problem: Callable[[Mapping[str, Any], torch.Generator], ParityProblem]
    draws: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    extra: Sequence[Mapping[str, Any]] = ()
    adapt: Callable[[Mapping[str, Any]], dict[str, Any]] = dict


@dataclass(frozen=True, eq=False)
class Table:
    """One table of docs/performance.md: shapes that differ in one size.

    shape  with {N} for the size, and {rows} for 16 N rows
    sizes  at which ours is run, by device
    peers  the largest size at which each library is run, by device
    """

    title: str
    shape: str
    sizes: Mapping[str, tuple[int, ...]]
    peers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """A problem that `bench`, `profile` and `trace` call by `name`. Every tensor is bfloat16.

    example   a shape in the syntax that the next three fields describe, quoted in errors
    extents   names of the numbers in a shape with crosses: ("rows", "columns") for 16384x8192
    letters   or the letters of a shape: "BHND" for B16H16N2048D128
    optional  further letters, each with the one that it equals if it is omitted, or with its default number
    shapes    run by default, separated by commas
    bytes     that must be moved between memory and the chip: every operand and result once
    flops     useful operations as publications count them; None if memory is the measure
    bits      of the elements that are multiplied: with half as many, matrix cores process twice as many per clock
    call      ours on tensors of a device, created by problem.tensor(device, *shape)
    torch     PyTorch's on a GPU; None if it has none
    causal, training  whether a shape may end with :causal, :training
    refuse    what is wrong with extents, or None
    chained   launches compute addresses from earlier results: the model computes results as well
    heading   of its tables on docs/performance.md
    fit       the program of benchmarks/ that updates the cost model of its plan; "" for a plan without one
    """

    name: str
    example: str
    shapes: str
    bytes: Callable[[Problem], float]
    call: Callable[[Problem, str], Callable[[], object]]
    heading: str
    extents: tuple[str, ...] = ()
    letters: str = ""
    optional: Mapping[str, str | int] = field(default_factory=dict)
    flops: Callable[[Problem], float] | None = None
    torch: Callable[[Problem], Callable[[], object]] | None = None
    causal: bool = False
    training: bool = False
    refuse: Callable[[Mapping[str, int]], str | None] | None = None
    chained: bool = False
    tables: tuple[Table, ...] = ()
    fit: str = ""
    bits: int = 16


@dataclass(frozen=True, eq=False)
class Checks:
    """What checks an operation's results and speed; calls do not need it.

    trial           for any kernel of the folder, with each shape reaching the loop's second iteration and its tails
    examples        of `hipkittens demo`; for the first, or the one of `doctor`, `hipkittens doctor` also runs the gradients
    parity          of each function; or "module:NAME" of one that is written in benchmarks/
    calls           rows of the table of options in docs/support.md: what is special, function, arguments, options; its
                    `tensor(*shape, dtype=...)` creates tensors without data
    sizes           a line of docs/support.md on the supported sizes; section: a separate section on that page; both get the folder's rows
                    of variants.def by target
    benchmarks      by the names that `bench` accepts
    representative  problems of typical size that together run every kernel, for `kernels list --resources`
    every_kernel    problems that together run every kernel with all checkers on; both default to the trials
    exercise        results of calls that together reach every operator, computed from draw(*shape, seed=0); by default each function's
                    typical arguments
    """

    trial: Callable[[Kernel], Trial] | None = None
    examples: tuple[Example, ...] = ()
    doctor: Example | None = None
    parity: tuple[Parity | str, ...] = ()
    calls: Callable[
        [Callable[..., torch.Tensor]], Sequence[tuple[str, str, Sequence[Any], Mapping[str, Any]]]
    ] = lambda tensor: ()
    sizes: Callable[[Rows], str] | None = None
    section: Callable[[Rows], str] | None = None
    benchmarks: tuple[Benchmark, ...] = ()
    representative: Callable[[], Iterable[Trial]] | None = None
    every_kernel: Callable[[], Iterable[Trial]] | None = None
    exercise: Callable[[Callable[..., torch.Tensor]], Iterable[torch.Tensor]] | None = None


@dataclass(frozen=True, eq=False)
class Operation:
    """Everything that the package, its tools and its pages know about an operation.

    name       of its file
    folder     of its kernels below csrc/kernels
    kinds      of kernels there that belong to it; () for all of them
    functions  that hipkittens exports; hipkittens/__init__.py names them too, for type checkers
    operators  of torch.ops.hipkittens
    checks     called on first use, never by an import
    order      its position in lists for readers; equal ones are sorted alphabetically
    uses       names of further operations that its functions and their gradients call, whose kernels may be in other folders
    """

    name: str
    folder: str
    functions: tuple[Function, ...]
    operators: tuple[Operator, ...]
    checks: Callable[[], Checks]
    order: int = 100
    kinds: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    def owns(self, folder: str, kind: str) -> bool:
        """Whether a kernel of that folder and kind belongs to this operation."""
        return folder == self.folder and (not self.kinds or kind in self.kinds)
