"""Row visibility in HSTU's kernels, per row and per tile, compared with the definition for every short sequence."""

import subprocess

from tests.host_build import build


def test_every_short_sequence(tmp_path):
    program = build(tmp_path / "probe", ["tests/kernels/history_mask_probe.cpp"], "-O2")
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "0\n"
