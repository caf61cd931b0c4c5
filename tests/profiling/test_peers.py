# SPDX-License-Identifier: MIT
"""Other libraries compared with ours in one run of `hipkittens bench`."""

import json
import sys

import pytest

from hipkittens import cli
from hipkittens.profiling import bench, peers, problems
from tests.oracles import fla_packages
from tests.oracles.aiter import wheel

needs_fla = pytest.mark.skipif(bool(fla_packages.missing()), reason=fla_packages.missing())


def rows_of(capsys, *arguments):
    assert cli.main(["bench", *arguments, "--json"]) == 0
    return {row["library"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.mark.parametrize(
    "operation, shape",
    (
        ("gemm", "64x64x64"),
        ("layer_norm", "4x128"),
        ("layer_norm_backward", "4x128"),
        ("rms_norm", "4x128"),
        ("rms_norm", "4x128:training"),
        ("rotary", "B1H2N4D64"),
        ("attention", "B1H1N64D64"),
    ),
)
def test_triton(capsys, operation, shape):
    pytest.importorskip("triton")
    rows = rows_of(capsys, operation, "--shapes", shape, "--compare", "triton")
    assert rows["triton"]["kind"] == rows["hipkittens"]["kind"] == "modelled"
    assert rows["triton"]["cycles"] > 0 and "warps" in rows["triton"]["note"]


@wheel.needs_wheel
@pytest.mark.parametrize(
    "operation, shape",
    (
        ("gemm", "64x64x64"),
        ("attention", "B1H1N256D128:causal"),
        ("attention_backward", "B1H2K1N256D128:causal"),
        ("attention_backward", "B1H1N256D64"),
    ),
)
@pytest.mark.parametrize("device", ("MI300X", "MI355X"))
def test_aiter(capsys, operation, shape, device):
    rows = rows_of(capsys, operation, "--shapes", shape, "--compare", "aiter", "--device", device)
    assert rows["aiter"]["kind"] == "modelled" and rows["aiter"]["cycles"] > 0
    assert ".co" in rows["aiter"]["note"]


@wheel.needs_wheel
@pytest.mark.parametrize(
    "operation, shape, device, library",
    (
        ("scaled_matmul_blocks", "64x256x256", "MI300X", "aiter"),
        ("scaled_matmul_blocks", "64x256x256", "MI355X", "aiter"),
        ("scaled_matmul_blocks", "64x256x256", "MI355X", "triton"),
        ("scaled_matmul_int8", "64x256x256", "MI325X", "aiter"),
        ("scaled_matmul_int8", "64x256x256", "MI325X", "triton"),
        ("scaled_matmul_rows", "64x256x256", "MI355X", "triton"),
        ("scaled_matmul_mxfp4", "32x256x512", "MI355X", "aiter"),
        ("scaled_matmul_mxfp4", "32x256x512", "MI355X", "triton"),
    ),
)
def test_products_of_few_bits(capsys, operation, shape, device, library):
    pytest.importorskip("triton")
    rows = rows_of(capsys, operation, "--shapes", shape, "--compare", library, "--device", device)
    assert rows[library]["kind"] == rows["hipkittens"]["kind"] == "modelled" and rows[library]["cycles"] > 0


@needs_fla
@pytest.mark.parametrize("device", ("MI300X", "MI355X"))
@pytest.mark.parametrize(
    "operation, shape, kernels",
    (
        pytest.param("gated_delta_rule", "1x70x1x2x64", 7, marks=pytest.mark.slow),
        ("gated_delta_step", "2x1x2x64", 1),
        pytest.param("kimi_delta_attention", "1x70x2x2x64", 8, marks=pytest.mark.slow),
        ("kimi_delta_step", "2x2x2x64", 1),
        pytest.param("causal_conv1d", "1x64x70x4", 1, marks=pytest.mark.slow),
        pytest.param("causal_conv1d_update", "2x64x4", 1, marks=pytest.mark.slow),
    ),
)
def test_flash_linear_attention(capsys, operation, shape, kernels, device):
    """One launch of each kernel counts, after any autotuning; and nothing of the package stays importable."""
    pytest.importorskip("triton")
    path, modules = list(sys.path), set(sys.modules)
    rows = rows_of(capsys, operation, "--shapes", shape, "--compare", "triton", "--device", device)
    theirs = rows["triton"]
    assert theirs["kind"] == "modelled" and theirs["cycles"] > 0
    assert len(theirs["kernels"]) == kernels and fla_packages.VERSION in theirs["note"]
    assert not {name for name in sys.modules.keys() - modules if name.partition(".")[0] in ("fla", "einops")}
    assert str(fla_packages.PACKAGES) not in sys.path and set(path) <= set(sys.path)


@pytest.mark.parametrize(
    "operation, shape", (("gated_delta_step", "1x1x1x64"), ("causal_conv1d_update", "1x64x4"))
)
def test_flash_linear_attention_that_is_not_installed_is_named(
    capsys, monkeypatch, tmp_path, operation, shape
):
    pytest.importorskip("triton")
    monkeypatch.setattr(fla_packages, "PACKAGES", tmp_path)
    rows = rows_of(capsys, operation, "--shapes", shape, "--compare", "triton")
    assert rows["triton"]["kind"] == "none" and rows["triton"]["microseconds"] is None
    assert rows["triton"]["note"].startswith("fla-core is not installed: pip install --no-deps --target")


def test_what_prepares_a_candidate_is_not_counted():
    (problem,) = problems.parse_shapes("rms_norm", "4x128")
    call, ran = problem.call(), []

    def prepare():
        ran.append(True)
        call()

    plain, _ = bench.modelled_row(problem, "MI355X", "triton", [peers.Candidate("", call)])
    prepared, _ = bench.modelled_row(
        problem, "MI355X", "triton", [peers.Candidate("", call, prepare=prepare)]
    )
    assert ran and prepared == plain and len(plain.kernels) == 1


def test_a_peer_that_has_nothing_says_why(capsys):
    rows = rows_of(capsys, "attention_backward", "--shapes", "B1H1N64D64", "--compare", "torch,triton")
    assert rows["torch"]["kind"] == "none" and "no code objects here" in rows["torch"]["note"]
    assert rows["triton"]["kind"] == "none" and rows["triton"]["note"]


def test_outside_a_checkout_a_peer_says_what_it_needs(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "_BENCHMARKS", tmp_path)
    with pytest.raises(peers.Unavailable, match=r"^needs a checkout of hipkittens"):
        peers.peer("aiter")
    (tmp_path / "peer_triton.py").write_text("import not_a_package\n")
    monkeypatch.delitem(sys.modules, "hipkittens_benchmarks_peer_triton", raising=False)
    with pytest.raises(peers.Unavailable, match=r"No module named .*: pip install not_a_package"):
        peers.peer("triton")
    (problem,) = problems.parse_shapes("gemm", "8x8x8")
    with pytest.raises(peers.Unavailable):
        next(iter(peers.peer("torch").modelled(problem, "gfx950")))
