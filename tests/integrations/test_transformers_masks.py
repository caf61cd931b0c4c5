# SPDX-License-Identifier: MIT
"""What attn_implementation="hipkittens" understands of masks, and what it refuses by name."""

import types

import pytest
import tiny_models
import torch
import torch.nn.functional as F
from transformers import masking_utils

from hipkittens.integrations import _transformers_masks as masks
from hipkittens.integrations.transformers import attention_forward, key_mask

BATCH, HEADS, LENGTH, KEYS, SIZE = 2, 4, 9, 13, 16
MODULE = types.SimpleNamespace(is_causal=True)


def tensors(length=LENGTH, keys=KEYS):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(BATCH, HEADS if i == 0 else 2, length if i == 0 else keys, SIZE, generator=generator)
        .bfloat16()
        .transpose(1, 2)
        .contiguous()
        .transpose(1, 2)
        for i in range(3)
    )


def expected(q, k, v, visible):
    """In float64, with 0 where a query sees no key."""
    k, v = (each.double().repeat_interleave(2, 1) for each in (k, v))
    scores = (q.double() @ k.mT / SIZE**0.5).masked_fill(~visible, float("-inf"))
    return (scores.softmax(-1).nan_to_num(0) @ v).transpose(1, 2)


def structure(length, keys, causal, window=None):
    behind = torch.arange(keys) - torch.arange(length)[:, None] - (keys - length)
    shape = behind <= 0 if causal else torch.ones_like(behind, dtype=torch.bool)
    return shape if window is None else shape & (behind.abs() < window)


def close(found, wanted):
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=0.02)


KEPT = torch.ones(BATCH, KEYS, dtype=torch.bool)
KEPT[0, :3] = False
MIDDLE = KEPT.clone()
MIDDLE[1, 4:6] = False


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kept", [KEPT, KEPT.flip(1), MIDDLE], ids=["left", "right", "middle"])
def test_dense_masks_say_what_they_mean(kept, causal, window):
    """Of bool and of numbers to add; the mask alone decides, not module.is_causal."""
    if window is not None and kept is MIDDLE:
        pytest.skip("a window counts the keys that are kept, holes and all")
    q, k, v = tensors()
    visible = kept[:, None, None] & structure(LENGTH, KEYS, causal, window)
    wanted = expected(q, k, v, visible)
    rows = kept[:, -LENGTH:] if causal or window is not None else torch.ones(BATCH, LENGTH, dtype=torch.bool)
    added = torch.zeros(visible.shape, dtype=torch.bfloat16).masked_fill(
        ~visible, torch.finfo(torch.bfloat16).min
    )
    for mask in (visible, added):
        out, weights = attention_forward(MODULE, q, k, v, mask, sliding_window=window)
        assert weights is None and out.shape == (BATCH, LENGTH, HEADS, SIZE)
        close(out[rows], wanted[rows])


def test_a_mask_of_keys_in_two_and_in_four_dimensions():
    q, k, v = tensors()
    both = KEPT[:, None, None].expand(-1, -1, LENGTH, -1)
    encoder = types.SimpleNamespace(is_causal=False)
    for mask in (KEPT, KEPT.long(), KEPT[:, None, None]):
        close(attention_forward(encoder, q, k, v, mask)[0], expected(q, k, v, both))
    causal = both & structure(LENGTH, KEYS, True)
    close(attention_forward(MODULE, q, k, v, KEPT)[0], expected(q, k, v, causal))
    nothing = torch.zeros_like(KEPT)
    close(attention_forward(MODULE, q, k, v, nothing)[0], torch.zeros(BATCH, LENGTH, HEADS, SIZE).double())


@pytest.mark.parametrize(
    "mask, error, text",
    [
        (torch.ones(BATCH, HEADS, LENGTH, KEYS, dtype=torch.bool), NotImplementedError, "for each head"),
        (torch.rand(BATCH, 1, LENGTH, KEYS), NotImplementedError, "no kernel takes a bias"),
        (torch.ones(BATCH, 1, LENGTH, KEYS).bool().triu(), NotImplementedError, "neither causal nor"),
        (torch.ones(BATCH, 5), ValueError, r"shape \(2, 5\) for 9 queries and 13 keys"),
    ],
)
def test_masks_without_a_kernel(mask, error, text):
    with pytest.raises(error, match=text):
        attention_forward(MODULE, *tensors(), mask)


@pytest.mark.parametrize(
    "option, text",
    [
        ({"head_mask": torch.ones(4)}, "head_mask is given"),
        ({"position_bias": torch.ones(4)}, "position_bias is given"),
        ({"output_attentions": True}, "output_attentions is True"),
    ],
)
def test_options_without_a_kernel(option, text):
    with pytest.raises(NotImplementedError, match=text):
        attention_forward(MODULE, *tensors(), None, **option)


def test_patterns_without_a_kernel():
    sizes = {"batch_size": 2, "kv_length": 8, "q_length": 8, "cache_position": torch.arange(8)}
    chunked = masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.long))
    blocks = masking_utils.or_masks(masking_utils.causal_mask_function, lambda b, h, q, k: k < 3)
    for function in (chunked, blocks):
        with pytest.raises(NotImplementedError, match="the model's mask has the pattern"):
            key_mask(mask_function=function, **sizes)
    window = masking_utils.sliding_window_causal_mask_function(4)
    assert key_mask(mask_function=window, **sizes) is None


def test_rows_are_found_once_for_all_layers(monkeypatch):
    model = tiny_models.make("llama").eval()
    model.set_attn_implementation("hipkittens")
    calls = []
    real = masks.rows_of_mask
    monkeypatch.setattr(masks, "rows_of_mask", lambda *given: calls.append(1) or real(*given))
    model(tiny_models.tokens(), attention_mask=tiny_models.padding("left"))
    assert len(calls) == 1 < model.config.num_hidden_layers


def test_a_static_cache_hides_what_nobody_wrote():
    """Keys behind the last written one hold anything, here NaN; with padding and without."""
    q, k, v = tensors(3, 16)
    written = 7
    k[:, :, written:], v[:, :, written:] = float("nan"), float("nan")
    if tiny_models.TRANSFORMERS_5:
        place = {"q_length": 3, "q_offset": torch.tensor(written - 3)}
    else:
        place = {"cache_position": torch.arange(written - 3, written)}
    mask = key_mask(batch_size=BATCH, kv_length=16, **place)
    visible = structure(3, written, True).expand(BATCH, 1, 3, written)
    wanted = expected(q, k[:, :, :written], v[:, :, :written], visible)
    close(attention_forward(MODULE, q, k, v, mask)[0], wanted)
    padding = torch.ones(BATCH, written, dtype=torch.long)
    padding[0, :2] = 0
    mask = key_mask(batch_size=BATCH, kv_length=16, attention_mask=padding, **place)
    kept = visible & padding.bool()[:, None, None]
    wanted = expected(q, k[:, :, :written], v[:, :, :written], kept)
    k, v = k.nan_to_num(0), v.nan_to_num(0)  # hidden keys are read and dropped; NaN times 0 is not 0
    close(attention_forward(MODULE, q, k, v, mask)[0], wanted)


def test_the_reference_is_torch_s():
    q, k, v = tensors(KEYS, KEYS)
    theirs = F.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(
        expected(q, k, v, structure(KEYS, KEYS, True)).transpose(1, 2), theirs, rtol=0, atol=1e-12
    )
