# SPDX-License-Identifier: MIT
"""Our latent attention for SGLang with stubs of SGLang's classes. tests/oracles/test_sglang.py runs SGLang's own."""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

import hipkittens
from tests.integrations import stub_frameworks
from tests.simulated_device import TARGETS

MODULES = ("hipkittens.integrations.sglang_attention", "hipkittens.integrations.sglang_mla")
HEADS, SLOTS = 16, 64


@pytest.fixture
def latent(monkeypatch):
    """The module imported among stubs."""
    stub_frameworks.sglang(monkeypatch)
    yield importlib.import_module(MODULES[1])
    for name in MODULES:
        sys.modules.pop(name, None)


class Pool:
    """A cache of latents of one layer, which does not know of scales."""

    def __init__(self, dtype):
        self.dtype = dtype
        self.rows = torch.full((SLOTS, 1, 576), 7.0).to(dtype)

    def set_kv_buffer(self, layer, loc, k, v):
        self.rows[loc] = k.to(self.dtype)

    def get_key_buffer(self, layer_id):
        return self.rows


def backend(module, dtype=torch.bfloat16):
    table = torch.full((6, 40), 0x7FFFFFFF, dtype=torch.int32)
    given = {"req_to_token_pool": SimpleNamespace(req_to_token=table), "token_to_kv_pool": Pool(dtype)}
    return module.HipKittensLatentAttentionBackend(SimpleNamespace(use_mla_backend=True, **given)), table


def layer(size, values, key_heads, **changes):
    given = {
        "tp_q_head_num": HEADS, "tp_k_head_num": key_heads, "qk_head_dim": size, "v_head_dim": values, "layer_id": 0, "scaling": 0.07,
        "logit_cap": 0.0, "sliding_window_size": -1, "k_scale": None,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


def batch(new, before, rows, slots, **changes):
    decodes = set(new) == {1}
    mode = SimpleNamespace(
        is_target_verify=lambda: False, is_draft_extend_v2=lambda: False, is_decode_or_idle=lambda: decodes
    )  # fmt: skip
    given = {
        "forward_mode": mode, "encoder_lens": None, "extend_seq_lens": torch.tensor(new), "extend_seq_lens_cpu": list(new),
        "extend_prefix_lens_cpu": list(before), "seq_lens": torch.tensor(new) + torch.tensor(before), "req_pool_indices": rows,
        "out_cache_loc": slots, "mha_return_lse": False,
    }  # fmt: skip
    return SimpleNamespace(**(given | changes))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [None, 0.25])
def test_absorbed(latent, target, scale):
    random, rows = torch.Generator().manual_seed(0), torch.tensor([4, 1])
    with hipkittens.simulate(target, checks="all") as launches:
        dtype = torch.bfloat16
        if scale is not None:
            dtype, scale = hipkittens.quantization.dtype_of("fp8", torch.device("cpu")), torch.tensor(scale)
        ours, table = backend(latent, dtype)
        of_layer = layer(576, 512, 1, k_scale=scale)
        slots = torch.randperm(SLOTS, generator=random)
        before, held = [0, 0], [slots[:20], slots[20:40]]
        for i in range(2):
            table[rows[i], :20] = held[i].int()
        for new in ((9, 3), (2, 7), (1, 1)):
            parts = [held[i][before[i] : before[i] + new[i]] for i in range(2)]
            q, k = (
                torch.randn(sum(new), width, generator=random).to(torch.bfloat16)
                for width in (HEADS * 576, 576)
            )
            of_batch = batch(new, before, rows, torch.cat(parts))
            ours.init_forward_metadata(of_batch)
            out = ours.forward_extend(q, k[:, None], k[:, None, :512], of_layer, of_batch)
            before = [b + n for b, n in zip(before, new, strict=True)]
            stored = ours.token_to_kv_pool.rows
            blocks = torch.full((2, 20), 0x7FFFFFFF, dtype=torch.int32)
            for i in range(2):
                blocks[i, : before[i]] = held[i][: before[i]].int()
            starts = torch.tensor([0, new[0], sum(new)], dtype=torch.int32)
            expected = hipkittens.attention_mla(
                q.view(-1, HEADS, 576), stored, blocks, torch.tensor(before, dtype=torch.int32), starts, max(new), scale=0.07,
                kv_scale=scale,
            )  # fmt: skip
            torch.testing.assert_close(out, expected.flatten(1), rtol=0.02, atol=0.02)
            kept = stored[torch.cat(parts), 0].float() * (1 if scale is None else scale)
            torch.testing.assert_close(kept, k.float(), rtol=0.07, atol=0.02)
    assert launches.findings == []


@pytest.mark.parametrize("target", TARGETS)
def test_in_full(latent, target):
    random, new = torch.Generator().manual_seed(0), (5, 12)
    q, k, v = (torch.randn(17, HEADS, size, generator=random).to(torch.bfloat16) for size in (192, 192, 128))
    with hipkittens.simulate(target, checks="all") as launches:
        ours, _ = backend(latent)
        of_batch = batch(new, (0, 0), torch.tensor([4, 1]), torch.arange(17))
        ours.init_forward_metadata(of_batch)
        out = ours.forward_extend(q.flatten(1), k, v, layer(192, 128, HEADS), of_batch, save_kv_cache=False)
        starts = torch.tensor([0, 5, 17], dtype=torch.int32)
        expected = hipkittens.attention_varlen(q, k, v, starts, starts, 12, 12, causal=True, scale=0.07)
    assert launches.findings == [] and torch.equal(out, expected.flatten(1))


def test_what_is_refused(latent):
    ours, _ = backend(latent)
    of_batch = batch((2, 1), (3, 0), torch.tensor([4, 1]), torch.arange(3))
    ours.init_forward_metadata(of_batch)
    wide, full = layer(576, 512, 1), layer(192, 128, HEADS)
    q, k, v = (torch.zeros(3, HEADS, size) for size in (192, 192, 128))
    rows = torch.zeros(3, HEADS * 576)
    for given, of_layer, more, reason in (
        ((rows, None, None), wide, {"topk_indices": rows}, "topk_indices not supported"),
        ((rows, None, None), layer(576, 512, 1, logit_cap=3.0), {}, "logit caps and windows"),
        ((rows, None, None), layer(576, 512, 1, sliding_window_size=8), {}, "logit caps and windows"),
        ((q.flatten(1), k, v), full, {}, "heads of 192 with values of 128 are only for new tokens"),
        ((q.flatten(1), None, None), full, {}, "heads of 192 with values of 128 are only for new tokens"),
    ):
        with pytest.raises(ValueError, match=reason):
            ours.forward_extend(*given, of_layer, of_batch, **more)
