# SPDX-License-Identifier: MIT
"""train_mixtral.py, train_qwen3_moe.py and train_qwen3_next.py: they learn as PyTorch does, use hipkittens' experts, and resume
after an interruption.
"""

import json

import compare_with_pytorch
import model_mixture
import operators
import pytest
import torch
import train_mixtral
import train_qwen3_moe
import train_qwen3_next
import transformers
from tiny_run import log, options, results

if int(transformers.__version__.split(".")[0]) >= 5:
    pytest.skip("Transformers 5 has other experts", allow_module_level=True)

PROGRAMS = {"mixtral": train_mixtral, "qwen3_moe": train_qwen3_moe, "qwen3_next": train_qwen3_next}
BLOCKS = {
    "mixtral": "MixtralSparseMoeBlock",
    "qwen3_moe": "Qwen3MoeSparseMoeBlock",
    "qwen3_next": "Qwen3NextSparseMoeBlock",
}


@pytest.mark.parametrize(
    "name, arch",
    [
        ("mixtral", "gfx942"),
        pytest.param("qwen3_moe", "gfx950", marks=pytest.mark.slow),
        pytest.param("qwen3_next", "gfx950", marks=pytest.mark.slow),
    ],
)
def test_thirty_steps_go_the_way_of_pytorch(tmp_path, name, arch):
    """No further from PyTorch than twice PyTorch's distance from itself in another order, or than one bfloat16 rounding of the loss.

    A token whose experts change because of rounding makes either distance jump, so that neither alone bounds the other.
    """
    trained = options(tmp_path, "run", steps=30)
    assert compare_with_pytorch.main([name, "--arch", arch, *trained]) == 0
    result = json.loads((tmp_path / "run" / "losses.json").read_text())
    found = compare_with_pytorch.differences(result["losses"])
    noise = max(max(found["noise"]), 2.0**-9 * max(result["losses"]["pytorch"]))
    assert 0 < max(found["hipkittens"]) <= 2 * noise
    losses = result["losses"]["hipkittens"]
    assert len(losses) == 30 and sum(losses[-4:]) / 4 < losses[0] - 0.3


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_run_goes_on_where_it_was(tmp_path, name):
    main = PROGRAMS[name].main
    more = ("--sample", "2", "--arch", "gfx950")
    assert main(options(tmp_path, "whole", *more, steps=8)) == 0
    cut = tmp_path / "cut"
    (cut / "checkpoints").mkdir(parents=True)
    for each in ("settings.json", "tokenizer.json", "losses.jsonl", "checkpoints/step-00000005.pt"):
        (cut / each).write_bytes((tmp_path / "whole" / each).read_bytes())
    assert main(options(tmp_path, "cut", *more, "--resume", steps=8)) == 0
    assert results(cut) == results(tmp_path / "whole") and len(log(cut)) == 8
    assert (cut / "sample.txt").read_text() == (tmp_path / "whole" / "sample.txt").read_text()


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_product_of_experts_is_ours(name):
    size = PROGRAMS[name].SIZES["tiny"]
    model = model_mixture.Mixture(size, operators.HIPKITTENS)
    rows = {row.module: row for row in model.report.rows}
    blocks = [row for row in rows.values() if row.kind == BLOCKS[name]]
    assert len(blocks) == 2 and all(row.replaced_by == "hipkittens.moe" for row in blocks)
    products = [
        each for each, module in model.model.named_modules()
        if isinstance(module, torch.nn.Linear) and ".experts." in each
    ]  # fmt: skip
    assert products and all(rows[each].replaced_by == "hipkittens.moe" for each in products)
    plain = model_mixture.Mixture(size, operators.TORCH)
    assert not plain.report.replaced
    mixed = operators.from_sources("torch", "torch", "torch", "torch", "hipkittens")
    assert {row.part for row in model_mixture.Mixture(size, mixed).report.replaced} == {"moe"}


def test_experts_that_stay_are_no_silent_fallback(monkeypatch):
    patch = model_mixture.hipkittens.patch
    monkeypatch.setattr(
        model_mixture.hipkittens,
        "patch",
        lambda *given, **options: patch(*given, **{**options, "moe": False}),
    )
    with pytest.raises(model_mixture.TrainingError, match="no experts of MixtralConfig were replaced"):
        model_mixture.Mixture(train_mixtral.SIZES["tiny"], operators.HIPKITTENS)


def test_sharding_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train_mixtral.parse(options(tmp_path, "run", "--fsdp"))
    assert "--fsdp: Mixtral is not sharded here" in capsys.readouterr().err
