# SPDX-License-Identifier: MIT
"""Batches through a vLLM layer (`Attention`) whose backend is CUSTOM, in a process of `vllm_packages`: with vLLM's configuration,
forward context, metadata, cache specifications and cache views."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import hipkittens
from hipkittens.quantization import dtype_of

LAYERS = tuple(f"model.layers.{number}.self_attn.attn" for number in range(2))
PADDING = 3  # rows past the tokens of a batch
UNUSED = 0x7FFFFFFF  # in block tables
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fnuz: 240.0, torch.float8_e4m3fn: 448.0}
ENCODER_ONLY, DECODER = "encoder_only", "decoder"


@dataclass(frozen=True)
class Case:
    """lengths and queries: the number of keys of each request, and how many of them are new. cache: vLLM's name; "auto" is float16,
    since there is no model. layout: a KVCacheLayout."""

    target: str
    lengths: tuple[int, ...]
    queries: tuple[int, ...]
    heads: int = 32
    key_heads: int = 8
    head_size: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache: str = "bfloat16"
    layout: str = "LBNHC"
    block: int = 16
    window: int | None = None
    softcap: float | None = None
    alibi: bool = False
    sinks: bool = False
    causal: bool = True
    kind: str = DECODER


@dataclass(frozen=True)
class Outcome:
    """errors and allowed: the largest error and the norm of the error relative to float64, of the result and of PyTorch's float32, rounded
    once."""

    errors: tuple[float, float]
    allowed: tuple[float, float]
    finite: bool
    findings: list[str]
    written: (
        bool  # the new keys and values as PyTorch quantizes them, and no other byte of both layers' caches
    )


def run(case: Case, hidden: int = 0) -> Outcome:
    """Run a batch. hidden: for each request, the number of keys that the backend is not told of, so that its result is wrong."""
    from vllm.config import CacheConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.forward_context import set_forward_context
    from vllm.model_executor.layers.attention import Attention

    backend = backend_of(case)
    random = torch.Generator().manual_seed(sum(case.lengths) + case.heads)
    q, k, v = draw(case, random)
    terms = terms_of(case, random)
    cache_config = CacheConfig(block_size=case.block, cache_dtype=case.cache)
    config = VllmConfig(device_config=DeviceConfig("cpu"), cache_config=cache_config)
    with set_current_vllm_config(config):
        layers = [
            Attention(
                case.heads, case.head_size, case.head_size**-0.5, case.key_heads, terms["alibi"], cache_config=cache_config,
                logits_soft_cap=case.softcap, per_layer_sliding_window=case.window, prefix=name, attn_type=case.kind, attn_backend=backend,
                **({} if terms["sinks"] is None else {"sinks": terms["sinks"]}),
            )
            for name in LAYERS
        ]  # fmt: skip
    layer = layers[1]
    for name, scale in (("_k_scale", 0.0625), ("_v_scale", 0.03125)):
        getattr(layer, name).fill_(scale)
    codes = Codes(case, layer)
    table, slots = places(case, random)
    expected = spec = None
    if case.kind == DECODER:
        spec, views = caches(case, config, backend, layer)
        for each, view in zip(layers, views, strict=True):
            each.kv_cache = view
        new = torch.zeros(len(k), dtype=torch.bool)
        new[new_rows(case)] = True
        codes.write(layer.kv_cache, k[~new], v[~new], slots[~new])
        expected = whole(views)
        codes.write(expected[1], k[new], v[new], slots[new])
        slots = slots[new]
    metadata = build(case, backend, spec, config, table, slots)
    metadata.seq_lens = (metadata.seq_lens - hidden).clamp(min=0)
    rows = (*(each[new_rows(case)] for each in (k, v)), q)
    key, value, query = (
        torch.cat((each, each.new_full((PADDING, *each.shape[1:]), math.nan))) for each in rows
    )
    by_layer = {LAYERS[1]: metadata.slot_mapping} if case.kind == DECODER else {}
    with (
        torch.inference_mode(),
        set_forward_context({LAYERS[1]: metadata}, config, slot_mapping=by_layer),
        hipkittens.simulate(case.target, checks="all") as launches,
    ):
        out = layer(query.flatten(1), key.flatten(1), value.flatten(1))
    out = out[: len(q)].unflatten(1, (case.heads, case.head_size))
    k, v = codes.decoded(k, v)
    exact = attend(case, q, k, v, terms, torch.float64)
    torchs = attend(case, q, k, v, terms, torch.float32).to(case.dtype)
    errors, allowed = (
        (float(each.abs().max()), float(each.norm())) for each in (out - exact, torchs - exact)
    )
    written = expected is None or torch.equal(
        *(
            torch.stack(each).view(torch.uint8)
            for each in (whole([each.kv_cache for each in layers]), expected)
        )
    )
    return Outcome(
        errors, allowed, bool(out.isfinite().all()), [str(each) for each in launches.findings], written
    )


def backend_of(case: Case) -> Any:
    """The backend, through vLLM's plugins and registry, which report no reason to refuse it."""
    from vllm.platforms.interface import DeviceCapability
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    load_general_plugins()
    backend = AttentionBackendEnum.CUSTOM.get_class()
    reasons = backend.validate_configuration(
        head_size=case.head_size, dtype=case.dtype, kv_cache_dtype=case.cache, block_size=case.block, use_mla=False, has_sink=case.sinks,
        use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, attn_type=case.kind,
        device_capability=DeviceCapability(9, {"gfx942": 4, "gfx950": 5}[case.target]), has_sliding_window=case.window is not None,
        use_non_causal=not case.causal,
    )  # fmt: skip
    assert reasons == [], reasons
    return backend


