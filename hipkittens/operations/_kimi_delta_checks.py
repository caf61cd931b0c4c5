# SPDX-License-Identifier: MIT
"""Checks of Kimi delta attention: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from .._backend import partitioned
from .._delta_rule_arguments import LARGEST_KEY
from .._delta_rule_in_torch import in_torch
from ..kimi_delta import kimi_delta_attention, kimi_delta_step
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._tables import DELTA_PEERS, at_delta_sizes
from ._tensors import draw


def _drawn(batch, tokens, key_heads, heads, key, value, dtype):
    """q, k, v, g and beta; decays between 1 and e^-1, rates between 0 and 1."""
    q, k = draw(batch, tokens, 2 * key_heads, key, dtype=dtype).detach().chunk(2, 2)
    gates = draw(batch, tokens, heads, key + 1, dtype=torch.float32).detach()
    g, beta = F.logsigmoid(gates[..., :key]), gates[..., key].sigmoid()
    return q, k, draw(batch, tokens, heads, value, dtype=dtype).detach(), g, beta


def _trial(kernel: Kernel) -> Trial:
    """Keys and values that fill no tile, several tokens or chunks; slots in any order and invalid ones; gates in the kernel."""
    dtype, key = DTYPES[kernel.row["element"]], int(kernel.row["key"])
    if kernel.kind != "channel_step":
        # Wide columns are for states that fill the device, here a single XCD.
        wide = int(kernel.row.get("columns", 16)) > 16
        run = functools.partial(_run_chunks, dtype, key - 8, wide)
        return Trial(f"kimi_delta {kernel.row['name']}", run, workgroups=3)
    layout = "vk" if kernel.row["value_by_value"] == "true" else "kv"
    run = functools.partial(_run, layout, dtype, key - 4)
    return Trial(f"kimi_delta {kernel.row['name']}", run, workgroups=3)


def _run(layout: str, dtype: torch.dtype, key: int):
    results = []
    q, k, v, g, beta = _drawn(3, 2, 1, 2, key, 36, dtype)
    shape = (4, 2, key, 36) if layout == "kv" else (4, 2, 36, key)
    gate = {"A_log": draw(2, dtype=torch.float32).detach(), "dt_bias": torch.ones(2, key)}
    for options in (
        {"state_indices": torch.tensor([3, -1, 0]), "l2norm": True},
        {"state_indices": torch.tensor([[1, 2], [0, 3], [7, 7]]), "accepted": torch.tensor([2, 1, 1]),
         "beta_logits": True, "allow_neg_eigval": True, "l2norm": True, **gate},
        {"lower_bound": -5.0, "l2norm": True, **gate},
    ):  # fmt: skip
        state = draw(*shape, dtype=torch.float32).detach()
        results += [kimi_delta_step(q, k, v, g, beta, state, state_layout=layout, **options), state]
    if layout == "kv":
        packed = _drawn(1, 9, 1, 2, key, 34, dtype)
        starts = torch.tensor([0, 6, 6, 8], dtype=torch.int32)
        results += kimi_delta_attention(*packed, l2norm=True, cu_seqlens=starts, return_state=True)
    return results


@partitioned("CPX")
def _run_chunks(dtype: torch.dtype, key: int, wide: bool):
    """At least three chunks, the last of which is not full; several sequences, one without tokens; gates in the kernel. Keys that are not
    normalized would make states grow without bound.
    """
    heads, value, tokens = (10, 40, 342) if wide else (2, 24, 342)
    inputs = _drawn(1, tokens, heads // 2, heads, key, value, dtype)
    results = [] if wide else [*kimi_delta_attention(*inputs, l2norm=True, return_state=True)]
    # The first workgroups, which are mutated, process the long one.
    starts = torch.tensor([0, tokens - 9, tokens - 9, tokens - 4], dtype=torch.int32)
    state = draw(3, heads, key, value, dtype=torch.float32).detach()
    gate = {"A_log": draw(heads, dtype=torch.float32).detach(), "dt_bias": torch.ones(heads, key)}
    for options in ({}, {"beta_logits": True, **gate}, {"lower_bound": -5.0, **gate})[: 1 if wide else 3]:
        results += kimi_delta_attention(
            *inputs, l2norm=True, initial_state=state, cu_seqlens=starts, return_state=True, **options
        )
    return results


def _in_torch(q, k, v, g, beta, initial=None, l2norm=True):
    """Like the kernels: few tokens, and keys that have no chunks, sequentially; otherwise in chunks in the inputs' dtype."""
    scale, chunks = k.shape[3] ** -0.5, v.shape[1] >= 17 and (q.element_size() == 2 or k.shape[3] <= 128)
    return in_torch(q, k, v, g, beta, scale, initial, l2norm, operand=q.dtype, chunks=chunks)


