# SPDX-License-Identifier: MIT
"""Checks of attention: problems for each kernel, examples, benchmarks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..attention import attention, attention_varlen
from ._attention_benchmarks import BENCHMARKS
from ._attention_head_sizes import section
from ._record import DTYPES, Checks, Example, Kernel, Trial
from ._tensors import draw

_NAMES = ("bf16", "f16")
# length, heads, key heads, head size, backward, dropout_p: the large tiles need one for every compute unit, and
# one head with many keys is split, which a dedicated kernel combines.
_SHAPES = (
    (512, 152, 8, 64, False, 0.0), (512, 152, 8, 128, False, 0.0), (640, 1, 1, 64, False, 0.0),
    (384, 8, 2, 64, True, 0.0), (384, 4, 2, 128, True, 0.0), (256, 2, 1, 256, True, 0.0),
    (384, 4, 2, 64, True, 0.1), (384, 4, 2, 128, True, 0.1), (256, 2, 1, 256, True, 0.1),
)  # fmt: skip


def _run(
    dtype: torch.dtype,
    shape: tuple[int, int, int, int, int],
    backward: bool,
    keys: int | None = None,
    dropout_p: float = 0.0,
    causal: bool = False,
    terms: str = "none",
    value_size: int | None = None,
    with_sinks: bool = False,
) -> list[torch.Tensor]:
    """shape: batch, length, heads, key heads, head size. terms: as in the kernels' rows."""
    batch, length, heads, key_heads, size = shape
    q = draw(batch, length, heads, size, dtype=dtype)
    k, v = (
        draw(batch, keys or length, key_heads, width, dtype=dtype) for width in (size, value_size or size)
    )
    options, leaves = _options(terms, heads), [q, k, v]
    if with_sinks:
        options["sinks"] = draw(heads, dtype=torch.float32)
        leaves.append(options["sinks"])
    with torch.set_grad_enabled(backward), torch.random.fork_rng(devices=[]):
        out = attention(q, k, v, causal=causal, dropout_p=dropout_p, **options)
    if not backward:
        return [out]
    return [out, *torch.autograd.grad(out, leaves, draw(*out.shape, dtype=dtype).detach())]


def _options(terms: str, heads: int) -> dict[str, Any]:
    """The options of a call whose kernels have these score terms."""
    slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
    return {"none": {}, "alibi": {"alibi_slopes": slopes}, "softcap": {"softcap": 2.0}}[terms]


def _trial_of(kernel: Kernel) -> Trial:
    """Whole tiles of keys and a partial one, of which every load has rows; large tiles need one for every compute unit."""
    row = kernel.row
    if kernel.kind == "sinks":  # several blocks of several sequences
        call = partial(_run, torch.bfloat16, (3, 150, 2, 1, 64), True, with_sinks=True)
        return Trial("attention B3 N150 H2 Hkv1 D64 bf16 sinks", call)
    name = row.get("input") or row["element"]
    if kernel.kind == "combine":  # few queries split their keys
        shape = (1, 16, 2, 1, 64)
        call = partial(_run, DTYPES[name], shape, False, keys=2048)
        return Trial(f"attention B1 N16x2048 H2 Hkv1 D64 {name}", call)
    large, dropout = row.get("waves") == "8", row.get("dropout") == "true"
    backward = kernel.kind != "forward"
    size = int(row.get("head_dim", 64))
    shape = (2, 500, 80, 8, size) if large else (2, 250, 2, 1, size)
    keys = None
    if row.get("query_rows") == "of_group":  # few queries: their heads share the keys
        shape, keys = (2, 13, 6, 2, size), 204
    terms = {"terms": row.get("terms", "none"), "value_size": int(row.get("value_dim", size))}
    call = partial(_run, DTYPES[name], shape, backward, keys, dropout_p=0.1 * dropout, **terms)
    lengths = f"{shape[1]}" + f"x{keys}" * (keys is not None)
    title = (
        f"attention B{shape[0]} N{lengths} H{shape[2]} Hkv{shape[3]} D{size} {name}" + " dropout" * dropout
    )
    if terms["value_size"] != size:
        title += f" Dv{terms['value_size']}"
    if terms["terms"] != "none":
        title += f" {terms['terms']}"
    return Trial(title, call, 3 if large else 16, skip=not backward)


