# SPDX-License-Identifier: MIT
"""Names in vLLM's custom_ops that enable what its own operators do not name. Importing requires vLLM."""

from __future__ import annotations

from vllm.config import get_current_vllm_config


def is_enabled(name: str) -> bool:
    """Whether custom_ops enable it, like vLLM's own operators; counted like these, since vLLM warns of names that nothing has used."""
    options = get_current_vllm_config().compilation_config
    enabled = options.is_custom_op_enabled(name)
    (options.enabled_custom_ops if enabled else options.disabled_custom_ops).update([name])
    return enabled
