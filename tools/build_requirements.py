#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Prints the build requirements of pyproject.toml, one per line."""

import re
from pathlib import Path

text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text()
section = re.search(r"^\[build-system\]\nrequires = \[(.*?)^\]", text, re.S | re.M)[1]
print("\n".join(re.findall(r'"([^"]+)"', section)))
