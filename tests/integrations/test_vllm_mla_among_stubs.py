# SPDX-License-Identifier: MIT
"""vLLM's multi-head latent attention with stubs of vLLM's classes. tests/oracles/test_vllm_mla.py runs vLLM's own layer."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks
from tests.simulated_device import TARGETS

MODULE = "hipkittens.integrations.vllm_mla"
MODEL = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


@pytest.fixture
def mla(monkeypatch):
    """The module imported among stubs, and what is registered for prefill."""
    stub_frameworks.vllm(monkeypatch)
    prefills = stub_frameworks.vllm_mla(monkeypatch)
    sys.modules.pop(MODULE, None)
    yield importlib.import_module(MODULE), prefills
    sys.modules.pop(MODULE, None)


def impl(module, cache="auto", **changes):
    given = {"slopes": None, "window": None, "cap": None, "kind": module.AttentionType.DECODER} | changes
    more = {name: value for name, value in given.items() if name not in ("slopes", "window", "cap", "kind")}
    return module.HipKittensMLAImpl(
        4,
        576,
        0.1,
        1,
        given["slopes"],
        given["window"],
        cache,
        given["cap"],
        given["kind"],
        None,
        **(MODEL | more),
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cache", ["bfloat16", "fp8"])
@pytest.mark.parametrize("each", [1, 2])
def test_the_cache_is_written_and_read(mla, target, cache, each):
    module, _ = mla
    ours = impl(module, cache)
    random = torch.Generator().manual_seed(0)
    rows = torch.randn(20, 576, generator=random).to(torch.bfloat16)
    q = torch.randn(2 * each, 4, 576, generator=random).to(torch.bfloat16)
    table, lengths = (
        torch.tensor([[2, 0], [3, 1]], dtype=torch.int32),
        torch.tensor([12, 8], dtype=torch.int32),
    )
    slots = torch.cat([torch.arange(16, 24), torch.arange(4), torch.arange(24, 32)])
    layer = SimpleNamespace(_k_scale=torch.tensor(0.0625))
    with hipkittens.simulate(target, checks="all") as launches:
        stored = torch.zeros(4, 8, 576, dtype=torch.uint8 if cache == "fp8" else torch.bfloat16)
        # Two more rows, which pad the batch.
        padded = torch.cat([rows, rows[:2]])
        ours.do_kv_cache_update(padded[:, :512], padded[:, None, 512:], stored, slots, cache, layer._k_scale)
        ours.do_kv_cache_update(rows[:, :512], rows[:, 512:], stored[:0], slots, cache, layer._k_scale)
        read = stored
        if cache == "fp8":
            read = stored.view(hipkittens.quantization.dtype_of("fp8", torch.device("cpu")))
        metadata = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=lengths), causal=True)
        whole, nothing = ours.forward_mqa(q, read, metadata, layer)
        parts, _ = ours.forward_mqa((q[..., :512], q[..., 512:]), read, metadata, layer)
        scale = layer._k_scale if cache == "fp8" else None
        expected = hipkittens.attention_mla(q, read, table, lengths, None, each, scale=0.1, kv_scale=scale)
    assert launches.findings == [] and nothing is None
    assert torch.equal(whole, expected) and torch.equal(parts, expected)
    kept = (read.float() * (0.0625 if cache == "fp8" else 1)).view(-1, 576)[slots]
    torch.testing.assert_close(kept, rows.float(), rtol=0.07, atol=0.01)


@pytest.mark.parametrize("target", TARGETS)
def test_prefill(mla, target):
    module, _ = mla
    backend = module.HipKittensMLAPrefillBackend()
    backend.scale = 0.1
    starts = torch.tensor([0, 3, 20], dtype=torch.int32)
    backend._prefill_metadata = SimpleNamespace(query_start_loc=starts, max_query_len=17)
    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(20, 2, size, generator=random).to(torch.bfloat16) for size in (192, 192, 128))
    chunk = SimpleNamespace(query_start_loc=starts, cu_seq_lens=starts, max_query_len=17, max_seq_len=17)
    with hipkittens.simulate(target, checks="all") as launches:
        given = (q, k, v, starts, starts, 17, 17)
        alone = backend.run_prefill_new_tokens(q, k, v, False)
        out, lse = backend.run_prefill_new_tokens(q, k, v, True)
        expected = hipkittens.attention_varlen(*given, causal=True, scale=0.1, return_lse=True)
        of_part = backend.run_prefill_context_chunk(chunk, q, k, v)
        every = hipkittens.attention_varlen(*given, scale=0.1, return_lse=True)
    assert launches.findings == [] and torch.equal(alone, out)
    for mine, theirs in zip((out, lse, *of_part), (*expected, *every), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(NotImplementedError, match="out and output_scale"):
        backend.run_prefill_new_tokens(q, k, v, False, out=q)
    with pytest.raises(NotImplementedError, match="out is not supported"):
        backend.run_prefill_context_chunk(chunk, q, k, v, out=q)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slopes": [1.0]}, "alibi_slopes"),
        ({"window": 3}, "sliding_window"),
        ({"cap": 2.0}, "logits_soft_cap"),
        ({"kind": "encoder"}, "attn_type encoder"),
        ({"cache": "fp8_ds_mla"}, "kv_cache_dtype fp8_ds_mla"),
        ({"kv_lora_rank": 256}, "latents of 256 and rotary keys of 64"),
        ({"ranks": 2}, "decode context parallelism"),
    ],
)
def test_layers_without_a_kernel_are_refused(mla, changes, reason):
    module, _ = mla
    with pytest.raises(NotImplementedError, match=f"{reason} is not supported; use another"):
        impl(module, **changes)


def test_what_vllm_asks(mla):
    module, prefills = mla
    backend, prefill = module.HipKittensMLABackend, module.HipKittensMLAPrefillBackend
    assert backend.get_name() == "HIPKITTENS_MLA" and prefill.get_name() == "HIPKITTENS"
    assert backend.get_impl_cls() is module.HipKittensMLAImpl
    assert backend.get_builder_cls() is module.HipKittensMLAMetadataBuilder
    assert backend.get_supported_head_sizes() == [576]
    assert [each.base for each in backend.get_supported_kernel_block_sizes()] == [1]
    assert not backend.supports_batch_invariance()
    for minor, supported in ((0, False), (4, True), (5, True)):
        capability = SimpleNamespace(major=9, minor=minor)
        assert backend.supports_compute_capability(capability) == supported
        assert prefill.supports_compute_capability(capability) == supported
    for sizes, supported in (((128, 64, 128), True), ((256, 64, 128), False), ((128, 64, 100), False)):
        names = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        dimensions = SimpleNamespace(**dict(zip(names, sizes, strict=True)))
        assert prefill.supports_mla_dimensions(dimensions) == supported
    for _ in range(2):
        module.register()
    assert prefills == {"HIPKITTENS": f"{MODULE}.HipKittensMLAPrefillBackend"}
