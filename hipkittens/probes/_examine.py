# SPDX-License-Identifier: MIT
"""Queries a device for facts."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import torch

from .. import _backend, _installation
from ._device import Device
from ._fact import FAILED, MEASURED, NOT_SHOWN, Answer, Fact, compare, to_json


def ask(device: Device, fact: Fact) -> Answer:
    """One fact. A launch that fails is also an answer: on silicon the next fact may still give one."""
    began = time.perf_counter()
    device.notes.clear()
    # With all checkers, and CDNA3's rule for products, which "fast" arithmetic does not implement.
    simulation = (
        _backend.simulate(device.target, checks="all", arithmetic="exact") if device.simulated else None
    )
    try:
        with simulation or contextlib.nullcontext():
            answer = _compared(device, fact)
    except RuntimeError as error:
        answer = Answer(fact, FAILED, error=str(error))
    if simulation is not None:
        answer.findings = [str(finding) for finding in simulation.findings]
    if fact.assumed is not None:
        answer.assumed = dict(fact.assumed(device))
    answer.notes = dict(device.notes)
    answer.seconds = time.perf_counter() - began
    return answer


def _compared(device: Device, fact: Fact) -> Answer:
    found = fact.find(device)
    if fact.expected is not None:
        return compare(fact, found, fact.expected(device.target))
    if device.simulated:  # its clock counts instructions
        return Answer(fact, NOT_SHOWN)
    return Answer(fact, MEASURED, found=to_json(found))


def of_target(device: Device, facts: Iterable[Fact]) -> list[Fact]:
    return [fact for fact in facts if device.target in fact.targets]


def examine(device: Device, facts: Iterable[Fact]) -> list[Answer]:
    """Every fact that the device's target has, in order."""
    return [ask(device, fact) for fact in of_target(device, facts)]


def devices(target: str | None, gpu: int | None) -> list[Device]:
    """The GPU that is queried, or simulated ones if there is no GPU or a target is given. ValueError for a GPU that does not exist."""
    if target is not None and gpu is not None:
        raise ValueError("--target asks a simulated GPU and --gpu a real one; leave one of them out")
    asks_gpus = target is None and _backend.backend() in ("auto", "hip")
    count = _backend.hip_device_count() if asks_gpus else 0
    if gpu is not None and not 0 <= gpu < count:
        raise ValueError(
            f"--gpu is {gpu}; allowed: the number of an AMD GPU, of which {count} can be asked here"
        )
    if not count:
        return [Device(each) for each in ((target,) if target else _installation.TARGETS)]
    chosen = gpu or 0
    arch = _backend.arch_of(torch.device("cuda", chosen))
    if arch not in _installation.TARGETS:
        raise ValueError(f"GPU {chosen} is a {arch}; allowed: {', '.join(_installation.TARGETS)}")
    return [Device(arch, chosen)]
