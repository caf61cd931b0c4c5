# SPDX-License-Identifier: MIT
"""Other libraries beside ours in one run of `hipkittens bench`."""

import json
import sys

import pytest

from hipkittens import cli
from hipkittens.profiling import peers, problems
from tests.oracles.aiter import wheel


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
