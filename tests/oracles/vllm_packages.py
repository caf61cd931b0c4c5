# SPDX-License-Identifier: MIT
"""vLLM as `./run test --slow` installs it, in a separate folder together with what its Python imports, and processes that import it from
there with the Transformers 5 of .venv/hub_packages: this process has Transformers 4.

vLLM's wheel is built for NVIDIA GPUs, but no GPU is needed: without its extensions, which do not load here, its platform is
UnspecifiedPlatform, for which a layer calls its attention backend directly. Nothing of vLLM is stubbed or changed.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.oracles import packages_apart

PACKAGES = Path(sys.prefix) / "vllm_packages"
TRANSFORMERS_5 = Path(sys.prefix) / "hub_packages"
VERSION = "0.33.0"


def missing() -> str:
    """What has to be installed, or ""."""
    if vllm := packages_apart.missing(PACKAGES, "vllm", VERSION, " and what it imports"):
        return vllm
    if not (TRANSFORMERS_5 / "transformers").is_dir():
        return f"Transformers 5 is not in {TRANSFORMERS_5}: ./run test installs it"
    return ""


def prepare() -> None:
    """Prepare a separate process: vLLM can be imported, logs errors only, and loads hipkittens' plugin."""
    sys.path[:0] = [str(PACKAGES), str(TRANSFORMERS_5)]
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_PLUGINS": "hipkittens", "HF_HUB_OFFLINE": "1"}


def process() -> ProcessPoolExecutor:
    """A prepared process."""
    return packages_apart.process(prepare)
