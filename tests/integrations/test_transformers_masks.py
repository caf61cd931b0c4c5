# SPDX-License-Identifier: MIT
"""Masks with attn_implementation="hipkittens": which are supported, and which are refused by name."""

import functools
import logging
import types

import pytest
import tiny_models
import torch
import torch.nn.functional as F
from transformers import masking_utils

from hipkittens import _log
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
    """The result in float64, with 0 where a query sees no key."""
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
    """Boolean and additive masks; the mask alone decides, not module.is_causal."""
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


PATTERN = torch.ones(BATCH, 1, LENGTH, KEYS).bool().triu()
BIAS = torch.rand(BATCH, 1, LENGTH, KEYS, generator=torch.Generator().manual_seed(4))
OF_HEADS = torch.rand(BATCH, HEADS, LENGTH, KEYS, generator=torch.Generator().manual_seed(5)) < 0.6


def lines(caplog):
    return [record.message for record in caplog.records if record.name == "hipkittens"]


@pytest.mark.parametrize("scores", [{}, {"softcap": 3.0}, {"s_aux": torch.linspace(-1, 2, HEADS)}], ids=str)
@pytest.mark.parametrize(
    "mask, reason",
    [
        (OF_HEADS, "attention_mask has a mask of its own for each head"),
        (BIAS, "attention_mask adds values other than 0 and the smallest torch.float32 to the scores"),
        (PATTERN, "attention_mask is neither causal nor the same for all queries"),
    ],
)
def test_masks_without_a_kernel_go_on_to_pytorch(monkeypatch, caplog, mask, reason, scores):
    """Reported once, for any number of layers; the results are right, with gradients."""
    monkeypatch.setattr(_log, "once", functools.cache(_log.once.__wrapped__))
    q, k, v = (each.requires_grad_() for each in tensors())
    with caplog.at_level(logging.WARNING, "hipkittens"):
        for _ in range(3):
            out, weights = attention_forward(MODULE, q, k, v, mask, **scores)
    assert weights is None and lines(caplog) == [
        f'attn_implementation="hipkittens" goes on to PyTorch: {reason}'
    ]
    exact = [each.detach().double().requires_grad_() for each in (q, k, v)]
    keys, values = (each.repeat_interleave(2, 1) for each in exact[1:])
    logits = exact[0] @ keys.mT / SIZE**0.5
    if "softcap" in scores:
        logits = 3 * torch.tanh(logits / 3)
    logits = logits.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else logits + mask.double()
    beside = scores.get("s_aux", torch.full((HEADS,), float("-inf"))).double().view(1, -1, 1, 1)
    beside = beside.expand(BATCH, HEADS, LENGTH, 1)
    shares = torch.cat((logits, beside), 3).softmax(3)[..., :KEYS].nan_to_num(0)
    wanted = (shares @ values).transpose(1, 2)
    close(out, wanted)
    step = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(6)).bfloat16()
    found = torch.autograd.grad(out, (q, k, v), step)
    for ours, right in zip(found, torch.autograd.grad(wanted, exact, step.double()), strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=0.03, atol=0.03)


def test_masks_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"shape \(2, 5\) for 9 queries and 13 keys"):
        attention_forward(MODULE, *tensors(), torch.ones(BATCH, 5))
    with pytest.raises(ValueError, match=r"shape \(2, 1, 4, 13\) for 9 queries; its third size"):
        attention_forward(MODULE, *tensors(), torch.ones(BATCH, 1, 4, KEYS).bool())


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


def place_of(queries, keys):
    """The position of the last queries, in this Transformers' representation."""
    if tiny_models.TRANSFORMERS_5:
        return {"q_length": queries, "q_offset": keys - queries}
    return {"cache_position": torch.arange(keys - queries, keys)}


def chunks(batch, head, query, key):
    return (query // 4 == key // 4) & (key <= query)


def test_patterns_without_a_kernel_are_masks_for_pytorch(caplog):
    """Chunked attention, with padding: every element. For one query, chunks hide keys as padding does, and for a short prompt they hide
    nothing: those cases have kernels.
    """
    padding = torch.ones(BATCH, KEYS, dtype=torch.long)
    padding[0, :2] = 0
    sizes = {"batch_size": BATCH, "mask_function": chunks, "attention_mask": padding}
    seen = (torch.arange(KEYS)[:, None] // 4 == torch.arange(KEYS) // 4).tril() & padding.bool()[
        :, None, None
    ]
    for queries, reasons in ((LENGTH, 1), (1, 1)):
        mask = key_mask(kv_length=KEYS, **place_of(queries, KEYS), **sizes)
        assert torch.equal(mask, seen[:, :, -queries:])
        q, k, v = tensors(queries)
        with caplog.at_level(logging.WARNING, "hipkittens"):
            _log.once.cache_clear()
            close(attention_forward(MODULE, q, k, v, mask)[0], expected(q, k, v, mask))
        assert len(lines(caplog)) == reasons  # the second has a kernel
    first = {"batch_size": BATCH, "mask_function": chunks, "kv_length": 4, **place_of(4, 4)}
    q, k, v = tensors(4, 4)
    close(attention_forward(MODULE, q, k, v, key_mask(**first))[0], expected(q, k, v, structure(4, 4, True)))
    assert len(lines(caplog)) == 1
    window = masking_utils.sliding_window_causal_mask_function(4)
    assert key_mask(batch_size=2, kv_length=8, mask_function=window, **place_of(8, 8)) is None


def test_patterns_without_a_kernel_are_refused_under_torch_compile(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(
        NotImplementedError, match=r"the model's mask has the pattern 'chunks'.* under torch\.compile"
    ):
        key_mask(batch_size=2, kv_length=8, mask_function=chunks, **place_of(8, 8))


def test_rows_are_found_once_for_all_layers(monkeypatch):
    model = tiny_models.make("llama").eval()
    model.set_attn_implementation("hipkittens")
    calls = []
    real = masks.rows_of_mask
    monkeypatch.setattr(masks, "rows_of_mask", lambda *given: calls.append(1) or real(*given))
    model(tiny_models.tokens(), attention_mask=tiny_models.padding("left"))
    assert len(calls) == 1 < model.config.num_hidden_layers


def test_a_static_cache_hides_what_nobody_wrote():
    """Keys past the last written one hold anything, here NaN; with padding and without."""
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
