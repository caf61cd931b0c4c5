# SPDX-License-Identifier: MIT
"""hipkittens.aiter's lean and POD attention compared with float64: ragged batches, one block table per head, prompts together with single
tokens.
"""

import pytest
import torch

import hipkittens
from hipkittens import aiter

BF16, F16, I32 = torch.bfloat16, torch.float16, torch.int32
TESTED = {"persistent_lean_attention", "persistent_lean_attention_paged", "pod_attention"}
NOTHING = (None,) * 4  # for Mp, Lp, Op and locks


@pytest.fixture(params=("gfx942", "gfx950"))
def target(request):
    with hipkittens.simulate(request.param, checks="all") as simulation:
        yield request.param
    assert simulation.findings == []


def draw(*shape, dtype=BF16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(q, k, v, scale, causal=False):
    """[n, heads, D] in q's dtype; as many keys as queries if there is a mask."""
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(0, 1) for each in (k, v))
    scores = scale * (q.transpose(0, 1) @ k.mT)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[1:], dtype=torch.bool).tril(), float("-inf"))
    return (scores.softmax(-1) @ v).transpose(0, 1)


def check(out, sequences, scale, causal=False):
    """sequences: q, k and v of each. Within twice the error of PyTorch's operations in the dtype of q, largest and root mean square."""
    wide, narrow = (
        torch.cat([exact(*(each.to(dtype) for each in sequence), scale, causal) for sequence in sequences])
        for dtype in (torch.float64, out.dtype)
    )
    mine, allowed = ((each.double() - wide).abs() for each in (out, narrow))
    assert out.isfinite().all() and mine.max() <= 2 * allowed.max() and mine.norm() <= 2 * allowed.norm()


def ends_of(blocks):
    return torch.tensor(blocks).cumsum(0).to(I32)


