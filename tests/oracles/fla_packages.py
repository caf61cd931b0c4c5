# SPDX-License-Identifier: MIT
"""flash-linear-attention as `./run test --slow` installs it: in a separate folder, since Transformers uses its functions wherever it finds
them."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tests.oracles.packages_apart import importable_from, versions

PACKAGES = Path(sys.prefix) / "fla_packages"
DISTRIBUTION, VERSION = "fla-core", "0.6.0"


def missing() -> str:
    """What has to be installed, or ""."""
    found = versions(PACKAGES)
    version = found.get(DISTRIBUTION)
    if version == VERSION and "einops" in found:
        return ""
    there = f"{DISTRIBUTION} there is {version}" if version else f"{DISTRIBUTION} is not installed"
    return f"{there}: pip install --no-deps --target {PACKAGES} {DISTRIBUTION}=={VERSION} einops==0.8.2"


def importable() -> contextlib.AbstractContextManager[None]:
    """Context in which the packages can be imported."""
    return importable_from(PACKAGES, "fla", "einops")
