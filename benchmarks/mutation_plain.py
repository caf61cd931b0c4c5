# SPDX-License-Identifier: MIT
"""Vector instructions whose results need no manually inserted wait states (CDNA3 ISA manual, section 4.5)."""

from __future__ import annotations

from mutation_code import Line

TRANSCENDENTAL = ("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos")


def is_plain(line: Line) -> bool:
    """A vector instruction whose VGPRs the hardware forwards and interlocks: all but the kinds that the manual lists."""
    name = line.mnemonic
    special = ("mfma", "smfmac", "lane", "permute", "div_", "cmp", "cmpx", "_co_", "fp8", "bf8", "sdwa", "dpp",
               "swap", "f64", "mad_u64", "mad_i64")  # fmt: skip
    modifiers = ("sel:", "row_", "quad_perm", "op_sel:")
    text = line.text.replace("op_sel_hi:", "")
    # OP_SEL of packed arithmetic and of v_fma_mix_f32 selects halves of the sources, not of the result.
    if name.startswith("v_pk_") or name == "v_fma_mix_f32":
        text = text.replace("op_sel:", "")
    return (
        name.startswith("v_")
        and not name.startswith(TRANSCENDENTAL)
        and not any(word in name for word in special)
        and not any(word in text for word in modifiers)
        and not line.operands[0].startswith(("s", "vcc", "exec"))
    )
