# SPDX-License-Identifier: MIT
"""Checks of gated delta rules: a problem for each kernel, examples, benchmarks."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F

from .._backend import partitioned
from .._delta_rule_arguments import LARGEST_KEY
from ..delta_rule import LARGEST_KEY_WITH_GRADIENT, gated_delta_rule, gated_delta_step, in_torch
from ._record import DTYPES, Benchmark, Checks, Example, Kernel, Parity, ParityProblem, Rows, Table, Trial
from ._tables import DELTA_PEERS, at_delta_sizes
from ._tensors import draw


def _drawn(batch, tokens, key_heads, heads, key, value, dtype):
    """q, k, v, g and beta; decays between 1 and e^-1, rates between 0 and 1."""
    of_all = draw(batch, tokens, 2 * key_heads, key, dtype=dtype).detach()
    q, k = (half.contiguous().requires_grad_() for half in of_all.chunk(2, 2))
    gates = draw(batch, tokens, 2 * heads, dtype=torch.float32).detach()
    g, beta = gates.chunk(2, 2)
    g, beta = F.logsigmoid(g).requires_grad_(), beta.sigmoid().requires_grad_()
    return q, k, draw(batch, tokens, heads, value, dtype=dtype), g, beta


def _trial(kernel: Kernel) -> Trial:
    """At least three chunks, the last of which is not full; keys and values that fill no tile; several sequences, one without tokens."""
    dtype, key = DTYPES[kernel.row["element"]], int(kernel.row["key"])
    title = f"gated_delta_rule {kernel.row['name']}"
    if kernel.kind == "step":
        return Trial(title, functools.partial(_run_step, kernel, dtype, key - 4), workgroups=3)
    # Wide columns are for states that fill the device, here a single XCD.
    wide = kernel.kind == "scan" and int(kernel.row["columns"]) > 16
    heads, value, tokens = (10, 40, 342) if wide else (2, 24, 150)

    @partitioned("CPX")
    def run():
        inputs = _drawn(1, tokens, heads // 2, heads, key - 8, value, dtype)
        # The first workgroups, which are mutated, process the long one.
        starts = torch.tensor([0, tokens - 9, tokens - 9, tokens - 4], dtype=torch.int32)
        out, state = gated_delta_rule(*(x.detach() for x in inputs), l2norm=True, return_state=True)
        results = [out, state]
        initial = draw(3, heads, key - 8, value, dtype=torch.float32).detach()
        out, state = gated_delta_rule(
            *inputs, l2norm=True, initial_state=initial, cu_seqlens=starts, return_state=True
        )
        results += [out, state]
        if kernel.kind in ("reverse", "gradient"):
            results += torch.autograd.grad(out.float().square().sum() + state.square().sum(), inputs)
        return [result.detach() for result in results]

    return Trial(title, run, workgroups=3)


def _run_step(kernel: Kernel, dtype: torch.dtype, key: int):
    layout = "vk" if kernel.row["value_by_value"] == "true" else "kv"
    results = []
    q, k, v, g, beta = (x.detach() for x in _drawn(3, 2, 1, 2, key, 36, dtype))
    shape = (4, 2, key, 36) if layout == "kv" else (4, 2, 36, key)
    for options in (
        {"state_indices": torch.tensor([3, -1, 0]), "l2norm": True},
        {"state_indices": torch.tensor([[1, 2], [0, 3], [7, 7]]), "accepted": torch.tensor([2, 1, 1]),
         "A_log": draw(2, dtype=torch.float32).detach(), "dt_bias": torch.zeros(2), "beta_logits": True,
         "allow_neg_eigval": True},
    ):  # fmt: skip
        state = draw(*shape, dtype=DTYPES[kernel.row["state"]]).detach()
        results += [gated_delta_step(q, k, v, g, beta, state, state_layout=layout, **options), state]
    return results


def _in_torch(q, k, v, g, beta, initial=None, l2norm=True):
    """In chunks, as Transformers computes them, with GEMMs in the inputs' dtype."""
    return in_torch(q, k, v, g, beta, k.shape[3] ** -0.5, initial, l2norm, operand=q.dtype)


