# SPDX-License-Identifier: MIT
"""What the record of an operation is made of. How to write one: the docstring of hipkittens.operations."""

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
    """`backward` of an operator that computes the gradient of `name`."""
    return _refusal(
        f"hipkittens: the gradient of {name} cannot be differentiated again; "
        f"use {instead} where double backward is needed"
    )


def no_derivative(name: str, instead: str) -> Callable[..., Any]:
    """`backward` of an operator that has none."""
    return _refusal(f"hipkittens: {name} has no derivative; call it on x.detach(), or use {instead}")


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator of torch.ops.hipkittens, whose schema and kernel are csrc/torch's.

    fake           its results without data, for torch.compile and `hipkittens.supported`
    backward       of its autograd formula, as torch.library.register_autograd takes it, which also serves torch.func (_autograd.py);
                   setup_context may be absent where it saves nothing
    flops          a formula of torch.utils.flop_counter; of tensors in place of shapes if flops_of_tensors
    sharding       a DTensor strategy as torch's register_sharding takes it: `replicated` and `rowwise` of _sharding.py
    first_option   the position of its first argument that is no tensor, which DTensor's cache is told
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
    """A public function, and arguments of its usual shape: `tensor(*shape, dtype=...)` makes each tensor of them. options: those that
    have no default."""

    function: Callable[..., Any]
    arguments: Callable[[Callable[..., torch.Tensor], torch.dtype], tuple[Any, ...]]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


@dataclass(frozen=True, eq=False)
class Example:
    """A call on normal random values, whose results and gradients are held beside PyTorch's.

    inputs     shapes by name, in the order in which both functions take them
    theirs     the same in PyTorch; float64 tensors give the reference
    gradients  whether every input gets one
    integers   small integers instead, for which the result must be exact
    magnitude  of the inputs in float64: the largest sum of absolute values that a result is made of (_accuracy.py); by
               default the largest absolute value of the reference
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
    workgroups   so many of the launch are enough to be mutated
    skip         the problem is too large to be run whole: it is only asked for its launches
    shared_by    the name of an argument that says how many waves share the rows: a mutated launch is told of so few that
                 each of them loops
    """

    title: str
    run: Callable[[], Any]
    workgroups: int = 4
    skip: bool = False
    shared_by: str = ""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A prebuilt kernel as the index of its pack describes it.

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

    inputs     each of them gets a gradient, if the results take one; both functions take them in this order
    theirs     PyTorch's: of the inputs' dtype the one baseline that ours is held to, of float64 the reference
    baseline   its name in tables: PyTorch's own operation, or what was written out and where it is rounded
    outputs    names of what the functions return
    gradients  of the outputs; drawn where they are None
    magnitude  the largest sum of absolute values that a result is made of; by default what the reference's largest is
    summed_exactly  results in float32 show every rounding of a sum: ours has the matrix cores' own, not the host's of `fast`
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
    """The cases of a function beside PyTorch: a covering array of `factors`, whose values are what JSON keeps.

    problem  of one case, which has a value of each factor, and a generator
    draws    replaces the values of a factor in random sweeps
    extra    cases that join the covering array; what they leave out has the first value of its factor
    adapt    of a case the one that runs and is shown, where a value does not go with the others: a size that a dtype does not have
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
    sizes  that ours is run at, by device
    peers  the largest size that each library is run at, by device
    """

    title: str
    shape: str
    sizes: Mapping[str, tuple[int, ...]]
    peers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Benchmark:
    """What `bench`, `profile` and `trace` call by `name`. Every tensor is bfloat16.

    example   a shape in the syntax that the next three describe, which errors quote
    extents   names of the numbers in a shape with crosses: ("rows", "columns") for 16384x8192
    letters   or the letters that a shape has: "BHND" for B16H16N2048D128
    optional  further letters, each with the one that it equals where it is left out, or with its number then
    shapes    run by default, with commas between
    bytes     that have to move between memory and the chip: every operand and result once
    flops     useful operations as publications count them; None where memory is the measure
    bits      of the elements that are multiplied: of half as many, matrix cores take twice as many in a clock
    call      ours on tensors of a device, made by problem.tensor(device, *shape)
    torch     PyTorch's on a GPU; None if it has none
    causal, training  whether a shape may end with :causal, :training
    refuse    what is wrong with extents, or None
    chained   launches make addresses of what earlier ones wrote: the model computes results, too
    heading   over its tables on docs/performance.md
    fit       the program of benchmarks/ that renews the costs by which its plan chooses; "" for a plan without such costs
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
    """What shows that an operation works and how fast, none of which its calls need.

    trial           for any kernel of the folder, of which each shape reaches the loop's second turn and its tails
    examples        of `hipkittens demo`; of the first, or of `doctor`, `hipkittens doctor` runs the gradients, too
    parity          of each function; or "module:NAME" of one that is written in benchmarks/
    calls           rows of the table of options in docs/support.md: what is special, function, arguments, options; its
                    `tensor(*shape, dtype=...)` makes tensors without data
    sizes           a line of docs/support.md on which sizes there are; section: a section of its own on that page; both of the
                    folder's rows of variants.def by target
    benchmarks      by the names that `bench` takes
    representative  problems of usual size that together run every kernel, for `kernels list --resources`
    every_kernel    problems that together run every kernel with all checkers on; both default to the trials
    exercise        results of calls that together reach every operator, made of draw(*shape, seed=0); by default each
                    function's usual arguments
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
    """All that the package, its tools and its pages know of an operation.

    name       of its file
    folder     of its kernels below csrc/kernels
    kinds      of kernels there that are its own; () for all of them
    functions  that hipkittens exports; hipkittens/__init__.py names them too, for type checkers
    operators  of torch.ops.hipkittens
    checks     called when it is first asked for, never by an import
    order      its place in lists that people read; those with the same follow the alphabet
    uses       names of further operations that its functions and their gradients call, whose kernels may lie in other folders
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
        """Whether a kernel of that folder and kind is this operation's."""
        return folder == self.folder and (not self.kinds or kind in self.kinds)
