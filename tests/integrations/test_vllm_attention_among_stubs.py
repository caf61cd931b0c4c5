# SPDX-License-Identifier: MIT
"""vLLM's attention backend with stubs of vLLM's classes. tests/oracles/test_vllm_attention.py runs vLLM's own."""

import dataclasses
import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks
from tests.oracles import vllm_attention_batches as batches
from tests.oracles.vllm_attention_batches import Case
from tests.simulated_device import TARGETS

MODULES = ("hipkittens.integrations.vllm", "hipkittens.integrations.vllm_attention")
NAN = float("nan")


@pytest.fixture
def fresh():
    """Import both modules afresh, and drop them afterwards together with the stubs that they have seen."""
    for name in MODULES:
        sys.modules.pop(name, None)
    yield lambda name: importlib.import_module(name)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def attention(monkeypatch, fresh):
    stub_frameworks.vllm_attention(monkeypatch)
    return fresh(MODULES[1])


def common(case, table, slots):
    """Metadata with a request past the last one, and a token that belongs to none."""
    starts = torch.tensor([0, *case.queries, 0]).cumsum(0).to(torch.int32)
    return SimpleNamespace(
        num_actual_tokens=sum(case.queries),
        max_query_len=max(case.queries),
        query_start_loc=starts,
        seq_lens=torch.tensor([*case.lengths, 0], dtype=torch.int32),
        block_table_tensor=table,
        slot_mapping=torch.cat((slots, torch.tensor([-1]))),
        causal=case.causal,
    )


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("cache", ["bfloat16", "fp8", "fp8_per_token_head", "int8_per_token_head"])
def test_a_mixed_batch(attention, target, cache):
    case = Case(
        target, (33, 5, 16), (1, 5, 3), 4, 2, 64, cache=cache, window=20, softcap=9.0, alibi=True, sinks=True
    )
    random = torch.Generator().manual_seed(0)
    q, k, v = batches.draw(case, random)
    terms = batches.terms_of(case, random)
    layer = SimpleNamespace(_k_scale=torch.tensor(0.0625), _v_scale=torch.tensor(0.03125))
    codes = batches.Codes(case, layer)
    table, slots = batches.places(case, random)
    backend = attention.HipKittensAttentionBackend
    impl = backend.get_impl_cls()(
        4,
        64,
        64**-0.5,
        2,
        terms["alibi"],
        case.window,
        cache,
        case.softcap,
        "decoder",
        None,
        sinks=terms["sinks"],
    )
    content = codes.coded(k[:1], layer._k_scale)[0].shape[-1] * 2
    kv_cache = torch.full((8, 16, 2, content), -1, dtype=torch.int8).transpose(1, 2)
    expected = kv_cache.clone()
    dtype = {"bfloat16": torch.bfloat16, "int8_per_token_head": torch.int8}.get(cache, torch.uint8)
    new = batches.new_rows(case)
    old = torch.ones(len(k), dtype=torch.bool)
    old[new] = False
    codes.write(kv_cache, k[old], v[old], slots[old])
    codes.write(expected, k, v, slots)
    builder = backend.get_builder_cls()(None, [], None, torch.device("cpu"))
    built = builder.build(0, common(case, table, slots[new]))
    query, key, value = (torch.cat((x, torch.full_like(x[:1], NAN))) for x in (q, k[new], v[new]))
    out = torch.full_like(query, 7)
    with torch.inference_mode(), hipkittens.simulate(target, checks="all") as launches:
        impl.do_kv_cache_update(layer, key, value, kv_cache.view(dtype), built.slot_mapping)
        assert impl.forward(layer, query, key, value, kv_cache.view(dtype), built, out) is out
    assert launches.findings == [] and torch.equal(kv_cache, expected) and (out[-1] == 7).all()
    k, v = codes.decoded(k, v)
    exact = batches.attend(case, q, k, v, terms, torch.float64)
    torchs = batches.attend(case, q, k, v, terms, torch.float32).to(out.dtype)
    assert (out[:-1] - exact).abs().max() <= 2 * (torchs - exact).abs().max()
    assert impl.forward(layer, query, key, value, kv_cache.view(dtype), None, out).eq(0).all()


@pytest.mark.parametrize("target", TARGETS)
def test_encoders_see_all_of_their_request(attention, target):
    case = Case(target, (33, 5), (33, 5), 4, 2, 64, window=9, kind=batches.ENCODER_ONLY)
    q, k, v = batches.draw(case, torch.Generator().manual_seed(1))
    impl = attention.HipKittensAttentionImpl(4, 64, 64**-0.5, 2, sliding_window=9, attn_type=case.kind)
    builder = attention.HipKittensAttentionMetadataBuilder(None, [], None, None)
    built = builder.build(0, common(case, torch.zeros(3, 1), torch.zeros(38)))
    nothing, out = torch.tensor([]), torch.empty_like(q)
    terms = {"alibi": None, "sinks": None}
    with hipkittens.simulate(target, checks="all") as launches:
        impl.do_kv_cache_update(None, k, v, nothing, built.slot_mapping)
        impl.forward(None, q, k, v, nothing, built, out)
    exact = batches.attend(case, q, k, v, terms, torch.float64)
    torchs = batches.attend(case, q, k, v, terms, torch.float32).to(out.dtype)
    assert launches.findings == []
    assert (out - exact).abs().max() <= 2 * (torchs - exact).abs().max()


