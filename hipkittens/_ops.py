# SPDX-License-Identifier: MIT
"""Loads the operators of torch.ops.hipkittens, and registers the shapes and derivatives of hipkittens/operations for them."""

from __future__ import annotations

import torch

from . import _autograd, _backend, _call, _library, _namespace, _vmap, operations
from ._after_import import after_import

_library.connect(_backend.arch(), _backend.simulates_cpu_tensors)

for _operation in operations.every():
    for _operator in _operation.operators:
        _name = f"{_namespace.NAMESPACE}::{_operator.name}"
        torch.library.register_fake(_name, _operator.fake)
        _autograd.register(_operator.name, _operator.backward, _operator.setup_context)
        _call.register(_operator.name, _operator.backward, _operator.setup_context)
        _vmap.register(_operator.name)

# torch's FLOP counter imports Triton if it is installed, which takes longer than everything else here.
after_import("torch.utils.flop_counter", f"{__package__}._flop_formulas")
