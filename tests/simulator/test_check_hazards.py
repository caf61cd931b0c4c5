"""synccheck's table of wait states: one wait state too few is reported, and the right number is not."""

import pytest

from tests.simulated_device import TARGETS
from tests.simulator.checked_kernels import findings_of, only
from tests.simulator.memory_kernels import around, load

TWO_PASS = "v_mfma_f32_4x4x4_16b_f16 v[32:35], v[4:5], v[6:7], v[32:35]"
FOUR_PASS = "v_mfma_f32_16x16x16_f16 v[32:35], v[4:5], v[6:7], v[32:35]"
F32 = "v_mfma_f32_4x4x1_16b_f32 v[32:35], v4, v5, v[32:35]"
F64 = "v_mfma_f64_4x4x4_4b_f64 v[32:33], v[4:5], v[6:7], v[32:33]"

# kind: (before, producer, consumer, wait states needed on gfx942, on gfx950)
CASES = {
    "valu_sgpr_vector_memory": ("", "v_readfirstlane_b32 s17, v3", "buffer_load_dword v32, v1, s[12:15], s17 offen", 5, 5),
    "valu_sgpr_valu": ("", "v_readfirstlane_b32 s20, v3", "v_add_u32_e32 v33, s20, v1", 2, 2),
    "valu_sgpr_lane_select": ("", "v_readfirstlane_b32 s20, v3", "v_readlane_b32 s21, v1, s20", 4, 4),
    "valu_vcc_div_fmas": ("", "v_cmp_eq_u32_e32 vcc, v1, v3", "v_div_fmas_f32 v32, v4, v5, v6", 4, 4),
    "valu_exec_dpp": ("", "v_cmpx_eq_u32_e32 vcc, v3, v3", "v_mov_b32_dpp v32, v4 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 5, 5),
    "valu_exec_lane": ("", "v_cmpx_eq_u32_e32 vcc, v3, v3", "v_readfirstlane_b32 s21, v4", 4, 4),
    "valu_exec_matrix": ("", "v_cmpx_eq_u32_e32 vcc, v3, v3", FOUR_PASS, 4, 4),
    "valu_vgpr_dpp": ("", "v_mov_b32_e32 v4, 1", "v_mov_b32_dpp v32, v4 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf", 2, 2),
    "valu_vgpr_lane": ("", "v_mov_b32_e32 v4, 1", "v_readfirstlane_b32 s21, v4", 1, 1),
    "valu_vgpr_matrix": ("", "v_mov_b32_e32 v4, 1", FOUR_PASS, 2, 2),
    "transcendental_valu": ("", "v_exp_f32_e32 v4, v5", "v_add_f32_e32 v32, v4, v5", 1, 1),
    "part_write_valu": ("", "v_add_u16_sdwa v4, v5, v6 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD", "v_add_u32_e32 v32, v4, v5", 1, 1),
    "dot_read": ("", "v_dot2_f32_f16 v32, v4, v5, v6", "v_add_f32_e32 v33, v32, v4", 3, 3),
    "dot_overwritten": ("", "v_dot2_f32_f16 v32, v4, v5, v6", "v_mov_b32_e32 v32, 1", 3, 3),
    "wide_store_overwritten": ("", "global_store_dwordx4 v1, v[4:7], s[8:9]", "v_mov_b32_e32 v5, 1", 2, 2),
    "m0_direct_to_lds": ("", "s_mov_b32 m0, 0", "global_load_lds_dword v1, s[8:9]", 1, 1),
    "m0_read": ("", "s_mov_b32 m0, 0", "s_sendmsg sendmsg(MSG_INTERRUPT)", 1, 1),
    "setreg_getreg": ("", "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 2), 0", "s_getreg_b32 s20, hwreg(HW_REG_MODE)", 2, 2),
    "xdl_matrix_ab": ("", FOUR_PASS, "v_mfma_f32_4x4x4_16b_f16 v[8:11], v[34:35], v[6:7], v[8:11]", 7, 8),
    "f32_matrix_ab": ("", F32, "v_mfma_f32_4x4x4_16b_f16 v[8:11], v[34:35], v[6:7], v[8:11]", 4, 4),
    "xdl_xdl_c": ("", FOUR_PASS, "v_mfma_f32_4x4x4_16b_f16 v[8:11], v[4:5], v[6:7], v[34:37]", 5, 6),
    "xdl_two_pass_xdl_c": ("", TWO_PASS, "v_mfma_f32_4x4x4_16b_f16 v[8:11], v[4:5], v[6:7], v[34:37]", 3, 4),
    "xdl_matrix_c": ("", TWO_PASS, "v_mfma_f32_4x4x1_16b_f32 v[8:11], v4, v5, v[34:37]", 3, 3),
    "f64_4_matrix_same_c": ("", F64, F64, 4, 4),
    "f64_matrix_fma": ("", F64, "v_fma_f64 v[36:37], v[4:5], v[6:7], v[8:9]", 2, 2),
    "two_pass_matrix_same_c": ("", TWO_PASS, TWO_PASS, 2, 2),
    "xdl_read": ("", FOUR_PASS, "global_store_dword v1, v33, s[8:9]", 7, 8),
    "f32_read": ("", F32, "v_add_f32_e32 v8, v33, v4", 4, 4),
    "f64_4_read_memory": ("", F64, "global_store_dword v1, v33, s[8:9]", 9, 9),
    "xdl_overwritten": ("", TWO_PASS, "v_mov_b32_e32 v33, 1", 5, 5),
    "matrix_c_overwritten": ("", "v_mfma_f32_16x16x16_f16 v[8:11], v[4:5], v[6:7], v[32:35]", "v_mov_b32_e32 v33, 1", 3, 3),
}  # fmt: skip
# In the text the producer follows the consumer; the branch back is one wait state.
LOOP = """  s_mov_b32 s22, 2
.L{name}:
  v_mfma_f32_16x16x16_f16 v[32:35], v[4:5], v[6:7], v[32:35]
  s_nop 15
  s_sub_u32 s22, s22, 1
  s_cmp_eq_u32 s22, 0
  s_cbranch_scc1 .L{name}_end
  v_mov_b32_e32 v4, v8
  {gap}
  s_branch .L{name}
.L{name}_end:
  s_nop 7"""

SETUP = "v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\n" + "".join(
    f"v_mov_b32_e32 v{number}, 0\n" for number in (*range(4, 12), 36, 37)
)


def body(producer, consumer, states):
    gap = ""
    while states > 0:
        gap += f"s_nop {min(states, 16) - 1}\n"
        states -= min(states, 16)
    lds = "lds" in consumer
    return around(
        SETUP + f"s_nop 15\n{producer}\n{gap}{consumer}\ns_waitcnt vmcnt(0)\ns_nop 15\ns_nop 7", lds=lds
    )


@pytest.fixture(scope="module", params=TARGETS)
def target_and_module(request):
    bodies = {}
    for kind, (_, producer, consumer, *needed) in CASES.items():
        states = needed[TARGETS.index(request.param)]
        bodies[f"{kind}_short"] = body(producer, consumer, states - 1)
        bodies[f"{kind}_enough"] = body(producer, consumer, states)
    for states in (0, 1):
        gap = "s_nop 0" if states else ""
        bodies[f"around_a_loop_{states}"] = around(SETUP + LOOP.format(name=f"loop{states}", gap=gap))
    return request.param, load(bodies, request.param)


@pytest.mark.parametrize("kind", CASES)
def test_one_wait_state_too_few_is_found(target_and_module, kind):
    target, module = target_and_module
    launch = {"descriptor": (0, 0, 0, 0x00020000)} if "buffer" in CASES[kind][2] else {}
    needed = CASES[kind][3 + TARGETS.index(target)]
    finding = only(findings_of(module, f"{kind}_short", checks="synccheck", **launch)[0])
    assert (finding["checker"], finding["kind"]) == ("synccheck", kind)
    assert finding["first"]["text"].split()[0] == CASES[kind][1].split()[0]
    assert finding["second"]["text"].split()[0] == CASES[kind][2].split()[0]
    assert f"comes {needed - 1} wait states after" in finding["message"]
    assert f"needs {needed}:" in finding["message"]
    assert finding["fix"] == "s_nop 0 between the two"


@pytest.mark.parametrize("kind", CASES)
def test_the_right_number_is_enough(target_and_module, kind):
    launch = {"descriptor": (0, 0, 0, 0x00020000)} if "buffer" in CASES[kind][2] else {}
    assert findings_of(target_and_module[1], f"{kind}_enough", checks="synccheck", **launch) == ([], None)


def test_paths_through_branches_are_followed(target_and_module):
    finding = only(findings_of(target_and_module[1], "around_a_loop_0", checks="synccheck")[0])
    assert (finding["kind"], finding["first"]["text"]) == ("valu_vgpr_matrix", "v_mov_b32_e32 v4, v8")
    assert finding["first"]["offset"] > finding["second"]["offset"]
    assert findings_of(target_and_module[1], "around_a_loop_1", checks="synccheck") == ([], None)


def test_c_comes_from_the_last_matrix_instruction_that_writes_it(target_and_module):
    """Clang leaves out wait states for a register that another matrix instruction has written since."""
    between = "v_mfma_f32_16x16x16_f16 v[30:33], v[4:5], v[6:7], v[8:11]"
    product = "v_mfma_f32_16x16x16_f16 v[8:11], v[4:5], v[6:7], {}"
    texts = {
        name: around(SETUP + f"s_nop 15\n{FOUR_PASS}\n{between}\n{product.format(c)}\ns_nop 15\ns_nop 7")
        for name, c in (("of_the_last", "v[30:33]"), ("of_the_first", "v[34:37]"))
    }
    module = load(texts, target_and_module[0])
    assert findings_of(module, "of_the_last", checks="synccheck") == ([], None)
    finding = only(findings_of(module, "of_the_first", checks="synccheck")[0])
    assert (finding["kind"], finding["first"]["text"]) == ("xdl_xdl_c", FOUR_PASS)


def test_what_is_not_executed_is_not_reported(target_and_module):
    dead = around("s_branch .Lover\nv_exp_f32_e32 v4, v5\nv_add_f32_e32 v32, v4, v5\n.Lover:")
    module = load({"dead": dead}, target_and_module[0])
    assert findings_of(module, "dead", checks="synccheck") == ([], None)


NONE = {
    "a_sum_in_place": ("v_dot2_f32_f16 v32, v4, v5, v6", "v_dot2_f32_f16 v32, v6, v5, v32"),
    "dot_then_matrix": ("v_dot2_f32_f16 v4, v8, v5, v6", FOUR_PASS),
    "c_of_an_f32_product": (F32.replace("v[32:35], v4", "v[8:11], v4"), "v_mov_b32_e32 v33, 1"),
}
PARTS = {
    "over_the_rest": ("v_add_u16_sdwa v4, v5, v6 dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD", "v_mov_b32_e32 v4, 1"),
    "second_byte": ("v_cvt_sr_fp8_f32 v4, v5, v6 op_sel:[0,0,1,0]", "v_add_u32_e32 v32, v4, v5"),
    "upper_half": ("v_cvt_pk_fp8_f32 v4, v5, v6 op_sel:[0,0,1]", "v_add_u32_e32 v32, v4, v5"),
}  # fmt: skip
PARTS_OF_GFX950 = {
    "second_byte_of_fp4": ("v_cvt_scalef32_pk_fp4_f32 v4, v5, v6, v7 op_sel:[0,0,1,0]", "v_add_u32_e32 v32, v4, v5"),
    "fp4_at_random": ("v_cvt_scalef32_sr_pk_fp4_f32 v4, v[6:7], v8, v9", "v_add_u32_e32 v32, v4, v5"),
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_what_needs_no_wait_states(target):
    module = load({name: body(*pair, 0) for name, pair in NONE.items()}, target)
    for name in NONE:
        assert findings_of(module, name, checks="synccheck") == ([], None), name


@pytest.mark.parametrize("target", TARGETS)
def test_what_writes_a_part(target):
    cases = PARTS | (PARTS_OF_GFX950 if target == "gfx950" else {})
    module = load(
        {f"{name}_{states}": body(*pair, states) for name, pair in cases.items() for states in (0, 1)}, target
    )
    for name in cases:
        assert only(findings_of(module, f"{name}_0", checks="synccheck")[0])["kind"] == "part_write_valu", (
            name
        )
        assert findings_of(module, f"{name}_1", checks="synccheck") == ([], None), name
