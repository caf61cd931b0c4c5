# SPDX-License-Identifier: MIT
"""FlashMLA's names: what hipkittens.attention_mla gives, in FlashMLA's shapes; what is refused."""

import pytest
import torch

import hipkittens
from hipkittens.integrations import flash_mla
from hipkittens.operations._attention_mla_checks import SCALE
from hipkittens.operations._attention_paged_problems import draw_latent
from hipkittens.operations._attention_sparse_problems import draw_sparse


def arguments(queries=2):
    problem = draw_latent([70, 0, 65], queries, heads=16, page=64)
    metadata, splits = flash_mla.get_mla_metadata(problem.seqused_k, queries * 16, 1)
    q = problem.q.unflatten(0, (3, queries))
    return problem, (q, problem.kv_cache, problem.block_table, problem.seqused_k, 512, metadata, splits)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("causal", [True, False])
def test_results_are_those_of_attention_mla(target, causal):
    problem, given = arguments()
    sinks = torch.linspace(-1, 1, 16)
    with hipkittens.simulate(target):
        expected, sums = hipkittens.attention_mla(
            *problem.arguments(), scale=SCALE, causal=causal, sinks=sinks, return_lse=True
        )
        out, lse = flash_mla.flash_mla_with_kvcache(*given, SCALE, causal, attn_sink=sinks)
    assert out.shape == (3, 2, 16, 512) and lse.shape == (3, 16, 2)
    assert torch.equal(out.flatten(0, 1), expected)
    assert torch.equal(lse[0], sums[:, :2]) and torch.equal(lse[2], sums[:, 4:])
    assert (lse[1] == float("inf")).all() and (out[1] == 0).all()


def test_the_default_scale_is_that_of_576_features():
    _, given = arguments(1)
    with hipkittens.simulate("gfx950"):
        ours = flash_mla.flash_mla_with_kvcache(*given)
        same = flash_mla.flash_mla_with_kvcache(*given, softmax_scale=576**-0.5)
    assert torch.equal(ours[0], same[0]) and torch.equal(ours[1], same[1])


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("counted", [False, True])
def test_lists_of_keys(target, counted):
    problem = draw_sparse([40, 0, 3, 17], 50, heads=16)
    lengths, sinks = torch.tensor([30, 50], dtype=torch.int32), torch.linspace(-1, 1, 16)
    options = {"topk_length": lengths.repeat_interleave(2)} if counted else {}
    q, indices = problem.q.unflatten(0, (2, 2)), problem.indices.unflatten(0, (2, 2))
    with hipkittens.simulate(target):
        expected, sums = hipkittens.attention_mla_sparse(
            *problem.arguments(), scale=SCALE, sinks=sinks, return_lse=True, **options
        )
        metadata, splits = flash_mla.get_mla_metadata()
        out, lse = flash_mla.flash_mla_with_kvcache(
            q, problem.kv_cache.unsqueeze(2), None, None, 512, metadata, splits, SCALE, indices=indices,
            attn_sink=sinks, topk_length=lengths if counted else None,
        )  # fmt: skip
        other, largest, rows = flash_mla.flash_mla_sparse_fwd(
            problem.q,
            problem.kv_cache.reshape(-1, 1, 576),
            problem.indices.unsqueeze(1),
            SCALE,
            512,
            sinks,
            **options,
        )
    sums = sums.masked_fill(sums.isinf(), float("inf"))
    assert torch.equal(out.flatten(0, 1), expected) and torch.equal(other, expected) and largest is None
    assert torch.equal(lse.transpose(0, 1).flatten(1), sums) and torch.equal(rows, sums.T)
    assert (rows[1] == float("inf")).all() and (other[1] == 0).all()


def test_lists_that_do_not_fit_are_refused():
    problem, given = arguments()
    q, cache, table, lengths, *rest = given
    indices = torch.zeros(3, 2, 9, dtype=torch.int32)
    sparse = (q, cache, None, None, *rest)
    for changed, options, message in [
        ((q, cache, table, None, *rest), {}, "block_table is given beside indices"),
        ((q, cache, None, lengths, *rest), {}, "cache_seqlens is given beside indices"),
        (sparse, {"causal": True}, "causal is True beside indices"),
        (sparse, {"indices": indices[:2]}, r"indices has shape \(2, 2, 9\); it must be \(3, 2, keys"),
        (sparse, {"topk_length": lengths[:2]}, r"topk_length has shape \(2,\); it must be \(3,\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            flash_mla.flash_mla_with_kvcache(*changed, **({"indices": indices} | options))
    with pytest.raises(TypeError, match="topk_length is given and indices is None"):
        flash_mla.flash_mla_with_kvcache(*given, topk_length=lengths)
    with pytest.raises(
        ValueError, match=r"indices has shape \(6, 9\); it must be \(tokens, 1, keys of a token\)"
    ):
        flash_mla.flash_mla_sparse_fwd(problem.q, cache, indices.flatten(0, 1), SCALE)


@pytest.mark.parametrize("name", ["extra_k_cache", "extra_indices_in_kvcache", "extra_topk_length"])
def test_a_second_cache_is_refused(name):
    _, given = arguments()
    with pytest.raises(NotImplementedError, match=f"flash_mla: {name} is given, which has no kernel"):
        flash_mla.flash_mla_with_kvcache(*given, **{name: torch.zeros(3, dtype=torch.int32)})


def test_other_calls_are_refused():
    _, given = arguments()
    with pytest.raises(NotImplementedError, match="is_fp8_kvcache is True; rows of 656 bytes"):
        flash_mla.flash_mla_with_kvcache(*given, is_fp8_kvcache=True)
    with pytest.raises(TypeError, match="block_table is None and so is indices"):
        flash_mla.flash_mla_with_kvcache(*given[:2], None, *given[3:])
    with pytest.raises(ValueError, match=r"q has shape \(2, 16, 576\); it must be"):
        flash_mla.flash_mla_with_kvcache(given[0][0], *given[1:])
    with hipkittens.simulate("gfx950"), pytest.raises(ValueError, match="head_dim_v is 256; it must be 512"):
        flash_mla.flash_mla_with_kvcache(*given[:4], 256, *given[5:])
