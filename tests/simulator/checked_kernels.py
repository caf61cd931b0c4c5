"""Small kernels launched with checkers on, each faulty one paired with a correct twin."""

from __future__ import annotations

import numpy as np

from tests.simulated_device import CHECKERS, SimulatorError, take_findings
from tests.simulator.memory_kernels import run


def findings_of(module, name, checks="synccheck,racecheck,initcheck,memcheck", **launch):
    """(findings, error text or None) of one launch of a kernel of memory_kernels.load."""
    take_findings()
    error = None
    try:
        run(module, name, checks=sum(CHECKERS[checker] for checker in checks.split(",")), **launch)
    except SimulatorError as failure:
        error = str(failure)
    return take_findings(), error


def only(findings: list[dict]) -> dict:
    assert len(findings) == 1, [finding["message"] for finding in findings]
    return findings[0]


def rows(*values) -> list[np.ndarray]:
    return [np.full(64, value, np.uint32) for value in values]
