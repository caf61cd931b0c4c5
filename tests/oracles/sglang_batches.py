# SPDX-License-Identifier: MIT
"""Batches through SGLang's attention layer (`RadixAttention`) with our backend, with SGLang's caches and batches, and its RMSNorm, in a
process of `sglang_packages`."""

from __future__ import annotations

import math
import unittest.mock
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

import hipkittens
from hipkittens.integrations import sglang
from tests.oracles.aiter import formats

CONTEXT, SLOTS = 640, 2048


@dataclass(frozen=True)
class Case:
    """steps: the numbers of new tokens of each request, step by step; all ones are a decoding step. cache: "fp8" or q's dtype."""

    target: str
    steps: tuple[tuple[int, ...], ...]
    heads: int = 8
    key_heads: int = 2
    head_size: int = 128
    dtype: torch.dtype = torch.bfloat16
    cache: str | None = None
    window: int = -1
    logit_cap: float = 0.0
    sinks: bool = False
    encoder: bool = False
    apart: bool = False  # the layer slides, and its cache is apart from that of other layers


def backend(case: Case, **changes: Any) -> tuple[Any, Any, Any]:
    """Our backend, as SGLang makes it by its name, with its table and its cache."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
    from sglang.srt.plugins import load_plugins

    load_plugins()
    requests = ReqToTokenPool(16, CONTEXT, "cpu", False)
    stored = formats.float8(case.target) if case.cache == "fp8" else case.dtype
    if case.apart:
        cache = SWAKVPool(SLOTS, SLOTS // 2, 1, stored, case.key_heads, case.head_size, [1], [0], "cpu")
        # As SGLang's allocator has it: 0 for slots without one in the other cache, and -1 for -1.
        cache.full_to_swa_index_mapping = torch.zeros(SLOTS + 2, dtype=torch.int64)
        cache.full_to_swa_index_mapping[-1] = -1
    else:
        cache = MHATokenToKVPool(SLOTS, 1, stored, case.key_heads, case.head_size, 2, "cpu", False)
    given = {"req_to_token_pool": requests, "token_to_kv_pool": cache, "use_mla_backend": False} | changes
    return ATTENTION_BACKENDS["hipkittens"](SimpleNamespace(**given)), requests, cache


def _batch(case: Case, new: tuple[int, ...], before: list[int], rows: torch.Tensor, slots: torch.Tensor):
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    lengths = torch.tensor([b + n for b, n in zip(before, new, strict=True)])
    decodes = set(new) == {1}
    given: dict[str, Any] = {}
    if not decodes:
        given = {
            "extend_seq_lens": torch.tensor(new, dtype=torch.int32),
            "extend_prefix_lens": torch.tensor(before, dtype=torch.int32),
            "extend_seq_lens_cpu": list(new),
        }
    return ForwardBatch(
        forward_mode=ForwardMode.DECODE if decodes else ForwardMode.EXTEND, batch_size=len(new),
        input_ids=torch.zeros(sum(new), dtype=torch.int64), req_pool_indices=rows, seq_lens=lengths, out_cache_loc=slots,
        seq_lens_sum=int(lengths.sum()), **given,
    )  # fmt: skip


def run(case: Case) -> dict[str, Any]:
    """The largest errors relative to float64 of our results and of PyTorch's operations in q's dtype, in the same units, step by step; and
    findings. Every slot of the cache that no request has is NaN, and every unused entry of the table 0x7fffffff."""
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

    random = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {"ours": [], "theirs": [], "finite": True}
    with torch.inference_mode(), hipkittens.simulate(case.target, checks="all") as launches:
        ours, requests, cache = backend(case)
        own, number = (cache.swa_kv_pool, 0) if case.apart else (cache, 1)
        for each in (*own.k_buffer, *own.v_buffer):
            each.view(cache.dtype).copy_(torch.full(each.shape, math.nan).to(cache.dtype))
        requests.req_to_token.fill_(0x7FFFFFFF)
        kind = AttentionType.ENCODER_ONLY if case.encoder else AttentionType.DECODER
        layer = RadixAttention(
            case.heads, case.head_size, case.head_size**-0.5, case.key_heads, 1, case.logit_cap,
            sliding_window_size=case.window, attn_type=kind,
        )  # fmt: skip
        if case.cache == "fp8":
            layer.k_scale, layer.v_scale = torch.tensor(0.02), torch.tensor(0.03)
        sinks = torch.randn(case.heads, generator=random) if case.sinks else None
        count = len(case.steps[0])
        rows = torch.randperm(16, generator=random)[:count] + 1
        free = torch.randperm(SLOTS - 1, generator=random) + 1
        sliding = torch.randperm(SLOTS // 2 - 1, generator=random) + 1
        before, held = [0] * count, [torch.empty(0, dtype=torch.int64)] * count
        in_cache = [each.clone() for each in held]
        for new in case.steps:
            parts = free[: sum(new)].split(new)
            free = free[sum(new) :]
            for i, part in enumerate(parts):
                requests.req_to_token[rows[i], before[i] : before[i] + new[i]] = part.to(torch.int32)
                held[i] = torch.cat([held[i], part])
                if case.apart:
                    of_part, sliding = sliding[: new[i]], sliding[new[i] :]
                    mapping = cache.full_to_swa_index_mapping
                    mapping[part] = of_part
                    # Keys that no new token sees have been freed.
                    mapping[held[i][: max(0, len(held[i]) - new[i] - case.window)]] = 0
                    part = of_part
                in_cache[i] = torch.cat([in_cache[i], part])
            q, k, v = (
                torch.randn(sum(new), heads * case.head_size, generator=random).to(case.dtype)
                for heads in (case.heads, case.key_heads, case.key_heads)
            )
            batch = _batch(case, new, before, rows, torch.cat(parts))
            ours.init_forward_metadata(batch)
            with forward_context(ForwardContext(attn_backend=ours)):
                out = layer(
                    q.clone(), k.clone(), v.clone(), batch, **({"sinks": sinks} if case.sinks else {})
                )
            found["finite"] &= bool(out.isfinite().all())
            errors = [0.0, 0.0]
            for i, (of_q, of_out) in enumerate(zip(q.split(new), out.split(new), strict=True)):
                keys, values = (
                    each.view(cache.dtype)[in_cache[i]]
                    for each in (own.k_buffer[number], own.v_buffer[number])
                )
                exact, theirs = (
                    attention(case, of_q, keys, values, layer, sinks, dtype)
                    for dtype in (torch.float64, case.dtype)
                )
                errors[0] = max(errors[0], float((of_out.double() - exact).abs().max()))
                errors[1] = max(errors[1], float((theirs.double() - exact).abs().max()))
            found["ours"].append(errors[0])
            found["theirs"].append(errors[1])
            before = [b + n for b, n in zip(before, new, strict=True)]
    return found | {"findings": [str(each) for each in launches.findings]}  # fmt: skip


def attention(case: Case, q: Any, keys: Any, values: Any, layer: Any, sinks: Any, dtype: torch.dtype) -> torch.Tensor:  # fmt: skip
    """A request's new tokens, by PyTorch's operations."""
    q = q.view(-1, case.heads, case.head_size).to(dtype).transpose(0, 1)
    scales = (layer.k_scale, layer.v_scale) if case.cache == "fp8" else (1, 1)
    keys, values = (
        (each.to(dtype) * scale).to(dtype).repeat_interleave(case.heads // case.key_heads, 1).transpose(0, 1)
        for each, scale in zip((keys, values), scales, strict=True)
    )
    scores = q @ keys.transpose(1, 2) * layer.scaling
    if case.logit_cap:
        scores = case.logit_cap * torch.tanh(scores / case.logit_cap)
    tokens, count = q.shape[1], keys.shape[1]
    distance = torch.arange(count - tokens, count)[:, None] - torch.arange(count)
    if not case.encoder:
        seen = distance >= 0
        if case.window >= 0:
            seen &= distance <= case.window
        scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(dtype)[:, None, None].expand(-1, tokens, 1)], -1)
    weights = scores.softmax(-1)[..., :count]
    return (weights @ values).transpose(0, 1).reshape(tokens, -1)


def refused() -> dict[str, str]:
    """What our backend says of models and batches that it does not support."""
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    case = Case("gfx950", ((1,),))
    said = {}

    def of(name: str, call: Any) -> None:
        try:
            call()
        except ValueError as error:
            said[name] = str(error)

    hybrid = SimpleNamespace(full_kv_pool=None, layers_mapping={})
    of("hybrid", lambda: backend(case, token_to_kv_pool=hybrid))
    of("layout", lambda: backend(case, token_to_kv_pool=SimpleNamespace(kv_cache_layout="vectorized_5d")))
    large = SimpleNamespace(req_to_token=torch.empty(1 << 16, 1 << 16, dtype=torch.int32, device="meta"))
    of("slots", lambda: backend(case, req_to_token_pool=large))
    ours, _, _ = backend(case)
    batch = _batch(case, (1,), [0], torch.tensor([1]), torch.tensor([1]))
    batch.forward_mode = ForwardMode.TARGET_VERIFY
    of("verify", lambda: ours.init_forward_metadata(batch))
    batch.forward_mode, batch.encoder_lens = ForwardMode.DECODE, torch.tensor([3])
    of("encoder", lambda: ours.init_forward_metadata(batch))
    q = torch.zeros(1, 8 * 128)
    for name, changes, more in (
        ("cross", {"is_cross_attention": True}, {}),
        ("values", {"v_head_dim": 64}, {}),
        ("capping", {"logit_cap": 3.0, "logit_capping_method": "sigmoid"}, {}),
        ("rope", {}, {"q_rope": q}),
    ):
        layer = RadixAttention(8, 128, 1.0, 2, 0, **changes)
        of(name, lambda layer=layer, more=more: ours.forward_decode(q, None, None, layer, batch, **more))
    latent, _, _ = backend(case, use_mla_backend=True)
    wide, rows = {"head_dim": 576, "v_head_dim": 512, "num_kv_heads": 1}, torch.zeros(1, 8 * 576)
    full = {"head_dim": 192, "v_head_dim": 128, "num_kv_heads": 8}
    batch.encoder_lens = None
    latent.init_forward_metadata(batch)
    for name, changes, more in (
        ("sparse", wide, {"topk_indices": rows}),
        ("latent window", wide | {"sliding_window_size": 4}, {}),
        ("prefix", full, {}),
    ):
        layer = RadixAttention(8, scaling=1.0, layer_id=0, **changes)
        given = rows[:, : 8 * layer.qk_head_dim]
        of(
            name,
            lambda layer=layer, more=more, given=given: latent.forward_decode(
                given, None, None, layer, batch, **more
            ),
        )
    return said  # fmt: skip


def run_latent(case: Case) -> dict[str, Any]:
    """As `run`, for both layers of DeepSeek's attention, with a cache of latents: new tokens without a prefix go through the layer with keys
    and values in full, as in SGLang's models, which have written their latents before; others through the absorbed one."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
    from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
    from sglang.srt.plugins import load_plugins
    from sglang.srt.runtime_context import get_parallel

    load_plugins()
    random = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {"ours": [], "theirs": []}
    stored = formats.float8(case.target) if case.cache == "fp8" else case.dtype
    nope, rotary, of_value, latent, heads = 128, 64, 128, 512, case.heads
    scaling = (nope + rotary) ** -0.5

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random).to(case.dtype)

    weight = (normal(heads, nope + of_value, latent) * latent**-0.5).to(case.dtype)

    def in_full(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = torch.einsum("tl,hol->tho", rows[:, :latent], weight.to(rows.dtype))
        keys = torch.cat([wide[..., :nope], rows[:, None, latent:].expand(-1, heads, -1)], -1)
        return keys, wide[..., nope:]

    with (
        torch.inference_mode(),
        get_parallel().override(dcp_enabled=False),
        hipkittens.simulate(case.target, checks="all") as launches,
    ):
        requests = ReqToTokenPool(16, CONTEXT, "cpu", False)
        cache = MLATokenToKVPool(SLOTS, 1, stored, latent, rotary, 2, "cpu", False)
        runner = {"req_to_token_pool": requests, "token_to_kv_pool": cache, "use_mla_backend": True}
        ours = ATTENTION_BACKENDS["hipkittens"](SimpleNamespace(**runner))
        for each in cache.kv_buffer:
            each.view(cache.dtype).copy_(torch.full(each.shape, math.nan).to(cache.dtype))
        requests.req_to_token.fill_(0x7FFFFFFF)
        absorbed = RadixAttention(heads, latent + rotary, scaling, 1, 1, v_head_dim=latent)
        full = RadixAttention(heads, nope + rotary, scaling, heads, 1, v_head_dim=of_value)
        rows = torch.randperm(16, generator=random)[:3] + 1
        free = torch.randperm(SLOTS - 1, generator=random) + 1
        before, held = [0] * 3, [torch.empty(0, dtype=torch.int64)] * 3
        for new in case.steps:
            parts = free[: sum(new)].split(new)
            free = free[sum(new) :]
            for i, part in enumerate(parts):
                requests.req_to_token[rows[i], before[i] : before[i] + new[i]] = part.to(torch.int32)
                held[i] = torch.cat([held[i], part])
            kv = normal(sum(new), latent + rotary)
            batch = _batch(case, new, before, rows, torch.cat(parts))
            batch.extend_prefix_lens_cpu = list(before)
            ours.init_forward_metadata(batch)
            prefill = not any(before)
            q = normal(sum(new), heads * (nope + rotary if prefill else latent + rotary))
            with forward_context(ForwardContext(attn_backend=ours)):
                if prefill:
                    cache.set_kv_buffer(absorbed, batch.out_cache_loc, kv[:, None], kv[:, None, :latent])
                    out = full(q.clone(), *in_full(kv), batch, save_kv_cache=False)
                else:
                    out = absorbed(q.clone(), kv[:, None].clone(), kv[:, None, :latent].clone(), batch)
            errors = [0.0, 0.0]
            for i, (of_q, of_out, of_kv) in enumerate(
                zip(q.split(new), out.split(new), kv.split(new), strict=True)
            ):
                read = of_kv if prefill else cache.get_key_buffer(1)[held[i]][:, 0]
                for number, dtype in enumerate((torch.float64, case.dtype)):
                    keys, values = (
                        in_full(read.to(case.dtype)) if prefill else (read[:, None], read[:, None, :latent])
                    )
                    ask = of_q.view(new[i], heads, -1).to(dtype).transpose(0, 1)
                    keys, values = (
                        each.to(dtype).expand(-1, heads, -1).transpose(0, 1) for each in (keys, values)
                    )
                    distance = torch.arange(len(read) - new[i], len(read))[:, None] - torch.arange(len(read))
                    scores = (ask @ keys.transpose(1, 2) * scaling).masked_fill(distance < 0, -math.inf)
                    result = (scores.softmax(-1) @ values).transpose(0, 1).reshape(new[i], -1)
                    if number == 0:
                        exact = result
                        errors[0] = max(errors[0], float((of_out.double() - exact).abs().max()))
                    else:
                        errors[1] = max(errors[1], float((result.double() - exact).abs().max()))
            found["ours"].append(errors[0])
            found["theirs"].append(errors[1])
            before = [b + n for b, n in zip(before, new, strict=True)]
    return found | {"findings": [str(each) for each in launches.findings]}  # fmt: skip


def choices() -> list[str]:
    """The names that --attention-backend takes once plugins are loaded."""
    from sglang.srt.arg_groups.fields.exec_ import ATTENTION_BACKEND_CHOICES
    from sglang.srt.plugins import load_plugins

    load_plugins()
    return list(ATTENTION_BACKEND_CHOICES)


def linear(target: str, tokens: int, dtype: torch.dtype, quantised: bool) -> dict[str, Any]:
    """SGLang's layer of FP8 blocks, from its own configuration and method: the largest error of its result relative to float64 with the same
    quantized operands, that of float32 rounded to the layer's dtype, and findings. quantised: activations arrive quantized."""
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.plugins import load_plugins

    load_plugins()
    random = torch.Generator().manual_seed(0)
    columns, rows = 384, 256
    kind = formats.float8(target)
    stored, scale, exact = formats.quantised_blocks(
        torch.randn(rows, columns, generator=random, dtype=torch.float64), kind
    )
    x = torch.randn(tokens, columns, generator=random).to(dtype)
    bias = torch.randn(rows, generator=random).to(dtype)
    with torch.no_grad(), hipkittens.simulate(target, checks="all") as launches:
        config = Fp8Config(True, "dynamic", weight_block_size=[128, 128])
        layer = ReplicatedLinear(
            columns, rows, bias=True, params_dtype=dtype, quant_config=config, prefix="mlp"
        )
        # A checkpoint's e4m3fn becomes e4m3fnuz while it is loaded on gfx942, which is not the platform here.
        layer.weight.data = stored
        layer.weight_scale_inv.data.copy_(scale)
        layer.bias.data.copy_(bias)
        layer.quant_method.process_weights_after_loading(layer)
        codes, row_scale = hipkittens.quantize(x, hipkittens.QuantSpec("fp8", 128, floor=1e-10))
        if quantised:
            out = layer.quant_method.w8a8_block_fp8_linear(
                codes, layer.weight, [128, 128], layer.weight_scale_inv, row_scale, layer.bias
            )
        else:
            out = layer(x[None])[0][0]
    seen = codes.double() * row_scale.double().repeat_interleave(128, -1)
    expected = seen @ exact.t() + bias.double()
    theirs = (seen.float() @ exact.float().t() + bias.float()).to(dtype)
    return {
        "dtype": out.dtype,
        "error": float((out.double() - expected).abs().max()),
        "allowed": float((theirs.double() - expected).abs().max()),
        "findings": [str(each) for each in launches.findings],
    }


def scaled_linear(target: str, tokens: int, of_weight: str, of_rows: str) -> dict[str, Any]:
    """SGLang's layer of FP8 channels, of its configuration w8a8_fp8, or its function for other scales: as `linear`."""
    from sglang.srt.layers.linear import ReplicatedLinear
    from sglang.srt.layers.quantization import fp8_utils
    from sglang.srt.layers.quantization.w8a8_fp8 import W8A8Fp8Config
    from sglang.srt.plugins import load_plugins

    load_plugins()
    random, dtype, kind = torch.Generator().manual_seed(0), torch.bfloat16, formats.float8(target)
    columns, rows = 288, 80
    wide = torch.randn(rows, columns, generator=random, dtype=torch.float64)
    stored, scale, exact = formats.quantised(wide if of_weight == "row" else wide.flatten(), kind)
    x = torch.randn(tokens, columns, generator=random).to(dtype)
    bias = torch.randn(rows, generator=random).to(dtype)
    fixed = (x.abs().max() / torch.finfo(kind).max).float().view(1)
    with torch.no_grad(), hipkittens.simulate(target, checks="all") as launches:
        spec = hipkittens.QuantSpec("fp8", "row" if of_rows == "row" else "tensor")
        codes, row_scale = hipkittens.quantize(x, spec, fixed.view(()) if of_rows == "fixed" else None)
        if of_weight == of_rows == "row":
            layer = ReplicatedLinear(
                columns, rows, params_dtype=dtype, quant_config=W8A8Fp8Config(True), prefix="mlp"
            )
            # A checkpoint's e4m3fn becomes e4m3fnuz while it is loaded on gfx942, which is not the platform here.
            layer.weight.data = stored
            layer.weight_scale.data.copy_(scale)
            layer.bias.data.copy_(bias)
            layer.quant_method.process_weights_after_loading(layer)
            out = layer(x[None])[0][0]
        else:
            given = {"input_scale": fixed} if of_rows == "fixed" else {}
            out = fp8_utils.apply_fp8_linear(
                x[None], stored.view(rows, columns).t(), scale, bias=bias, use_per_token_if_dynamic=of_rows == "row",
                compressed_tensor_quant=True, **given,
            )[0]  # fmt: skip
    seen = codes.double() * row_scale.double()
    expected = seen @ exact.view(rows, columns).t() + bias.double()
    theirs = (seen.float() @ exact.view(rows, columns).float().t() + bias.float()).to(dtype)
    return {
        "error": float((out.double() - expected).abs().max()),
        "allowed": float((theirs.double() - expected).abs().max()),
        "findings": [str(each) for each in launches.findings],
    }


def norms(target: str) -> dict[str, Any]:
    """The largest difference of SGLang's hooked RMSNorm from its own forward_native, in units of the result's spacing; how often ours was
    called; and findings."""
    from sglang.srt.layers.layernorm import RMSNorm
    from sglang.srt.plugins import load_plugins

    load_plugins()
    random, dtype, worst = torch.Generator().manual_seed(0), torch.bfloat16, 0.0
    with (
        torch.inference_mode(),
        hipkittens.simulate(target, checks="all") as launches,
        unittest.mock.patch.object(sglang, "rms_norm", wraps=hipkittens.rms_norm) as ours,
    ):
        layer = RMSNorm(256).to(dtype)
        layer.weight.data.copy_(torch.randn(256, generator=random))
        x, residual = (torch.randn(7, 256, generator=random).to(dtype) for _ in range(2))
        for given in ((x,), (x, residual)):
            pairs = [
                method(*(each.clone() for each in given))
                for method in (layer.forward_hip, layer.forward_native)
            ]
            pairs = [each if isinstance(each, tuple) else (each,) for each in pairs]
            for one, other in zip(*pairs, strict=True):
                spacing = torch.finfo(dtype).eps * other.float().abs().clamp(min=1)
                worst = max(worst, float(((one.float() - other.float()).abs() / spacing).max()))
    return {"worst": worst, "calls": ours.call_count, "findings": [str(each) for each in launches.findings]}
