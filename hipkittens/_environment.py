# SPDX-License-Identifier: MIT
"""Every environment variable of hipkittens, one row each. Invalid values are refused, and unknown names cause a warning."""

from __future__ import annotations

import difflib
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "HIPKITTENS_"


@dataclass(frozen=True)
class Variable:
    """The name without the prefix, what it means, and its values.

    allowed    the words it may be; empty: any text
    several    any number of these words, separated by commas
    default    the value if it is not set
    read_by    "package", or "build" if only building or testing a checkout reads it
    """

    name: str
    meaning: str
    allowed: tuple[str, ...] = ()
    several: bool = False
    default: str | None = None
    read_by: str = "package"

    @property
    def variable(self) -> str:
        return PREFIX + self.name

    def read(self, environment: Mapping[str, str] | None = None) -> str | None:
        """Its current value, or its default if it is not set or empty. ValueError for a value that is not allowed."""
        value = (os.environ if environment is None else environment).get(self.variable) or self.default
        if value is None or not self.allowed:
            return value
        words = [word.strip() for word in value.split(",")] if self.several else [value]
        for word in words:
            if word not in self.allowed:
                raise ValueError(
                    f"hipkittens: {self.variable} is '{value}'; allowed: "
                    f"{', '.join(self.allowed)}" + (", or some of them with commas between" * self.several)
                )
        return value


CHECKERS = ("memcheck", "racecheck", "initcheck", "synccheck", "notes")

BACKEND = Variable(
    "BACKEND",
    "where calls run: GPU tensors on the GPU and CPU tensors in the simulator (auto), only one of them, or PyTorch",
    ("auto", "hip", "sim", "torch"),
    default="auto",
)
ARCH = Variable("ARCH", "the GPU that is simulated", ("gfx942", "gfx950"), default="gfx942")
SIMULATED_DEVICES = Variable(
    "SIMULATED_DEVICES",
    "GPUs that the simulator has as a HIP library; HIP_VISIBLE_DEVICES then chooses among them (sim run)",
    ("gfx942", "gfx950"),
    several=True,
)
LIBHIP_PATH = Variable("LIBHIP_PATH", "absolute path of the libamdhip64 to open, instead of the one found")
CHECKS = Variable(
    "CHECKS", "checkers of the simulator that look at every call", ("all", *CHECKERS), several=True
)
CHECKS_FILE = Variable("CHECKS_FILE", "file that the findings of these are written to as the process ends")
TIMING = Variable(
    "TIMING",
    "the GPU on which every launch is modelled, for TIMING_FILE",
    ("MI300X", "MI308X", "MI325X", "MI350X", "MI355X"),
)
TIMING_FILE = Variable("TIMING_FILE", "file that the modelled launches are written to as the process ends")
TIMING_TIMELINE = Variable(
    "TIMING_TIMELINE",
    "number of compute units of which every instruction is in TIMING_FILE, too",
    default="0",
)
DEBUG_SOCKET = Variable(
    "DEBUG_SOCKET", "socket of the debugger that every launch waits for (sim debug sets it)"
)
GEMM_LOADS = Variable(
    "GEMM_LOADS",
    "order of loads of the GEMM kernels that have a twin with another: docs/gemm_tuning.md",
    ("alternate", "plain"),
    default="alternate",
)
LOG = Variable(
    "LOG", "shows on standard error what the logger hipkittens says", ("debug", "info", "warning", "error")
)

VARIABLES = (
    BACKEND,
    ARCH,
    SIMULATED_DEVICES,
    LIBHIP_PATH,
    CHECKS,
    CHECKS_FILE,
    TIMING,
    TIMING_FILE,
    TIMING_TIMELINE,
    DEBUG_SOCKET,
    GEMM_LOADS,
    LOG,
    Variable("DEVICE_COMPILER", "clang or hipcc that compiles kernels, instead of zig's"),
    Variable("PYTHON", "the Python that ./run makes its environment from", read_by="build"),
    Variable("SIMULATOR_LIBRARY", "the simulator that the tests open, instead of the built one", read_by="build"),
    Variable("TEST_SEED", "seed of the tests' random cases, instead of any", read_by="build"),
)  # fmt: skip


def read_by_package() -> list[Variable]:
    return [variable for variable in VARIABLES if variable.read_by == "package"]


def unknown(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables with our prefix that nothing reads, each with the closest known name."""
    names = {variable.name: variable.variable for variable in VARIABLES}
    wrong = [name for name in sorted(environment) if name.startswith(PREFIX) and name not in names.values()]
    # Without the prefix, which would make all names look similar.
    nearest = {name: difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1) for name in wrong}
    return {name: names[found[0]] if found else None for name, found in nearest.items()}


def check() -> None:
    """Refuses values that are not allowed, and warns of names that nothing reads."""
    for variable in VARIABLES:
        variable.read()
    for name, nearest in unknown(os.environ).items():
        meant = f"; did you mean {nearest}?" if nearest else "; `hipkittens info` lists those it reads"
        warnings.warn(f"hipkittens reads no environment variable {name}{meant}", RuntimeWarning, stacklevel=2)
