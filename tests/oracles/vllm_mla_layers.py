# SPDX-License-Identifier: MIT
"""Batches through vLLM's layer of multi-head latent attention (`MLAAttention`) with our backends for decoding and prefill, in a process of
`vllm_packages`."""

from __future__ import annotations

import contextlib
import math
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import hipkittens
from tests.oracles.aiter import formats

LAYER = "model.layers.0.self_attn.attn"
NOPE, ROPE, VALUE, LATENT = 128, 64, 128, 512
SCALE = (NOPE + ROPE) ** -0.5
K_SCALE = 0.0625
UNUSED = 0x7FFFFFFF  # in block tables


@dataclass(frozen=True)
class Case:
    """decodes: the number of keys of each request that decodes, the last `each` of which are new. prefills: lengths of new requests."""

    target: str
    decodes: tuple[int, ...] = ()
    prefills: tuple[int, ...] = ()
    each: int = 1
    heads: int = 16
    dtype: torch.dtype = torch.bfloat16
    cache: str = "auto"
    block: int = 16


@contextlib.contextmanager
def _vllm(case: Case) -> Any:
    """vLLM's configuration with our backends, a group of one rank, the model's dtype, and what vLLM would know of a device."""
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.config.attention import AttentionConfig
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    config = VllmConfig(
        device_config=DeviceConfig("cpu"), cache_config=CacheConfig(block_size=case.block, cache_dtype=case.cache),
        attention_config=AttentionConfig(backend="HIPKITTENS_MLA", mla_prefill_backend="HIPKITTENS"),
    )  # fmt: skip
    before = torch.get_default_dtype()
    torch.set_default_dtype(case.dtype)
    try:
        with (
            set_current_vllm_config(config),
            unittest.mock.patch(
                "vllm.distributed.parallel_state._TP", SimpleNamespace(world_size=1, rank_in_group=0)
            ),
            unittest.mock.patch.object(current_platform, "fp8_dtype", lambda: formats.float8(case.target)),
        ):
            yield config
    finally:
        torch.set_default_dtype(before)


def _layer(case: Case, config: Any, random: torch.Generator) -> Any:
    from vllm.model_executor.layers.attention.mla_attention import MLAAttention
    from vllm.model_executor.layers.linear import ReplicatedLinear
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.mla.prefill.selector import get_mla_prefill_backend

    backend = config.attention_config.backend.get_class()
    reasons = backend.validate_configuration(
        head_size=LATENT + ROPE, dtype=case.dtype, kv_cache_dtype=case.cache, block_size=case.block, use_mla=True, has_sink=False,
        use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, attn_type="decoder",
        device_capability=DeviceCapability(9, {"gfx942": 4, "gfx950": 5}[case.target]),
    )  # fmt: skip
    assert reasons == [], reasons
    projection = ReplicatedLinear(LATENT, case.heads * (NOPE + VALUE), bias=False, params_dtype=case.dtype)
    projection.weight.data.copy_(torch.randn(projection.weight.shape, generator=random) * LATENT**-0.5)
    layer = MLAAttention(
        case.heads, SCALE, NOPE, ROPE, VALUE, None, LATENT, projection, cache_config=config.cache_config, prefix=LAYER,
        attn_backend=backend, prefill_backend_cls=get_mla_prefill_backend(config),
    )  # fmt: skip
    layer.process_weights_after_loading(case.dtype)
    layer._k_scale.fill_(K_SCALE)
    layer._k_scale_float = K_SCALE
    return layer


def _requests(case: Case) -> Iterator[tuple[slice, int, int]]:
    """Rows of new tokens, the number of keys, and how many of them are new, for each request."""
    row = 0
    for length, new in [*((length, case.each) for length in case.decodes), *((n, n) for n in case.prefills)]:
        yield slice(row, row + new), length, new
        row += new


