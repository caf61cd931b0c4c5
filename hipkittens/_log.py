# SPDX-License-Identifier: MIT
"""The logger `hipkittens`. It is silent until a program, or HIPKITTENS_LOG, gives it a handler."""

from __future__ import annotations

import functools
import logging
import sys

from . import _environment

log = logging.getLogger("hipkittens")


def configure() -> None:
    """Adds no handler to a program's logging unless HIPKITTENS_LOG requests one on standard error."""
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    level = _environment.LOG.read()
    if level is None:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s: %(message)s"))
    handler.setLevel(level.upper())
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False  # a program's own handlers would print it a second time


@functools.cache
def once(level: int, reason: str) -> None:
    """Logs a reason the first time it occurs in the process."""
    log.log(level, reason)
