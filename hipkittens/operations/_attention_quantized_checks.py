# SPDX-License-Identifier: MIT
"""Checks of attention of quantized operands: problems for each kernel, examples, parity, benchmarks."""

from __future__ import annotations

import math
from functools import partial

import torch

from ..quantized_attention import (
    KEY_BLOCK,
    QUERY_BLOCK,
    AttentionCodes,
    attention_quantized,
    in_torch,
    quantized,
)
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Trial
from ._tensors import draw


def _run(dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    """A tile of queries and a partial one, three tiles of keys with a causal mask; two heads that share a key head."""
    q = draw(1, 160, 2, size, dtype=dtype).detach()
    k, v = (draw(1, 170, 1, size, dtype=dtype).detach() for _ in range(2))
    return list(attention_quantized(q, k, v, causal=True, return_lse=True))


def _trial(kernel: Kernel) -> Trial:
    name, size = kernel.row["element"], int(kernel.row["head_dim"])
    return Trial(
        f"attention_quantized N160 Nk170 H2 Hkv1 D{size} {name} causal", partial(_run, DTYPES[name], size)
    )


def _beside(q, k, v, **options):
    """In 16 bits, the same quantized operands with attention in PyTorch; in float64, the reference with the original operands."""
    causal, window = options.get("causal", False), options.get("window_size", (-1, -1))
    scale = q.shape[-1] ** -0.5 if options.get("scale") is None else options["scale"]
    blocks = options.get("query_block", QUERY_BLOCK), options.get("key_block", KEY_BLOCK)
    if q.dtype == torch.float64:
        (batch, rows, heads), (keys, key_heads, size) = q.shape[:3], v.shape[1:]
        factors = (
            q.new_ones(batch, heads, -(-rows // blocks[0])),
            q.new_ones(batch, key_heads, -(-keys // blocks[1])),
            q.new_ones(batch, key_heads, size),
        )
        operands = AttentionCodes(q * (scale * math.log2(math.e)), k, v.permute(0, 2, 3, 1), *factors)
    else:
        smooth = options.get("smooth_k", True) and k.shape[1] > 0
        operands = quantized(q, k, v, scale, k.float().mean(1, keepdim=True) if smooth else None, *blocks)
    wide = torch.promote_types(q.dtype, torch.float32)
    return in_torch(operands, *blocks, causal, *window, wide)[0].to(q.dtype)


def _parity_problem(case, generator) -> ParityProblem:
    (n_q, n_k), (heads, key_heads) = case["lengths"], case["heads"]
    dtype, size, value_size = DTYPES[case["dtype"]], case["size"], case["value_size"] or case["size"]

    def drawn(rows, count, width, offset=0.0):
        noise = torch.randn(case["batch"], rows, count, width, generator=generator)
        return (noise + offset * torch.randn(1, 1, count, width, generator=generator)).to(dtype)

    options = {
        "causal": case["causal"],
        "window_size": tuple(case["window"]),
        "scale": case["scale"],
        "smooth_k": case["smooth_k"],
        "query_block": case["blocks"][0],
        "key_block": case["blocks"][1],
    }
    return ParityProblem(
        inputs={
            "q": drawn(n_q, heads, size),
            "k": drawn(n_k, key_heads, size, 2.0),
            "v": drawn(n_k, key_heads, value_size),
        },
        ours=lambda q, k, v: attention_quantized(q.detach(), k.detach(), v.detach(), **options),
        theirs=lambda q, k, v: _beside(q.detach(), k.detach(), v.detach(), **options),
        baseline="PyTorch in float32 on operands quantized in the same way; weights rounded to e4m3, results to the inputs' dtype",
        outputs=("out",),
    )


_PARITY = Parity(
    "attention_quantized",
    {
        "lengths": ((130, 130), (1, 1), (1, 300), (17, 2), (2, 17), (257, 255), (255, 257), (40, 0)),
        "heads": ((2, 2), (1, 1), (4, 1)),
        "size": (128, 64, 16, 112, 256),
        "value_size": (None, 64, 8, 128),
        "dtype": ("bf16", "f16"),
        "batch": (1, 2),
        "causal": (True, False),
        "window": ((-1, -1), (30, -1), (7, 5), (0, 0)),
        "scale": (None, 1.0, -0.3),
        "smooth_k": (True, False),
        "blocks": ((128, 64), (32, 64), (256, 128)),
    },
    _parity_problem,
    draws={
        "lengths": lambda choose: (choose.randint(1, 300), choose.randint(1, 300)),
        "size": lambda choose: 16 * choose.randint(1, 16),
    },
)


def _operands(problem, device):
    e = problem.extents
    q = problem.tensor(device, e["B"], e["N"], e["H"], e["D"])
    return q, *(problem.tensor(device, e["B"], e["N"], e["K"], e["D"]) for _ in range(2))


def _call(problem, device):
    q, k, v = _operands(problem, device)
    blocks = QUERY_BLOCK, KEY_BLOCK
    codes = quantized(q, k, v, q.shape[-1] ** -0.5, None, *blocks)
    tensors = *codes[:2], codes.v.view(torch.uint8), *codes[3:]
    options = *blocks, problem.causal, -1, -1, q.dtype
    return lambda: torch.ops.hipkittens.attention_quantized(*tensors, *options)


def _flops(problem) -> float:
    """4 B H N N D, half of that under a causal mask."""
    e = problem.extents
    return 4.0 * e["B"] * e["H"] * e["N"] ** 2 * e["D"] * (0.5 if problem.causal else 1)


def _bytes(problem) -> float:
    """Quantized q, k and v, and the result."""
    e = problem.extents
    return e["B"] * e["N"] * e["D"] * (3.0 * e["H"] + 2.0 * e["K"])


def _calls(tensor):
    rows = tensor(1, 40, 4, 64)
    return [
        ("k not smoothed", "attention_quantized", (rows, rows, rows), {"smooth_k": False}),
        ("fewer key heads", "attention_quantized", (rows, rows[:, :, :2], rows[:, :, :2]), {}),
        ("sliding window, LSE returned", "attention_quantized", (rows, rows, rows), {"window_size": (8, 0), "return_lse": True}),
        ("AITER's block sizes", "attention_quantized", (rows, rows, rows), {"query_block": 256, "key_block": 128}),
        ("head size 72", "attention_quantized", (tensor(1, 40, 4, 72),) * 3, {}),
        ("float32", "attention_quantized", (tensor(1, 40, 4, 64, dtype=torch.float32),) * 3, {}),
    ]  # fmt: skip


def _sizes(rows: Rows) -> str:
    return (
        "Quantized attention: head sizes up to 256 that are multiples of 16 for q and k and multiples of 8 for v, with causal masks and "
        "windows. Block sizes are powers of two, from 32 for queries and from 64 for keys."
    )


def _exercise(draw):
    q, k, v = (draw(1, 20, heads, 32, seed=seed).detach() for seed, heads in enumerate((4, 2, 2)))
    return list(attention_quantized(q, k, v, causal=True, return_lse=True))


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "quantised attention",
            dict.fromkeys("qkv", (1, 257, 4, 128)),
            partial(attention_quantized, causal=True),
            partial(_beside, causal=True),
            gradients=False,
        ),
    ),
    parity=(_PARITY,),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "attention_quantized",
            example="B1H24N8192D128",
            letters="BHND",
            optional={"K": "H"},
            shapes="B1H24N8192D128",
            flops=_flops,
            bytes=_bytes,
            bits=8,
            call=_call,
            causal=True,
            heading="Quantized attention",
            refuse=lambda extents: (
                None
                if extents["H"] % extents["K"] == 0
                else f"H is {extents['H']}; it must be a multiple of K, {extents['K']}"
            ),
        ),
    ),
    exercise=_exercise,
)
