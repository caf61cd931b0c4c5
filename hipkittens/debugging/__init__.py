# SPDX-License-Identifier: MIT
"""`hipkittens sim debug`: stops a launch in the simulator, and looks at waves, registers, LDS and tensors there.

Layers: process (the program and its socket), symbols (DWARF), register_values (bytes as numbers), breakpoints, session (all of
these together), differences (from another order of waves, in words), run_comparison (two sessions); above them the doors: commands with console (a terminal, or JSON) and debug_adapter (Debug Adapter Protocol).
"""
