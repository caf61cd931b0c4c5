# SPDX-License-Identifier: MIT
"""DTensor support for torch.ops.hipkittens.*: how inputs may be sharded, and how results then are.

    from hipkittens.integrations import dtensor

    dtensor.register()
    parallelize_module(model, mesh, {"project": ColwiseParallel(), "back": RowwiseParallel()})   # hipkittens.nn.Linear

Matrix products may be sharded by rows, columns, batches or the summed dimension; attention and rotary embeddings by batch or heads;
row-wise operations by any dimension but the last. Other placements are redistributed to one of these by DTensor. FSDP2 (fully_shard)
and DDP do not need this module: they call the operators with plain tensors.

Not supported: dropout of DTensors (its seed is a plain tensor, which DTensor refuses to mix; use local tensors, as parallelize_module
passes them by default).
"""

from __future__ import annotations

from torch.distributed.tensor import DTensor
from torch.distributed.tensor._op_schema import RuntimeSchemaInfo
from torch.distributed.tensor.experimental import register_sharding

from .. import _namespace, operations

_registered = False


def register() -> None:
    """Registers the operators with DTensor. Repeated calls have no effect; it cannot be undone."""
    global _registered
    if _registered:
        return
    for operation in operations.every():
        for each in operation.operators:
            if each.sharding is None:
                continue
            operator = getattr(_namespace.OPERATORS, each.name).default
            register_sharding(operator)(each.sharding)
            # DTensor caches its decisions by these arguments: register_sharding omits booleans, among others.
            propagator = DTensor._op_dispatcher.sharding_propagator
            propagator.op_to_schema_info[operator] = RuntimeSchemaInfo(each.first_option, needs_pytree=True)
    _registered = True
