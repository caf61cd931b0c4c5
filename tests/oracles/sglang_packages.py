# SPDX-License-Identifier: MIT
"""SGLang as `./run test --slow` installs it, in a separate folder with those imports that `vllm_packages` does not have, and processes that
import it from there with the Transformers 5 of .venv/hub_packages.

Nothing of SGLang is changed. Two packages that it imports are not there: torchvision, which is built for GPUs, is a module with mocks for
every name; and AITER, whose import needs ROCm's files, is hidden.
"""

from __future__ import annotations

import os
import sys
import types
import unittest.mock
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles import packages_apart, vllm_packages

PACKAGES = Path(sys.prefix) / "sglang_packages"
VERSION = "0.5.23"


def missing() -> str:
    """What has to be installed, or ""."""
    return packages_apart.missing(PACKAGES, "sglang", VERSION) or vllm_packages.missing()


def prepare() -> None:
    """Prepare a separate process: SGLang can be imported, and loads hipkittens' plugin."""
    sys.path[:0] = [str(PACKAGES), str(vllm_packages.PACKAGES), str(vllm_packages.TRANSFORMERS_5)]
    os.environ |= {"SGLANG_PLUGINS": "hipkittens", "HF_HUB_OFFLINE": "1"}
    from transformers.utils import import_utils

    # Transformers remembers that there is no torchvision. SGLang imports names from it and uses them for images only.
    import_utils.is_torchvision_available()
    sys.modules["aiter"] = None  # type: ignore[assignment]
    for name in ("", ".io", ".transforms", ".transforms.functional", ".transforms.v2"):
        absent = types.ModuleType(f"torchvision{name}")
        absent.__path__, absent.__getattr__ = [], unittest.mock.MagicMock()  # type: ignore[method-assign]
        sys.modules[absent.__name__] = absent


def process() -> ProcessPoolExecutor:
    """A prepared process."""
    return packages_apart.process(prepare)
