# SPDX-License-Identifier: MIT
"""DeepGEMM's function names: results equal hipkittens' indexer logits; unsupported arguments are refused."""

import pytest
import torch

import hipkittens
from hipkittens.integrations import deep_gemm
from hipkittens.operations._mqa_logits_problems import draw_logits, draw_paged_logits

CODES = {"gfx942": torch.float8_e4m3fnuz, "gfx950": torch.float8_e4m3fn}
BOTH = pytest.mark.parametrize("target", CODES)


@BOTH
def test_rows(target):
    problem = draw_logits([(0, 50), (3, 9)], 60, heads=4, dtype=CODES[target])
    q, k, scale, *rest = problem.arguments()
    with hipkittens.simulate(target, checks=True):
        expected = hipkittens.mqa_logits(*problem.arguments())
        assert torch.equal(deep_gemm.fp8_mqa_logits(q, (k, scale), *rest), expected)
        bare = deep_gemm.fp8_mqa_logits(q, (k, scale), *rest, False)
    seen = expected != -torch.inf
    assert torch.equal(bare[seen], expected[seen]) and bare[~seen].isnan().all()
    with pytest.raises(
        NotImplementedError, match="max_seqlen_k is 50; rows that begin at their own first key"
    ):
        deep_gemm.fp8_mqa_logits(q, (k, scale), *rest, max_seqlen_k=50)
    with pytest.raises(TypeError, match="kv is Tensor; it must be a pair"):
        deep_gemm.fp8_mqa_logits(q, k, *rest)


@BOTH
@pytest.mark.parametrize("each_token", [False, True])
def test_pages(target, each_token):
    problem = draw_paged_logits([50, 0, 17], 2, heads=4, dtype=CODES[target])
    q, cache, weights, lengths, table, columns = problem.arguments()
    if each_token:
        lengths = (lengths[:, None] - torch.tensor([9, 0])).clamp(min=0).to(torch.int32)
    schedule = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, 132)
    assert (schedule.shape, schedule.dtype) == ((133, 2), torch.int32)
    call = (q, cache.unsqueeze(2), weights, lengths, table, schedule, columns)
    with hipkittens.simulate(target, checks=True):
        expected = hipkittens.mqa_logits_paged(q, cache, weights, lengths, table, columns)
        assert torch.equal(deep_gemm.fp8_paged_mqa_logits(*call, clean_logits=True), expected)
        bare = deep_gemm.fp8_paged_mqa_logits(*call)
    seen = expected != -torch.inf
    assert torch.equal(bare[seen], expected[seen]) and bare[~seen].isnan().all()


def test_metadata_of_no_tensor_is_refused():
    with pytest.raises(TypeError, match="context_lens is list"):
        deep_gemm.get_paged_mqa_logits_metadata([3], 64, 132)
    with pytest.raises(TypeError, match=r"num_sms is 1\.5"):
        deep_gemm.get_paged_mqa_logits_metadata(torch.ones(1), 64, 1.5)
