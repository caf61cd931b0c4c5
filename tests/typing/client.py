# SPDX-License-Identifier: MIT
"""A program that uses the whole public interface, for a type checker: `mypy --strict`. It is not run."""

from typing import Any, assert_type

import torch
from torch import Tensor

import hipkittens
from hipkittens import kernel, nn
from hipkittens.flash_attn import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)
from hipkittens.flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
from hipkittens.routing import AlignedExperts, PackedExperts, RaggedExperts

Experts = AlignedExperts | PackedExperts | RaggedExperts
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]


def operations(
    q: Tensor, k: Tensor, v: Tensor, x: Tensor, weight: Tensor, lengths: Tensor, ask: bool
) -> None:
    assert_type(hipkittens.attention(q, k, v), Tensor)
    assert_type(hipkittens.attention(q, k, v, causal=True, window_size=(4, -1), return_lse=False), Tensor)
    assert_type(hipkittens.attention(q, k, v, scale=0.1, return_lse=True), Pair)
    assert_type(hipkittens.attention(q, k, v, layout="bhnd", dropout_p=0.1, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.attention_varlen(q, k, v, lengths, lengths, 8, 8), Tensor)
    assert_type(hipkittens.attention_varlen(q, k, v, lengths, lengths, 8, 8, return_lse=True), Pair)
    assert_type(hipkittens.attention_varlen(q, k, v, lengths, lengths, 8, 8, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.attention_merge(q, k, q, k), Pair)
    assert_type(hipkittens.attention_quantized(q, k, v), Tensor)
    assert_type(hipkittens.attention_quantized(q, k, v, smooth_k=False, return_lse=True), Pair)
    assert_type(hipkittens.attention_quantized(q, k, v, causal=True, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.attention_of_codes(q, k, v, x, x, x), Tensor)
    assert_type(hipkittens.attention_of_codes(q, k, v, x, x, x, x.dtype, return_lse=True), Pair)
    assert_type(hipkittens.attention_of_codes(q, k, v, x, x, x, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.hstu_attention(q, k, v, lengths, 8, num_targets=lengths), Tensor)
    assert_type(hipkittens.attention_mla(q, k, lengths, lengths, scale=0.1), Tensor)
    assert_type(hipkittens.attention_mla(q, k, lengths, lengths, scale=0.1, return_lse=True), Pair)
    assert_type(hipkittens.attention_mla(q, k, lengths, lengths, scale=0.1, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.attention_mla_sparse(q, k, lengths, scale=0.1), Tensor)
    assert_type(hipkittens.attention_mla_sparse(q, k, lengths, scale=0.1, return_lse=True), Pair)
    assert_type(hipkittens.attention_mla_sparse(q, k, lengths, scale=0.1, return_lse=ask), Tensor | Pair)
    assert_type(hipkittens.attention_paged(q, k, v, lengths, lengths), Tensor)
    assert_type(hipkittens.attention_paged(q, k, v, lengths, lengths, return_lse=True), Pair)
    assert_type(
        hipkittens.attention_paged(q, k, v, lengths, lengths, lengths, 8, return_lse=ask), Tensor | Pair
    )
    assert_type(hipkittens.attention_paged_plan(lengths, 64), Tensor)
    assert_type(hipkittens.mqa_logits(q, k, None, x, lengths, lengths, clean=ask), Tensor)
    assert_type(hipkittens.mqa_logits_paged(q, k, x, lengths, lengths, 64, clean=ask), Tensor)
    assert_type(hipkittens.matmul(q, k, bias=x, out_dtype=torch.float32), Tensor)
    assert_type(hipkittens.grouped_matmul(q, k, lengths, bias=x, out_dtype=torch.float32), Tensor)
    assert_type(hipkittens.scaled_matmul(q, k, x, x, recipe=("row", "tensor"), activation="relu"), Tensor)
    assert_type(hipkittens.scaled_matmul_multiply_add(q, k, x, x, 0.5, x, activation="silu"), Tensor)
    assert_type(hipkittens.scaled_matmul_concat_heads(q, k, x, x, v, 64), Pair)
    assert_type(hipkittens.linear(x, weight, None), Tensor)
    assert_type(hipkittens.addmm_(q, x, weight), Tensor)
    assert_type(hipkittens.float8_linear(x, weight, None, recipe="tensorwise"), Tensor)
    assert_type(hipkittens.layer_norm(x, weight, None, 1e-5), Tensor)
    assert_type(hipkittens.layer_norm(x, None, residual=x, dropout_p=0.1, return_residual=True), Pair)
    assert_type(hipkittens.rms_norm(x, weight, residual=x), Tensor)
    assert_type(hipkittens.rms_norm(x, weight, 1e-6, residual=x, return_residual=True), Pair)
    assert_type(hipkittens.rms_norm(x, weight, return_residual=ask), Tensor | Pair)
    assert_type(hipkittens.rotary(q, x, x, interleaved=True, positions=lengths), Tensor)
    assert_type(hipkittens.rotary_qk(q, k, x, x, cu_seqlens=lengths, offset=3, inplace=True), Pair)
    assert_type(hipkittens.rotary(q, x, x, offsets=lengths, nope_first=True, column_tables=(x, x)), Tensor)
    assert_type(hipkittens.rotary_tables(x, torch.bfloat16), Pair)
    assert_type(
        hipkittens.qkv_rotary(x, x, x, 4, 2, q_weight=weight, slots=lengths), tuple[Tensor, Tensor, Tensor]
    )
    assert_type(hipkittens.activation(x, "gelu"), Tensor)
    assert_type(hipkittens.gated_activation(x, "swiglu", other=x, limit=7.0), Tensor)
    assert_type(hipkittens.gated_linear(x, weight, kind="swiglu", interleaved=True), Tensor)
    assert_type(hipkittens.feed_forward(x, weight, weight, activation="gelu", gated=False), Tensor)
    assert_type(hipkittens.linear(x, weight, activation="relu"), Tensor)
    assert_type(hipkittens.causal_conv1d(x, weight, activation="silu"), Tensor)
    assert_type(hipkittens.causal_conv1d_update(x, x, weight), Tensor)
    assert_type(hipkittens.causal_conv1d(x, weight, split=(4, 4, 8)), tuple[Tensor, Tensor, Tensor])
    assert_type(hipkittens.causal_conv1d_update(x, x, weight, split=[4, 4, 8]), tuple[Tensor, Tensor, Tensor])
    assert_type(hipkittens.gated_delta_rule(q, k, x, x, x, l2norm=True), Tensor)
    assert_type(hipkittens.gated_delta_rule(q, k, x, x, x, initial_state=x, return_state=True), Pair)
    assert_type(hipkittens.gated_delta_rule(q, k, x, x, x, return_state=ask), Tensor | Pair)
    assert_type(hipkittens.gated_delta_step(q, k, x, x, x, x, state_indices=lengths), Tensor)
    assert_type(hipkittens.kimi_delta_attention(q, k, x, x, x, lower_bound=-5.0), Tensor)
    assert_type(hipkittens.kimi_delta_attention(q, k, x, x, x, return_state=True), Pair)
    assert_type(hipkittens.kimi_delta_attention(q, k, x, x, x, return_state=ask), Tensor | Pair)
    assert_type(hipkittens.kimi_delta_step(q, k, x, x, x, x, state_indices=lengths), Tensor)
    assert_type(hipkittens.QuantizedNorm(x, x).second, Tensor | None)
    assert_type(
        hipkittens.norm_quantize(x, weight, 1e-6, hipkittens.QuantSpec("fp8")), hipkittens.QuantizedNorm
    )
    assert_type(hipkittens.sample(x), Tensor)
    assert_type(hipkittens.softmax(x, 0), Tensor)
    assert_type(hipkittens.concat_heads(q, q, k, k), Pair)
    assert_type(hipkittens.split_heads(x, 64, 16), Triple)
    assert_type(hipkittens.mul_add(x, 2.0, x, out=x), Tensor)
    assert_type(hipkittens.cross_entropy(x, lengths, softcap=30.0), Tensor)
    assert_type(hipkittens.linear_cross_entropy(x, weight, lengths, reduction="none"), Tensor)
    spec = hipkittens.QuantSpec("fp8", 128, layout="columns")
    assert_type(hipkittens.quantize(x, spec), Pair)
    assert_type(hipkittens.gated_activation_quantize(x, spec, "gelu", other=x, scale=x), Pair)
    assert_type(hipkittens.dequantize(x, x, spec, x.dtype), Tensor)
    assert_type(hipkittens.unshuffle(hipkittens.preshuffle(x)), Tensor)
    assert_type(hipkittens.preshuffle(x, weight, panel_rows=32), Pair)
    assert_type(hipkittens.topk(x, 4, 0, largest=False, row_ends=lengths), Pair)
    assert_type(hipkittens.router_top1(x, weight, shared=1), Pair)
    assert_type(hipkittens.router(x, 4, score="sigmoid", bias=weight, renormalize=True), Pair)
    hipkittens.cache_write(k, v, x, x, lengths, layout="paged", k_scale=weight)
    hipkittens.mla_cache_write(k, v, x, lengths, scale=weight)
    hipkittens.cache_write(k, v, x, x, lengths, key_scales=weight, value_scales=weight)
    hipkittens.indexer_cache_write(x, x, lengths, group=64, powers_of_two=True)
    assert_type(hipkittens.mla_rotary(q, q, k, k, x, x, kv_cache=x, slots=lengths, q_dtype=x.dtype), Pair)
    assert_type(hipkittens.rotary_cache_write(q, k, v, x, x, x, x, lengths, layout="paged"), Pair)
    assert_type(hipkittens.expert_sort(lengths, weight, 8, 64, "packed"), Experts)
    assert_type(hipkittens.expert_gather(x, lengths, lengths, weight), Tensor)
    assert_type(hipkittens.expert_combine(x, lengths, lengths), Tensor)
    assert_type(hipkittens.moe(x, q, k, weight, lengths, activation="swiglu", expert_map=lengths), Tensor)


def flash(q: Tensor, k: Tensor, v: Tensor, packed: Tensor, lengths: Tensor, ask: bool) -> None:
    assert_type(flash_attn_func(q, k, v, 0.0, None, True, (-1, 0)), Tensor)
    assert_type(flash_attn_func(q, k, v, causal=True, return_attn_probs=True), Triple)
    assert_type(flash_attn_func(q, k, v, return_attn_probs=ask), Tensor | Triple)
    assert_type(flash_attn_kvpacked_func(q, packed), Tensor)
    assert_type(flash_attn_qkvpacked_func(packed, return_attn_probs=True), Triple)
    assert_type(flash_attn_varlen_func(q, k, v, lengths, lengths, 8, 8, causal=True), Tensor)
    assert_type(flash_attn_varlen_kvpacked_func(q, packed, lengths, lengths, 8, 8), Tensor)
    assert_type(flash_attn_varlen_qkvpacked_func(packed, lengths, 8, return_attn_probs=True), Triple)
    assert_type(flash_attn_with_kvcache(q, k, v, cache_seqlens=4), Tensor)
    assert_type(flash_attn_with_kvcache(q, k, v, return_softmax_lse=True), Pair)
    tokens, indices, ends, longest, used = unpad_input(q, packed)
    assert_type(longest, int)
    assert_type(pad_input(tokens, indices, used.shape[0], longest), Tensor)
    assert_type(index_first_axis(ends, indices), Tensor)


def modules(x: Tensor) -> None:
    stack = torch.nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.RMSNorm(64, eps=1e-6))
    stack.append(nn.Float8Linear(64, 64, recipe="rowwise"))
    stack.append(nn.SwiGLU(64, 96)).append(nn.GeGLU(64, 96, bias=True))
    experts = nn.MoE(64, 32, 8, 2, score="sigmoid", shared_intermediate_size=32, dtype=torch.bfloat16)
    assert_type(experts.forward(x, experts.logits(x)), Tensor)
    turn = nn.RotaryEmbedding(64, 128, base=5e5, device="cpu")
    assert_type(turn.forward(x), Tensor)
    assert_type(turn.forward(x, x, offset=1), Pair)
    attend = nn.MultiheadAttention(64, 4, batch_first=True)
    assert_type(attend.forward(x, x, x, need_weights=False)[0], Tensor)
    stack.train()


def simulation(q: Tensor) -> None:
    with hipkittens.simulate("gfx950", checks="memcheck,racecheck", threads=2, seed=1) as run:
        hipkittens.matmul(q, q)
    for finding in [*run.findings, *run.notes]:
        assert_type(finding.checker, str)
        assert_type(finding.workgroup, tuple[int, int, int])
        if finding.first is not None:
            assert_type(finding.first.offset, int)
    run.forget()
    assert_type(hipkittens.simulate.report()["instructions"], Any)
    support = hipkittens.supported("matmul", q, q, target="gfx942")
    if not support:
        assert_type(support.reason, str)
    assert_type(hipkittens.info(), dict[str, object])


def own_kernel(x: Tensor) -> None:
    double = kernel.compile("source\n", targets=("gfx950",), defines={"WIDTH": 4})
    assert_type(double, kernel.Kernel)
    double(x, 3, grid=(1, 1, 1), block=64)
    double.save("double.hkkernel")
    assert_type(kernel.load("double.hkkernel").resources("gfx950")["vgprs"], Any)


def whole_models(model: torch.nn.Module, x: Tensor) -> None:
    hipkittens.patch(model, linear=True, dtype=torch.bfloat16, exclude=["head"], dry_run=True)
    assert_type(hipkittens.patch(model, moe=True, join_experts=True).to_json(), str)
    hipkittens.unpatch(model)
    with hipkittens.patched(model, norm=False):
        model(x)
    assert_type(hipkittens.load("topk", device="cpu"), int)
    with hipkittens.batch_invariant():
        assert_type(hipkittens.is_batch_invariant(), bool)
    assert_type(hipkittens.set_batch_invariant(False), bool)
    with hipkittens.timing("MI300X", clock_mhz=2100.0):
        hipkittens.matmul(x, x)
