# SPDX-License-Identifier: MIT
"""FlashMLA's function names: results equal those of hipkittens.attention_mla, in FlashMLA's shapes; unsupported arguments are refused."""

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
    with pytest.raises(
        ValueError, match=r"indices has shape \(6, 9\); it must be \(tokens, 1, keys of a token\)"
    ):
        flash_mla.flash_mla_sparse_fwd(problem.q, cache, indices.flatten(0, 1), SCALE)


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_several_key_heads(target):
    _, (q, cache, table, lengths, *rest) = arguments()
    caches = [cache, cache * -0.5]
    with hipkittens.simulate(target):
        out, lse = flash_mla.flash_mla_with_kvcache(
            q, torch.cat(caches, 2), table, lengths, *rest, causal=True
        )
        for head, each in enumerate(caches):
            heads = slice(8 * head, 8 * head + 8)
            own = flash_mla.flash_mla_with_kvcache(q[:, :, heads], each, table, lengths, *rest, causal=True)
            assert torch.equal(out[:, :, heads], own[0]) and torch.equal(lse[:, heads], own[1])
    with pytest.raises(ValueError, match="q has 16 heads and k_cache 3"):
        flash_mla.flash_mla_with_kvcache(q, torch.cat([cache] * 3, 2), table, lengths, *rest)


