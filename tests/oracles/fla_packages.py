# SPDX-License-Identifier: MIT
"""flash-linear-attention where `./run test --slow` installs it: in a folder of its own, since Transformers takes its functions wherever
it finds them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = Path(sys.prefix) / "fla_packages"
DISTRIBUTION, VERSION = "fla-core", "0.6.0"


def missing() -> str:
    """What has to be installed, or ""."""
    found = {
        each.metadata["Name"]: each.version for each in importlib.metadata.distributions(path=[str(PACKAGES)])
    }
    version = found.get(DISTRIBUTION)
    if version == VERSION and "einops" in found:
        return ""
    there = f"{DISTRIBUTION} there is {version}" if version else f"{DISTRIBUTION} is not installed"
    return f"{there}: pip install --no-deps --target {PACKAGES} {DISTRIBUTION}=={VERSION} einops==0.8.2"


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """While open, they can be imported; afterwards they are forgotten, with what they made of the GPU that they saw."""
    sys.path.insert(0, str(PACKAGES))
    before = set(sys.modules)
    try:
        yield
    finally:
        sys.path.remove(str(PACKAGES))
        for name in sys.modules.keys() - before:
            if name.partition(".")[0] in ("fla", "einops"):
                del sys.modules[name]
