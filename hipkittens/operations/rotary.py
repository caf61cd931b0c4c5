# SPDX-License-Identifier: MIT
"""The record of rotary embeddings; the functions are in hipkittens/rotary.py."""

from __future__ import annotations

from functools import partial

import torch

from .. import _backend
from .._call import call
from ..rotary import rotary, rotary_qk
from ._record import (
    DTYPES,
    Benchmark,
    Checks,
    Example,
    Function,
    Kernel,
    Operation,
    Operator,
    Table,
    Trial,
)
from ._sharding import given, replicated
from ._tensors import draw


def _fake(x, *_rotation):
    return x.new_empty(x.shape)


def _qk_fake(q, k, *_rotation):
    return q.new_empty(q.shape), k.new_empty(k.shape)


def _in_place_fake(*_arguments):
    return None


# The gradient is the inverse rotation, the transpose: the operator itself, which is differentiable again.
_TABLES = (
    6  # tensors after those that are rotated, followed by an offset and flags, one of which is `inverse`
)


def _setup(ctx, inputs, output) -> None:
    *_, offset, interleaved, nope_first, full_tables, inverse, heads_first = inputs
    ctx.save_for_backward(*inputs[-_TABLES - 6 : -6])
    ctx.flags = (offset, interleaved, nope_first, full_tables, not inverse, heads_first)


def _refuse_table_gradient(needs) -> None:
    if any(needs):
        raise NotImplementedError("hipkittens: rotary gives cos and sin no gradient; detach them")


@_backend.interruptible
def _backward(ctx, grad):
    _refuse_table_gradient(ctx.needs_input_grad[1 : 1 + _TABLES])
    return call("rotary", grad, *ctx.saved_tensors, *ctx.flags), *[None] * 12


@_backend.interruptible
def _qk_backward(ctx, grad_q, grad_k):
    _refuse_table_gradient(ctx.needs_input_grad[2 : 2 + _TABLES])
    return *call("rotary_qk", grad_q, grad_k, *ctx.saved_tensors, *ctx.flags), *[None] * 12


def _sharding(count: int):
    """By batch, or by heads."""

    def strategies(*arguments):
        from torch.distributed.tensor import Replicate, Shard

        tables, heads_first = arguments[count : count + _TABLES], arguments[-1]
        found = [replicated(arguments, count)]
        for placement, of_numbers in ((Shard(0), Shard(0)), (Shard(1 if heads_first else 2), Replicate())):
            placements = [Replicate(), Replicate(), of_numbers, of_numbers, Replicate(), Replicate()]
            inputs = [placement] * count
            inputs += [given(table, each) for table, each in zip(tables, placements, strict=True)]
            found.append(([placement] * count, [*inputs, *[None] * 6]))
        return found

    return strategies