def in_bytes(values, room):
    """An 8-bit cache as FlashMLA documents it, byte by byte, of values (blocks, size, 576 or 512) that are exact except for quantization;
    and the values that it holds, in bfloat16. `room` bytes separate its pages."""
    blocks, size, features = values.shape
    codes, each = (512, 128) if features == 576 else (448, 64)
    latent = values[..., :codes].float().unflatten(-1, (-1, each))
    exponents = torch.randint(-3, 4, latent.shape[:-1], generator=torch.Generator().manual_seed(5)).float()
    scales = exponents.exp2()
    quantized = (latent / scales[..., None]).to(torch.float8_e4m3fn)
    held = torch.cat(((quantized.float() * scales[..., None]).flatten(-2), values[..., codes:].float()), -1)
    rotary = values[..., codes:].bfloat16().contiguous().view(torch.uint8)
    rows = quantized.flatten(-2).view(torch.uint8)
    if features == 576:
        rows = torch.cat((rows, scales.contiguous().view(torch.uint8), rotary), -1).flatten(1)
    else:
        exponents = torch.nn.functional.pad(exponents.to(torch.uint8) + 127, (0, 1), value=255)
        rows = torch.cat((torch.cat((rows, rotary), -1).flatten(1), exponents.flatten(1)), 1)
    cache = torch.full((blocks, rows.shape[1] + room), 0x7F, dtype=torch.uint8)[:, : rows.shape[1]]
    cache[:] = rows
    return cache.unflatten(1, (size, 1, -1)), held.bfloat16()


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("features", [576, 512])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_caches_with_scales_in_their_rows(target, features, dtype):
    """Same results as 16-bit caches with the same numbers: for one cache, whose rows of 656 bytes are not copied, and for two."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator)  # noqa: E731
    q = draw(2, 2, 16, features).bfloat16()
    (cache, held), (more, more_held) = (
        in_bytes(draw(*shape).bfloat16(), room)
        for shape, room in (((5, 7, features), 48), ((3, 4, features), 0))
    )
    indices, more_indices = (
        torch.randint(-2, most + 2, (2, 2, width), generator=generator, dtype=torch.int32)
        for most, width in ((35, 40), (12, 9))
    )
    lengths, more_lengths = (torch.tensor(each, dtype=torch.int32) for each in ([40, 11], [0, 9]))
    sinks = torch.linspace(-1, 1, 16)
    sinks[0], sinks[1] = float("inf"), float("-inf")
    metadata, splits = flash_mla.get_mla_metadata()
    head = (None, None, 512, metadata, splits, 0.06, False)
    for second in (False, True):
        listed = indices.masked_fill(torch.arange(40) >= lengths[:, None, None], -1)
        listed = listed.masked_fill((listed >= 35) | (listed < 0), -1)
        keys, options = held.flatten(0, 1), {}
        if second:
            others = more_indices.masked_fill(torch.arange(9) >= more_lengths[:, None, None], -1)
            others = others.masked_fill((others >= 12) | (others < 0), -36) + 35
            keys, listed = torch.cat((keys, more_held.flatten(0, 1))), torch.cat((listed, others), 2)
            options = {
                "extra_k_cache": more.view(dtype), "extra_indices_in_kvcache": more_indices, "extra_topk_length": more_lengths,
            }  # fmt: skip
        with hipkittens.simulate(target, checks=True, arithmetic="strict"):
            out, lse = flash_mla.flash_mla_with_kvcache(
                q, cache.view(dtype), *head, True, indices, sinks, topk_length=lengths, **options
            )
            in_16_bits = flash_mla.flash_mla_with_kvcache(
                q, keys[:, None, None], *head, indices=listed, attn_sink=sinks
            )
        assert out.shape == (2, 2, 16, 512) and (out[:, :, 0] == 0).all() and out.isfinite().all()
        if features == 576 and not second:
            assert torch.equal(out, in_16_bits[0]) and torch.equal(lse, in_16_bits[1])
        torch.testing.assert_close(out, in_16_bits[0], atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(lse, in_16_bits[1], atol=1e-5, rtol=1e-5)
        weights = torch.einsum("bthd,kd->bhtk", q.double(), keys.double()) * 0.06
        seen = torch.zeros(2, 2, len(keys) + 1).scatter_add(
            2, listed.long() % (len(keys) + 1), torch.ones(listed.shape)
        )
        weights = weights + seen[:, None, :, :-1].log()
        assert (lse.double() - weights.logsumexp(-1)).abs().max() < 1e-5


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
def test_sequences_of_a_cache_with_scales_in_its_rows(target):
    """Without lists: bitwise equal to a 16-bit cache that holds the same numbers."""
    _, (q, cache, *rest) = arguments()
    rows, held = in_bytes(cache.squeeze(2).nan_to_num(), 0)
    with hipkittens.simulate(target, checks=True, arithmetic="strict"):
        out, lse = flash_mla.flash_mla_with_kvcache(q, rows, *rest, causal=True, is_fp8_kvcache=True)
        wide, sums = flash_mla.flash_mla_with_kvcache(q, held.unsqueeze(2), *rest, causal=True)
    assert out.isfinite().all() and torch.equal(out, wide) and torch.equal(lse, sums)


def test_what_goes_with_lists_alone_is_refused():
    _, given = arguments()
    for name in ("extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length"):
        with pytest.raises(TypeError, match=f"flash_mla: {name} is given and indices is None"):
            flash_mla.flash_mla_with_kvcache(*given, **{name: torch.zeros(3, dtype=torch.int32)})


def test_caches_of_bytes_that_are_none_are_refused():
    q, cache = torch.zeros(2, 1, 4, 576).bfloat16(), torch.zeros(3, 8, 1, 656, dtype=torch.uint8)
    options = {"indices": torch.zeros(2, 1, 9, dtype=torch.int32), "is_fp8_kvcache": True}
    for q_of, cache_of, kind, message in [
        (
            q.half(),
            cache,
            TypeError,
            "q is torch.float16 and is_fp8_kvcache is True; k_cache has rotary features",
        ),
        (q, cache[..., :640], ValueError, r"of shape \(3, 8, 1, 640\) .*it must be .*block_size, 1, 656\)"),
        (q, cache.bfloat16(), ValueError, "k_cache is torch.bfloat16"),
        (q[..., :128], cache, ValueError, "q has 128 features and is_fp8_kvcache is True; allowed: 576, 512"),
        (
            q[..., :512],
            torch.zeros(3, 8, 1, 600, dtype=torch.uint8)[..., :584],
            ValueError,
            "the bytes of a page, 4672, must be",
        ),
    ]:
        with pytest.raises(kind, match=message):
            flash_mla.flash_mla_with_kvcache(q_of, cache_of, None, None, 512, None, None, **options)
    with pytest.raises(
        TypeError, match="extra_indices_in_kvcache or extra_topk_length is given without extra_k_cache"
    ):
        flash_mla.flash_mla_with_kvcache(
            q, cache, None, None, 512, None, None, extra_topk_length=torch.zeros(2), **options
        )


def test_other_calls_are_refused():
    _, given = arguments()
    with pytest.raises(
        ValueError, match=r"k_cache is torch.bfloat16 of shape .*; for q of 576 features it must be"
    ):
        flash_mla.flash_mla_with_kvcache(*given, is_fp8_kvcache=True)
    with pytest.raises(
        ValueError,
        match=r"q has 512 features and is_fp8_kvcache is True; allowed: 576 \(and others with indices\)",
    ):
        flash_mla.flash_mla_with_kvcache(given[0][..., :512], *given[1:], is_fp8_kvcache=True)
    with pytest.raises(TypeError, match="block_table is None and so is indices"):
        flash_mla.flash_mla_with_kvcache(*given[:2], None, *given[3:])
    with pytest.raises(ValueError, match=r"q has shape \(2, 16, 576\); it must be"):
        flash_mla.flash_mla_with_kvcache(given[0][0], *given[1:])
    with hipkittens.simulate("gfx950"), pytest.raises(ValueError, match="head_dim_v is 256; it must be 512"):
        flash_mla.flash_mla_with_kvcache(*given[:4], 256, *given[5:])
