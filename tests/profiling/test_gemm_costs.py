# SPDX-License-Identifier: MIT
"""`hipkittens bench gemm --fit`: costs fitted to clocks from any source, including a GPU's launches, and the file that records the
source."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gemm_clocks
import pytest
import torch
from gemm_model import Tile, tiles

import hipkittens
from benchmarks import gemm_plan
from hipkittens import _backend, cli

ROOT = Path(__file__).resolve().parents[2]
COSTS = ROOT / "csrc/kernels/gemm/costs.def"


class Law:
    """Clocks by a formula: each K tile of each round costs 100 for shared and 300 for streamed data, a round 50, a launch 7."""

    target, units, source = "gfx950", 256, "of a formula"

    def held(self, tile, m, n, k):
        return 1

    def clocks(self, tile, m, n, k, splits=1):
        if splits > 1:
            elements = m * n / self.units
            return [1.0, 500 + 2 * elements + 0.5 * elements * splits]
        tile_m, tile_n, tile_k = (int(size) for size in re.search(r"(\d+)x(\d+)x(\d+)", tile).groups())
        tiles_m, tiles_n, k_tiles = -(-m // tile_m), -(-n // tile_n), -(-k // tile_k)
        rounds = -(-tiles_m * tiles_n // self.units)
        return [7 + rounds * (50 + k_tiles * (300 if tiles_m == 1 else 100))]


def test_the_law_comes_back():
    (row,) = gemm_plan.tile_rows(Law(), Tile("128x128x64", 128, 128, 64))
    assert row == "GEMM_COST(gfx950, bf16, bf16, none, 128, 128, 64, vector, 4, 1, 100, 300, 7, 50, 150)"
    assert gemm_plan.reduce_row(Law()) == "GEMM_REDUCE_COST(gfx950, 500, 2.000, 0.500)"


def test_costs_of_the_other_target_are_kept(tmp_path):
    path = tmp_path / "costs.def"
    with pytest.raises(ValueError, match="has no costs of gfx942 to keep"):
        gemm_plan.fit([Law()], path)
    path.write_text(COSTS.read_text())
    gemm_plan.fit([Law()], path)
    text = path.read_text()
    assert "// gfx942: modelled as MI325X, never measured\n// gfx950: of a formula\n" in text
    assert gemm_plan.kept(path, "gfx942") == gemm_plan.kept(COSTS, "gfx942")
    source, rows = gemm_plan.kept(path, "gfx950")
    assert source == "of a formula" and len(rows) == len(tiles("gfx950")) + 1
    assert text.count("GEMM_COST(gfx") == len(rows) - 1 + len(gemm_plan.kept(COSTS, "gfx942")[1]) - 1
    gemm_plan.fit([Law()], path)
    assert path.read_text() == text


@pytest.mark.parametrize("target", gemm_plan.TARGETS)
def test_the_table_that_ships_has_every_tile_and_its_source(target):
    source, rows = gemm_plan.kept(COSTS, target)
    assert re.match(r"modelled as MI\d+X, never measured$|measured on ", source)
    found = [
        (*re.match(r"GEMM_COST\(\w+, (\w+, \w+, \w+, \d+, \d+, \d+, \w+, \d+), 1,", row).groups(),)
        for row in rows
        if re.search(r"(vector|element), \d+, 1,", row)
    ]
    assert sorted(found) == sorted(
        (
            f"{tile.a}, {tile.b}, {tile.scales}, {tile.m}, {tile.n}, {tile.k}, "
            + ("element" if tile.name.endswith("unaligned") else "vector")
            + f", {tile.buffers}",
        )
        for tile in tiles(target)
    )


@pytest.fixture
def gpu(monkeypatch):
    """A GPU as torch would report it, which runs launches in the simulator."""
    properties = SimpleNamespace(
        name="AMD Instinct MI300X", gcnArchName="gfx942:x", multi_processor_count=304
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(_backend, "hip_device_count", lambda: 1)
    return properties


def on_cpu(measured):
    measured.torch_device = torch.device("cpu")
    return measured


@pytest.mark.parametrize(("tile", "n", "k", "splits"), [("64x64x64", 128, 256, 1), ("32x64x64", 96, 512, 2)])
def test_launches_of_a_gpu_are_the_product(gpu, tile, n, k, splits):
    timed = []

    def time(call):
        call()
        timed.append(call)
        return 2.0 * len(timed)

    with hipkittens.simulate("gfx942", checks="all") as simulation:
        measured = on_cpu(gemm_clocks.Measured(time=time))
        calls, (a, b, c) = measured.calls(tile, 64, n, k, splits)
        for call in calls:
            call()
        clocks = measured.clocks(tile, 64, n, k, splits)
    assert not simulation.findings
    torch.testing.assert_close(c, a @ b.T)
    assert len(calls) == splits and clocks == [2.0 * 2100, 4.0 * 2100][:splits]
    assert "measured on AMD Instinct MI300X, clocks at 2100 MHz" in measured.source


@pytest.mark.parametrize("target", gemm_plan.TARGETS)
def test_workgroups_side_by_side_are_those_of_the_model(gpu, target):
    gpu.gcnArchName, gpu.name = (
        target,
        {"gfx942": "AMD Instinct MI325X", "gfx950": "AMD Instinct MI350X"}[target],
    )
    gpu.multi_processor_count = {"gfx942": 304, "gfx950": 256}[target]
    measured, modelled = gemm_clocks.Measured(), gemm_clocks.Modelled(target)
    for tile in tiles(target):
        extents = tile.name, tile.m, tile.n, tile.k + tile.name.endswith("unaligned")
        assert measured.held(*extents) == modelled.held(*extents), tile.name


def test_what_is_asked(gpu):
    assert [type(each).__name__ for each in gemm_plan.sources(None, True)] == ["Modelled"] * 2
    (asked,) = gemm_plan.sources(None, False)
    assert isinstance(asked, gemm_clocks.Measured) and asked.target == "gfx942"
    with pytest.raises(ValueError, match="this GPU is a gfx942; for gfx950 add --model"):
        gemm_plan.sources("gfx950", False)
    gpu.multi_processor_count = 80
    with pytest.raises(ValueError, match="with 80 compute units; costs are fitted on chips of 304"):
        gemm_plan.sources(None, False)


def test_the_command(monkeypatch):
    asked = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: asked.append(command) or SimpleNamespace(returncode=3)
    )
    assert cli.main(["bench", "gemm", "--fit", "--model", "--arch", "gfx950"]) == 3
    program = str(ROOT / "benchmarks" / "gemm_plan.py")
    assert asked == [[sys.executable, program, "--model", "--target", "gfx950"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["gem", "--fit"], "OP is 'gem'; allowed: gemm, "),
        (["rotary", "--fit"], "--fit: rotary has no table of costs; allowed: gemm"),
        (["gemm", "--fit", "--csv", "x", "--shapes", "1x1x1"], "leave --shapes, --csv out"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        cli.main(["bench", *options])
