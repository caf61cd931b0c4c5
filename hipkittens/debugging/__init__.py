# SPDX-License-Identifier: MIT
"""`hipkittens sim debug`: stops a launch in the simulator to inspect waves, registers, LDS and tensors.

Layers: process (the program and its socket), symbols (DWARF), register_values (bytes as numbers), breakpoints, session (all of these
combined), differences (from another order of waves, as text), run_comparison (two sessions). The interfaces on top of them are commands
with console (a terminal, or JSON) and debug_adapter (Debug Adapter Protocol).
"""
