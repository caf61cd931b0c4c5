# SPDX-License-Identifier: MIT
"""Imported first: reports problems with the environment or with torch before anything else can fail because of them."""

from __future__ import annotations

import re
import warnings

from . import _environment

OLDEST_TORCH = (2, 10)  # the first with the whole stable ABI that _ops.so uses

_environment.check()

try:
    # torch warns on import if NumPy is missing, which neither torch nor this package needs.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        "hipkittens needs PyTorch 2.10 or later, and there is none in this Python: pip install torch "
        "(for an AMD GPU: a ROCm build of it)"
    ) from error

if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < OLDEST_TORCH:
    raise ImportError(
        f"hipkittens needs PyTorch 2.10 or later; this is {torch.__version__}, in {torch.__path__[0]}: "
        "pip install --upgrade torch"
    )