def test_what_the_backend_says_of_itself(attention):
    backend = attention.HipKittensAttentionBackend
    assert backend.get_name() == "CUSTOM" and not backend.forward_includes_kv_cache_update
    assert backend.get_supported_head_sizes() == [64, 128, 256]
    assert [each.base for each in backend.get_supported_kernel_block_sizes()] == [8]
    assert backend.supports_sink() and backend.supports_sliding_window() and backend.supports_non_causal()
    for capability, takes in (((9, 4), True), ((9, 5), True), ((9, 0), False), ((11, 0), False)):
        major, minor = capability
        assert backend.supports_compute_capability(SimpleNamespace(major=major, minor=minor)) is takes
    assert backend.supports_compute_capability(None)
    assert backend.supports_attn_type("encoder") and not backend.supports_attn_type("encoder_decoder")
    assert backend.supports_combination(64, torch.bfloat16, "auto", 16) is None
    assert backend.supports_combination(64, torch.bfloat16, "bfloat16", 16) is None
    assert "torch.float16" in backend.supports_combination(64, torch.bfloat16, "float16", 16)
    assert not backend.supports_batch_invariance()
    with hipkittens.batch_invariant():
        assert backend.supports_batch_invariance()


def test_a_scale_for_each_token_lengthens_the_specification(attention):
    kind = dataclasses.make_dataclass(
        "Spec", ["head_size", "head_size_v", "kv_quant_mode", "state_content_bytes"]
    )
    by_token, plain = (SimpleNamespace(is_per_token_head=each) for each in (True, False))
    customize = attention.HipKittensAttentionBackend.customize_spec
    assert customize(kind(64, 64, by_token, None)).state_content_bytes == 136
    for same in (kind(64, 64, plain, None), kind(64, 64, by_token, 200)):
        assert customize(same) is same


def test_another_group_of_caches(attention):
    case = Case("gfx950", (8,), (8,))
    builder = attention.HipKittensAttentionMetadataBuilder(None, [], None, None)
    first = builder.build(0, common(case, torch.zeros(2, 1), torch.zeros(8)))
    table, slots = torch.ones(2, 1), torch.ones(9)
    second = builder.update_block_table(first, table, slots)
    assert second.block_table is table and second.slot_mapping is slots
    assert second.seq_lens is first.seq_lens and first.block_table is not table


def test_what_is_refused(attention):
    usual = {"num_heads": 8, "head_size": 128, "scale": 1.0, "num_kv_heads": 2}
    refused = {
        "head_size 80": ({"head_size": 80}, NotImplementedError),
        "kv_cache_dtype 'fp8_e5m2'": ({"kv_cache_dtype": "fp8_e5m2"}, NotImplementedError),
        "attn_type 'encoder_decoder'": ({"attn_type": "encoder_decoder"}, NotImplementedError),
        "chunk_lookback": ({"chunk_lookback": 2}, NotImplementedError),
        "num_kv_heads 3": ({"num_kv_heads": 3}, ValueError),
        r"sinks has shape \(2,\)": ({"sinks": torch.zeros(2)}, ValueError),
    }
    for text, (change, kind) in refused.items():
        with pytest.raises(kind, match=text):
            attention.HipKittensAttentionImpl(**(usual | change))
    impl = attention.HipKittensAttentionImpl(**usual)
    case = Case("gfx950", (8,), (8,))
    batch = common(case, torch.zeros(2, 1, dtype=torch.int32), torch.zeros(8))
    builder = attention.HipKittensAttentionMetadataBuilder(None, [], None, None)
    for change in ({"causal": torch.ones(1)}, {"mm_req_doc_ranges": {}}, {"rswa_prefix_lens": torch.ones(1)}):
        with pytest.raises(NotImplementedError, match=next(iter(change))):
            builder.build(0, SimpleNamespace(**(vars(batch) | change)))
    q = torch.zeros(8, 8, 128, dtype=torch.bfloat16)
    built = builder.build(0, batch)
    for shape in ((2, 3, 16, 256), (2, 2, 16, 264), (2, 2, 2, 16, 128)):
        with pytest.raises(ValueError, match="kv_cache has shape"):
            impl.forward(None, q, q, q, torch.zeros(shape), built, q)
    with pytest.raises(NotImplementedError, match="output_scale"):
        impl.forward(None, q, q, q, torch.zeros(2, 2, 16, 256), built, q, output_scale=torch.ones(1))


@pytest.mark.parametrize("invariant", [False, True])
def test_registration(monkeypatch, fresh, caplog, invariant):
    stub_frameworks.vllm(monkeypatch)
    registered = stub_frameworks.vllm_attention(monkeypatch, VLLM_BATCH_INVARIANT=invariant)
    with hipkittens.batch_invariant(False):
        plugin = fresh(MODULES[0])
        plugin.register()
        plugin.register()
        assert hipkittens.is_batch_invariant() is invariant
        [(custom, path)] = registered.items()
        module, name = path.rsplit(".", 1)
        assert custom.name == "CUSTOM" and getattr(fresh(module), name).get_name() == "CUSTOM"
        # Another plugin's stays.
        registered[custom] = "their.backend"
        plugin._register_attention()
        assert registered == {custom: "their.backend"} and "their.backend" in caplog.text
