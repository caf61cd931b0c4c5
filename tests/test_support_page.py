# SPDX-License-Identifier: MIT
"""docs/support.md agrees with the contents of the packs and with the operations' own answers."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_page_is_what_its_tool_writes():
    result = subprocess.run(
        [sys.executable, ROOT / "tools" / "support_matrix.py", "--check"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
