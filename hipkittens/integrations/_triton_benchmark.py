# SPDX-License-Identifier: MIT
"""Triton's benchmarks, answered by the cycle model: every time is modelled, none is measured.

How long a simulated launch takes on the host says nothing about a GPU. While installed, `triton.testing.do_bench` and
`do_bench_cudagraph`, and therefore `@triton.autotune`, get the modelled milliseconds of the launches that a function makes.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from triton import testing
from triton.runtime.autotuner import Autotuner

from .. import _backend, _library
from .._log import once
from .._timing import USUAL_DEVICES, timing

_RETURN_MODES = ("min", "max", "mean", "median", "all")

# For each running benchmark, the launches that belong to a benchmark inside it, such as those of autotuning.
_set_aside: list[set[int]] = []


def _device() -> str:
    """The GPU that is modelled: that of an active `hipkittens.timing` or of HIPKITTENS_TIMING, or else the target's first."""
    arch = _backend.arch()
    for model in (timing._current, timing._whole_process):
        if model is not None and model.arch == arch:
            return model.device
    return USUAL_DEVICES[arch]


@contextlib.contextmanager
def _without_checkers() -> Any:
    """A launch is either modelled or checked. All other settings, and previous findings, are kept."""
    unchecked = _backend.simulate(_backend.arch(), checks=False)
    unchecked.settings = {**_library.simulator_settings(), "checks": 0}
    with unchecked:
        yield


def modelled_milliseconds(function: Callable[[], Any]) -> float:
    """Runs `function` once and returns the sum of its launches' times in the cycle model, launch overhead not included.

    The device is that of an active `hipkittens.timing`, or else MI300X for gfx942 and MI355X for gfx950. Checkers are off meanwhile. Raises
    RuntimeError if the function launches nothing.
    """
    device = _device()
    once(
        logging.INFO,
        f"times that Triton asks for are modelled for {device} by hipkittens.timing, not measured",
    )
    with contextlib.ExitStack() as stack:
        if timing._current is None:
            stack.enter_context(_without_checkers())
            stack.enter_context(timing(device))
        model = timing._current
        assert model is not None
        first = len(model.launches)
        _set_aside.append(set())
        try:
            function()
        finally:
            inner = _set_aside.pop()
            launches = model.launches
            if _set_aside:
                _set_aside[-1].update(range(first, len(launches)))
    own = [launch for index, launch in enumerate(launches) if index >= first and index not in inner]
    if not own:
        raise RuntimeError(
            f"hipkittens: {getattr(function, '__qualname__', function)} launched no kernel on the simulated {device}, so that "
            "there is no time to model; PyTorch's own operators on CPU tensors have none"
        )
    return sum(launch.microseconds for launch in own) / 1000


def do_bench(
    fn: Callable[[], Any],
    grad_to_none: Iterable[torch.Tensor] | None = None,
    quantiles: Iterable[float] | None = None,
    return_mode: str = "mean",
) -> Any:
    """`modelled_milliseconds` with the interface of triton.testing.do_bench: the model has no variance, so all statistics are equal.

    quantiles    as many equal floats in a list; one float if there is one quantile
    return_mode  "min", "max", "mean", "median": a float; "all": a list of one
    """
    if return_mode not in _RETURN_MODES:
        raise ValueError(
            f"triton.testing.do_bench: return_mode is {return_mode!r}; allowed: {', '.join(_RETURN_MODES)}"
        )
    quantiles = None if quantiles is None else list(quantiles)
    for quantile in quantiles or ():
        if not 0 <= quantile <= 1:
            raise ValueError(
                f"triton.testing.do_bench: quantiles has {quantile}; allowed: numbers from 0 to 1"
            )
    for tensor in grad_to_none or ():
        tensor.grad = None
    milliseconds = modelled_milliseconds(fn)
    if quantiles is not None:
        return milliseconds if len(quantiles) == 1 else [milliseconds] * len(quantiles)
    return [milliseconds] if return_mode == "all" else milliseconds


def _answer(*arguments: Any, _function: Any, **named: Any) -> Any:
    return _function(*arguments, **named)


class _Redirected:
    """Redirects a function of Triton, also for callers that have already imported it by name."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function
        self.kept = function.__code__, function.__defaults__, function.__kwdefaults__
        signature = inspect.signature(function)

        def answer(*arguments: Any, **named: Any) -> Any:
            given = signature.bind(*arguments, **named).arguments
            # How long and how often it would be measured does not matter to a model.
            return do_bench(
                **{
                    name: value
                    for name, value in given.items()
                    if name in ("fn", "grad_to_none", "quantiles", "return_mode")
                }
            )

        function.__code__, function.__defaults__ = _answer.__code__, None
        function.__kwdefaults__ = {"_function": answer}

    def restore(self) -> None:
        self.function.__code__, self.function.__defaults__, self.function.__kwdefaults__ = self.kept


_redirected: list[_Redirected] = []
_autotuner_run: Any = None
# Configurations chosen by the model, separately for each target; none for a GPU.
_chosen: weakref.WeakKeyDictionary[Autotuner, dict[str, dict[Any, Any]]] = weakref.WeakKeyDictionary()


def _run_with_modelled_choice(self: Autotuner, *arguments: Any, **named: Any) -> Any:
    """Autotuner.run with the configurations chosen for this target, without writing to Triton's cache on disk."""
    kept = self.cache, self.cache_results
    self.cache = _chosen.setdefault(self, {}).setdefault(_device(), {})
    self.cache_results = False
    try:
        return _autotuner_run(self, *arguments, **named)
    finally:
        self.cache, self.cache_results = kept


def is_installed() -> bool:
    return bool(_redirected)


def install() -> None:
    """From now on benchmarks and autotuning of this process are modelled."""
    global _autotuner_run
    if is_installed():
        return
    _redirected.extend(_Redirected(function) for function in (testing.do_bench, testing.do_bench_cudagraph))
    _autotuner_run = Autotuner.run
    Autotuner.run = _run_with_modelled_choice


def remove() -> None:
    """Restores Triton's own benchmarks, and forgets the configurations that the model chose."""
    if not is_installed():
        return
    for redirected in _redirected:
        redirected.restore()
    _redirected.clear()
    Autotuner.run = _autotuner_run
    _chosen.clear()
