# SPDX-License-Identifier: MIT
"""Our attention backend for SGLang with stubs of SGLang's classes. tests/oracles/test_sglang.py runs SGLang's own."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks
from tests.simulated_device import TARGETS

MODULE = "hipkittens.integrations.sglang_attention"
HEADS, KEY_HEADS, SIZE, SLOTS = 4, 2, 64, 96


@pytest.fixture
def sglang(monkeypatch):
    """The module imported among stubs."""
    stub_frameworks.sglang(monkeypatch)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


class Pool:
    """A cache of one layer."""

    kv_cache_layout = "nhd"

    def __init__(self, dtype):
        self.dtype = dtype
        self.k, self.v = (torch.full((SLOTS, KEY_HEADS, SIZE), 7.0).to(dtype) for _ in range(2))

    def set_kv_buffer(self, layer, loc, k, v, k_scale=1.0, v_scale=1.0):
        for cache, new, scale in ((self.k, k, k_scale), (self.v, v, v_scale)):
            cache[loc] = (new / scale).to(self.dtype)

    def get_kv_buffer(self, layer_id):
        return self.k, self.v


class PoolsApart:
    """Layer 0 slides and has a cache of its own, layer 1 does not."""

    def __init__(self, dtype):
        self.dtype, self.layers_mapping = dtype, {0: (0, True), 1: (0, False)}
        self.full_kv_pool, self.swa_kv_pool = Pool(dtype), Pool(dtype)
        self.mapping = torch.zeros(SLOTS, dtype=torch.int64)

    def translate_loc_from_full_to_swa(self, slots):
        return self.mapping[slots]

    def set_kv_buffer(self, layer, loc, k, v):
        slots, apart = loc
        slides = self.layers_mapping[layer.layer_id][1]
        (self.swa_kv_pool if slides else self.full_kv_pool).set_kv_buffer(
            layer, apart if slides else slots, k, v
        )

    def get_kv_buffer(self, layer_id):
        return (self.swa_kv_pool if self.layers_mapping[layer_id][1] else self.full_kv_pool).get_kv_buffer(0)


def runner(dtype=torch.bfloat16, **changes):
    table = torch.full((6, 40), 0x7FFFFFFF, dtype=torch.int32)
    given = {
        "req_to_token_pool": SimpleNamespace(req_to_token=table), "token_to_kv_pool": Pool(dtype), "use_mla_backend": False,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def layer(module, **changes):
    given = {
        "tp_q_head_num": HEADS, "qk_head_dim": SIZE, "v_head_dim": SIZE, "layer_id": 0, "is_cross_attention": False,
        "attn_type": module.AttentionType.DECODER, "logit_cap": 0.0, "logit_capping_method": "tanh", "sliding_window_size": -1,
        "scaling": 0.1, "k_scale": None, "v_scale": None,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def batch(new, before, rows, slots, **changes):
    decodes = set(new) == {1}
    mode = SimpleNamespace(
        is_target_verify=lambda: False, is_draft_extend_v2=lambda: False, is_decode_or_idle=lambda: decodes, name="EXTEND"
    )  # fmt: skip
    lengths = torch.tensor(new)
    given = {
        "forward_mode": mode, "encoder_lens": None, "extend_seq_lens": lengths, "extend_seq_lens_cpu": list(new),
        "seq_lens": lengths + torch.tensor(before), "req_pool_indices": rows, "out_cache_loc": slots,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def reference(q, keys, values, window=-1):
    q, keys, values = (each.double().transpose(0, 1) for each in (q, keys, values))
    keys, values = (each.repeat_interleave(HEADS // KEY_HEADS, 0) for each in (keys, values))
    count = keys.shape[1]
    distance = torch.arange(count - q.shape[1], count)[:, None] - torch.arange(count)
    hidden = (distance < 0) | (distance > window if window >= 0 else False)
    weights = (q @ keys.transpose(1, 2) * 0.1).masked_fill(hidden, -torch.inf).softmax(-1)
    return (weights @ values).transpose(0, 1).flatten(1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("window", [-1, 3])
@pytest.mark.parametrize("stored", ["bfloat16", "fp8"])
def test_prefill_and_decoding(sglang, target, window, stored):
    with hipkittens.simulate(target, checks="all") as launches:
        dtype = torch.bfloat16
        if stored == "fp8":
            dtype = hipkittens.quantization.dtype_of("fp8", torch.device("cpu"))
        of_model = runner(dtype)
        backend, pool = sglang.HipKittensAttentionBackend(of_model), of_model.token_to_kv_pool
        # A cache of 16 bits has no scales, whatever a checkpoint has.
        scales = {"k_scale": torch.tensor(0.5), "v_scale": torch.tensor(0.25)}
        of_layer = layer(sglang, sliding_window_size=window, **scales)
        rows, free = torch.tensor([4, 1]), torch.randperm(SLOTS, generator=torch.Generator().manual_seed(1))
        before, held = [0, 0], [torch.empty(0, dtype=torch.int64)] * 2
        for seed, new in enumerate(((9, 1), (2, 7), (1, 1))):
            parts, free = free[: sum(new)].split(new), free[sum(new) :]
            for i in range(2):
                held[i] = torch.cat([held[i], parts[i]])
                of_model.req_to_token_pool.req_to_token[rows[i], before[i] : len(held[i])] = parts[i].int()
            random = torch.Generator().manual_seed(seed)
            q, k, v = (
                torch.randn(sum(new), heads, SIZE, generator=random).to(torch.bfloat16)
                for heads in (HEADS, KEY_HEADS, KEY_HEADS)
            )
            of_batch = batch(new, before, rows, torch.cat(parts))
            backend.init_forward_metadata(of_batch)
            call = backend.forward_decode if set(new) == {1} else backend.forward_extend
            out = call(q.flatten(1), k, v, of_layer, of_batch)
            for i, part in enumerate(q.split(new)):
                keys, values = pool.k[held[i]].double(), pool.v[held[i]].double()
                if stored == "fp8":
                    keys, values = keys * 0.5, values * 0.25
                expected = reference(part, keys, values, window)
                torch.testing.assert_close(out.split(new)[i].double(), expected, rtol=0.02, atol=0.02)
            before = [len(each) for each in held]
    assert launches.findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_sliding_layers_with_a_cache_of_their_own(sglang, monkeypatch, target):
    monkeypatch.setattr(sglang, "KVWriteLoc", lambda loc, apart: (loc, apart))
    pools, window = PoolsApart(torch.bfloat16), 3
    of_model = runner(token_to_kv_pool=pools)
    rows, random = torch.tensor([4, 1]), torch.Generator().manual_seed(1)
    free, apart = torch.randperm(SLOTS, generator=random), torch.randperm(SLOTS - 1, generator=random) + 1
    table = of_model.req_to_token_pool.req_to_token
    before, held = [0, 0], [torch.empty(0, dtype=torch.int64)] * 2
    with hipkittens.simulate(target, checks="all") as launches:
        backend = sglang.HipKittensAttentionBackend(of_model)
        for new in ((9, 1), (2, 7), (1, 1)):
            parts, free = free[: sum(new)].split(new), free[sum(new) :]
            pools.mapping[torch.cat(parts)], apart = apart[: sum(new)], apart[sum(new) :]
            for i in range(2):
                held[i] = torch.cat([held[i], parts[i]])
                table[rows[i], before[i] : len(held[i])] = parts[i].int()
            q, k, v = (
                torch.randn(sum(new), heads, SIZE, generator=random).to(torch.bfloat16)
                for heads in (HEADS, KEY_HEADS, KEY_HEADS)
            )
            of_batch = batch(new, before, rows, torch.cat(parts))
            backend.init_forward_metadata(of_batch)
            outs = [
                backend.forward_extend(q.flatten(1), k, v, layer(sglang, layer_id=number, sliding_window_size=size), of_batch)
                for number, size in ((0, window), (1, -1))
            ]  # fmt: skip
            # Another sliding layer of the batch finds the slots that have been looked up.
            known = backend.forward_metadata.windows[window]
            assert backend._within(window, of_batch) is known and len(backend.forward_metadata.windows) == 1
            caches = (pools.swa_kv_pool, pools.mapping), (pools.full_kv_pool, torch.arange(SLOTS))
            for out, (pool, slots), size in zip(outs, caches, (window, -1), strict=True):
                for i, part in enumerate(q.split(new)):
                    at = slots[held[i]]
                    expected = reference(part, pool.k[at].double(), pool.v[at].double(), size)
                    torch.testing.assert_close(out.split(new)[i].double(), expected, rtol=0.02, atol=0.02)
            before = [len(each) for each in held]
    assert launches.findings == []


def test_what_is_refused(sglang):
    make = sglang.HipKittensAttentionBackend
    for changes, reason in (
        (
            {"token_to_kv_pool": SimpleNamespace(full_kv_pool=None)},
            "the cache is a SimpleNamespace; use another",
        ),
        (
            {
                "token_to_kv_pool": SimpleNamespace(
                    layers_mapping={0: (0, True)},
                    full_kv_pool=SimpleNamespace(),
                    swa_kv_pool=SimpleNamespace(kv_cache_layout="hnd"),
                )
            },
            "layout is hnd; allowed: nhd",
        ),
        ({"token_to_kv_pool": SimpleNamespace(kv_cache_layout="hnd")}, "layout is hnd; allowed: nhd"),
        (
            {"req_to_token_pool": SimpleNamespace(req_to_token=torch.empty(1 << 16, 1 << 15, device="meta"))},
            "2\\^31 slots; lower --max-running-requests",
        ),
    ):
        with pytest.raises(ValueError, match=reason):
            make(runner(**changes))
    backend = make(runner())
    given = (1,), (0,), torch.tensor([1]), torch.tensor([1])
    verify = SimpleNamespace(is_target_verify=lambda: True, name="TARGET_VERIFY")
    for changes, reason in (({"forward_mode": verify}, "got TARGET_VERIFY"), ({"encoder_lens": 1}, "encoder_lens")):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            backend.init_forward_metadata(batch(*given, **changes))
    q, kinds = torch.zeros(1, HEADS * SIZE), sglang.AttentionType
    for changes, more, reason in (
        ({"is_cross_attention": True}, {}, "cross-attention"),
        ({"attn_type": kinds.DECODER_BIDIRECTIONAL}, {}, "not supported"),
        ({"v_head_dim": 32}, {}, "heads of 64 with values of 32"),
        ({"logit_cap": 2.0, "logit_capping_method": "other"}, {}, "is other; allowed: tanh"),
        ({}, {"q_rope": q}, "q_rope not supported"),
    ):
        with pytest.raises(ValueError, match=reason):
            backend.forward_decode(q, None, None, layer(sglang, **changes), batch(*given), **more)
    apart = make(runner(token_to_kv_pool=PoolsApart(torch.bfloat16)))
    with pytest.raises(ValueError, match="layer 0 has a cache of sliding layers, and no window"):
        apart.forward_decode(q, None, None, layer(sglang), batch(*given))
    assert backend.init_cuda_graph_state(1, 1) is None and backend.get_cuda_graph_seq_len_fill_value() == 1


def test_the_name_is_registered_once(sglang):
    sys.modules.pop("hipkittens.integrations.sglang", None)
    plugin = importlib.import_module("hipkittens.integrations.sglang")
    for _ in range(2):
        plugin.register()
    sys.modules.pop(plugin.__name__)
    assert sys.modules["sglang.srt.arg_groups.choices"].ATTENTION_BACKEND_CHOICES == ["triton", "hipkittens"]
    backends = sys.modules["sglang.srt.layers.attention.attention_registry"].ATTENTION_BACKENDS
    made = [backends["hipkittens"](runner(use_mla_backend=latent)) for latent in (False, True)]
    assert [type(each).__name__ for each in made] == [
        "HipKittensAttentionBackend",
        "HipKittensLatentAttentionBackend",
    ]