def _parity(case, generator) -> ParityProblem:
    dtype, heads = DTYPES[case["dtype"]], case["heads"]
    tokens, key, value, batch = case["tokens"], case["key"], case["value"], case["batch"]

    def drawn(*shape):
        return torch.randn(shape, generator=generator)

    key_heads = heads // case["group"] if heads % case["group"] == 0 else heads
    q, k = drawn(batch, tokens, key_heads, key), drawn(batch, tokens, key_heads, key)
    if case["equal_keys"]:
        k = k[:, :1].expand(k.shape).contiguous()
    if not case["l2norm"]:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    channels = batch, tokens, heads, key
    gate = torch.rand(channels, generator=generator) if case["gate"] == "mixed" else None
    g = -50.0 * gate**8 if gate is not None else torch.full(channels, float(case["gate"]))
    inputs = {
        "q": q.to(dtype),
        "k": k.to(dtype),
        "v": drawn(batch, tokens, heads, value).to(dtype),
        "g": g,
        "beta": torch.rand(channels[:3], generator=generator) * case["beta"],
    }
    if case["state"]:
        inputs["initial"] = drawn(batch, heads, key, value)

    def ours(*tensors):
        q, k, v, g, beta, *initial = (each.detach() for each in tensors)
        initial_state = initial[0] if initial else None
        return kimi_delta_attention(
            q, k, v, g, beta, initial_state=initial_state, l2norm=case["l2norm"], return_state=True
        )

    def theirs(*tensors):
        q, k, v, g, beta, *initial = (each.detach() for each in tensors)
        return _in_torch(q, k, v, g, beta, initial[0] if initial else None, case["l2norm"])

    return ParityProblem(
        inputs=inputs,
        ours=ours,
        theirs=theirs,
        outputs=("out", "state"),
        baseline="in chunks of 64, PyTorch's matrix products in the same dtype, the rest in float32; without chunks, token by token in float32",
    )


def _tensors(problem, device, batch, tokens):
    heads, size = problem["heads"], problem["size"]
    q, k = (problem.tensor(device, batch, tokens, problem["key_heads"], size) for _ in range(2))
    v, g = (problem.tensor(device, batch, tokens, heads, size) for _ in range(2))
    return q, k, v, torch.zeros_like(g), torch.zeros(batch, tokens, heads, device=device)


def _call(problem, device):
    inputs = _tensors(problem, device, problem["batch"], problem["tokens"])
    return lambda: kimi_delta_attention(*inputs, l2norm=True)


def _call_step(problem, device):
    inputs = _tensors(problem, device, problem["tokens"], 1)
    size = problem["size"]
    state = torch.zeros(problem["tokens"], problem["heads"], size, size, device=device)
    return lambda: kimi_delta_step(*inputs, state, l2norm=True)


def _refuse(extents):
    if not 1 <= extents["size"] <= LARGEST_KEY:
        return f"size is {extents['size']}; allowed: 1 to {LARGEST_KEY}"
    if extents["heads"] % extents["key_heads"]:
        return f"heads is {extents['heads']}; allowed: a multiple of key_heads, {extents['key_heads']}"
    return None


def _token_bytes(problem) -> float:
    """Bytes of a token: q, k, v, g and the result, and beta in float32."""
    return problem["size"] * (4.0 * problem["key_heads"] + 6.0 * problem["heads"]) + 4.0 * problem["heads"]