def _representative() -> Iterator[Trial]:
    for name in _NAMES:
        for length, heads, key_heads, size, backward, dropout_p in _SHAPES:
            title = (
                f"attention N{length} H{heads} Hkv{key_heads} D{size} {name}{' dropout' * bool(dropout_p)}"
            )
            shape = (1, length, heads, key_heads, size)
            yield Trial(title, partial(_run, DTYPES[name], shape, backward, dropout_p=dropout_p))
        for size in (64, 128, 256):  # few queries, whose heads share the keys of their group
            title = f"attention N32x2048 H128 Hkv32 D{size} {name}"
            yield Trial(title, partial(_run, DTYPES[name], (1, 32, 128, 32, size), False, 2048))
            for terms in ("alibi", "softcap"):
                title = f"attention N384 H4 Hkv2 D{size} {name} {terms}"
                yield Trial(title, partial(_run, DTYPES[name], (1, 384, 4, 2, size), True, terms=terms))
        title = f"attention N384 H4 Hkv2 D192 {name} Dv128 sinks"
        call = partial(_run, DTYPES[name], (1, 384, 4, 2, 192), True, value_size=128, with_sinks=True)
        yield Trial(title, call)
        # A large tile for every compute unit.
        call = partial(_run, DTYPES[name], (1, 512, 152, 8, 192), False, value_size=128)
        yield Trial(f"attention N512 H152 Hkv8 D192 {name} Dv128", call)


def _every_kernel() -> Iterator[Trial]:
    """One tile; enough keys to be split; few queries of a group; and, for the large tiles, one for every compute unit."""
    for name in _NAMES:
        for size in (64, 128, 256):
            for dropout_p in (0.0, 0.2):
                for batch, length, heads, key_heads, backward in (
                    (1, 70, 2, 1, True),  # few key heads: a group's gradients are split
                    (1, 600, 1, 1, False),
                    (1, 30, 4, 1, False),
                    (40, 130, 8, 8, False),
                ):
                    shape = (batch, length, heads, key_heads, size)
                    call = partial(_run, DTYPES[name], shape, backward, dropout_p=dropout_p, causal=True)
                    yield Trial(f"attention {batch}x{length}x{heads}x{size} {name} dropout {dropout_p}", call)
            for terms in ("alibi", "softcap"):
                call = partial(_run, DTYPES[name], (1, 70, 2, 1, size), True, causal=True, terms=terms)
                yield Trial(f"attention 1x70x2x{size} {name} {terms}", call)
        call = partial(
            _run, DTYPES[name], (1, 70, 2, 1, 192), True, causal=True, value_size=128, with_sinks=True
        )
        yield Trial(f"attention 1x70x2x192 {name} Dv128 sinks", call)
        call = partial(_run, DTYPES[name], (40, 130, 8, 8, 192), False, causal=True, value_size=128)
        yield Trial(f"attention 40x130x8x192 {name} Dv128", call)


