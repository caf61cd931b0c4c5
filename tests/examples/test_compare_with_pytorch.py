# SPDX-License-Identifier: MIT
"""compare_with_pytorch.py, and the figures made by it."""

import json

import compare_with_pytorch
import pytest
from tiny_run import EXAMPLES, options

IMAGES = EXAMPLES.parent / "docs" / "images"
KEPT = {"llama_gfx950": ("llama", "gfx950"), "bert_gfx942": ("bert", "gfx942")}


@pytest.mark.parametrize("model", compare_with_pytorch.NAMES)
def test_it_trains_three_times_on_the_same(tmp_path, capsys, model):
    trained = options(tmp_path, "run", steps=3)
    trained[trained.index("--batch") + 1] = "2"
    assert compare_with_pytorch.main([model, "--arch", "gfx950", *trained]) == 0
    result = json.loads((tmp_path / "run" / "losses.json").read_text())
    ours, theirs, other = (result["losses"][name] for name in compare_with_pytorch.RUNS)
    assert len(ours) == 3 and ours != theirs and other != theirs
    assert ours == pytest.approx(theirs, abs=0.02) and other == pytest.approx(theirs, abs=0.02)
    assert (tmp_path / "run" / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert "PyTorch in another order" in capsys.readouterr().out


def test_arguments_that_would_change_the_comparison(tmp_path, capsys):
    for wrong in (["--operators", "torch"], ["--device=cuda"], ["--dropout", "0.1"], ["--resume"]):
        with pytest.raises(SystemExit):
            compare_with_pytorch.parse(["bert", "--folder", str(tmp_path), *wrong])
        assert wrong[0].split("=")[0] in capsys.readouterr().err
    with pytest.raises(SystemExit):
        compare_with_pytorch.parse(["llama"])


@pytest.mark.parametrize("name", KEPT)
def test_kept_curves_lie_on_each_other(tmp_path, name):
    """300 steps; hipkittens is no further from PyTorch than twice the distance of PyTorch from itself."""
    path = tmp_path / f"{name}.json"
    path.write_text((IMAGES / f"{name}.json").read_text())
    result = json.loads(path.read_text())
    assert (result["model"], result["arch"]) == KEPT[name]
    found = compare_with_pytorch.differences(result["losses"])
    assert len(found["noise"]) == 300

    def mean_square(values):
        return sum(value**2 for value in values) / len(values)

    assert mean_square(found["hipkittens"]) <= 4 * mean_square(found["noise"])
    assert compare_with_pytorch.report(result) in (EXAMPLES / "README.md").read_text()
    losses = result["losses"]["hipkittens"]
    assert sum(losses[-20:]) / 20 < losses[0] - 1
    assert compare_with_pytorch.main(["--figure-of", str(path)]) == 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
