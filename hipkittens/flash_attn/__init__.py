# SPDX-License-Identifier: MIT
"""The Python interface of flash-attn 2 on this package's kernels: replace `flash_attn` by `hipkittens.flash_attn`.

Argument order, names, defaults, layouts and masks are those of flash-attn 2.8. Arguments without a kernel raise NotImplementedError
with their name. Results differ from flash-attn in three ways: gradients are always accumulated in one fixed order, whatever the value
of `deterministic`; the LSE has a gradient; and the LSE is -inf (flash-attn: +inf) for a query for which every key is masked.
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
