# SPDX-License-Identifier: MIT
"""The simulator's cycle model: how long launches would take on a GPU. Every figure it gives is modelled, none measured."""

from __future__ import annotations

import atexit
import base64
import contextlib
import ctypes
import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _backend, _environment, _library, _simulator
from ._arguments import number
from ._output_file import require_writable

_MOST_UNITS = 38  # per XCD
DEVICES = {
    "MI300X": "gfx942",
    "MI308X": "gfx942",
    "MI325X": "gfx942",
    "MI350X": "gfx950",
    "MI355X": "gfx950",
}
# If only a target is given: the names of the simulator's HIP devices.
USUAL_DEVICES = {"gfx942": "MI300X", "gfx950": "MI355X"}


def _check_device(device: str) -> str:
    for name in DEVICES:
        if isinstance(device, str) and device.upper() == name:
            return name
    raise ValueError(f"hipkittens.timing: device is {device!r}; allowed: {', '.join(DEVICES)}")


def parameters(device: str) -> list[dict[str, Any]]:
    """Every parameter of the cycle model for `device`: name, value, unit, and its source."""
    return json.loads(_simulator.timing_parameters(_check_device(device)))["parameters"]


_parameters_of = parameters  # `timing` has an argument of that name


@dataclass(frozen=True)
class ModelledLaunch:
    """One launch in the cycle model.

    kernel          its name
    device          the GPU that was modelled
    cycles          core clocks from when the command processor receives the launch until the last store is written back, at
                    report["clock_mhz"]
    microseconds    cycles at the clock that the modelled power limit of the chip allows; launch overhead not included
    launch_overhead_microseconds  the additional cost of a launch
    report          everything that the model reports, as described in docs/timing_model.md
    events          array of hipkittens._simulator.TimelineEvent, by compute unit and SIMD in the order of issue
    """

    kernel: str
    device: str
    cycles: float
    microseconds: float
    launch_overhead_microseconds: float
    report: dict[str, Any] = field(repr=False)
    events: Any = field(repr=False)

    @property
    def busy(self) -> dict[str, float]:
        """The share of time in which units are busy: matrix and vector of all SIMDs, lds and vector_memory of all CUs."""
        return self.report["busy"]

    @property
    def caches(self) -> dict[str, float]:
        """Hit rates of vector L1, L2 and MALL, and bytes read from and written to HBM."""
        return self.report["caches"]

    @property
    def instructions(self) -> list[dict[str, Any]]:
        """For each instruction issued in the XCDs simulated in detail: address in the text, unit, issues, and stalls:
        clocks for which waves waited before it, by reason.
        """
        return self.report["instructions"]

    def stalls(self) -> dict[str, float]:
        """Clocks for which waves waited, summed over the kernel, by reason; the longest first."""
        sums: dict[str, float] = {}
        for instruction in self.instructions:
            for reason, clocks in instruction["stalls"].items():
                sums[reason] = sums.get(reason, 0.0) + clocks
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def launches_of(reports: str, timeline: Callable[[int], Any] = lambda _: ()) -> list[ModelledLaunch]:
    """The launches of a JSON array of reports; `timeline` returns the events of each by its index, if the report has none."""

    def events(index: int, report: dict[str, Any]) -> Any:
        if "events" not in report:
            return timeline(index)
        data = base64.b64decode(report.pop("events"))
        kind = _simulator.TimelineEvent * (len(data) // ctypes.sizeof(_simulator.TimelineEvent))
        return kind.from_buffer_copy(data) if data else ()

    return [
        ModelledLaunch(
            report["kernel"],
            report["device"],
            report["cycles"],
            report["microseconds"],
            report["launch_overhead_microseconds"],
            report,
            events(index, report),
        )
        for index, report in enumerate(json.loads(reports))
    ]


class timing:
    """Context manager that models how long the launches inside take: `with hipkittens.timing("MI355X") as run: ...; run.launches`.

    - `device`: "MI300X", "MI308X", "MI325X" (gfx942), "MI350X" or "MI355X" (gfx950). Launches must be for that target, and CPU tensors are
      sent to it as inside `hipkittens.simulate`.
    - `values`: if False, skip everything that neither control flow nor addresses depend on. Faster; results are not written, so a launch
      whose addresses or loops depend on an earlier launch's results, as in `moe`, must be modelled with values.
    - `full`: if True, simulate every XCD in detail, not only the first.
    - `clock_mhz`: a fixed core clock; by default the clock that the modelled power limit allows under the launch's matrix load.
    - `timeline`: the number of compute units of XCD 0 of which every instruction is kept as an event of ModelledLaunch.events.
    - `parameters`: {name: value} to use instead of the model's own, see `hipkittens._timing.parameters`.

    The whole process is modelled while the context is active. Raises ValueError for an unknown device or parameter, and inside a `simulate`
    of another target or with checkers; RuntimeError inside another such context.
    """

    _skip_others = False  # True: launches for another target, and checked ones, run without being modelled
    _current: timing | None = None
    _whole_process: _ProgramTiming | None = None

    def __init__(
        self,
        device: str,
        *,
        values: bool = True,
        full: bool = False,
        clock_mhz: float = 0.0,
        timeline: int = 0,
        parameters: Mapping[str, float] | None = None,
    ) -> None:
        self.device = _check_device(device)
        self.arch = DEVICES[self.device]
        where = "hipkittens.timing"
        if not 0 <= number(where, "clock_mhz", clock_mhz) <= 10000:
            raise ValueError(
                f"{where}: clock_mhz is {clock_mhz}; allowed: up to 10000, or 0 for what the power allows"
            )
        if isinstance(timeline, bool) or not isinstance(timeline, int) or not 0 <= timeline <= _MOST_UNITS:
            raise ValueError(f"{where}: timeline is {timeline!r}; allowed: 0 to {_MOST_UNITS} compute units")
        self._values, self._full, self._clock_mhz, self._timeline = values, full, clock_mhz, timeline
        known = {row["name"] for row in _parameters_of(self.device)}
        self._parameters = {
            name: number(where, f"parameters[{name!r}]", value) for name, value in (parameters or {}).items()
        }
        for name, value in self._parameters.items():
            if name not in known:
                raise ValueError(
                    f"{where}: the cycle model has no parameter {name!r}; hipkittens._timing.parameters lists them"
                )
            if not 0 < value < math.inf:
                raise ValueError(f"{where}: parameters[{name!r}] is {value}; allowed: finite numbers above 0")
        self._launches: list[ModelledLaunch] | None = []
        self._simulated = contextlib.ExitStack()

    def __enter__(self) -> timing:
        if timing._current is not None:
            raise RuntimeError(
                f"hipkittens.timing: launches are modelled for {timing._current.device} already; close that context first"
            )
        if _backend.is_simulating() and _backend.arch() != self.arch:
            raise ValueError(
                f"hipkittens.timing: device is {self.device!r}, a {self.arch}, inside hipkittens.simulate({_backend.arch()!r}); "
                "name the same target"
            )
        if (
            _library.simulator_settings().get("checks")
            if _backend.is_simulating()
            else _environment.CHECKS.read()
        ):
            raise ValueError(
                "hipkittens.timing: checkers are on, and a launch is either modelled or checked; do one after the other"
            )
        if _backend.is_simulating() and (parts := _library.simulated_partitions()) > 1:
            raise ValueError(
                "hipkittens.timing: inside hipkittens.simulate(partition=...); leave it out, and say "
                f'parameters={{"xcds": {8 // parts}}} for the model'
            )
        if timing._whole_process is not None:
            timing._whole_process.collect()
        self._start()
        if not _backend.is_simulating():
            self._simulated.enter_context(_backend.simulate(self.arch))
        timing._current = self
        self._launches = None
        return self

    def _start(self) -> None:
        count = len(self._parameters)
        names = (ctypes.c_char_p * count)(*(name.encode() for name in self._parameters))
        overrides = (ctypes.c_double * count)(*self._parameters.values())
        _simulator.time_launches(
            _simulator.Timing(
                self.device.encode(),
                self._clock_mhz,
                self._full,
                self._timeline,
                self._values,
                names,
                overrides,
                count,
                self._skip_others,
            )
        )

    def __exit__(self, *exception: object) -> None:
        self._launches = self._read()
        _simulator.time_launches(None)
        self._simulated.close()
        timing._current = None
        if timing._whole_process is not None:
            timing._whole_process._start()

    @staticmethod
    def _read() -> list[ModelledLaunch]:
        return launches_of(_simulator.timed_launches(), _simulator.timeline)

    @property
    def launches(self) -> list[ModelledLaunch]:
        """The launches so far, in the order in which they ended."""
        return self._read() if self._launches is None else self._launches


class _ProgramTiming(timing):
    """The model under HIPKITTENS_TIMING. A program may use several targets, check some launches, or model some itself: these are not
    modelled here.
    """

    _skip_others = True

    def __init__(self, device: str, timeline: int) -> None:
        super().__init__(device, timeline=timeline)
        self._reports: list[dict[str, Any]] = []
        self._skipped = 0

    def collect(self) -> None:
        """Keeps what the simulator discards when another context begins."""
        reports = json.loads(_simulator.timed_launches())
        if self._timeline:
            for index, report in enumerate(reports):
                report["events"] = base64.b64encode(bytes(_simulator.timeline(index))).decode()
        self._reports += reports
        self._skipped += _simulator.skipped_launches()

    def write(self, path: str) -> None:
        self.collect()
        with open(path, "w") as file:
            json.dump(self._reports, file)
        if self._skipped:
            print(
                f"hipkittens: {self._skipped} launches were not modelled for {self.device}: they were for another target than "
                f"{self.arch}, or checked",
                file=sys.stderr,
            )


def apply_environment() -> None:
    """Under HIPKITTENS_TIMING every launch of the process is modelled, and HIPKITTENS_TIMING_FILE receives the reports at its end."""
    device, path = _environment.TIMING.read(), _environment.TIMING_FILE.read()
    if not device and not path:
        return
    if not device or not path:
        given, other = ("TIMING", "TIMING_FILE") if device else ("TIMING_FILE", "TIMING")
        raise ValueError(
            f"hipkittens: HIPKITTENS_{given} is {device or path!r} and HIPKITTENS_{other} is not set; set both, or use "
            "hipkittens.timing or `hipkittens profile`"
        )
    require_writable("HIPKITTENS_TIMING_FILE", path)
    units = _environment.TIMING_TIMELINE.read() or "0"
    if not units.isdecimal():
        raise ValueError(
            f"hipkittens: HIPKITTENS_TIMING_TIMELINE is {units!r}; allowed: a number of compute units"
        )
    timing._whole_process = _ProgramTiming(device, int(units))
    timing._whole_process._start()
    atexit.register(timing._whole_process.write, path)
