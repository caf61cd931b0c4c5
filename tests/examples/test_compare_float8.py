# SPDX-License-Identifier: MIT
"""compare_float8.py, and the figure made by it."""

import json

import compare_float8
import pytest
from tiny_run import EXAMPLES, text_file

import hipkittens
from hipkittens.integrations import scaled_mm

IMAGES = EXAMPLES.parent / "docs" / "images"


def test_it_trains_every_recipe_on_the_kernels(tmp_path, capsys, monkeypatch):
    for needed in ("torchao", "transformers", "tokenizers"):
        pytest.importorskip(needed)
    kernels = []
    product = scaled_mm.scaled_matmul

    def counted(*given, **options):
        result = product(*given, **options)
        kernels.append(hipkittens._library.last_kernel())
        return result

    monkeypatch.setattr(scaled_mm, "scaled_matmul", counted)
    monkeypatch.setattr(compare_float8, "BATCH", 2)
    monkeypatch.setattr(compare_float8, "LENGTH", 16)
    folder, steps = tmp_path / "run", 2
    text = str(text_file(tmp_path))
    given = ["--arch", "gfx942", "--steps", str(steps), "--text", text, "--folder", str(folder)]
    assert compare_float8.main(given) == 0
    # Two layers with four projections of attention and three of the block after it: each has three products per step, or two
    # where the gradient of the weight is a 16-bit product.
    assert len(kernels) == steps * 14 * (3 + 3 + 2)
    assert all("_nt_fp8_" in name or "_nt_bf8_fp8_" in name for name in kernels)
    result = json.loads((folder / "losses.json").read_text())
    losses = result["losses"]
    assert result["arch"] == "gfx942" and all(len(each) == steps for each in losses.values())
    for name in compare_float8.RECIPES:
        assert losses[name] != losses[compare_float8.BASELINE]
        assert losses[name] == pytest.approx(losses[f"{name}, emulated"], abs=5e-3)
    assert (folder / "losses.png").read_bytes().startswith(b"\x89PNG")
    assert "from emulation" in capsys.readouterr().out


def test_kept_curves_lie_on_each_other(tmp_path):
    """30 steps: no recipe is further from its emulation than twice the distance of 8 bits from bfloat16, and all of them learn."""
    path = tmp_path / "float8_gfx950.json"
    path.write_text((IMAGES / path.name).read_text())
    result = json.loads(path.read_text())
    losses = result["losses"]
    assert all(len(each) == 30 and each[-1] < each[0] - 0.9 for each in losses.values())
    for ours, _, emulated in compare_float8.differences(losses).values():
        assert ours <= 2 * emulated
    assert compare_float8.report(result) in (EXAMPLES.parent / "docs" / "training.md").read_text()
    assert compare_float8.main(["--figure-of", str(path)]) == 0
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_arguments(capsys):
    for wrong in ([], ["--folder", "a", "--figure-of", "b"], ["--folder", "a", "--steps", "0"]):
        with pytest.raises(SystemExit):
            compare_float8.parse(wrong)
    assert "--steps is 0; 1 or more" in capsys.readouterr().err