def _with_gradients(case):
    """Keys with the largest number of elements for which a dtype has gradients, if it has none for this number."""
    return {**case, "key": min(case["key"], LARGEST_KEY_WITH_GRADIENT[DTYPES[case["dtype"]]])}


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
    gate = torch.rand(batch, tokens, heads, generator=generator) if case["gate"] == "mixed" else None
    g = -50.0 * gate**8 if gate is not None else torch.full((batch, tokens, heads), float(case["gate"]))
    beta = torch.rand(batch, tokens, heads, generator=generator) * case["beta"]
    inputs = {
        "q": q.to(dtype),
        "k": k.to(dtype),
        "v": drawn(batch, tokens, heads, value).to(dtype),
        "g": g,
        "beta": beta,
    }
    # Without a state the decay of a single token has no gradient.
    if case["state"] or tokens == 1:
        inputs["initial"] = drawn(batch, heads, key, value)

    def ours(q, k, v, g, beta, initial=None):
        return gated_delta_rule(
            q, k, v, g, beta, initial_state=initial, l2norm=case["l2norm"], return_state=True
        )

    def theirs(q, k, v, g, beta, initial=None):
        return _in_torch(q, k, v, g, beta, initial, case["l2norm"])

    return ParityProblem(
        inputs=inputs,
        ours=ours,
        theirs=theirs,
        outputs=("out", "state"),
        baseline="in chunks of 64, PyTorch's matrix products in the same dtype, the rest in float32",
        # The gradient of a decay is five sums over a chunk's tokens, each of products with as many terms as values have elements.
        magnitude=5.0 * min(tokens, 64) * value,
    )


def _tensors(problem, device, batch, tokens):
    heads, size = problem["heads"], problem["size"]
    q, k = (problem.tensor(device, batch, tokens, problem["key_heads"], size) for _ in range(2))
    gates = (torch.zeros(batch, tokens, heads, device=device) for _ in range(2))
    return q, k, problem.tensor(device, batch, tokens, heads, size), *gates


def _call(problem, device):
    inputs = _tensors(problem, device, problem["batch"], problem["tokens"])
    return lambda: gated_delta_rule(*inputs, l2norm=True)


def _call_step(problem, device):
    inputs = _tensors(problem, device, problem["tokens"], 1)
    size = problem["size"]
    state = torch.zeros(problem["tokens"], problem["heads"], size, size, device=device)
    return lambda: gated_delta_step(*inputs, state, l2norm=True)


def _refuse(extents):
    if not 1 <= extents["size"] <= LARGEST_KEY:
        return f"size is {extents['size']}; allowed: 1 to {LARGEST_KEY}"
    if extents["heads"] % extents["key_heads"]:
        return f"heads is {extents['heads']}; allowed: a multiple of key_heads, {extents['key_heads']}"
    return None


def _token_bytes(problem) -> float:
    """Bytes of a token: q, k, v and the result, and two gates in float32."""
    return 4.0 * problem["size"] * (problem["key_heads"] + problem["heads"]) + 8.0 * problem["heads"]


def _prompts(heads: str, shape: str, *sizes: int) -> Table:
    return Table(
        f"Gated delta rule, one sequence, heads {heads} x 128", shape, at_delta_sizes(*sizes), DELTA_PEERS
    )


def _decoded(heads: str, shape: str, *sizes: int) -> Table:
    return Table(f"Gated delta rule, decoding, heads {heads}", shape, at_delta_sizes(*sizes), DELTA_PEERS)


def _calls(tensor):
    q, v, g = tensor(1, 40, 2, 64), tensor(1, 40, 4, 64), tensor(1, 40, 4, dtype=torch.float32)
    starts, heads = tensor(4, dtype=torch.int32), tensor(4, dtype=torch.float32)
    one, of_one, gate = tensor(3, 2, 2, 64), tensor(3, 2, 4, 64), tensor(3, 2, 4, dtype=torch.float32)
    pool = tensor(8, 4, 64, 64, dtype=torch.float32)
    return [
        ("packed sequences", "gated_delta_rule", (q, q, v, g, g), {"cu_seqlens": starts}),
        ("gates of Qwen3-Next", "gated_delta_rule", (q, q, v, g, g),
         {"A_log": heads, "dt_bias": heads, "beta_logits": True, "l2norm": True}),
        ("keys of 320", "gated_delta_rule", (tensor(1, 40, 2, 320), tensor(1, 40, 2, 320), v, g, g), {}),
        ("speculative decoding", "gated_delta_step", (one, one, of_one, gate, gate, pool),
         {"state_indices": tensor(3, 2, dtype=torch.int32), "accepted": tensor(3, dtype=torch.int32)}),
        ("value-first bfloat16 states", "gated_delta_step", (one, one, of_one, gate, gate, tensor(8, 4, 64, 64)),
         {"state_layout": "vk"}),
    ]  # fmt: skip


