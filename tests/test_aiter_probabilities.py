# SPDX-License-Identifier: MIT
"""hipkittens.aiter's samplers of probabilities: which columns are drawn, and how often, compared with the definition."""

import pytest
import torch

import hipkittens
from hipkittens import aiter


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(rows, columns, seed=0):
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)).pow(4)


def nucleus(probs, top_p):
    """The smallest set of most probable columns of a row that reaches top_p of its total."""
    order = probs.argsort(descending=True, stable=True)
    before = probs[order].double().cumsum(0) - probs[order]
    return set(order[before < top_p * probs.double().sum()].tolist())


@pytest.mark.parametrize("columns", [5, 111, 3000])
def test_renormalised(target, columns):
    probs = draw(4, columns)
    probs[1, :3] = probs[1].max()  # ties stay together
    counts = torch.tensor([1, 2, min(columns, 70), columns])
    for k, given in ((3, None), (columns, None), (0, counts)):
        found = aiter.top_k_renorm_probs(probs, given, k)
        for row, own in enumerate(probs):
            count = k if given is None else int(counts[row])
            kept = torch.where(own >= own.sort(descending=True).values[count - 1], own, 0).double()
            torch.testing.assert_close(found[row].double(), kept / kept.sum(), rtol=1e-6, atol=1e-7)


def test_drawn_from_the_nucleus(target):
    torch.manual_seed(0)
    probs = draw(3, 40)
    rows = torch.arange(3).repeat(200)
    for top_p, given in ((0.3, None), (1.0, torch.tensor([0.01, 0.5, 1.0]))):
        of_results = None if given is None else given[rows]
        found = aiter.top_p_sampling_from_probs(probs, rows.int(), of_results, top_p, True)
        assert found.dtype == torch.int32 and found.shape == (600,)
        for row in range(3):
            allowed = nucleus(probs[row], top_p if given is None else float(given[row]))
            drawn = set(found[rows == row].tolist())
            assert drawn <= allowed and len(drawn) >= min(3, len(allowed))


def test_both_limits_are_of_all_probabilities(target):
    torch.manual_seed(0)
    probs = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.25, 0.25, 0.25, 0.25]])
    rows = torch.arange(2).repeat(100)
    found = aiter.top_k_top_p_sampling_from_probs(probs, rows, None, 3, None, 0.65)
    assert set(found[rows == 0].tolist()) == {1, 3} and set(found[rows == 1].tolist()) == {0, 1, 2}
    counts = torch.tensor([1, 4])[rows]
    found = aiter.top_k_top_p_sampling_from_probs(probs, rows, counts, 0, None, 1.0)
    assert set(found[rows == 0].tolist()) == {1} and set(found[rows == 1].tolist()) == {0, 1, 2, 3}
    assert aiter.top_k_top_p_sampling_from_probs(probs, None, None, 1, None, 1.0)[0] == 1


def test_frequencies(target):
    torch.manual_seed(0)
    probs = torch.tensor([[0.5, 0.3, 0.2, 0.0]]).expand(4000, 4)
    found = aiter.top_p_sampling_from_probs(probs, None, None, 1.0)
    counts = found.bincount(minlength=4) / 4000
    assert (counts - probs[0]).abs().max() < 0.03 and counts[3] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda p: aiter.top_k_renorm_probs(p[0], None, 2),
            "probs is (6,); it must be a tensor [rows, columns]",
        ),
        (
            lambda p: aiter.top_k_renorm_probs(p, None, 0),
            "top_k_val is 0; it must be a whole number, 1 or more",
        ),
        (lambda p: aiter.top_k_renorm_probs(p, torch.ones(3), 1), "maybe_top_k_arr has shape (3,)"),
        (
            lambda p: aiter.top_p_sampling_from_probs(p, None, None, 0.0),
            "top_p_val is 0.0; it must be above 0, up to 1",
        ),
        (lambda p: aiter.top_p_sampling_from_probs(p, p, None, 0.5), "indices is (2, 6) torch.float32"),
    ],
)
def test_bad_input(call, message):
    with hipkittens.simulate("gfx950"), pytest.raises(ValueError) as caught:
        call(draw(2, 6))
    assert message in str(caught.value) and str(caught.value).startswith("hipkittens.aiter.top_")
