# SPDX-License-Identifier: MIT
"""attention_paged with a plan, which divides all sequences' keys into equal splits."""

import itertools

import pytest
import torch

import hipkittens
from hipkittens import attention_paged, attention_paged_plan
from hipkittens.operations._attention_paged_problems import draw_paged, draw_scales
from tests.test_attention_paged import BOTH, check

I32 = torch.int32


@pytest.mark.parametrize("num_splits", [1, 2, 7, 64, 65536])
@pytest.mark.parametrize("lengths", [[1500, 0, 33, 1, 32], [0, 0], [], [8192] * 5, [-3, 70]])
def test_plan(lengths, num_splits):
    """Every tile belongs to some split, and only a sequence's last split may have fewer tiles than the others."""
    with hipkittens.simulate("gfx950"):
        share, *begins = attention_paged_plan(torch.tensor(lengths, dtype=I32), num_splits).tolist()
    tiles = [max(length + 31, 0) // 32 for length in lengths]
    assert share == max(-(-sum(tiles) // num_splits), 1)
    assert [b - a for a, b in itertools.pairwise(begins)] == [-(-each // share) for each in tiles]
    assert begins[0] == 0 and begins[-1] <= num_splits + len(lengths)


@BOTH
@pytest.mark.parametrize("num_splits", [1, 3, 20, 100])
@pytest.mark.parametrize("head_dim, page, layout", [(64, 16, "nhd"), (128, 1, "hnd"), (256, 16, "paged")])
@pytest.mark.parametrize("queries", [1, 3, [2, 1, 0, 17, 1, 1, 3]], ids=str)
def test_planned(target, num_splits, head_dim, page, layout, queries):
    lengths = [1000, 0, 33, 17, 32, 1, 290]
    problem = draw_paged(lengths, queries, heads=6, key_heads=2, head_dim=head_dim, page=page, layout=layout)
    options = {"cache_layout": layout, "sinks": torch.linspace(-1, 1, 6), "softcap": 8.0}
    plan = attention_paged_plan(problem.seqused_k, num_splits)
    check_planned(target, problem, num_splits, plan, **options)
    check_planned(target, problem, num_splits, plan, **options, window_size=(50, 0))


def check_planned(target, problem, num_splits, plan, **options):
    """Equal to the result without a plan, within the roundings of both; and compared with float64."""
    expected, sums = check(target, problem, **options)
    with hipkittens.simulate(target, checks="all") as run:
        out, lse = attention_paged(
            *problem.arguments(), num_splits=num_splits, plan=plan, return_lse=True, **options
        )
        into = torch.full_like(out, 7)
        attention_paged(*problem.arguments(), num_splits=num_splits, plan=plan, out=into, **options)
    assert run.findings == [] and torch.equal(into, out)
    torch.testing.assert_close(out, expected, atol=2**-8, rtol=2**-7)
    torch.testing.assert_close(lse, sums, atol=1e-5, rtol=1e-5)


@BOTH
def test_nothing_but_keys_of_8_bits_with_scales(target):
    problem = draw_paged([700, 3, 0, 64], 1, heads=8, key_heads=2, head_dim=128, cache_dtype=torch.int8)
    scales = {
        name: draw_scales(problem, "key", seed=seed) for seed, name in enumerate(("k_scale", "v_scale"))
    }
    check_planned(target, problem, 9, attention_paged_plan(problem.seqused_k, 9), **scales)
    none = draw_paged([0, 0], 1, heads=4, head_dim=64)
    with hipkittens.simulate(target):
        plan = attention_paged_plan(none.seqused_k, 3)
        out, lse = attention_paged(*none.arguments(), num_splits=3, plan=plan, return_lse=True)
    assert (out == 0).all() and lse.isinf().all()


@BOTH
def test_rows_of_no_sequence_are_not_written(target):
    problem = draw_paged([200, 33], [2, 1], heads=4, head_dim=64)
    q, *rest = problem.arguments()
    q = torch.cat((q, torch.full((3, 4, 64), float("nan")).to(q)))
    out = torch.full_like(q, 7)
    with hipkittens.simulate(target, checks="all") as run:
        attention_paged(q, *rest, num_splits=5, plan=attention_paged_plan(problem.seqused_k, 5), out=out)
    assert run.findings == [] and (out[-3:] == 7).all() and out.isfinite().all()


def test_one_plan_for_every_layer_of_a_step(compile_backend):
    """Other heads, head sizes and pages, the same lengths; shapes do not depend on the lengths."""
    lengths = torch.tensor([300, 40], dtype=I32)
    with hipkittens.simulate("gfx950"):
        plan = attention_paged_plan(lengths, 6)
        compiled = torch.compile(attention_paged_plan, fullgraph=True, backend=compile_backend)(lengths, 6)
        assert torch.equal(plan, compiled) and plan.shape == (4,)
        for heads, page in ((4, 16), (7, 5)):
            problem = draw_paged([300, 40], 1, heads=heads, head_dim=64, page=page)
            assert attention_paged(*problem.arguments(), num_splits=6, plan=plan).isfinite().all()


def test_refused():
    problem = draw_paged([50, 17], 1, heads=4, head_dim=64)
    with hipkittens.simulate("gfx950"):
        plan = attention_paged_plan(problem.seqused_k, 4)
        for bad, splits, message in (
            (plan[:-1], 4, r"plan has 3 entries and num_splits is 4; 2 sequences need a plan of 4"),
            (
                plan,
                0,
                r"num_splits is 0; 2 sequences need a plan of 4, and the num_splits it was made for, 1 .. 65536",
            ),
            (plan, 65537, r"num_splits is 65537"),
        ):
            with pytest.raises(ValueError, match=message):
                attention_paged(*problem.arguments(), num_splits=splits, plan=bad)
        with pytest.raises(TypeError, match=r"plan is torch.int64; allowed: torch.int32"):
            attention_paged(*problem.arguments(), num_splits=4, plan=plan.long())
        with pytest.raises(ValueError, match=r"plan was made for more than num_splits = 1 \+ 2 sequences"):
            attention_paged(
                *problem.arguments(), num_splits=1, plan=plan.add(0).index_fill_(0, torch.tensor([3]), 9)
            )
        with pytest.raises(ValueError, match=r"num_splits is 0; allowed: 1 .. 65536"):
            attention_paged_plan(problem.seqused_k, 0)
        with pytest.raises(TypeError, match=r"seqused_k is torch.int64; allowed: torch.int32"):
            attention_paged_plan(problem.seqused_k.long(), 4)
        with (
            hipkittens.batch_invariant(),
            pytest.raises((ValueError, RuntimeError), match="depend on the batch"),
        ):
            attention_paged(*problem.arguments(), num_splits=4, plan=plan)
