# SPDX-License-Identifier: MIT
"""`hipkittens bench` without a GPU: rows, files, and what it refuses."""

import csv
import json

import pytest

from hipkittens import cli
from hipkittens.profiling import measure

TINY = {
    "gemm": "64x64x64",
    "attention": "B1H1N64D64:causal",
    "attention_backward": "B1H1N64D64",
    "rotary": "B1H1N16D64",
    "layer_norm": "4x128",
    "rms_norm": "4x128",
}


@pytest.mark.parametrize("operation", TINY)
def test_a_row_of_each_operation(capsys, operation):
    arguments = ["bench", operation, "--shapes", TINY[operation], "--device", "mi300x", "--json"]
    assert cli.main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    (row,) = said["rows"]
    assert row["kind"] == "modelled" and any("modelled" in line for line in said["legend"])
    assert row["device"] == "MI300X" and row["shape"] == TINY[operation]
    assert row["cycles"] == pytest.approx(row["microseconds"] * row["clock_mhz"])
    assert all(operation.split("_")[0] in name or "norm" in name for name in row["kernels"])
    assert len(row["kernels"]) >= (2 if operation == "attention_backward" else 1)
    assert 0 < row["share_of_limit"] < 1


def test_table_csv_and_plot(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    table, picture = tmp_path / "rows.csv", tmp_path / "plot.svg"
    arguments = ["bench", "gemm", "--shapes", "64x64x64,128x128x64", "--compare", "torch"]
    assert cli.main([*arguments, "--csv", str(table), "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "modelled: by the cycle model" in said and "torch: PyTorch's GPU kernels" in said
    rows = list(csv.DictReader(table.open()))
    assert [(row["library"], row["kind"]) for row in rows] == [
        ("hipkittens", "modelled"),
        ("torch", "none"),
    ] * 2
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    "arguments, text",
    (
        (["gem"], "OP is 'gem'; allowed: gemm, "),
        (["gemm", "--shapes", "1x2"], "'1x2' is not MxNxK"),
        (["gemm", "--device", "H100"], "--device is 'H100'; allowed: MI300X"),
        (["gemm", "--device", "MI300X", "--arch", "gfx950"], "MI300X is a gfx942, and --arch says gfx950"),
        (["gemm", "--compare", "cublas"], "--compare names 'cublas'; allowed: some of torch"),
        (["gemm", "--plot", "picture.xyz"], "'picture.xyz' does not end as a picture"),
        (["gemm", "--json", "--csv", "-"], "both be written to standard output"),
    ),
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(SystemExit, match="hipkittens bench: ") as error:
        cli.main(["bench", *arguments])
    assert text in str(error.value)


def test_devices_by_the_name_that_torch_gives_them():
    assert measure.device_of("AMD Instinct MI355X") == "MI355X"
    assert measure.device_of("AMD Radeon RX 7900") is None
