# SPDX-License-Identifier: MIT
"""hipkittens.fla compared with the rules themselves (tests/test_gated_delta_rule.py): vectors of length 1, indices of packed sequences."""

import pytest
import torch
import torch.nn.functional as F

import hipkittens
from hipkittens import fla
from hipkittens._accuracy import compare
from tests.simulated_device import TARGETS

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
LENGTHS = [[3, 1, 130], [0, 2, 0, 0, 64, 65, 0], [0], [], [17]]


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def with_gradient(function, x, grad):
    leaf = x.detach().clone().requires_grad_()
    y = function(leaf)
    return y.detach(), torch.autograd.grad(y, leaf, grad.to(y.dtype))[0]


def by_definition(x, eps):
    wide = x if x.dtype == torch.float64 else x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def starts_of(lengths, dtype=torch.int32):
    return F.pad(torch.tensor(lengths, dtype=dtype), (1, 0)).cumsum(0, dtype=dtype)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", (BF16, F16, F32), ids=str)
@pytest.mark.parametrize(
    ("shape", "scale"), [((2, 17, 3, 64), 1.0), ((5, 100), 1e-3), ((1, 257), 30.0), ((3, 1), 1.0)]
)
def test_unit_vectors(target, dtype, shape, scale):
    x, grad = (draw(*shape) * scale).to(dtype), draw(*shape, seed=1)
    with hipkittens.simulate(target, checks="all") as run:
        ours = with_gradient(fla.l2norm, x, grad)
    assert not run.findings
    theirs = with_gradient(lambda leaf: by_definition(leaf, 1e-6), x, grad)
    exact = with_gradient(lambda leaf: by_definition(leaf, 1e-6), x.double(), grad)
    # A gradient is a difference: one float32 rounding of what is subtracted.
    magnitudes = (
        exact[0].abs().max().item(),
        (grad.double().norm(dim=-1) / x.double().norm(dim=-1)).max().item(),
    )
    for values in zip(ours, theirs, exact, magnitudes, strict=True):
        assert compare(*values).passes, compare(*values)


def test_unit_vectors_of_strided_rows_and_in_another_dtype():
    x = draw(4, 6, 64).transpose(0, 1)
    exact = by_definition(x.double(), 1e-3)
    with hipkittens.simulate("gfx950"):
        assert torch.equal(fla.l2norm(x, 1e-3), fla.l2_norm(x.contiguous(), 1e-3))
        wide = fla.l2norm(x, 1e-3, F32)
    assert wide.dtype == F32
    torch.testing.assert_close(wide.double(), exact, rtol=1e-6, atol=1e-7)


def test_zeros_have_no_direction():
    with hipkittens.simulate("gfx942"):
        y, gradient = with_gradient(fla.l2norm, torch.zeros(2, 64), torch.ones(2, 64))
    assert not y.any() and torch.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor(1.0),), r"x has shape \(\); it needs a last dimension"),
        ((torch.empty(3, 0),), r"x has shape \(3, 0\); it needs"),
        ((torch.ones(3), -1.0), "eps is -1.0; it must be at least 0"),
    ],
)
def test_what_has_no_length(arguments, message):
    with pytest.raises(ValueError, match=message):
        fla.l2norm(*arguments)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_indices_of_packed_sequences(lengths, dtype):
    starts = starts_of(lengths, dtype)
    tokens = [[number, place] for number, length in enumerate(lengths) for place in range(length)]
    assert fla.prepare_lens(starts).tolist() == lengths
    assert fla.prepare_token_indices(starts).tolist() == tokens
    assert fla.prepare_sequence_ids(starts).tolist() == [number for number, _ in tokens]
    assert fla.prepare_position_ids(starts).tolist() == [place for _, place in tokens]
    for chunk in (1, 16, 64):
        counts = [-(-length // chunk) for length in lengths]
        chunks = [[number, place] for number, count in enumerate(counts) for place in range(count)]
        found = fla.prepare_chunk_indices(starts, chunk)
        assert found.tolist() == chunks and found.dtype == dtype
        offsets = fla.prepare_chunk_offsets(starts, chunk)
        assert offsets.tolist() == [sum(counts[:number]) for number in range(len(lengths) + 1)]
        assert offsets.dtype == dtype


def test_what_is_no_start():
    with pytest.raises(
        ValueError, match=r"cu_seqlens is torch.float32 of shape \(3,\); it must be int32 or int64"
    ):
        fla.prepare_sequence_ids(torch.zeros(3))
    with pytest.raises(ValueError, match="prepare_chunk_indices: chunk_size is 0; it must be at least 1"):
        fla.prepare_chunk_indices(starts_of([3]), 0)
    with pytest.raises(TypeError, match=r"chunk_size is 1\.5; it must be a whole number"):
        fla.prepare_chunk_offsets(starts_of([3]), 1.5)
