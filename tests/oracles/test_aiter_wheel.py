# SPDX-License-Identifier: MIT
"""Continuous integration runs AITER's code objects: without their wheel it fails instead of skipping them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.oracles.aiter import wheel

ROOT = Path(__file__).resolve().parents[2]


def test_the_wheel_is_installed_where_it_is_required():
    assert wheel.missing() is None, wheel.missing()


def test_a_missing_wheel_fails_where_it_is_required_and_only_there(monkeypatch):
    monkeypatch.setattr(wheel, "objects", dict)
    monkeypatch.delenv(wheel.REQUIRED, raising=False)
    assert wheel.missing() is None
    monkeypatch.setenv(wheel.REQUIRED, "1")
    assert f"{wheel.DISTRIBUTION}=={wheel.VERSION}" in wheel.missing()
    with pytest.raises(AssertionError, match=wheel.DISTRIBUTION):
        test_the_wheel_is_installed_where_it_is_required()


def test_continuous_integration_requires_the_wheel(tmp_path):
    """.ci/run in a copy whose ./run prints its environment."""
    (tmp_path / ".ci").mkdir()
    script = tmp_path / ".ci" / "run"
    script.write_bytes((ROOT / ".ci" / "run").read_bytes())
    stand_in = tmp_path / "run"
    stand_in.write_text(f'#!/bin/sh\nprintf \'%s %s\' "$1" "${wheel.REQUIRED}"\n')
    stand_in.chmod(0o755)
    seen = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert seen.stdout == "test 1"