def tables(tokens: int, features: int) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, features, 2, dtype=torch.float64) / features)
    angles = torch.outer(torch.arange(tokens, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def _ours_by_row(x):
    return rotary(x, *(table.to(x.device) for table in tables(*x.shape[1::2])))


def _theirs_by_row(x):
    """In x's dtype or in float32, whichever is wider, rounded once."""
    from ._rotary_parity import turn

    cos, sin = (table.to(torch.promote_types(x.dtype, torch.float32)) for table in tables(*x.shape[1::2]))
    return turn(x.to(cos.dtype), cos, sin, False, torch.arange(x.shape[1]), -2).to(x.dtype)


def _run(dtype: torch.dtype, tokens: int, heads: int, key_heads: int, size: int) -> list[torch.Tensor]:
    """The kernels of one dtype: tables of float32 and of its own, both orders of pairs."""
    with torch.no_grad():
        q, k = (draw(1, tokens, count, size, dtype=dtype) for count in (heads, key_heads))
        angles = torch.outer(torch.arange(tokens), 10000.0 ** -torch.linspace(0, 1, size // 2))
        cos, sin = angles.cos(), angles.sin()
        results = []
        for table in {torch.float32, dtype}:
            results += rotary_qk(q, k, cos.to(table), sin.to(table))
        return [*results, *rotary_qk(q, k, cos, sin, interleaved=True)]


def _trial(name: str, tokens: int, heads: int, key_heads: int) -> Trial:
    title = f"rotary_qk N{tokens} H{heads} Hkv{key_heads} D128 {name}"
    return Trial(title, lambda: _run(DTYPES[name], tokens, heads, key_heads, 128))


def _trial_of(kernel: Kernel) -> Trial:
    if kernel.kind.startswith("qkv"):
        from ._qkv_rotary_checks import trial

        return trial(kernel.row["element"])
    if kernel.kind == "joined":
        from ._mla_rotary_checks import trial

        return trial(kernel.row["element"])
    return _trial(kernel.row["element"], 40, 4, 2)


def _run_orders(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tables of both dtypes with both orders of pairs."""
    angles = torch.arange(8.0)[:, None] * torch.arange(16.0)
    q, k = (draw(1, 8, heads, 32, dtype=dtype).detach() for heads in (2, 1))
    return [
        turned
        for table in (torch.float32, dtype)
        for interleaved in (False, True)
        for turned in rotary_qk(q, k, angles.cos().to(table), angles.sin().to(table), interleaved=interleaved)
    ]


def _every_kernel():
    from ._mla_rotary_checks import trial as of_joined
    from ._qkv_rotary_checks import trial

    orders = [Trial(f"rotary {name}", partial(_run_orders, dtype)) for name, dtype in DTYPES.items()]
    return [*orders, *map(trial, DTYPES), *map(of_joined, DTYPES)]


def _calls(tensor):
    one, packed, cos = tensor(1, 33, 8, 64), tensor(33, 8, 64), tensor(64, 32, dtype=torch.float32)
    ends = tensor(3, dtype=torch.int32)
    q, k = tensor(2, 33, 8, 64), tensor(2, 33, 2, 64)
    return [
        ("interleaved, in place, position ids", "rotary", (one, cos, cos),
         {"interleaved": True, "inplace": True, "positions": tensor(33, dtype=torch.int64)}),
        ("packed sequences", "rotary", (packed, cos, cos), {"cu_seqlens": ends}),
        ("queries and keys in one launch, partial", "rotary_qk", (q, k, cos[:, :16], cos[:, :16]), {}),
        ("more pairs than features", "rotary", (one[..., :60], cos, cos), {}),
    ]  # fmt: skip


def _exercise(draw):
    q, k = draw(1, 20, 4, 32), draw(1, 20, 2, 32, seed=1)
    cos, sin = tables(20, 32)
    rotary(q.detach().clone(), cos, sin, inplace=True)
    rotary_qk(q.detach().clone(), k.detach().clone(), cos, sin, inplace=True)
    return [rotary(q, cos, sin), *rotary_qk(q, k, cos, sin)]


def _call(problem, device):
    e = problem.extents
    x = problem.tensor(device, e["B"], e["N"], e["H"], e["D"])
    angles = torch.outer(torch.arange(e["N"]), 10000.0 ** -torch.linspace(0, 1, e["D"] // 2))
    cos, sin = angles.cos().to(device), angles.sin().to(device)
    return lambda: rotary(x, cos, sin)


def _call_torch(problem):
    e = problem.extents
    x = problem.tensor("cuda", e["B"], e["H"], e["N"], e["D"])
    cos, sin = (problem.tensor("cuda", e["N"], e["D"]) for _ in range(2))

    def turn():
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    return turn


def _refuse(extents):
    if extents["D"] % 2:
        return f"D is {extents['D']}; rotary turns pairs, so it has to be even"
    return None


def _benchmark() -> Benchmark:
    from ._tables import MEMORY_BOUND_PEERS, MEMORY_BOUND_SIZES

    return Benchmark(
        "rotary",
        example="B16H16N2048D128",
        shapes="B16H16N1024D128,B16H16N2048D128,B16H16N4096D128",
        letters="BHND",
        bytes=lambda problem: 4.0 * problem["B"] * problem["N"] * problem["H"] * problem["D"],
        call=_call,
        torch=_call_torch,
        refuse=_refuse,
        heading="Rotary embedding",
        tables=(
            Table("Rotary embedding, 16 heads of 128, batch 16", "B16H16N{N}D128", MEMORY_BOUND_SIZES, MEMORY_BOUND_PEERS),
        ),
    )  # fmt: skip


def _checks() -> Checks:
    from ._mla_rotary_checks import representative as of_latents
    from ._qkv_rotary_checks import representative as of_qkv
    from ._rotary_parity import parity_of

    return Checks(
        trial=_trial_of,
        examples=(Example("rotary", {"x": (1, 128, 8, 128)}, _ours_by_row, _theirs_by_row),),
        doctor=Example("rotary", {"x": (1, 40, 4, 64)}, _ours_by_row, _theirs_by_row),
        parity=(parity_of(("x",)), parity_of(("q", "k"))),
        calls=_calls,
        sizes=lambda rows: "Rotary: any number of features, and 1 to features / 2 pairs.",
        benchmarks=(_benchmark(),),
        representative=lambda: (
            each for name in DTYPES for each in (_trial(name, 256, 8, 2), of_qkv(name), of_latents(name))
        ),
        every_kernel=_every_kernel,
        exercise=_exercise,
    )


def _arguments(count: int):
    def arguments(tensor, dtype):
        table = tensor(32, 16, dtype=torch.float32)
        return *(tensor(1, 32, 4, 64, dtype=dtype) for _ in range(count)), table, table

    return arguments


OPERATION = Operation(
    name="rotary",
    folder="rotary",
    functions=(Function(rotary, _arguments(1)), Function(rotary_qk, _arguments(2))),
    operators=(
        Operator("rotary", _fake, _backward, _setup, sharding=_sharding(1), first_option=7),
        Operator("rotary_qk", _qk_fake, _qk_backward, _setup, sharding=_sharding(2), first_option=8),
        Operator("rotary_", _in_place_fake),
        Operator("rotary_qk_", _in_place_fake),
    ),
    checks=_checks,
    order=3,
)
