# SPDX-License-Identifier: MIT
"""The Python interface of flash-attn 2 on this package's kernels: replace `flash_attn` by `hipkittens.flash_attn`.

Argument order, names, defaults, layouts and masks are those of flash-attn 2.8. What has no kernel raises
NotImplementedError with the name of the argument. Three things are better than there, and none is silent: gradients are
sums in one fixed order whatever `deterministic` says, the LSE has a gradient, and it is -inf (flash-attn: +inf) for a
query that sees no key.
"""

from .flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
