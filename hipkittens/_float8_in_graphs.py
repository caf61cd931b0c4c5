# SPDX-License-Identifier: MIT
"""Imported after torch._dynamo: float8_linear's function stays one node of its graphs, whose derivative AOTAutograd traces.

Dynamo's own tracing of a backward refuses to look at layouts, which our checks do.
"""

from __future__ import annotations

import torch

from .float8 import _Float8Linear

torch._dynamo.allow_in_graph(_Float8Linear)