def _sizes(rows: Rows) -> str:
    return (
        f"Gated delta rules: keys of 1 to {LARGEST_KEY} elements (in float32 up to 128 with gradients), values of any size, any number of "
        "value heads per key head."
    )


def _example(q, k, v, g, beta):
    return gated_delta_rule(q, k, v, F.logsigmoid(g), beta.sigmoid(), l2norm=True)


def _example_in_torch(q, k, v, g, beta):
    return _in_torch(q, k, v, F.logsigmoid(g), beta.sigmoid())[0]


def _exercise(draw):
    inputs = [draw(1, 70, heads, 64, seed=seed) for seed, heads in ((1, 1), (2, 1), (3, 2))]
    gates = [F.logsigmoid(draw(1, 70, 2, seed=4)).float(), draw(1, 70, 2, seed=5).sigmoid().float()]
    yield gated_delta_rule(*inputs, *gates, l2norm=True)
    with torch.no_grad():
        state = draw(1, 2, 64, 64, seed=6).detach().float()
        yield gated_delta_step(*(x.detach()[:, :1] for x in (*inputs, *gates)), state)


CHECKS = Checks(
    trial=_trial,
    examples=(
        Example(
            "gated delta rule",
            {
                "q": (1, 100, 1, 64),
                "k": (1, 100, 1, 64),
                "v": (1, 100, 2, 64),
                "g": (1, 100, 2),
                "beta": (1, 100, 2),
            },
            _example,
            _example_in_torch,
        ),
    ),
    parity=(
        Parity(
            "gated_delta_rule",
            {
                "dtype": tuple(DTYPES),
                "tokens": (65, 1, 15, 63, 64, 200),
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
            adapt=_with_gradients,
        ),
    ),
    calls=_calls,
    sizes=_sizes,
    benchmarks=(
        Benchmark(
            "gated_delta_rule",
            example="1x8192x16x32x128",
            extents=("batch", "tokens", "key_heads", "heads", "size"),
            shapes="1x4096x16x32x128,1x1024x96x96x128",
            heading="Gated delta rule",
            bytes=lambda problem: problem["batch"] * problem["tokens"] * _token_bytes(problem),
            call=_call,
            # Qwen3-Next and Qwen3.5 35B; two of 397B's four devices, with the length that others published; 397B; four of its
            # devices; what flash-linear-attention publishes.
            tables=(
                _prompts("16 / 32", "1x{N}x16x32x128", 1024, 4096, 8192),
                _prompts("8 / 32", "1x{N}x8x32x128", 8192, 65536),
                _prompts("16 / 64", "1x{N}x16x64x128", 8192),
                _prompts("4 / 16", "1x{N}x4x16x128", 8192),
                _prompts("96 / 96", "1x{N}x96x96x128", 1024, 8192),
            ),
            refuse=_refuse,
        ),
        Benchmark(
            "gated_delta_step",
            example="64x16x32x128",
            extents=("tokens", "key_heads", "heads", "size"),
            shapes="1x16x32x128,64x16x32x128,256x16x32x128",
            heading="Gated delta rule, decoding",
            bytes=lambda problem: (
                problem["tokens"] * (_token_bytes(problem) + 8.0 * problem["heads"] * problem["size"] ** 2)
            ),
            call=_call_step,
            tables=(
                _decoded("16 / 32 x 128", "{N}x16x32x128", 1, 8, 64, 256),
                _decoded("16 / 64 x 128", "{N}x16x64x128", 64),
                _decoded("4 / 16 x 128", "{N}x4x16x128", 64),
                _decoded("8 / 16 x 256", "{N}x8x16x256", 8, 64),
            ),
            refuse=_refuse,
        ),
    ),
    exercise=_exercise,
)
