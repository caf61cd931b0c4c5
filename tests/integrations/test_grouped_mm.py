# SPDX-License-Identifier: MIT
"""torch.nn.functional.grouped_mm in unmodified programs: routed to hipkittens, and back to PyTorch when switched off."""

import pytest
import torch

if not hasattr(torch.nn.functional, "grouped_mm"):
    pytest.skip("this torch has no grouped_mm", allow_module_level=True)

import hipkittens
from hipkittens._accuracy import compare
from hipkittens.integrations import grouped_mm
from hipkittens.operations._grouped_checks import in_groups
from hipkittens.operations._tensors import ends_of

BF16 = torch.bfloat16
OFFS = ends_of([17, 0, 15])


@pytest.fixture(params=["gfx942", "gfx950"])
def target(request):
    with hipkittens.simulate(request.param, checks=True):
        yield request.param
    assert not grouped_mm.is_active()


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(BF16)


def experts(x, first, second, offs):
    """Both expert layers by F.grouped_mm, as Transformers calls it."""
    hidden = torch.nn.functional.grouped_mm(x, first.transpose(-2, -1), offs=offs)
    return torch.nn.functional.grouped_mm(
        torch.nn.functional.silu(hidden), second.transpose(-2, -1), offs=offs
    )


def gradients(x, first, second):
    leaves = [value.detach().requires_grad_() for value in (x, first, second)]
    out = experts(*leaves, OFFS)
    # Without us, rows past the last group are unwritten.
    return out[:32], torch.autograd.grad(out[:32], leaves, random(32, 24, seed=7))


def test_forward_and_backward_reach_us(target):
    x, first, second = random(32, 24), random(3, 40, 24, seed=1), random(3, 24, 40, seed=2)
    theirs = gradients(x, first, second)
    with grouped_mm.active():
        ours = gradients(x, first, second)
        assert grouped_mm.passed_on() == []
        assert "grouped" in hipkittens._library.last_kernel()

    def alone(x, first, second):
        leaves = [value.double().requires_grad_() for value in (x, first, second)]
        hidden = in_groups(leaves[0], leaves[1].mT, OFFS)
        out = in_groups(torch.nn.functional.silu(hidden), leaves[2].mT, OFFS)
        return out, torch.autograd.grad(out, leaves, random(32, 24, seed=7).double())

    right = alone(x, first, second)
    for mine, other, reference in zip(
        (ours[0], *ours[1]), (theirs[0], *theirs[1]), (right[0], *right[1]), strict=True
    ):
        comparison = compare(mine.detach(), other.detach(), reference.detach(), reference.abs().max().item())
        assert comparison.passes, comparison


def test_every_kind(target):
    a, b = random(32, 24), random(3, 24, 16, seed=1)
    with grouped_mm.active():
        rows = torch._grouped_mm(a, b, OFFS)
        of_k = torch._grouped_mm(a.t(), random(32, 16, seed=2), OFFS)
        columns = torch._grouped_mm(b.mT, a.t(), OFFS)
        batch = torch._grouped_mm(b.mT, b)
        assert grouped_mm.passed_on() == []
    assert torch.equal(rows, hipkittens.grouped_matmul(a, b, OFFS))
    assert torch.equal(of_k, hipkittens.grouped_matmul(a.t(), random(32, 16, seed=2), OFFS))
    assert torch.equal(columns, hipkittens.grouped_matmul(b.mT, a.t(), OFFS)) and columns.is_contiguous()
    assert torch.equal(batch, hipkittens.matmul(b.mT, b))


def test_other_calls_go_on(target, caplog):
    a, b = random(32, 24).float(), random(3, 24, 16, seed=1).float()
    expected = torch._grouped_mm(a, b, OFFS)
    with grouped_mm.active(), caplog.at_level("WARNING", logger="hipkittens"):
        for _ in range(2):
            assert torch.equal(torch._grouped_mm(a, b, OFFS), expected)
        assert len(grouped_mm.passed_on()) == 1 and "torch.float32" in grouped_mm.passed_on()[0]
    assert sum("goes on to PyTorch" in record.message for record in caplog.records) == 1


def test_restored(target):
    a, b = random(32, 24), random(3, 24, 16, seed=1)
    grouped_mm.activate()
    with grouped_mm.active():
        assert grouped_mm.is_active()
    assert grouped_mm.is_active()
    grouped_mm.restore()
    assert not grouped_mm.is_active()
    assert torch._grouped_mm(a, b, OFFS).shape == (32, 16)


@pytest.mark.filterwarnings("ignore")
def test_compile(target, compile_backend):
    x, first, second = random(32, 24), random(3, 40, 24, seed=1), random(3, 24, 40, seed=2)
    with grouped_mm.active():
        expected = gradients(x, first, second)
        compiled = torch.compile(experts, fullgraph=True, backend=compile_backend)
        leaves = [value.detach().requires_grad_() for value in (x, first, second)]
        out = compiled(*leaves, OFFS)
        found = torch.autograd.grad(out[:32], leaves, random(32, 24, seed=7))
        assert grouped_mm.passed_on() == []
    assert torch.equal(out[:32], expected[0])
    for mine, other in zip(found, expected[1], strict=True):
        assert torch.equal(mine, other)
