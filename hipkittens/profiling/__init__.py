# SPDX-License-Identifier: MIT
"""What the commands bench, profile and trace do: problems by name, launches in the cycle model or on a GPU, and their pictures."""
