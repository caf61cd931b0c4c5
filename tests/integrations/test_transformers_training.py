# SPDX-License-Identifier: MIT
"""Small models of Transformers trained with everything replaced, compared with PyTorch's training and its rounding noise."""

import functools

import pytest
import torch

transformers = pytest.importorskip("transformers")

import hipkittens  # noqa: E402
from tests.integrations.tiny_models import BF16, VOCABULARY, make  # noqa: E402

STEPS, ROWS, LENGTH = 30, 4, 40


def batch(step):
    """Sequences that a model can learn: each token is the previous one plus its row's step, with occasional random tokens."""
    generator = torch.Generator().manual_seed(step)
    stride = torch.randint(1, 4, (ROWS, 1), generator=generator)
    first = torch.randint(3, VOCABULARY, (ROWS, 1), generator=generator)
    tokens = 3 + (first + stride * torch.arange(LENGTH)) % (VOCABULARY - 3)
    noise = torch.randint(3, VOCABULARY, tokens.shape, generator=generator)
    return torch.where(torch.rand(tokens.shape, generator=generator) < 0.05, noise, tokens)


def losses(model):
    """Losses with float32 parameters under bfloat16 autocast, ignoring padded labels."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = []
    for step in range(STEPS):
        tokens = batch(step)
        labels = tokens.clone()
        labels[0, : step % 7] = -100
        with torch.autocast("cpu", BF16):
            loss = model(input_ids=tokens, labels=labels, use_cache=False).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return torch.tensor(found)


@functools.cache
def losses_of_torch(name):
    """PyTorch's losses with two summation orders."""
    found = {}
    for implementation in ("eager", "sdpa"):
        model = make(name, torch.float32)
        model.set_attn_implementation(implementation)
        found[implementation] = losses(model)
    return found


def rms(values):
    return values.square().mean().sqrt().item()


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_everything_replaced_trains_as_pytorch_does(name, arch):
    model = make(name, torch.float32)
    by_torch = losses_of_torch(name)
    report = hipkittens.patch(model, linear=True, dtype=BF16)
    assert {row.part for row in report.left} == {""}, report.left  # the embedding, the table of angles
    functions = {row.replaced_by.removeprefix("hipkittens.") for row in report.replaced}
    assert functions >= {"attention", "cross_entropy", "gated_activation", "linear", "rms_norm", "rotary_qk"}
    with hipkittens.simulate(arch):
        ours = losses(model)
    assert ours[-5:].mean() < ours[:5].mean() - 0.5
    noise = by_torch["sdpa"] - by_torch["eager"]
    assert rms(noise) > 0
    for theirs in by_torch.values():
        print(
            f"{name} {arch}: {rms(ours - theirs):.2e} from PyTorch, whose two orders are {rms(noise):.2e} apart"
        )
    assert min(rms(ours - theirs) for theirs in by_torch.values()) <= 2 * rms(noise)
