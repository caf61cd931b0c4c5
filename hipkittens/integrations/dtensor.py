# SPDX-License-Identifier: MIT
"""Lets torch.ops.hipkittens.* take DTensors: how their inputs may be sharded, and how their results then are.

    from hipkittens.integrations import dtensor

    dtensor.register()
    parallelize_module(model, mesh, {"project": ColwiseParallel(), "back": RowwiseParallel()})   # hipkittens.nn.Linear

Products are sharded by rows, columns, batches or the sum; attention and rotations by batch or heads; what works on rows by
any dimension but the last. Other placements are redistributed to one of these by DTensor. FSDP2 (fully_shard) and DDP need
nothing of this: they call the operators with plain tensors.

Not served: dropout of DTensors (its seed is a plain tensor, which DTensor refuses to mix; use local tensors, as
parallelize_module gives them by default).
"""

from __future__ import annotations

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from .. import _namespace, operations

_registered = False


def register() -> None:
    """Teaches DTensor the operators. Repeated calls do nothing more; there is nothing to take back."""
    global _registered
    if _registered:
        return
    for operation in operations.every():
        for each in operation.operators:
            if each.sharding is None:
                continue
            operator = getattr(_namespace.OPERATORS, each.name).default
            register_sharding(operator)(each.sharding)
            # DTensor keeps what it decided by these arguments: register_sharding leaves out booleans, and more.
            propagator = DTensor._op_dispatcher.sharding_propagator
            propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(each.first_option, needs_pytree=True)
    _registered = True
