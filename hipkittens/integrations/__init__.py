# SPDX-License-Identifier: MIT
"""Doors to other libraries. Nothing here is imported by `import hipkittens`."""
