# SPDX-License-Identifier: MIT
"""The commands bench, profile and trace: problems by name, launches in the cycle model or on a GPU, and their plots."""
