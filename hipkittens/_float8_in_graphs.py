# SPDX-License-Identifier: MIT
"""Imported after torch._dynamo: float8_linear's function remains one node in its graphs, whose derivative AOTAutograd traces.

Dynamo's own tracing of a backward does not allow reading layouts, which our checks do.
"""

from __future__ import annotations

import torch

from .float8 import _Float8Linear

torch._dynamo.allow_in_graph(_Float8Linear)