def _calls(tensor):
    q, v, g = tensor(1, 40, 2, 64), tensor(1, 40, 4, 64), tensor(1, 40, 4, 64, dtype=torch.float32)
    beta, heads = tensor(1, 40, 4, dtype=torch.float32), tensor(4, dtype=torch.float32)
    bias, starts = tensor(4, 64, dtype=torch.float32), tensor(4, dtype=torch.int32)
    one, of_one = tensor(3, 2, 2, 64), tensor(3, 2, 4, 64)
    rate, pool = tensor(3, 2, 4), tensor(8, 4, 64, 64, dtype=torch.float32)
    return [
        ("packed sequences", "kimi_delta_attention", (q, q, v, g, beta), {"cu_seqlens": starts}),
        ("gates of Kimi Linear", "kimi_delta_attention", (q, q, v, g, beta),
         {"A_log": heads, "dt_bias": bias, "beta_logits": True, "l2norm": True}),
        ("a lower bound for the gates", "kimi_delta_attention", (q, q, v, g, beta),
         {"A_log": heads, "dt_bias": bias, "lower_bound": -5.0}),
        ("one decay per head", "kimi_delta_attention", (q, q, v, beta, beta), {}),
        ("speculative decoding", "kimi_delta_step", (one, one, of_one, of_one, rate, pool),
         {"state_indices": tensor(3, 2, dtype=torch.int32), "accepted": tensor(3, dtype=torch.int32)}),
        ("bfloat16 states", "kimi_delta_step", (one, one, of_one, of_one, rate, tensor(8, 4, 64, 64)), {}),
    ]  # fmt: skip


def _sizes(rows: Rows) -> str:
    return f"Kimi delta attention: keys of 1 to {LARGEST_KEY} elements, values of any size, any number of value heads per key head."


def _example(q, k, v, g, beta):
    return kimi_delta_attention(q, k, v, F.logsigmoid(g), beta.sigmoid(), l2norm=True)


def _example_in_torch(q, k, v, g, beta):
    return _in_torch(q, k, v, F.logsigmoid(g), beta.sigmoid())[0]


def _exercise(draw):
    with torch.no_grad():
        q, k, v, g = (draw(1, 70, heads, 64, seed=seed) for seed, heads in ((1, 1), (2, 1), (3, 2), (4, 2)))
        g, beta = F.logsigmoid(g).float(), draw(1, 70, 2, seed=5).sigmoid().float()
        yield kimi_delta_attention(q, k, v, g, beta, l2norm=True)
        state = draw(1, 2, 64, 64, seed=6).float()
        yield kimi_delta_step(*(x[:, :1] for x in (q, k, v, g, beta)), state)


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "kimi delta attention",
            {
                "q": (1, 40, 1, 64),
                "k": (1, 40, 1, 64),
                "v": (1, 40, 2, 64),
                "g": (1, 40, 2, 64),
                "beta": (1, 40, 2),
            },
            _example,
            _example_in_torch,
            gradients=False,
        ),
    ),
    parity=(
        Parity(
            "kimi_delta_attention",
            {
                "dtype": tuple(DTYPES),
                "tokens": (65, 1, 2, 17, 63, 64, 255),
                "key": (128, 60, 64, 100, 256),
                "value": (128, 60, 64, 17),
                "heads": (4, 1, 2),
                "group": (2, 1, 4),
                "batch": (1, 2),
                "gate": ("mixed", 0, -0.001, -1, -50),
                "beta": (1.0, 0.0, 2.0),
                "state": (False, True),
                "l2norm": (True, False),
                "equal_keys": (False, True),
            },
            _parity,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "kimi_delta_attention",
            example="1x4096x32x32x128",
            extents=("batch", "tokens", "key_heads", "heads", "size"),
            shapes="1x1024x32x32x128",
            heading="Kimi delta attention",
            bytes=lambda problem: problem["batch"] * problem["tokens"] * _token_bytes(problem),
            call=_call,
            tables=(
                Table(
                    "Kimi delta attention, one sequence, 32 heads x 128",
                    "1x{N}x32x32x128",
                    at_delta_sizes(1024, 8192),
                    DELTA_PEERS,
                ),
            ),
            refuse=_refuse,
        ),
        Benchmark(
            "kimi_delta_step",
            example="64x32x32x128",
            extents=("tokens", "key_heads", "heads", "size"),
            shapes="1x32x32x128,64x32x32x128,256x32x32x128",
            heading="Kimi delta attention, decoding",
            bytes=lambda problem: (
                problem["tokens"] * (_token_bytes(problem) + 8.0 * problem["heads"] * problem["size"] ** 2)
            ),
            call=_call_step,
            tables=(
                Table(
                    "Kimi delta attention, decoding, 32 heads x 128",
                    "{N}x32x32x128",
                    at_delta_sizes(1, 64, 256),
                    DELTA_PEERS,
                ),
            ),
            refuse=_refuse,
        ),
    ),
    exercise=_exercise,
)
