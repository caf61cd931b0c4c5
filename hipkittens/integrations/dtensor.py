# SPDX-License-Identifier: MIT
"""Lets torch.ops.hipkittens.* take DTensors: how their inputs may be sharded, and how their results then are.

    from hipkittens.integrations import dtensor

    dtensor.register()
    parallelize_module(model, mesh, {"project": ColwiseParallel(), "back": RowwiseParallel()})   # hipkittens.nn.Linear

Products are sharded by rows, columns, batches or the sum; attention by batch or heads; norms by any dimension but the last;
rotary by batch or heads. Other placements are redistributed to one of these by DTensor. FSDP2 (fully_shard) and DDP need
nothing of this: they call the operators with plain tensors.

Not served: dropout of DTensors (its seed is a plain tensor, which DTensor refuses to mix; use local tensors, as
parallelize_module gives them by default).
"""

from __future__ import annotations

import math

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

_registered = False


def register() -> None:
    """Teaches DTensor the operators. Repeated calls do nothing more; there is nothing to take back."""
    global _registered
    if _registered:
        return
    for name, (strategies, first_option) in _STRATEGIES.items():
        operator = getattr(torch.ops.hipkittens, name).default
        register_sharding(operator)(strategies)
        # DTensor keeps what it decided by these arguments: register_sharding leaves out booleans, and more.
        propagator = DTensor._op_dispatcher.sharding_propagator
        propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(first_option, needs_pytree=True)
    _registered = True


def _given(argument, placement):
    return None if argument is None else placement


def _replicated(arguments, results: int):
    """The strategy that is always there: everybody computes everything."""
    tensors = [Replicate() if hasattr(argument, "placements") else None for argument in arguments]
    return [Replicate()] * results, tensors


def _gemm(a, b, bias, out_dtype, deterministic):
    arguments = (a, b, bias, out_dtype, deterministic)
    rows, columns = len(a.shape) - 2, len(b.shape) - 1

    def strategy(out, a_placement, b_placement, bias_placement):
        return [out], [a_placement, b_placement, _given(bias, bias_placement), None, None]

    found = [
        _replicated(arguments, 1),
        strategy(Shard(rows), Shard(rows), Replicate(), Replicate()),
        strategy(Shard(columns), Replicate(), Shard(columns), Shard(0)),
        strategy(Partial(), Shard(rows + 1), Shard(columns - 1), Partial()),
    ]
    found += [strategy(Shard(axis), Shard(axis), Shard(axis), Replicate()) for axis in range(rows)]
    return found


def _heads_divide(tensor, axis: int) -> bool:
    """Heads of query and key keep their ratio only where every rank gets as many."""
    return tensor.shape[axis] % math.prod(tensor.mesh.shape) == 0


def _attention(q, k, v, *options):
    nothing = [None] * len(options)
    found = [_replicated((q, k, v, *options), 2)]
    if options[-1] is None or not hasattr(
        options[-1], "placements"
    ):  # the seed of dropout counts from the first head
        found.append(([Shard(0), Shard(0)], [Shard(0)] * 3 + nothing))
        if _heads_divide(k, 2):
            found.append(([Shard(2), Shard(1)], [Shard(2)] * 3 + nothing))
    return found


def _attention_backward(grad_out, grad_lse, q, k, v, out, lse, *options):
    nothing = [None] * len(options)
    found = [_replicated((grad_out, grad_lse, q, k, v, out, lse, *options), 3)]

    def strategy(rows, sums):
        return [rows] * 3, [rows, _given(grad_lse, sums), rows, rows, rows, rows, sums, *nothing]

    if not hasattr(options[-1], "placements"):
        found.append(strategy(Shard(0), Shard(0)))
        if _heads_divide(k, 2):
            found.append(strategy(Shard(2), Shard(1)))
    return found


def _varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, *options):
    found = [_replicated((q, k, v, cu_seqlens_q, cu_seqlens_k, *options), 2)]
    if not hasattr(options[-1], "placements") and _heads_divide(k, 1):
        inputs = [Shard(1)] * 3 + [Replicate()] * 2 + [None] * len(options)
        found.append(([Shard(1), Shard(0)], inputs))
    return found


def _varlen_backward(grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *options):
    arguments = (grad_out, grad_lse, q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, *options)
    found = [_replicated(arguments, 3)]
    if not hasattr(options[-1], "placements") and _heads_divide(k, 1):
        heads, sums = Shard(1), Shard(0)
        inputs = [heads, _given(grad_lse, sums), heads, heads, heads, heads, sums, Replicate(), Replicate()]
        found.append(([heads] * 3, inputs + [None] * len(options)))
    return found


def _norm(results: int):
    def strategies(x, residual, *rest):
        found = [_replicated((x, residual, *rest), results)]
        if any(
            hasattr(value, "placements") for value in rest[4:]
        ):  # the seed of dropout counts from the first row
            return found
        need_statistics = rest[-1] is not False  # left out where it is True, its default
        for axis in range(len(x.shape) - 1):
            rows = Shard(axis)
            sums = Replicate() if residual is None else rows  # empty where there is nothing to add
            parameters = [Replicate() if hasattr(value, "placements") else None for value in rest]
            outputs = [rows, sums, *[rows if need_statistics else Replicate()] * (results - 2)]
            found.append((outputs, [rows, _given(residual, rows), *parameters]))
        return found

    return strategies


def _norm_backward(dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias):
    arguments = (dy, dsum, z, weight, mean, rstd, dropout_p, seed, need_weight, need_bias)
    found = [_replicated(arguments, 4)]
    if seed is not None:
        return found
    for axis in range(len(z.shape) - 1):
        rows = Shard(axis)
        outputs = [
            rows,
            Replicate(),
            *(Partial() if need else Replicate() for need in (need_weight, need_bias)),
        ]
        inputs = [rows, _given(dsum, rows), rows, _given(weight, Replicate()), _given(mean, rows), rows]
        found.append((outputs, [*inputs, None, None, None, None]))
    return found


def _rotary(count: int):
    def strategies(*arguments):
        positions, heads_first = arguments[count + 2], arguments[count + 5]
        found = [_replicated(arguments, count)]
        for placement, places in ((Shard(0), Shard(0)), (Shard(1 if heads_first else 2), Replicate())):
            inputs = [placement] * count + [Replicate(), Replicate(), _given(positions, places)]
            found.append(([placement] * count, [*inputs, None, None, None, None]))
        return found

    return strategies


# By operator: its strategies, and where its arguments that are no tensors begin.
_STRATEGIES = {
    "gemm": (_gemm, 3),
    "attention_forward": (_attention, 3),
    "attention_backward": (_attention_backward, 7),
    "attention_varlen_forward": (_varlen, 5),
    "attention_varlen_backward": (_varlen_backward, 9),
    "layer_norm": (_norm(4), 4),
    "rms_norm": (_norm(3), 3),
    "norm_backward": (_norm_backward, 6),
    "rotary": (_rotary(1), 4),
    "rotary_qk": (_rotary(2), 5),
}