def draw(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw q of the new tokens, and the keys and values of all tokens, request by request."""
    new, every = sum(case.queries), sum(case.lengths)
    shapes = (
        (new, case.heads, case.head_size),
        *[(every, case.key_heads, case.head_size)] * 2,
    )
    q, k, v = (torch.randn(shape, generator=random).to(case.dtype) for shape in shapes)
    return q, k, v


def terms_of(case: Case, random: torch.Generator) -> dict[str, Any]:
    slopes = [2.0 ** (-8 * (head + 1) / case.heads) for head in range(case.heads)]
    sinks = torch.randn(case.heads, generator=random).to(case.dtype)
    return {"alibi": slopes if case.alibi else None, "sinks": sinks if case.sinks else None}


def requests(case: Case) -> Iterator[tuple[slice, slice, int]]:
    """Rows of q, rows of all keys, and how many of those are not new, for each request."""
    q = k = 0
    for length, new in zip(case.lengths, case.queries, strict=True):
        yield slice(q, q + new), slice(k, k + length), length - new
        q, k = q + new, k + length


def new_rows(case: Case) -> torch.Tensor:
    return torch.cat([torch.arange(k.start + old, k.stop) for _, k, old in requests(case)])


def places(case: Case, random: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """A block table with shuffled blocks, none of which is vLLM's null block 0, and the slot of each key."""
    counts = [-(-length // case.block) for length in case.lengths]
    blocks = (torch.randperm(sum(counts), generator=random) + 1).split(counts)
    table = torch.full((len(counts) + 1, max(counts) + 2), UNUSED, dtype=torch.int32)
    slots = []
    for row, own, length in zip(table, blocks, case.lengths, strict=False):
        row[: len(own)] = own
        at = torch.arange(length)
        slots.append(own[at // case.block] * case.block + at % case.block)
    return table, torch.cat(slots)


def caches(case: Case, config: Any, backend: Any, layer: Any) -> tuple[Any, list[torch.Tensor]]:
    """vLLM's specification of the layer's cache, and its views of the caches of both layers, with all bits set."""
    from vllm.v1.kv_cache_interface import (
        KVCacheTensor,
        compute_layout_strides,
        create_kv_cache_views,
    )
    from vllm.v1.kv_cache_layout import KVCacheLayout
    from vllm.v1.worker.utils import customize_attention_spec

    spec = customize_attention_spec(backend, layer.get_kv_cache_spec(config))
    blocks = 2 + sum(-(-length // case.block) for length in case.lengths)
    if spec.block_size != case.block:  # vLLM chooses it for layers with windows
        spec = spec.copy_with_new_block_size(case.block)
    layout = KVCacheLayout[case.layout]
    layer_stride, block_stride, *_ = compute_layout_strides(spec, blocks, len(LAYERS), layout)
    size = len(LAYERS) * blocks * spec.page_size_bytes
    raw = torch.full((size,), -1, dtype=torch.int8)
    placed = KVCacheTensor(
        size=size, layers=list(LAYERS), layer_stride=layer_stride, block_stride=block_stride
    )
    return spec, create_kv_cache_views(raw, spec, blocks, layout, placed)


def whole(views: list[torch.Tensor]) -> list[torch.Tensor]:
    return [view.clone(memory_format=torch.contiguous_format) for view in views]


class Codes:
    """Keys and values as vLLM's caches store them, computed with PyTorch's operations."""

    def __init__(self, case: Case, layer: Any) -> None:
        self.size, self.name = case.head_size, case.cache
        self.scales = (layer._k_scale, layer._v_scale)
        with hipkittens.simulate(case.target):
            self.float8 = dtype_of("fp8", torch.device("cpu"))

    def coded(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The bytes of each row, including its scale, and the values that they represent."""
        if not self.name.startswith(("fp8", "int8")):
            return x.contiguous().view(torch.uint8), x
        dtype = torch.int8 if self.name.startswith("int8") else self.float8
        by_token = self.name.endswith("per_token_head")
        if by_token:
            scale = x.float().abs().amax(-1, keepdim=True) / LARGEST[dtype]
        codes = (x.float() * (1 / scale)).clamp(-LARGEST[dtype], LARGEST[dtype])
        codes = codes.round().to(dtype) if dtype == torch.int8 else codes.to(dtype)
        parts = [codes.view(torch.uint8), *([scale.view(torch.uint8)] if by_token else [])]
        return torch.cat(parts, -1), codes.double() * scale

    def write(self, cache: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: torch.Tensor) -> None:
        rows = torch.cat([self.coded(x, scale)[0] for x, scale in zip((k, v), self.scales, strict=True)], -1)
        block = cache.shape[2]
        content = cache.view(torch.uint8)
        for row, slot in zip(rows, slots.tolist(), strict=True):
            content[slot // block, :, slot % block] = row

    def decoded(self, *given: torch.Tensor) -> list[torch.Tensor]:
        return [self.coded(x, scale)[1] for x, scale in zip(given, self.scales, strict=True)]


def build(case: Case, backend: Any, spec: Any, config: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
    """vLLM's metadata, from the backend's builder, with a request past the last one and with tokens that pad the batch."""
    from vllm.model_executor.layers.attention.encoder_only_attention import (
        create_encoder_only_attention_backend,
    )
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.tensor([0, *case.queries, 0]).cumsum(0).to(torch.int32)
    lengths = torch.tensor([*case.lengths, 0], dtype=torch.int32)
    padded = torch.full((sum(case.queries) + PADDING,), -1)
    padded[: len(slots)] = slots[: len(padded)]
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=lengths,
        num_reqs=len(lengths),
        num_actual_tokens=sum(case.queries),
        max_query_len=max(case.queries),
        max_seq_len=max(case.lengths),
        block_table_tensor=table,
        slot_mapping=padded,
        causal=case.causal,
    )
    if case.kind == ENCODER_ONLY:
        backend = create_encoder_only_attention_backend(backend)
    builder = backend.get_builder_cls()(spec, list(LAYERS), config, torch.device("cpu"))
    return builder.build(0, common)


def attend(
    case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, terms: dict[str, Any], dtype: torch.dtype
) -> torch.Tensor:
    """Attention by PyTorch's operations in this dtype."""
    group = case.heads // case.key_heads
    out = torch.empty(q.shape, dtype=dtype)
    for rows, keys, old in requests(case):
        ours, theirs, values = (
            x.to(dtype).transpose(0, 1)
            for x in (q[rows], *(each[keys].repeat_interleave(group, 1) for each in (k, v)))
        )
        scores = ours @ theirs.transpose(1, 2) * case.head_size**-0.5
        if case.softcap:
            scores = case.softcap * torch.tanh(scores / case.softcap)
        ahead = torch.arange(keys.stop - keys.start) - (old + torch.arange(rows.stop - rows.start))[:, None]
        if terms["alibi"] is not None:
            scores = scores - torch.tensor(terms["alibi"], dtype=dtype)[:, None, None] * ahead.abs()
        hidden = torch.zeros_like(ahead, dtype=torch.bool)
        if case.causal and case.kind == DECODER:
            hidden |= ahead > 0
        if case.window is not None:
            hidden |= ahead.abs() >= case.window
        scores = scores.masked_fill(hidden, -math.inf)
        if terms["sinks"] is not None:
            sink = terms["sinks"].to(dtype)[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., : values.shape[1]]
        out[rows] = (weights @ values).transpose(0, 1)
    return out


def refusals() -> list[str]:
    """CUSTOM's refusals of layers without a kernel, one by one, and of configurations."""
    from vllm.config import DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.platforms.interface import DeviceCapability

    case = Case("gfx950", (8,), (8,))
    backend = backend_of(case)
    kind = backend.get_impl_cls()
    layers = (
        {"head_size": 80},
        {"kv_cache_dtype": "nvfp4"},
        {"attn_type": "encoder_decoder"},
        {"chunk_lookback": 3},
        {"num_kv_heads": 3},
        {"sinks": torch.zeros(3)},
    )
    said = []
    with set_current_vllm_config(VllmConfig(device_config=DeviceConfig("cpu"))):
        for each in layers:
            try:
                kind(**({"num_heads": 8, "head_size": 128, "scale": 1.0, "num_kv_heads": 2} | each))
            except (NotImplementedError, ValueError) as error:
                said.append(str(error))
    usual = {
        "head_size": 128, "dtype": torch.bfloat16, "kv_cache_dtype": "auto", "block_size": 16, "use_mla": False, "has_sink": False,
        "use_sparse": False, "use_mm_prefix": False, "use_per_head_quant_scales": False, "attn_type": DECODER,
        "device_capability": DeviceCapability(9, 4),
    }  # fmt: skip
    configurations = (
        {"head_size": 96},
        {"dtype": torch.float32},
        {"kv_cache_dtype": "fp8_e5m2"},
        {"kv_cache_dtype": "float16"},
        {"block_size": 20},
        {"use_mla": True},
        {"use_mm_prefix": True},
        {"use_per_head_quant_scales": True},
        {"device_capability": DeviceCapability(9, 0)},
        {"attn_type": "encoder_decoder"},
        {"use_batch_invariant": True},
        {"use_dcp": True},
    )
    said += [", ".join(backend.validate_configuration(**(usual | each))) for each in configurations]
    return said
