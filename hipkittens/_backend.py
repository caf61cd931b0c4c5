# SPDX-License-Identifier: MIT
"""Where calls run: the policy HIPKITTENS_BACKEND, the simulated target HIPKITTENS_ARCH, and `simulate`."""

from __future__ import annotations

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

import torch

from . import _environment, _findings, _installation, _library, _simulator
from ._log import log

P = ParamSpec("P")
T = TypeVar("T")

ARITHMETIC = {"fast": 0, "strict": 1, "exact": 2}
PARTITIONS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}  # AMD's names of the modes: the number of parts
HOST_LEVELS = {"best": -1} | {name: level for level, name in enumerate(_simulator.HOST_LEVELS)}


class _State:
    """Process-wide, since autograd may run backward in a thread other than that of forward."""

    backend = _environment.BACKEND.read()
    arch = _environment.ARCH.read()
    forced = False  # inside `simulate`
    hip_devices: int | None = None  # not queried yet; torch.compile cannot trace functools.cache
    checking: simulate | None = None  # the innermost `simulate`


def arch() -> str:
    return _State.arch


def has_amd_gpus() -> bool:
    """Whether this torch's "cuda" devices are AMD GPUs."""
    return torch.version.hip is not None


def dispatch_keys() -> tuple[str, ...]:
    """PyTorch's dispatch keys of the devices whose tensors run here. "CUDA" is an AMD GPU only in a build for HIP."""
    return ("CPU", "CUDA") if has_amd_gpus() else ("CPU",)


def arch_of(device: torch.device) -> str:
    """gfx942 or gfx950: the target that runs calls on tensors of this device, simulated for CPU tensors."""
    if device.type != "cuda":
        return _State.arch
    return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]


def backend() -> str:
    return _State.backend


def is_simulating() -> bool:
    """Whether a `simulate` context is active."""
    return _State.forced


def uses_torch() -> bool:
    return _State.backend == "torch" and not _State.forced


def hip_device_count() -> int:
    """The number of GPUs that torch sees through HIP. Queried by the first call that needs it, never at import."""
    if _State.hip_devices is not None:
        return _State.hip_devices
    count = torch.cuda.device_count() if has_amd_gpus() and torch.cuda.is_available() else 0
    if not torch.compiler.is_compiling():
        _State.hip_devices = count
    return count


def simulates_cpu_tensors() -> bool:
    return _State.forced or _State.backend == "sim" or hip_device_count() == 0


def check_device(where: str, name: str, tensor: torch.Tensor) -> None:
    """Raises if the policy has no backend for a tensor on this device."""
    kind = tensor.device.type
    if kind == "meta" or uses_torch():
        return
    if kind == "cpu":
        if _State.forced or _State.backend == "sim":
            return
        if _State.backend == "hip":
            raise ValueError(
                f"{where}: {name} is on the CPU and HIPKITTENS_BACKEND=hip wants GPU tensors; move it with .to('cuda')"
            )
        if hip_device_count():
            raise ValueError(
                f"{where}: {name} is on the CPU, and this machine has an AMD GPU; move it with .to('cuda'), "
                "or simulate one with `with hipkittens.simulate():` or HIPKITTENS_BACKEND=sim"
            )
        return
    if kind == "cuda" and has_amd_gpus():
        # Under integrations.rocm tensors on "cuda" are in the CPU's memory.
        simulates = _State.forced or _State.backend == "sim"
        if simulates and tensor.untyped_storage().device.type != "cpu":
            raise ValueError(
                f"{where}: {name} is on {tensor.device}, and the simulator takes CPU tensors; move it with .cpu()"
            )
        return
    if kind == "cuda":
        raise ValueError(
            f"{where}: {name} is on {tensor.device}, a GPU of NVIDIA's, and hipkittens has kernels for AMD GPUs; "
            "move it with .cpu() to simulate one"
        )
    raise ValueError(
        f"{where}: {name} is on {tensor.device}; allowed: a CPU tensor (simulated), or one on an AMD GPU"
    )


