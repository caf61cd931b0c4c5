# SPDX-License-Identifier: MIT
"""Bindings to other libraries. Nothing here is imported by `import hipkittens`."""