def _in_torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = True) -> torch.Tensor:
    """PyTorch's attention in our layout, (batch, length, heads, head size)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True).transpose(1, 2)


def _causal(q, k, v):
    return attention(q, k, v, causal=True)


def _second_head_only(k, v):
    return k[:, :, 1:2], v[:, :, 1:2]


_EXAMPLES = (
    Example("attention, causal", dict.fromkeys("qkv", (1, 257, 4, 128)), _causal, _in_torch),
    Example(
        "attention, 3 heads to 1",
        dict.fromkeys("qkv", (2, 200, 3, 64)),
        lambda q, k, v: attention(q, *_second_head_only(k, v)),
        lambda q, k, v: _in_torch(q, *_second_head_only(k, v), False),
        torch.float16,
    ),
)
_DOCTOR = Example(
    "attention", {"q": (1, 130, 4, 64), "k": (1, 130, 2, 64), "v": (1, 130, 2, 64)}, _causal, _in_torch
)


def _calls(tensor):
    q, k = tensor(2, 33, 8, 64), tensor(2, 47, 2, 64)
    slopes = tensor(8, dtype=torch.float32)
    return [
        (
            "causal, fewer key heads, different query and key lengths",
            "attention",
            (q, k, k),
            {"causal": True},
        ),
        (
            "sliding window, LSE returned",
            "attention",
            (q, k, k),
            {"window_size": (128, 0), "return_lse": True},
        ),
        ("dropout", "attention", (q, k, k), {"dropout_p": 0.1}),
        ("layout `bhnd`", "attention", [t.transpose(1, 2) for t in (q, k, k)], {"layout": "bhnd"}),
        ("no keys", "attention", (q, k[:, :0], k[:, :0]), {}),
        ("`deterministic=False`", "attention", (q, k, k), {"deterministic": False}),
        ("number of heads not a multiple of that of k", "attention", (q[:, :, :7], k, k), {}),
        ("a separate head size for v", "attention", (q, k, k[..., :32]), {}),
        ("sinks", "attention", (q, k, k), {"sinks": slopes}),
        ("softcap and ALiBi", "attention", (q, k, k), {"softcap": 30.0, "alibi_slopes": slopes}),
        ("softcap with dropout", "attention", (q, k, k), {"softcap": 30.0, "dropout_p": 0.1}),
        ("float32", "attention", (q.float(), k.float(), k.float()), {}),
        ("softcap", "flash_attn.flash_attn_func", (q, k, k), {"softcap": 30.0}),
        ("ALiBi", "flash_attn.flash_attn_func", (q, k, k), {"alibi_slopes": slopes}),
    ]


def _varlen_calls(tensor):
    packed, ends, pages = tensor(33, 8, 64), tensor(3, dtype=torch.int32), tensor(2, 4, dtype=torch.int32)
    usual = (packed, packed, packed, ends, ends, 20, 20)
    long = (packed, packed, packed, ends.long(), ends.long(), 20, 20)
    return [
        ("packed sequences", "attention_varlen", usual, {"causal": True}),
        ("packed sequences, int64 cu_seqlens", "attention_varlen", long, {}),
        ("paged keys", "flash_attn.flash_attn_varlen_func", usual, {"block_table": pages}),
    ]


def _exercise(draw):
    q, k, v = draw(1, 20, 4, 32), draw(1, 20, 2, 32, seed=1), draw(1, 20, 2, 32, seed=2)
    sinks = draw(4, seed=3)
    return [
        attention(q, k, v, causal=True, sinks=sinks),
        attention(q, k, v[..., :16], softcap=2.0),
        attention(q, k, v, dropout_p=0.25),
    ]


def _varlen_exercise(draw):
    q, k, v = draw(20, 4, 32), draw(20, 2, 32, seed=1), draw(20, 2, 32, seed=2)
    ends = torch.tensor([0, 7, 20], dtype=torch.int32)
    return [attention_varlen(q, k, v, ends, ends, 13, 13)]


CHECKS = Checks(
    trial=_trial_of,
    examples=_EXAMPLES,
    doctor=_DOCTOR,
    parity=("parity_attention:ATTENTION",),
    calls=_calls,
    section=section,
    benchmarks=BENCHMARKS,
    representative=_representative,
    every_kernel=_every_kernel,
    exercise=_exercise,
)
VARLEN = Checks(parity=("parity_attention:ATTENTION_VARLEN",), calls=_varlen_calls, exercise=_varlen_exercise)
