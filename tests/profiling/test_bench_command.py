# SPDX-License-Identifier: MIT
"""`hipkittens bench` without a GPU: rows, files, and refused arguments."""

import csv
import json

import pytest

from hipkittens import cli
from hipkittens.profiling import bench, bench_command, measure, problems, published

TINY = {
    "gemm": "64x64x64",
    "attention": "B1H1N64D64:causal",
    "attention_backward": "B1H1N64D64",
    "rotary": "B1H1N16D64",
    "layer_norm": "4x128",
    "layer_norm_backward": "4x128",
    "rms_norm": "4x128",
}


@pytest.mark.parametrize("operation", TINY)
def test_a_row_of_each_operation(capsys, operation):
    arguments = ["bench", operation, "--shapes", TINY[operation], "--device", "mi300x", "--json"]
    assert cli.main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    (row,) = said["rows"]  # nothing was published at such a shape
    assert row["kind"] == "modelled" and any("modelled" in line for line in said["legend"])
    calibrated = operation.startswith("attention")
    assert (row["error_percent"] is not None) == calibrated and f"error: {row['error_of']}" in said["legend"]
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
    assert "<svg" in picture.read_text() and "error of the model: not calibrated" in picture.read_text()


@pytest.mark.parametrize(
    "arguments, text",
    (
        (["gem"], "OP is 'gem'; allowed: gemm, "),
        (["gemm", "--shapes", "1x2"], "'1x2' is not MxNxK"),
        (["gemm", "--device", "H100"], "--device is 'H100'; allowed: MI300X"),
        (["gemm", "--device", "MI300X", "--arch", "gfx950"], "MI300X is a gfx942, and --arch says gfx950"),
        (["gemm", "--compare", "cublas"], "--compare names 'cublas'; allowed: some of torch"),
        (["gemm", "--compare", ""], "--compare names ''; allowed: some of torch"),
        (["gemm", "--shapes", ""], "shape '' is not MxNxK"),
        (["gemm", "--compare", "aiter,all"], "--compare names 'all'; allowed: some of torch"),
        (["rms_norm", "--rate", "TFLOP/s"], "of rms_norm bytes are counted; allowed: GB/s"),
        (["gemm", "--plot", "p.svg", "--shapes", "8x8x8,4x8x8"], "2 of the shapes have the size 8"),
        (["gemm", "--plot", "picture.xyz"], "'picture.xyz' does not end as a picture"),
        (["gemm", "--csv", "no/rows.csv"], "--csv: there is no folder "),
        (["gemm", "--plot", "no/plot.svg"], "--plot: there is no folder "),
        (["gemm", "--shapes", "9999999x9999999x64"], "has tensors of 200,003 GB, and "),
        (["gemm", "--json", "--csv", "-"], "both be written to standard output"),
    ),
)
def test_bad_arguments_are_named(arguments, text):
    with pytest.raises(SystemExit, match="hipkittens bench: ") as error:
        cli.main(["bench", *arguments])
    assert text in str(error.value)


def test_published_figures_stand_beside_ours(capsys, monkeypatch):
    """Without --compare: everything published for the shape and device, in the table and with its source in JSON."""
    (problem,) = problems.parse_shapes("gemm", "1024x1024x1024")
    known = set(published.libraries_at(problem, "MI350X"))
    assert {"torch", "aiter", "hipblaslt", "hipkittens-upstream"} <= known
    monkeypatch.setattr(bench_command, "row_of", stand_in)
    arguments = ["bench", "gemm", "--shapes", problem.shape, "--device", "MI350X"]
    assert cli.main([*arguments, "--json"]) == 0
    rows = {row["library"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows.keys() == known | {"hipkittens"}
    torch_row = rows["torch"]
    assert torch_row["kind"] == "published" and torch_row["published_source"]
    assert torch_row["speedup"] is None
    assert torch_row["speedup_over_published"] == pytest.approx(torch_row["published_microseconds"] / 10)
    assert cli.main([*arguments, "--rate", "GB/s"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert max(map(len, said[: len(known) + 4])) <= 100
    (line,) = (line for line in said if line.startswith("  torch "))
    assert f"{problem.bytes / torch_row['published_microseconds'] * 1e-3:,.1f}" in line
    assert line.split()[-1] == f"{torch_row['speedup_over_published']:.2f}"


def stand_in(problem, device, library, on_gpu):
    """Our operation in ten microseconds, without the model."""
    if library != "hipkittens":
        return bench.row_of(problem, device, library, on_gpu)
    return bench._timed(bench._row(problem, device, library, "modelled"), problem, 10.0)


def test_comparing_with_all_and_with_none(capsys, monkeypatch):
    ran = []

    def not_run(problem, device, library, on_gpu):
        ran.append(library)
        return stand_in(problem, device, "hipkittens", on_gpu)

    monkeypatch.setattr(bench_command, "row_of", not_run)
    for name, libraries in (
        ("none", {"hipkittens"}),
        ("published", {"hipkittens"}),
        ("all", {"hipkittens", "torch", "triton", "aiter"}),
    ):
        ran.clear()
        arguments = ["rotary", "--shapes", "B16H16N1024D128", "--compare", name]
        assert cli.main(["bench", *arguments, "--json"]) == 0
        assert set(ran) == libraries and len(ran) == len(libraries)
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert ("torch_compile" in {row["library"] for row in rows}) == (name != "none")


def test_devices_by_the_name_that_torch_gives_them():
    assert measure.device_of("AMD Instinct MI355X") == "MI355X"
    assert measure.device_of("AMD Radeon RX 7900") is None