def run(case: Case) -> dict[str, Any]:
    """For the layer's result and PyTorch's operations in the case's dtype, the largest error and the norm of the error relative to float64;
    findings; and whether the cache has the new rows and no others."""
    from vllm.forward_context import set_forward_context

    random = torch.Generator().manual_seed(sum(case.decodes) + case.heads)
    kind, of_8_bits = formats.float8(case.target), case.cache.startswith("fp8")

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32).to(case.dtype)

    def coded(rows: torch.Tensor) -> torch.Tensor:
        return (rows.float() / K_SCALE).to(kind) if of_8_bits else rows

    spans = list(_requests(case))
    with _vllm(case) as config:
        layer = _layer(case, config, random)
        latents = [normal(length, LATENT + ROPE) for _, length, _ in spans]
        total = spans[-1][0].stop
        q = normal(total, case.heads, NOPE + ROPE)
        counts = [-(-length // case.block) for _, length, _ in spans]
        blocks = (torch.randperm(sum(counts), generator=random) + 1).split(counts)
        table = torch.full((len(spans), max(counts) + 2), UNUSED, dtype=torch.int32)
        empty = torch.full((sum(counts) + 2, case.block, LATENT + ROPE), math.nan, dtype=torch.float32)
        cache = empty.to(kind).view(torch.uint8) if of_8_bits else empty.to(case.dtype)
        expected, slots = cache.clone(), []
        for row, own, rows, (_, length, new) in zip(table, blocks, latents, spans, strict=True):
            row[: len(own)] = own
            at = torch.arange(length)
            place = own[at // case.block] * case.block + at % case.block
            slots.append(place[length - new :])
            for of, count in ((cache, length - new), (expected, length)):
                stored = coded(rows[:count]).contiguous().view(torch.uint8)
                of.view(-1, LATENT + ROPE).view(torch.uint8)[place[:count]] = stored
        layer.kv_cache = cache
        metadata = _metadata(case, layer, table, torch.cat(slots))
        new_rows = torch.cat(
            [rows[length - new :] for rows, (_, length, new) in zip(latents, spans, strict=True)]
        )
        with (
            torch.inference_mode(),
            set_forward_context({LAYER: metadata}, config, slot_mapping={LAYER: torch.cat(slots)}),
            hipkittens.simulate(case.target, checks="all") as launches,
        ):
            kv_c, k_pe = new_rows[:, :LATENT].clone(), new_rows[:, None, LATENT:].clone()
            out = layer(q.clone(), kv_c, k_pe, output_shape=(total, case.heads * VALUE))
    weight = layer.kv_b_proj.weight.detach()
    exact, torchs = (
        torch.empty(total, case.heads * VALUE, dtype=dtype) for dtype in (torch.float64, case.dtype)
    )
    for number, (rows, _, _) in enumerate(spans):
        decodes, keys = number < len(case.decodes), latents[number]
        if decodes and of_8_bits:
            keys = (coded(keys).double() * K_SCALE).to(case.dtype)
        for result in (exact, torchs):
            attend = _absorbed if decodes and result is torchs else _in_full
            result[rows] = attend(*(each.to(result.dtype) for each in (q[rows], keys, weight)), case.heads)
    return {
        "errors": _sizes(out.double() - exact),
        "allowed": _sizes(torchs.double() - exact),
        "written": torch.equal(cache.view(torch.uint8), expected.view(torch.uint8)),
        "findings": [str(each) for each in launches.findings],
    }


def _metadata(case: Case, layer: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
    from vllm.model_executor.layers.attention.mla_attention import (
        MLACommonDecodeMetadata,
        MLACommonMetadata,
        MLACommonPrefillMetadata,
    )

    count, tokens = len(case.decodes), len(case.decodes) * case.each
    new = torch.tensor([0, *[case.each] * count, *case.prefills])
    lengths = torch.tensor([*case.decodes, *case.prefills], dtype=torch.int32)
    starts = new.cumsum(0).to(torch.int32)
    prefill = decode = None
    if count:
        decode = MLACommonDecodeMetadata(table[:count], lengths[:count], None)
    if case.prefills:
        prefill = MLACommonPrefillMetadata(
            table[count:], starts[count:] - tokens, max(case.prefills), q_data_type=case.dtype, output_dtype=case.dtype,
            prefill_backend=layer.prefill_backend,
        )  # fmt: skip
        layer.prefill_backend.prepare_metadata(prefill)
    return MLACommonMetadata(
        len(lengths), int(new.max()), int(lengths.max()), int(starts[-1]), starts, slots, count, tokens, len(case.prefills),
        prefill=prefill, decode=decode,
    )  # fmt: skip


def _causal(scores: torch.Tensor) -> torch.Tensor:
    tokens, keys = scores.shape[-2:]
    ahead = torch.arange(keys) - (keys - tokens + torch.arange(tokens))[:, None]
    return scores.masked_fill(ahead > 0, -math.inf).softmax(-1)


def _in_full(q: torch.Tensor, latents: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys and values of every head, as in prefill."""
    wide = (latents[:, :LATENT] @ weight.t()).view(len(latents), heads, NOPE + VALUE)
    keys = torch.cat([wide[..., :NOPE], latents[:, None, LATENT:].expand(-1, heads, -1)], -1)
    weights = _causal(q.transpose(0, 1) @ keys.permute(1, 2, 0) * SCALE)
    return (weights @ wide[..., NOPE:].transpose(0, 1)).transpose(0, 1).flatten(1)


def _absorbed(q: torch.Tensor, latents: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Projections absorbed into q and the result, as in decoding."""
    parts = weight.view(heads, NOPE + VALUE, LATENT)
    of_latent = torch.bmm(q[..., :NOPE].transpose(0, 1), parts[:, :NOPE])
    rows = torch.cat([of_latent, q[..., NOPE:].transpose(0, 1)], -1)
    weights = _causal(rows @ latents.t() * SCALE)
    return (
        torch.bmm(weights @ latents[:, :LATENT], parts[:, NOPE:].transpose(1, 2)).transpose(0, 1).flatten(1)
    )


def _sizes(error: torch.Tensor) -> tuple[float, float]:
    return float(error.abs().max()), float(error.norm())


def context(target: str) -> dict[str, Any]:
    """The prefill backend's attention to a part of a context: the largest errors of results and LSE, relative to float64, and PyTorch's
    in bfloat16."""
    from vllm.v1.attention.backends.mla.prefill.selector import get_mla_prefill_backend

    with _vllm(Case(target)) as config:
        backend = get_mla_prefill_backend(config)(4, SCALE, LATENT, NOPE, ROPE, VALUE, config)
    new, old, random = (5, 17), (64, 33), torch.Generator().manual_seed(0)
    q, k, wide = (
        torch.randn(sum(rows), 4, width, generator=random).to(torch.bfloat16)
        for rows, width in ((new, NOPE + ROPE), (old, NOPE + ROPE), (old, NOPE + VALUE))
    )
    v = wide[..., NOPE:]  # as vLLM splits a projection's result
    starts, keys = (torch.tensor([0, *each]).cumsum(0).to(torch.int32) for each in (new, old))
    chunk = SimpleNamespace(query_start_loc=starts, cu_seq_lens=keys, max_query_len=17, max_seq_len=64)
    with torch.inference_mode(), hipkittens.simulate(target, checks="all") as launches:
        out, lse = backend.run_prefill_context_chunk(chunk, q, k, v)
    errors = [0.0, 0.0, 0.0]
    for rows, cached in zip(q.split(new), range(2), strict=True):
        own = slice(int(keys[cached]), int(keys[cached + 1]))
        at = slice(int(starts[cached]), int(starts[cached + 1]))
        results = []
        for dtype in (torch.float64, torch.bfloat16):
            scores = rows.to(dtype).transpose(0, 1) @ k[own].to(dtype).permute(1, 2, 0) * SCALE
            results.append((scores.softmax(-1) @ v[own].to(dtype).transpose(0, 1)).transpose(0, 1))
            if dtype == torch.float64:
                errors[2] = max(errors[2], float((lse[:, at].double() - scores.logsumexp(-1)).abs().max()))
        errors[0] = max(errors[0], float((out[at].double() - results[0]).abs().max()))
        errors[1] = max(errors[1], float((results[1].double() - results[0]).abs().max()))
    return {"errors": errors, "findings": [str(each) for each in launches.findings]}


def refusals() -> dict[str, Any]:
    """What the backend says of layers without a kernel, and of configurations."""
    from vllm.platforms.interface import DeviceCapability
    from vllm.v1.attention.backends.mla.prefill.base import MLADimensions

    common = {
        "num_heads": 16, "head_size": 576, "scale": SCALE, "num_kv_heads": 1, "alibi_slopes": None, "sliding_window": None,
        "kv_cache_dtype": "auto", "logits_soft_cap": None, "attn_type": "decoder", "kv_sharing_target_layer_name": None,
        "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "qk_head_dim": 192,
        "v_head_dim": 128, "kv_b_proj": None,
    }  # fmt: skip
    said = {}
    with _vllm(Case("gfx950")) as config:
        backend = config.attention_config.backend.get_class()
        prefill = config.attention_config.mla_prefill_backend.get_class()
        for name, value in (("sliding_window", 64), ("kv_cache_dtype", "fp8_ds_mla"), ("attn_type", "encoder"), ("kv_lora_rank", 256)):  # fmt: skip
            try:
                backend.get_impl_cls()(**(common | {name: value}))
            except NotImplementedError as error:
                said[name] = str(error)
    return said | {
        "devices": [backend.supports_compute_capability(DeviceCapability(9, minor)) for minor in (0, 4, 5)],
        "sizes": [
            prefill.supports_mla_dimensions(
                MLADimensions(qk_nope_head_dim=n, qk_rope_head_dim=r, v_head_dim=v)
            )
            for n, r, v in ((128, 64, 128), (192, 64, 256), (256, 64, 128), (100, 64, 128))
        ],
    }