@pytest.mark.parametrize(
    "dtype, head_dim, heads, key_heads", [(BF16, 128, 8, 2), (F16, 64, 5, 5), (BF16, 256, 4, 1)]
)
@pytest.mark.parametrize("blocks", [[3, 1, 0, 7], [2]], ids=str)
@pytest.mark.parametrize("rows", [1, 16, 17])
def test_ragged(target, dtype, head_dim, heads, key_heads, blocks, rows):
    """Also with scores that grow along the keys, and a scale other than 1 / sqrt(D)."""
    keys, ends = [64 * each for each in blocks], ends_of(blocks)
    q = draw(rows * len(blocks), heads, head_dim, dtype=dtype)
    k, v = (draw(sum(keys), key_heads, head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    k *= torch.linspace(0.1, 2, len(k)).to(dtype)[:, None, None]
    out = aiter.persistent_lean_attention(q, k, v, *NOTHING, ends, len(blocks), 0.1, False, True)
    again = aiter.persistent_lean_attention(
        q, k, v, *NOTHING, ends, len(blocks), 0.1, False, True, {"BLOCK_SIZE_N": 64}, 9
    )
    sequences = [
        each
        for each in zip(q.split(rows), k.split(keys), v.split(keys), strict=True)
        if len(each[1]) or not each[0].numel()
    ]
    empty = [b for b, each in enumerate(keys) if not each]
    for result in (out, again):
        parts = result.split(rows)
        assert all((parts[b] == 0).all() for b in empty)
        check(torch.cat([part for b, part in enumerate(parts) if b not in empty]), sequences, 0.1)


@pytest.mark.parametrize("causal", [False, True])
def test_one_length(target, causal):
    """batch_num_block_n is ignored."""
    batch, length, scale = 3, 100, 0.2
    rows = length if causal else 5
    q = draw(batch * rows, 4, 128)
    k, v = (draw(batch * length, 2, 128, seed=seed) for seed in (1, 2))
    out = aiter.persistent_lean_attention(q, k, v, *NOTHING, None, batch, scale, causal)
    check(out, list(zip(*(each.chunk(batch) for each in (q, k, v)), strict=True)), scale, causal)


@pytest.mark.parametrize("invariant", [False, True])
def test_a_table_for_each_head(target, invariant):
    """Blocks in random order, and NaN in those of no sequence."""
    heads, batch, rows, block, head_dim, blocks = 3, 3, 16, 32, 64, [5, 1, 2]
    ends = ends_of(blocks)
    places = torch.stack(
        [
            torch.randperm(sum(blocks) + 2, generator=torch.Generator().manual_seed(head))
            for head in range(heads)
        ]
    )[:, : sum(blocks)].to(I32)
    q = draw(heads, batch * rows, head_dim)
    caches = [
        torch.full((heads, sum(blocks) + 2, block, head_dim), float("nan"), dtype=BF16) for _ in range(2)
    ]
    for seed, cache in enumerate(caches):
        for head in range(heads):
            cache[head, places[head].long()] = draw(sum(blocks), block, head_dim, seed=10 * head + seed + 1)
    with hipkittens.batch_invariant(invariant):
        out = aiter.persistent_lean_attention_paged(
            q,
            *(each.flatten(1, 2) for each in caches),
            places,
            *NOTHING,
            ends,
            304,
            rows,
            block,
            batch,
            0.125,
            4,
            2,
        )
    starts = [0, *ends.tolist()]
    for head in range(heads):
        sequences = []
        for b in range(batch):
            mine = places[head, starts[b] : starts[b + 1]].long()
            k, v = (cache[head, mine].flatten(0, 1).unsqueeze(1) for cache in caches)
            sequences.append((q[head, b * rows : (b + 1) * rows].unsqueeze(1), k, v))
        check(out[head].unsqueeze(1), sequences, 0.125)


def test_prompts_beside_tokens(target):
    blocks = [1, 4]
    q = draw(2 * 16, 4, 64)
    k, v = (draw(64 * sum(blocks), 4, 64, seed=seed) for seed in (1, 2))
    prompts = [draw(3 * 70, 4, 64, seed=seed) for seed in (3, 4, 5)]
    sizes = (None, 128, 64, 3, 1, 1)
    call = (None, q, k, v, *NOTHING, ends_of(blocks), 608, 16, 64, 2, 0.125, 4, 2)
    decoded, prompt = aiter.pod_attention(*call, *prompts, *NOTHING, *sizes)
    lengths = [64 * each for each in blocks]
    check(decoded, list(zip(q.split(16), k.split(lengths), v.split(lengths), strict=True)), 0.125)
    check(prompt, list(zip(*(each.chunk(3) for each in prompts), strict=True)), 0.125, True)
    with pytest.raises(ValueError, match=r"pod_attention: k_pf has shape \(60, 4, 64\)"):
        aiter.pod_attention(*call, prompts[0], prompts[1][:60], prompts[2][:60], *NOTHING, *sizes)


def test_refused_before_a_launch():
    q, ends = draw(4, 2, 64), ends_of([1, 1])

    def lean(*, q=q, keys=128, ends=ends, batch=2, causal=False, ragged=True):
        k = draw(keys, 2, 64)
        aiter.persistent_lean_attention(q, k, k, *NOTHING, ends, batch, 1.0, causal, ragged)

    for message, changed in (
        ("q has shape (4, 2, 64) and batch_size is 3", {"batch": 3}),
        ("k has shape (100, 2, 64) and v (100, 2, 64); both must be", {"keys": 100}),
        ("batch_num_block_n is torch.int64 of shape (2,)", {"ends": ends.long()}),
        ("batch_num_block_n is torch.int32 of shape (1,)", {"ends": ends[:1]}),
        (
            "k has shape (128, 2, 64) and v (128, 2, 64); with a causal mask",
            {"causal": True, "ragged": False},
        ),
    ):
        with pytest.raises(ValueError) as caught:
            lean(**changed)
        assert f"persistent_lean_attention: {message}" in str(caught.value)
    with pytest.raises(NotImplementedError, match="RAGGED_BATCH is True with causal"):
        lean(causal=True)
    k, table = draw(2, 64, 64), torch.zeros(2, 2, dtype=I32)

    def paged(*, k=k, table=table):
        aiter.persistent_lean_attention_paged(
            draw(2, 4, 64), k, k, table, *NOTHING, ends, 304, 16, 32, 2, 1.0, 4, 2
        )

    for message, changed in (
        ("k has shape (2, 40, 64)", {"k": draw(2, 40, 64)}),
        ("k has shape (2, 64, 64) and strides (64, 128, 1)", {"k": draw(64, 2, 64).transpose(0, 1)}),
        ("kv_block_tables has shape (1, 2)", {"table": torch.zeros(1, 2, dtype=I32)}),
    ):
        with pytest.raises(ValueError) as caught:
            paged(**changed)
        assert f"persistent_lean_attention_paged: {message}" in str(caught.value)