def interruptible(function: Callable[P, T]) -> Callable[P, T]:
    """`function`, which raises what a signal's handler raised instead of the RuntimeError of the launch that it ended.

    Ctrl-C during a simulated launch is therefore a KeyboardInterrupt, as anywhere else in Python.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            interruption = _library.interruption(error)
            if interruption is None:
                raise
        raise interruption

    return call


_LARGEST_MEMORY = 4096  # problems


def checked_once(*tensors: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """A check that is run once for each problem that passes it: the same shapes, dtypes, devices and layouts of the arguments at
    the positions `tensors`, equal other arguments, and the same policy. The check takes no keyword arguments and depends on nothing
    else, in particular not on strides and values of those tensors.
    """

    def decorate(check: Callable[..., T]) -> Callable[..., T]:
        passed: dict[Any, T] = {}

        @functools.wraps(check)
        def remembered(*args: Any) -> T:
            if torch.compiler.is_compiling():
                return check(*args)
            key: list[Any] = [_State.backend, _State.forced, *args]
            # Arguments that cannot be compared, such as symbolic sizes, or that are not tensors, have not passed before.
            with contextlib.suppress(KeyError, TypeError, AttributeError):
                for position in tensors:
                    if (value := args[position]) is not None:
                        key[position + 2] = (value.shape, value.dtype, value.device, value.layout)
                return passed[tuple(key)]
            result = check(*args)
            if any(isinstance(value, torch.Tensor) for value in key):  # whose values matter
                return result
            if len(passed) >= _LARGEST_MEMORY:
                passed.clear()
            with contextlib.suppress(TypeError):
                passed[tuple(key)] = result
            return result

        return remembered

    return decorate


class simulate:
    """Context manager that sends calls on CPU tensors to a simulated GPU, for the whole process.

    - `arch`: "gfx942" or "gfx950" (default: HIPKITTENS_ARCH, or else gfx942).
    - `checks`: True: uninitialized registers, LDS, loads in flight and results contain NaN patterns until they are written, and LDS bank
      conflicts are counted. "all": that and every checker; or NaN patterns and some of "memcheck", "racecheck", "initcheck", "synccheck",
      "notes", separated by commas. `findings` then lists what they found. Default: HIPKITTENS_CHECKS, or False.
    - `arithmetic`: "fast" (default), "strict" (f32 fused multiply-adds in order of k), "exact" (the published CDNA3 rule).
    - `threads`: host threads; 0 is one per core.
    - `host_level`: the host instructions to use: "best" (default), "portable", "avx2", "avx512", "avx512_bf16", "amx".
    - `seed`: the order in which the waves of a workgroup are scheduled; 0 is index order.
    - `instruction_limit`: the number of wave instructions of one workgroup after which a launch is aborted; 0 is 2**31.
    - `tolerate_overreads`: a buffer load past the end of the tensors inside its descriptor reads 0 there and is the finding
      descriptor_overread (memcheck), instead of ending the launch; for third-party kernels.
    - `partition`: the compute partition mode: "SPX" (default), the whole device; or "DPX", "QPX", "CPX", a half, a quarter or an eighth of
      it, down to one XCD with 38 (gfx942) or 32 (gfx950) compute units, for which launches are then planned.

    Ctrl-C ends a launch of the main thread. So does any signal whose handler raises.
    """

    def __init__(
        self,
        arch: str | None = None,
        *,
        checks: bool | str | None = None,
        arithmetic: str = "fast",
        threads: int = 0,
        host_level: str = "best",
        seed: int = 0,
        instruction_limit: int = 0,
        tolerate_overreads: bool = False,
        partition: str = "SPX",
    ) -> None:
        self.arch = _State.arch if arch is None else arch
        if self.arch not in _installation.TARGETS:
            raise ValueError(
                f"hipkittens.simulate: arch is {arch!r}; allowed: {', '.join(_installation.TARGETS)}"
            )
        if arithmetic not in ARITHMETIC:
            raise ValueError(
                f"hipkittens.simulate: arithmetic is {arithmetic!r}; allowed: {', '.join(ARITHMETIC)}"
            )
        if host_level not in HOST_LEVELS:
            raise ValueError(
                f"hipkittens.simulate: host_level is {host_level!r}; allowed: {', '.join(HOST_LEVELS)}"
            )
        if not isinstance(threads, int) or threads < 0:
            raise ValueError(
                f"hipkittens.simulate: threads is {threads!r}; allowed: 0 (one per core) or a count"
            )
        if not isinstance(instruction_limit, int) or not 0 <= instruction_limit < 2**64:
            raise ValueError(
                f"hipkittens.simulate: instruction_limit is {instruction_limit!r}; allowed: 0 (2**31) or a count"
            )
        if partition not in PARTITIONS:
            raise ValueError(
                f"hipkittens.simulate: partition is {partition!r}; allowed: {', '.join(PARTITIONS)}"
            )
        if checks is None:
            checks = _environment.CHECKS.read() or False
        self._partitions = PARTITIONS[partition]
        self.settings: dict[str, Any] = {
            "arithmetic": ARITHMETIC[arithmetic],
            "host_level": HOST_LEVELS[host_level],
            "threads": threads,
            "wave_order_seed": seed,
            "poison": bool(checks),
            "count_lds_conflicts": checks in (True, "all"),
            "checks": _findings.chosen(checks),
            "instruction_limit": instruction_limit,
            "tolerate_overreads": bool(tolerate_overreads),
        }
        self._found: list[_findings.Finding] = []

    def __enter__(self) -> simulate:
        settings, partitions = _library.simulator_settings(), _library.simulated_partitions()
        self._before = (_State.arch, _State.forced, settings, partitions, _State.checking)
        if _State.checking is not None:
            _State.checking._collect()
        _library.clear_findings()
        self._found = []
        _library.configure_simulator(self.arch, self.settings)
        _library.set_simulated_partitions(self._partitions)
        _State.arch, _State.forced, _State.checking = self.arch, True, self
        log.debug("CPU tensors go to a simulated %s: %s", self.arch, self.settings)
        return self

    def __exit__(self, *_: object) -> None:
        self._collect()
        _State.arch, _State.forced, settings, partitions, _State.checking = self._before
        _library.configure_simulator(_State.arch, settings)
        _library.set_simulated_partitions(partitions)

    def _collect(self) -> list[_findings.Finding]:
        """Moves the simulator's findings and notes here."""
        if _State.checking is self:
            self._found = _findings.merged([*self._found, *_findings.from_json(_library.take_findings())])
        return self._found

    @property
    def findings(self) -> list[_findings.Finding]:
        """What the checkers found in the launches of this context; each kind and pair of instructions once."""
        return _findings.errors(self._collect())

    @property
    def notes(self) -> list[_findings.Finding]:
        """Remarks about speed: LDS bank conflicts, uncoalesced accesses, partial cache lines, redundant waits."""
        return _findings.notes(self._collect())

    def forget(self) -> None:
        """Discards the findings and notes collected so far."""
        self._collect()
        self._found = []

    @staticmethod
    def report() -> dict[str, Any]:
        """Counters of the last launch: instructions by kind, workgroups, seconds."""
        return _library.last_report()


@contextlib.contextmanager
def partitioned(mode: str) -> Iterator[None]:
    """Context manager: simulated devices appear in this partition mode, regardless of `simulate`."""
    before = _library.simulated_partitions()
    _library.set_simulated_partitions(PARTITIONS[mode])
    try:
        yield
    finally:
        _library.set_simulated_partitions(before)


def apply_environment() -> None:
    """Under HIPKITTENS_CHECKS every call of the process is checked, inside `simulate` or not."""
    if not _environment.CHECKS.read():
        return
    _library.configure_simulator(_State.arch, _library.simulator_settings())
    if not _environment.CHECKS_FILE.read():
        atexit.register(_print_findings)


def _print_findings() -> None:
    """Prints the findings under HIPKITTENS_CHECKS that nothing else reports."""
    found = _findings.merged(_findings.from_json(_simulator.kept_findings()))
    errors, notes = _findings.errors(found), _findings.notes(found)
    for finding in errors:
        print(finding, file=sys.stderr)
    print(f"hipkittens: {len(errors)} findings, {len(notes)} notes, by HIPKITTENS_CHECKS", file=sys.stderr)
