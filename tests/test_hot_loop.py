# SPDX-License-Identifier: MIT
"""Loops detected from instructions and their execution counts."""

import pytest

from hipkittens._hot_loop import CLASSES, Executed, hot_loop

UNITS = {"v_mfma": "matrix", "v_": "valu", "ds_": "lds", "global": "vector_memory", "s_load": "smem", "s_waitcnt": "internal",
         "s_endpgm": "internal", "s_cbranch": "branch", "s_branch": "branch", "s_": "salu"}  # fmt: skip


def program(text):
    """Lines of `[label:] executions instruction`, where a branch names a label. Every second instruction has 8 bytes."""
    labels, lines, address = {}, [], 256
    for number, line in enumerate(text.strip().splitlines()):
        words = line.split()
        if words[0].endswith(":"):
            labels[words.pop(0)[:-1]] = address
        size = 8 if number % 2 else 4
        lines.append((address, size, int(words[0]), " ".join(words[1:])))
        address += size
    result = []
    for address, size, executions, text in lines:
        mnemonic, _, label = text.partition(" ")
        if mnemonic.startswith(("s_cbranch", "s_branch")):
            text = f"{mnemonic} {(labels[label] - address - size) // 4}"
        unit = next(unit for prefix, unit in UNITS.items() if mnemonic.startswith(prefix))
        if executions:
            result.append(Executed(address, size, text, unit, executions, 0, 7 if unit == "lds" else 0))
    return result, labels


NESTED = """
2 s_load_dwordx4 s[4:7], s[0:1], 0
outer: 6 v_mov_b32 v0, 0
inner: 60 ds_read_b128 v[0:3], v4
60 s_cbranch_scc1 aside
back: 60 v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
60 s_cbranch_scc1 inner
6 s_cbranch_scc1 outer
2 s_branch end
aside: 12 v_mov_b32 v6, v5
12 s_branch back
0 s_sub_u32 s0, s0, 1
end: 2 s_endpgm
"""


def test_the_inner_loop_with_its_code_aside():
    instructions, labels = program(NESTED)
    loop = hot_loop(instructions, 2)
    assert loop["is_loop"] and loop["address"] == labels["inner"]
    assert loop["turns_per_wave"] == 30
    assert loop["instructions_per_turn"] == pytest.approx(4 + 2 / 5)
    assert set(loop["per_turn"]) == set(CLASSES)
    assert loop["per_turn"] == pytest.approx(
        {"mfma": 1, "valu": 1 / 5, "salu": 2 + 1 / 5, "scalar_memory": 0, "lds": 1, "vector_memory": 0, "wait": 0}
    )  # fmt: skip
    assert loop["mfma_share"] == pytest.approx(1 / 4.4)
    assert loop["share_of_all"] == pytest.approx(264 / (264 + 2 + 6 + 6 + 2 + 2))
    assert loop["lds_conflict_cycles"] == 7


def test_an_inner_loop_of_little_weight_is_not_the_hot_one():
    instructions, labels = program("""
        1 s_mov_b32 s0, 0
        outer: 10 v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
        10 v_add_u32 v0, v0, v1
        10 v_add_u32 v0, v0, v1
        inner: 12 v_add_u32 v0, v0, v1
        12 s_cbranch_scc1 inner
        10 s_cbranch_scc1 outer
        1 s_endpgm
    """)
    loop = hot_loop(instructions, 1)
    assert loop["address"] == labels["outer"] and loop["turns_per_wave"] == 10
    assert loop["per_turn"]["valu"] == pytest.approx((10 + 10 + 12) / 10)


def test_a_kernel_without_a_loop_is_one_turn():
    instructions, _ = program("""
        4 s_load_dwordx4 s[4:7], s[0:1], 0
        4 s_cbranch_execz end
        3 global_load_dword v0, v1, s[4:5]
        end: 4 s_endpgm
    """)
    loop = hot_loop(instructions, 4)
    assert not loop["is_loop"] and loop["turns_per_wave"] == 1
    assert loop["instructions_per_turn"] == pytest.approx(3.75)
    assert loop["share_of_all"] == 1


def test_a_jump_to_a_register_is_not_guessed():
    instructions, _ = program("1 s_setpc_b64 s[0:1]\n1 s_endpgm")
    with pytest.raises(ValueError, match="s_setpc_b64 s\\[0:1\\] at 0x100"):
        hot_loop(instructions, 1)
